"""torchvision's ResNet-18 on Tenure's allocator: batches of changing sizes, copied while the last one is computed."""

import argparse
import random

import tenure.torch

tenure.torch.install()

import torch  # noqa: E402
from torchvision.models import resnet18  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="images of 64 pixels, four steps")
    small = parser.parse_args().small
    size, batch, steps = (64, 4, 4) if small else (224, 256, 60)
    model = resnet18(num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    chance, copies = random.Random(1), torch.cuda.Stream()
    for _ in range(steps):
        images = torch.rand(chance.randint(2, batch), 3, size, size).pin_memory()
        with torch.cuda.stream(copies):
            there = images.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        there.record_stream(torch.cuda.current_stream())
        classes = torch.zeros(len(there), dtype=torch.long, device="cuda")
        loss = torch.nn.functional.cross_entropy(model(there), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
    print(tenure.torch.status())
