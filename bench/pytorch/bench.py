#!/usr/bin/env python3
"""Compares Tenure's allocator with PyTorch's in one process, on one device: the same sizes in the same random order.

Builds bench.cpp (which needs g++, and the headers of PyTorch and CUDA) and runs both allocators in turns inside C++
loops. The figures are nanoseconds for a pair of an allocation and a free, medians over the repetitions.

    bench.py --library target/gpu/libtenure_capi.so             # beside PyTorch, on a GPU
    bench.py --library target/gpu/libtenure_capi.so --driver sim  # Tenure alone, on the simulated device, without PyTorch
"""

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = HERE.parent.parent / "crates/tenure-capi/include"
KIB, MIB = 1 << 10, 1 << 20
PAIR, CHURN, THREADS, RECORDED, HANDED_OVER, EMPTY_CACHE = range(6)

# (name, kind, size or number, the largest block of a churn or the number of streams that threads share, pairs)
CASES = [
    ("pair of 512 B", PAIR, 512, 0, 200_000),
    ("pair of 64 KiB", PAIR, 64 * KIB, 0, 200_000),
    ("pair of 1 MiB", PAIR, MIB, 0, 200_000),
    ("pair of 16 MiB", PAIR, 16 * MIB, 0, 100_000),
    ("pair of 256 MiB", PAIR, 256 * MIB, 0, 100_000),
    ("churn, 100 live, to 1 MiB", CHURN, 100, MIB, 200_000),
    ("churn, 1,000 live, to 1 MiB", CHURN, 1_000, MIB, 200_000),
    ("churn, 10,000 live, to 1 MiB", CHURN, 10_000, MIB, 200_000),
    ("churn, 100 live, to 64 MiB", CHURN, 100, 64 * MIB, 100_000),
    ("churn, 1,000 live, to 64 MiB", CHURN, 1_000, 64 * MIB, 100_000),
    ("1 thread, 200 live, to 1 MiB", THREADS, 1, 1, 100_000),
    ("4 threads, a stream each", THREADS, 4, 4, 50_000),
    ("16 threads, a stream each", THREADS, 16, 16, 20_000),
    ("4 threads, one stream", THREADS, 4, 1, 50_000),
    ("16 threads, one stream", THREADS, 16, 1, 20_000),
    ("record_stream, 64 KiB", RECORDED, 64 * KIB, 0, 50_000),
    ("record_stream, 16 MiB", RECORDED, 16 * MIB, 0, 50_000),
    ("recorded, freed by another thread, 64 KiB", HANDED_OVER, 64 * KIB, 0, 50_000),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libtenure_capi.so")
    parser.add_argument("--include", type=pathlib.Path, default=INCLUDE, help="folder of tenure.h")
    parser.add_argument("--driver", choices=["cuda", "sim"], default="cuda")
    parser.add_argument("--options", default="", help="more options of tenure_open, such as allocator=native")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of pairs")
    parser.add_argument("--only", default="", help="only cases with this in their name")
    parser.add_argument("--commit", default=None, help="Tenure's commit, if git does not know it")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    arguments = parser.parse_args()

    with_pytorch = arguments.driver == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        bench = ctypes.CDLL(str(build(pathlib.Path(folder), arguments.include, with_pytorch)))
    bench.bench_run.restype = ctypes.c_double
    bench.bench_run.argtypes = [ctypes.c_int, ctypes.c_int] + [ctypes.c_size_t] * 3 + [ctypes.c_uint64]
    options = ",".join(filter(None, [f"driver={arguments.driver}", arguments.options]))
    bench.bench_open(str(arguments.library.resolve()).encode(), options.encode())

    about = describe(arguments, options, with_pytorch)
    cases = [case for case in CASES if arguments.only in case[0]]
    results = [measure(bench, case, arguments, with_pytorch) for case in cases]
    print_table(about, results)
    if arguments.json:
        arguments.json.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")


def build(folder, include, with_pytorch):
    """Compiles bench.cpp directly: no CUDA_HOME and no ninja needed."""
    library = folder / "bench.so"
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O2", "-shared", "-fPIC", "-pthread"]
    command += [str(HERE / "bench.cpp"), f"-I{include}", "-o", str(library), "-ldl"]
    if with_pytorch:
        import torch

        torch.cuda.init()
        root = pathlib.Path(torch.__file__).parent
        command += [f"-I{root / 'include'}", f"-I{cuda_include()}", f"-L{root / 'lib'}", "-lc10_cuda", "-lc10"]
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    else:
        command.append("-DWITHOUT_PYTORCH")
    subprocess.run(command, check=True)
    return library


def cuda_include():
    """Returns the folders of CUDA's headers: a toolkit's, or those of the packages that PyTorch's own wheel needs."""
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    folders = [pathlib.Path(home) / "include" for home in homes if home]
    folders += sorted(pathlib.Path(sysconfig.get_path("purelib")).glob("nvidia/*/include"))
    for folder in folders:
        if (folder / "cuda_runtime_api.h").exists() and (folder / "crt/host_defines.h").exists():
            return folder
    sys.exit("no CUDA headers: set CUDA_HOME, or install nvidia-cuda-runtime and nvidia-cuda-crt")


def measure(bench, case, arguments, with_pytorch):
    name, what, size, most_bytes, count = case
    count = max(1, int(count * arguments.scale))
    sides = [("tenure", 1), ("pytorch", 0)] if with_pytorch else [("tenure", 1)]
    times = {side: [] for side, _ in sides}
    # Both begin with an empty cache, and warm up before the measurement.
    for _, ours in sides:
        bench.bench_run(ours, EMPTY_CACHE, 0, 0, 0, 0)
        bench.bench_run(ours, what, size, most_bytes, max(1, count // 4), arguments.seed)
    for repetition in range(arguments.repetitions):
        # They take turns, and in going first too.
        for side, ours in sides if repetition % 2 == 0 else reversed(sides):
            ns = bench.bench_run(ours, what, size, most_bytes, count, arguments.seed)
            times[side].append(ns)
    result = {"case": name, "pairs": count}
    for side, ns in times.items():
        result[side] = {"median_ns": statistics.median(ns), "min_ns": min(ns), "max_ns": max(ns)}
    if with_pytorch:
        result["ratio"] = result["tenure"]["median_ns"] / result["pytorch"]["median_ns"]
    return result


def describe(arguments, options, with_pytorch):
    about = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": arguments.commit or output(["git", "-C", str(HERE), "rev-parse", "HEAD"]),
        "options": options,
        "repetitions": arguments.repetitions,
        "seed": arguments.seed,
        "processor": processor(),
        "threads": os.cpu_count(),
        "kernel": platform.release(),
    }
    if with_pytorch:
        import torch

        driver = output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"])
        about |= {
            "device": torch.cuda.get_device_name(0),
            "driver": driver,
            "cuda": torch.version.cuda,
            "pytorch": torch.__version__,
            "pytorch_settings": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "default"),
        }
    return about


def output(command):
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def print_table(about, results):
    print("; ".join(f"{name}: {value}" for name, value in about.items()))
    print()
    print("Nanoseconds for a pair of an allocation and a free: median (least to most).")
    print()
    cell = lambda side: f"{side['median_ns']:.0f} ({side['min_ns']:.0f} to {side['max_ns']:.0f})"
    if results and "ratio" in results[0]:
        print("| case | Tenure | PyTorch | ratio |\n| --- | --- | --- | --- |")
        for result in results:
            print(f"| {result['case']} | {cell(result['tenure'])} | {cell(result['pytorch'])} | {result['ratio']:.3f} |")
    else:
        print("| case | Tenure |\n| --- | --- |")
        for result in results:
            print(f"| {result['case']} | {cell(result['tenure'])} |")


if __name__ == "__main__":
    main()
