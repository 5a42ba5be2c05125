"""Two processes share the weights of a torchvision model: one copy on the device, and either may die.

    python examples/shared_weights.py [--model resnet50] [--json]

The *owner* takes a shared cache, puts a model (random weights, fixed seed) into it and publishes it. The *reader*
builds the same model on the owner's bytes: it gets no memory for weights of its own. Both answer alike. Then the owner
is killed, and the reader answers as before; and in a second scene, the reader, and the owner answers as before.
Whatever does not hold ends the program with an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MIB = 1 << 20


class Process:
    """One of the two, which does what it is told."""

    def __init__(self, role: str, model: str, socket: Path) -> None:
        command = [sys.executable, __file__, "--role", role, "--model", model, "--socket", str(socket)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(what, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, f"the process ended and did not {what}"
        return dict(json.loads(answer))

    def kill(self) -> None:
        """Ends it as a crash would (SIGKILL)."""
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait() == 0


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two answers are computed from the same weights and agree. Simulated devices compute none."""
    differences = [abs(a - b) for a, b in zip(one["logits"], other["logits"], strict=True)]
    return one["weights"] == other["weights"] and max(differences, default=0.0) < 1e-4


def scene(model: str, socket: Path, killed: str) -> dict[str, Any]:
    """Both answer, one is killed, and the other answers again."""
    owner, reader = Process("owner", model, socket), Process("reader", model, socket)
    shared = owner.ask("share")
    attached = reader.ask("attach")
    right, answer = owner.ask("answer"), reader.ask("answer")
    assert same(right, answer), "the reader's answer differs from the owner's"
    weights, tolerance = shared["weight_bytes"], 16 * MIB
    assert attached["own_bytes"] == 0, f"the reader has got {attached['own_bytes']} bytes for weights of its own"
    assert attached["device_bytes"] < min(tolerance, weights), f"the device has {attached['device_bytes']} bytes less"
    dead, alive, before = (owner, reader, answer) if killed == "owner" else (reader, owner, right)
    dead.kill()
    after = alive.ask("answer")
    assert same(before, after), f"with the {killed} dead, the other's answer is another"
    cleared = alive.ask("clear")
    alive.finish()
    return {"killed": killed, "weight_bytes": weights, **attached, "cleared": cleared["cleared"], "answers_agree": True}


def play(role: str, model_name: str, socket: str) -> None:
    """What the two processes do."""
    import torch
    import torchvision

    import tenure.torch as tt

    tt.install()
    tt.configure_shared_cache(
        pool_bytes=3072 * MIB, parameter_bytes=1024 * MIB, computation_bytes=2048 * MIB, socket=socket
    )
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(7)
    images = torch.randn(4, 3, 224, 224)
    simulated = torch.cuda.get_device_name() == "Simulated"
    if role == "owner":
        tt.allocate_shared_cache()
        tt.send_shared_cache()
    else:
        tt.recv_shared_cache()
    model = None

    def share() -> dict[str, Any]:
        nonlocal model
        torch.manual_seed(42)
        model = tt.share_module(torchvision.models.get_model(model_name, weights=None).eval())
        return {"weight_bytes": sum(tensor.nbytes for tensor in model.state_dict().values())}

    def attach() -> dict[str, Any]:
        nonlocal model
        with torch.device("meta"):
            made = torchvision.models.get_model(model_name, weights=None).eval()
        own, free = tt.own_bytes(), torch.cuda.mem_get_info()[0]
        model = tt.attach_module(made)
        torch.cuda.synchronize()
        grown = {"own_bytes": tt.own_bytes() - own, "device_bytes": free - torch.cuda.mem_get_info()[0]}
        tt.insert_shared_cache_for_computation()
        return grown

    def answer() -> dict[str, Any]:
        assert model is not None
        digest = hashlib.sha256()
        for tensor in model.state_dict().values():
            digest.update(tensor.cpu().numpy().tobytes())
        logits = []
        if not simulated:
            with torch.inference_mode():
                logits = model(images.cuda()).cpu().flatten().tolist()
        return {"weights": digest.hexdigest(), "logits": logits}

    def clear() -> dict[str, Any]:
        nonlocal model
        model = None
        tt.clear_shared_cache()
        return {"cleared": True}

    orders = {"share": share, "attach": attach, "answer": answer, "clear": clear}
    for line in sys.stdin:
        print(json.dumps(orders[line.strip()]()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Two processes share the weights of a torchvision model.")
    parser.add_argument("--model", default="resnet50", help="its name in torchvision")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        play(arguments.role, arguments.model, arguments.socket)
        return
    with tempfile.TemporaryDirectory() as folder:
        scenes = [scene(arguments.model, Path(folder) / f"{killed}.sock", killed) for killed in ("owner", "reader")]
    if arguments.json:
        print(json.dumps({"model": arguments.model, "scenes": scenes}))
        return
    for result in scenes:
        print(
            f"{arguments.model}: weights of {result['weight_bytes'] / MIB:.1f} MiB are on the device once. The reader "
            f"got {result['own_bytes'] / MIB:.1f} MiB for them, and the device has {result['device_bytes'] / MIB:.1f} "
            f"MiB less. With the {result['killed']} killed, the other answers as before."
        )


if __name__ == "__main__":
    main()
