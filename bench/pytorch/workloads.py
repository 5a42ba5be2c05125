#!/usr/bin/env python3
"""Compares PyTorch's own allocators and Tenure's: the same programs of stock PyTorch, in turns, on one GPU.

Each program (programs.py) runs in a process of its own under `native`, `expandable` and `tenure`; the order changes
from round to round. Prints for each: the time of a step beside the better of PyTorch's two, the peak of reserved bytes
beside that of requested bytes, the memory in use according to the device, and whether losses are the same.

    workloads.py                          # everything: some twenty minutes
    workloads.py --program gpt2_varlen --rounds 1
    workloads.py --json figures.json      # also writes the figures as JSON
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
ALLOCATORS = ["native", "expandable", "tenure"]
PROGRAMS = ["resnet50_train", "densenet201_train", "gpt2_varlen", "llama_ckpt_varlen", "multi_model_serve"]
PROGRAMS += ["generate_varlen", "gcn_varsize", "vit_autocast"]
# The least number of native runs that show the spread of losses.
SPREAD_RUNS = 5
# The longest time of a step, as a multiple of the better of PyTorch's two allocators.
SLOWER_AT_MOST = 1.02
# The bytes by which the device's use may differ between allocators, beside their reserved bytes.
DEVICE_DIFFERENCE = 64 * MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--program", action="append", choices=PROGRAMS, help="only this one; may be given several times"
    )
    parser.add_argument("--rounds", type=int, default=2, help="processes of each program and allocator (default 2)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="times a process runs its program (default 3, at least 2)"
    )
    parser.add_argument("--seconds", type=int, default=240, help="limit of one process (default 240)")
    parser.add_argument("--json", type=pathlib.Path, help="file to write the figures to")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--allocator", choices=ALLOCATORS, help=argparse.SUPPRESS)
    parser.add_argument("--deterministic", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    check_arguments(arguments)
    if arguments.child:
        print(json.dumps(run(arguments.child, arguments.allocator, arguments.repeats, arguments.deterministic)))
        return
    rows: list[dict[str, Any]] = []
    print(HEADING)
    for program in arguments.program or PROGRAMS:
        rows.append(compare(program, measure(program, arguments)))
        print(line_of(rows[-1]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(not all(row["good"] for row in rows))


def check_arguments(arguments: argparse.Namespace) -> None:
    """Ends the program with an error about bad arguments, before anything takes long."""
    # The first repetition of a process is counted apart; a deterministic child makes only one.
    least = {"rounds": 1, "repeats": 1 if arguments.child else 2, "seconds": 1}
    for option, count in least.items():
        if getattr(arguments, option) < count:
            sys.exit(f"--{option} {getattr(arguments, option)}: expected {count} or more")
    if arguments.json and not arguments.json.absolute().parent.is_dir():
        sys.exit(f"--json {arguments.json}: there is no such folder")


def run(program: str, allocator: str, repeats: int, deterministic: bool) -> dict[str, Any]:
    """Runs a program in this process, and measures it."""
    import torch

    if allocator == "tenure":
        import tenure.torch

        tenure.torch.install()
    if deterministic:
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # Python does not import from a program's own folder if PYTHONSAFEPATH is set.
    sys.path.insert(0, str(HERE))
    from programs import PROGRAMS

    torch.empty(1, device="cuda")
    step_ms, results, beside = [], [], []
    for _ in range(repeats):
        torch.manual_seed(0)
        random.seed(0)
        times, losses = [], []
        for step in PROGRAMS[program]():
            torch.cuda.synchronize()
            start = time.perf_counter()
            loss = step()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
            losses.append(loss.item())
            free, total = torch.cuda.mem_get_info()
            beside.append(total - free - torch.cuda.memory_reserved())
        step_ms.append(times)
        results.append(losses)
    figures = torch.cuda.memory_stats()
    return {
        "step_ms": step_ms,
        "losses": [[value.hex() for value in losses] for losses in results],
        "requested": figures["requested_bytes.all.peak"],
        "allocated": figures["allocated_bytes.all.peak"],
        "reserved": figures["reserved_bytes.all.peak"],
        "retries": figures["num_alloc_retries"],
        "beside": max(beside),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def measure(program: str, arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Runs processes of every allocator in turns; the deterministic ones are `native!` and `tenure!`."""
    measured: dict[str, list[dict[str, Any]]] = {}
    for round in range(arguments.rounds):
        for turn in range(len(ALLOCATORS)):
            allocator = ALLOCATORS[(turn + round) % len(ALLOCATORS)]
            measured.setdefault(allocator, []).append(child(program, allocator, arguments.repeats, False, arguments))
    for allocator in ["native", "tenure"]:
        measured[f"{allocator}!"] = [child(program, allocator, 1, True, arguments)]
    return measured


def child(program: str, allocator: str, repeats: int, deterministic: bool, arguments: argparse.Namespace) -> dict:
    if sys.stderr.isatty():
        print(f"{program} on {allocator}{', deterministic' * deterministic} ...", file=sys.stderr)
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_ALLOC_CONF")}
    environment.pop("TENURE_TORCH", None)
    if allocator == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if deterministic:
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    command = [sys.executable, str(HERE / "workloads.py"), "--child", program, "--allocator", allocator]
    command += ["--repeats", str(repeats)] + ["--deterministic"] * deterministic
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=arguments.seconds)
    except subprocess.TimeoutExpired:
        sys.exit(f"{program} on {allocator} took more than {arguments.seconds} s: allow it more with --seconds")
    if ended.returncode:
        sys.exit(f"{program} on {allocator} failed:\n{ended.stderr[-4000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


def compare(program: str, measured: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns the figures of a program, and whether they meet the requirements."""
    # The first repetition of a process is cold, and counted apart.
    warm = {
        name: sum_of_medians([steps for run in runs for steps in run["step_ms"][1:]])
        for name, runs in measured.items()
        if name in ALLOCATORS
    }
    cold = {
        name: sum_of_medians([run["step_ms"][0] for run in runs])
        for name, runs in measured.items()
        if name in ALLOCATORS
    }
    most = {
        name: {figure: max(run[figure] for run in runs) for figure in ["requested", "reserved", "beside"]}
        for name, runs in measured.items()
        if name in ALLOCATORS
    }
    requested, reserved = most["native"]["requested"], most["tenure"]["reserved"]
    differences = {name: most["tenure"]["beside"] - most[name]["beside"] for name in ["native", "expandable"]}
    row = {
        "program": program,
        "warm_ms": warm,
        "cold_ms": cold,
        "warm_ratio": warm["tenure"] / min(warm["native"], warm["expandable"]),
        "cold_ratio": cold["tenure"] / min(cold["native"], cold["expandable"]),
        "figures": most,
        "over": reserved / requested - 1,
        "device_difference": min(differences.values(), key=abs),
        "deterministic_equal": measured["native!"][0]["losses"] == measured["tenure!"][0]["losses"],
        "spread": spread(losses_of(measured["native"]), losses_of(measured["tenure"])),
    }
    row["good"] = (
        row["warm_ratio"] <= SLOWER_AT_MOST
        and reserved <= requested + max(requested // 100, 64 * MIB)
        and abs(row["device_difference"]) <= DEVICE_DIFFERENCE
        and row["deterministic_equal"]
        and row["spread"]["within"] is not False
    )
    return row


def sum_of_medians(repetitions: list[list[float]]) -> float:
    """Returns the milliseconds of a whole run: for each step, the median over the repetitions."""
    return sum(statistics.median(times) for times in zip(*repetitions, strict=True))


def losses_of(runs: list[dict[str, Any]]) -> list[list[float]]:
    return [[float.fromhex(value) for value in losses] for run in runs for losses in run["losses"]]


def spread(native: list[list[float]], tenure: list[list[float]]) -> dict[str, Any]:
    """Returns whether the mean of Tenure's last losses is among those of native: each repetition of a process is a run.

    If native's losses do not differ at all, Tenure's must have the same bits. With too few native runs, the answer is
    None.
    """
    last, ours = [losses[-1] for losses in native], [losses[-1] for losses in tenure]
    low, high, mean = min(last), max(last), statistics.fmean(ours)
    within = low <= mean <= high if len(last) >= SPREAD_RUNS else None
    return {"native": [low, high], "tenure": [min(ours), max(ours)], "runs": len(last), "within": within}


HEADING = (
    f"{'program':20} {'step, warm':>11} {'cold':>7} {'requested':>11} {'native':>9} {'expandable':>11}"
    f" {'tenure':>9} {'over':>7} {'device':>10} {'losses':>22}"
)


def line_of(row: dict[str, Any]) -> str:
    figures = {name: row["figures"][name] for name in ALLOCATORS}
    bits = "equal bits" if row["deterministic_equal"] else "DIFFERENT"
    spread = {True: "in spread", False: "OUTSIDE", None: "few runs"}[row["spread"]["within"]]
    return (
        f"{row['program']:20} {row['warm_ratio']:10.3f}x {row['cold_ratio']:6.3f}x"
        f" {figures['native']['requested'] / MIB:7.0f} MiB {figures['native']['reserved'] / MIB:5.0f} MiB"
        f" {figures['expandable']['reserved'] / MIB:7.0f} MiB {figures['tenure']['reserved'] / MIB:5.0f} MiB"
        f" {100 * row['over']:6.2f}% {row['device_difference'] / MIB:+6.1f} MiB {f'{bits}, {spread}':>22}"
        f"{'' if row['good'] else '  MISSED'}"
    )


if __name__ == "__main__":
    main()
