"""Trains a GPT-2 (Radford et al., 2019) on a batch of random tokens, and prints the loss of each step.

    python python/examples/gpt2.py --layers 2 --width 64 --heads 4 --vocabulary 256 --length 32 --steps 5

The losses are those of `crates/tenure-nn/examples/losses.rs`, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import math
import time

import tenure
import tenure.nn.functional as F
from tenure import Tensor, nn

DROPOUT = 0.1


class Conv1D(nn.Module):
    """A linear layer whose weight is `[inputs, outputs]`, as in GPT-2's files."""

    def __init__(self, inputs: int, outputs: int, std: float = 0.02) -> None:
        super().__init__()
        self.weight = nn.Parameter(tenure.empty(inputs, outputs))
        self.bias = nn.Parameter(tenure.zeros(outputs))
        nn.init.normal_(self.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t(), self.bias)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, residual_std: float) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(width, 3 * width)
        self.c_proj = Conv1D(width, width, residual_std)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(x).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        dropout = DROPOUT if self.training else 0.0
        found = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.c_proj(found.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """The two layers after the attention."""

    def __init__(self, width: int, residual_std: float) -> None:
        super().__init__()
        self.c_fc = Conv1D(width, 4 * width)
        self.c_proj = Conv1D(4 * width, width, residual_std)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and an MLP, beside which the input is carried on."""

    def __init__(self, width: int, heads: int, residual_std: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, residual_std)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = MLP(width, residual_std)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attn(self.ln_1(x)))
        return x + self.dropout(self.mlp(self.ln_2(x)))


def embedding(count: int, width: int) -> nn.Embedding:
    layer = nn.utils.skip_init(nn.Embedding, count, width)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


class GPT2(nn.Module):
    """Computes scores `[batch, length, vocabulary]` of the token after each of `[batch, length]`."""

    def __init__(self, vocabulary: int, positions: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        # The sum over all blocks keeps its size, however many there are.
        residual_std = 0.02 / math.sqrt(2 * layers)
        self.wte = embedding(vocabulary, width)
        self.wpe = embedding(positions, width)
        self.h = nn.ModuleList(Block(width, heads, residual_std) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]])
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=4, help="the number of texts (default: %(default)s)")
    parser.add_argument("--length", type=int, default=128, help="the tokens of a text (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=768, help="default: %(default)s")
    parser.add_argument("--heads", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--vocabulary", type=int, default=50257, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the losses and milliseconds of the steps as JSON")
    args = parser.parse_args()

    tenure.manual_seed(args.seed)
    model = GPT2(args.vocabulary, 1024, args.width, args.layers, args.heads)
    text = tenure.randint(0, args.vocabulary, (args.batch, args.length + 1))
    tokens, targets = text[:, :-1], text[:, 1:]
    optimizer = tenure.optim.AdamW(model.parameters(), lr=3e-4)

    losses, milliseconds = [], []
    for step in range(args.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        milliseconds.append(1e3 * (time.perf_counter() - start))
        if not args.json:
            print(f"step {step + 1}: {losses[-1]!r}, {milliseconds[-1]:.1f} ms", flush=True)
    if args.json:
        print(json.dumps({"losses": losses, "ms": milliseconds}))


if __name__ == "__main__":
    main()
