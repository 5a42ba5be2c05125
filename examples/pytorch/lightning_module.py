"""Lightning's Trainer on Tenure's allocator: training and validation alternate, bf16."""

import argparse

import tenure.torch

tenure.torch.install()

import lightning  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


class Classifier(lightning.LightningModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        inputs, classes = batch
        return nn.functional.cross_entropy(self.layers(inputs), classes)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        self.log("loss", self.training_step(batch, index))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="narrow layers, eight batches an epoch")
    small = parser.parse_args().small
    width, batches = (32, 8) if small else (4096, 100)
    data = TensorDataset(torch.rand(16 * batches, width), torch.randint(10, (16 * batches,)))
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=2,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(width), DataLoader(data, batch_size=16), DataLoader(data, batch_size=32))


if __name__ == "__main__":
    main()
    print(tenure.torch.status())
