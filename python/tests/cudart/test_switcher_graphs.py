"""CUDA graphs of a switcher's models. The simulated GPU's kernels compute nothing, but its copies move bytes."""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tenure
import tenure.torch
from tenure.torch.switching import graphs

from .switching import CHUNK, MIB, OnHost, computing, interrupted, large, opened, resnet, slow_down


class Copies(nn.Module):
    """Returns copies of its input and of parts of its weights, which are a few MiB each."""

    def __init__(self, seed: int = 0, layers: int = 3, rows: int = MIB) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(1, rows, bias=False) for _ in range(layers))
        for layer in self.layers:
            layer.weight = nn.Parameter(torch.rand(rows, 1, generator=generator))
        self.runs: list[None] = []
        self.eval()

    def forward(self, x: Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        RUNS[0] += 1
        parts = [part for layer in reversed(self.layers) for part in (layer.weight[:2], layer.weight[-2:])]
        return {"input": x.clone(), "weights": [part.clone() for part in parts], "scale": scale}


#: The number of runs of the Python code of `Copies`: a global, which the check for captures does not see.
RUNS = [0]


def check(model: tenure.torch.SwitchedModel, seed: int, x: Tensor, **kwargs: Any) -> None:
    answer = model(x.cuda(), **kwargs)
    plain = Copies(seed)
    parts = [part for layer in reversed(plain.layers) for part in (layer.weight[:2], layer.weight[-2:])]
    assert torch.equal(answer["input"].cpu(), x) and answer["input"].stride() == x.stride()
    assert all(torch.equal(got.cpu(), part) for got, part in zip(answer["weights"], parts, strict=True))
    assert answer["scale"] == kwargs.get("scale", 1.0)


def graphs_of(model: tenure.torch.SwitchedModel) -> int:
    return model._report().graphs


def refusal_of(model: tenure.torch.SwitchedModel) -> str:
    return model._report().graph_refusal or ""


def beside(chunks: int, **kwargs: Any) -> tenure.torch.Switcher:
    return tenure.torch.Switcher(
        "cuda:0", device_bytes=chunks * CHUNK, host_bytes=1 << 30, **{"graphs": True, **kwargs}
    )


@pytest.mark.parametrize("open_switcher", [opened, beside])
def test_a_call_is_captured_when_it_was_seen_and_replays_run_no_python(open_switcher: Any) -> None:
    with open_switcher(2) as switcher:
        model = switcher.add("model", Copies())
        for call in range(3):
            assert graphs_of(model) == 0
            check(model, 0, torch.rand(2, 3) + call)
        assert (graphs_of(model), refusal_of(model)) == (1, "")
        RUNS[0] = 0
        for call in range(5):
            check(model, 0, torch.rand(2, 3) + call)
        assert RUNS == [0] and model._report().calls == 8


@pytest.mark.parametrize("open_switcher", [opened, beside])
def test_graphs_stay_right_when_models_leave_and_come_back(open_switcher: Any) -> None:
    with open_switcher(2) as switcher:
        models = [switcher.add(str(seed), Copies(seed)) for seed in range(4)]
        order = random.Random(1)
        for _ in range(40):
            seed = order.randrange(4)
            check(models[seed], seed, torch.rand(3))
        assert [graphs_of(model) for model in models] == [1] * 4
        assert switcher.report().switches > 15
        RUNS[0] = 0
        for seed in (0, 1, 2, 3, 0, 1):
            check(models[seed], seed, torch.rand(3))
        assert RUNS == [0]


def test_a_replay_waits_on_the_device_for_the_load_before_it() -> None:
    slow_down()
    with opened(3) as switcher:
        model = switcher.add("model", Copies(layers=2, rows=16 * MIB // 4))
        x = torch.rand(2).cuda()
        for _ in range(3):
            model(x)
        assert graphs_of(model) == 1
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for is_there in (False, True):
            if not is_there:
                model.evict()
                torch.cuda.synchronize()
            start.record()
            model(x)
            end.record()
            assert is_there or not end.query(), "the host has waited"
            torch.cuda.synchronize()
            copy_ms = switcher.report().per_model[0].last_copy_ms
            assert copy_ms is not None and copy_ms > 40
            assert (start.elapsed_time(end) > 0.95 * copy_ms) == (not is_there)


def test_replays_on_several_streams_come_one_after_the_other() -> None:
    slow_down()
    with opened(3) as switcher:
        model = switcher.add("model", Copies())
        x = torch.rand(2).cuda()
        for _ in range(3):
            model(x)
        torch.cuda.synchronize()
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(first):
            torch.cuda._sleep(100_000_000)
            model(x)
        with torch.cuda.stream(second):
            model(x)
            assert not second.query()


def test_inputs_of_every_layout_are_copied_to_static_ones() -> None:
    with opened(2) as switcher:
        model = switcher.add("model", Copies())
        base = torch.arange(64.0)
        for _ in range(4):
            # The input is at an unaligned address, for which there is a graph of its own.
            answer = model(base.cuda()[1:5])
            assert torch.equal(answer["input"].cpu(), base[1:5])
            check(model, 0, base[:4] * 2)
            check(model, 0, base[:4] * 3, scale=0.0)
            check(model, 0, base[:4] * 4, scale=-0.0)
            model(torch.empty(0, device="cuda"))
        assert graphs_of(model) == 5


def test_eight_shapes_have_graphs_and_those_used_longest_ago_go() -> None:
    with opened(2) as switcher:
        model = switcher.add("model", Copies())
        for _ in range(3):
            model(torch.rand(1).cuda())
        for size in range(1, 12):
            for _ in range(2):
                model(torch.rand(size).cuda())
        assert graphs_of(model) == 8
        RUNS[0] = 0
        model(torch.rand(11).cuda())
        # Shapes that are called once do not replace a graph.
        for size in range(20, 40):
            model(torch.rand(size).cuda())
        assert RUNS == [20] and graphs_of(model) == 8
        model(torch.rand(4).cuda())
        assert RUNS == [20]
        model(torch.rand(1).cuda())
        assert RUNS == [21]
        # Graphs that others replace are not captured over and over.
        for _ in range(20):
            for size in range(1, 12):
                model(torch.rand(size).cuda())
        RUNS[0] = 0
        for size in range(1, 12):
            model(torch.rand(size).cuda())
        assert RUNS == [3] and graphs_of(model) == 8
        assert "more shapes" in refusal_of(model)


class Does(nn.Module):
    """Does something else beside copying its input."""

    def __init__(self, does: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.does = does
        self.count = 0
        self.cache: dict[str, Any] = {"seen": []}
        self.kept = torch.zeros(4, device="cuda")
        self.eval()

    def forward(self, x: Any, *others: Any) -> Any:
        assert self.linear.weight.is_cuda
        made = self.does(self, x)
        return x.clone() if made is None else made


def _set(module: Any, x: Any) -> None:
    module.count += 1


def _size(module: Any, x: Any) -> None:
    # The simulated GPU's own kernels would leave the number of elements as it is in memory, and gigabytes be allocated.
    with OnHost():
        assert x.nonzero().shape[0] <= x.numel()


REFUSED: dict[str, tuple[Any, str]] = {
    "a value": (lambda module, x: None if x.sum().item() > 1e30 else None, "reads values of the device"),
    "a condition": (lambda module, x: None if x.any() else x.clone(), "reads values of the device"),
    "a copy to the host": (lambda module, x: x.cpu() is None or None, "reads values of the device"),
    "a size": (_size, "reads values of the device"),
    "a tensor of the host": (lambda module, x: x[torch.tensor([0, 1])], "tensors on the host"),
    "a copy from the host": (lambda module, x: x.copy_(torch.ones(4)), "tensors on the host"),
    "a new tensor": (lambda module, x: torch.tensor([1.0], device="cuda"), "from the host"),
    "random numbers": (lambda module, x: torch.rand(4, device="cuda"), "random numbers"),
    "dropout": (lambda module, x: nn.functional.dropout(x, 0.5), "random numbers"),
    "the host's random numbers": (lambda module, x: random.random() > 2 or None, "random numbers"),
    "a counter": (_set, "'count'"),
    "a list in a dictionary": (lambda module, x: module.cache["seen"].append(1), "'cache.seen'"),
    "its input": (lambda module, x: x.zero_() is None or None, "writes to a tensor"),
    "a tensor that it keeps": (lambda module, x: module.kept.add_(1) is None or None, "writes to a tensor"),
    "an object": (lambda module, x: [object()], "an answer is a object"),
    "a synchronization": (lambda module, x: torch.cuda.synchronize(), "StreamCapture"),
}


@pytest.mark.parametrize("open_switcher", [opened, beside])
def test_a_module_that_cannot_be_captured_is_computed_plainly(open_switcher: Any) -> None:
    with open_switcher(4) as switcher:
        other = switcher.add("other", Copies())
        for name, (does, reason) in REFUSED.items():
            model = switcher.add(name, Does(does))
            for _ in range(4):
                model(torch.rand(4).cuda())
            assert graphs_of(model) == 0
            assert reason in refusal_of(model), (name, refusal_of(model))
            switcher.remove(name)
            # Neither the random generator nor a capture is left changed.
            torch.rand(4, device="cuda")
            check(other, 0, torch.rand(7))
        assert graphs_of(other) == 1


def test_other_inputs_modes_hooks_and_training_are_computed_plainly() -> None:
    class Cache:
        pass

    with opened(2) as switcher:
        module = Does(lambda module, x: None)
        model, x = switcher.add("model", module), torch.rand(4).cuda()
        for _ in range(4):
            model(x, Cache())
        assert graphs_of(model) == 0 and "an input is a Cache" in refusal_of(model)
        module.train()
        model(x)
        model(x)
        assert graphs_of(model) == 0 and "training" in refusal_of(model)
        module.eval()
        called: list[None] = []
        hook = module.linear.register_forward_hook(lambda *_: called.append(None))
        model(x)
        model(x)
        assert graphs_of(model) == 0 and "hooks" in refusal_of(model)
        hook.remove()
        model(x)
        model(x)
        assert graphs_of(model) == 1
        with OnHost():
            model(x)
        assert "a mode of PyTorch's" in refusal_of(model)
        assert graphs_of(model) == 1


def test_attributes_that_a_program_changes_are_found() -> None:
    with opened(2) as switcher:
        module = Does(lambda module, x: {"count": module.count, "x": x.clone()})
        model, x = switcher.add("model", module), torch.rand(4).cuda()
        for _ in range(4):
            assert model(x)["count"] == 0
        assert graphs_of(model) == 1
        module.count = 5
        for _ in range(4):
            assert model(x)["count"] == 5
        assert graphs_of(model) == 1
        ran: list[None] = []
        module.register_forward_hook(lambda *_: ran.append(None))
        for _ in range(3):
            model(x)
        assert len(ran) == 3 and graphs_of(model) == 0


@pytest.mark.parametrize("open_switcher", [opened, beside])
def test_a_capture_that_fails_leaves_the_device_and_the_allocator_as_they_were(
    open_switcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capture itself fails, where the probe before it saw no reason to refuse."""
    monkeypatch.setattr(graphs.Probe, "_refuse", lambda *_: None)
    with open_switcher(4) as switcher:
        other = switcher.add("other", Copies())
        for name in ("a value", "a new tensor", "a synchronization", "a size"):
            model = switcher.add(name, Does(REFUSED[name][0]))
            for _ in range(4):
                model(torch.rand(4).cuda())
            assert graphs_of(model) == 0 and refusal_of(model), name
            assert not torch.cuda.is_current_stream_capturing()
            torch.cuda.synchronize()
            torch.rand(4, device="cuda")
            for _ in range(4):
                check(other, 0, torch.rand(1 + len(name)))
            switcher.remove(name)
        assert graphs_of(other) == 4, refusal_of(other)


def test_values_that_depend_on_no_input_may_be_read() -> None:
    def does(module: Any, x: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            return None
        weight = module.linear.weight.flatten()[0].clone()
        return {"x": x.clone(), "weight": weight.item(), "sign": 1 if weight else 0}

    with opened(2) as switcher:
        module = Does(does)
        weight = module.linear.weight.item()
        model = switcher.add("model", module)
        for _ in range(5):
            x = torch.rand(4)
            answer = model(x.cuda())
            assert torch.equal(answer["x"].cpu(), x)
            assert (answer["weight"], answer["sign"]) == (weight, 1)
        assert graphs_of(model) == 1
        assert not torch.cuda.is_current_stream_capturing()


def test_a_capture_within_a_capture_is_refused() -> None:
    """The outer module reads values, so that Python code does not know about the captures."""
    with opened(2) as switcher:
        inner = switcher.add("inner", Copies())

        def does(module: Any, x: Any) -> Any:
            assert module.linear.weight.flatten()[0].item() is not None
            return inner(x)

        model = switcher.add("outer", Does(does))
        for _ in range(5):
            x = torch.rand(4)
            assert torch.equal(model(x.cuda())["input"].cpu(), x)
        assert graphs_of(model) == 0 and graphs_of(inner) == 1, refusal_of(model)


def test_a_graph_that_answers_otherwise_is_not_used() -> None:
    with opened(2) as switcher:
        module = Does(lambda module, x: torch.cuda.is_current_stream_capturing())
        model = switcher.add("model", module)
        for _ in range(4):
            assert model(torch.rand(4).cuda()) is False
        assert "differ" in refusal_of(model)


def pool_bytes() -> int:
    segments = torch.cuda.memory_snapshot()
    return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) != (0, 0))


@pytest.mark.parametrize("open_switcher", [opened, beside])
@pytest.mark.parametrize("how", ["remove", "sleep", "close"])
def test_graphs_share_memory_which_goes_with_them(
    open_switcher: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Kernels compute nothing, so that answers are the bytes that their memory held before.
    monkeypatch.setattr(graphs, "_are_equal", lambda *_: True)

    class Needs(nn.Module):
        def __init__(self, mib: int) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 1)
            self.mib = mib
            self.eval()

        def forward(self, x: Tensor) -> Tensor:
            assert self.linear.weight.is_cuda
            return torch.empty(self.mib * MIB, dtype=torch.uint8, device="cuda")[:4].zero_().view(torch.float32) + x

    switcher = open_switcher(6)
    # Private pools that exist before the graphs.
    before = pool_bytes()
    for number, mib in enumerate((100, 60, 80)):
        model = switcher.add(str(number), Needs(mib))
        for _ in range(3):
            model(torch.rand(1).cuda())
        assert graphs_of(model) == 1, refusal_of(model)
    assert 100 * MIB <= pool_bytes() - before < 150 * MIB
    if how == "remove":
        for number in range(3):
            switcher.remove(str(number))
    elif how == "sleep":
        switcher.sleep()
    else:
        switcher.close()
    torch.cuda.empty_cache()
    assert pool_bytes() == before
    if how == "sleep":
        for _ in range(2):
            model(torch.rand(1).cuda())
        assert graphs_of(model) == 1


def test_graphs_are_switched_off_for_all_models_or_for_one() -> None:
    with opened(4, graphs=False) as off:
        for number, (graphs_too, expected) in enumerate([(None, 0), (True, 1), (False, 0)]):
            model = off.add(str(number), Copies(), graphs=graphs_too)
            for _ in range(4):
                check(model, 0, torch.rand(2))
            assert graphs_of(model) == expected


def test_blocks_replay_and_capture_nothing() -> None:
    with opened(2) as switcher:
        model = switcher.add("model", Copies())
        for _ in range(3):
            check(model, 0, torch.rand(2))
        RUNS[0] = 0
        with switcher.use("model"):
            for _ in range(4):
                model(torch.rand(2).cuda())
                model(torch.rand(5).cuda())
        assert RUNS == [8] and graphs_of(model) == 1
        check(model, 0, torch.rand(2))
        assert RUNS == [8]


def test_weights_can_still_leave_when_there_are_graphs() -> None:
    with opened(2) as switcher:
        model = switcher.add("model", Copies())
        refused = switcher.add("refused", Does(REFUSED["a value"][0]))
        for _ in range(4):
            check(model, 0, torch.rand(2))
            refused(torch.rand(4).cuda())
        model.evict()
        refused.evict()
        assert switcher.report().resident_bytes == 0


def test_errors_let_go_of_graphs() -> None:
    fails = []

    def does(module: Any, x: Any) -> None:
        if fails:
            raise ValueError("it fails")

    with opened(2) as switcher:
        model, x = switcher.add("model", Does(does)), torch.rand(4).cuda()
        for _ in range(3):
            model(x)
        assert graphs_of(model) == 1
        fails.append(True)
        with pytest.raises(ValueError, match="it fails"):
            model(torch.rand(5).cuda())
        assert graphs_of(model) == 0


def test_other_threads_use_the_device_while_a_model_is_captured() -> None:
    stops, failures = threading.Event(), []

    def uses() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                while not stops.is_set():
                    torch.zeros(100_000, device="cuda").clone()
                    torch.cuda.current_stream().synchronize()
        except BaseException as failure:
            failures.append(failure)

    with opened(2) as switcher:
        model = switcher.add("model", Copies())
        thread = threading.Thread(target=uses)
        thread.start()
        for size in range(1, 20):
            for _ in range(3):
                check(model, 0, torch.rand(size))
        stops.set()
        thread.join()
        assert not failures


def test_outputs_that_pytree_knows_keep_their_type() -> None:
    Pair = OrderedDict

    with opened(2) as switcher:
        model = switcher.add("model", Does(lambda module, x: Pair(first=(y := x.clone()), second=[y, 3, None])))
        x = torch.rand(4)
        for _ in range(5):
            answer = model(x.cuda())
            assert type(answer) is Pair and answer["second"][0] is answer["first"]
            assert torch.equal(answer["first"].cpu(), x)
        assert graphs_of(model) == 1


def test_under_a_mode_that_computes_on_the_host_answers_stay_right() -> None:
    with opened(2) as switcher, computing():
        for make in (resnet, large):
            module, x = make()
            model = switcher.add(make.__name__, module.eval())
            for _ in range(4):
                model(x.cuda())
            assert graphs_of(model) == 0


@pytest.mark.parametrize("is_captured", [False, True])
def test_ctrl_c_at_any_step_of_a_capture_or_a_replay_leaves_answers_right_and_graphs_possible(
    is_captured: bool,
) -> None:
    module, x = Copies(rows=1 << 10), torch.rand(2, 3)
    expected = module(x)["weights"]
    with opened(2) as switcher:
        model = switcher.add("model", module)
        inputs = x.cuda()
        for _ in range(3):
            model(inputs)
        steps, has_more = 0, True
        while has_more:
            if not is_captured:
                # Drops all graphs.
                switcher.sleep()
            has_more = interrupted(steps, lambda: model(inputs), ("graphs.py", "model.py"))
            for _ in range(2):
                made = model(inputs)["weights"]
                assert all(torch.equal(one.cpu(), other) for one, other in zip(made, expected, strict=True)), steps
            assert (graphs_of(model), refusal_of(model)) == (1, ""), steps
            steps += 1
        assert steps > 20


class Own(nn.LayerNorm):
    """A class that is no library's."""


def test_only_modules_of_libraries_are_captured_by_default() -> None:
    with opened(4, graphs=None) as switcher:
        models = [
            switcher.add("library's", nn.Sequential(nn.LayerNorm(4), nn.ReLU())),
            switcher.add("own", nn.Sequential(Own(4))),
            switcher.add("said", nn.Sequential(Own(4)), graphs=True),
        ]
        assert [model._graphs is not None for model in models] == [True, False, True]
        assert "Own may go by what graphs do not see" in refusal_of(models[1])
