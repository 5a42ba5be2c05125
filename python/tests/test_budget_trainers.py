# mypy: disallow-subclassing-any=False
"""Patterns of trainers within a budget: what public trainers do with a model, in a few lines of plain PyTorch."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")

import tenure  # noqa: E402
import tenure.torch  # noqa: E402

from torch import Tensor, nn  # noqa: E402  isort: skip
from torch.nn import functional as F  # noqa: E402  isort: skip
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402  isort: skip

MIB = 1 << 20
WIDTH = 128
#: Rows of an activation of one MiB, the least that a budget moves.
ROWS_OF_A_MIB = MIB // (4 * WIDTH)
STEPS = 5

pytestmark = pytest.mark.usefixtures("one_thread")

#: A function that trains a model. Its iterator makes a step each time, and yields results of the step.
Trainer = Callable[[Any], Iterator[Any]]


def trained(make: Callable[[], Any], trainer: Trainer, budget_of: Any = None) -> tuple[list[bytes], list[Any]]:
    """Trains a model for some steps. Returns the results and the weights, to the bit, and the budget's reports."""
    torch.manual_seed(0)
    model = make()
    bits, reports = [], []
    if budget_of is None:
        bits += [result.detach().numpy().tobytes() for result in islice(trainer(model), STEPS)]
    else:
        with budget_of(model) as budget:
            for result in islice(trainer(model), STEPS):
                bits.append(result.detach().numpy().tobytes())
                reports.append(budget.report())
    weights = [each.detach() for each in model.parameters() if each.untyped_storage().size()]
    return bits + [each.numpy().tobytes() for each in weights], reports


def check(make: Callable[[], Any], trainer: Trainer, folder: Path, memory: Any = "70%", spill: int = 512 * MIB) -> Any:
    """Trains within a budget: the bits are those of plain PyTorch, and a plan moves tensors. Returns the reports."""

    def budget_of(model: Any) -> Any:
        return tenure.torch.budget(model, memory, spill=folder, spill_bytes=spill)

    plain, _ = trained(make, trainer)
    found, reports = trained(make, trainer, budget_of)
    assert found == plain
    assert reports[-1].is_planned and has_moved(reports[-1]), reports
    return reports


def has_moved(report: Any) -> bool:
    return report is not None and report.spilled_bytes + report.recomputed_bytes > 0


def stack(layers: int = 6) -> Any:
    return nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))


def batch(number: int, mib: int = 2) -> Tensor:
    return torch.linspace(-1, 1, mib * ROWS_OF_A_MIB * WIDTH).add(number).sin().view(-1, WIDTH)


def sgd(model: Any) -> Any:
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)


def stepped(optimizer: Any, loss: Tensor) -> Tensor:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def simply(model: Any) -> Iterator[Tensor]:
    optimizer = sgd(model)
    for number in count():
        yield stepped(optimizer, model(batch(number)).square().mean())


def distilled(student: Any) -> Iterator[Tensor]:
    teacher, optimizer = copy.deepcopy(student).eval(), sgd(student)
    for number in count():
        with torch.no_grad():
            wanted = teacher(batch(number)).softmax(-1)
        yield stepped(optimizer, F.kl_div(student(batch(number)).log_softmax(-1), wanted, reduction="batchmean"))


def preferred(policy: Any) -> Iterator[Tensor]:
    """Two passes of the policy and two of a reference for each loss."""
    reference, optimizer = copy.deepcopy(policy).requires_grad_(False), sgd(policy)
    for number in count():
        chosen, rejected = batch(number), batch(-number - 1)
        margin = policy(chosen).mean(-1) - policy(rejected).mean(-1)
        with torch.no_grad():
            expected = reference(chosen).mean(-1) - reference(rejected).mean(-1)
        yield stepped(optimizer, -F.logsigmoid(margin - expected).mean())


def averaged(model: Any) -> Iterator[Tensor]:
    average, optimizer = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)), sgd(model)
    for number in count():
        stepped(optimizer, model(batch(number)).square().mean())
        average.update_parameters(model)
        with torch.no_grad():
            yield average(batch(number, 1))


def scaled(model: Any) -> Iterator[Tensor]:
    """The scaler leaves out the step of a loss that is not finite, so weights stay as they were."""
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2), sgd(model)
    for number in count():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch(number)).float().square().mean() * (torch.inf if number == 3 else 1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield torch.tensor([loss.item(), scaler.get_scale()])


def generated(model: Any) -> Iterator[Tensor]:
    """Rows are sampled one by one between steps, and then trained on."""
    optimizer = sgd(model)
    for number in count():
        rows = batch(number, 1)[:8]
        with torch.no_grad():
            for _ in range(8):
                rows = torch.cat([rows, model.eval()(rows)[-1:]])
        yield stepped(optimizer, model.train()(batch(number) * rows.mean()).square().mean())


def accumulated(model: Any) -> Iterator[Tensor]:
    """Each gradient is the sum of those of batches that grow."""
    optimizer = sgd(model)
    for number in count():
        losses = []
        for mib in (1, 2, 3):
            losses.append(model(batch(number, mib)).square().mean())
            losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
        yield torch.stack(losses)


def in_parts(model: Any) -> Iterator[Tensor]:
    """The program calls parts of the model, one of them twice, and never the model."""
    optimizer, middle = sgd(model), len(model) // 2
    below, above = model[:middle], model[middle:]
    for number in count():
        x = below(batch(number))
        yield stepped(optimizer, (above(x).square() + above(x.flip(0)).sin()).mean())


class Adapted(nn.Module):
    """A frozen layer with a trained adapter of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 8, bias=False), nn.Linear(8, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.frozen(x) + self.up(F.dropout(self.down(x), 0.1)))


@pytest.mark.parametrize("trainer", [distilled, preferred, averaged, scaled, generated, accumulated, in_parts])
def test_a_trainer_within_a_budget_computes_the_same_bits(trainer: Trainer, tmp_path: Path) -> None:
    check(stack, trainer, tmp_path)


def test_adapters_of_a_frozen_model_learn_the_same(tmp_path: Path) -> None:
    check(lambda: nn.Sequential(*(Adapted() for _ in range(6))), simply, tmp_path)


def test_labels_that_are_saved_with_an_offset_come_back(tmp_path: Path) -> None:
    def shifted(model: Any) -> Iterator[Tensor]:
        optimizer = sgd(model)
        for number in count():
            labels = torch.arange((2 * ROWS_OF_A_MIB + 1) * WIDTH).mul(number + 7).remainder(WIDTH).view(-1, WIDTH)
            logits = model(F.pad(batch(number), (0, 0, 1, 0)))
            yield stepped(optimizer, -logits[:-1].log_softmax(-1).gather(1, labels[1:]).mean())

    check(stack, shifted, tmp_path, "50%")


class Sharded(nn.Module):
    """A layer whose weights are gathered before each of its passes, and emptied after it, as ZeRO does."""

    def __init__(self, frees_storages: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.frees_storages = frees_storages
        for part in (self.norm, self.up, self.down):
            whole = {each: each.detach().clone() for each in part.parameters()}
            part.register_forward_pre_hook(lambda *_, whole=whole: self.gather(whole))
            part.register_forward_hook(lambda *_, whole=whole: self.empty(whole))
            part.register_full_backward_pre_hook(lambda *_, whole=whole: self.gather(whole))
            part.register_full_backward_hook(lambda *_, whole=whole: self.empty(whole))
            self.empty(whole)

    def gather(self, whole: dict[Any, Tensor]) -> None:
        for parameter, values in whole.items():
            if self.frees_storages:
                parameter.untyped_storage().resize_(values.nbytes)
                parameter.data.copy_(values)
            else:
                parameter.data = values.clone()

    def empty(self, whole: dict[Any, Tensor]) -> None:
        for parameter in whole:
            if self.frees_storages:
                parameter.untyped_storage().resize_(0)
            else:
                parameter.data = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)))).sin()


@pytest.mark.parametrize("frees_storages", [False, True])
def test_weights_that_are_emptied_between_passes_are_whole_where_they_are_used(
    frees_storages: bool, tmp_path: Path
) -> None:
    def gradients(model: Any) -> Iterator[Tensor]:
        for number in count():
            model.zero_grad()
            model(batch(number).requires_grad_()).square().mean().backward()
            yield torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    def make() -> Any:
        return nn.Sequential(*(Sharded(frees_storages) for _ in range(4)))

    # Most of what leaves has no room on the disk.
    reports = check(make, gradients, tmp_path, "60%", 4 * MIB)
    assert reports[-1].recomputed_bytes > 0, reports


class Cached(nn.Module):
    """Attention to all keys and values of the calls since the cache was emptied."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.cache: list[Tensor] = []

    def forward(self, x: Tensor) -> Any:
        query, *new = (part.sin() for part in self.mix(x).chunk(3, -1))
        self.cache = [torch.cat(pair, 1) for pair in zip(self.cache, new, strict=True)] if self.cache else new
        return x + F.scaled_dot_product_attention(query, *self.cache)


@pytest.mark.parametrize("is_detached", [False, True])
def test_a_cache_that_grows_within_a_step_is_as_without(is_detached: bool, tmp_path: Path) -> None:
    def chunked(model: Any) -> Iterator[Tensor]:
        optimizer = sgd(model)
        for number in count():
            losses = []
            for chunk in range(3):
                losses.append(model(batch(number + chunk, 1).view(64, -1, WIDTH)).square().mean())
                for layer in model:
                    layer.cache = [each.detach() if is_detached else each for each in layer.cache]
            stepped(optimizer, torch.stack(losses).sum())
            yield torch.cat([each.flatten() for layer in model for each in layer.cache])
            for layer in model:
                layer.cache.clear()

    check(lambda: nn.Sequential(*(Cached() for _ in range(3))), chunked, tmp_path)


class Masked(nn.Module):
    """A layer of temporaries that only autograd holds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.rand(x.shape) > 0.1
        return (x.float() * mask + ~mask * self.weight).bfloat16()


def test_temporaries_that_only_autograd_holds_come_back_as_sizes_change(tmp_path: Path) -> None:
    def of_other_sizes(model: Any) -> Iterator[Tensor]:
        optimizer = sgd(model)
        for number in count():
            torch.manual_seed(number)
            yield stepped(optimizer, model(batch(number, 8)[: -64 * (number % 4) or None]).float().square().mean())

    check(lambda: nn.Sequential(*(Masked() for _ in range(8))), of_other_sizes, tmp_path, "60%")


def test_passes_without_backward_leave_nothing_behind(tmp_path: Path) -> None:
    """Autograd keeps results of these operations, so a hook that holds them holds their graph."""

    class Results(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Any:
            return self.last((self.first(x).exp().sigmoid().softmax(-1).tanh() + 1).sqrt()).sigmoid().exp()

    def with_passes_between(model: Any) -> Iterator[Tensor]:
        for number in count():
            yield stepped(sgd(model), model(batch(number)).square().mean())
            for part in range(12):
                loss = model(batch(part)).square().mean()
                if part % 4 == 0:
                    loss.backward(retain_graph=True)
                del loss
            model.zero_grad()
            alive.append(sum(issubclass(type(each), Tensor) for each in gc.get_objects()))

    alive: list[int] = []
    gc.collect()
    gc.disable()
    try:
        # There is no room for the saved tensors of three passes.
        check(Results, with_passes_between, tmp_path, 24 * MIB, 16 * MIB)
    finally:
        gc.enable()
    within = alive[len(alive) // 2 :]
    assert within[1] == within[-1], alive


class Logits(nn.Module):
    """A model whose logits are larger than all else."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = stack(2), nn.Linear(WIDTH, 16 * WIDTH, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.layers(x))


def large_layers() -> Any:
    """Returns a model of weights that are larger than its saved tensors."""
    return nn.Sequential(*(nn.Linear(8 * WIDTH if number else WIDTH, 8 * WIDTH) for number in range(4)))


def by_cross_entropy(model: Any) -> Iterator[Tensor]:
    optimizer = sgd(model)
    for number in count():
        logits = model(batch(number))
        yield stepped(optimizer, F.cross_entropy(logits, torch.arange(len(logits)).remainder(WIDTH)))


def by_foreach_adam(model: Any) -> Iterator[Tensor]:
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    for number in count():
        yield stepped(optimizer, model(batch(number, 1)[:512]).square().mean())


@pytest.mark.parametrize(
    ("make", "trainer", "words"),
    [
        (Logits, by_cross_entropy, "LogSoftmaxBackward0"),
        (large_layers, by_foreach_adam, "as in the optimizer's step"),
    ],
)
def test_a_peak_that_no_move_lowers_is_named_and_nothing_moves(
    make: Any, trainer: Trainer, words: str, tmp_path: Path
) -> None:
    def within(memory: str) -> Any:
        reports = []
        torch.manual_seed(0)
        model = make()
        with tenure.torch.budget(model, memory, spill=tmp_path, spill_bytes=64 * MIB) as budget:
            for _ in islice(trainer(model), STEPS):
                reports.append(budget.report())
        return reports

    reports = within("100%")
    assert reports[-1].is_planned and not any(map(has_moved, reports)), reports
    gc.collect()
    with pytest.raises(tenure.Error, match=f"too small: it takes .* most of them .*{words}"):
        within("80%")


def test_a_compiled_loss_of_compiled_layers_is_as_without(tmp_path: Path) -> None:
    def compiled(model: Any) -> Iterator[Tensor]:
        torch._dynamo.reset()
        optimizer = sgd(model)
        layers = [torch.compile(layer, backend="aot_eager") for layer in model]
        loss_of = torch.compile(lambda x: x.square().mean(), backend="aot_eager")
        for number in count():
            x = batch(number)
            for layer in layers:
                x = layer(x)
            yield stepped(optimizer, loss_of(x))

    check(lambda: nn.Sequential(*(stack(2) for _ in range(3))), compiled, tmp_path)


def test_a_codec_that_rounds_leaves_integers_alone(tmp_path: Path) -> None:
    def looked_up(model: Any) -> Iterator[Tensor]:
        optimizer = sgd(model)
        for number in count():
            indices = torch.arange(6 * ROWS_OF_A_MIB * WIDTH).mul(2**10 + 2 * number + 1).remainder(WIDTH**2)
            values = [model.weight.flatten()[part] for part in indices.chunk(3)]
            yield stepped(optimizer, torch.stack([each.mean() for each in values]).sum())

    def budget_of(model: Any) -> Any:
        budget = tenure.torch.budget(model, 96 * MIB, spill=tmp_path, spill_bytes=64 * MIB, codec="fp16")
        budget._native.move_all()
        return budget

    found, reports = trained(lambda: nn.Linear(WIDTH, WIDTH), looked_up, budget_of)
    assert found == trained(lambda: nn.Linear(WIDTH, WIDTH), looked_up)[0]
    assert reports[0].codec == "fp16" and reports[0].spilled_bytes > 0, reports
