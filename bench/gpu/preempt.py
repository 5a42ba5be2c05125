"""Trains in the background of `tenure serve`, which gets bursts of requests. Measures whether losses stay the same, how
soon training yields, and how much of its speed is left.

On a GPU, PyTorch trains on Tenure's allocator, with deterministic algorithms; on the CPU, `tenure train` runs under
`tenure background`. Times to yield are those of /metrics, whose buckets are a quarter apart: each time is an upper
bound.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

YIELD = "tenure_background_yield_seconds"
TOKENS = [(7 * place + 1) % 256 for place in range(16)]
ASKED = json.dumps({"inputs": [{"name": "tokens", "datatype": "INT64", "shape": [1, 16], "data": TOKENS}]})


def train(steps: int, background: str | None) -> None:
    """Trains a GPT on a GPU, and prints each step's end and its loss as hexadecimal numbers."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    import tenure.torch

    tenure.torch.install(background=background)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    width, length, batch, vocabulary = 1024, 512, 8, 8192
    block = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
    model = nn.ModuleDict(
        {
            "tokens": nn.Embedding(vocabulary, width),
            "blocks": nn.TransformerEncoder(block, 12, enable_nested_tensor=False),
            "head": nn.Linear(width, vocabulary),
        }
    ).cuda()
    mask = nn.Transformer.generate_square_subsequent_mask(length, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    for step in range(steps + 1):
        if step == 1:  # the first step prepares, and is not measured
            torch.cuda.synchronize()
            begun = time.monotonic()
        data = torch.randint(vocabulary, (batch, length + 1), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            hidden = model["blocks"](model["tokens"](data[:, :-1]), mask=mask, is_causal=True)
            scores = model["head"](hidden)
        loss = F.cross_entropy(scores.float().flatten(0, 1), data[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    seconds = time.monotonic() - begun
    print(json.dumps({"seconds": seconds, "losses": [loss.item().hex() for loss in losses]}))


class Server:
    """A `tenure serve` of the example models."""

    def __init__(self, program: str, device: str, folder: Path) -> None:
        self.socket = str(folder / "background.sock")
        models = str(folder / "models")
        subprocess.run([program, "models", "init", models], check=True, stdout=subprocess.DEVNULL)
        command = [program, "serve", models, "--listen", "127.0.0.1:0", "--json", "--background", self.socket]
        command += ["--device", device, "--device-bytes", "1GiB", "--host-bytes", "1GiB"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        address = json.loads(self.process.stdout.readline())["url"].removeprefix("http://")
        self._connection = http.client.HTTPConnection(address, timeout=120)

    def infer(self) -> float:
        """Asks the model `next-byte`, and returns the seconds until the answer."""
        begun = time.monotonic()
        self._connection.request("POST", "/v2/models/next-byte/infer", ASKED)
        response = self._connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        return time.monotonic() - begun

    def metrics(self) -> dict[str, float]:
        self._connection.request("GET", "/metrics")
        lines = self._connection.getresponse().read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def quantile(metrics: dict[str, float], part: float) -> float:
    """Returns the least bound, in ms, of a bucket below which this part of the times to yield lies."""
    buckets = [(name, count) for name, count in metrics.items() if name.startswith(f"{YIELD}_bucket")]
    bounds = sorted((float(name.split('"')[1].replace("+Inf", "inf")), count) for name, count in buckets)
    return next(round(1e3 * bound, 2) for bound, count in bounds if count >= part * metrics[f"{YIELD}_count"])


def ran(command: list[str], server: Server | None, yields: int) -> tuple[dict[str, object], float, list[float]]:
    """Runs a training, preempted at most `yields` times. Returns its output, its seconds, and the requests' seconds."""
    begun = time.monotonic()
    training = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    taken: list[float] = []
    while training.poll() is None:
        time.sleep(random.uniform(0.02, 0.15))
        metrics = server.metrics() if server is not None else {}
        if server is not None and metrics["tenure_background_running"] and metrics[f"{YIELD}_count"] < yields:
            taken += [server.infer() for _ in range(random.randint(1, 8))]
    assert training.returncode == 0 and training.stdout is not None
    said = json.loads(training.stdout.read().splitlines()[-1])
    return said, said.get("seconds", time.monotonic() - begun), taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="the program `tenure`")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--yields", type=int, default=1000, help="the most times that training is preempted")
    args = parser.parse_args()
    random.seed(1)
    program = str(Path(args.program).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = Server(program, args.device, folder)
        if args.device == "cpu":
            (folder / "text").write_text("a rose is a rose is a rose. " * 4000)
            alone = [program, "train", "--model", "gpt2-mini", "--data", f"text:{folder / 'text'}", "--batch-size", "4"]
            alone += ["--steps", str(args.steps), "--json"]
            beside = [program, "background", server.socket, "--", *alone]
        else:
            alone = [sys.executable, __file__, "--train", str(args.steps)]
            beside = [*alone, server.socket]
        try:
            expected, alone_s, _ = ran(alone, None, 0)
            server.infer()
            said, beside_s, taken = ran(beside, server, args.yields)
            metrics = server.metrics()
        finally:
            server.process.terminate()
            server.process.wait()
    assert taken, "training was over before it was preempted: give it more --steps"
    taken.sort()
    figures = {
        "same_losses": said["losses"] == expected["losses"],
        "yields": int(metrics[f"{YIELD}_count"]),
        "late_yields": int(metrics["tenure_background_late_yields_total"]),
        "yield_ms": {part: quantile(metrics, share) for part, share in (("p50", 0.5), ("p99", 0.99), ("max", 1))},
        "requests": len(taken),
        "request_ms": {"p50": 1e3 * taken[len(taken) // 2], "p99": 1e3 * taken[len(taken) * 99 // 100]},
        "training_s": {"alone": round(alone_s, 2), "beside": round(beside_s, 2)},
        "training_share": round(alone_s / beside_s, 3),
    }
    print(json.dumps(figures, indent=2))
    assert figures["same_losses"], "training beside a server ends with other losses"


if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if sys.argv[1:2] == ["--train"]:
        train(int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
    else:
        main()
