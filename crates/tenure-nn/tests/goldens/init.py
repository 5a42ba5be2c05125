"""Writes `init.json`: the initial values of PyTorch's layers, and of torchvision's and Hugging Face's models.

For each parameter its mean, standard deviation, and largest magnitude. Needs torch 2.11, torchvision and transformers.
"""

import json
from pathlib import Path

import steps
import torch
from torch import nn


def spread(module: nn.Module) -> dict[str, list[float]]:
    def of(tensor: torch.Tensor) -> list[float]:
        tensor = tensor.detach().double()
        return [tensor.mean().item(), tensor.std(correction=0).item(), tensor.abs().max().item()]

    return {name: of(parameter) for name, parameter in module.named_parameters()}


if __name__ == "__main__":
    torch.manual_seed(5)
    small = steps.small()
    models = {name: spread(small[name].model()) for name in ("resnet_basic", "densenet", "bert", "gpt2", "llama")}
    layers = {
        "linear": nn.Linear(100, 900),
        "conv1d": nn.Conv1d(60, 700, 3),
        "conv2d": nn.Conv2d(30, 600, (3, 2), groups=2),
        "conv3d": nn.Conv3d(10, 500, 2),
        "embedding": nn.Embedding(300, 20),
        "attention": nn.MultiheadAttention(96, 4),
        "batch_norm": nn.BatchNorm2d(7),
        "layer_norm": nn.LayerNorm((3, 4)),
        "group_norm": nn.GroupNorm(2, 6),
        "rms_norm": nn.RMSNorm(5),
    }
    goldens = models | {name: spread(layer) for name, layer in layers.items()}
    Path(__file__).with_suffix(".json").write_text(json.dumps(goldens) + "\n")
