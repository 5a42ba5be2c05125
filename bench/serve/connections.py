#!/usr/bin/env python3
"""Measures how fast `tenure serve` answers a health check beside connections that send nothing.

`/health` is asked over a new connection each time: alone, beside idle connections, and, of a server with TLS, beside
handshakes that were begun and not ended. They come from one address, and then from several of the loopback network.
Each check should take less than 100 ms. Needs the program, and openssl for a certificate:

    bench/serve/connections.py --tenure target/release/tenure
"""

import argparse
import contextlib
import json
import pathlib
import resource
import socket
import ssl
import subprocess
import tempfile
import time

from server import serving, write_models

#: The first bytes of a TLS handshake: the head of a record of 512 bytes, of which the first follow.
HALF_HELLO = bytes([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3])


def silent(port: int, count: int, addresses: int, sent: bytes) -> list[socket.socket]:
    """Opens connections from several addresses, and sends the same bytes, or none, on each."""
    opened = []
    for number in range(count):
        connection = socket.create_connection(
            ("127.0.0.1", port), source_address=(f"127.0.0.{1 + number % addresses}", 0)
        )
        # The server may have closed it already.
        with contextlib.suppress(OSError):
            connection.sendall(sent)
        opened.append(connection)
    return opened


def checks(port: int, requests: int, secure: ssl.SSLContext | None) -> dict[str, float]:
    """Returns the times of health checks in ms."""
    times = []
    for _ in range(requests):
        begun = time.perf_counter()
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            if secure is not None:
                connection = stack.enter_context(secure.wrap_socket(connection))
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = connection.recv(4096)
        times.append((time.perf_counter() - begun) * 1e3)
        assert answer.startswith(b"HTTP/1.1 200"), answer
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100], "max": times[-1]}


def measure(port: int, args: argparse.Namespace, count: int, sent: bytes, secure: ssl.SSLContext | None) -> dict:
    figures = {"alone_ms": checks(port, args.requests, secure)}
    for addresses in 1, 16:
        connections = silent(port, count, addresses, sent)
        figures[f"beside_{count}_of_{addresses}_ms"] = checks(port, args.requests, secure)
        for connection in connections:
            connection.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenure", type=pathlib.Path, default="target/release/tenure")
    parser.add_argument("--requests", type=int, default=200, help="checks of each kind (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="the figures, as JSON")
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as temporary:
        models, key, certificate = (pathlib.Path(temporary) / name for name in ("models", "key.pem", "certificate.pem"))
        write_models(args.tenure, models)
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-keyout", key, "-out", certificate, "-days", "1", "-subj", "/CN=localhost"]
        subprocess.run(command, check=True, capture_output=True)
        with serving(args.tenure, models) as port:
            idle = measure(port, args, 2000, b"", None)
        secure = ssl.create_default_context()
        secure.check_hostname, secure.verify_mode = False, ssl.CERT_NONE
        with serving(args.tenure, models, "--tls-cert", certificate, "--tls-key", key) as port:
            half_open = measure(port, args, 1000, HALF_HELLO, secure)
    figures = {"idle": idle, "half_open_tls": half_open}
    print(json.dumps(figures, indent=None if args.json else 2))


if __name__ == "__main__":
    main()
