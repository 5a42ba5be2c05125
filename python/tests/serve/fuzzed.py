"""HTTP requests with mistakes of most kinds. A seed gives the same requests each time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "get", "", "G\x00T", "POST POST", "Ä"]
PATHS = [
    "/", "/metrics", "/v2", "/v2/", "/v2/health/live", "/v2/models/digits", "/v2/models/digits/infer",
    "/v2/models/digits/versions/1/infer", "/v2/models/digits/versions/9/ready", "/v2/models/absent/infer",
    "/v2/models/stats", "/v2/models/%ff%00/infer", "/v2/models/../../etc/passwd", "/v2/repository/index",
    "/v2/repository/models/absent/load", "/v2/systemsharedmemory/status", "/v2/systemsharedmemory/region/x/register",
    "/v1/embeddings", "/v1/models", "//", "/" + "a" * 3000, "v2", "*", "http://[::1/",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**64, -(2**63), 1e308, 0.5, "", "FP32", "BYTES", "INT64", "image", "\u0000", [], {},
    [[]], [1, [2]], {"a": {"b": []}}, ["x"] * 50,
]  # fmt: skip
HEADERS = [
    "Content-Length: 5", "Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: 1, 2",
    "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Inference-Header-Content-Length: 7",
    "Inference-Header-Content-Length: -7", "Inference-Header-Content-Length: 18446744073709551615",
    "Content-Encoding: gzip", "Content-Encoding: deflate", "Content-Encoding: br", "Content-Type: text/plain",
    "Expect: 100-continue", "Authorization: Bearer \xff", "X-Request-Id: " + "i" * 500, "no colon", ": no name",
    "Host:", "Host: a\x00b", "Accept: */*;q=x", "Sec-Fetch-Site: cross-site", " folded", "X: " + "x" * 9000,
]  # fmt: skip


def infer(generator: random.Random) -> bytes:
    """Returns the body of an inference request in which some values or bytes are changed."""
    image: dict[str, Any] = {"name": "image", "datatype": "FP32", "shape": [1, 1, 28, 28], "data": [0.5] * 784}
    body: dict[str, Any] = {"id": "1", "parameters": {}, "inputs": [image], "outputs": [{"name": "scores"}]}
    for _ in range(generator.randint(1, 3)):
        changed = generator.choice([body, image])
        changed[generator.choice([*changed, "parameters", "other"])] = generator.choice(VALUES)
    text = bytearray(json.dumps(body).encode())
    for _ in range(generator.choice([0, 0, 1, 5])):
        text[generator.randrange(len(text))] = generator.randrange(256)
    return bytes(text[: generator.choice([len(text), generator.randrange(len(text))])])


def requests(seed: int, number: int) -> Iterator[bytes]:
    """Yields `number` requests. None of them unloads a model."""
    generator = random.Random(seed)
    for _ in range(number):
        kind = generator.random()
        if kind < 0.1:
            yield generator.randbytes(generator.randint(1, 200))
            continue
        method, path = "POST", "/v2/models/digits/infer"
        if kind < 0.6:
            method, path = generator.choice(METHODS), generator.choice(PATHS)
        body = generator.choice([infer(generator), generator.randbytes(50), b"", b"{}", b"[" * 5000])
        length = generator.choice([len(body)] * 8 + [0, len(body) + 3, 10**12])
        headers = generator.sample(HEADERS, generator.choice([0, 0, 0, 1, 2]))
        version = generator.choice(["HTTP/1.1"] * 8 + ["HTTP/1.0", "HTTP/9.9", "", "HTTP/2.0"])
        lines = [
            f"{method} {path} {version}",
            "Host: localhost",
            "Connection: close",
            *headers,
            f"Content-Length: {length}",
        ]
        end = generator.choice(["\r\n"] * 8 + ["\n", "\r"])
        yield (end.join(lines) + end + end).encode("latin-1", "replace") + body
