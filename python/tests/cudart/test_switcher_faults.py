"""Faults under a switcher: answers stay right, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tenure
import tenure.torch

from .switching import (
    CHUNK,
    MIB,
    Large,
    Step,
    answer_of,
    computing,
    interrupted,
    large,
    opened,
    resnet,
    save,
    signalled,
)


class Failing(Large):
    """Fails in the middle of its call, if it is told to."""

    fails = False

    def forward(self, start: Tensor) -> Tensor:
        first = self.layers[-1].weight[:2].flatten().clone()
        if self.fails:
            raise ValueError(f"in the middle, after {first.numel()}")
        return super().forward(start)


def test_an_exception_in_the_forward_leaves_this_model_and_others_right() -> None:
    with opened(4) as switcher, computing():
        failing, x = Failing(1), torch.zeros(1)
        other, _ = large(2)
        expected = {"failing": answer_of(failing, x), "other": answer_of(other, x)}
        switcher.add("failing", failing)
        switcher.add("other", other)
        host_bytes = switcher.report().image_bytes
        for turn in range(6):
            failing.fails = True
            with pytest.raises(ValueError, match="in the middle"):
                switcher("failing", x.cuda())
            failing.fails = False
            with pytest.raises(tenure.Error, match="only while the model is called"):
                list(failing.parameters())
            for name in expected if turn % 2 else reversed(expected):
                assert torch.equal(switcher(name, x.cuda()).cpu(), expected[name]), (turn, name)
            if turn % 3 == 0:
                switcher.sleep()
                assert switcher.report().taken_bytes == 0
        assert switcher.report().image_bytes == host_bytes
    report = switcher.report()
    assert (report.image_bytes, report.taken_bytes) == (0, 0)


def test_a_device_that_is_full_of_others_memory_is_told_and_tried_again() -> None:
    os.environ["TENURE_CUDART_CAPACITY"] = str(8 * CHUNK)
    switcher = opened(8)
    module, x = large(layers=4, rows=CHUNK // 4)
    switcher.add("model", module)
    switcher.add("small", large(layers=1, rows=16)[0])
    switcher.wake("small")
    # One of the model's four chunks has room.
    held = torch.empty(5 * CHUNK + CHUNK // 2, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        with pytest.raises(tenure.OutOfMemoryError, match="take a smaller device_bytes"):
            switcher("model", x.cuda())
        report = switcher.report()
        assert (report.taken_bytes, report.resident_bytes) == (CHUNK, CHUNK)
        assert switcher("small", x.cuda()).shape == (5,)
    del held
    torch.cuda.empty_cache()
    assert switcher("model", x.cuda()).shape == (17,)


def test_a_file_that_is_damaged_after_it_was_added_is_told_until_it_is_there_again(tmp_path: Path) -> None:
    tenure.torch.install()
    switcher = tenure.torch.Switcher(device_bytes=8 * CHUNK, host_bytes=20 * MIB)
    x = torch.zeros(1)
    with computing():
        modules = [Large(seed, layers=4) for seed in range(2)]
        expected = [answer_of(module, x) for module in modules]
        paths = [tmp_path / f"{seed}.safetensors" for seed in range(2)]
        for seed, module in enumerate(modules):
            save(paths[seed], dict(module.state_dict()))
            switcher.add(str(seed), module, paths[seed])
        whole = paths[0].read_bytes()
        for _ in range(3):
            os.truncate(paths[0], len(whole) // 2)
            with pytest.raises(tenure.Error, match="'?0'?: its weights cannot be read"):
                switcher("0", x.cuda())
            assert torch.equal(switcher("1", x.cuda()).cpu(), expected[1])
            paths[0].write_bytes(whole)
            assert torch.equal(switcher("0", x.cuda()).cpu(), expected[0])
            switcher.sleep()
            assert torch.equal(switcher("1", x.cuda()).cpu(), expected[1])
            switcher.sleep()
            assert switcher.report().image_bytes <= 20 * MIB


@pytest.mark.parametrize("chunk_bytes", [2 * MIB, 6 * MIB])
def test_weights_never_exceed_the_budget_which_need_not_be_whole_chunks(chunk_bytes: int) -> None:
    tenure.torch.install()
    budget = 31 * MIB + 4096
    switcher = tenure.torch.Switcher(device_bytes=budget, host_bytes=1 << 30, chunk_bytes=chunk_bytes)
    order = random.Random(1)
    with computing():
        made = [Large(seed, layers=1 + seed) for seed in range(5)]
        expected = [answer_of(module, torch.zeros(1)) for module in made]
        for number, module in enumerate(made):
            switcher.add(str(number), module)
        torch.cuda.synchronize()
        for _ in range(40):
            number = order.randrange(5)
            assert torch.equal(switcher(str(number), torch.zeros(1).cuda()).cpu(), expected[number])
            report = switcher.report()
            assert report.resident_bytes <= report.taken_bytes <= report.peak_bytes <= budget
            whole = -(-report.per_model[number].bytes // chunk_bytes) * chunk_bytes
            assert report.per_model[number].resident_bytes == whole
    assert switcher.report().peak_bytes == budget // chunk_bytes * chunk_bytes


@pytest.mark.parametrize("chunk_bytes", [0, MIB, 3 * MIB, 1 << 50])
def test_chunks_are_multiples_of_two_mib(chunk_bytes: int) -> None:
    with pytest.raises(ValueError, match="chunk_bytes"):
        tenure.torch.Switcher(device_bytes=1 << 30, host_bytes=1 << 30, chunk_bytes=chunk_bytes)


def test_headers_that_are_none_are_refused(tmp_path: Path) -> None:
    switcher = opened(2)
    path = tmp_path / "weights.safetensors"

    def refused(content: bytes, said: str) -> None:
        path.write_bytes(content)
        with pytest.raises(tenure.Error, match=said):
            switcher.add("refused", nn.Linear(2, 3), path)
        assert (switcher.report().image_bytes, switcher.report().models) == (0, 0)

    def of(header: Any) -> bytes:
        text = header if isinstance(header, bytes) else repr(header).replace("'", '"').encode()
        return len(text).to_bytes(8, "little") + text + bytes(64)

    good = {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}
    for header in (b"garbage", b"\xff\xfe{}", b"[]", b"7", {"weight": []}, {"weight": {"dtype": "F32"}}):
        refused(of(header), "damaged")
    for change in ({"data_offsets": [24, 0]}, {"data_offsets": [0, 1 << 40]}, {"shape": [3, -2]}, {"shape": "x"}):
        refused(of({"weight": good | change}), "damaged")
    refused(of({"weight": good}), "no tensor 'bias'")


def test_a_model_that_was_refused_can_be_added_with_more_room() -> None:
    module, x = resnet()
    module.eval()
    with opened(1) as switcher, computing():
        expected = answer_of(module, x)
        small = tenure.torch.Switcher(device_bytes=CHUNK, host_bytes=1024)
        with pytest.raises(tenure.Error, match="allow more, or unload models"):
            small.add("model", module)
        assert (small.report().image_bytes, small.report().taken_bytes) == (0, 0)
        switcher.add("model", module)
        assert torch.equal(switcher("model", x.cuda()).cpu(), expected)


class Models:
    """Two models in files, in a switcher whose device and host memory have no room for both."""

    def __init__(self, folder: Path) -> None:
        tenure.torch.install()
        self.switcher = tenure.torch.Switcher(
            device_bytes=6 * MIB, host_bytes=6 * MIB, chunk_bytes=2 * MIB, graphs=True
        )
        self.x = torch.zeros(1).cuda()
        self.modules = {name: Large(seed, layers=2, rows=MIB // 2) for seed, name in enumerate(("one", "other"))}
        self.expected = {name: answer_of(module, torch.zeros(1)) for name, module in self.modules.items()}
        for name, module in self.modules.items():
            path = folder / f"{name}.safetensors"
            save(path, dict(module.state_dict()))
            self.switcher.add(name, module, path)

    def check(self) -> None:
        """Checks that answers are right, that weights cannot be read outside of calls, and that budgets are kept."""
        for name, expected in self.expected.items():
            with pytest.raises(tenure.Error, match="only while the model is called"):
                list(self.modules[name].parameters())
            assert torch.equal(self.switcher(name, self.x).cpu(), expected), name
        report = self.switcher.report()
        assert report.resident_bytes <= report.taken_bytes <= report.peak_bytes <= 6 * MIB
        assert report.image_bytes <= 6 * MIB

    def check_all_leave(self) -> None:
        self.switcher.sleep()
        assert self.switcher.report().taken_bytes == 0
        self.switcher.close()
        assert self.switcher.report().image_bytes == 0


def call(models: Models) -> None:
    models.switcher("one", models.x)


def use(models: Models) -> None:
    with models.switcher.use("one") as module:
        module(models.x)


def sleep_and_wake(models: Models) -> None:
    models.switcher.sleep()
    models.switcher.wake("one")


@pytest.mark.parametrize("work", [call, use, sleep_and_wake])
def test_ctrl_c_at_any_step_of_a_switch_leaves_this_model_and_others_right(
    tmp_path: Path, work: Callable[[Models], None]
) -> None:
    with computing():
        models = Models(tmp_path)
        for _ in range(3):
            models.check()
        steps = 0
        while interrupted(steps, lambda: work(models)):
            models.check()
            steps += 1
        assert steps > 20
        models.check_all_leave()


@pytest.mark.parametrize("is_in_file", [False, True])
def test_ctrl_c_at_any_step_while_a_model_is_learned_loses_nothing(
    tmp_path: Path, is_in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The path is not absolute, so that no order is kept and each one is learned anew.
    monkeypatch.setenv("TENURE_CACHE", "nowhere")
    with computing():
        models = Models(tmp_path)
        switcher, x = models.switcher, models.x
        expected = answer_of(large(2, layers=2, rows=1 << 10)[0], torch.zeros(1))
        path = tmp_path / "learned.safetensors"
        save(path, dict(large(2, layers=2, rows=1 << 10)[0].state_dict()))
        steps, is_over = 0, False
        while not is_over:
            model = switcher.add("learned", large(2, layers=2, rows=1 << 10)[0], path if is_in_file else None)
            model(x)
            is_over = not interrupted(steps, lambda: switcher("learned", x))
            for _ in range(2):
                assert torch.equal(model(x).cpu(), expected), steps
            assert model._is_learned
            switcher.remove("learned")
            steps += 1
        assert steps > 50
        models.check()
        models.check_all_leave()


@pytest.mark.parametrize("has_example", [False, True])
def test_ctrl_c_at_any_step_while_a_model_is_added_leaves_the_module_as_it_was(has_example: bool) -> None:
    with opened(2) as switcher, computing():
        module, x = large(layers=2, rows=1 << 10)
        expected = answer_of(module, x)
        steps = 0
        while interrupted(steps, lambda: switcher.add("added", module, example=x if has_example else None)):
            report = switcher.report()
            if report.models:
                # Ctrl-C came after the model was added.
                break
            assert (report.image_bytes, report.resident_bytes) == (0, 0), steps
            assert torch.equal(answer_of(module, x), expected)
            steps += 1
        assert steps > 20
        assert torch.equal(switcher("added", x.cuda()).cpu(), expected)


def test_a_model_whose_removal_ctrl_c_ends_is_there_or_gone() -> None:
    with opened(2) as switcher, computing():
        x = torch.zeros(1).cuda()
        steps, is_over = 0, False
        while not is_over:
            module = large(layers=2, rows=1 << 10)[0]
            expected = answer_of(module, torch.zeros(1))
            model = switcher.add("removed", module)
            model(x)
            is_over = not interrupted(steps, lambda: switcher.remove("removed"))
            if switcher.report().models:
                assert torch.equal(model(x).cpu(), expected), steps
                switcher.remove("removed")
            report = switcher.report()
            assert (report.models, report.image_bytes, report.resident_bytes) == (0, 0, 0), steps
            steps += 1
        assert steps > 5


def test_signals_that_come_while_images_are_read_harm_nothing(tmp_path: Path) -> None:
    with computing():
        models = Models(tmp_path)
        came: list[int] = []
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
        # This thread blocks the signal: the threads that read, which were started before, get it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        is_over = threading.Event()

        def press() -> None:
            while not is_over.is_set():
                os.kill(os.getpid(), signal.SIGINT)

        presser = threading.Thread(target=press)
        presser.start()
        try:
            for _ in range(10):
                models.check()
        finally:
            is_over.set()
            presser.join()
        assert came


def files_in_use(folder: Path) -> set[str]:
    """Returns the files of this process that other processes could find in a folder or in shared memory."""
    mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    opened = {os.readlink(link.path) for link in os.scandir("/proc/self/fd") if os.path.islink(link.path)}
    return {path for path in mapped | opened if path.startswith(("/dev/shm/", f"{folder}/"))}


@pytest.mark.parametrize("moment", [("c_call", "load"), ("c_return", "load"), ("c_call", "wait")])
def test_a_process_that_is_killed_in_a_switch_leaves_nothing_behind(tmp_path: Path, moment: tuple[str, str]) -> None:
    (tmp_path / "temporary").mkdir()
    reader, writer = os.pipe()
    killed = os.fork()
    if killed == 0:
        os.environ["TMPDIR"] = str(tmp_path / "temporary")

        def is_now(step: Step) -> bool:
            if step[1:] != moment:
                return False
            os.write(writer, "\n".join(files_in_use(tmp_path)).encode())
            return True

        with computing(), signalled(signal.SIGKILL, is_now):
            Models(tmp_path).check()
        os._exit(1)
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == -signal.SIGKILL
    with open(reader) as said:
        used = said.read().split("\n")
    assert {path for path in used if path.startswith("/dev/shm/") and os.path.exists(path)} == set()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["one.safetensors", "other.safetensors", "temporary"]
    with computing():
        models = Models(tmp_path)
        models.check()
        models.check_all_leave()
