"""timm's ViT on Tenure's allocator: autocast, channels last, an average of the weights, batches without some images."""

import argparse

import tenure.torch

tenure.torch.install()

import timm  # noqa: E402
import torch  # noqa: E402
from timm.utils import ModelEmaV3  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="ViT-Tiny, four steps")
    small = parser.parse_args().small
    name, batch, steps = ("vit_tiny_patch16_224", 2, 4) if small else ("vit_base_patch16_224", 128, 60)
    model = timm.create_model(name, num_classes=10, drop_path_rate=0.1).cuda().to(memory_format=torch.channels_last)
    average = ModelEmaV3(model, decay=0.99)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(steps):
        images = torch.rand(batch - step % 2, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        classes = torch.zeros(len(images), dtype=torch.long, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update(model)
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
    print(tenure.torch.status())
