"""Mistakes around the shared cache: each raises one error that says what to do, and changes nothing."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

if os.environ.get("TENURE_TEST_ALLOCATOR", "tenure") != "tenure":
    pytest.skip("Tenure's alone", allow_module_level=True)

import torch
from torch import nn

import tenure
import tenure.torch as tt
from tenure import _native

from .memory import MIB, tensor


@pytest.fixture(scope="module", autouse=True)
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Allocates this process's cache unless another test file has, and returns its socket."""
    socket = tmp_path_factory.mktemp("cache") / "own.sock"
    # Opens the device, if no test has used it yet.
    tensor(1)
    if _native.owns_shared_cache(0):
        return Path(str(tt.configure_shared_cache().socket))
    tt.configure_shared_cache(
        pool_bytes=64 * MIB, parameter_bytes=16 * MIB, computation_bytes=32 * MIB, socket=socket, wait=300.0
    )
    tt.allocate_shared_cache()
    return socket


@pytest.fixture(autouse=True)
def cleared(own: Path) -> Iterator[None]:
    tt.send_shared_cache()
    tt.recv_shared_cache()
    yield
    gc.collect()
    tt.clear_shared_cache()


def model(width: int = 40, tied: bool = False) -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width))
    if tied:
        layers[2].weight = layers[0].weight
    return layers


def contents(module: nn.Module) -> list[int]:
    """Returns the identities of a module's tensors."""
    return [id(tensor) for tensor in (*module.parameters(), *module.buffers())]


def refused(module: nn.Module, call: Callable[[nn.Module], object], error: type[BaseException], says: str) -> None:
    """Checks that the call fails, the module is unchanged, and no range for parameters stays inserted."""
    before = contents(module)
    with pytest.raises(error, match=says):
        call(module)
    assert contents(module) == before
    assert {parameter.device.type for parameter in module.parameters()} <= {"cpu", "meta"}
    assert tt.shared_parameters() is None
    tt.insert_shared_cache_for_parameter("write")
    tt.clear_shared_cache()


def publish(module: nn.Module) -> bytes:
    """Shares a module, drops it, and returns the published description."""
    tt.share_module(module)
    about = tt.shared_parameters()
    assert about is not None
    del module
    gc.collect()
    return about


def test_another_module_is_refused_while_this_process_computes() -> None:
    shared = tt.share_module(model())
    del shared
    tt.clear_shared_cache()
    tt.insert_shared_cache_for_computation()
    computed = tensor(4 * MIB)
    wrong = nn.Linear(3, 3)
    before = contents(wrong)
    with pytest.raises(tenure.Error, match="another module was shared"):
        tt.attach_module(wrong)
    assert contents(wrong) == before
    # Small tensors are allocated as before, and large ones in the range that is still inserted.
    tensor(5)
    own_bytes = tt.own_bytes()
    more = tensor(4 * MIB)
    assert tt.own_bytes() == own_bytes
    attached = tt.attach_module(model())
    del computed, more, attached


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (
            lambda: model(41),
            r"it has 0.weight \(torch.float32, shape \[40, 40\], strides \[40, 1\]\) where this one has 0.weight "
            r"\(torch.float32, shape \[41, 41\]",
        ),
        (lambda: model().half(), r"0.weight \(torch.float32, .* where this one has 0.weight \(torch.float16"),
        (lambda: model()[:2], r"it has 2.weight .* where this one has nothing more"),
        (lambda: nn.Sequential(*model(), nn.Linear(1, 1)), r"it has nothing more where this one has 3.weight"),
        (lambda: model(tied=True), r"it has 2.weight .* where this one has 2.weight .*, the same as 0.weight\)"),
    ],
    ids=["shape", "dtype", "less", "more", "tied"],
)
def test_the_first_tensor_that_differs_is_named(made: Callable[[], nn.Module], says: str) -> None:
    tt.share_module(model())
    gc.collect()
    tt.clear_shared_cache()
    with torch.device("meta"):
        module = made()
    before = contents(module)
    with pytest.raises(tenure.Error, match=says):
        tt.attach_module(module)
    assert contents(module) == before
    assert tt.shared_parameters() is None


def test_parameters_that_were_not_published_as_a_module_are_refused() -> None:
    for about in (b"", b"three"):
        tt.insert_shared_cache_for_parameter("write")
        tt.publish_shared_parameters(about)
        tt.clear_shared_cache()
        refused(model(), tt.attach_module, tenure.Error, r"not published by share_module\(\)")


def test_a_module_whose_tensors_lie_elsewhere_is_left_as_it_was() -> None:
    """The process that published a module's description may have allocated other tensors."""
    about = publish(model())
    tt.clear_shared_cache()
    tt.insert_shared_cache_for_parameter("write")
    first = torch.empty(40, 40, device="cuda")
    second = tensor(17)
    tt.publish_shared_parameters(about)
    del first, second
    tt.clear_shared_cache()
    refused(model(), tt.attach_module, RuntimeError, "allocate the same tensors, in the same order")


def test_a_module_that_is_not_all_that_was_published_is_refused() -> None:
    about = publish(nn.Linear(40, 40))
    tt.clear_shared_cache()
    tt.insert_shared_cache_for_parameter("write")
    published = [torch.empty(size, device="cuda") for size in (1600, 40, 7)]
    tt.publish_shared_parameters(about)
    del published
    tt.clear_shared_cache()
    refused(nn.Linear(40, 40), tt.attach_module, tenure.Error, "1 of the published parameters were not allocated")


def test_a_module_that_is_too_large_is_refused_before_anything_is_moved() -> None:
    about = publish(model())
    tt.clear_shared_cache()
    large = nn.Sequential(nn.Linear(8, 8), nn.Linear(2048, 2048))
    before = contents(large)
    with pytest.raises(tenure.Error, match=r"need 1\d{7} bytes, and their range in the shared cache has 16777216"):
        tt.share_module(large)
    assert contents(large) == before
    # The parameters published before can still be read.
    tt.insert_shared_cache_for_parameter("read")
    assert tt.shared_parameters() == about


def test_a_copy_that_fails_leaves_the_module_as_it_was() -> None:
    half = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, device="meta"))
    refused(half, tt.share_module, tenure.Error, "1.weight has no values, as it lies on the device meta")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: nn.LazyLinear(4), "weight has no shape yet: call the module once first"),
        (lambda: holding(torch.eye(4).to_sparse()), "held is sparse or quantized"),
        (lambda: holding(torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)), "held is sparse or quantized"),
    ],
    ids=["lazy", "sparse", "quantized"],
)
def test_tensors_that_are_not_dense_are_named(made: Callable[[], nn.Module], says: str) -> None:
    for call in (tt.share_module, tt.attach_module):
        with pytest.raises(tenure.Error, match=says):
            call(made())
    tt.share_module(model())


def holding(held: torch.Tensor) -> nn.Module:
    module = nn.Module()
    module.held = nn.Buffer(held)
    return module


@pytest.mark.parametrize("socket", ["", b"bytes.sock"])
def test_a_socket_is_a_path_as_text(socket: str) -> None:
    for call in (tt.send_shared_cache, tt.recv_shared_cache, lambda at: tt.configure_shared_cache(socket=at)):
        with pytest.raises(tenure.Error, match="expected a path as text"):
            call(socket)


@pytest.mark.parametrize("error", [tenure.Error, KeyboardInterrupt])
def test_a_publication_that_fails_leaves_the_module_as_it_was(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fails(device: int, about: bytes) -> None:
        raise error("not now")

    with monkeypatch.context() as patched:
        patched.setattr(_native, "publish_shared_parameters", fails)
        refused(model(), tt.share_module, error, "not now")
    tt.share_module(model())


class Choosy(nn.Module):
    """A module of two tensors. Each time one is set again, the next entry of `comes` is raised, unless it is None."""

    def __init__(self, comes: list[BaseException | None]) -> None:
        super().__init__()
        self.one, self.two = nn.Buffer(torch.ones(3)), nn.Buffer(torch.ones(4))
        self.comes = comes

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("one", "two") and self.__dict__.get("comes") and (refused := self.comes.pop(0)):
            raise refused
        super().__setattr__(name, value)


NO = ValueError("no")


@pytest.mark.parametrize(
    "comes",
    [[NO], [None, NO], [None, NO, NO, NO], [None, KeyboardInterrupt("no")]],
    ids=["first", "next", "ever", "^C"],
)
def test_a_module_is_put_in_place_whole_or_not_at_all(comes: list[BaseException | None]) -> None:
    made = nn.Sequential(nn.LSTM(4, 4), Choosy([*comes]))
    before, error = contents(made), type(comes[-1])
    with pytest.raises(error, match="no"):
        tt.share_module(made)
    assert contents(made) == before
    assert contents(made[0]) == [id(weight) for weight in made[0]._flat_weights]
    refused(made, tt.attach_module, tenure.Error, "no parameters are published")
    publish(nn.Sequential(nn.LSTM(4, 4), Choosy([])))
    tt.clear_shared_cache()
    refused(nn.Sequential(nn.LSTM(4, 4), Choosy([*comes])), tt.attach_module, error, "no")


def test_a_failure_says_what_others_hold_in_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    stray: list[torch.Tensor] = []

    def fails(device: int, about: bytes) -> None:
        stray.append(tensor(5))
        raise tenure.Error("not now")

    monkeypatch.setattr(_native, "publish_shared_parameters", fails)
    with pytest.raises(tenure.Error, match="not now") as raised:
        tt.share_module(model())
    assert "1 blocks of 512 bytes still live in the range for parameters" in raised.value.__notes__[0]
    stray.clear()


@pytest.mark.parametrize("call", [tt.share_module, tt.attach_module])
def test_other_threads_allocations_meanwhile_are_their_own(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[nn.Module], nn.Module]
) -> None:
    publish(model())
    tt.clear_shared_cache()
    placed, others = _native.shared_parameter_range, ThreadPoolExecutor(1)
    allocated: list[torch.Tensor] = []

    def beside(device: int) -> tuple[int, int]:
        # Allocates in another thread, on the stream that is current there and here.
        allocated.append(others.submit(tensor, 500).result())
        return placed(device)

    monkeypatch.setattr(_native, "shared_parameter_range", beside)
    module = call(model())
    start, size = placed(0)
    assert len(allocated) == len(contents(module))
    assert not any(start <= other.data_ptr() < start + size for other in allocated)
    del module
    allocated.clear()


@pytest.mark.parametrize("call", [tt.share_module, tt.attach_module])
def test_modules_are_not_placed_where_a_pool_takes_their_tensors(call: Callable[[nn.Module], nn.Module]) -> None:
    publish(model())
    tt.clear_shared_cache()
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        refused(model(), call, tenure.Error, r"outside of torch.cuda.use_mem_pool\(\)")


def test_recurrent_layers_use_what_was_shared() -> None:
    """They keep a list of their parameters in another attribute."""
    shared = tt.share_module(nn.LSTM(4, 4))
    assert [id(weight) for weight in shared._flat_weights] == [id(weight) for weight in shared.parameters()]
    del shared


ALREADY = r"this process has inserted the range for {} already: use it, or call clear_shared_cache\(\) first"


def test_a_range_is_inserted_once() -> None:
    shared = tt.share_module(model())
    for again in (
        lambda: tt.share_module(model()),
        lambda: tt.attach_module(model()),
        lambda: tt.insert_shared_cache_for_parameter("read"),
        lambda: tt.insert_shared_cache_for_parameter("write"),
    ):
        with pytest.raises(tenure.Error, match=ALREADY.format("parameters")):
            again()
    tt.insert_shared_cache_for_computation()
    with pytest.raises(tenure.Error, match=ALREADY.format("computation")):
        tt.insert_shared_cache_for_computation()
    del shared
    gc.collect()
    for _ in range(2):
        tt.clear_shared_cache()
    tt.insert_shared_cache_for_computation()


def test_a_live_model_keeps_its_own_range_only() -> None:
    shared = tt.share_module(model())
    tt.insert_shared_cache_for_computation()
    with pytest.raises(tenure.Error, match=r"still live in the range for parameters: delete the tensors in them first"):
        tt.clear_shared_cache()
    tt.insert_shared_cache_for_computation()
    del shared


def test_only_reading_and_writing_are_accesses() -> None:
    with pytest.raises(tenure.Error, match="access = 'Write': expected 'read' or 'write'"):
        tt.insert_shared_cache_for_parameter("Write")  # type: ignore[arg-type]


def test_nothing_is_published_that_was_not_inserted() -> None:
    with pytest.raises(tenure.Error, match="this process has inserted no range for parameters"):
        tt.publish_shared_parameters()


def test_settings_are_set_together_or_not_at_all() -> None:
    before = tt.configure_shared_cache()
    with pytest.raises(tenure.Error, match="parameter_bytes = -1: expected 0 or more"):
        tt.configure_shared_cache(pool_bytes=1, parameter_bytes=-1)
    with pytest.raises(tenure.Error, match="wait = nan"):
        tt.recv_shared_cache(wait=float("nan"))
    with pytest.raises(tenure.Error, match="wait = inf"):
        tt.configure_shared_cache(wait=float("inf"))
    with pytest.raises(tenure.Error, match="pool_bytes = 1000000000.0: expected 0 or more whole bytes"):
        tt.configure_shared_cache(pool_bytes=1e9)  # type: ignore[arg-type]
    assert tt.configure_shared_cache() == before


def test_a_cache_is_received_where_none_is_sent() -> None:
    with pytest.raises(tenure.Error, match=r"no memory daemon at .*absent.sock"):
        tt.recv_shared_cache("absent.sock", wait=0)
    # The cache received before is still there.
    tt.insert_shared_cache_for_computation()


MOVED = """
import os, sys
import torch
import tenure.torch as tt

tt.install()
os.chdir(sys.argv[1])
tt.allocate_shared_cache(8 << 20, 2 << 20, 6 << 20)
tt.configure_shared_cache(socket="configured.sock")
tt.send_shared_cache(sys.argv[2] or None)
os.chdir("/")
tt.insert_shared_cache_for_parameter()
"""


@pytest.mark.parametrize("given", ["given.sock", ""])
def test_a_socket_is_where_it_was_when_it_was_given(tmp_path: Path, given: str) -> None:
    subprocess.run([sys.executable, "-c", MOVED, str(tmp_path), given], check=True)
    assert not list(Path("/").glob("*.sock"))


NEW_PROCESS = """
import json, sys
import tenure, torch
import tenure.torch as tt

def said(call):
    try:
        eval(call)
        return "nothing"
    except tenure.Error as error:
        return str(error)

before = said("tt.allocate_shared_cache()")
tt.install()
print(json.dumps([before, *map(said, json.loads(sys.argv[1]))]))
"""

ALLOCATE = "tt.allocate_shared_cache({}, {}, {})"
#: The calls of a process that has just started, in order, each with its answer.
ORDER = {
    "tt.insert_shared_cache_for_parameter()": "the shared cache was not received: call recv_shared_cache() first",
    "tt.insert_shared_cache_for_computation()": "the shared cache was not received: call recv_shared_cache() first",
    "tt.attach_module(torch.nn.Linear(2, 2))": "the shared cache was not received: call recv_shared_cache() first",
    "tt.clear_shared_cache()": "the shared cache was not received: call recv_shared_cache() first",
    "tt.send_shared_cache()": "the shared cache was not allocated: call allocate_shared_cache() first",
    ALLOCATE.format(-1, 0, 0): "pool_bytes = -1: expected 0 or more",
    ALLOCATE.format(1 << 70, 0, 0): "pool_bytes = 1180591620717411303424: expected 0 or more whole",
    ALLOCATE.format(2 * MIB, 2 * MIB, 2 * MIB): "pool_bytes = 2097152: room for parameter_bytes = 2097152 and",
    ALLOCATE.format(4 * MIB, 1, 2 * MIB): "multiple",
    ALLOCATE.format(1 << 50, 2 * MIB, 2 * MIB): "memory",
    ALLOCATE.format(8 * MIB, 0, 8 * MIB): "parameter_bytes = 0: more than 0",
    ALLOCATE.format(8 * MIB, 2 * MIB, 6 * MIB): "nothing",
    "tt.send_shared_cache('/proc/cache.sock')": "/proc/cache.sock",
    "tt.send_shared_cache('{folder}/a.sock')": "nothing",
    "tt.send_shared_cache('{folder}/b.sock')": "is sent at {folder}/a.sock already",
    "tt.share_module(torch.nn.Linear(2, 2))": "nothing",
    ALLOCATE.format(8 * MIB, 2 * MIB, 2 * MIB): "already",
}


def test_calls_in_the_wrong_order_and_wrong_sizes(tmp_path: Path) -> None:
    """Each mistake is reported, and spoils nothing for the calls after it."""
    calls = [call.format(folder=tmp_path) for call in ORDER]
    output = subprocess.run([sys.executable, "-c", NEW_PROCESS, json.dumps(calls)], check=True, capture_output=True)
    first, *answers = json.loads(output.stdout)
    assert "call tenure.torch.install() before" in first
    for (call, says), answer in zip(ORDER.items(), answers, strict=True):
        assert says.format(folder=tmp_path) in answer, call


OWNER = """
import sys
import torch
import tenure.torch as tt

tt.install()
tt.allocate_shared_cache(64 << 20, 16 << 20, 32 << 20)
tt.send_shared_cache(sys.argv[1])
shared = tt.share_module(torch.nn.Linear(40, 40))
tt.insert_shared_cache_for_computation()
computed = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
print("shared", flush=True)
sys.stdin.readline()
"""


class Owner:
    """Another process that owns a cache, has shared a layer in it, and computes."""

    def __init__(self, socket: Path) -> None:
        command = [sys.executable, "-c", OWNER, str(socket)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "shared\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path / "other.sock")
    yield owner
    owner.kill()


def test_a_range_that_another_has_names_its_process(owner: Owner, tmp_path: Path) -> None:
    tt.recv_shared_cache(tmp_path / "other.sock", wait=0)
    tt.insert_shared_cache_for_computation()
    with pytest.raises(RuntimeError, match=f"leased to process {owner.process.pid} for writing"):
        tensor(4 * MIB)
    with pytest.raises(tenure.Error, match=f"leased to process {owner.process.pid} for reading"):
        tt.share_module(nn.Linear(40, 40))


SCHEDULER = """
import sys
import torch
import tenure.torch as tt

tt.install()
tt.allocate_shared_cache(64 << 20, 16 << 20, 32 << 20)
tt.send_shared_cache(sys.argv[1])
print("sent", flush=True)
for size in sys.stdin:
    tt.insert_shared_cache_for_parameter()
    torch.ones(int(size)).cuda()
    tt.clear_shared_cache()
    print("transferred", flush=True)
"""


def test_nothing_is_computed_with_parameters_that_are_not_those_that_were_placed(tmp_path: Path) -> None:
    socket = tmp_path / "scheduler.sock"
    command = [sys.executable, "-c", SCHEDULER, str(socket)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as scheduler:
        assert scheduler.stdin is not None
        assert scheduler.stdout is not None
        assert scheduler.stdout.readline() == "sent\n"
        tt.recv_shared_cache(socket, wait=0)
        parameters, computation = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(parameters):
            tt.insert_shared_cache_for_parameter()
            placed = torch.empty(2000, device="cuda")
        with torch.cuda.stream(computation):
            tt.insert_shared_cache_for_computation()
        differs = "tensor 0 of the parameters .* has 8000 bytes, and what was transferred last .* has 4000 there"
        for says, size in (("no parameters are published", 1000), (differs, 2000)):
            with torch.cuda.stream(computation), pytest.raises(RuntimeError, match=says):
                tensor(4 * MIB)
            with pytest.raises(tenure.Error, match=says):
                tt.check_shared_parameters()
            scheduler.stdin.write(f"{size}\n")
            scheduler.stdin.flush()
            assert scheduler.stdout.readline() == "transferred\n"
        tt.check_shared_parameters()
        with torch.cuda.stream(computation):
            computed = tensor(4 * MIB)
        assert placed.tolist() == [1.0] * 2000
        del placed, computed
        scheduler.stdin.close()
    assert scheduler.returncode == 0


def test_a_sender_that_dies_takes_nothing_along_and_another_is_received(owner: Owner, tmp_path: Path) -> None:
    socket = tmp_path / "other.sock"
    tt.recv_shared_cache(socket)
    attached = tt.attach_module(nn.Linear(40, 40))
    owner.kill()
    before = attached.weight.cpu()
    # `computed` is in this process's own memory.
    tt.insert_shared_cache_for_computation()
    own_bytes = tt.own_bytes()
    computed = tensor(4 * MIB)
    assert tt.own_bytes() > own_bytes
    with pytest.raises(tenure.Error, match=r"ranges of another shared cache .* call clear_shared_cache\(\) first"):
        tt.recv_shared_cache()
    assert torch.equal(attached.weight.cpu(), before)
    del attached, computed
    tt.clear_shared_cache()
    another = Owner(socket)
    tt.recv_shared_cache(socket)
    tt.attach_module(nn.Linear(40, 40))
    another.kill()


def test_a_sender_that_dies_before_its_parameters_are_read(owner: Owner, tmp_path: Path) -> None:
    tt.recv_shared_cache(tmp_path / "other.sock")
    owner.kill()
    layer = nn.Linear(40, 40)
    before = contents(layer)
    with pytest.raises(tenure.Error, match=r"the memory daemon at .*other.sock has ended"):
        tt.attach_module(layer)
    assert contents(layer) == before
