#!/usr/bin/env python3
"""Out of memory with memory free: four language models that keep prefix caches, on each of PyTorch's allocators.

Four GPT-2s are served on one GPU, each on a stream of its own, 16 prompts at a time. A model keeps the keys and values
of every prompt, so that one that begins alike need not be computed again. Traffic moves from model to model; the caches
of all are then cut to a fifth, as if those prompts were left that are asked for most.

What stays of a cache pins the memory around it. PyTorch's allocators keep that memory for the stream that it came
from, in pieces, so that the next model finds none: with 15 % more memory than is ever asked for at once, they give up.
Tenure puts the pieces together for whoever asks.

    prefix_cache.py                 # all three, each in a process of its own, and what became of them
    prefix_cache.py --headroom 0.5  # with half as much again as is asked for at once
"""

import argparse
import json
import os
import random
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MODELS, LAYERS, WIDTH, HEADS, VOCABULARY = 4, 12, 1024, 16, 50257
BATCH, LENGTHS = 16, (16, 160)
# Traffic goes to each model this many times, and lasts until its cache has so many bytes.
TURNS, CACHE_BYTES, KEPT = 3, 2 << 30, 0.2


class Block(nn.Module):
    """A block of GPT-2, which also returns its keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, _ = x.shape
        mixed = self.mix(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(mixed[0], mixed[1], mixed[2], is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")), mixed[1:]


class Gpt2(nn.Module):
    """GPT-2: the next word's logits, and the keys and values of a prompt (layers, 2, batch, heads, length, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(1024, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        kept = []
        for block in self.blocks:
            x, keys_and_values = block(x)
            kept.append(keys_and_values)
        return self.norm(x[:, -1]) @ self.words.weight.T, torch.stack(kept)


@torch.inference_mode()
def serve() -> float:
    """Serves all prompts; returns a number that depends on every answer."""
    chance = random.Random(11)
    torch.manual_seed(0)
    models = [Gpt2().to("cuda", torch.bfloat16) for _ in range(MODELS)]
    streams = [torch.cuda.Stream() for _ in range(MODELS)]
    caches: list[list[Tensor]] = [[] for _ in range(MODELS)]
    torch.cuda.synchronize()
    answers = 0.0
    for turn in range(TURNS * MODELS):
        for cache in caches:
            chance.shuffle(cache)
            del cache[int(len(cache) * KEPT) :]
        current = turn % MODELS
        with torch.cuda.stream(streams[current]):
            while sum(entry.nbytes for entry in caches[current]) < CACHE_BYTES:
                lengths = [chance.randint(*LENGTHS) for _ in range(BATCH)]
                prompts = torch.randint(VOCABULARY, (BATCH, max(lengths)), device="cuda")
                logits, keys_and_values = models[current](prompts)
                for number, length in enumerate(lengths):
                    caches[current].append(keys_and_values[:, :, number, :, :length].clone())
                answers += logits.argmax(-1).sum().item()
    return answers


def run(limit: int) -> dict:
    """Serves within `limit` bytes of the device, if that is not 0."""
    if limit:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        outcome = {"answers": serve(), "error": None}
    except torch.OutOfMemoryError as error:
        outcome = {"answers": None, "error": str(error).splitlines()[0]}
    figures = torch.cuda.memory_stats()
    now = {name: figures[f"{name}_bytes.all.current"] for name in ["requested", "reserved"]}
    peak = {name: figures[f"{name}_bytes.all.peak"] for name in ["requested", "reserved"]}
    return outcome | {"now": now, "peak": peak, "retries": figures["num_alloc_retries"]}


def child(allocator: str, limit: int) -> dict:
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_ALLOC_CONF")}
    environment["TENURE_TORCH"] = "1" if allocator == "tenure" else "0"
    if allocator == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    command = [sys.executable, os.path.abspath(__file__), "--limit", str(limit)]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headroom", type=float, default=0.15, help="part of what is asked for at once (default 0.15)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.limit is not None:
        print(json.dumps(run(arguments.limit)))
        return
    needed = child("tenure", 0)["peak"]["requested"]
    limit = int(needed * (1 + arguments.headroom))
    outcomes = {allocator: child(allocator, limit) for allocator in ["native", "expandable", "tenure"]}
    if arguments.json:
        print(json.dumps({"needed": needed, "limit": limit, "outcomes": outcomes}))
        return
    mib = 1 << 20
    print(f"asked for at once, at most: {needed / mib:.0f} MiB; limit: {limit / mib:.0f} MiB\n")
    for allocator, outcome in outcomes.items():
        now, end = outcome["now"], "completed" if outcome["error"] is None else "OUT OF MEMORY"
        print(
            f"{allocator:11} {end:14} asked for {now['requested'] / mib:6.0f} MiB, held {now['reserved'] / mib:6.0f}"
            f" MiB, emptied its cache {outcome['retries']} times"
        )


if __name__ == "__main__":
    main()
