"""A server's calls over gRPC, with messages that are bytes: no generated code stands between."""

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
        """The name of the code of an error."""
        with pytest.raises(self.grpc.RpcError) as caught:
            self.call(method, message)
        return caught.value.code().name
