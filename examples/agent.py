"""An agent in Python that takes the place of `tenure agent serve`: tensors by density, first fit, into the first tier.

    python examples/agent.py --socket /tmp/agent.sock --results /dev/shm
    tenure agent ask problem.json --socket /tmp/agent.sock

`docs/agent-protocol.md` says what is spoken. It needs nothing but Python, answers one client after the other, and knows
no kernel traces: what it is asked has tiers.
"""

import argparse
import json
import os
import socket
import struct
import tempfile
import time
from pathlib import Path

HEADER, MAGIC, VERSION, PLACE, PLACED, REFUSED, LONGEST = struct.Struct("<4sHHI"), b"TNAG", 1, 1, 2, 3, 256 << 20


def place(problem, capacity):
    """Numbers of the tensors that live in the first tier."""
    lives, accessed, fast = {}, {}, set()
    for number, kernel in enumerate(problem["kernels"]):
        for access in kernel["reads"] + kernel["writes"]:
            tensor = access["tensor"]
            lives[tensor] = (lives.get(tensor, (number,))[0], number)
            accessed[tensor] = accessed.get(tensor, 0) + access["bytes"]
    for number, tensor in enumerate(problem["tensors"]):
        if tensor.get("tag") in ("weight", "optimizer_state"):
            lives[number] = (0, len(problem["kernels"]) - 1)
    held = {it: problem["tensors"][it]["bytes"] * (last - first + 1) for it, (first, last) in lives.items()}
    used = [0] * len(problem["kernels"])
    for it in sorted(lives, key=lambda it: -accessed.get(it, 0) / held[it] if held[it] else float("-inf")):
        (first, last), size = lives[it], problem["tensors"][it]["bytes"]
        if max(used[first : last + 1], default=0) + size <= capacity:
            used[first : last + 1] = [bytes_ + size for bytes_ in used[first : last + 1]]
            fast.add(it)
    return fast, sum(accessed.get(it, 0) for it in fast) / (sum(accessed.values()) or 1)


def answer(request, results):
    begun, problem, options = time.monotonic(), request["problem"], request.get("options", {})
    capacity = options.get("fast_bytes", problem["tiers"][0].get("capacity", float("inf")))
    fast, score = place(problem, capacity)
    places = {tensor["key"]: int(number not in fast) for number, tensor in enumerate(problem["tensors"])}
    mapping = {"format": "tenure-mapping", "version": 1, "program": problem["name"], "places": places}
    mapping["tiers"] = [tier["name"] for tier in problem["tiers"]]
    with tempfile.NamedTemporaryFile("w", prefix="mapping-", suffix=".json", dir=results, delete=False) as file:
        json.dump(mapping, file)
    # It has no simulator: that the program takes so long is not said, and the client knows better.
    return {"mapping": file.name, "planner": "density in Python", "score": score, "makespan_us": 0.0,
            "evaluations": 1, "seconds": time.monotonic() - begun}  # fmt: skip


def serve(connection, results):
    with connection, connection.makefile("rwb") as stream:
        while len(header := stream.read(HEADER.size)) == HEADER.size:
            magic, version, kind, length = HEADER.unpack(header)
            wrong = {"magic": magic != MAGIC, "version": version != VERSION, "length": length > LONGEST}
            wrong["kind"] = kind != PLACE
            code = next((code for code, is_wrong in wrong.items() if is_wrong), "body")
            try:
                if any(wrong.values()):
                    raise ValueError(f"this agent speaks version {VERSION}, and answers requests")
                kind, reply = PLACED, answer(json.loads(stream.read(length)), results)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                kind, reply = REFUSED, {"code": code, "message": repr(error)}
            body = json.dumps(reply).encode()
            stream.write(HEADER.pack(MAGIC, VERSION, kind, len(body)) + body)
            stream.flush()
            if kind == REFUSED:
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    args = parser.parse_args()
    args.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        os.umask(0o077)
        listener.bind(str(args.socket))
        listener.listen()
        while True:
            try:
                serve(listener.accept()[0], args.results.resolve())
            except OSError as error:
                print(f"a client went away: {error}")
