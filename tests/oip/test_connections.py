"""Checks of several requests: on one connection, one after the other or all at once, and on several connections."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from checks import BEYOND, check
from server import Model, good, split
from test_infer import assert_same
from wire import Connection


@check("connection.reused", BEYOND, "RFC 9112, 9.3: connections are persistent")
def test_several_requests_on_one_connection(first: Model) -> None:
    with Connection(first.server.address) as connection:
        for number in range(5):
            body, headers = first.request(id=str(number)).encode()
            answer = connection.ask("POST", first.infer_path(), body, headers)
            first.outputs_of(answer)
            assert split(answer)[0]["id"] == str(number)
            good(connection.ask("GET", "v2"))


@check("connection.pipelined", BEYOND, "RFC 9112, 9.3.2: a server MUST send the answers in the order of the requests")
def test_requests_that_do_not_wait_for_answers(first: Model) -> None:
    requests = b""
    for number in range(8):
        body, headers = first.request(id=str(number)).encode()
        requests += first.server.address.request("POST", first.infer_path(), body, headers)
    with Connection(first.server.address) as connection:
        connection.send(requests)
        ids = [split(good(connection.receive()))[0]["id"] for _ in range(8)]
    assert ids == [str(number) for number in range(8)]


@check("connection.chunked", BEYOND, "RFC 9112, 7.1: a recipient MUST be able to decode the chunked transfer coding")
def test_a_body_in_chunks(first: Model) -> None:
    body, headers = first.request().encode()
    chunks = [body[at : at + 7] for at in range(0, len(body), 7)]
    coded = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    headers = {**headers, "Transfer-Encoding": "chunked", "Content-Length": ""}
    with Connection(first.server.address) as connection:
        connection.send(first.server.address.request("POST", first.infer_path(), b"", headers) + coded)
        first.outputs_of(connection.receive())
        good(connection.ask("GET", "v2"))


@check("connection.continue", BEYOND, "RFC 9110, 10.1.1: 100 (Continue), or the final answer")
def test_a_body_that_waits_to_be_asked_for(first: Model) -> None:
    body, headers = first.request().encode()
    headers = {**headers, "Expect": "100-continue", "Content-Length": str(len(body))}
    with Connection(first.server.address, patience_s=20) as connection:
        connection.send(first.server.address.request("POST", first.infer_path(), b"", headers))
        assert connection.receive_any().status == 100
        connection.send(body)
        first.outputs_of(connection.receive())


@check("connection.closed", BEYOND, "RFC 9112, 9.6: a server that gets the close option closes after its answer")
def test_a_connection_that_is_to_be_closed(first: Model) -> None:
    with Connection(first.server.address) as connection:
        good(connection.ask("GET", "v2", headers={"Connection": "close"}))
        assert connection.stream.read() == b""


@check("connection.many", BEYOND, "requests of several clients at once are answered as alone")
def test_requests_of_several_clients(first: Model) -> None:
    alone = first.infer()
    with ThreadPoolExecutor(8) as pool:
        for outputs in pool.map(lambda _: first.infer(), range(24)):
            assert_same(outputs, alone)
