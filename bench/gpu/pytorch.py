"""Runs one workload on PyTorch, written as its users would; prints the same figures as `main.rs`."""

import argparse
import json
import os
import time
from collections import Counter

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from torch import nn

DEVICE = torch.device("cuda")


class Attention(nn.Module):
    """Causal attention, perhaps with fewer heads for keys and values."""

    def __init__(self, width: int, heads: int, kv_heads: int, bias: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.size, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: torch.Tensor, waves: tuple[torch.Tensor, torch.Tensor] | None = None) -> torch.Tensor:
        batch, length, width = x.shape
        parts = [self.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.size]
        q, k, v = (part.view(batch, length, -1, self.size).transpose(1, 2) for part in self.qkv(x).split(parts, dim=-1))
        if waves is not None:
            q, k = rotated(q, *waves), rotated(k, *waves)
        dropout = self.dropout if self.training else 0.0
        grouped = self.kv_heads != self.heads
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Gpt2Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, heads, bias=True, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.ln1(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh")))


def begin(module: nn.Module) -> None:
    """Initializes weights as Hugging Face's models do."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class Gpt2(nn.Module):
    def __init__(self, vocabulary=50257, length=1024, width=1024, layers=12, heads=16, dropout=0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Gpt2Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(begin)
        for block in self.blocks:
            for last in (block.attention.out, block.down):
                nn.init.normal_(last.weight, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads, kv_heads, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, waves: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), waves)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, vocabulary=32000, length=2048, width=2048, layers=22, heads=32, kv_heads=4, inner=5632) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, kv_heads, inner) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, vocabulary, bias=False)
        self.apply(begin)
        size = width // heads
        angles = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        return self.head(self.norm(x))


def ids(first: int, batch: int, length: int, vocabulary: int) -> torch.Tensor:
    """Returns tokens of a text, from number `first` on."""
    return (torch.arange(first, first + batch * length, device=DEVICE) * 7919 % vocabulary).view(batch, length)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor):
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)

    def step() -> torch.Tensor:
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, -2), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def resnet50():
    model = torchvision.models.resnet50().to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)
    images = torch.randn(128, 3, 224, 224, device=DEVICE, dtype=torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    return train(model, optimizer, images, torch.arange(128, device=DEVICE))


def language_model(model: nn.Module, batch: int, length: int, vocabulary: int):
    model = model.to(DEVICE, torch.bfloat16)
    # The targets are the following tokens.
    inputs, targets = (ids(first, batch, length, vocabulary) for first in (0, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return train(model, optimizer, inputs, targets.flatten())


def gpt2(dropout=False):
    return language_model(Gpt2(dropout=0.1 if dropout else 0.0), 8, 1024, 50257)


def llama():
    return language_model(Llama(), 4, 2048, 32000)


def infer(model: nn.Module, inputs: torch.Tensor):
    model = model.eval().to(DEVICE)
    return torch.inference_mode()(lambda: model(inputs))


def infer_images(model: nn.Module, side: int, memory_format: torch.memory_format):
    images = torch.randn(8, 3, side, side, device=DEVICE).contiguous(memory_format=memory_format)
    return infer(model.to(memory_format=memory_format), images)


def resnet152(memory_format=torch.contiguous_format):
    return infer_images(torchvision.models.resnet152(), 224, memory_format)


def inception(memory_format=torch.contiguous_format):
    return infer_images(torchvision.models.inception_v3(weights=None, init_weights=False), 299, memory_format)


def bert():
    from transformers import BertConfig, BertModel

    return infer(BertModel(BertConfig()), ids(0, 8, 128, 30522))


WORKLOADS = {work.__name__: work for work in [resnet50, gpt2, llama, resnet152, inception, bert]}


def captured(step):
    """Returns the step as a graph, after the warm-up that PyTorch needs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    # The peaks are those of the measured steps, without the steps before.
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def counts(step) -> dict[str, int]:
    """Returns the numbers of calls that one step makes to the runtime and to the allocator."""
    before = torch.cuda.memory_stats()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
    calls = Counter(event.name for event in profile.events())
    after = torch.cuda.memory_stats()
    waits = ["cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"]
    return {
        # Each such call launches a kernel, in libraries too.
        "kernels": sum(count for name, count in calls.items() if "LaunchKernel" in name),
        # The profile itself ends with a wait.
        "waits": sum(calls[name] for name in waits) - 1,
        "driver_memory_calls": after["num_device_alloc"] - before["num_device_alloc"],
        "allocations": after["allocation.all.allocated"] - before["allocation.all.allocated"],
    }


def measure(args: argparse.Namespace) -> dict:
    torch.manual_seed(0)
    options = {"memory_format": torch.channels_last} if args.channels_last else {}
    step = WORKLOADS[args.workload](**options, **({"dropout": True} if args.dropout else {}))
    first = step()
    loss = first.item() if isinstance(first, torch.Tensor) and first.numel() == 1 else None
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    asked = counts(step)
    if args.graph:
        step = captured(step)
    milliseconds = []
    for _ in range(args.repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(args.steps):
            step()
        torch.cuda.synchronize()
        milliseconds.append((time.perf_counter() - start) * 1e3 / args.steps)
    return {
        "ms": milliseconds,
        "loss": loss,
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "counts": asked,
    }


def of_rank(rank: int, args: argparse.Namespace) -> None:
    """Runs one process of several, each with a device."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=args.devices)
    figures = measure(args)
    if rank == 0:
        print(json.dumps({"devices": args.devices} | figures), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--graph", action="store_true", help="capture the steps as a graph")
    parser.add_argument("--channels-last", action="store_true", help="convolutional inference with channels last")
    parser.add_argument("--dropout", action="store_true", help="GPT-2 with the dropouts that it has by default")
    parser.add_argument("--devices", type=int, help="train on so many devices at once, each with one's batch")
    parser.add_argument("--steps", type=int, default=10, help="steps without a wait between (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="rows of steps (default: %(default)s)")
    args = parser.parse_args()
    if args.graph and args.devices:
        parser.error("--graph is of one device")
    if args.devices is None:
        print(json.dumps(measure(args)))
        return
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
    torch.multiprocessing.spawn(of_rank, (args,), nprocs=args.devices)


if __name__ == "__main__":
    main()
