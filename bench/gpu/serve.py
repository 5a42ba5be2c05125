"""Asks `tenure serve` for many models, of which a tenth fits on the GPU, and for only those that fit.

The models are Llamas of random weights, in a folder in memory. Requests arrive as a Poisson process, and models are
chosen by Zipf's law. Each answer must be bit for bit the one that its model gave when it was asked alone.
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

SIZE, INNER, HEADS, TOKENS = 1024, 2816, 16, 16

CONFIG = """architecture = "llama"
timeout_ms = 60000

[options]
vocab_size = 256
hidden_size = {size}
intermediate_size = {inner}
num_hidden_layers = {layers}
num_attention_heads = {heads}
num_key_value_heads = {heads}

[[inputs]]
name = "tokens"
datatype = "INT64"
shape = [-1, -1]

[[outputs]]
name = "scores"
datatype = "FP32"
shape = [-1, -1, 256]

[batching]
max_rows = 1
"""


def make(folder: Path, models: int, layers: int) -> int:
    """Writes models that differ in their last layer, and returns the bytes of each."""
    shapes = {"lm_head.weight": (256, SIZE), "model.embed_tokens.weight": (256, SIZE), "model.norm.weight": (SIZE,)}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.{norm}.weight": (SIZE,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{at}.self_attn.{part}_proj.weight": (SIZE, SIZE) for part in "qkvo"}
        shapes |= {f"{at}.mlp.{part}_proj.weight": (INNER, SIZE) for part in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (SIZE, INNER)
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = np.random.default_rng(0)
    weights = draw.standard_normal(end // 4, dtype=np.float32) * np.float32(0.03)
    for name, entry in header.items():
        if "norm" in name:
            weights[entry["data_offsets"][0] // 4 : entry["data_offsets"][1] // 4] = 1
    config = CONFIG.format(size=SIZE, inner=INNER, heads=HEADS, layers=layers)
    for number in range(models):
        weights[: 256 * SIZE] = draw.standard_normal(256 * SIZE, dtype=np.float32)
        model = folder / f"model-{number:03}"
        model.mkdir(parents=True)
        with (model / "model.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.write(weights.data)
        (model / "config.toml").write_text(config)
    return end


class Client:
    """A connection for requests."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=120)
        tokens = [(7 * place + 1) % 256 for place in range(TOKENS)]
        inputs = [{"name": "tokens", "datatype": "INT64", "shape": [1, TOKENS], "data": tokens}]
        self._body = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})

    def ask(self, model: str) -> tuple[int, bytes]:
        """Asks a model, and returns the status and the answer's bytes."""
        self._connection.request("POST", f"/v2/models/{model}/infer", self._body)
        response = self._connection.getresponse()
        body = response.read()
        return response.status, body[int(response.headers.get("Inference-Header-Content-Length", 0)) :]

    def switches(self) -> int:
        """Returns how often a model was loaded to the device."""
        self._connection.request("GET", "/metrics")
        lines = self._connection.getresponse().read().decode().splitlines()
        counts = (line for line in lines if line.startswith("tenure_") and "switches_total" in line)
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in counts))


def load(address: str, chosen: list[str], expected: dict[str, bytes], rate: float, clients: int) -> dict[str, Any]:
    """Sends requests at the times of a Poisson process, whether or not earlier requests are answered."""
    due: queue.SimpleQueue[tuple[float, str] | None] = queue.SimpleQueue()
    taken: list[float] = []
    wrong, refused, lock = [0], [0], threading.Lock()

    def work() -> None:
        client = Client(address)
        while (request := due.get()) is not None:
            at, model = request
            status, answer = client.ask(model)
            with lock:
                if status != 200:
                    refused[0] += 1
                elif answer != expected[model]:
                    wrong[0] += 1
                else:
                    taken.append(time.monotonic() - at)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    before = Client(address).switches()
    for thread in threads:
        thread.start()
    begun = at = time.monotonic()
    for model in chosen:
        at += random.expovariate(rate)
        time.sleep(max(0.0, at - time.monotonic()))
        due.put((at, model))
    for _ in threads:
        due.put(None)
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begun
    taken.sort()
    return {
        "rate": rate,
        "sent": len(chosen),
        "answered": len(taken),
        "wrong": wrong[0],
        "refused": refused[0],
        "goodput": round(len(taken) / seconds, 1),
        "p50_ms": round(1e3 * taken[len(taken) // 2], 2) if taken else None,
        "p99_ms": round(1e3 * taken[len(taken) * 99 // 100], 2) if taken else None,
        "switched": round((Client(address).switches() - before) / len(chosen), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/models"))
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 100, 150])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--clients", type=int, default=64)
    args = parser.parse_args()
    random.seed(1)
    begun = time.monotonic()
    size = make(args.folder, args.models, args.layers)
    print(f"{args.models} models of {size / 1e6:.0f} MB in {time.monotonic() - begun:.0f} s", flush=True)
    room = args.models // 10
    chunks = -(-size // (64 << 20)) * (64 << 20)
    command = [
        str(args.program.resolve()),
        "serve",
        str(args.folder),
        "--listen",
        "127.0.0.1:0",
        "--device",
        args.device,
        "--json",
    ]
    command += ["--device-bytes", str(room * chunks), "--host-bytes", str(args.models * (size + (1 << 20)))]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        said = json.loads(server.stdout.readline())
        address, names = said["url"].removeprefix("http://"), said["models"]
        client, expected = Client(address), {}
        begun = time.monotonic()
        for name in names:
            for _ in range(4):
                status, answer = client.ask(name)
                assert status == 200, answer
                assert expected.setdefault(name, answer) == answer, f"{name} has two answers"
        assert len(set(expected.values())) == len(names), "models answer the same"
        print(f"{len(names)} models, each asked 4 times, in {time.monotonic() - begun:.0f} s", flush=True)
        weights = [1 / rank for rank in range(1, len(names) + 1)]
        for rate in args.rates:
            requests = int(rate * args.seconds)
            for kind, some in (("resident", room), ("all", len(names))):
                chosen = random.choices(names[:some], weights[:some], k=requests)
                report = load(address, chosen, expected, rate, args.clients)
                print(json.dumps({"models": kind, **report}), flush=True)
    finally:
        server.terminate()
        print("server ended with", server.wait(120), flush=True)


if __name__ == "__main__":
    main()
