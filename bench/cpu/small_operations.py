"""Measures what a budget costs a model of many small operations, of whose results the budget moves nearly none.

The model has 20 layers of 60 small operations, forward and backward, and one large tensor that each layer saves. Each
way runs in a process of its own, in turns. Prints a row of JSON for each: the median of its steps in microseconds, and
the extra time of an operation compared with the plain program.

    python3 bench/cpu/small_operations.py [--device cuda] [--turns 5]

In `fits`, the step fits into its budget. In `planned`, a plan has to move a twentieth of the step's memory.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

LAYERS = 20
OPERATIONS = 60
WAYS = {"plain": None, "fits": "16GiB", "planned": "95%"}
#: The number of steps in which a budget measures and plans.
FIRST = 8


class Layer(nn.Module):
    """Small operations on one row, which then scales a large tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256))

    def forward(self, large: Tensor) -> Tensor:
        row = self.weight
        for _ in range(OPERATIONS // 2):
            row = torch.tanh(row * 1.01)
        return torch.abs(large + row)


class Count(TorchDispatchMode):
    """Counts the operations that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


def measure(way: str, device: torch.device, steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    if WAYS[way] is not None and device.type == "cuda":
        import tenure.torch

        tenure.torch.install()
    model = nn.Sequential(*(Layer() for _ in range(LAYERS))).to(device)
    batch = torch.ones(1024, 256, device=device)

    def step() -> None:
        model(batch).sum().backward()
        model.zero_grad()

    def timed(between: Callable[[], Any]) -> list[float]:
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e6)
            between()
        return times[FIRST:]

    if WAYS[way] is None:
        with nullcontext():
            times = timed(lambda: None)
        with Count() as count:
            step()
        return {"step_us": statistics.median(times), "operations": count.operations}
    import tenure.torch

    reports: list[Any] = []
    with tenure.torch.budget(model, WAYS[way], spill_bytes="1GiB" if device.type == "cpu" else None) as budget:
        times = timed(lambda: reports.append(budget.report()))
    report = reports[-1]
    moved = report.spilled_bytes + report.recomputed_bytes
    return {"step_us": statistics.median(times), "is_planned": report.is_planned, "moved_bytes": moved}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cpu (the default) or cuda")
    parser.add_argument("--steps", type=int, default=60, help=f"steps of a process; the first {FIRST} do not count")
    parser.add_argument("--turns", type=int, default=5, help="processes of each way (default: %(default)s)")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(args.way, args.device, args.steps)))
        return
    rows: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(args.turns):
        for way, of_way in rows.items():
            command = [sys.executable, __file__, "--device", str(args.device), "--steps", str(args.steps), "--way", way]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            of_way.append(json.loads(output.splitlines()[-1]))
    operations = rows["plain"][0]["operations"]
    medians = {way: statistics.median(row["step_us"] for row in of_way) for way, of_way in rows.items()}
    for way, of_way in rows.items():
        more_us = (medians[way] - medians["plain"]) / operations
        row = of_way[-1] | {"way": way, "step_us": medians[way], "operations": operations}
        print(json.dumps(row | {"more_us_an_operation": round(more_us, 3)}))


if __name__ == "__main__":
    main()
