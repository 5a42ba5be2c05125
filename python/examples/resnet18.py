"""Trains a ResNet-18 (He et al., 2016) on a batch of random images, and prints the loss of each step.

    python python/examples/resnet18.py --batch 4 --size 64 --steps 5

The losses are those of `crates/tenure-nn/examples/losses.rs`, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import time

import tenure
import tenure.nn.functional as F
from tenure import Tensor, nn


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.utils.skip_init(nn.Conv2d, inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class BasicBlock(nn.Module):
    """Two convolutions, beside which the input is carried on."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(conv(inputs, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        carried = x if self.downsample is None else self.downsample(x)
        return F.relu(y + carried)


class ResNet18(nn.Module):
    """Computes scores `[batch, classes]` of images `[batch, 3, height, width]`."""

    def __init__(self, classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.conv1 = conv(3, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, width, 1))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(BasicBlock(2 * width, 4 * width, 2), BasicBlock(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(BasicBlock(4 * width, 8 * width, 2), BasicBlock(8 * width, 8 * width, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=16, help="the number of images (default: %(default)s)")
    parser.add_argument("--size", type=int, default=224, help="their height and width (default: %(default)s)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage (default: %(default)s)")
    parser.add_argument("--classes", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the losses and milliseconds of the steps as JSON")
    args = parser.parse_args()

    tenure.manual_seed(args.seed)
    model = ResNet18(args.classes, args.width)
    images = tenure.randn(args.batch, 3, args.size, args.size)
    labels = tenure.randint(0, args.classes, (args.batch,))
    optimizer = tenure.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)

    losses, milliseconds = [], []
    for step in range(args.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        milliseconds.append(1e3 * (time.perf_counter() - start))
        if not args.json:
            print(f"step {step + 1}: {losses[-1]!r}, {milliseconds[-1]:.1f} ms", flush=True)
    if args.json:
        print(json.dumps({"losses": losses, "ms": milliseconds}))


if __name__ == "__main__":
    main()
