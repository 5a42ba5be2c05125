"""Measures cold starts of stock PyTorch models: each way in turn, each in a process of its own.

The ways: the model is ready; a process with it is started anew; `.to()` moves it from pinned memory; and
`tenure.torch.Switcher` loads it while others fill its device budget, with the layers in searched groups, each alone, or
all at once. Weights are random. Prints a row of JSON for each way: the least and the median time in ms of a call until
its answer is there.

    switch.py                                             # all: some five minutes on an H200
    switch.py --workload resnet152 --method searched      # one model, in one way; beside it, ready
    switch.py --workload tiny --times 3                   # for a simulated CUDA, which computes nothing
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

METHODS = ["ready", "start", "to", "searched", "per_layer", "whole"]
#: The models of a switcher, one more than its device budget holds: the model called next is never on the device.
MODELS = 3
#: The bytes that are copied to measure the link.
LINK_BYTES = 256 << 20
CHUNK_BYTES = 16 << 20


def resnet152() -> Any:
    import torch
    import torchvision

    return torchvision.models.resnet152(), (torch.randn(8, 3, 224, 224),)


def inception_v3() -> Any:
    import torch
    import torchvision

    return torchvision.models.inception_v3(init_weights=False), (torch.randn(8, 3, 299, 299),)


def bert_base() -> Any:
    import torch
    import transformers

    return transformers.BertModel(transformers.BertConfig()), (torch.randint(30522, (8, 128)),)


def tiny() -> Any:
    import torch
    from torch import nn

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(1 << 20))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    return nn.Sequential(*(Scale() for _ in range(8))), (torch.rand(1 << 20),)


WORKLOADS = {"resnet152": resnet152, "inception_v3": inception_v3, "bert_base": bert_base, "tiny": tiny}


def make(workload: str, seed: int) -> Any:
    """Makes a model with weights of its own, and inputs, on the host."""
    import torch

    torch.manual_seed(seed)
    model, inputs = WORKLOADS[workload]()
    return model.eval(), inputs


def answer_of(made: Any) -> Any:
    """Returns the tensor with the answer, for any kind of result."""
    return made if hasattr(made, "shape") else made[0]


def timed(call: Callable[[], Any], times: int) -> dict[str, float]:
    """Times calls until the device has their answer."""
    import torch

    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - begun) * 1e3)
    return {"least": min(taken), "median": statistics.median(taken)}


def link_gb_per_s() -> float:
    """Returns the best speed of copies from pinned memory to the device."""
    import torch

    source = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(LINK_BYTES, dtype=torch.uint8, device="cuda")
    least_ms = timed(lambda: target.copy_(source, non_blocking=True), 10)["least"]
    return LINK_BYTES / 1e6 / max(least_ms, 1e-3)


def ready(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    model, inputs = make(args.workload, 0)
    model, inputs = model.cuda(), [tensor.cuda() for tensor in inputs]
    with torch.inference_mode():
        timed(lambda: model(*inputs), 5)
        return {"ms": timed(lambda: model(*inputs), args.times)}


def to(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    model, inputs = make(args.workload, 0)
    inputs = [tensor.cuda() for tensor in inputs]
    tensors = [*model.parameters(), *model.buffers()]
    pinned = [tensor.detach().pin_memory() for tensor in tensors]

    def leave() -> None:
        for tensor, content in zip(tensors, pinned, strict=True):
            tensor.data = content

    def call() -> None:
        model.to("cuda", non_blocking=True)(*inputs)

    with torch.inference_mode(False), torch.no_grad():
        taken = []
        for _ in range(args.times + 5):
            leave()
            taken.append(timed(call, 1)["least"])
    taken = taken[5:]
    return {"ms": {"least": min(taken), "median": statistics.median(taken)}, "link_gb_per_s": link_gb_per_s()}


def start(args: argparse.Namespace) -> dict[str, Any]:
    """Runs in the process that is started, whose parent measures the time."""
    import torch

    model, inputs = make(args.workload, 0)
    model.load_state_dict(torch.load(args.state, mmap=True))
    model = model.cuda()
    with torch.inference_mode():
        model(*(tensor.cuda() for tensor in inputs))
    torch.cuda.synchronize()
    return {}


def started(args: argparse.Namespace) -> dict[str, Any]:
    """Starts a process for each answer."""
    import torch

    taken = []
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        torch.save(make(args.workload, 0)[0].state_dict(), state)
        command = [sys.executable, __file__, "--child", "--workload", args.workload, "--method", "start"]
        for _ in range(3):
            begun = time.perf_counter()
            subprocess.run([*command, "--state", state], check=True, stdout=subprocess.DEVNULL)
            taken.append((time.perf_counter() - begun) * 1e3)
    return {"ms": {"least": min(taken), "median": statistics.median(taken)}}


def switched(args: argparse.Namespace) -> dict[str, Any]:
    """Calls the models in turn, so that each was evicted before its call; and then once more, when it is there."""
    import torch

    import tenure.torch

    tenure.torch.install()
    made = [make(args.workload, seed) for seed in range(MODELS)]
    inputs = [tensor.cuda() for tensor in made[0][1]]
    expected = []
    for model, _ in made:
        plain = model.cuda()
        with torch.inference_mode():
            expected.append(answer_of(plain(*inputs)).cpu())
        model.cpu()
    torch.cuda.empty_cache()
    tensors = [*made[0][0].parameters(), *made[0][0].buffers()]
    weight_bytes = sum(tensor.nbytes for tensor in tensors)
    # Each tensor begins at a multiple of 256 bytes.
    image_bytes = sum(-(-tensor.nbytes // 256) * 256 for tensor in tensors)
    room = -(-image_bytes // CHUNK_BYTES) * CHUNK_BYTES
    with tenure.torch.Switcher(
        device_bytes=(MODELS - 1) * room, host_bytes=2 * MODELS * room, grouping=args.method
    ) as switcher:
        begun = time.perf_counter()
        models = [switcher.add(str(number), model) for number, (model, _) in enumerate(made)]
        add_ms = (time.perf_counter() - begun) * 1e3 / MODELS
        is_equal = True
        for _ in range(5):
            for model, answer in zip(models, expected, strict=True):
                is_equal &= torch.equal(answer_of(model(*inputs)).cpu(), answer)
        before = switcher.report()
        cold, there = [], []
        for turn in range(args.times):
            model = models[turn % MODELS]
            assert not model.is_resident
            cold.append(timed(lambda model=model: model(*inputs), 1)["least"])
            there.append(timed(lambda model=model: model(*inputs), 1)["least"])
        report = switcher.report()
        copies_ms = (report.copy_ms - before.copy_ms) / (report.switches - before.switches)
        copied_bytes = (report.copied_bytes - before.copied_bytes) / (report.switches - before.switches)
        groups = models[0].group_bytes
        link = link_gb_per_s()
        return {
            "ms": {"least": min(cold), "median": statistics.median(cold)},
            "resident_ms": {"least": min(there), "median": statistics.median(there)},
            "add_ms": add_ms,
            "copy_ms": copies_ms,
            "copy_gb_per_s": copied_bytes / 1e6 / max(copies_ms, 1e-3),
            "link_gb_per_s": link,
            "weight_bytes": weight_bytes,
            "groups": len(groups),
            "first_group_bytes": groups[0],
            "first_group_ms": groups[0] / 1e6 / link,
            "all_copied_ms": copied_bytes / 1e6 / link,
            "is_equal": is_equal,
        }


MEASURES = {"ready": ready, "to": to, "start": start} | dict.fromkeys(("searched", "per_layer", "whole"), switched)


def child(workload: str, method: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the row of one way: its figures, or the error."""
    options = ["--child", "--workload", workload, "--method", method, "--times", str(args.times)]
    try:
        done = subprocess.run(
            [sys.executable, __file__, *options], capture_output=True, text=True, timeout=args.seconds
        )
    except subprocess.TimeoutExpired:
        return {"error": f"more than {args.seconds} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:2000]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(WORKLOADS), action="append", help="only this one; may be repeated")
    parser.add_argument("--method", choices=METHODS, action="append", help="beside ready only this; may be repeated")
    parser.add_argument("--times", type=int, default=30, help="repetitions of each call (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=240, help="limit of one process (default: %(default)s)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--state", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        (args.workload,), (args.method,) = args.workload, args.method
        print(json.dumps(MEASURES[args.method](args)))
        return
    for workload in args.workload or [name for name in WORKLOADS if name != "tiny"]:
        ready_ms = 0.0
        for method in dict.fromkeys(["ready", *(args.method or METHODS)]):
            asked = {"workload": workload, "method": method}
            if method == "start":
                row = started(argparse.Namespace(workload=workload))
            else:
                row = child(workload, method, args)
            if method == "ready" and "ms" in row:
                ready_ms = row["ms"]["median"]
            if "first_group_ms" in row and ready_ms:
                floor_ms = row["first_group_ms"] + max(row["all_copied_ms"], ready_ms)
                row |= {"ready_ms": ready_ms, "floor_ms": floor_ms, "of_floor": row["ms"]["median"] / floor_ms}
            print(json.dumps(asked | row), flush=True)


if __name__ == "__main__":
    main()
