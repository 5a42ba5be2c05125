#!/usr/bin/env python3
"""Measures how much models of `tenure serve` hold each other up on the CPU, each worker on one thread.

A small model is asked alone, one request after the other, and then beside a model that sleeps for ever, one that takes
all memory that it may have, and one with a queue of texts that takes minutes. The ratio of the 99th percentiles should
be at most 2. Needs the program, and a Python with Tenure's package and PyTorch:

    bench/serve/isolation.py --tenure target/release/tenure --python venv/bin/python
"""

import argparse
import json
import multiprocessing
import pathlib
import tempfile
import threading
import time
import urllib.error
import urllib.request

from server import serving, write_models

SLEEPER = """
import time
import torch

class Sleeper(torch.nn.Module):
    def forward(self, x):
        time.sleep(1e6)

def load(folder):
    return Sleeper()
"""

GREEDY = """
import resource
import torch

class Greedy(torch.nn.Module):
    def forward(self, x):
        with open("/proc/self/statm") as file:
            bytes = int(file.read().split()[0]) * resource.getpagesize()
        # As if the machine had 2 GiB left.
        resource.setrlimit(resource.RLIMIT_AS, (bytes + (2 << 30), resource.RLIM_INFINITY))
        taken = []
        while True:
            taken.append(torch.ones(1 << 24))

def load(folder):
    return Greedy()
"""

CONFIG = """
python = "model.py:load"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 1] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 1] }]
"""


def ask(address: str, model: str, inputs: list[dict], timeout: float = 600) -> int:
    """Asks a model and returns the status."""
    body = json.dumps({"inputs": inputs}).encode()
    request = urllib.request.Request(
        f"http://{address}/v2/models/{model}/infer", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        error.read()
        return error.code
    except OSError:
        # The server ends while clients wait.
        return 0


def tensor(name: str, datatype: str, shape: list[int], value: float) -> dict:
    count = 1
    for size in shape:
        count *= size
    return {"name": name, "datatype": datatype, "shape": shape, "data": [value] * count}


def write_neighbours(folder: pathlib.Path) -> None:
    for name, code in {"sleeper": SLEEPER, "greedy": GREEDY}.items():
        (folder / name).mkdir()
        (folder / name / "model.py").write_text(code)
        (folder / name / "config.toml").write_text(CONFIG)


def wait_until_ready(address: str) -> None:
    """Waits until all models can be asked, or says why one cannot."""
    end = time.monotonic() + 300
    while True:
        request = urllib.request.Request(
            f"http://{address}/v2/repository/index", b"{}", {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            waiting = [model for model in json.load(answer) if model["state"] != "READY"]
        if not waiting:
            return
        if time.monotonic() > end:
            raise SystemExit(f"a model is not ready: {waiting[0]}")
        time.sleep(0.5)


def latencies(address: str, requests: int) -> list[float]:
    """Returns the times in ms of requests for the small model, one after the other, in increasing order."""
    image = [tensor("image", "FP32", [1, 1, 28, 28], 0.5)]
    times = []
    for _ in range(requests):
        begun = time.perf_counter()
        status = ask(address, "digits", image)
        times.append((time.perf_counter() - begun) * 1e3)
        assert status == 200, status
    return sorted(times)


def send_load(address: str, statuses: multiprocessing.Queue) -> None:
    """Asks the other models until this process is ended, and tells each answer's status."""
    number = [tensor("x", "FP32", [1, 1], 1.0)]
    texts = [tensor("tokens", "INT64", [8, 512], 65)]

    def repeat(model: str, inputs: list[dict]) -> None:
        while True:
            statuses.put((model, ask(address, model, inputs, 1e6)))

    clients = [("sleeper", number), ("greedy", number)] + [("next-byte", texts)] * 32
    threads = [threading.Thread(target=repeat, args=client) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def percentile(times: list[float], percent: int) -> float:
    return times[min(len(times) - 1, len(times) * percent // 100)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenure", type=pathlib.Path, default="target/release/tenure")
    parser.add_argument("--python", default="python3", help="a Python with tenure and torch")
    parser.add_argument("--processors", help="the server's processors, such as 0,1 (default: all)")
    parser.add_argument("--requests", type=int, default=500, help="measured requests (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="the figures, as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / "models"
        write_models(args.tenure, folder)
        write_neighbours(folder)
        options = ("--python", args.python)
        with serving(args.tenure, folder, *options, processors=args.processors, OMP_NUM_THREADS="1") as port:
            address = f"127.0.0.1:{port}"
            wait_until_ready(address)
            latencies(address, 50)
            alone = latencies(address, args.requests)
            # Clients in this process would take turns with the measured one.
            answers: multiprocessing.Queue = multiprocessing.Queue()
            load = multiprocessing.Process(target=send_load, args=(address, answers), daemon=True)
            load.start()
            time.sleep(2)
            beside = latencies(address, args.requests)
            load.kill()
            statuses: dict[str, set[int]] = {"sleeper": set(), "greedy": set(), "next-byte": set()}
            while not answers.empty():
                model, status = answers.get()
                statuses[model].add(status)
            figures = {
                "alone_ms": {"p50": percentile(alone, 50), "p99": percentile(alone, 99)},
                "beside_ms": {"p50": percentile(beside, 50), "p99": percentile(beside, 99)},
                "ratio_of_p99": percentile(beside, 99) / percentile(alone, 99),
                "statuses": {model: sorted(seen) for model, seen in statuses.items()},
            }
    lines = (f"{name}: {value}" for name, value in figures.items())
    print(json.dumps(figures) if args.json else "\n".join(lines))


if __name__ == "__main__":
    main()
