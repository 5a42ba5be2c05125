"""Asks `tenure serve --device cuda` for stock PyTorch models, of which a part fits on the GPU.

The models are ResNet-50s (timm's, or else torchvision's) and BERTs (transformers'), with random weights from a seed of
their own. Each answer must be bit for bit the module's own on the GPU. Latencies are those of one request at a time:
for models on the device, and for models that come from pinned memory because others took their place.

    serve_torch.py target/gpu/tenure --python ~/venv/bin/python

That Python, which also runs this script, has tenure, PyTorch, transformers, and timm or torchvision.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

CODE = """
import torch


def resnet50():
    try:
        import timm
    except ImportError:
        import torchvision

        return torchvision.models.resnet50()
    return timm.create_model("resnet50")


def bert():
    import transformers

    return transformers.BertModel(transformers.BertConfig(attn_implementation="eager"))


def load(folder):
    torch.manual_seed({seed})
    return {kind}().eval()
"""

CONFIGS = {
    "resnet50": """
python = "model.py:load"
inputs = [{ name = "image", datatype = "FP32", shape = [-1, 3, 224, 224] }]
outputs = [{ name = "scores", datatype = "FP32", shape = [-1, 1000] }]
batching = { max_rows = 1 }
""",
    "bert": """
python = "model.py:load"
inputs = [{ name = "input_ids", datatype = "INT64", shape = [-1, -1] }]
outputs = [{ name = "last_hidden_state", datatype = "FP32", shape = [-1, -1, 768] }]
batching = { max_rows = 1 }
""",
}


def example(kind: str) -> tuple[str, str, torch.Tensor]:
    """Returns an input's name, its datatype, and its values."""
    draw = torch.Generator().manual_seed(0)
    if kind == "bert":
        return "input_ids", "INT64", torch.randint(30522, (1, 128), generator=draw)
    return "image", "FP32", torch.randn(1, 3, 224, 224, generator=draw)


def write(folder: Path, kind: str, seed: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIGS[kind])
    (folder / "model.py").write_text(CODE.format(kind=kind, seed=seed))
    return folder


def own(folder: Path, kind: str) -> tuple[bytes, int, float]:
    """Returns the module's own answer on the GPU, the bytes of its weights, and the time of a call in ms."""
    names: dict[str, Any] = {}
    exec((folder / "model.py").read_text(), names)
    module = names["load"](str(folder)).cuda()
    size = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])
    x = example(kind)[2]
    taken = []
    with torch.inference_mode():
        for _ in range(20):
            begun = time.perf_counter()
            answer = module(x.cuda())
            answer = (answer["last_hidden_state"] if kind == "bert" else answer).cpu()
            taken.append(1e3 * (time.perf_counter() - begun))
    return answer.numpy().tobytes(), size, statistics.median(taken)


class Client:
    """A connection for requests."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=300)

    def ask(self, model: str, kind: str) -> tuple[bytes, float]:
        """Asks a model, and returns the answer's bytes and the time in ms."""
        name, datatype, values = example(kind)
        payload = values.numpy().tobytes()
        described = {"name": name, "datatype": datatype, "shape": list(values.shape)}
        described["parameters"] = {"binary_data_size": len(payload)}
        head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
        begun = time.perf_counter()
        self._connection.request("POST", f"/v2/models/{model}/infer", head + payload, headers)
        response = self._connection.getresponse()
        body = response.read()
        taken = 1e3 * (time.perf_counter() - begun)
        assert response.status == 200, (model, body)
        return body[int(response.headers.get("Inference-Header-Content-Length", 0)) :], taken

    def metric(self, name: str) -> float:
        self._connection.request("GET", "/metrics")
        lines = self._connection.getresponse().read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def spread(taken: list[float]) -> str:
    ordered = sorted(taken)
    return f"p50 {ordered[len(ordered) // 2]:7.2f} ms, p99 {ordered[len(ordered) * 99 // 100]:7.2f} ms ({len(ordered)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--models", type=int, default=8, help="models of each kind")
    parser.add_argument("--kinds", nargs="+", choices=sorted(CONFIGS), default=sorted(CONFIGS))
    parser.add_argument("--share", type=float, default=0.4, help="the part of all weights that fits on the device")
    parser.add_argument("--turns", type=int, default=10)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, kinds = Path(temporary), {}
        for kind in args.kinds:
            kinds |= {
                f"{kind}-{seed}": (kind, write(folder / f"{kind}-{seed}", kind, seed)) for seed in range(args.models)
            }
        expected, sizes = {}, {}
        for name, (kind, where) in kinds.items():
            expected[name], sizes[name], taken = own(where, kind)
            torch.cuda.empty_cache()
            if name.endswith("-0"):
                print(f"{kind}: {sizes[name] / 1e6:.0f} MB, a call in a program {taken:.2f} ms", flush=True)
        budget = int(args.share * sum(sizes.values()))
        command = [args.program.resolve(), "serve", folder, "--listen", "127.0.0.1:0", "--json", "--device", "cuda"]
        command += [
            "--python",
            args.python,
            "--device-bytes",
            budget,
            "--host-bytes",
            2 * sum(sizes.values()) + (1 << 30),
        ]
        server = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            said = json.loads(server.stdout.readline())
            assert sorted(said["models"]) == sorted(kinds), f"not all models are served: {said}"
            measure(Client(said["url"].removeprefix("http://")), kinds, expected, args.turns, budget)
        finally:
            server.terminate()
            server.wait()


def measure(
    client: Client, kinds: dict[str, tuple[str, Path]], expected: dict[str, bytes], turns: int, budget: int
) -> None:
    wrong = 0
    # These calls learn the orders and capture the graphs.
    for name, (kind, _) in kinds.items():
        for _ in range(5):
            wrong += client.ask(name, kind)[0] != expected[name]
    resident: dict[str, list[float]] = {}
    switched: dict[str, list[float]] = {}
    for _ in range(turns):
        for name, (kind, _) in kinds.items():
            for again in range(4):
                before = client.metric("tenure_switches_total")
                answer, taken = client.ask(name, kind)
                wrong += answer != expected[name]
                of = resident if client.metric("tenure_switches_total") == before else switched
                # The first request of a turn is not counted as resident: which model it found there is chance.
                if of is switched or again:
                    of.setdefault(kind, []).append(taken)
            used = client.metric("tenure_resident_bytes")
            assert used <= budget, f"{used} bytes on the device, which has {budget} for weights"
    for kind in resident:
        print(f"{kind}: resident {spread(resident[kind])}", flush=True)
        print(
            f"{kind}: switched {spread(switched[kind])}" if kind in switched else f"{kind}: never switched", flush=True
        )
    print(f"answers that are not the module's own: {wrong}")
    assert not wrong


if __name__ == "__main__":
    main()
