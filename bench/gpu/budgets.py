"""Measures training steps of stock PyTorch, plain and with less memory, in turn, each in a process of its own.

Beside the plain step: `save_on_cpu` with pinned memory; every block checkpointed; activations offloaded on streams of
their own; `tenure.torch.budget`, and the same model of our own tensors, at shares of what the plain step reserved.
Prints a row of JSON for each.

    budgets.py --ours ./bench-gpu                                 # both models: some ten minutes on an H200
    budgets.py --ours ./bench-gpu --workload llama --percent 50   # one of them, at one share
    budgets.py --problems /tmp --bounds target/release/tenure     # with the MILP's lower bound of every plan's time
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

#: The workloads, with their batches.
WORKLOADS = {"llama": 16, "resnet152": 256}
METHODS = ["plain", "save_on_cpu", "checkpoint", "streams", "tenure", "ours"]
PERCENTS = [75, 50, 35, 25]
GIB = 1 << 30
#: The least bytes of a tensor that is moved, as in `tenure.torch.budget`.
LEAST_BYTES = 1 << 20
#: The seconds for the mixed-integer program of a row.
BOUND_SECONDS = 45


def llama(batch: int) -> tuple[nn.Module, list[nn.Module], torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    """Returns a model of 1.1 billion parameters, its blocks, an optimizer, and texts of 2048 tokens with their
    targets."""
    from pytorch import DEVICE, Llama, ids

    model = Llama().to(DEVICE, torch.bfloat16)
    inputs, targets = (ids(first, batch, 2048, 32000) for first in (0, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return model, list(model.blocks), optimizer, inputs, targets.flatten()


def resnet152(batch: int) -> tuple[nn.Module, list[nn.Module], torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    import torchvision
    from pytorch import DEVICE

    model = torchvision.models.resnet152().to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)
    blocks = [block for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for block in stage]
    images = torch.randn(batch, 3, 224, 224, device=DEVICE, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = images.contiguous(memory_format=torch.channels_last)
    return model, blocks, optimizer, images, torch.arange(batch, device=DEVICE) % 1000


class Streams:
    """Offloads activations to pinned memory on one stream, and brings them back on another, as torchtune does.

    The newest activations stay until as many newer ones have begun to go: their copies have time, and backward begins
    with them.
    """

    NEWEST = 5

    def __init__(self, model: nn.Module) -> None:
        self.out, self.back = torch.cuda.Stream(), torch.cuda.Stream()
        self.stays = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.newest: deque[tuple[list[Any], torch.cuda.Event]] = deque()

    def pack(self, tensor: torch.Tensor) -> Any:
        if not tensor.is_cuda or tensor.nbytes < LEAST_BYTES or tensor.untyped_storage().data_ptr() in self.stays:
            return tensor
        copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self.out.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.out):
            copy.copy_(tensor, non_blocking=True)
        # The computing stream drops the tensor once the copy is made: it needs no record_stream.
        saved = [tensor, copy]
        self.newest.append((saved, self.out.record_event()))
        if len(self.newest) > self.NEWEST:
            oldest, copied = self.newest.popleft()
            torch.cuda.current_stream().wait_event(copied)
            oldest[0] = None
        return saved

    def unpack(self, saved: Any) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        tensor, copy = saved
        if tensor is not None:
            return tensor
        computing = torch.cuda.current_stream()
        with torch.cuda.stream(self.back):
            self.back.wait_stream(self.out)
            tensor = copy.to("cuda", non_blocking=True)
        computing.wait_stream(self.back)
        tensor.record_stream(computing)
        return tensor

    @contextmanager
    def step(self) -> Iterator[None]:
        with saved_tensors_hooks(self.pack, self.unpack):
            yield
        self.newest.clear()


def checkpointed(block: nn.Module) -> None:
    forward = block.forward
    block.forward = lambda *args: checkpoint(forward, *args, use_reentrant=False)


def bits_of(model: nn.Module) -> str:
    """Returns a hash of the bits of all gradients."""
    sums = [parameter.grad.view(torch.int16).sum(dtype=torch.int64) for parameter in model.parameters()]
    return f"{hash(tuple(torch.stack(sums).tolist())) & (1 << 64) - 1:016x}"


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of one method, which runs in this process."""
    if args.budget:
        import tenure.torch

        tenure.torch.install()
    if args.bits:
        # cuBLAS reads this when it starts. Without determinism, attention's backward pass adds in any order.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
    if args.limit:
        torch.cuda.set_per_process_memory_fraction(args.limit / torch.cuda.mem_get_info()[1])
    torch.manual_seed(0)
    make = {"llama": llama, "resnet152": resnet152}[args.workload]
    model, blocks, optimizer, inputs, targets = make(args.batch or WORKLOADS[args.workload])
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    if args.method == "save_on_cpu":
        around = lambda: save_on_cpu(pin_memory=True)  # noqa: E731
    elif args.method == "checkpoint":
        for block in blocks:
            checkpointed(block)
    elif args.method == "streams":
        around = Streams(model).step

    def step() -> torch.Tensor:
        with around():
            loss = F.cross_entropy(model(inputs).flatten(0, -2), targets)
            loss.backward()
        if args.bits:
            figures.setdefault("gradients", []).append(bits_of(model))
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    figures: dict[str, Any] = {}
    if not args.budget:
        run(step, args, figures)
        return figures
    options = {"host_bytes": args.host_gib * GIB, "spill": args.spill}
    if args.spill:
        options["spill_bytes"] = args.spill_gib * GIB
    with tenure.torch.budget(model, args.budget, **options) as budget:
        run(step, args, figures)
        figures["report"] = asdict(budget.report())
        if args.problem:
            budget.write_problem(args.problem)
    return figures


def run(step: Callable[[], torch.Tensor], args: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Takes steps: first those that compile, measure and plan; then the timed ones."""
    figures["losses"] = [step().item().hex() for _ in range(args.warm)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    figures["ms"] = []
    for _ in range(args.repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(args.steps):
            loss = step()
        torch.cuda.synchronize()
        figures["ms"].append((time.perf_counter() - start) * 1e3 / args.steps)
    figures["losses"].append(loss.item().hex())
    free, total = torch.cuda.mem_get_info()
    figures["allocated_bytes"] = torch.cuda.max_memory_allocated()
    figures["reserved_bytes"] = torch.cuda.max_memory_reserved()
    # This includes the context, and the memory that libraries take for themselves.
    figures["device_bytes"] = total - free


def child(workload: str, method: str, budget: int, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the row of one method: its figures, or the error."""
    batch = args.batch or WORKLOADS[workload]
    counts = ["steps", "repeats", "warm"]
    options = [text for name in counts for text in (f"--{name}", str(getattr(args, name)))] + ["--batch", str(batch)]
    if budget or method != "ours":
        options += ["--budget", str(budget), "--host-gib", str(args.host_gib)]
        options += ["--spill", args.spill, "--spill-gib", str(args.spill_gib)] if args.spill and budget else []
    if args.limit and method not in ("tenure", "ours"):
        options += ["--limit", str(args.limit)]
    if budget and args.problems:
        options += ["--problem", problem_of(workload, method, budget, args)]
    if args.bits and method != "ours":
        options.append("--bits")
    if method == "ours":
        command = [args.ours, workload, *options]
    else:
        command = [sys.executable, __file__, "--child", "--workload", workload, "--method", method, *options]
    try:
        # Makes the error's message the last line.
        environment = os.environ | {"RUST_BACKTRACE": "0"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.seconds, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": f"more than {args.seconds} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:2000]}
    return json.loads(done.stdout.splitlines()[-1])


def problem_of(workload: str, method: str, budget: int, args: argparse.Namespace) -> str:
    """Returns the path of the file for the problem that the planner solves."""
    return f"{args.problems}/{workload}-{method}-{budget >> 20}.json"


def bound(problem: str, program: str) -> dict[str, Any]:
    """Returns a lower bound of every plan's time."""
    command = [program, "plan", problem, "--planner", "milp", "--seconds", str(BOUND_SECONDS), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"bound_error": done.stderr.strip()[-2000:]}
    return {"bound_us": json.loads(done.stdout)["bound_makespan_us"]}


def row(workload: str, method: str, percent: int | None, budget: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measures a method, and prints its row."""
    asked = {"workload": workload, "method": method, "percent": percent, "budget_bytes": budget}
    row = asked | child(workload, method, budget, args)
    if budget and args.bounds and "ms" in row:
        row |= bound(problem_of(workload, method, budget, args), args.bounds)
    print(json.dumps(row), flush=True)
    return row


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Returns the parser for the options of a measurement."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(WORKLOADS), action="append", help="only this one; may be repeated")
    parser.add_argument("--method", choices=METHODS, action="append", help="beside plain only this; may be repeated")
    parser.add_argument("--percent", type=int, action="append", help=f"of the plain peak (default: {PERCENTS})")
    parser.add_argument("--plain-bytes", type=int, help="the plain peak in bytes, if known already")
    parser.add_argument("--steps", type=int, default=4, help="steps without a wait between (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="rows of steps (default: %(default)s)")
    parser.add_argument("--warm", type=int, default=4, help="steps before: at least 3 (default: %(default)s)")
    parser.add_argument("--host-gib", type=int, default=90, help="pinned memory of a budget (default: %(default)s)")
    parser.add_argument("--batch", type=int, help=f"examples in a step (default: {WORKLOADS})")
    parser.add_argument("--limit", type=int, help="bytes that PyTorch may reserve where no budget says so")
    parser.add_argument("--bits", action="store_true", help="deterministic steps: gradients' bits, and plain twice")
    parser.add_argument("--spill", help="a folder for a budget to spill to as well")
    parser.add_argument("--spill-gib", type=int, default=32, help="GiB for that folder (default: %(default)s)")
    parser.add_argument("--ours", help="bench-gpu, for the same models of our own tensors")
    parser.add_argument("--problems", help="a folder for problems, which `tenure plan` reads")
    parser.add_argument("--bounds", help="the program `tenure`, for lower bounds of plans")
    parser.add_argument("--seconds", type=int, default=240, help="limit of one process (default: %(default)s)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--problem", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    parser = arguments(__doc__)
    args = parser.parse_args()
    if args.bounds and not args.problems:
        parser.error("--bounds are of --problems")
    if args.child:
        (args.workload,), (args.method,) = args.workload, args.method
        print(json.dumps(measure(args)))
        return
    methods = args.method or [method for method in METHODS if method != "ours" or args.ours]
    for workload in args.workload or WORKLOADS:
        plain = args.plain_bytes or row(workload, "plain", None, 0, args).get("reserved_bytes", 0)
        if args.bits:
            # Measures whether the plain step has the same bits twice.
            row(workload, "plain", None, 0, args)
        for method in methods:
            if method not in ("plain", "tenure"):
                row(workload, method, None, 0, args)
        for percent in (args.percent or PERCENTS) if plain else ():
            for method in methods:
                if method in ("tenure", "ours"):
                    row(workload, method, percent, plain * percent // 100, args)


if __name__ == "__main__":
    main()
