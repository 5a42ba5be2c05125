"""Compares a disk as Tenure uses it with fio: writes and reads at once, with requests of the same size, as many in
flight, past the system's cache, in turns. Prints both, and the ratio of the best rounds: other rounds are slower
because of other users of the disk or the processor.

    python3 bench/disk/run.py [--rounds N] FOLDER

Needs fio (https://github.com/axboe/fio) and Rust.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The bytes of a request, as `tenure_tier::Disk` makes them, and the bytes that are read, and written, in all.
BLOCK_BYTES = 1 << 20
SIDE_BYTES = 512 << 20


def build() -> pathlib.Path:
    """Builds the program that uses a disk as Tenure does, and returns its path."""
    command = ["cargo", "build", "--release", "--package=tenure-tier", "--example=disk", "--message-format=json"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = map(json.loads, output.splitlines())
    return next(pathlib.Path(message["executable"]) for message in messages if message.get("executable"))


def tenure(program: pathlib.Path, folder: str, depth: int, seconds: int) -> dict[str, float]:
    command = [program, "--depth", str(depth), "--seconds", str(seconds), folder]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    done = json.loads(output.splitlines()[-1])
    return {way: done[f"{way}_bytes_per_second"] for way in ["read", "write"]}


def fio(engine: str, file: pathlib.Path, depth: int, seconds: int) -> dict[str, float]:
    """Runs two jobs, each on one half of a file that was written before, and returns their speeds."""
    common = [
        "--direct=1",
        f"--bs={BLOCK_BYTES}",
        f"--iodepth={depth}",
        f"--ioengine={engine}",
        f"--filename={file}",
        f"--size={SIDE_BYTES}",
        "--output-format=json",
    ]
    if engine == "io_uring":
        # Tenure uses registered buffers too.
        common.append("--fixedbufs=1")
    if file.stat().st_size == 0:
        laid_out = ["fio", "--name=fill", "--rw=write", *common, f"--size={2 * SIDE_BYTES}"]
        subprocess.run(laid_out, check=True, stdout=subprocess.DEVNULL)
    timed = ["--time_based", f"--runtime={seconds}", "--thread"]
    jobs = ["--name=read", "--rw=read", *common, *timed, "--name=write", "--rw=write", f"--offset={SIDE_BYTES}"]
    output = subprocess.run(["fio", *jobs, *common, *timed], check=True, stdout=subprocess.PIPE, text=True).stdout
    both = json.loads(output[output.index("{") :])["jobs"]
    return {way: next(job[way]["bw_bytes"] for job in both if job["jobname"] == way) for way in ["read", "write"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a folder on the disk")
    parser.add_argument("--program", type=pathlib.Path, help="tenure-tier's example `disk`, if it is built already")
    parser.add_argument("--engine", default="io_uring", help="fio's engine (default: %(default)s)")
    parser.add_argument("--depth", type=int, default=16, help="requests in flight each way (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of both, in turns (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=3, help="seconds of each round (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="all figures, as JSON")
    args = parser.parse_args()
    program = args.program or build()
    runs: dict[str, list[dict[str, float]]] = {"fio": [], "tenure": []}
    with tempfile.NamedTemporaryFile(dir=args.folder) as file:
        ways = {
            "fio": lambda: fio(args.engine, pathlib.Path(file.name), args.depth, args.seconds),
            "tenure": lambda: tenure(program, args.folder, args.depth, args.seconds),
        }
        for number in range(args.rounds):
            # The second one gets only what the first has left of a disk's burst, so they take turns in going first.
            for name in list(ways)[:: -1 if number % 2 else 1]:
                runs[name].append(ways[name]())
    if args.json:
        print(json.dumps(runs))
        return
    print(f"{'GB/s':8} {'read':>6} {'write':>6} {'both':>6}   of the best round; both of all rounds")
    best = {}
    for name, rounds in runs.items():
        each = [(run["read"] + run["write"]) / 1e9 for run in rounds]
        best[name], (read, write) = max(each), (rounds[each.index(max(each))][way] / 1e9 for way in ["read", "write"])
        print(f"{name:8} {read:6.2f} {write:6.2f} {best[name]:6.2f}   {' '.join(f'{both:.2f}' for both in each)}")
    print(f"Tenure's disk does {best['tenure'] / best['fio']:.0%} of what fio does.")


if __name__ == "__main__":
    main()
