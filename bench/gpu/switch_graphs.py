"""Checks CUDA graphs of `tenure.torch.Switcher` on a GPU: whether answers are the plain module's, and the time of
calls.

Prints a row of JSON for each model: the median time in ms of a call until its answer is there, for a model on the
device (`ready_ms`) and for one whose weights have left (`cold_ms`), with and without graphs. Weights are random.

    switch_graphs.py                        # all of them, each in a process of its own
    switch_graphs.py --model gpt2 --times 50
    switch_graphs.py --no-install           # on PyTorch's own allocator
"""

import argparse
import copy
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CHUNK_BYTES = 16 << 20


def resnet50() -> Any:
    import torch
    import torchvision

    return torchvision.models.resnet50(), lambda: ((torch.randn(8, 3, 224, 224),), {})


def bert() -> Any:
    import torch
    import transformers

    return transformers.BertModel(transformers.BertConfig()), lambda: ((torch.randint(30522, (8, 128)),), {})


def gpt2() -> Any:
    import torch
    import transformers

    config = transformers.GPT2Config(use_cache=False)
    return transformers.GPT2LMHeadModel(config), lambda: ((torch.randint(50257, (4, 128)),), {})


def gpt2_half() -> Any:
    module, make = gpt2()
    return module.half(), make


def gpt2_with_cache() -> Any:
    """Makes a model that returns an object, so that it cannot be captured."""
    import torch
    import transformers

    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2))
    return module, lambda: ((torch.randint(50257, (4, 128)),), {})


def branches() -> Any:
    """Makes a model that reads a value on the host, so that it cannot be captured."""
    import torch
    from torch import nn

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
                if x.sum() > 0:
                    x = x.relu()
            return x

    return Branches(), lambda: ((torch.randn(64, 2048),), {})


def tiny() -> Any:
    """Makes a model for a simulated CUDA, whose kernels compute nothing."""
    import torch
    from torch import nn

    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(1 << 20))

        def forward(self, x: torch.Tensor) -> Any:
            return x.clone(), self.weight.clone()

    return Copies(), lambda: ((torch.rand(1 << 10),), {})


MODELS = {made.__name__: made for made in (resnet50, bert, gpt2, gpt2_half, gpt2_with_cache, branches, tiny)}


def tensors_in(answer: Any) -> list[Any]:
    """Returns the tensors of an answer, those of a cache included."""
    import torch
    from torch.utils._pytree import tree_flatten

    found = []
    for leaf in tree_flatten(answer)[0]:
        if isinstance(leaf, torch.Tensor):
            found.append(leaf.cpu())
        elif hasattr(leaf, "layers"):
            found += [tensor.cpu() for layer in leaf.layers for tensor in (layer.keys, layer.values)]
    return found


def are_equal(one: list[Any], other: list[Any]) -> bool:
    """Returns whether all tensors are equal, bit for bit."""
    import torch

    return len(one) == len(other) and all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))
        for a, b in zip(one, other, strict=True)
    )


def timed(call: Callable[[], Any], prepare: Callable[[], Any], times: int) -> float:
    import torch

    taken = []
    for _ in range(times):
        prepare()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(taken)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    import tenure.torch

    if args.install:
        tenure.torch.install()
    torch.manual_seed(0)
    module, make_inputs = MODELS[args.model[0]]()
    module.eval()
    # Replays get other values than the capture.
    inputs = [make_inputs() for _ in range(4)]
    inputs = [([x.cuda() for x in xs], {name: x.cuda() for name, x in kwargs.items()}) for xs, kwargs in inputs]
    plain = module.cuda()
    with torch.inference_mode():
        expected = [tensors_in(plain(*xs, **kwargs)) for xs, kwargs in inputs]
        ready_plain_ms = timed(lambda: plain(*inputs[0][0], **inputs[0][1]), lambda: None, args.times)
    module.cpu()
    weight_bytes = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])
    torch.cuda.empty_cache()
    row: dict[str, Any] = {"equal": True, "plain_ms": ready_plain_ms, "weight_bytes": weight_bytes}
    room = (weight_bytes * 5 // 4 // CHUNK_BYTES + 2) * CHUNK_BYTES
    for has_graphs in (False, True):
        with tenure.torch.Switcher(device_bytes=room, host_bytes=4 * room, graphs=has_graphs) as switcher:
            model = switcher.add("model", copy.deepcopy(module))
            for turn in range(12):
                xs, kwargs = inputs[turn % len(inputs)]
                row["equal"] &= are_equal(tensors_in(model(*xs, **kwargs)), expected[turn % len(inputs)])
                if turn % 3 == 2:
                    model.evict()
            xs, kwargs = inputs[0]
            call = functools.partial(model, *xs, **kwargs)
            ready_ms = timed(call, lambda: None, args.times)
            cold_ms = timed(call, model.evict, args.times)
            row["equal"] &= are_equal(tensors_in(model(*xs, **kwargs)), expected[0])
            report = switcher.report().per_model[0]
            if has_graphs:
                row |= {"graphs": report.graphs, "refusal": report.graph_refusal, "ready_ms": ready_ms}
                row |= {"cold_ms": cold_ms, "copy_ms": report.last_copy_ms, "groups": report.groups}
            else:
                row |= {"ready_ms_without": ready_ms, "cold_ms_without": cold_ms}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), action="append", help="only this one; may be repeated")
    parser.add_argument("--times", type=int, default=20, help="repetitions of each call (default: %(default)s)")
    parser.add_argument("--no-install", dest="install", action="store_false", help="on PyTorch's own allocator")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args)))
        return
    for model in args.model or [name for name in MODELS if name != "tiny"]:
        command = [sys.executable, __file__, "--child", "--model", model, "--times", str(args.times)]
        done = subprocess.run(command + ["--no-install"] * (not args.install), capture_output=True, text=True)
        if done.returncode:
            row = {"error": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:2000]}
        else:
            row = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps({"model": model, "install": args.install} | row), flush=True)


if __name__ == "__main__":
    main()
