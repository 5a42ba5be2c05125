"""What PyTorch's layers make of their parameters and inputs, in double precision: writes `layers.json`.

Values are those of `models.py`. For each layer: names, output, the buffers afterwards, and the gradients' norms.
"""

import json
from pathlib import Path

import torch
from models import golden, images
from torch import nn


class Attend(nn.MultiheadAttention):
    def forward(self, query, key, **options):
        return super().forward(query, key, key, need_weights=False, **options)[0]


class SelfAttend(nn.MultiheadAttention):
    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return super().forward(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]


def layer(layer: nn.Module, *inputs: torch.Tensor) -> dict:
    found = golden(layer, *inputs)
    found["buffers"] = {name: buffer.flatten().tolist() for name, buffer in layer.named_buffers()}
    return found


if __name__ == "__main__":
    goldens = {
        "linear": layer(nn.Linear(4, 3), images(2, 5, 4)),
        "conv1d": layer(nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), images(2, 4, 9)),
        "conv2d": layer(nn.Conv2d(2, 3, (3, 2), padding=(1, 0), dilation=2, bias=False), images(2, 2, 7, 8)),
        "conv3d": layer(nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), images(1, 2, 4, 5, 6)),
        "batch_norm1d": layer(nn.BatchNorm1d(3), images(4, 3)),
        "batch_norm2d": layer(nn.BatchNorm2d(3), images(2, 3, 4, 5)),
        "batch_norm3d": layer(nn.BatchNorm3d(3), images(2, 3, 2, 3, 2)),
        "layer_norm": layer(nn.LayerNorm((3, 4)), images(2, 3, 4)),
        "rms_norm": layer(nn.RMSNorm(4, eps=1e-6), images(2, 3, 4)),
        "group_norm": layer(nn.GroupNorm(2, 6), images(2, 6, 5)),
        "embedding": layer(nn.Embedding(7, 3, padding_idx=2), torch.tensor([[1, 2, 6], [2, 1, 1]])),
        "self_attention": layer(SelfAttend(6, 2, batch_first=True), images(2, 5, 6)),
        "attention": layer(Attend(6, 3, batch_first=True), images(2, 5, 6), images(2, 4, 6)),
        "pools": layer(
            nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, ceil_mode=True), nn.AdaptiveAvgPool2d((2, 3))),
            images(2, 2, 17, 19).requires_grad_(),
        ),
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(goldens) + "\n")
