"""Checks of regions in CUDA devices' memory that a program without such memory can make."""

from __future__ import annotations

import base64
import uuid
from typing import Any

from checks import CUDA_SHARED_MEMORY, check
from server import Server, assert_error, good

ROUTE = "v2/cudasharedmemory"


def register(server: Server, name: str, handle: bytes) -> Any:
    body = {"raw_handle": {"b64": base64.b64encode(handle).decode()}, "device_id": 0, "byte_size": 64}
    return server.ask("POST", f"{ROUTE}/region/{name}/register", body)


@check("cuda-shared-memory.status", CUDA_SHARED_MEMORY, "information is returned for all currently registered regions")
def test_no_region_is_listed(server: Server) -> None:
    good(server.ask("POST", f"{ROUTE}/unregister"))
    assert server.get(f"{ROUTE}/status") == []


@check(
    "cuda-shared-memory.error.handle",
    CUDA_SHARED_MEMORY,
    "A failed register request must be indicated by an HTTP error status",
)
def test_a_handle_of_nothing(server: Server) -> None:
    name = f"oip-{uuid.uuid4().hex}"
    for handle in (bytes(64), bytes(63), b""):
        answer = register(server, name, handle)
        assert_error(answer)
        assert 400 <= answer.status < 500, answer.status
    assert name not in {region["name"] for region in server.get(f"{ROUTE}/status")}


@check("cuda-shared-memory.unregister", CUDA_SHARED_MEMORY, "A successful unregister request is indicated by a 200")
def test_a_region_that_is_not_there_is_unregistered(server: Server) -> None:
    good(server.ask("POST", f"{ROUTE}/region/oip-{uuid.uuid4().hex}/unregister"))
