"""Training programs of stock PyTorch that third parties' libraries make: their models, and the loops that train them.

A function for each program takes `Sizes` and returns a `Program`. Their data is random: only memory and time count.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .graphs import gat, gcn, lstm
from .images import (
    convnext,
    critic,
    detection,
    diffusion,
    efficientnet,
    lightning_gan,
    mvit,
    segmentation,
    swin,
    vit,
    volumes,
)
from .language import bert_accumulated, experts, gpt2, llama, lora, mamba, qwen3, t5
from .program import Program, Sizes

__all__ = ["OTHERS", "TIMED", "Program", "Sizes", "make", "parameters"]

#: The programs that are timed, in docs/benchmarks.md.
TIMED = {
    "llama": llama,
    "gpt2": gpt2,
    "mvit": mvit,
    "diffusion": diffusion,
    "experts": experts,
    "critic": critic,
    "volumes": volumes,
    "qwen3": qwen3,
    "lora": lora,
    "convnext": convnext,
    "vit": vit,
    "gcn": gcn,
}
#: Programs that are only tested: budgets must hold and change no bit.
OTHERS = {
    "bert_accumulated": bert_accumulated,
    "t5": t5,
    "mamba": mamba,
    "lightning_gan": lightning_gan,
    "efficientnet": efficientnet,
    "swin": swin,
    "segmentation": segmentation,
    "detection": detection,
    "gat": gat,
    "lstm": lstm,
}


def make(name: str, sizes: Sizes) -> Program:
    torch.manual_seed(0)
    with sizes.device:
        return (TIMED | OTHERS)[name](sizes)


def parameters(program: Program) -> Iterator[Tensor]:
    yield from program.model.parameters()
    yield from program.model.buffers()
