"""Models of images, clips and volumes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .program import OnStep, Program, Sizes, adamw, ids, normal, optimized, steps_of


def convnext(sizes: Sizes) -> Program:
    """ConvNeXt trained by Lightning's `Trainer.fit`, which calls `training_step`."""
    import torchvision

    net = torchvision.models.convnext_base() if not sizes.is_small else torchvision.models.convnext_tiny()
    batch, side = sizes.pick(64, 2), sizes.pick(224, 32)
    blocks = [block for stage in net.features for block in stage if type(block).__name__ == "CNBlock"]

    def loss_of(module: nn.Module, number: int) -> Tensor:
        images = normal(sizes, number, batch, 3, side, side)
        return F.cross_entropy(module(images), torch.arange(batch, device=sizes.device) % 1000)

    return lightning(sizes, net, blocks, loss_of, "bf16-mixed")


def lightning(
    sizes: Sizes, net: nn.Module, blocks: list[nn.Module], loss_of: Callable[[nn.Module, int], Tensor], precision: str
) -> Program:
    import lightning.pytorch as pl

    class Task(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, number: int) -> Tensor:
            return loss_of(self.net, number)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adamw(self)

    task = Task().to(sizes.device)

    options = {"precision": "32-true" if sizes.is_small else precision}
    return Program(task, lambda count, on_step: fit(sizes, task, count, on_step, **options), blocks)


def fit(sizes: Sizes, task: Any, count: int, on_step: OnStep, **options: Any) -> None:
    """Makes Lightning's `Trainer` train for one pass over `count` numbers."""
    import lightning.pytorch as pl

    class Callback(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, *unused: Any) -> None:
            on_step()

    pl.Trainer(
        max_epochs=1,
        accelerator="cpu" if sizes.device.type == "cpu" else "gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Callback()],
        **options,
    ).fit(task, torch.utils.data.DataLoader(range(count)))


def lightning_gan(sizes: Sizes) -> Program:
    """A generator and a critic, in Lightning's manual optimization, each with an optimizer of its own."""
    import lightning.pytorch as pl

    width, batch = sizes.pick(64, 8), sizes.pick(256, 4)

    def up(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]

    def down(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 4, 2, 1), nn.LeakyReLU(0.2)]

    class Gan(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.generator = nn.Sequential(
                *up(64, 8 * width), *up(8 * width, 4 * width), *up(4 * width, 2 * width), *up(2 * width, width),
                nn.Conv2d(width, 3, 3, padding=1), nn.Tanh(),
            )  # fmt: skip
            self.critic = nn.Sequential(
                *down(3, width), *down(width, 2 * width), *down(2 * width, 4 * width), *down(4 * width, 8 * width),
                nn.Flatten(), nn.LazyLinear(1),
            )  # fmt: skip

        def training_step(self, batch_of: Any, number: int) -> None:
            first, second = self.optimizers()
            real = normal(sizes, number, batch, 3, 64, 64)
            fake = self.generator(normal(sizes, number + 1, batch, 64, 4, 4))
            self.manual_backward(F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake.detach())).mean())
            second.step()
            second.zero_grad()
            self.manual_backward(F.softplus(-self.critic(fake)).mean())
            first.step()
            first.zero_grad()
            second.zero_grad()

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [adamw(self.generator), adamw(self.critic)]

    gan = Gan()
    gan.critic(torch.zeros(1, 3, 64, 64))
    gan = gan.to(sizes.device)

    return Program(gan, lambda count, on_step: fit(sizes, gan, count, on_step))


def vit(sizes: Sizes) -> Program:
    """timm's ViT-L, with autocast to fp16 and a `GradScaler`, and two backward passes in a step."""
    import timm

    model = timm.create_model("vit_tiny_patch16_224" if sizes.is_small else "vit_large_patch16_224").to(sizes.device)
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler(sizes.device.type, enabled=not sizes.is_small)
    batch = sizes.pick(32, 2)

    def step(number: int) -> None:
        for half in range(2):
            images = normal(sizes, 2 * number + half, batch, 3, 224, 224)
            with nullcontext() if sizes.is_small else torch.autocast(sizes.device.type, torch.float16):
                loss = F.cross_entropy(model(images), torch.arange(batch, device=sizes.device)) / 2
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return Program(model, lambda count, on_step: steps_of(step, on_step, count), list(model.blocks))


def efficientnet(sizes: Sizes) -> Program:
    """timm's EfficientNet, channels last, with a mean of its weights, evaluated between steps."""
    import timm

    model = timm.create_model("efficientnet_b0" if sizes.is_small else "efficientnet_b4", drop_path_rate=0.2)
    model = model.to(sizes.device, memory_format=torch.channels_last)
    mean = timm.utils.ModelEmaV3(model, decay=0.99)
    optimizer = adamw(model)
    batch, side = sizes.pick(64, 2), sizes.pick(320, 32)
    labels = torch.arange(batch, device=sizes.device) % 1000

    def step(number: int) -> None:
        images = normal(sizes, number, batch, 3, side, side).contiguous(memory_format=torch.channels_last)
        with nullcontext() if sizes.is_small else torch.autocast(sizes.device.type, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        optimized(loss, optimizer)
        mean.update(model)
        if number % 8 == 7:
            model.eval()
            with torch.no_grad():
                model(images)
            model.train()

    return Program(model, lambda count, on_step: steps_of(step, on_step, count))


def swin(sizes: Sizes) -> Program:
    """torchvision's Swin, with shifted windows, in bf16."""
    import torchvision

    model = torchvision.models.swin_v2_t() if sizes.is_small else torchvision.models.swin_v2_b()
    return images_of(sizes, model, sizes.pick(32, 1), sizes.pick(256, 64))


def images_of(sizes: Sizes, model: nn.Module, batch: int, side: int) -> Program:
    model = model.to(sizes.device)
    optimizer = adamw(model)

    def step(number: int) -> None:
        images = normal(sizes, number, batch, 3, side, side)
        with nullcontext() if sizes.is_small else torch.autocast(sizes.device.type, torch.bfloat16):
            loss = F.cross_entropy(model(images), torch.arange(batch, device=sizes.device) % 1000)
        optimized(loss, optimizer)

    return Program(model, lambda count, on_step: steps_of(step, on_step, count))


def segmentation(sizes: Sizes) -> Program:
    """torchvision's DeepLabV3, which has two losses."""
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_resnet50(weights_backbone=None, aux_loss=True).to(sizes.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch, side = sizes.pick(16, 2), sizes.pick(480, 64)

    def step(number: int) -> None:
        labels = ids(sizes, number, batch, side, side, vocabulary=21)
        output = model(normal(sizes, number, batch, 3, side, side))
        loss = F.cross_entropy(output["out"], labels) + 0.4 * F.cross_entropy(output["aux"], labels)
        optimized(loss, optimizer)

    return Program(model, lambda count, on_step: steps_of(step, on_step, count))


def detection(sizes: Sizes) -> Program:
    """torchvision's Faster R-CNN: different sizes in each step, and as many boxes as it finds."""
    import torchvision

    model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21)
    model = model.to(sizes.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch, side = sizes.pick(4, 1), sizes.pick(640, 64)

    def step(number: int) -> None:
        images = [normal(sizes, number + i, 3, side, side + 32 * (number % 5)) for i in range(batch)]
        boxes = torch.tensor([[8.0, 8.0, 40.0, 50.0], [16.0, 4.0, 60.0, 60.0]], device=sizes.device)
        labels = torch.tensor([1, 2], device=sizes.device)
        losses = model(images, [{"boxes": boxes, "labels": labels}] * batch)
        optimized(sum(losses.values()), optimizer)

    return Program(model, lambda count, on_step: steps_of(step, on_step, count))


def mvit(sizes: Sizes) -> Program:
    """torchvision's MViT on clips: many small operations, and paths that are dropped at random."""
    import torchvision

    model = torchvision.models.video.mvit_v2_s()
    batch = sizes.pick(6, 1)
    model = model.to(sizes.device)
    optimizer = adamw(model)

    def step(number: int) -> None:
        clips = normal(sizes, number, batch, 3, 16, 224, 224)
        with nullcontext() if sizes.is_small else torch.autocast(sizes.device.type, torch.bfloat16):
            loss = F.cross_entropy(model(clips), torch.arange(batch, device=sizes.device) % 400)
        optimized(loss, optimizer)

    return Program(model, lambda count, on_step: steps_of(step, on_step, count), list(model.blocks))


class Residual(nn.Module):
    """Two convolutions around the time step's embedding, with a way past them."""

    def __init__(self, inputs: int, outputs: int, embedding: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(embedding, outputs))
        self.second = nn.Sequential(nn.GroupNorm(32, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.past = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        inside = self.first(x) + self.time(time)[:, :, None, None]
        return self.past(x) + self.second(inside)


class Attending(nn.Module):
    """Attention of an image's places to each other and to a text, and a gated product."""

    def __init__(self, width: int, text: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(
            [nn.GroupNorm(32, width), nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)]
        )
        self.own, self.others = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.keys = nn.Linear(text, 2 * width)
        self.out = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        heads = [each.unflatten(-1, (8, -1)).transpose(1, 2) for each in (query, keys, values)]
        return F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        y = self.norms[0](x).flatten(2).transpose(1, 2)
        y = y + self.out[0](self.attend(*self.own(self.norms[1](y)).chunk(3, -1)))
        y = y + self.out[1](self.attend(self.others(self.norms[2](y)), *self.keys(text).chunk(2, -1)))
        value, gate = self.up(self.norms[3](y)).chunk(2, -1)
        y = y + self.down(value * F.gelu(gate))
        return x + y.transpose(1, 2).reshape(x.shape)


class Diffusing(nn.Module):
    """A UNet of the shape of Stable Diffusion 1.5's."""

    def __init__(self, width: int, text: int) -> None:
        super().__init__()
        embedding = 4 * width
        self.text = text
        self.time = nn.Sequential(nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        widths = [width]
        at = width
        for level, times in enumerate((1, 2, 4, 4)):
            for _ in range(2):
                parts = [Residual(at, times * width, embedding)]
                at = times * width
                parts += [Attending(at, text)] if level < 3 else []
                self.down.append(nn.ModuleList(parts))
                widths.append(at)
            if level < 3:
                self.down.append(nn.ModuleList([Pooling(at)]))
                widths.append(at)
        self.middle = nn.ModuleList([Residual(at, at, embedding), Attending(at, text), Residual(at, at, embedding)])
        for level, times in reversed(list(enumerate((1, 2, 4, 4)))):
            for number in range(3):
                parts = [Residual(at + widths.pop(), times * width, embedding)]
                at = times * width
                parts += [Attending(at, text)] if level < 3 else []
                parts += [Growing(at)] if level > 0 and number == 2 else []
                self.up.append(nn.ModuleList(parts))
        self.last = nn.Sequential(nn.GroupNorm(32, at), nn.SiLU(), nn.Conv2d(at, 4, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        time = self.time(time)
        x = self.first(x)
        kept = [x]
        for parts in self.down:
            for part in parts:
                x = part(x, time, text)
            kept.append(x)
        for part in self.middle:
            x = part(x, time, text)
        for parts in self.up:
            x = torch.cat([x, kept.pop()], 1)
            for part in parts:
                x = part(x, time, text)
        return self.last(x)


class Pooling(nn.Conv2d):
    def __init__(self, width: int) -> None:
        super().__init__(width, width, 3, stride=2, padding=1)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)


class Growing(nn.Conv2d):
    def __init__(self, width: int) -> None:
        super().__init__(width, width, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(F.interpolate(x, scale_factor=2.0))


def diffusion(sizes: Sizes) -> Program:
    """A UNet of the shape of Stable Diffusion 1.5's, in autocast."""
    model = Diffusing(sizes.pick(320, 32), sizes.pick(768, 32)).to(sizes.device)
    optimizer = adamw(model)
    batch, side = sizes.pick(8, 1), sizes.pick(64, 16)
    blocks = [part for part in model.modules() if isinstance(part, Residual | Attending)]

    def step(number: int) -> None:
        noise = normal(sizes, number, batch, 4, side, side)
        given = [normal(sizes, number, batch, sizes.pick(320, 32)), normal(sizes, number, batch, 77, model.text)]
        with nullcontext() if sizes.is_small else torch.autocast(sizes.device.type, torch.bfloat16):
            loss = F.mse_loss(model(noise, *given), noise)
        optimized(loss, optimizer)

    return Program(model, lambda count, on_step: steps_of(step, on_step, count), blocks)


def critic(sizes: Sizes) -> Program:
    """A WGAN with a gradient penalty: backward is differentiated, and two optimizers take turns."""
    width, batch = sizes.pick(96, 8), sizes.pick(128, 4)

    def layers(*widths: int) -> list[nn.Module]:
        pairs = zip(widths, widths[1:], strict=False)
        return [each for a, b in pairs for each in (nn.Conv2d(a, b, 3, padding=1), nn.SiLU())]

    up = [
        nn.Upsample(scale_factor=2.0),
        *layers(64, 4 * width),
        nn.Upsample(scale_factor=2.0),
        *layers(4 * width, width),
    ]
    down = [
        *layers(3, width),
        nn.AvgPool2d(2),
        *layers(width, 4 * width),
        nn.AvgPool2d(2),
        *layers(4 * width, 4 * width),
    ]
    model = nn.ModuleDict(
        {
            "generator": nn.Sequential(*up, nn.Conv2d(width, 3, 3, padding=1)),
            "critic": nn.Sequential(*down, nn.Flatten(), nn.Linear(4 * width * 64, 1)),
        }
    ).to(sizes.device)
    first, second = adamw(model["generator"]), adamw(model["critic"])

    def step(number: int) -> None:
        real = normal(sizes, number, batch, 3, 32, 32)
        fake = model["generator"](normal(sizes, number, batch, 64, 8, 8))
        between = ((real + fake.detach()) / 2).requires_grad_()
        (slope,) = torch.autograd.grad(model["critic"](between).sum(), between, create_graph=True)
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        optimized(model["critic"](fake.detach()).mean() - model["critic"](real).mean() + 10 * penalty, second)
        optimized(-model["critic"](fake).mean(), first)

    return Program(model, lambda count, on_step: steps_of(step, on_step, count))


def volumes(sizes: Sizes) -> Program:
    """A U-net of volumes, in autocast to fp16 with a `GradScaler`."""
    width = sizes.pick(32, 4)

    class Pair(nn.Sequential):
        def __init__(self, inputs: int, outputs: int) -> None:
            convolutions = [nn.Conv3d(inputs, outputs, 3, padding=1), nn.Conv3d(outputs, outputs, 3, padding=1)]
            super().__init__(*(each for one in convolutions for each in (one, nn.InstanceNorm3d(outputs), nn.ReLU())))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList(Pair(a, b) for a, b in ((1, width), (width, 2 * width), (2 * width, 4 * width)))
            self.up = nn.ModuleList(Pair(3 * a, a) for a in (2 * width, width))
            self.last = nn.Conv3d(width, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            kept = []
            for part in self.down:
                x = part(F.max_pool3d(x, 2) if kept else x)
                kept.append(x)
            kept.pop()
            for part in self.up:
                x = part(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1))
            return self.last(x)

    model = Net().to(sizes.device)
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler(sizes.device.type, enabled=not sizes.is_small)
    batch, side = sizes.pick(2, 1), sizes.pick(96, 16)

    def step(number: int) -> None:
        with nullcontext() if sizes.is_small else torch.autocast(sizes.device.type, torch.float16):
            made = model(normal(sizes, number, batch, 1, side, side, side))
            loss = F.cross_entropy(made, ids(sizes, number, batch, side, side, side, vocabulary=3))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    blocks: list[nn.Module] = [*model.down, *model.up]
    return Program(model, lambda count, on_step: steps_of(step, on_step, count), blocks)
