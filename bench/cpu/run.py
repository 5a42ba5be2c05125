#!/usr/bin/env python3
"""Compares models on the CPU: Tenure, PyTorch and candle, each in processes of its own, in turns, on two processors.

Needs Rust, and a Python with torch, torchvision and transformers:

    bench/cpu/run.py --python venv/bin/python
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
WORKLOADS = ["resnet18-train", "resnet18-infer", "bert-infer", "gpt2-train"]


def build() -> pathlib.Path:
    """Builds the program for Tenure and candle, and returns its path."""
    command = ["cargo", "build", "--release", "--manifest-path", HERE / "Cargo.toml", "--message-format", "json"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = map(json.loads, output.splitlines())
    return next(pathlib.Path(message["executable"]) for message in messages if message.get("executable"))


def measure(command: list[str], processors: list[int]) -> dict:
    environment = os.environ | {"RAYON_NUM_THREADS": str(len(processors)), "OMP_NUM_THREADS": str(len(processors))}
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, processors),
    )
    return json.loads(done.stdout.splitlines()[-1])


def summary(runs: list[dict]) -> dict:
    """Returns the fastest step of the median process, and the memory of the median process."""
    return {
        "ms": statistics.median(min(run["ms"]) for run in runs),
        "peak_bytes": statistics.median(run["peak_bytes"] for run in runs),
        "own_bytes": statistics.median(run["peak_bytes"] - run["start_bytes"] for run in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python with torch, torchvision and transformers")
    parser.add_argument("--binary", type=pathlib.Path, help="this folder's program, if it is built already")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="only this one (may be repeated)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each library (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a process (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="processors (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="all figures, as JSON")
    args = parser.parse_args()

    binary = (args.binary or build()).resolve()
    processors = sorted(os.sched_getaffinity(0))[: args.threads]
    torch = [args.python, HERE / "pytorch.py", "--threads", str(args.threads)]
    programs = {"tenure": [binary, "tenure"], "pytorch": torch, "candle": [binary, "candle"]}
    results = {}
    for workload in args.workload or WORKLOADS:
        runs = {name: [] for name in programs}
        for _ in range(args.rounds):
            for name, program in programs.items():
                command = [*map(str, program), workload, "--steps", str(args.steps)]
                runs[name].append(measure(command, processors))
        results[workload] = {name: summary(of_program) for name, of_program in runs.items()} | {"runs": runs}
        if not args.json:
            report(workload, results[workload])
    if args.json:
        print(json.dumps(results))


def report(workload: str, result: dict) -> None:
    print(workload)
    for name in ("tenure", "pytorch", "candle"):
        figures = result[name]
        ratio = result["tenure"]["ms"] / figures["ms"]
        print(
            f"  {name:8} {figures['ms']:9.1f} ms, Tenure's is {ratio:.2f} of it; "
            f"peak {figures['peak_bytes'] / 1e6:7.0f} MB, {figures['own_bytes'] / 1e6:7.0f} since its start",
            flush=True,
        )


if __name__ == "__main__":
    main()
