"""HTTP/1.1 over sockets, so that a test sends and sees each byte."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

# The limit of a test whose server does not answer. Nothing else depends on it.
PATIENCE_S = 120.0


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Returns the body, parsed as JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise AssertionError(f"status {self.status}, and the body is no JSON: {self.body[:200]!r}") from None


@dataclass
class Address:
    """The address of a server, and the headers of each request to it."""

    url: str
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
        self.secure = parts.scheme == "https"
        self.host = parts.hostname or "localhost"
        self.port = parts.port or (443 if self.secure else 80)
        self.prefix = parts.path.rstrip("/")

    def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
        """Returns the bytes of a request."""
        all_headers = {"Host": f"{self.host}:{self.port}", **self.extra}
        if method != "GET" or body:
            all_headers["Content-Length"] = str(len(body))
        all_headers.update(headers or {})
        # A test leaves a header out by giving it an empty value.
        lines = [f"{name}: {value}\r\n" for name, value in all_headers.items() if value != ""]
        return f"{method} {self.prefix}/{path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + body


class Connection:
    """A connection, which a test uses for one request or several."""

    def __init__(self, address: Address, patience_s: float = PATIENCE_S) -> None:
        self.address = address
        plain = socket.create_connection((address.host, address.port), timeout=patience_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = ssl.create_default_context() if address.secure else None
        self.socket = context.wrap_socket(plain, server_hostname=address.host) if context else plain
        self.stream = self.socket.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()

    def send(self, request: bytes) -> None:
        try:
            self.socket.sendall(request)
        except ConnectionError:
            # The server may answer and close the connection before it has read everything.
            pass

    def receive(self) -> Answer:
        """Returns the next answer, without interim ones (status 1xx)."""
        while True:
            answer = self.receive_any()
            if answer.status >= 200:
                return answer

    def receive_any(self) -> Answer:
        try:
            line = self.stream.readline()
        except ConnectionError as error:
            raise AssertionError(f"the server closed the connection and did not answer: {error}") from None
        assert line, "the server closed the connection and did not answer"
        status = int(line.split()[1])
        headers = {name.lower(): value for name, value in http.client.parse_headers(self.stream).items()}
        return Answer(status, headers, self._body(status, headers))

    def _body(self, status: int, headers: dict[str, str]) -> bytes:
        if status < 200 or status in (204, 304):
            return b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks()
        if "content-length" not in headers:
            return self.stream.read()
        length = int(headers["content-length"])
        body = self.stream.read(length)
        assert len(body) == length, f"Content-Length is {length}, and the body has {len(body)} bytes"
        return body

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.stream.readline().split(b";")[0], 16):
            body += self.stream.read(size)
            self.stream.readline()
        while self.stream.readline().strip():
            pass
        return body

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        self.send(self.address.request(method, path, body, headers))
        return self.receive()
