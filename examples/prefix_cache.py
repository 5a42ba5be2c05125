#!/usr/bin/env python3
"""Compares PyTorch's allocators and Tenure's: four language models with prefix caches, out of memory with memory free.

Four GPT-2s are served on one GPU, each on a stream of its own, 16 prompts at a time. A model keeps the keys and values
of every prompt, so that a prompt with the same beginning need not compute them again. Traffic moves from model to
model; then all caches are cut to a fifth, as if only the most requested prompts were kept.

The entries that are kept pin the memory around them. PyTorch's allocators keep that memory, in pieces, for the stream
it came from, so that the next model finds none: they run out of memory with 15 % more than is ever requested at once.
Tenure puts the pieces together for any stream.

    prefix_cache.py                 # all three, each in a process of its own, and their outcomes
    prefix_cache.py --headroom 0.5  # with half as much again as is requested at once

The program needs a GPU with 8 GiB free.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

ALLOCATORS = ("native", "expandable", "tenure")
MIB = 1 << 20

MODELS, BATCH, LENGTHS = 4, 16, (16, 160)
# The turns of each model, the bytes of its cache that end a turn, and the part of the caches that is kept.
TURNS, CACHE_BYTES, KEPT = 3, 2 << 30, 0.2


class Failed(Exception):
    """An error about something missing, or about nothing to compare. Its text is the program's last line."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headroom", type=part, default=0.15, help="part of what is asked for at once (default 0.15)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--allocator", choices=ALLOCATORS, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        if arguments.allocator:
            print(json.dumps(run(arguments.allocator, arguments.limit)))
        else:
            compare(arguments.headroom, arguments.json)
    except Failed as failed:
        parser.exit(1, f"{parser.prog}: {failed}\n")


def part(text: str) -> float:
    """Parses a number of 0 or more."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError(text)
    return number


def compare(headroom: float, as_json: bool) -> None:
    """Serves on each allocator, and prints the outcomes."""
    first = child("tenure", None)
    if first["error"] is not None:
        raise Failed(f"the device is too small, even without a limit: {first['error']}")
    needed, total = first["peak"]["requested"], first["total"]
    limit = int(needed * (1 + headroom))
    if limit > total:
        raise Failed(
            f"the device has {total / MIB:.0f} MiB, and {limit / MIB:.0f} MiB are {headroom:.0%} more than is asked "
            "for at once: choose a smaller --headroom"
        )
    outcomes = {allocator: child(allocator, limit) for allocator in ALLOCATORS}
    if as_json:
        print(json.dumps({"needed": needed, "limit": limit, "outcomes": outcomes}))
        return
    print(f"asked for at once, at most: {needed / MIB:.0f} MiB; limit: {limit / MIB:.0f} MiB\n")
    for outcome in outcomes.values():
        now, end = outcome["now"], "completed" if outcome["error"] is None else "OUT OF MEMORY"
        print(
            f"{outcome['served_by']:11} {end:14} asked for {now['requested'] / MIB:6.0f} MiB, held "
            f"{now['reserved'] / MIB:6.0f} MiB, emptied its cache {outcome['retries']} times"
        )


def child(allocator: str, limit: int | None) -> dict[str, Any]:
    """Serves on an allocator, in a process of its own. A process that fails has printed the reason."""
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_ALLOC_CONF")}
    environment["TENURE_TORCH"] = "0"
    if allocator == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    command = [sys.executable, os.path.abspath(__file__), "--allocator", allocator]
    command += [] if limit is None else ["--limit", str(limit)]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if ended.returncode < 0:
        raise Failed(f"the process on the allocator {allocator} was killed, by signal {-ended.returncode}")
    if ended.returncode > 0:
        sys.exit(ended.returncode)
    outcome: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return outcome


def run(allocator: str, limit: int | None) -> dict[str, Any]:
    """Serves within `limit` bytes of the device, and returns the outcome."""
    begin(allocator)
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    if limit is not None:
        torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        outcome = {"answers": serve(), "error": None}
    except torch.OutOfMemoryError as error:
        outcome = {"answers": None, "error": str(error).splitlines()[0]}
    figures = torch.cuda.memory_stats()
    now = {name: figures[f"{name}_bytes.all.current"] for name in ["requested", "reserved"]}
    peak = {name: figures[f"{name}_bytes.all.peak"] for name in ["requested", "reserved"]}
    retries = figures["num_alloc_retries"]
    return outcome | {"served_by": allocator, "total": total, "now": now, "peak": peak, "retries": retries}


def begin(allocator: str) -> None:
    """Makes sure that PyTorch uses this allocator."""
    try:
        import torch
    except Exception as error:
        raise Failed(f"torch cannot be imported ({error}): install it (https://pytorch.org)") from error
    if not torch.cuda.is_available():
        raise Failed("PyTorch finds no GPU: check `nvidia-smi`, and that PyTorch is built for CUDA")
    if allocator == "tenure":
        install()
    torch.empty(1, device="cuda")
    found = torch.cuda.get_allocator_backend()
    if found == "native" and any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot()):
        found = "expandable"
    if found != allocator:
        raise Failed(f"PyTorch's memory is that of the allocator {found}, where {allocator} was to be measured")


def install() -> None:
    """Installs Tenure's allocator under PyTorch."""
    try:
        import tenure.torch
    except Exception as error:
        raise Failed(f"tenure.torch cannot be imported ({error}): install it (pip install .)") from error
    with warnings.catch_warnings(record=True) as told:
        try:
            mode = tenure.torch.install().mode
        except tenure.Error as error:
            raise Failed(str(error)) from error
    if mode in ("not installed", "pluggable"):
        raise Failed(" ".join(str(warning.message) for warning in told))


def serve() -> float:
    """Serves all prompts, and returns a number that depends on every answer."""
    import torch

    # Python does not import from a program's own folder if PYTHONSAFEPATH is set.
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    from models.gpt2 import VOCABULARY, Gpt2

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
        with torch.inference_mode(), torch.cuda.stream(streams[current]):
            while sum(entry.nbytes for entry in caches[current]) < CACHE_BYTES:
                lengths = [chance.randint(*LENGTHS) for _ in range(BATCH)]
                prompts = torch.randint(VOCABULARY, (BATCH, max(lengths)), device="cuda")
                logits, keys_and_values = models[current](prompts)
                for number, length in enumerate(lengths):
                    caches[current].append(keys_and_values[:, :, number, :, :length].clone())
                answers += logits.argmax(-1).sum().item()
    return answers


if __name__ == "__main__":
    main()
