"""Trains a Llama of transformers on two GPUs within `tenure.torch.budget`, under DDP and FSDP2: time, memory, loss.

Each rank is a process of its own, and each way starts fresh ones. Budgets are shares of what rank 0 reserved in the
plain program, or what it reserved with checkpoints. Prints a row of JSON for each way.

    budget_ranks.py                                  # both kinds, all ways, over NCCL on two GPUs
    budget_ranks.py --kind fsdp2 --way 60            # one of them, and one way after the plain one
    budget_ranks.py --small --steps 10               # small sizes on the processor, over gloo
"""

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

# AdamW imports it in its first step: on the processor, its memory would count as the program's.
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import tenure.torch

#: The number of steps in which a budget measures and plans. The timed steps follow.
FIRST = 8
RANKS = 2
KINDS = ["ddp", "fsdp2"]
DEFAULT = ["plain", "checkpoint", "60", "same"]
#: The sizes of the model, and of a rank's batch: rows, and tokens in each.
FULL = {"num_hidden_layers": 12, "hidden_size": 1536, "intermediate_size": 4096, "num_attention_heads": 12}
FULL_BATCH = 8, 2048
#: Here, too, most saved tensors have at least 1 MiB: a budget keeps smaller ones.
SMALL = {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4}
SMALL_BATCH = 16, 256


def made(kind: str, way: str, device: torch.device, config: Any) -> nn.Module:
    """Returns the module that the program calls, with equal parameters in all ranks and ways."""
    torch.manual_seed(0)
    # bf16 is slow on most processors.
    model = LlamaForCausalLM(config).to(device, torch.bfloat16 if device.type == "cuda" else None)
    if way == "checkpoint":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, [device] if device.type == "cuda" else None)
    mesh = dist.init_device_mesh(device.type, (RANKS,))
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
    return model


def peak_bytes(device: torch.device) -> int:
    """Returns the peak of reserved memory. A budget resets it where its step begins."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved()
    # PyTorch does not count the memory of the processor. The peak of the whole process is an estimate.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def mark(device: torch.device) -> Any:
    """Returns a mark of the time at which the device ends its work so far. The host may run ahead of a GPU."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def elapsed_ms(before: Any, after: Any) -> float:
    return (after - before) * 1e3 if isinstance(after, float) else before.elapsed_time(after)


def train(kind: str, way: str, budget_bytes: int, device: torch.device, figures: Any, args: argparse.Namespace) -> None:
    """Trains the model as one rank. Adds to the figures as it goes on, so that a failure leaves some."""
    sizes, shape = (SMALL, SMALL_BATCH) if args.small else (FULL, FULL_BATCH)
    config = LlamaConfig(vocab_size=128 if args.small else 32000, use_cache=False, **sizes)
    base = peak_bytes(device) if args.small else 0
    model = made(kind, way, device, config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    around: Any = nullcontext()
    if budget_bytes:
        memory: dict[str, Any] = {"spill_bytes": 1 << 30} if args.small else {"host_bytes": args.host_gib << 30}
        around = tenure.torch.budget(model, budget_bytes, **memory)
    marks = [mark(device)]
    with around as budget:
        for number in range(args.steps):
            # Each rank has batches of its own.
            drawing = torch.Generator(device).manual_seed(RANKS * number + dist.get_rank())
            text = torch.randint(config.vocab_size, shape, generator=drawing, device=device)
            with nullcontext() if args.small else torch.autocast("cuda", torch.bfloat16):
                loss = model(input_ids=text, labels=text).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            marks.append(mark(device))
            peak = max(figures["reserved_bytes"], peak_bytes(device) - base)
            figures |= {"steps": number + 1, "reserved_bytes": peak}
        # This waits for all marks.
        figures["loss"] = loss.item()
        times = [elapsed_ms(*pair) for pair in pairwise(marks)]
        figures |= {"first_s": sum(times[:FIRST]) / 1e3, "ms": statistics.median(times[FIRST:])}
        if budget is not None and (report := budget.report()) is not None:
            figures["report"] = asdict(report)


def measure(rank: int, kind: str, way: str, budget_bytes: int, folder: str, args: argparse.Namespace) -> None:
    """Runs one rank of one way in this process, and writes its figures into the folder."""
    device = torch.device("cpu") if args.small else torch.device("cuda", rank)
    if args.small:
        torch.set_num_threads(1)
    elif budget_bytes:
        tenure.torch.install()
    if budget_bytes and rank == 0:
        logging.basicConfig(format="%(message)s", stream=sys.stderr)
        logging.getLogger("tenure").setLevel(logging.INFO)
    if not args.small:
        torch.cuda.set_device(device)
    backend, device_id = ("gloo", None) if args.small else ("nccl", device)
    dist.init_process_group(backend, f"file://{folder}/store", rank=rank, world_size=RANKS, device_id=device_id)
    figures: dict[str, Any] = {"reserved_bytes": 0}
    try:
        train(kind, way, budget_bytes, device, figures, args)
    except Exception as error:  # noqa: BLE001  # Whatever it is: the row says so.
        figures["error"] = f"rank {rank}: {type(error).__name__}: {error}"[:600]
    Path(folder, f"{rank}.json").write_text(json.dumps(figures))
    if "error" in figures:
        # The other rank may wait for this one, and then clearing up would wait, too.
        os._exit(1)
    dist.destroy_process_group()


def run(kind: str, way: str, budget_bytes: int, args: argparse.Namespace) -> int:
    """Prints the row of one way: its figures, or the error. Returns the bytes that rank 0 reserved."""
    row: dict[str, Any] = {"program": f"llama-{kind}", "way": way, "budget_bytes": budget_bytes}
    deadline = time.monotonic() + args.seconds
    with tempfile.TemporaryDirectory() as folder:
        given = kind, way, budget_bytes, folder, args
        ranks = torch.multiprocessing.start_processes(measure, given, RANKS, join=False, start_method="spawn")
        try:
            # This raises where a rank fails, after it has ended the other one.
            while not ranks.join(max(0.0, deadline - time.monotonic()), grace_period=5):
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"more than {args.seconds} s")
        except Exception as error:  # noqa: BLE001  # Whatever it is: the row says so.
            row["error"] = str(error).strip().splitlines()[-1][:600]
        finally:
            for process in ranks.processes:
                process.kill()
                process.join()
        figures = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    row |= figures[0] if figures else {}
    if errors := [each["error"] for each in figures if "error" in each]:
        row["error"] = "; ".join(errors)
    peaks = [each["reserved_bytes"] for each in figures] or [0]
    print(json.dumps(row | {"reserved_bytes": max(peaks)}), flush=True)
    return peaks[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this one")
    parser.add_argument("--way", action="append", help="plain, checkpoint, PERCENT, same (default: all, PERCENT as 60)")
    parser.add_argument("--steps", type=int, default=30, help=f"more than {FIRST} (default: %(default)s)")
    parser.add_argument("--host-gib", type=int, default=64, help="pinned memory of a rank (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=180, help="limit of one way (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="small sizes on the processor, over gloo")
    args = parser.parse_args()
    if args.steps <= FIRST:
        parser.error(f"the first {FIRST} steps are separate: more are needed")
    # An error then is one line.
    os.environ["RUST_BACKTRACE"] = "0"
    if args.small:
        # The C library then returns the memory of tensors, and the peak of a process tells what they took.
        os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    for kind in args.kind or KINDS:
        # Budgets depend on these, so they run first.
        ways = args.way or DEFAULT
        plain = run(kind, "plain", 0, args)
        checkpoints = run(kind, "checkpoint", 0, args) if {"checkpoint", "same"} & {*ways} else 0
        for way in ways:
            if way not in ("plain", "checkpoint"):
                run(kind, way, checkpoints if way == "same" else plain * int(way) // 100, args)


if __name__ == "__main__":
    main()
