"""Budgets of processes that start children, or that train together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")

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
