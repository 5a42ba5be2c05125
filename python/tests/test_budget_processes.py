# mypy: disallow-subclassing-any=False
"""Budgets of processes that start children, or that train together."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")

import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import tenure.torch  # noqa: E402

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("one_thread")


def linear() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(512, 512)


def test_batches_of_forked_workers_are_trained_on(tmp_path: Path) -> None:
    model, plain = linear(), linear()
    batches = torch.utils.data.DataLoader(torch.arange(2048 * 512.0).sin().view(-1, 512), 512, num_workers=2)
    for batch in batches:
        plain(batch).exp().sin().sum().backward()
    with tenure.torch.budget(model, 48 * MIB, spill=tmp_path, spill_bytes=512 * MIB) as budget:
        budget._native.move_all()
        for batch in batches:
            model(batch).exp().sin().sum().backward()
        assert budget.report() is not None
    assert torch.equal(model.weight.grad, plain.weight.grad)


DISTRIBUTED = """
import sys
import torch, tenure.torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=int(sys.argv[2]), world_size=2)
def gradients(is_budgeted):
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.GELU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    budget = tenure.torch.budget(model, 40 << 20, spill=sys.argv[1]) if is_budgeted else None
    if budget is not None:
        budget._native.move_all()
    def steps():
        for step in range(5):
            model.zero_grad()
            model(torch.arange(1024 * 512.0).add(dist.get_rank() + step).sin().view(-1, 512)).square().mean().backward()
            if budget is not None:
                report = budget.report()
                assert report.fetched_bytes > 0 or report.is_planned, report
        # In the second, buckets are made anew.
        assert budget is None or report.is_planned, report
    if budget is None:
        steps()
    else:
        with budget:
            steps()
    return [parameter.grad for parameter in model.parameters()]
assert all(map(torch.equal, gradients(True), gradients(False)))
dist.destroy_process_group()
"""


def test_processes_train_together(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DISTRIBUTED, str(tmp_path)]
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said


class Block(nn.Module):
    """A residual block. Autograd saves 3.25 MiB for it."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.silu(F.gelu(self.widen(x)).tanh()))


class Branches(nn.Module):
    """A model that uses one of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right, self.last = Block(), blocks(2), blocks(2), Block()

    def forward(self, x: Tensor, is_left: bool) -> Any:
        return self.last((self.left if is_left else self.right)(self.first(x)))


def blocks(count: int = 4) -> Any:
    return nn.Sequential(*(Block() for _ in range(count)))


def batch(number: int) -> Tensor:
    return torch.arange(512 * 128.0).add(number).sin().view(-1, 128)


class Program:
    """A model that one process of two trains."""

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        self.model = model
        self.optimizer = optimizer or torch.optim.AdamW(model.parameters())

    def passes(self, number: int) -> list[Tensor]:
        """Runs a step's forward and backward passes, and returns the losses."""
        return [self.backward(self.model(batch(2 * number + dist.get_rank())))]

    def backward(self, result: Tensor) -> Tensor:
        loss = result.square().mean()
        loss.backward()
        return loss.detach()

    def step(self, number: int) -> list[bytes]:
        """Trains a step, and returns the bytes of losses, gradients and parameters."""
        self.optimizer.zero_grad()
        results = self.passes(number)
        self.optimizer.step()
        for group in self.optimizer.param_groups:
            results += group["params"]
            results += [each.grad for each in group["params"] if each.grad is not None]
        return [digest(each) for each in results]

    def marked(self, budget: Any) -> AbstractContextManager[None]:
        """Returns the mark of a step, for a program in which the budget would find others."""
        return nullcontext()


def digest(tensor: Any) -> bytes:
    part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return hashlib.sha256(part.detach().numpy().tobytes()).digest()


class Accumulating(Program):
    """Adds up the gradients of two batches, and exchanges them after the second."""

    def __init__(self) -> None:
        super().__init__(DistributedDataParallel(blocks()))

    def passes(self, number: int) -> list[Tensor]:
        with self.model.no_sync():
            first = super().passes(2 * number)
        return first + super().passes(2 * number + 1)


class Choosing(Program):
    """Leaves the parameters of one branch unused, in each step of the other one."""

    def __init__(self) -> None:
        super().__init__(DistributedDataParallel(Branches(), find_unused_parameters=True))

    def passes(self, number: int) -> list[Tensor]:
        return [self.backward(self.model(batch(number), number % 2 == 0))]


class Accelerated(Program):
    """Adds up the gradients of two batches, as Accelerate does it."""

    def __init__(self) -> None:
        accelerate = pytest.importorskip("accelerate")
        # Forgets the one process that an earlier test may have set up before this one was forked.
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        self.accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        torch.set_num_threads(1)
        model = blocks()
        super().__init__(*self.accelerator.prepare(model, torch.optim.AdamW(model.parameters())))
        assert isinstance(self.model, DistributedDataParallel)

    def passes(self, number: int) -> list[Tensor]:
        losses: list[Tensor] = []
        for micro in range(2):
            with self.accelerator.accumulate(self.model):
                loss = self.model(batch(2 * number + micro)).square().mean()
                self.accelerator.backward(loss)
                losses.append(loss.detach())
        return losses


def fully_sharded(reshard_after_forward: bool) -> Program:
    """Gathers the parameters of each block before its forward pass, and also before its backward pass if resharded."""
    from torch.distributed.fsdp import fully_shard

    model, mesh = blocks(), dist.init_device_mesh("cpu", (2,))
    for part in (*model, model):
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard_after_forward)
    return Program(model)


def emptied() -> Program:
    """Has parameters without elements outside of their layers' passes, as ZeRO-3 does."""
    model, rank = blocks(), dist.get_rank()
    shards = {each: nn.Parameter(each.detach().view(-1).chunk(2)[rank].clone()) for each in model.parameters()}
    shapes = {each: each.shape for each in shards}

    def gather(layer: Any, *_: Any) -> None:
        for each in layer.parameters():
            parts = [torch.empty_like(shards[each]) for _ in range(2)]
            dist.all_gather(parts, shards[each].detach())
            each.data = torch.cat(parts).view(shapes[each])

    def empty(layer: Any, *_: Any) -> None:
        for each in layer.parameters():
            each.data = torch.empty(0)

    def scatter(parameter: Any) -> None:
        dist.all_reduce(parameter.grad)
        shards[parameter].grad = parameter.grad.view(-1).chunk(2)[rank].clone()
        parameter.grad = None
        parameter.data = torch.empty(0)

    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(gather)
            layer.register_forward_hook(empty)
            layer.register_full_backward_pre_hook(gather)
            empty(layer)
    for each in shards:
        each.register_post_accumulate_grad_hook(scatter)
    return Program(model, torch.optim.AdamW(shards.values()))


class Split(Program):
    """Has half of each layer, and adds up the results of both halves asynchronously."""

    def __init__(self) -> None:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        super().__init__(blocks())
        mesh = dist.init_device_mesh("cpu", (2,))
        for block in self.model:
            parallelize_module(block, mesh, {"widen": ColwiseParallel(), "narrow": RowwiseParallel()})
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def passes(self, number: int) -> list[Tensor]:
        # Half of a block's results are large enough to move for twice as many rows.
        return [self.backward(self.model(torch.cat([batch(2 * number), batch(2 * number + 1)])))]


class Pipelined(Program):
    """Has one half of the blocks, through which a batch goes in parts."""

    def __init__(self, schedule: str, is_marked: bool = False) -> None:
        from torch.distributed import pipelining

        super().__init__(blocks(3))
        self.is_marked = is_marked
        stage = pipelining.PipelineStage(self.model, dist.get_rank(), 2, torch.device("cpu"))
        self.schedule = getattr(pipelining, schedule)(stage, n_microbatches=4, loss_fn=F.mse_loss)

    def passes(self, number: int) -> list[Tensor]:
        whole = torch.cat([batch(4 * number + part) for part in range(4)])
        losses: list[Tensor] = []
        if dist.get_rank() == 0:
            self.schedule.step(whole)
        else:
            self.schedule.step(target=whole.cos(), losses=losses)
        return [each.detach() for each in losses]

    def marked(self, budget: Any) -> AbstractContextManager[None]:
        return budget.step() if self.is_marked else nullcontext()


PROGRAMS: dict[str, Callable[[], Program]] = {
    "DDP of a static graph": lambda: Program(DistributedDataParallel(blocks(), static_graph=True)),
    "DDP with views of buckets": lambda: Program(DistributedDataParallel(blocks(), gradient_as_bucket_view=True)),
    "DDP without an exchange in each pass": Accumulating,
    "DDP with unused parameters": Choosing,
    "FSDP2": lambda: fully_sharded(True),
    "FSDP2 without a second gathering": lambda: fully_sharded(False),
    "ZeRO-3": emptied,
    "tensor parallelism": Split,
    "GPipe": lambda: Pipelined("ScheduleGPipe"),
    # Each part's backward pass would end a step.
    "1F1B": lambda: Pipelined("Schedule1F1B", is_marked=True),
    "Accelerate": Accelerated,
}


def train_within_a_budget(rank: int, name: str, folder: Path) -> None:
    """Trains a program without a budget, then within one, as one process of two."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="0")
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, timedelta(minutes=5), rank=rank, world_size=2)
    torch.manual_seed(0)
    plain = PROGRAMS[name]()
    expected = [plain.step(number) for number in range(6)]
    del plain
    gc.collect()
    torch.manual_seed(0)
    program = PROGRAMS[name]()
    with tenure.torch.budget(program.model, "75%", spill=folder, spill_bytes=256 * MIB) as budget:
        for number, bits in enumerate(expected):
            with program.marked(budget):
                assert program.step(number) == bits, f"step {number}: {budget.report()}"
            report = budget.report()
    assert report is not None and report.is_planned and report.fetched_bytes + report.recomputed_bytes > 0, report
    dist.destroy_process_group()


@pytest.mark.forks
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_two_processes_is_as_without(name: str, tmp_path: Path) -> None:
    # Optimizers and DDP import it, which takes seconds: here it is imported once, and not by each process.
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401

    if name == "Accelerate":
        pytest.importorskip("accelerate")
    torch.multiprocessing.start_processes(train_within_a_budget, (name, tmp_path), nprocs=2, start_method="fork")


FORKED = """
import os, sys
import torch, tenure.torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*[layer for _ in range(10) for layer in (torch.nn.Linear(512, 512), torch.nn.GELU())])
def peaks():
    with tenure.torch.budget(model, "100%") as budget:
        for _ in range(6):
            model.zero_grad(set_to_none=True)
            model(torch.ones(2048, 512)).square().mean().backward()
            yield budget.report().peak_bytes
before = list(peaks())
child = os.fork()
if child == 0:
    inherited = list(peaks())
    grandchild = os.fork()
    if grandchild == 0:
        os._exit(int(list(peaks()) != inherited))
    # The first step has the gradients of the parent beside its own.
    is_same = inherited[1:] == before[1:] and os.waitpid(grandchild, 0)[1] == 0
    print(before, inherited, flush=True)
    os._exit(int(not is_same))
sys.exit(os.waitpid(child, 0)[1] != 0)
"""


def test_a_child_that_is_forked_after_a_budget_has_one_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
