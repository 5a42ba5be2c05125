"""The shared cache: each call in one process; and calls between processes, in Tenure's order
(`examples/shared_weights.py`) and in PipeSwitch's (`pipeswitch.py`)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if os.environ.get("TENURE_TEST_ALLOCATOR", "tenure") != "tenure":
    pytest.skip("Tenure's alone", allow_module_level=True)

import torch

import tenure
import tenure.torch as tt

MIB = 1 << 20
EXAMPLE = Path(__file__).parents[3] / "examples" / "shared_weights.py"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Allocates this process's own cache."""
    socket = tmp_path_factory.mktemp("cache") / "memory.sock"
    tt.configure_shared_cache(
        pool_bytes=64 * MIB, parameter_bytes=16 * MIB, computation_bytes=32 * MIB, socket=socket, wait=300.0
    )
    tt.allocate_shared_cache()


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    yield
    gc.collect()
    tt.clear_shared_cache()


def model(width: int = 300) -> torch.nn.Sequential:
    torch.manual_seed(3)
    layers = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, width, bias=False)
    )
    # Ties the weights, as embeddings often are.
    layers[2].weight = layers[0].weight
    return layers.eval()


def values(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in module.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_shared_module_keeps_its_values_and_takes_no_memory_of_its_own() -> None:
    made = model()
    before, own = values(made), tt.own_bytes()
    shared = tt.share_module(made)
    assert equal(values(shared), before)
    assert tt.own_bytes() == own
    assert shared[0].weight is shared[2].weight
    assert not any(parameter.requires_grad for parameter in shared.parameters())


def test_a_module_is_attached_to_what_was_shared_without_a_copy() -> None:
    shared = tt.share_module(model())
    before = values(shared)
    addresses = [tensor.data_ptr() for tensor in shared.state_dict().values()]
    del shared
    tt.clear_shared_cache()
    with torch.device("meta"):
        made = model()
    attached = tt.attach_module(made)
    assert equal(values(attached), before)
    assert [tensor.data_ptr() for tensor in attached.state_dict().values()] == addresses
    assert attached[0].weight is attached[2].weight


def laid_out() -> torch.nn.Module:
    """Returns a module with tensors in other layouts than row-major, and one without bytes."""
    torch.manual_seed(3)
    layer = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    layer.turned = torch.nn.Parameter(torch.rand(4, 3).T)
    layer.nothing = torch.nn.Buffer(torch.empty(0, 5))
    return layer


def layouts(module: torch.nn.Module) -> dict[str, tuple[torch.Size, tuple[int, ...]]]:
    return {name: (tensor.shape, tensor.stride()) for name, tensor in module.state_dict().items()}


def test_tensors_keep_their_layout() -> None:
    before, described = values(laid_out()), layouts(laid_out())
    shared = tt.share_module(laid_out())
    assert layouts(shared) == described
    assert equal(values(shared), before)
    assert shared.nothing.device.type == "cuda"
    del shared
    tt.clear_shared_cache()
    attached = tt.attach_module(laid_out())
    assert layouts(attached) == described
    assert equal(values(attached), before)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_nothing_is_written_where_deterministic_algorithms_fill_new_tensors() -> None:
    shared = tt.share_module(model())
    before = values(shared)
    del shared
    tt.clear_shared_cache()
    with pytest.raises(tenure.Error, match=r"fill_uninitialized_memory = False"):
        tt.insert_shared_cache_for_parameter("read")
    attached = tt.attach_module(model())
    # Waits here, where the fill would have failed and broken the context.
    torch.cuda.synchronize()
    assert equal(values(attached), before)


def test_a_published_module_is_read_by_calls_of_pytorch_alone() -> None:
    """One process moves its model to the device between the calls; another allocates the same tensors."""

    def made() -> torch.nn.Module:
        torch.manual_seed(3)
        layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 5)
        return torch.nn.Sequential(*layers).half().eval()

    tt.insert_shared_cache_for_parameter()
    written = made().cuda()
    before = values(written)
    tt.publish_shared_parameters()
    tt.insert_shared_cache_for_computation()
    del written
    tt.clear_shared_cache()
    tt.insert_shared_cache_for_parameter("read")
    own = tt.own_bytes()
    read = made().to_empty(device="cuda")
    assert tt.own_bytes() == own
    tt.insert_shared_cache_for_computation()
    assert equal(values(read), before)
    del read
    tt.clear_shared_cache()


READER = """
import sys
import torch
import tenure.torch as tt

tt.install()
tt.recv_shared_cache(sys.argv[1])
tt.insert_shared_cache_for_parameter()
assert torch.empty(3, device="cuda").tolist() == [1.0, 2.0, 3.0]
print(tt.shared_parameters())
tt.clear_shared_cache()
"""


def test_another_process_than_the_owner_reads_by_default() -> None:
    tt.insert_shared_cache_for_parameter()
    written = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    tt.publish_shared_parameters(b"three")
    command = [sys.executable, "-c", READER, str(tt.configure_shared_cache().socket)]
    read = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert read.stdout == "b'three'\n"
    del written


def test_tensors_are_allocated_as_they_were_published() -> None:
    tt.insert_shared_cache_for_parameter("write")
    written = [torch.empty(size, device="cuda") for size in (1000, 3, 70_000)]
    written[1].copy_(torch.tensor([1.0, 2.0, 3.0]))
    tt.publish_shared_parameters(b"three")
    del written
    tt.clear_shared_cache()
    tt.insert_shared_cache_for_parameter("read")
    assert tt.shared_parameters() == b"three"
    first = torch.empty(1000, device="cuda")
    with pytest.raises(RuntimeError, match="allocate the same tensors, in the same order"):
        torch.empty(4000, device="cuda")
    with pytest.raises(tenure.Error, match="2 of the published parameters were not allocated"):
        tt.insert_shared_cache_for_computation()
    second, third = torch.empty(3, device="cuda"), torch.empty(70_000, device="cuda")
    assert second.tolist() == [1.0, 2.0, 3.0]
    tt.check_shared_parameters()
    del first, second, third


def test_parameters_that_do_not_fit_are_refused() -> None:
    tt.insert_shared_cache_for_parameter("write")
    with pytest.raises(RuntimeError, match="takes every request has no place"):
        torch.empty(17 * MIB, dtype=torch.uint8, device="cuda")


@pytest.fixture
def divided() -> Iterator[None]:
    """Receives the cache with other ranges than it was made with, and restores them."""
    tt.send_shared_cache()
    tt.recv_shared_cache(parameter_bytes=48 * MIB, computation_bytes=16 * MIB)
    yield
    gc.collect()
    tt.clear_shared_cache()
    tt.recv_shared_cache()


@pytest.mark.usefixtures("divided")
def test_a_cache_is_divided_as_its_receiver_says() -> None:
    own = tt.own_bytes()
    tt.insert_shared_cache_for_parameter("write")
    parameters = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    assert tt.own_bytes() == own
    tt.publish_shared_parameters()
    tt.insert_shared_cache_for_computation()
    own = tt.own_bytes()
    fits = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
    assert tt.own_bytes() == own
    elsewhere = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    assert tt.own_bytes() > own
    del parameters, fits, elsewhere


def test_computation_takes_large_tensors_of_its_stream() -> None:
    tt.insert_shared_cache_for_computation()
    own = tt.own_bytes()
    large = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    assert tt.own_bytes() == own
    del large


def test_a_tensor_of_the_cache_is_not_sent_by_itself() -> None:
    shared = tt.share_module(model())
    with pytest.raises(RuntimeError, match="lies in a shared cache"):
        shared[0].weight.untyped_storage()._share_cuda_()
    del shared


def test_a_range_in_which_tensors_live_is_not_cleared() -> None:
    tt.insert_shared_cache_for_computation()
    large = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(tenure.Error, match="still live"):
        tt.clear_shared_cache()
    del large


def test_a_library_s_workspace_in_a_range_does_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tt.insert_shared_cache_for_computation()
    workspaces = [torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")]
    with monkeypatch.context() as patched:
        patched.setattr(torch._C, "_cuda_clearCublasWorkspaces", workspaces.clear)
        tt.clear_shared_cache()


@pytest.mark.values
def test_a_range_is_cleared_after_a_product_of_matrices() -> None:
    tt.insert_shared_cache_for_computation()
    ones = torch.ones(1024, 1024, device="cuda")
    assert (ones @ ones).sum().item() == 1024.0**3
    del ones
    tt.clear_shared_cache()


def test_nothing_is_read_that_was_not_published() -> None:
    tt.insert_shared_cache_for_parameter("write")
    tt.clear_shared_cache()
    with pytest.raises(tenure.Error, match="no parameters are published"):
        tt.insert_shared_cache_for_parameter("read")


def test_a_second_cache_is_refused() -> None:
    with pytest.raises(tenure.Error, match="already"):
        tt.allocate_shared_cache()


def test_two_workers_compute_in_pipeswitch_s_order_of_calls(tmp_path: Path) -> None:
    """Each worker inserts and allocates everything first, for each model; then parameters come and go."""
    program = [sys.executable, str(Path(__file__).with_name("pipeswitch.py")), str(tmp_path / "cache.sock")]
    subprocess.run(program, check=True, timeout=300)


@pytest.mark.parametrize("made", ["small", "resnet18"])
def test_two_processes_share_weights_and_either_may_die(made: str) -> None:
    if made != "small":
        pytest.importorskip("torchvision", reason="torchvision is not installed")
    subprocess.run([sys.executable, str(EXAMPLE), "--model", made], check=True, timeout=300)


@pytest.fixture
def computing() -> list[torch.cuda.Stream]:
    """Returns two streams that compute in the cache."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    for stream in streams:
        with torch.cuda.stream(stream):
            tt.insert_shared_cache_for_computation()
    return streams


def computed(stream: torch.cuda.Stream) -> torch.Tensor:
    with torch.cuda.stream(stream):
        return torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(4 * MIB, dtype=torch.uint8, device="cuda"),
        lambda: torch.UntypedStorage(4 * MIB, device="cuda"),
        lambda: torch.UntypedStorage(4 * MIB).cuda(),
        lambda: torch.empty(0, device="cuda").untyped_storage().resize_(4 * MIB),
    ],
    ids=["tensor", "storage", "storage.cuda", "resize_"],
)
def test_waiting_to_compute_lets_other_threads_end(
    computing: list[torch.cuda.Stream], no_forced_thread_switches: None, allocate: Callable[[], object]
) -> None:
    held = [computed(computing[0])]
    goes_on = threading.Event()

    def end() -> None:
        goes_on.wait()
        held.clear()

    thread = threading.Thread(target=end)
    thread.start()
    with torch.cuda.stream(computing[1]):
        # The thread gets Python's lock when this one releases it.
        goes_on.set()
        allocate()
    thread.join()


def test_a_computation_that_ends_inside_a_pool_is_over_for_others_after_it(
    computing: list[torch.cuda.Stream],
) -> None:
    held = computed(computing[0])
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        del held
    computed(computing[1])


def test_a_cache_is_received_on_the_device_that_it_lies_on(tmp_path: Path) -> None:
    if torch.cuda.get_device_name() != "Simulated" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    socket, device = str(tmp_path / "other.sock"), {"TENURE_CUDART_DEVICES": "2"}
    processes = [
        [sys.executable, "-c", ON_DEVICE.format(device), what, socket] for device, what in ((1, "send"), (0, "receive"))
    ]
    with subprocess.Popen(
        processes[0], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | device
    ) as sender:
        assert sender.stdout is not None
        assert sender.stdout.readline() == b"sent\n"
        said = subprocess.run(processes[1], capture_output=True, text=True, check=True, env=os.environ | device).stdout
        sender.kill()
    assert said.startswith("what is shared lies on device")


ON_DEVICE = """
import sys
import torch
import tenure, tenure.torch as tt

tt.install()
torch.cuda.set_device({})
_, what, socket = sys.argv
if what == "send":
    tt.allocate_shared_cache(8 << 20, 2 << 20, 6 << 20)
    tt.send_shared_cache(socket)
    print("sent", flush=True)
    sys.stdin.read()
else:
    try:
        tt.recv_shared_cache(socket)
    except tenure.Error as error:
        print(error)
"""
