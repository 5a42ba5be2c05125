"""A switcher's models by name: called, opened for a block, sent to sleep, woken and reported."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tenure
import tenure.torch

from .switching import CHUNK, MIB, answer_of, computing, language, large, opened, recurrent, resnet, slow_down


def free_bytes() -> int:
    torch.cuda.synchronize()
    free: int = torch.cuda.mem_get_info()[0]
    return free


@contextmanager
def in_order(order: list[str], name: str) -> Iterator[None]:
    order.append(f"{name} begins")
    yield
    order.append(f"{name} ends")


def test_a_model_is_called_by_its_name() -> None:
    switcher = opened(2)
    module, x = resnet()
    with computing():
        expected = answer_of(module.eval(), x)
        switcher.add("model", module)
        assert torch.equal(switcher("model", x.cuda()).cpu(), expected)
        with pytest.raises(tenure.Error, match="there is no model 'other': there are model"):
            switcher("other", x.cuda())
        switcher.add("named", Named())
        assert switcher("named", name=x.cuda()).shape == x.shape


class Named(nn.Module):
    """Has an input with the name of one of the switcher's own parameters."""

    def forward(self, name: Tensor) -> Tensor:
        return name


@pytest.mark.parametrize("make", [resnet, language, recurrent, large])
def test_a_block_has_the_module_and_all_of_its_weights(make: Any) -> None:
    switcher = opened(2)
    module, x = make()
    module.eval()
    with computing():
        expected = answer_of(module, x)
        values = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        model = switcher.add("model", module)
        for turn in range(5):
            with switcher.use("model") as used:
                assert used is module and model.is_resident
                for name, tensor in used.state_dict().items():
                    assert tensor.is_cuda and torch.equal(tensor.cpu(), values[name]), name
                del tensor
                assert torch.equal(used(x.cuda()).cpu(), expected)
                # Calls and blocks of the same model nest.
                assert torch.equal(model(x.cuda()).cpu(), expected)
                with switcher.use("model") as within:
                    assert torch.equal(within(x.cuda()).cpu(), expected)
                assert len(list(used.parameters())) == len(list(within.parameters()))
            with pytest.raises(tenure.Error, match="only while the model is called"):
                list(module.parameters())
            assert torch.equal(model(x.cuda()).cpu(), expected)
            if turn % 2:
                model.evict()
    assert switcher.report().per_model[0].calls == 10


def test_a_block_waits_for_all_weights_on_the_device_and_calls_on_other_streams_do_too() -> None:
    slow_down()
    switcher = opened(4)
    module, x = large(layers=2, rows=16 * MIB // 8)
    model = switcher.add("model", module)
    x = x.cuda()
    model(x)
    model(x)
    model.evict()
    torch.cuda.synchronize()
    other = torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(other)
    with switcher.use("model"):
        assert not torch.cuda.current_stream().query(), "it has to wait for the copy"
        with torch.cuda.stream(other):
            model(x)
            end.record(other)
    torch.cuda.synchronize()
    copy_ms = switcher.report().per_model[0].last_copy_ms
    assert copy_ms is not None and begin.elapsed_time(end) > 0.9 * copy_ms > 10, "this one, too"


def test_a_block_that_fails_leaves_everything_right() -> None:
    switcher = opened(2)
    module, x = resnet()
    with computing():
        expected = answer_of(module.eval(), x)
        model = switcher.add("model", module)
        for _ in range(4):
            with pytest.raises(KeyError, match="mine"), switcher.use("model"), switcher.use("model"):
                raise KeyError("mine")
            with pytest.raises(tenure.Error, match="only while the model is called"):
                list(module.parameters())
            assert not torch.is_inference_mode_enabled()
            assert torch.equal(model(x.cuda()).cpu(), expected)
            model.evict()


def test_a_block_that_writes_to_weights_is_told_and_they_are_as_they_were() -> None:
    switcher = opened(2)
    module, x = resnet()
    with computing():
        expected = answer_of(module.eval(), x)
        model = switcher.add("model", module)
        for _ in range(3):
            with pytest.raises(tenure.Error, match="were written to"), switcher.use("model") as used:
                used[1].norm.weight.zero_()
            assert torch.equal(model(x.cuda()).cpu(), expected)


def test_a_block_that_replaces_weights_is_told_and_they_are_as_they_were() -> None:
    switcher = opened(2)
    module, x = resnet()
    with computing():
        expected = answer_of(module.eval(), x)
        model = switcher.add("model", module)
        for _ in range(3):
            with pytest.raises(tenure.Error, match="has replaced"), switcher.use("model") as used:
                used.half()
            with pytest.raises(tenure.Error, match="has replaced"), switcher.use("model") as used:
                used[0].weight = nn.Parameter(torch.zeros(1).cuda())
            switcher.sleep()
            assert torch.equal(model(x.cuda()).cpu(), expected)
    assert switcher.report().image_bytes == switcher.report().per_model[0].bytes


def test_a_held_tensor_of_weights_that_were_written_and_replaced_keeps_their_model_there() -> None:
    switcher = opened(1)
    module, x = large(layers=2)
    with computing():
        expected = answer_of(module, x)
        model = switcher.add("model", module)
        with pytest.raises(tenure.Error, match="has replaced"), switcher.use("model") as used:
            held = used.layers[0].weight
            used.layers[1].weight.zero_()
            used.layers[1].weight = nn.Parameter(torch.zeros(1).cuda())
        with pytest.raises(tenure.Error, match="a view of a tensor of 'model' is held"):
            switcher.sleep()
        with pytest.raises(tenure.Error, match="were written to"):
            model(x.cuda())
        assert held.shape == (MIB, 1) and model.is_resident
        del held
        with pytest.raises(tenure.Error, match="were written to"):
            model(x.cuda())
        for _ in range(3):
            assert torch.equal(model(x.cuda()).cpu(), expected)
            switcher.sleep()


def test_a_weight_that_a_block_lets_out_keeps_its_model_there() -> None:
    switcher = opened(1)
    switcher.add("model", nn.Linear(2, 2))
    with switcher.use("model") as used:
        weight = used.weight
    with pytest.raises(tenure.Error, match="weight of 'model' is held outside of its module"):
        switcher.sleep()
    del weight
    switcher.sleep()


def test_a_model_in_use_cannot_leave_and_others_find_no_room() -> None:
    switcher = opened(1)
    switcher.add("used", nn.Linear(2, 2))
    switcher.add("other", nn.Linear(2, 2))
    with switcher.use("used"):
        for attempt in (
            switcher["used"].evict,
            switcher.sleep,
            lambda: switcher.sleep("used"),
            lambda: switcher.remove("used"),
            lambda: switcher.wake("other"),
        ):
            with pytest.raises(tenure.Error, match="is being called|evict other models first"):
                attempt()
    switcher.wake("other")
    assert not switcher["used"].is_resident


def test_other_threads_wait_until_a_block_ends() -> None:
    switcher = opened(2)
    module, x = large()
    model = switcher.add("model", module)
    x = x.cuda()
    order: list[str] = []
    begun = threading.Event()

    def call() -> None:
        begun.set()
        model(x)
        order.append("called")

    thread = threading.Thread(target=call)
    with switcher.use("model"), in_order(order, "block"):
        thread.start()
        begun.wait()
        for _ in range(5):
            model(x)
    thread.join()
    assert order == ["block begins", "block ends", "called"]


def test_sleeping_models_leave_nothing_on_the_device_and_wake_without_a_call() -> None:
    with opened(4) as switcher, computing():
        made = {name: large(seed) for seed, name in enumerate(["first", "second"])}
        expected = {name: answer_of(module, x) for name, (module, x) in made.items()}
        torch.cuda.empty_cache()
        before = free_bytes()
        for name, (module, _) in made.items():
            switcher.add(name, module, pinned=name == "first")
        x = torch.zeros(1).cuda()
        for name in made:
            for _ in range(3):
                switcher(name, x)
        copied = switcher.report().copied_bytes
        del x
        torch.cuda.empty_cache()
        assert before - free_bytes() >= 4 * CHUNK
        switcher.sleep("second")
        assert 2 * CHUNK <= before - free_bytes() < 3 * CHUNK
        switcher.sleep()
        report = switcher.report()
        assert [model.resident_bytes for model in report.per_model] == [0, 0]
        assert (report.taken_bytes, report.copied_bytes) == (0, copied)
        # The difference is below the sizes to which the driver and PyTorch round.
        assert before - free_bytes() < 4 * MIB
        switcher.wake()
        assert switcher.report().resident_models == 2 and switcher.report().copied_bytes > copied
        for name, (_, x) in made.items():
            assert torch.equal(switcher(name, x.cuda()).cpu(), expected[name])


def test_models_that_were_used_last_wake_first_and_none_leaves() -> None:
    switcher = opened(2)
    x = torch.zeros(1).cuda()
    for number in range(4):
        switcher.add(str(number), Named() if number == 3 else large(number, layers=2)[0])
    for name in "2103":
        switcher(name, x)
    switcher.sleep()
    switcher.wake("2")
    switcher.wake()
    there = [model.name for model in switcher.report().per_model if model.resident_bytes]
    assert there == ["0", "2"]
    switcher.wake()
    assert there == [model.name for model in switcher.report().per_model if model.resident_bytes]
    with pytest.raises(tenure.Error, match="there is no model 'none'"):
        switcher.wake("none")
    with pytest.raises(tenure.Error, match="there is no model 'none'"):
        switcher.sleep("none")


def test_a_report_has_the_figures_of_each_model() -> None:
    slow_down()
    switcher = opened(4)
    module, x = large(layers=2, rows=16 * MIB // 8)
    for name, model in (("large", module), ("small", nn.Linear(3, 3))):
        switcher.add(name, model)
    before = switcher.report().per_model
    assert [(model.name, model.bytes, model.resident_bytes, model.calls) for model in before] == [
        ("large", 16 * MIB, 0, 0),
        # Tensors begin at a multiple of 256 bytes.
        ("small", 256 + 12, 0, 0),
    ]
    assert before[0].last_copy_ms is None and before[0].mean_copy_ms is None
    for _ in range(3):
        switcher("large", x.cuda())
    switcher["large"].evict()
    with switcher.use("large"):
        pass
    report = switcher.report()
    now = report.per_model[0]
    assert (now.calls, now.resident_bytes) == (4, CHUNK)
    assert now.switches == report.switches >= 3
    assert now.last_copy_ms is not None and now.last_copy_ms > 10
    assert now.mean_copy_ms == pytest.approx(report.copy_ms / report.switches)
    assert now.groups == len(switcher["large"].group_bytes)
    assert report.per_model[1] == before[1]
    assert (report.taken_bytes, report.peak_bytes) == (CHUNK, CHUNK)


@pytest.mark.parametrize("as_what", ["tensor", "tuple", "dictionary", "third"])
def test_a_model_that_is_added_with_an_example_is_learned_at_its_first_call(as_what: str) -> None:
    switcher = opened(4)
    module, x = large(layers=3)
    with computing():
        expected = answer_of(module, x)
        if as_what == "third":
            model = switcher.add("model", module, x)
        else:
            example = {"tensor": x, "tuple": (x,), "dictionary": {"start": x}}[as_what]
            model = switcher.add("model", module, example=example)
        assert model._is_learned and model.is_resident
        model.evict()
        assert torch.equal(model(x.cuda()).cpu(), expected)
    with pytest.raises(TypeError, match="given twice"):
        switcher.add("other", nn.Identity(), x, example=x)  # type: ignore[call-overload]


@pytest.mark.parametrize("make", [resnet, recurrent])
def test_an_example_that_fails_leaves_the_module_as_it_was(make: Any) -> None:
    switcher = opened(2)
    module, x = make()
    module.eval()
    expected = module(x)
    with computing():
        with pytest.raises(RuntimeError):
            switcher.add("model", module, example=x[:, :0])
        assert torch.equal(module(x), expected)
        assert (switcher.report().image_bytes, switcher.report().resident_bytes, switcher._models) == (0, 0, {})
        expected = answer_of(module, x)
        assert torch.equal(switcher.add("model", module, example=x)(x.cuda()).cpu(), expected)
