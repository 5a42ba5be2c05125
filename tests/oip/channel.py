"""A server's calls over gRPC, with messages as bytes: no generated code is involved."""

from __future__ import annotations

import pytest
from messages import SERVICE


class Channel:
    def __init__(self, address: str) -> None:
        self.grpc = pytest.importorskip("grpc", reason="pip install grpcio")
        self.channel = self.grpc.insecure_channel(address)

    def call(self, method: str, message: bytes = b"") -> bytes:
        return self.channel.unary_unary(SERVICE + method)(message, timeout=120)

    def refuses(self, method: str, message: bytes) -> str:
        """Makes a call that must fail, and returns the name of the error's code."""
        with pytest.raises(self.grpc.RpcError) as caught:
            self.call(method, message)
        return caught.value.code().name
