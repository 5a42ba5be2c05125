"""More models than fit on a simulated GPU, with operations that compute on the host (`switching`)."""

from __future__ import annotations

import asyncio
import copy
import doctest
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tenure
import tenure.torch

from .switching import (
    CHUNK,
    MIB,
    Language,
    Large,
    OnHost,
    answer_of,
    computing,
    language,
    large,
    opened,
    recurrent,
    resnet,
    save,
    slow_down,
)


@pytest.mark.parametrize("make", [resnet, language, recurrent, large])
@pytest.mark.parametrize("grouping", ["searched", "per_layer", "whole"])
def test_answers_are_those_of_the_plain_module(make: Any, grouping: Any) -> None:
    switcher = opened(2, grouping=grouping)
    module, x = make()
    module.eval()
    with computing():
        expected = answer_of(module, x)
        model = switcher.add("model", module)
        for call in range(6):
            assert torch.equal(model(x.cuda()).cpu(), expected), call
            if call % 2:
                model.evict()
                assert not model.is_resident


def test_more_models_than_fit_answer_in_any_order() -> None:
    """Each model takes two of five chunks: a model of which one chunk is left needs only the other copied."""
    with opened(5) as switcher, computing():
        made = {f"model {seed}": large(seed) for seed in range(4)}
        expected = {name: answer_of(module, x) for name, (module, x) in made.items()}
        models = {name: switcher.add(name, module) for name, (module, _) in made.items()}
        order = random.Random(1)
        for _ in range(40):
            name = order.choice(list(models))
            answer = models[name](made[name][1].cuda())
            assert torch.equal(answer.cpu(), expected[name]), name
            assert models[name].is_resident
            report = switcher.report()
            assert report.resident_bytes <= report.device_bytes == 5 * CHUNK
        assert report.models == 4 and report.resident_models == 2
        assert report.switches > 10 and report.hits > 2, report
        assert report.copied_bytes > report.switches * CHUNK / 2


def test_streams_that_are_not_the_one_that_waited_wait() -> None:
    """The model's order was not learned, and it runs on new streams."""
    slow_down()
    switcher = opened(4)
    module, x = large(layers=2, rows=16 * MIB // 8)
    reached: list[bool] = []
    take = Large.forward

    def forward(self: Large, start: Tensor) -> Tensor:
        weights = [layer.weight for layer in self.layers]
        reached.append(torch.cuda.current_stream().query())
        del weights
        return take(self, start)

    Large.forward = forward  # type: ignore[method-assign]
    model = switcher.add("model", module)
    x = x.cuda()
    model(x)
    model(x)
    model.evict()
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            model(x)
    assert reached[2:] == [False, False], "both have to wait for the copy"


@pytest.mark.parametrize("grouping", ["per_layer", "whole", "searched"])
def test_the_device_waits_for_a_layer_and_no_more_and_the_host_does_not(grouping: Any) -> None:
    slow_down()
    switcher = opened(3, grouping=grouping)
    # Each layer takes 30 ms to copy.
    module, _ = large(layers=2, rows=16 * MIB // 4)
    model = switcher.add("model", Taker(module))
    model()
    model()
    model.evict()
    torch.cuda.synchronize()
    events = model()
    assert not events[1].query(), "the host has waited"
    torch.cuda.synchronize()
    copy_ms = switcher.report().copy_ms / switcher.report().switches
    first_ms, second_ms = (events[0].elapsed_time(event) for event in events[1:])
    assert copy_ms > 40 and second_ms > 0.95 * copy_ms, (copy_ms, second_ms)
    if grouping == "whole":
        assert first_ms > 0.95 * copy_ms, (first_ms, copy_ms)
    else:
        # The layer that is taken first is copied first, though it was made last.
        assert 0.45 * copy_ms < first_ms < 0.55 * copy_ms, (first_ms, copy_ms)


class Taker(nn.Module):
    """Takes its module's layers' weights from the last to the first, and records an event after each."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self) -> list[torch.cuda.Event]:
        events = [torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))]
        for layer in reversed(self.module.layers):
            assert layer.weight.is_cuda
            events.append(torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True)))
            # Computes for as long as a layer takes to copy.
            torch.cuda._sleep(30_000_000)
        return events


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("is_meta", [False, True])
def test_weights_come_from_files_and_come_again_when_the_host_has_no_room(
    tmp_path: Path, is_folder: bool, is_meta: bool
) -> None:
    with opened(2) as whole, computing():
        module, x = language()
        module.eval()
        expected = answer_of(module, x)
        state = {name: tensor for name, tensor in module.state_dict().items() if name != "head.weight"}
        names = sorted(state)
        files = [names[::2], names[1::2]] if is_folder else [names]
        for number, part in enumerate(files):
            save(tmp_path / f"{number}.safetensors", {name: state[name] for name in part})
        path = tmp_path if is_folder else tmp_path / "0.safetensors"
        bytes_of_all = sum(tensor.nbytes for tensor in state.values())
        whole.close()
        # The host has room for one image, and not for two.
        switcher = tenure.torch.Switcher(device_bytes=2 * CHUNK, host_bytes=bytes_of_all * 3 // 2)
        others = []
        for name in ("one", "other"):
            other = Language().eval()
            if is_meta:
                positions = other.positions
                other = other.to("meta")
                other.register_buffer("positions", positions, persistent=False)
                other.head.weight = other.embed.weight
            others.append(switcher.add(name, other, path))
        for call in range(8):
            other = others[call % 2]
            assert torch.equal(other(x.cuda()).cpu(), expected), call
            other.evict()
            switcher._native.trim()
        assert 0 < switcher.report().image_bytes < 2 * bytes_of_all


def test_an_image_that_is_still_copied_from_makes_room_for_the_next(tmp_path: Path) -> None:
    slow_down()
    tenure.torch.install()
    switcher = tenure.torch.Switcher(device_bytes=4 * CHUNK, host_bytes=3 * CHUNK)
    models = []
    for seed in range(2):
        module = Taker(large(seed, layers=2, rows=16 * MIB // 4)[0])
        save(tmp_path / "weights.safetensors", {name: tensor for name, tensor in module.state_dict().items()})
        (tmp_path / "weights.safetensors").rename(tmp_path / f"{seed}.safetensors")
        models.append(switcher.add(str(seed), module, tmp_path / f"{seed}.safetensors"))
    for _ in range(4):
        for model in models:
            model()
        for model in models:
            model.evict()
    assert switcher.report().switches >= 8


def test_files_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    switcher = opened(2)
    path = tmp_path / "weights.safetensors"
    good = {"weight": torch.ones(3, 2), "bias": torch.ones(3)}
    for tensors, said in [
        ({"weight": torch.ones(3, 2)}, "no tensor 'bias'"),
        (good | {"bias": torch.ones(4)}, r"'bias' is torch.float32 of \(3,\)"),
        (good | {"bias": torch.ones(3, dtype=torch.int64)}, "I64"),
    ]:
        save(path, tensors)
        refuse(switcher, nn.Linear(2, 3), said, path)
    save(path, good)
    whole = path.read_bytes()
    for damaged in (b"", whole[:5], whole[:30], whole[:-1], b"\xff" * 8 + whole[8:], whole.replace(b"F32", b"F64")):
        path.write_bytes(damaged)
        refuse(switcher, nn.Linear(2, 3), "damaged|no tensor|is torch.float32", path)
    refuse(switcher, nn.Linear(2, 3), "No such file", tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    refuse(switcher, nn.Linear(2, 3), "no file", tmp_path / "folder")
    path.write_bytes(whole)
    assert switcher.add("good", nn.Linear(2, 3), path) is switcher["good"]


def refuse(switcher: tenure.torch.Switcher, module: nn.Module, said: str, path: Path | None = None) -> None:
    """Checks that a model is refused and that nothing of it is left."""
    before = [id(parameter) for parameter in module.parameters()]
    with pytest.raises(tenure.Error, match=said):
        switcher.add("refused", module, path)
    assert before == [id(parameter) for parameter in module.parameters()]
    assert "refused" not in switcher._models and switcher.report().image_bytes == 0


def test_modules_whose_weights_would_not_be_seen_used_are_refused() -> None:
    switcher = opened(2)
    module = nn.Linear(2, 2)
    module.kept = [module.weight]
    refuse(switcher, module, "attribute 'kept'")
    refuse(switcher, torch.jit.script(nn.Linear(2, 2)), "TorchScript")
    refuse(switcher, nn.Linear(2, 2, device="meta"), "has no values")
    refuse(switcher, nn.Linear(2, 2, device="cuda"), "on cuda:0")
    module = nn.Linear(2, 2)
    module.register_buffer("sparse", torch.eye(2).to_sparse())
    refuse(switcher, module, "sparse_coo")
    refuse(switcher, large(layers=3, rows=16 * MIB // 4)[0], "it can never be there")
    small = tenure.torch.Switcher(device_bytes=4 * CHUNK, host_bytes=1024)
    refuse(small, nn.Linear(100, 100), "allow more, or unload models")
    with pytest.raises(tenure.Error, match="expected one of CUDA's"):
        tenure.torch.Switcher("cpu", device_bytes=1, host_bytes=1)
    with pytest.raises(tenure.Error, match="expected 'searched'"):
        tenure.torch.Switcher(device_bytes=1, host_bytes=1, grouping="none")  # type: ignore[arg-type]


def test_weights_are_not_to_be_had_outside_of_calls() -> None:
    switcher = opened(2)
    module, x = resnet()
    model = switcher.add("model", module.eval())
    conv = module[0]
    for _ in range(4):
        for attempt in (
            lambda: conv.weight,
            lambda: module(x),
            lambda: list(module.parameters()),
            lambda: module.state_dict(),
            lambda: module.load_state_dict({}),
            lambda: module.half(),
            lambda: module.cuda(),
            lambda: setattr(conv, "weight", nn.Parameter(torch.ones(1))),
            lambda: delattr(conv, "weight"),
            lambda: copy.deepcopy(module),
            lambda: switcher.add("again", module),
        ):
            with pytest.raises(tenure.Error, match="only while the model is called"):
                attempt()
        with computing():
            model(x.cuda())


def test_a_weight_that_is_held_keeps_its_model_there_and_the_error_says_so() -> None:
    class Leaking(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return self.weight if x.numel() > 1 else self.weight[:2].detach()

    switcher = opened(1)
    model, other = switcher.add("leaking", Leaking(2, 2)), switcher.add("other", nn.Linear(2, 2))
    for x in (torch.zeros(2), torch.zeros(1)):
        held = model(x.cuda())
        for attempt in (model.evict, other.load):
            with pytest.raises(tenure.Error, match="of 'leaking' is held outside of its module"):
                attempt()
        assert model.is_resident
        del held
        other.load()
        assert not model.is_resident


def test_a_weight_that_is_held_outlives_its_model() -> None:
    class Leaking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return self.weight

    switcher = opened(1)
    module = Leaking(3, 3)
    expected = module.weight.detach().clone()
    held = switcher.add("model", module)(torch.zeros(1, device="cuda"))
    before = tenure.torch.own_bytes()
    switcher.remove("model")
    assert torch.equal(held.cpu(), expected) and tenure.torch.own_bytes() == before
    del held
    switcher._native.trim()
    assert tenure.torch.own_bytes() == before - CHUNK


def test_a_module_without_weights_is_a_model_too() -> None:
    switcher = opened(1)
    model = switcher.add("model", nn.Identity())
    x = torch.ones(3, device="cuda")
    for _ in range(4):
        assert model(x) is x
        model.evict()
    assert switcher.report().copied_bytes == 0


def test_a_model_that_writes_to_weights_is_told_and_the_weights_are_as_they_were() -> None:
    class Writing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if x.numel() > 1:
                self.weight.zero_()
            return self.weight.clone()

    class Replacing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.weight = nn.Parameter(torch.ones_like(x))
            return x

    switcher = opened(1)
    with computing():
        module = Writing(3, 3)
        expected = module.weight.detach().clone()
        model = switcher.add("writing", module)
        for _ in range(3):
            with pytest.raises(tenure.Error, match=r"'writing': its weights or buffers were written to.* eval\(\)"):
                model(torch.zeros(2, device="cuda"))
            assert torch.equal(model(torch.zeros(1, device="cuda")).cpu(), expected)
        # Also through a reference to one of its tensors.
        held = model._tensors[0]()
        with torch.inference_mode():
            held.zero_()
        with pytest.raises(tenure.Error, match="were written to"):
            model(torch.zeros(1, device="cuda"))
        del held
        with pytest.raises(tenure.Error, match="were written to"):
            model(torch.zeros(1, device="cuda"))
        assert torch.equal(model(torch.zeros(1, device="cuda")).cpu(), expected)
        training = switcher.add("training", nn.BatchNorm1d(3))
        with pytest.raises(tenure.Error, match=r"'training'.*call eval\(\)"):
            training(torch.randn(4, 3).cuda())
        replacing = switcher.add("replacing", Replacing(3, 3))
        with pytest.raises(tenure.Error, match="has replaced its weights"):
            replacing(torch.zeros(1, device="cuda"))


def test_calls_that_cannot_be_right_are_refused() -> None:
    switcher = opened(1)
    model = switcher.add("model", nn.Linear(2, 2))
    with pytest.raises(tenure.Error, match="an input is on cpu: move it to cuda:0"):
        model({"x": [torch.ones(2)]})
    with pytest.raises(tenure.Error, match="there is a model 'model' already"):
        switcher.add("model", nn.Linear(2, 2))
    with pytest.raises(tenure.Error, match="there is no model 'none': there are model"):
        switcher["none"]
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(2, device="cuda")
    model.load()
    with pytest.raises(tenure.Error, match="call it outside of the capture"), torch.cuda.graph(graph):
        model(x)
    switcher.remove("model")
    with pytest.raises(tenure.Error, match="'model' was removed"):
        model(x)
    switcher.close()
    with pytest.raises(tenure.Error, match="closed"):
        switcher.add("model", nn.Linear(2, 2))


def test_pinned_models_stay_and_those_that_run_within_others() -> None:
    class Outer(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with pytest.raises(tenure.Error, match="evict other models first"):
                switcher["inner"](x)
            with pytest.raises(tenure.Error, match="it is being called|is being called"):
                switcher.remove("outer")
            with pytest.raises(tenure.Error, match="is being called"):
                switcher["outer"].evict()
            return x

    switcher = opened(2)
    pinned = switcher.add("pinned", nn.Linear(2, 2), pinned=True)
    outer, inner = switcher.add("outer", Outer(2, 2)), switcher.add("inner", nn.Linear(2, 2))
    x = torch.ones(2, device="cuda")
    with computing():
        pinned(x)
        outer(x)
        inner(x)
        assert pinned.is_resident and inner.is_resident and not outer.is_resident
        pinned.pinned = False
        outer.load()
        assert not pinned.is_resident


def test_threads_take_turns() -> None:
    with opened(3) as switcher, computing():
        made = [large(seed) for seed in range(3)]
        expected = [answer_of(*one) for one in made]
        models = [switcher.add(str(seed), module) for seed, (module, _) in enumerate(made)]
        x = torch.zeros(1).cuda()
    wrong: list[Any] = []

    def work(seed: int) -> None:
        order = random.Random(seed)
        try:
            with torch.cuda.stream(torch.cuda.Stream()), OnHost():
                for _ in range(12):
                    number = order.randrange(3)
                    if not torch.equal(models[number](x).cpu(), expected[number]):
                        wrong.append(number)
        except BaseException as error:
            wrong.append(error)

    # Models are gone once their switcher is closed; this is a new one.
    switcher = opened(3)
    models = [switcher.add(str(seed), large(seed)[0]) for seed in range(3)]
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_removal_frees_everything() -> None:
    switcher = opened(3)
    torch.cuda.synchronize()
    before = tenure.torch.own_bytes()
    for turn in range(3):
        for make in (resnet, language, recurrent, large):
            module, x = make()
            model = switcher.add("model", module.eval())
            with computing():
                for _ in range(3):
                    model(x.cuda())
            switcher.remove("model")
            with pytest.raises(tenure.Error, match="only while"):
                list(module.parameters())
            assert switcher.report().image_bytes == 0
            del model, module
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        if turn == 0:
            before = tenure.torch.own_bytes()
        assert tenure.torch.own_bytes() <= before


def test_the_example_in_the_documentation_runs() -> None:
    text = (tenure.torch.Switcher.__doc__ or "").replace("  # doctest: +SKIP", "")
    names = {"tenure": tenure, "torch": torch, "nn": nn}
    example = doctest.DocTestParser().get_doctest(text, names, "Switcher", None, None)
    assert len(example.examples) == 2
    example.examples[0].want = ""
    example.examples[0].source = "_ = " + example.examples[0].source
    with computing():
        assert doctest.DocTestRunner().run(example).failed == 0


def test_an_order_that_was_learned_is_known_to_the_next_switcher(tmp_path: Path) -> None:
    module, x = large(layers=3)
    tenure.torch.install()
    with computing():
        expected = answer_of(module, x)

        def groups(calls: int) -> list[int]:
            with opened(4) as switcher:
                model = switcher.add("model", copy.deepcopy(module))
                for _ in range(calls):
                    assert torch.equal(model(x.cuda()).cpu(), expected)
                return model.group_bytes

        assert len(groups(0)) == 1
        learned = groups(2)
        assert len(learned) > 1
        assert groups(0) == groups(1) == learned
        (kept,) = (tmp_path / "cache" / "orders").iterdir()
        kept.write_text('{"tensors": [0, 0], "ends": [2], "tables": []}')
        assert len(groups(0)) == 1, "that is no order of the model"


def test_models_that_are_called_seldom_or_matter_least_leave_first() -> None:
    with opened(4) as switcher:
        models = [switcher.add(f"model {seed}", large(seed)[0]) for seed in range(3)]

        def resident() -> list[bool]:
            return [model.is_resident for model in models]

        for _ in range(4):
            models[1].load()
        models[0].load()
        models[2].load()
        assert resident() == [False, True, True], "the first one was used once"
        models[0].load()
        assert resident() == [True, True, False], "the last one was used once"
        models[1].priority = -10
        models[2].load()
        assert resident() == [True, False, True], "the second one matters least"


# This test runs in the test's own process: PyTorch's computing threads do not survive a fork.
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.tensor([1 + 2j]).conj(), "resolve_conj"),
        (lambda: torch.tensor([1 + 2j]).conj().imag, "resolve_neg"),
        (lambda: torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.qint8), "quantized"),
    ],
)
def test_tensors_whose_values_are_not_their_bytes_are_refused(make: Any, reason: str) -> None:
    module = nn.Module()
    module.register_buffer("buffer", make())
    with opened(1) as switcher, pytest.raises(tenure.Error, match=reason):
        switcher.add("model", module)


def test_weights_of_a_file_that_lie_in_another_order_there_are_refused(tmp_path: Path) -> None:
    module = nn.Conv2d(3, 4, 3)
    save(tmp_path / "model.safetensors", dict(module.state_dict()))
    last = copy.deepcopy(module).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with opened(1) as switcher:
        with pytest.raises(tenure.Error, match="channels_last"):
            switcher.add("model", last, tmp_path / "model.safetensors")
        switcher.add("model", module, tmp_path / "model.safetensors")


def test_a_file_that_cannot_be_read_to_its_end_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with opened(1) as switcher, pytest.raises(tenure.Error, match="not a regular file"):
        switcher.add("model", nn.Linear(2, 2), tmp_path / "model.safetensors")


class Copied(nn.Linear):
    """Takes its parameters from copies of the dictionary that holds them, and an attribute from a parameter."""

    def forward(self, x: Tensor) -> Tensor:
        copies = [dict(self._parameters), {**self._parameters}, self._parameters | {}, {} | self._parameters]
        weights = [parameters["weight"] for parameters in copies]
        return sum(F.linear(x, weight * self.weight.scale, copies[0]["bias"]) for weight in weights)


def test_copies_of_the_dictionary_of_parameters_have_them() -> None:
    with opened(1) as switcher, computing():
        module, x = Copied(4, 4), torch.ones(2, 4)
        module.weight.scale = 3.0  # type: ignore[assignment]
        with torch.inference_mode():
            expected = module(x)
        model = switcher.add("model", module)
        for _ in range(4):
            assert torch.equal(model(x.cuda()).cpu(), expected)
            model.evict()
        for read in (dict, lambda of: {**of}, lambda of: of | {}, lambda of: {} | of):
            with pytest.raises(tenure.Error, match="only while the model is called"):
                read(module._parameters)


def test_a_tensor_without_elements_and_an_odd_name_are_no_matter() -> None:
    with opened(1) as switcher:
        module = nn.Linear(2, 2)
        module.register_buffer("empty", torch.empty(0, 3))
        for name in ("a\0b", "x" * 4000, "ß" * 150):
            model = switcher.add(name, copy.deepcopy(module))
            with model.use() as used:
                assert used.empty.shape == (0, 3)
            switcher.remove(name)


def test_a_priority_that_is_none_is_refused_where_it_is_given() -> None:
    with opened(1) as switcher:
        for priority in (11, 2.5, "high"):
            with pytest.raises((TypeError, ValueError), match="priority"):
                switcher.add("model", nn.Linear(2, 2), priority=priority)  # type: ignore[call-overload]
        model = switcher.add("model", nn.Linear(2, 2), priority=-10)
        with pytest.raises((TypeError, ValueError), match="priority"):
            model.priority = 1 << 40


def test_tasks_of_one_thread_are_not_in_blocks_at_the_same_time() -> None:
    with opened(2) as switcher:
        for name in ("one", "other"):
            switcher.add(name, nn.Linear(2, 2))
        refused: list[str] = []

        async def block(name: str, inside: asyncio.Event, others: asyncio.Event) -> None:
            try:
                with switcher.use(name):
                    inside.set()
                    await others.wait()
            except tenure.Error as error:
                refused.append(str(error))
                inside.set()
                others.set()

        async def both() -> None:
            events = asyncio.Event(), asyncio.Event()
            await asyncio.gather(block("one", *events), block("other", *reversed(events)))

        asyncio.run(both())
        assert len(refused) == 1 and "asyncio.Lock" in refused[0]
        assert not torch.is_inference_mode_enabled()
