"""Runs third parties' programs within `tenure.torch.budget`, each way in a process of its own: time, memory, bits.

Budgets are shares of what the plain program reserved, or what checkpoints reserved. Prints a row of JSON for each way.

    budget_programs.py                                       # the twelve that are timed: some 30 minutes on an H200
    budget_programs.py --program vit --way plain --way 60    # one of them, two ways
    budget_programs.py --others --bits --steps 10            # ten more: whether budgets hold, and change no bit
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import programs
import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

#: The number of steps in which a budget measures and plans. The timed steps follow.
FIRST = 8
#: The ways to run a program. A number is a budget in percent of what the plain program reserved; `same` is the budget
#: that checkpoints reserved, `half` half of it.
WAYS = [
    "plain",
    "installed (on Tenure's allocator, without a budget)",
    "checkpoint",
    "offload",
    "save_on_cpu",
    "compile-R (an activation_memory_budget of R)",
    "PERCENT",
    "BYTESB",
    "same",
    "half",
]
DEFAULT = ["plain", "checkpoint", "200", "60", "same", "half"]


def checkpointed(block: torch.nn.Module) -> None:
    forward = block.forward
    block.forward = lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)


def apply(way: str, program: programs.Program) -> None:
    """Applies one of PyTorch's or transformers' own ways of saving memory to a program."""
    if way in ("checkpoint", "offload"):
        options = {"use_reentrant": False} | ({"offload": True} if way == "offload" else {})
        if program.checkpoint is not None:
            program.checkpoint(options)
        elif way == "checkpoint" and program.blocks:
            for block in program.blocks:
                checkpointed(block)
        else:
            raise SystemExit(f"there is no {way} of this program")
    elif way.startswith("compile-"):
        torch._functorch.config.activation_memory_budget = float(way.removeprefix("compile-"))
        program.model.compile()


def bits_of(program: programs.Program) -> str:
    """Returns a hash of the bits of all parameters and buffers."""
    sums = [
        int(tensor.detach().contiguous().view(torch.uint8).to(torch.int64).mul_(1 + index % 7).sum())
        for index, tensor in enumerate(programs.parameters(program))
    ]
    return f"{hash(tuple(sums)) & (1 << 64) - 1:016x}"


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of one way, which runs in this process."""
    if args.budget or args.way == "installed":
        import tenure.torch

        logging.basicConfig(format="%(message)s", stream=sys.stderr)
        logging.getLogger("tenure").setLevel(logging.INFO)
        if not args.small:
            tenure.torch.install()
    if args.bits:
        # cuBLAS reads this when it starts.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)
    device = torch.device("cpu") if args.small else torch.device("cuda", 0)
    program = programs.make(args.program, programs.Sizes(device, is_small=args.small))
    apply(args.way, program)
    figures: dict[str, Any] = {}
    ends: list[float] = []
    peaks = [0]

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def on_step() -> None:
        # The host may run ahead of the device, except where a timed part begins or ends.
        if len(ends) + 1 in (FIRST, args.steps):
            wait()
        ends.append(time.perf_counter())
        if device.type == "cuda":
            # A budget resets the peak where its step begins.
            peaks.append(torch.cuda.max_memory_reserved())

    around: Any = save_on_cpu(pin_memory=True) if args.way == "save_on_cpu" else nullcontext()
    if args.budget:
        options = {"host_bytes": args.host_gib << 30} if not args.small else {}
        opening = time.perf_counter()
        around = tenure.torch.budget(program.model, args.budget, spill_bytes=1 << 30 if args.small else None, **options)
        figures["opening_s"] = time.perf_counter() - opening
    wait()
    start = time.perf_counter()
    try:
        with around as budget:
            program.train(args.steps, on_step)
            if args.budget and (report := budget.report()) is not None:
                figures["report"] = asdict(report)
            if args.problem:
                budget.write_problem(args.problem)
            # Later, state may come back from the host.
            peaks.append(torch.cuda.max_memory_reserved() if device.type == "cuda" else 0)
    except Exception as error:  # noqa: BLE001  # Whatever it is: the row says so.
        figures["error"] = f"{type(error).__name__}: {error}"[:600]
    wait()
    if len(ends) >= FIRST:
        figures["first_s"] = ends[FIRST - 1] - start
    if len(ends) == args.steps > FIRST:
        figures["ms"] = (ends[-1] - ends[FIRST - 1]) * 1e3 / (args.steps - FIRST)
    figures["steps"] = len(ends)
    if device.type == "cuda":
        figures["reserved_bytes"] = max(peaks)
    if args.bits:
        figures["bits"] = bits_of(program)
    return figures


def row(program: str, way: str, budget: int, args: argparse.Namespace) -> dict[str, Any]:
    """Prints the row of one way: its figures, or the error."""
    options = ["--program", program, "--way", way, "--budget", str(budget)]
    options += ["--steps", str(args.steps), "--host-gib", str(args.host_gib)]
    options += [f"--{flag}" for flag in ("bits", "small") if getattr(args, flag)]
    if args.problems and budget:
        options += ["--problem", f"{args.problems}/{program}-{way}.json"]
    command = [sys.executable, __file__, "--child", *options]
    row: dict[str, Any] = {"program": program, "way": way, "budget_bytes": budget}
    try:
        environment = os.environ | {"RUST_BACKTRACE": "0", "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.seconds, env=environment)
        if done.returncode:
            row["error"] = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:600]
        else:
            row |= json.loads(done.stdout.splitlines()[-1])
        if planning := [line for line in done.stderr.splitlines() if "plan" in line and "budget of" in line]:
            row["planning"] = planning[-3:]
    except subprocess.TimeoutExpired:
        row["error"] = f"more than {args.seconds} s"
    print(json.dumps(row), flush=True)
    return row


def rows(program: str, args: argparse.Namespace) -> None:
    """Prints all rows of a program."""
    plain = row(program, "plain", 0, args) if not args.plain_bytes else {"reserved_bytes": args.plain_bytes}
    reserved = plain.get("reserved_bytes", 256 << 20)
    checkpoints = 0
    for way in args.way or DEFAULT:
        if way in ("same", "half"):
            if checkpoints:
                row(program, way, checkpoints // (2 if way == "half" else 1), args)
        elif way.isdecimal():
            row(program, way, reserved * int(way) // 100, args)
        elif way.removesuffix("B").isdecimal():
            row(program, way, int(way.removesuffix("B")), args)
        elif way != "plain":
            figures = row(program, way, 0, args)
            if way == "checkpoint":
                checkpoints = figures.get("reserved_bytes", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", choices=[*programs.TIMED, *programs.OTHERS], help="only this one")
    parser.add_argument("--others", action="store_true", help="the ten programs that are not timed")
    parser.add_argument("--way", action="append", help=f"of {', '.join(WAYS)} (default: {' '.join(DEFAULT)})")
    parser.add_argument("--steps", type=int, default=60, help=f"steps of a process; the first {FIRST} are separate")
    parser.add_argument("--bits", action="store_true", help="deterministic steps, and the bits of the result")
    parser.add_argument("--host-gib", type=int, default=64, help="pinned memory of a budget (default: %(default)s)")
    parser.add_argument("--plain-bytes", type=int, help="bytes the plain program reserves, if known already")
    parser.add_argument("--small", action="store_true", help="small programs on the processor")
    parser.add_argument("--seconds", type=int, default=120, help="limit of one process (default: %(default)s)")
    parser.add_argument("--problems", help="a folder for the planning problem of each budget")
    parser.add_argument("--problem", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        (args.program,), (args.way,) = args.program, args.way
        print(json.dumps(measure(args)))
        return
    for program in args.program or (programs.OTHERS if args.others else programs.TIMED):
        rows(program, args)


if __name__ == "__main__":
    main()
