"""A program that makes PipeSwitch's calls in PipeSwitch's order: a process that schedules, and two workers with two
models each (its `main.py`, `frontend_schedule.py`, `worker.py`, `worker_common.py`).

`test_shared_cache.py` runs it. It fails if anything is not as it should be. On a simulated device, which computes
nothing, it checks the parameters that a worker finds, and on a real one also the results computed with them.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import nn

import tenure.torch as tt

MIB = 1 << 20
MODELS = ("small", "large")
#: The models that are requested, one after the other. Workers take turns.
REQUESTS = ("small", "large", "large", "small", "small", "large")
BATCH = 4096
#: The bytes to a multiple of which PipeSwitch pads each tensor.
BLOCK = 512


def configure(socket: str) -> None:
    """Installs Tenure and sets the cache's sizes and socket, which are constants in PipeSwitch's code."""
    tt.install()
    tt.configure_shared_cache(
        pool_bytes=64 * MIB, parameter_bytes=16 * MIB, computation_bytes=48 * MIB, socket=socket, wait=300.0
    )


def made(name: str) -> nn.Sequential:
    width = {"small": 129, "large": 600}[name]
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(128, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Linear(width, 7)).eval()


def inputs(request: int) -> torch.Tensor:
    return torch.full((BATCH, 128), 0.01 * (request + 1))


def tensors(layer: nn.Module) -> list[torch.Tensor]:
    """Returns the tensors of a layer that PipeSwitch copies."""
    return [*layer.parameters(), *(buffer for buffer in layer.buffers() if buffer.dtype is torch.float32)]


def packed(layer: nn.Module) -> torch.Tensor | None:
    """Returns a layer's tensors as one pinned tensor."""
    parts = []
    for tensor in tensors(layer):
        part = torch.zeros(-(-tensor.nbytes // BLOCK) * BLOCK // tensor.element_size())
        part[: tensor.numel()] = tensor.detach().flatten()
        parts.append(part)
    return torch.cat(parts).pin_memory() if parts else None


class Loaded:
    """A model in a worker: its tensors have addresses, and no values yet."""

    def __init__(self, name: str, transferred: Connection) -> None:
        self.model = made(name)
        self.parameters = torch.cuda.Stream()
        self.computation = torch.cuda.Stream()
        with torch.cuda.stream(self.parameters):
            tt.insert_shared_cache_for_parameter()
        with torch.cuda.stream(self.computation):
            tt.insert_shared_cache_for_computation()
        with torch.cuda.stream(self.parameters):
            for layer in self.model:
                for parameter in layer.parameters():
                    parameter.data = torch.empty(parameter.shape, device="cuda")
                for key, buffer in layer.named_buffers():
                    if buffer.dtype is torch.float32:
                        layer._buffers[key] = torch.empty(buffer.shape, device="cuda")
        for index, layer in enumerate(self.model):
            layer.register_forward_pre_hook(lambda layer, _, index=index: self.wait(transferred, index))

    def wait(self, transferred: Connection, index: int) -> None:
        """Waits until a layer's values are there."""
        assert transferred.recv() == index

    def compute(self, data: torch.Tensor) -> list[float]:
        own = tt.own_bytes()
        on_device = data.cuda(non_blocking=True)
        assert on_device.nbytes > MIB
        assert tt.own_bytes() == own, "the batch does not lie in the shared cache"
        with torch.no_grad():
            if torch.cuda.get_device_name() != "Simulated":
                output = self.model(on_device)
                return [float(value) for value in output.mean(dim=0)]
            for layer in self.model:
                for hook in layer._forward_pre_hooks.values():
                    hook(layer, ())
            return []


def work(socket: str, requests: Connection, transferred: Connection) -> None:
    configure(socket)
    torch.randn(1024, device="cuda")
    tt.recv_shared_cache()
    models = {name: Loaded(name, transferred) for name in MODELS}
    requests.send("ready")
    while (name := requests.recv()) is not None:
        data = inputs(requests.recv())
        loaded = models[name]
        with torch.cuda.stream(loaded.computation):
            output = loaded.compute(data)
        found = [tensor.cpu().flatten().tolist() for layer in loaded.model for tensor in tensors(layer)]
        requests.send((output, found))


def check(name: str, request: int, answer: tuple[list[float], list[list[float]]]) -> None:
    output, found = answer
    model = made(name)
    assert found == [tensor.flatten().tolist() for layer in model for tensor in tensors(layer)], (name, request)
    if torch.cuda.get_device_name() != "Simulated":
        with torch.no_grad():
            expected = model(inputs(request)).mean(dim=0)
        assert torch.allclose(torch.tensor(output), expected, rtol=1e-2, atol=1e-3), (name, request)


def schedule(workers: list[tuple[Connection, Any, Connection]]) -> None:
    models = {name: [packed(layer) for layer in made(name)] for name in MODELS}
    stream = torch.cuda.Stream()
    for request, name in enumerate(REQUESTS):
        requests, _, transferred = workers[request % len(workers)]
        requests.send(name)
        requests.send(request)
        with torch.cuda.stream(stream):
            tt.insert_shared_cache_for_parameter()
        moved = []
        for index, layer in enumerate(models[name]):
            with torch.cuda.stream(stream):
                if layer is not None:
                    moved.append(layer.cuda(non_blocking=True))
                    event = torch.cuda.Event()
                    event.record()
                    event.synchronize()
                transferred.send(index)
        del moved
        with torch.cuda.stream(stream):
            tt.clear_shared_cache()
        check(name, request, requests.recv())


def main(socket: str) -> None:
    configure(socket)
    torch.randn(1024, device="cuda")
    tt.allocate_shared_cache()
    workers = []
    for _ in range(2):
        here, there = mp.Pipe()
        transferred_here, transferred_there = mp.Pipe()
        worker = mp.Process(target=work, args=(socket, there, transferred_there), daemon=True)
        worker.start()
        tt.send_shared_cache()
        workers.append((here, worker, transferred_here))
    for requests, _, _ in workers:
        assert requests.recv() == "ready"
    schedule(workers)
    for requests, worker, _ in workers:
        requests.send(None)
        worker.join()
        assert worker.exitcode == 0
    print("as it should be")


if __name__ == "__main__":
    mp.set_start_method("spawn")
    main(sys.argv[1])
