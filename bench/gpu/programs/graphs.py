"""Models of graphs and sequences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .program import OnStep, Program, Sizes, adamw, ids, normal, optimized, steps_of


def gcn(sizes: Sizes) -> Program:
    """PyTorch Geometric's GCN, with a different number of nodes in each step."""
    from torch_geometric.nn import GCN

    return graphs(sizes, GCN(sizes.pick(256, 16), sizes.pick(512, 16), sizes.pick(6, 2), 64), sizes.pick(80_000, 300))


def gat(sizes: Sizes) -> Program:
    """PyTorch Geometric's attention over a graph."""
    from torch_geometric.nn import GAT

    model = GAT(sizes.pick(256, 16), sizes.pick(256, 16), sizes.pick(4, 2), 64, heads=4)
    return graphs(sizes, model, sizes.pick(60_000, 300))


def graphs(sizes: Sizes, model: nn.Module, most: int) -> Program:
    model = model.to(sizes.device)
    optimizer = adamw(model)

    def step(number: int) -> None:
        nodes = most - most // 10 * (number * 7 % 5) + number
        features = normal(sizes, number, nodes, model.in_channels)
        edges = ids(sizes, number, 2, nodes * 6, vocabulary=nodes)
        labels = torch.arange(nodes, device=sizes.device) % 64
        optimized(F.cross_entropy(model(features, edges), labels), optimizer)

    return Program(model, lambda count, on_step: steps_of(step, on_step, count), list(model.convs))


def lstm(sizes: Sizes) -> Program:
    """A language model of two LSTM layers, whose state goes from step to step, detached."""
    vocabulary, width = sizes.pick(16384, 64), sizes.pick(1024, 32)
    model = nn.ModuleDict(
        {
            "embedding": nn.Embedding(vocabulary, width),
            "lstm": nn.LSTM(width, width, 2, batch_first=True),
            "head": nn.Linear(width, vocabulary),
        }
    ).to(sizes.device)
    optimizer = adamw(model)
    batch, length = sizes.pick(64, 4), sizes.pick(256, 16)

    def train(count: int, on_step: OnStep) -> None:
        state = None
        for number in range(count):
            text = ids(sizes, number, batch, length, vocabulary=vocabulary)
            hidden, state = model["lstm"](model["embedding"](text), state)
            state = tuple(each.detach() for each in state)
            optimized(F.cross_entropy(model["head"](hidden).flatten(0, 1), text.flatten()), optimizer)
            on_step()

    return Program(model, train)
