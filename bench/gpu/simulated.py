#!/usr/bin/env python3
"""Runs the methods of `budgets.py` on a simulated H200: how the host keeps up, and whether steps take the planned time.

Needs no GPU, but PyTorch built for CUDA. Nothing is computed: products, convolutions, norms and attention only take an
H200's time, and so do copies and elementwise operations (`tests/cudart`). The host does all of its work. A slower
device stands for a larger batch: half of the batch at half the speed takes as long, in half of the memory.

    simulated.py --workload resnet152 --batch 128 --slowness 2                      # stands for 256: the plain step
    simulated.py --workload resnet152 --batch 128 --slowness 2 --budget 3126853632  # a quarter of its memory
    simulated.py --workload llama --batch 4 --slowness 4 --method checkpoint
"""

import argparse
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

#: Floating-point operations of products and of convolutions, and bytes of memory, in a nanosecond; then the nanoseconds
#: until a kernel begins.
PRODUCTS, CONVOLUTIONS, MEMORY, LAUNCH = 600e3, 450e3, 3000, 4000


def simulate(args: argparse.Namespace) -> None:
    """Starts this program again, on the simulated CUDA."""
    root = Path(__file__).resolve().parents[2]
    folder = root / "target/cudart"
    subprocess.run([root / "tests/cudart/build", folder, sys.executable], check=True)
    settings = {
        "LD_PRELOAD": f"{folder}/libcudart.so.13",
        "LD_LIBRARY_PATH": str(folder),
        "TENURE_CUDART_CAPACITY": str(139 << 30),
        "TENURE_CUDART_SLOWNESS": str(args.slowness),
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | settings)


def replace_libraries(slowness: float) -> None:
    """Makes library operations and large kernels take time, and return tensors of arbitrary values."""

    def work(operations: float, per_ns: float, *touched: torch.Tensor) -> None:
        time = max(operations / per_ns, sum(tensor.nbytes for tensor in touched) / MEMORY)
        torch.cuda._sleep(LAUNCH + int(slowness * time))

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = x.new_empty(x.shape[0], y.shape[1])
        work(2 * made.numel() * x.shape[1], PRODUCTS, x, y, made)
        return made

    def convolution(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, *_: Any) -> torch.Tensor:
        sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
        sides = [(size + 2 * pad - gap * (side - 1) - 1) // step + 1 for size, side, step, pad, gap in sizes]
        like = {"device": x.device, "dtype": x.dtype, "memory_format": torch.channels_last}
        made = torch.empty((x.shape[0], weight.shape[0], *sides), **like)
        work(2 * made.numel() * weight[0].numel(), CONVOLUTIONS, x, weight, made)
        return made

    def convolution_backward(gradient: Any, x: Any, weight: Any, *rest: Any) -> Any:
        wanted = rest[-1]
        for _ in range(sum(wanted[:2])):
            work(2 * gradient.numel() * weight[0].numel(), CONVOLUTIONS, gradient, x, weight)
        made = (torch.empty_like(tensor) if wants else None for tensor, wants in zip((x, weight), wanted, strict=False))
        return *made, None

    def norm(x: Any, *_: Any) -> Any:
        made = torch.empty_like(x)
        work(0, 1, x, x, made)
        mean, deviation = (x.new_empty(x.shape[1], dtype=torch.float32) for _ in range(2))
        return made, mean, deviation

    def norm_backward(gradient: Any, x: Any, weight: Any, *_: Any) -> Any:
        made = torch.empty_like(x)
        work(0, 1, gradient, x, gradient, x, made)
        return made, torch.empty_like(weight), torch.empty_like(weight)

    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        batch, length, heads, size = query.shape
        work(2 * batch * heads * length * length * size, CONVOLUTIONS, query, key, value)
        sums = query.new_empty(batch, heads, length, dtype=torch.float32)
        nothing = torch.empty(2, dtype=torch.uint64, device=query.device)
        return torch.empty_like(query), sums, nothing, nothing[:0], query.new_empty(0)

    def attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        batch, length, heads, size = query.shape
        work(5 * batch * heads * length * length * size, CONVOLUTIONS, query, key, value, gradient)
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

    warnings.filterwarnings("ignore", "Warning only once for all operators")
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    library.impl("mm", product)
    library.impl("addmm", lambda bias, x, y, **_: product(x, y))
    library.impl("convolution", convolution)
    library.impl("convolution_backward", convolution_backward)
    library.impl("native_batch_norm", norm)
    library.impl("native_batch_norm_backward", norm_backward)
    library.impl("_flash_attention_forward", attention)
    library.impl("_flash_attention_backward", attention_backward)


library = torch.library.Library("aten", "IMPL", "CUDA")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=["llama", "resnet152"], required=True)
    parser.add_argument("--method", choices=["plain", "checkpoint", "streams", "save_on_cpu"], default="plain")
    parser.add_argument("--budget", type=int, default=0, help="bytes, for tenure.torch.budget")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--slowness", type=float, default=1, help="times slower than an H200 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="steps in a row (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="rows of steps (default: %(default)s)")
    parser.add_argument("--warm", type=int, default=16, help="steps before (default: %(default)s)")
    parser.add_argument("--host-gib", type=int, default=8, help="GiB of pinned memory (default: %(default)s)")
    parser.add_argument("--problem", help="a file for the planner's problem")
    args = parser.parse_args()
    if "libcudart" not in os.environ.get("LD_PRELOAD", ""):
        simulate(args)
    replace_libraries(args.slowness)
    import budgets

    args.bits, args.spill, args.limit = False, None, None
    print(json.dumps(budgets.measure(args)))


if __name__ == "__main__":
    main()
