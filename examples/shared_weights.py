"""Shares the weights of a model between two processes: one copy on the device, and either process may die.

    python examples/shared_weights.py [--model resnet50] [--json]

The *owner* takes a shared cache, puts a model (random weights, fixed seed) into it and publishes it. The *reader*
builds the same model on the owner's bytes: it allocates no memory for weights. Both give the same answers. Then the
owner is killed, and the reader answers as before; in a second scene, the reader is killed, and the owner answers as
before. The program ends with an error if any of this does not hold.

It needs a GPU with 4 GiB free, and torchvision, except for `--model small`.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

MIB = 1 << 20


class Failed(Exception):
    """An error about something missing, or about a check that failed. Its text is the program's last line."""


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


class Process:
    """One of the two processes, which obeys orders. It is killed at the end, if it still runs."""

    def __init__(self, role: str, model: str, socket: Path) -> None:
        command = [sys.executable, __file__, "--role", role, "--model", model, "--socket", str(socket)]
        self.role = role
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def ask(self, what: str) -> dict[str, Any]:
        # A process that has ended may have printed the reason before this request.
        with suppress(BrokenPipeError):
            print(what, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        check(bool(line), f"the {self.role} ended before it could {what}")
        answer: dict[str, Any] = json.loads(line)
        check("failed" not in answer, answer.get("failed", ""))
        return answer

    def kill(self) -> None:
        """Kills the process, as a crash would (SIGKILL)."""
        self.process.kill()
        self.process.wait()
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def finish(self) -> None:
        self.process.stdin.close()
        check(self.process.wait() == 0, f"the {self.role} ended with an error")


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Returns whether two answers come from the same weights and agree. A simulated device has no logits."""
    differences = [abs(a - b) for a, b in zip(one["logits"], other["logits"], strict=True)]
    return one["weights"] == other["weights"] and max(differences, default=0.0) < 1e-4


def scene(model: str, socket: Path, killed: str) -> dict[str, Any]:
    """Lets both answer, kills one, and lets the other answer again."""
    with Process("owner", model, socket) as owner, Process("reader", model, socket) as reader:
        shared = owner.ask("share")
        attached = reader.ask("attach")
        right, answer = owner.ask("answer"), reader.ask("answer")
        check(same(right, answer), "the reader's answer differs from the owner's")
        weights, own, device = shared["weight_bytes"], attached["own_bytes"], attached["device_bytes"]
        check(own == 0, f"the reader has got {own} bytes for weights of its own")
        check(device < min(16 * MIB, weights), f"the device has {device} bytes less")
        dead, alive, before = (owner, reader, answer) if killed == "owner" else (reader, owner, right)
        dead.kill()
        check(same(before, alive.ask("answer")), f"with the {killed} dead, the other's answer is another")
        cleared = alive.ask("clear")
        alive.finish()
    return {"killed": killed, "weight_bytes": weights, **attached, **cleared, "answers_agree": True}


def play(role: str, model: str, socket: str) -> None:
    """Runs one of the two processes: reads orders line by line, and prints the answers."""
    needed("torch", "install it (https://pytorch.org)")
    needed("tenure.torch", "install it (pip install .)")
    import torch

    import tenure

    try:
        orders = actor(role, maker(model), socket)
        for line in sys.stdin:
            print(json.dumps(orders[line.strip()]()), flush=True)
    except (tenure.Error, torch.OutOfMemoryError) as error:
        raise Failed(" ".join(str(error).split())) from error


def needed(module: str, otherwise: str) -> Any:
    """Imports a module that may be missing."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise Failed(f"{module} cannot be imported ({error}): {otherwise}") from error


def maker(name: str) -> Callable[[], nn.Module]:
    if name == "small":
        return small
    models = needed("torchvision", "install it (pip install torchvision), or choose --model small").models
    known = name in models.list_models(models)
    check(known, f"--model {name}: no model for images of torchvision: try resnet18 or vit_b_16, or small, without it")
    return functools.partial(models.get_model, name, weights=None)


def small() -> nn.Module:
    from torch import nn

    seen = nn.Sequential(nn.Conv2d(3, 64, 7, stride=4), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(8))
    return nn.Sequential(seen, nn.Flatten(), nn.Linear(4096, 1024), nn.ReLU(), nn.Linear(1024, 1000))


def actor(role: str, make: Callable[[], nn.Module], socket: str) -> dict[str, Callable[[], dict[str, Any]]]:
    """Prepares one of the two processes, and returns the orders that it obeys."""
    import torch

    import tenure.torch as tt

    check(torch.cuda.is_available(), "PyTorch finds no GPU: check `nvidia-smi`, and that PyTorch is built for CUDA")
    with warnings.catch_warnings(record=True) as told:
        status = tt.install()
    check(status.mode != "not installed", " ".join(str(warning.message) for warning in told))
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
    model: nn.Module

    def made() -> nn.Module:
        torch.manual_seed(42)
        return make().eval()

    def share() -> dict[str, Any]:
        nonlocal model
        model = tt.share_module(made())
        return {"weight_bytes": sum(tensor.nbytes for tensor in model.state_dict().values())}

    def attach() -> dict[str, Any]:
        nonlocal model
        with torch.device("meta"):
            unfilled = made()
        own, free = tt.own_bytes(), torch.cuda.mem_get_info()[0]
        model = tt.attach_module(unfilled)
        torch.cuda.synchronize()
        grown = {"own_bytes": tt.own_bytes() - own, "device_bytes": free - torch.cuda.mem_get_info()[0]}
        tt.insert_shared_cache_for_computation()
        return grown

    def answer() -> dict[str, Any]:
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
        del model
        tt.clear_shared_cache()
        return {"cleared": True}

    return {"share": share, "attach": attach, "answer": answer, "clear": clear}


def main() -> None:
    parser = argparse.ArgumentParser(description="Two processes share the weights of a model.")
    parser.add_argument("--model", default="resnet50", help="one of torchvision's for images, or small: one without it")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        try:
            play(arguments.role, arguments.model, arguments.socket)
        except Failed as failed:
            print(json.dumps({"failed": str(failed)}), flush=True)
        return
    try:
        with tempfile.TemporaryDirectory() as folder:
            scenes = [scene(arguments.model, Path(folder) / f"{killed}.sock", killed) for killed in ("owner", "reader")]
    except Failed as failed:
        parser.exit(1, f"{parser.prog}: {failed}\n")
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
