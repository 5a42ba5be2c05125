"""Tests of tenure.profiler."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.profiler import (
    FunctionEventAvg,
    ProfilerAction,
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)

#: The fields that an event of each phase has beside those that all have, in the trace event format.
FIELDS = {"X": {"dur", "cat"}, "C": {"args"}, "M": {"args"}, "s": {"id", "cat"}, "f": {"id", "cat", "bp"}, "i": {"s"}}


def check_event(event: dict[str, Any]) -> None:
    """Checks an event against the trace event format."""
    assert {"ph", "name", "pid", "tid", "ts", *FIELDS[event["ph"]]} <= event.keys(), event
    assert isinstance(event["name"], str)
    assert all(isinstance(event[number], int) for number in ("pid", "tid"))
    assert all(isinstance(event[time], int | float) and event[time] >= 0 for time in ("ts", "dur") if time in event)
    assert isinstance(event.get("args", {}), dict)
    if event["ph"] == "C":
        assert all(isinstance(value, int | float) for value in event["args"].values())


def train(x: tenure.Tensor) -> None:
    with record_function("forward"):
        loss = (x @ x).relu().sum()
    loss.backward()


def row(prof: profile, key: str) -> FunctionEventAvg:
    (found,) = [each for each in prof.key_averages() if each.key == key]
    return found


def counts(prof: profile) -> Counter[str]:
    return Counter({each.key: each.count for each in prof.key_averages()})


def test_operations_backward_and_sections_are_recorded() -> None:
    x = tenure.ones(8, 8, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        train(x)
        train(x)
    found = counts(prof)
    assert found["forward"] == found["relu"] == found["relu_backward"] == 2
    forward = row(prof, "forward")
    assert 0 < forward.self_cpu_time_total < forward.cpu_time_total
    assert forward.cpu_time == forward.cpu_time_total / 2
    events = prof.events()
    within = {event.name for event in events if event.parent == events[0].id}
    assert events[0].name == "forward"
    assert {"matmul", "relu", "sum"} <= within


def test_nothing_is_recorded_outside_of_a_profile() -> None:
    with profile() as prof:
        pass
    train(tenure.ones(2, 2, requires_grad=True))
    assert not prof.key_averages()


def test_own_times_sum_to_the_time_of_the_outer_span() -> None:
    with profile() as prof, record_function("all"):
        train(tenure.ones(8, 8, requires_grad=True))
    assert prof.key_averages().self_cpu_time_total == pytest.approx(row(prof, "all").cpu_time_total)


def test_a_profile_has_the_calls_that_pytorch_counts() -> None:
    torch = pytest.importorskip("torch")

    def run(library: Any) -> Any:
        x = library.ones(4, 4, requires_grad=True)
        with library.profiler.profile(record_shapes=True) as prof:
            for _ in range(3):
                with library.profiler.record_function("part"):
                    y = library.exp(x) + library.sin(x)
            y.sum().backward()
        return {each.key.removeprefix("aten::"): each.count for each in prof.key_averages()}

    ours, theirs = run(tenure), run(torch)
    for name in ("exp", "sin", "sum", "part"):
        assert ours[name] == theirs[name], name


def test_shapes_group_calls() -> None:
    with profile(record_shapes=True) as prof:
        for size in (2, 3, 3):
            tenure.ones(size).exp()
    rows = [each for each in prof.key_averages(group_by_input_shape=True) if each.key == "exp"]
    assert sorted((each.input_shapes, each.count) for each in rows) == [([[2]], 1), ([[3]], 2)]
    assert "shapes" in prof.key_averages(group_by_input_shape=True).table()


def test_memory_belongs_to_the_operation_that_allocates() -> None:
    x = tenure.ones(1000)
    with profile(profile_memory=True) as prof:
        y = x.exp()
        with record_function("free"):
            del y
    assert row(prof, "exp").self_cpu_memory_usage == 4000
    assert row(prof, "free").self_cpu_memory_usage == -4000
    assert "CPU memory" in prof.key_averages().table()


def test_a_table_is_sorted_and_cut() -> None:
    with profile() as prof:
        x = tenure.ones(2)
        for _ in range(5):
            x.exp()
    lines = prof.key_averages().table(sort_by="count", row_limit=1).splitlines()
    assert lines[0].split()[:3] == ["name", "own", "own"]
    assert lines[1].startswith("exp ")
    assert not lines[2]
    assert "ones" in prof.key_averages().table(row_limit=-1)
    with pytest.raises(AttributeError, match='cannot be sorted by "size": give one of self_cpu_time_total, '):
        prof.key_averages().table(sort_by="size")


FIGURES = [
    f"{own}{kind}"
    for own in ("self_", "")
    for kind in ("cpu_time_total", "device_time_total", "cuda_time_total")
    + ("cpu_memory_usage", "device_memory_usage", "cuda_memory_usage")
] + ["count", "cpu_time", "device_time", "cuda_time"]


@pytest.mark.parametrize("figure", FIGURES)
def test_a_table_is_sorted_by_each_figure_of_pytorch(figure: str) -> None:
    with profile(profile_memory=True) as prof:
        train(tenure.ones(64, 64, requires_grad=True))
        train(tenure.ones(8, 8, requires_grad=True))
    rows = prof.key_averages()
    values = {each.key: getattr(each, figure) for each in rows}
    first = rows.table(sort_by=figure, row_limit=1, max_name_column_width=None).splitlines()[1].split()[0]
    assert values[first] == max(values.values())


def test_a_name_takes_one_line_and_no_more_than_the_width() -> None:
    with profile() as prof, record_function("two\nlines"), record_function("long" * 30):
        pass
    rows = prof.key_averages()
    assert "two\\nlines " in rows.table()
    assert "long" * 13 + "... " in rows.table()
    assert "\nlon... " in rows.table(max_name_column_width=6)
    assert "long" * 30 + " " in rows.table(max_name_column_width=None)


def test_memory_that_python_frees_has_a_row_as_in_pytorch() -> None:
    torch = pytest.importorskip("torch")

    def freed(library: Any) -> int:
        with library.profiler.profile(activities=[library.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
            x = library.ones(1000)
            del x
        (found,) = [each for each in prof.key_averages() if each.key == "[memory]"]
        assert found.count == 1
        return int(found.cpu_memory_usage)

    assert freed(tenure) == freed(torch) == -4000


def test_the_formula_of_a_function_has_its_name() -> None:
    class Double(tenure.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: tenure.Tensor) -> tenure.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: tenure.Tensor) -> tenure.Tensor:
            return grad * 2

    with profile() as prof:
        Double.apply(tenure.ones(2, requires_grad=True)).sum().backward()
    assert counts(prof)["DoubleBackward"] == 1
    assert counts(prof)["sum_backward"] == 1


def test_arguments_without_an_effect_warn() -> None:
    for name in ("with_stack", "with_flops", "with_modules"):
        options: dict[str, Any] = {name: True}
        with pytest.warns(UserWarning, match=f"{name} has no effect"):
            profile(**options)
    for activities in ([], ["cpu"]):
        with pytest.raises(ValueError, match="at least one of ProfilerActivity.CPU"):
            profile(activities=activities)  # type: ignore[arg-type]


def test_a_profile_of_devices_has_no_rows_of_the_host() -> None:
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        train(tenure.ones(4, 4, requires_grad=True))
    assert not prof.key_averages()
    assert not prof.events()


def test_a_chrome_trace_has_the_form_of_its_format(tmp_path: Path) -> None:
    x = tenure.ones(8, 8, requires_grad=True)
    with profile(record_shapes=True, profile_memory=True) as prof:
        train(x)
    file = tmp_path / "trace.json"
    prof.export_chrome_trace(file)
    trace = json.loads(file.read_text())
    events = trace["traceEvents"]
    for event in events:
        check_event(event)
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    shown = [event for event in events if event["ph"] == "X" and event["name"] == "matmul"]
    assert shown[0]["args"]["Input Dims"] == [[8, 8], [8, 8]]
    arrows = {phase: {event["id"] for event in events if event["ph"] == phase} for phase in ("s", "f")}
    assert arrows["s"] == arrows["f"] != set()
    assert any(event["ph"] == "C" and event["args"]["bytes"] > 0 for event in events)
    packed = tmp_path / "trace.json.gz"
    prof.export_chrome_trace(packed)
    assert json.loads(gzip.decompress(packed.read_bytes())) == trace


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_replaces_an_older_one_at_once(name: str, tmp_path: Path) -> None:
    with profile() as prof:
        tenure.ones(4).exp()
    file = tmp_path / name
    file.write_bytes(b"older")
    with file.open("rb") as reader:
        prof.export_chrome_trace(file)
        assert reader.read() == b"older"
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_threads_are_named_apart(tmp_path: Path) -> None:
    def work() -> None:
        with record_function("there"):
            tenure.ones(2).exp()

    with profile() as prof, record_function("here"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    here, there = (next(event for event in prof.events() if event.name == name) for name in ("here", "there"))
    assert here.thread != there.thread
    assert there.parent is None


def test_a_schedule_records_cycles_of_steps(tmp_path: Path) -> None:
    found: list[Counter[str]] = []
    plan = schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2)
    with profile(schedule=plan, on_trace_ready=lambda prof: found.append(counts(prof))) as prof:
        for _ in range(12):
            tenure.ones(2).exp()
            prof.step()
    assert [each["exp"] for each in found] == [2, 2]
    assert [sorted(name for name in each if name.startswith("ProfilerStep")) for each in found] == [
        ["ProfilerStep#3", "ProfilerStep#4"],
        ["ProfilerStep#7", "ProfilerStep#8"],
    ]


def test_cycles_without_a_wait_are_profiles_of_their_own() -> None:
    found: list[int] = []
    plan = schedule(wait=0, warmup=0, active=1)
    with profile(schedule=plan, on_trace_ready=lambda prof: found.append(counts(prof)["exp"])) as prof:
        for number in range(3):
            for _ in range(number + 1):
                tenure.ones(2).exp()
            prof.step()
    assert found == [1, 2, 3, 0]


def test_schedules_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    for settings in (
        {"wait": 1, "warmup": 1, "active": 3},
        {"wait": 0, "warmup": 2, "active": 1, "repeat": 2},
        {"wait": 2, "warmup": 0, "active": 2, "repeat": 1, "skip_first": 3},
        {"wait": 3, "warmup": 1, "active": 2, "skip_first": 1, "skip_first_wait": 1},
    ):
        ours, theirs = schedule(**settings), torch.profiler.schedule(**settings)
        assert [ours(step).name for step in range(20)] == [theirs(step).name for step in range(20)]
    assert schedule(wait=0, warmup=0, active=1)(0) is ProfilerAction.RECORD_AND_SAVE
    with pytest.raises(ValueError, match="at least one step"):
        schedule(wait=0, warmup=0, active=0)


def test_traces_are_written_into_a_folder_for_tensorboard(tmp_path: Path) -> None:
    handler = tensorboard_trace_handler(tmp_path / "runs", worker_name="me", use_gzip=True)
    with profile(on_trace_ready=handler):
        tenure.ones(2)
    (file,) = (tmp_path / "runs").iterdir()
    assert file.name.startswith("me.")
    assert file.name.endswith(".pt.trace.json.gz")
    assert json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]


def test_a_process_records_one_profile_at_a_time() -> None:
    with profile() as outer:
        with pytest.raises(RuntimeError, match="one at a time"), profile():
            pass
        with pytest.raises(RuntimeError, match="no profile is complete"):
            outer.key_averages()
    with profile():
        pass


def test_a_profile_is_complete_after_an_exception() -> None:
    prof = profile()
    with pytest.raises(ZeroDivisionError), prof, record_function("part"):
        raise ZeroDivisionError
    assert counts(prof)["part"] == 1


def test_events_beyond_the_limit_are_counted() -> None:
    with profile(max_events=2) as prof:
        for _ in range(5):
            tenure.ones(2)
    assert sum(counts(prof).values()) == 2
    assert "events were not kept" in prof.key_averages().table()


def test_a_function_is_decorated_with_a_section() -> None:
    @record_function("named", "x")
    def work() -> int:
        return 3

    with profile() as prof:
        assert work() == 3
    assert counts(prof)["named(x)"] == 1


ON_A_DEVICE = """
import json
import tenure
from tenure import _native
from tenure.profiler import ProfilerActivity, profile

_native.simulate_devices(1, 0)
x = tenure.ones(64)
with profile(profile_memory=True) as prof:
    y = x.to("cuda").exp()
prof.export_chrome_trace("trace.json")
rows = prof.key_averages()
operations = {row.key: row for row in rows if not row.is_device_work}
works = [row.key for row in rows if row.is_device_work]
with profile(activities=[ProfilerActivity.CPU]) as host:
    x.to("cuda").exp()
kinds = {row.is_device_work for row in host.key_averages()}
print(json.dumps([works, operations["exp"].self_device_memory_usage, rows.table(), list(kinds)]))
"""


def test_work_of_a_device_has_its_own_rows(tmp_path: Path) -> None:
    # In a program of its own: a process simulates its devices for good.
    program = subprocess.run(
        [sys.executable, "-c", ON_A_DEVICE], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    works, memory, table, kinds = json.loads(program.stdout)
    assert kinds == [False]
    assert "exp" in works
    assert any("cuMemcpyHtoD" in work for work in works)
    assert "exp (device)" in table
    assert "memory of cuda:0: 0 B at the start" in table
    assert memory >= 256
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for event in events:
        check_event(event)
    assert {"kernel", "gpu_memcpy"} <= {event.get("cat") for event in events}
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["host", "cuda:0"]
