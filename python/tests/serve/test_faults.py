"""`tenure serve` under faults: after each one, the next request gets the right answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from . import fuzzed
from .serving import PROGRAM, Server, needs_program, tensor, until

pytestmark = needs_program

IMAGE = tensor("image", "FP32", [1, 1, 28, 28], [index % 255 / 255 for index in range(784)])
# Takes an unoptimised program a second or more.
LONG = tensor("tokens", "INT64", [1, 700], [index % 256 for index in range(700)])
SHORT = tensor("tokens", "INT64", [1, 5], [72, 101, 108, 108, 111])
# Programs that each send a request which takes long, and wait for the answer.
CLIENTS = {
    "http": """
import sys, urllib.request
urllib.request.urlopen(f"http://{sys.argv[1]}/v2/models/next-byte/infer", sys.argv[2].encode()).read()
""",
    "grpc": """
import json, sys, numpy, tritonclient.grpc as client
tokens = numpy.array([json.loads(sys.argv[2])["inputs"][0]["data"]])
asked = client.InferInput("tokens", list(tokens.shape), "INT64")
asked.set_data_from_numpy(tokens)
client.InferenceServerClient(sys.argv[1]).infer("next-byte", [asked])
""",
}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the answers of the example models, which are always the same, from a server without faults."""
    models = tmp_path_factory.mktemp("right") / "models"
    subprocess.run([PROGRAM, "models", "init", models], check=True, capture_output=True)
    with Server(models) as server:
        answers = {"digits": server.infer("digits", IMAGE), "next-byte": server.infer("next-byte", SHORT)}
        assert server.end() == 0
    assert all(status == 200 for status, _ in answers.values())
    return answers


def is_right(server: Server, right: dict[str, Any]) -> bool:
    answers = {"digits": server.infer("digits", IMAGE), "next-byte": server.infer("next-byte", SHORT)}
    return answers == right


@contextmanager
def computing(server: Server, send: Callable[[], Any]) -> Iterator[tuple[Any, Future[Any]]]:
    """Yields the result of `send`, whose request is being computed, and another request of its model that waits after
    it."""
    with ThreadPoolExecutor(1) as pool:
        # A busy machine may miss the moment.
        while True:
            sent = send()
            until("it is computed", lambda: bool(busy(server)))
            behind = pool.submit(server.infer, "next-byte", SHORT)
            while not behind.done():
                if server.queued().get("next-byte") == 1:
                    yield sent, behind
                    return


def halt_at_one_queued(server: Server) -> list[int]:
    """Halts the workers that compute, and returns them; or none, if the request of next-byte that was computed ended
    first."""
    halted = busy(server)
    for worker in halted:
        os.kill(worker, signal.SIGSTOP)
    if server.queued().get("next-byte") == 1:
        return halted
    for worker in halted:
        os.kill(worker, signal.SIGCONT)
    return []


def connected(server: Server) -> socket.socket:
    """Connects a client that has sent a long request and reads nothing."""
    host, port = server.address.split(":")
    client = socket.create_connection((host, int(port)))
    body = json.dumps({"inputs": [LONG]}).encode()
    head = f"POST /v2/models/next-byte/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def test_a_killed_worker_fails_what_it_computed_alone(models: Path, right: dict[str, Any]) -> None:
    with Server(models) as server, ThreadPoolExecutor(1) as pool:
        until("two workers", lambda: len(server.workers()) == 2)
        halted: list[int] = []
        while not halted:
            with computing(server, lambda: pool.submit(server.infer, "next-byte", LONG)) as (long, behind):
                halted = halt_at_one_queued(server)
                if halted:
                    # The worker of the other model spares it.
                    assert server.infer("digits", IMAGE) == right["digits"]
                for worker in halted:
                    os.kill(worker, signal.SIGKILL)
                status, reason = long.result()
                assert behind.result() == right["next-byte"]
        assert status == 503 and "SIGKILL" in reason
        assert is_right(server, right)
        until("a worker for each model, and one more", lambda: len(server.workers()) == 3)
        assert server.end() == 0


def test_a_killed_server_leaves_nothing_and_starts_again(models: Path, right: dict[str, Any]) -> None:
    shared = set(os.listdir("/dev/shm"))
    with Server(models) as server:
        workers = server.workers()
        clients = []
        with computing(server, lambda: clients.append(connected(server))) as (_, behind):
            server.process.kill()
            server.process.wait()
            assert behind.exception() is not None
        for client in clients:
            client.close()
    until("its workers have ended", lambda: not any(Path(f"/proc/{worker}/exe").exists() for worker in workers))
    assert not [name for name in set(os.listdir("/dev/shm")) - shared if "tenure" in name]
    with Server(models) as server:
        assert is_right(server, right)


@pytest.mark.parametrize("protocol", CLIENTS)
def test_a_killed_client_hinders_no_other(models: Path, right: dict[str, Any], protocol: str) -> None:
    if protocol == "grpc":
        pytest.importorskip("tritonclient.grpc", reason="pip install 'tritonclient[grpc]'")
    with Server(models) as server:
        address = server.address if protocol == "http" else server.grpc_address
        command = [sys.executable, "-c", CLIENTS[protocol], address, json.dumps({"inputs": [LONG]})]
        clients: list[subprocess.Popen[bytes]] = []

        def client() -> None:
            clients.append(subprocess.Popen(command))
            until("it asks or has its answer", lambda: bool(busy(server)) or clients[-1].poll() is not None)

        with computing(server, client) as (_, behind):
            clients[-1].kill()
            assert behind.result() == right["next-byte"]
        assert [each.wait() for each in clients][-1] == -signal.SIGKILL
        assert is_right(server, right)
        assert server.end() == 0


def busy(server: Server) -> list[int]:
    """Returns the workers of which a thread runs on a processor, or is ready to."""
    found = []
    for worker in server.workers():
        try:
            threads = list(Path(f"/proc/{worker}/task").glob("*/stat"))
            states = [thread.read_text().rpartition(") ")[2][0] for thread in threads]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "R" in states:
            found.append(worker)
    return found


def test_a_request_that_is_cancelled_in_the_queue_or_while_it_runs_makes_room(
    models: Path, right: dict[str, Any]
) -> None:
    with Server(models) as server, ThreadPoolExecutor(1) as pool:
        with computing(server, lambda: pool.submit(server.infer, "next-byte", LONG)) as (long, behind):
            waiting = connected(server)
            until("both wait or the other is done", lambda: server.queued()["next-byte"] == 2 or long.done())
            waiting.close()
            until("it is taken back", lambda: server.queued()["next-byte"] < 2)
            assert long.result()[0] == 200 and behind.result() == right["next-byte"]
        with computing(server, lambda: connected(server)) as (running, behind):
            running.close()
            assert behind.result() == right["next-byte"]
        assert is_right(server, right)
        assert server.end() == 0


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "empty": lambda _: b"",
    "no header": lambda whole: b"\xff" * 64 + whole[64:],
    "a header that lies": lambda whole: whole.replace(b"[0,", b"[7,", 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_weights_are_a_model_that_is_not_ready(models: Path, right: dict[str, Any], damage: str) -> None:
    weights = models / "next-byte" / "model.safetensors"
    whole = weights.read_bytes()
    # One of the two models fits.
    with Server(models, "--device-bytes", "800kB") as server:
        assert is_right(server, right) and server.infer("digits", IMAGE) == right["digits"]
        weights.write_bytes(DAMAGES[damage](whole))
        assert server.infer("next-byte", SHORT)[0] == 503
        until("it is not ready", lambda: server.index()["next-byte"][0] == "UNAVAILABLE")
        assert "model.safetensors" in server.index()["next-byte"][1]
        status, reason = server.infer("next-byte", SHORT)
        assert status == 503 and "model.safetensors" in reason
        assert server.infer("digits", IMAGE) == right["digits"]
        weights.write_bytes(whole)
        until("it is served again", lambda: server.index()["next-byte"][0] == "READY")
        assert is_right(server, right)
        assert server.end() == 0


def test_a_model_larger_than_the_memory_says_which_option_helps(models: Path, right: dict[str, Any]) -> None:
    with Server(models, "--device-bytes", "600kB") as server:
        status, reason = server.infer("digits", IMAGE)
        assert status == 503 and server.index()["digits"] == ("UNAVAILABLE", reason.partition("not ready: ")[2])
        assert server.infer("next-byte", SHORT) == right["next-byte"]
    option = reason.rpartition("(tenure serve: ")[2].removesuffix(")").split()
    with Server(models, *option) as server:
        assert is_right(server, right)


def test_two_clients_in_turns_each_have_their_own_answers(models: Path, right: dict[str, Any]) -> None:
    with Server(models, "--device-bytes", "800kB") as server, ThreadPoolExecutor(2) as pool:
        turns = threading.Barrier(2)

        def ask(model: str, asked: dict[str, Any]) -> list[Any]:
            answers = []
            for _ in range(20):
                turns.wait()
                answers.append(server.infer(model, asked))
            return answers

        digits, bytes_ = pool.submit(ask, "digits", IMAGE), pool.submit(ask, "next-byte", SHORT)
        assert digits.result() == [right["digits"]] * 20 and bytes_.result() == [right["next-byte"]] * 20


def test_ten_thousand_malformed_requests_are_the_clients_fault(models: Path, right: dict[str, Any]) -> None:
    with Server(models) as server:
        host, port = server.address.split(":")

        def send(seed: int) -> dict[str, int]:
            statuses: dict[str, int] = {}
            for request in fuzzed.requests(seed, 2500):
                answer = b""
                try:
                    with socket.create_connection((host, int(port))) as client:
                        client.sendall(request)
                        client.shutdown(socket.SHUT_WR)
                        while received := client.recv(1 << 16):
                            answer += received
                except OSError:  # The server has closed it.
                    pass
                status = answer[9:12].decode() if answer.startswith(b"HTTP/") else "closed"
                assert status < "500" or status == "closed", (request, answer)
                statuses[status] = statuses.get(status, 0) + 1
            return statuses

        with ThreadPoolExecutor(4) as pool:
            counted = list(pool.map(send, range(4)))
        assert sum(sum(statuses.values()) for statuses in counted) == 10_000
        assert all(statuses["400"] > 500 for statuses in counted), counted
        assert is_right(server, right)
        assert server.end() == 0


def test_a_log_on_a_full_disk_stops_nothing(models: Path, right: dict[str, Any]) -> None:
    with open("/dev/full", "w") as full, Server(models, "--log", "json", stderr=full) as server:
        assert all(is_right(server, right) for _ in range(5))
        assert server.end() == 0


def test_shared_memory_that_is_cut_is_its_clients_fault(models: Path, right: dict[str, Any]) -> None:
    key = f"tenure-test-{os.getpid()}"
    memory = Path("/dev/shm", key)
    try:
        memory.write_bytes(bytes(784 * 4))
        with Server(models) as server:
            region = {"key": f"/{key}", "offset": 0, "byte_size": 784 * 4}
            status, said, _ = server.request("POST", "/v2/systemsharedmemory/region/cut/register", region)
            assert status == 200, said
            place = {"shared_memory_region": "cut", "shared_memory_byte_size": 784 * 4}
            asked = {key: IMAGE[key] for key in ("name", "datatype", "shape")} | {"parameters": place}
            assert server.infer("digits", asked)[0] == 200
            os.truncate(memory, 100)
            status, reason = server.infer("digits", asked)
            assert 400 <= status < 500, reason
            assert is_right(server, right)
            assert server.end() == 0
    finally:
        memory.unlink()
