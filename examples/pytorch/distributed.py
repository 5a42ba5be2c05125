"""DDP and FSDP2 on Tenure's allocator: `torchrun --nproc-per-node 2 distributed.py`."""

import argparse
import os

import tenure.torch

tenure.torch.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def train(model: nn.Module, width: int, steps: int) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        loss = model(torch.rand(8, width, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="narrow layers, four steps")
    parser.add_argument("--backend", default="nccl", help="of torch.distributed (default nccl)")
    arguments = parser.parse_args()
    width, steps = (64, 4) if arguments.small else (4096, 40)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(arguments.backend)

    def layers() -> nn.Sequential:
        return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4))).cuda()

    print(f"DDP: loss {train(DistributedDataParallel(layers()), width, steps):.3f}")
    model = layers()
    for layer in model:
        fully_shard(layer)
    print(f"FSDP2: loss {train(fully_shard(model), width, steps):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    print(tenure.torch.status())
