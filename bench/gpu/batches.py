"""Finds the largest batches that can be trained within a given memory of a device, and measures their speed.

PyTorch's plain step, and every block checkpointed, may reserve no more than that memory. `tenure.torch.budget`, and the
same model of our own tensors, have it as their budget, and spill to pinned memory or to a disk. Batches are doubled
from the largest that fits plainly until one does not fit; then the batch between that and the last one is tried. Prints
a row of JSON for each batch that was tried.

    batches.py --ours ./bench-gpu --bytes 17179869184 --spill /tmp    # takes the options of budgets.py
    batches.py --workload llama --method tenure --batch 16            # from that batch on
"""

import copy
import json
from argparse import Namespace

from budgets import WORKLOADS, arguments, child

#: The batch that each workload begins with, for its plain step.
LEAST_BATCHES = {"llama": 1, "resnet152": 64}
#: The GiB of pinned memory through which bytes pass on their way to a disk.
STAGING_GIB = 4


def fits(workload: str, method: str, place: str | None, batch: int, args: Namespace) -> bool:
    """Measures a batch, prints its row, and returns whether the batch fits."""
    one = copy.copy(args)
    one.batch, one.limit = batch, args.bytes
    one.spill, one.host_gib = (args.spill, STAGING_GIB) if place == "disk" else (None, args.host_gib)
    budget = args.bytes if place else 0
    figures = child(workload, method, budget, one)
    row = {"workload": workload, "method": method, "spill": place, "batch": batch} | figures
    if "ms" in figures:
        row["examples_per_second"] = batch / min(figures["ms"]) * 1e3
    print(json.dumps(row), flush=True)
    return "ms" in figures


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--bytes", type=int, default=16 << 30, help="the device's memory (default: %(default)s)")
    parser.add_argument("--place", choices=["host", "disk"], help="budgets spill only there")
    args = parser.parse_args()
    if args.percent or args.plain_bytes:
        parser.error("a budget is --bytes here")
    if args.place == "disk" and not args.spill:
        parser.error("a disk needs --spill")
    ways: list[tuple[str, str | None]] = [("plain", None), ("checkpoint", None)]
    for method in ("tenure", "ours") if args.ours else ("tenure",):
        places = [args.place] if args.place else ["host", "disk"] if args.spill else ["host"]
        ways += [(method, place) for place in places]
    ways = [(method, place) for method, place in ways if not args.method or method in args.method]
    for workload in args.workload or WORKLOADS:
        least = args.batch or LEAST_BATCHES[workload]
        for method, place in ways:
            batch = least
            while fits(workload, method, place, batch, args):
                batch *= 2
            between = batch * 3 // 4
            if batch > least and between > batch // 2:
                fits(workload, method, place, between, args)
            if method == "plain":
                least = max(least, batch // 2)


if __name__ == "__main__":
    main()
