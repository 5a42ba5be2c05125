"""A loop of Accelerate's on Tenure's allocator: bf16, gradients accumulated over four batches, clipped."""

import argparse

import tenure.torch

tenure.torch.install()

import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="narrow layers, eight batches")
    small = parser.parse_args().small
    width, batches = (32, 8) if small else (4096, 200)
    data = TensorDataset(torch.rand(16 * batches, width), torch.rand(16 * batches, width))
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=16, shuffle=True))
    for inputs, wanted in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), wanted)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
    print(tenure.torch.status())
