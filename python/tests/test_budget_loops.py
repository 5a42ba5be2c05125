# mypy: disallow-subclassing-any=False
"""Training loops of libraries within a budget: the same losses, a plan, and no more bytes than the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tenure.torch  # noqa: E402

from torch import nn  # noqa: E402  isort: skip

MIB = 1 << 20
STEPS = 6


pytestmark = pytest.mark.usefixtures("deterministic")


@dataclass
class Run:
    """The results of a training loop, to the bit, and the budget's report of its last step."""

    losses: list[str] = field(default_factory=list)
    state: list[bytes] = field(default_factory=list)
    report: tenure.torch.StepReport | None = field(default=None, compare=False)
    budget_bytes: int | None = field(default=None, compare=False)
    plain_bytes: int | None = field(default=None, compare=False)


#: A function that trains a model and appends its losses to a list.
Loop = Callable[[Any, list[str]], None]


def trained(make: Callable[[], Any], loop: Loop, memory: int | str | None, folder: Path) -> Run:
    torch.manual_seed(0)
    model, run = make(), Run()
    torch.manual_seed(1)
    if memory is None:
        loop(model, run.losses)
    else:
        with tenure.torch.budget(model, memory, spill=folder, spill_bytes=512 * MIB) as budget:
            loop(model, run.losses)
            run.report, run.budget_bytes, run.plain_bytes = budget.report(), budget.bytes, budget.plain_bytes
    run.state = [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()]
    return run


def check(make: Callable[[], Any], loop: Loop, folder: Path, share: int = 90) -> None:
    """Trains within a share of what a plain step takes, then within as many bytes from the first step on."""
    plain = trained(make, loop, None, folder)
    shared = trained(make, loop, f"{share}%", folder)
    assert shared == plain
    assert plain.losses
    assert shared.report is not None, "no step was seen"
    assert shared.report.is_planned, shared
    assert shared.plain_bytes is not None
    # The buffers and the slack come on top.
    assert shared.budget_bytes == shared.plain_bytes * share // 100 + (5 << 20), shared
    assert shared.report.spilled_bytes + shared.report.recomputed_bytes > 0, shared
    bytes_ = trained(make, loop, shared.budget_bytes, folder)
    assert bytes_ == plain
    for run in (shared, bytes_):
        assert run.report is not None and run.report.is_planned, run.report
        assert run.report.peak_bytes is None or run.report.peak_bytes <= (run.budget_bytes or 0), run.report


def tokens(number: int, rows: int = 32, length: int = 64) -> Any:
    return torch.arange(rows * length).mul(number * 7 + 3).remainder(61).view(rows, length)


def llama(layers: int = 2) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config)


def deep_llama() -> Any:
    """Returns a Llama whose checkpoints take more than a budget on the CPU reserves for copies to disks."""
    return llama(16)


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    return transformers.BertForMaskedLM(config)


def lora() -> Any:
    peft = pytest.importorskip("peft")
    model = llama()
    model.enable_input_require_grads()
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))


def trainer_loop(folder: Path, **options: Any) -> Loop:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    rows = [{"input_ids": row, "labels": row} for number in range(STEPS * 2) for row in tokens(number)]

    def loop(model: Any, losses: list[str]) -> None:
        arguments = transformers.TrainingArguments(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=32,
            max_steps=STEPS,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=3,
            dataloader_pin_memory=False,
            **options,
        )
        trainer = transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            eval_dataset=rows[:32] if "eval_strategy" in options else None,
        )
        trainer.train()
        losses += [float(each["loss"]).hex() for each in trainer.state.log_history if "loss" in each]

    return loop


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (bert, {}),
        (llama, {}),
        pytest.param(llama, {"gradient_accumulation_steps": 2}, marks=pytest.mark.soak),
        (deep_llama, {"gradient_checkpointing": True}),
        pytest.param(bert, {"eval_strategy": "steps", "eval_steps": 2}, marks=pytest.mark.soak),
        (bert, {"bf16": True}),
        pytest.param(lora, {}, marks=pytest.mark.soak),
        (lora, {"gradient_accumulation_steps": 2}),
    ],
    ids=["bert", "llama", "accumulated", "checkpointed", "evaluated", "bf16", "lora", "lora accumulated"],
)
def test_transformers_trainer(make: Callable[[], Any], options: dict[str, Any], tmp_path: Path) -> None:
    check(make, trainer_loop(tmp_path, **options), tmp_path, 98 if options.get("gradient_checkpointing") else 90)


def net() -> Any:
    return nn.Sequential(
        *(layer for _ in range(4) for layer in (nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128), nn.LayerNorm(128)))
    )


def rows(number: int) -> Any:
    return torch.arange(4096 * 128, dtype=torch.float32).add(number).sin().view(4096, 128)


@pytest.mark.parametrize(
    ("is_automatic", "is_accumulated"),
    [
        (True, False),
        (False, True),
        pytest.param(True, True, marks=pytest.mark.soak),
        pytest.param(False, False, marks=pytest.mark.soak),
    ],
    ids=["automatic", "manual accumulated", "automatic accumulated", "manual"],
)
def test_lightning(is_automatic: bool, is_accumulated: bool, tmp_path: Path) -> None:
    """Lightning calls ``training_step``, and nothing calls the module itself."""
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.automatic_optimization = is_automatic
            self.losses: list[str] = []

        def training_step(self, batch: Any, number: int) -> Any:
            loss = self.net(batch).square().mean() + self.net(batch.flip(0)).sin().mean()
            self.losses.append(loss.item().hex())
            if self.automatic_optimization:
                return loss
            self.manual_backward(loss)
            if not is_accumulated or number % 2:
                optimizer = self.optimizers()
                optimizer.step()
                optimizer.zero_grad()
            return None

        def validation_step(self, batch: Any, number: int) -> None:
            self.net(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def loop(model: Any, losses: list[str]) -> None:
        steps = STEPS * 2 if is_accumulated else STEPS
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accumulate_grad_batches=2 if is_accumulated and is_automatic else 1,
            default_root_dir=str(tmp_path),
            num_sanity_val_steps=1,
        )
        loader = torch.utils.data.DataLoader([rows(number) for number in range(steps)], batch_size=None)
        validation = torch.utils.data.DataLoader([rows(99)], batch_size=None)
        trainer.fit(model, loader, validation)
        losses += model.losses

    check(Module, loop, tmp_path)


def test_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")

    def loop(model: Any, losses: list[str]) -> None:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        made = torch.optim.AdamW(model.parameters())
        loader = torch.utils.data.DataLoader([rows(number) for number in range(STEPS * 2)], batch_size=None)
        prepared, optimizer, batches = accelerator.prepare(model, made, loader)
        for batch in batches:
            with accelerator.accumulate(prepared):
                loss = prepared(batch).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item().hex())

    check(net, loop, tmp_path)


def test_autocast_with_two_backward_passes(tmp_path: Path) -> None:
    def loop(model: Any, losses: list[str]) -> None:
        optimizer = torch.optim.AdamW(model.parameters())
        for number in range(STEPS):
            optimizer.zero_grad()
            for part in range(2):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(rows(number + part)).float().sin().square().mean()
                loss.backward()
                losses.append(loss.item().hex())
            optimizer.step()

    check(net, loop, tmp_path)


def images_loop(size: int) -> Loop:
    def loop(model: Any, losses: list[str]) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for number in range(STEPS):
            images = torch.arange(8 * 3 * size * size, dtype=torch.float32).add(number).sin().view(8, 3, size, size)
            loss = nn.functional.cross_entropy(model(images), torch.arange(8))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())

    return loop


def test_torchvision(tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision").models
    check(lambda: models.mobilenet_v3_small(num_classes=10), images_loop(224), tmp_path, 90)


def test_timm(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")

    def make() -> Any:
        return timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=224, depth=4, embed_dim=192)

    check(make, images_loop(224), tmp_path, 90)
