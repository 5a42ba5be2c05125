"""Writes `layers.json`: the results of PyTorch's layers for given parameters and inputs, in double precision.

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


class AttendSeen(nn.MultiheadAttention):
    """Attention between sequences of three sizes, with a mask. Returns the output and, beside it, the weights."""

    def forward(self, query, key, value):
        hidden = torch.arange(query.shape[1] * key.shape[1]).reshape(query.shape[1], key.shape[1]) % 3 == 1
        found, weights = super().forward(query, key, value, attn_mask=hidden)
        return torch.cat([found, weights], -1)


# The inputs of PyTorch's activations.
NUMBERS = [-25.0, -4.0, -2.5, -1.0, -0.3, 0.0, 0.4, 1.0, 2.9, 5.0, 7.0, 25.0]
ACTIVATIONS = [
    nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.ELU(0.7), nn.SELU(), nn.CELU(0.7), nn.GELU(), nn.GELU("tanh"),
    nn.SiLU(), nn.Mish(), nn.Sigmoid(), nn.LogSigmoid(), nn.Tanh(), nn.Softsign(), nn.Softplus(1.5, 4.0),
    nn.Hardsigmoid(), nn.Hardswish(), nn.Hardtanh(-0.5, 2.0), nn.Softmax(-1), nn.LogSoftmax(-1),
]  # fmt: skip


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
        "batch_norm_plain": layer(
            nn.BatchNorm1d(3, eps=0.01, affine=False, track_running_stats=False), images(4, 3).requires_grad_()
        ),
        "layer_norm_weight": layer(nn.LayerNorm((3, 4), eps=0.01, bias=False), images(2, 3, 4)),
        "layer_norm_plain": layer(nn.LayerNorm((3, 4), elementwise_affine=False), images(2, 3, 4).requires_grad_()),
        "group_norm_plain": layer(nn.GroupNorm(2, 6, eps=0.01, affine=False), images(2, 6, 5).requires_grad_()),
        "layer_norm": layer(nn.LayerNorm((3, 4)), images(2, 3, 4)),
        "rms_norm": layer(nn.RMSNorm(4, eps=1e-6), images(2, 3, 4)),
        "group_norm": layer(nn.GroupNorm(2, 6), images(2, 6, 5)),
        "embedding": layer(nn.Embedding(7, 3, padding_idx=2), torch.tensor([[1, 2, 6], [2, 1, 1]])),
        "self_attention": layer(SelfAttend(6, 2, batch_first=True), images(2, 5, 6)),
        "attention": layer(Attend(6, 3, batch_first=True), images(2, 5, 6), images(2, 4, 6)),
        "attention_plain": layer(Attend(6, 2, bias=False, batch_first=True), images(2, 5, 6), images(2, 4, 6)),
        "attention_sizes": layer(
            AttendSeen(6, 2, kdim=4, vdim=5, batch_first=True), images(2, 3, 6), images(2, 4, 4), images(2, 4, 5)
        ),
        "activations": {repr(act): act(torch.tensor(NUMBERS, dtype=torch.float64)).tolist() for act in ACTIVATIONS},
        "windows": layer(
            nn.Sequential(
                nn.MaxPool2d((3, 2), (2, 1), padding=1, dilation=(2, 3), ceil_mode=True),
                nn.AvgPool2d(3, 2, padding=1, ceil_mode=True, count_include_pad=False),
            ),
            images(2, 2, 10, 11).requires_grad_(),
        ),
        "pools": layer(
            nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, ceil_mode=True), nn.AdaptiveAvgPool2d((2, 3))),
            images(2, 2, 17, 19).requires_grad_(),
        ),
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(goldens) + "\n")
