"""Trains a Llama of transformers on two GPUs with PyTorch's allocators and Tenure's: time, memory, driver calls.

These programs use several streams: FSDP2, FSDP2 that gathers two layers ahead, tensor parallel, DDP, a pipeline. Each
rank is a process of its own. The allocators take turns. Prints a row of JSON for each pair of processes.

    streams.py                                    # all programs and allocators, three times
    streams.py --program fsdp2 --times 1          # one of them, once
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

RANKS = 2
PROGRAMS = ["fsdp2", "fsdp2-prefetch", "tensor", "ddp", "pipeline"]
ALLOCATORS = ["native", "expandable", "tenure"]
LAYERS = 12
#: A rank's batch: rows, and tokens in each.
BATCH = 8, 2048
#: The steps that are not timed, and the number of the step after which driver calls count.
FIRST, SETTLED = 20, 10

Step = Callable[[torch.Tensor], Any]


class Part(nn.Module):
    """Half of a Llama's layers, with the embedding before them or the head after them."""

    def __init__(self, llama: LlamaForCausalLM, is_first: bool) -> None:
        super().__init__()
        half = LAYERS // 2
        self.embedding = llama.model.embed_tokens if is_first else None
        self.rotary = llama.model.rotary_emb
        self.layers = nn.ModuleList(llama.model.layers[:half] if is_first else llama.model.layers[half:])
        self.head = None if is_first else nn.Sequential(llama.model.norm, llama.lm_head)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            hidden = self.embedding(hidden)
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        embeddings = self.rotary(hidden, positions)
        for layer in self.layers:
            out = layer(hidden, position_embeddings=embeddings, position_ids=positions)
            hidden = out[0] if isinstance(out, tuple) else out
        return hidden if self.head is None else self.head(hidden)


def loss_of(logits: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), text.flatten())


def pipeline(llama: LlamaForCausalLM, rank: int, device: torch.device) -> tuple[nn.Module, Step]:
    part = Part(llama.bfloat16(), rank == 0).to(device)
    schedule = Schedule1F1B(PipelineStage(part, rank, RANKS, device), 4, loss_fn=loss_of)
    return part, schedule.step if rank == 0 else lambda text: schedule.step(target=text)


def parallel(program: str, llama: LlamaForCausalLM, device: torch.device) -> tuple[nn.Module, Step]:
    model: nn.Module = llama.to(device, torch.bfloat16)
    layers = list(llama.model.layers)
    if program == "ddp":
        model = nn.parallel.DistributedDataParallel(model, [device])
    elif program == "tensor":
        mesh = dist.init_device_mesh("cuda", (RANKS,))
        inward = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"]
        outward = ["self_attn.o_proj", "mlp.down_proj"]
        plan = {name: ColwiseParallel() for name in inward} | {name: RowwiseParallel() for name in outward}
        for layer in layers:
            parallelize_module(layer, mesh, plan)
    else:
        mesh = dist.init_device_mesh("cuda", (RANKS,))
        for part in (*layers, model):
            fully_shard(part, mesh=mesh)
        if program == "fsdp2-prefetch":
            for at, layer in enumerate(layers):
                layer.set_modules_to_forward_prefetch(layers[at + 1 : at + 3])
                layer.set_modules_to_backward_prefetch(layers[max(0, at - 2) : at][::-1])
    return model, lambda text: model(input_ids=text, labels=text).loss.backward()


def measure(rank: int, program: str, allocator: str, folder: str, steps: int) -> None:
    """Runs one rank in this process; rank 0 writes the figures into the folder."""
    if allocator == "tenure":
        import tenure.torch

        tenure.torch.install()
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", f"file://{folder}/store", rank=rank, world_size=RANKS, device_id=device)
    torch.manual_seed(0)
    sizes = {"hidden_size": 1536, "intermediate_size": 4096, "num_attention_heads": 12, "num_key_value_heads": 4}
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=32000, use_cache=False, num_hidden_layers=LAYERS, **sizes))
    if program == "pipeline":
        model, step = pipeline(llama, rank, device)
    else:
        model, step = parallel(program, llama, device)
    # Tensors of a mesh and plain ones cannot be in one fused call.
    how = {"foreach": False} if program == "tensor" else {"fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **how)
    marks, calls = [], []
    for number in range(FIRST + steps):
        drawing = torch.Generator(device).manual_seed(RANKS * number + rank)
        step(torch.randint(32000, BATCH, generator=drawing, device=device))
        optimizer.step()
        optimizer.zero_grad()
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
        calls.append(torch.cuda.memory_stats()["num_device_alloc"])
    torch.cuda.synchronize()
    times = [before.elapsed_time(after) for before, after in pairwise(marks[FIRST - 1 :])]
    stats = torch.cuda.memory_stats()
    figures = {
        "ms": round(statistics.median(times), 2),
        "least_ms": round(min(times), 2),
        "most_ms": round(max(times), 2),
        # With several streams, Tenure's peak of the requested bytes is an upper bound: compare with PyTorch's.
        "requested_mib": stats["requested_bytes.all.peak"] >> 20,
        "reserved_mib": stats["reserved_bytes.all.peak"] >> 20,
        "calls": calls[-1],
        "calls_after_settling": calls[-1] - calls[SETTLED],
    }
    if rank == 0:
        Path(folder, "figures.json").write_text(json.dumps(figures))
    dist.barrier()
    # Clearing up may wait for the other rank, which may be gone.
    os._exit(0)


def run(program: str, allocator: str, steps: int) -> dict[str, Any]:
    """Runs both ranks in new processes, and returns their figures."""
    if allocator == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    else:
        os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (program, allocator, folder, steps)
        torch.multiprocessing.spawn(measure, arguments, nprocs=RANKS)
        return json.loads(Path(folder, "figures.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", choices=PROGRAMS, action="append")
    parser.add_argument("--allocator", choices=ALLOCATORS, action="append")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="the timed steps, after the first 20")
    args = parser.parse_args()
    for program in args.program or PROGRAMS:
        for _ in range(args.times):
            for allocator in args.allocator or ALLOCATORS:
                figures = run(program, allocator, args.steps)
                print(json.dumps({"program": program, "allocator": allocator} | figures), flush=True)


if __name__ == "__main__":
    main()
