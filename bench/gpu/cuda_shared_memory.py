"""Asks `tenure serve` for a model whose tensors are in this process's GPU memory, and compares the answers.

The memory comes from `cuMemAlloc`, and its handle is registered with the server over HTTP. The scores that the server
writes to it must be, bit for bit, the scores that it sends for tokens in the request. Needs only numpy and the driver.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import http.client
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from serve import TOKENS, Client, make

VOCABULARY = 256


class Memory:
    """GPU memory that other processes may open."""

    def __init__(self, device: int, size: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context, number, self._at = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(number), device)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemAlloc_v2", ctypes.byref(self._at), ctypes.c_size_t(size))
        self.device, self.size = device, size

    def _call(self, name: str, *args: Any) -> None:
        error = getattr(self._cuda, name)(*args)
        assert error == 0, f"{name}: error {error}"

    def handle(self) -> bytes:
        handle = (ctypes.c_ubyte * 64)()
        self._call("cuIpcGetMemHandle", handle, self._at)
        return bytes(handle)

    def write(self, offset: int, data: bytes) -> None:
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(self._at.value + offset), data, ctypes.c_size_t(len(data)))

    def read(self, offset: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(self._at.value + offset), ctypes.c_size_t(size))
        return data.raw


class Server:
    """A connection to the server."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=120)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self._connection.request(method, path, json.dumps(body) if body is not None else None)
        response = self._connection.getresponse()
        data = response.read()
        return response.status, json.loads(data) if data else None

    def register(self, name: str, handle: bytes, device: int, size: int) -> tuple[int, Any]:
        raw_handle = {"b64": base64.b64encode(handle).decode()}
        body = {"raw_handle": raw_handle, "device_id": device, "byte_size": size}
        return self.ask("POST", f"/v2/cudasharedmemory/region/{name}/register", body)


def place(offset: int, size: int) -> dict[str, Any]:
    return {"shared_memory_region": "r", "shared_memory_offset": offset, "shared_memory_byte_size": size}


def check(address: str, model: str, device: int, rounds: int) -> None:
    tokens: NDArray[np.int64] = np.array([(7 * at + 1) % 256 for at in range(TOKENS)], np.int64)
    status, expected = Client(address).ask(model)
    assert status == 200, expected
    assert len(expected) == TOKENS * VOCABULARY * 4
    memory, server = Memory(device, tokens.nbytes + len(expected)), Server(address)
    _, metadata = server.ask("GET", "/v2")
    assert "cuda_shared_memory" in metadata["extensions"], metadata
    for handle, number, what in ((bytes(64), device, "a handle of nothing"), (memory.handle(), 99, "no such device")):
        status, answer = server.register("r", handle, number, 1)
        assert status == 400, (what, status, answer)
        print(f"{what}: {answer['error']}")
    status, answer = server.register("r", memory.handle(), device, 1 << 40)
    assert status == 400, answer
    status, answer = server.register("r", memory.handle(), device, memory.size)
    assert status == 200, answer
    memory.write(0, tokens.tobytes())
    spec = {"name": "tokens", "datatype": "INT64", "shape": [1, TOKENS], "parameters": place(0, tokens.nbytes)}
    output = {"name": "scores", "parameters": place(tokens.nbytes, len(expected))}
    begun = time.monotonic()
    for _ in range(rounds):
        memory.write(tokens.nbytes, bytes(len(expected)))
        status, answer = server.ask("POST", f"/v2/models/{model}/infer", {"inputs": [spec], "outputs": [output]})
        assert status == 200, answer
        assert memory.read(tokens.nbytes, len(expected)) == expected, "the memory has other scores"
    print(f"{rounds} equal answers, {1e3 * (time.monotonic() - begun) / rounds:.2f} ms each")
    # A handle can be opened again after it was closed.
    for _ in range(2):
        assert server.ask("POST", "/v2/cudasharedmemory/region/r/unregister")[0] == 200
        assert server.ask("GET", "/v2/cudasharedmemory/status") == (200, [])
        assert server.register("r", memory.handle(), device, memory.size)[0] == 200
    assert server.register("again", memory.handle(), device, memory.size)[0] == 200
    assert server.ask("POST", "/v2/cudasharedmemory/unregister")[0] == 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), 1, 2)
        command = [str(args.program.resolve()), "serve", folder, "--listen", "127.0.0.1:0", "--json"]
        command += ["--device", f"cuda:{args.device}"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            said = json.loads(server.stdout.readline())
            check(said["url"].removeprefix("http://"), said["models"][0], args.device, args.rounds)
        finally:
            server.terminate()
            print("server ended with", server.wait(120))


if __name__ == "__main__":
    main()
