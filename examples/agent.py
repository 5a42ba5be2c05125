"""An agent in Python that replaces `tenure agent serve`: tensors by density, first fit, into the first tier.

`python examples/agent.py /tmp/agent.sock /dev/shm` serves `docs/reference/agent-protocol.md` to any number of clients.
"""
import fcntl, json, os, pathlib, socketserver, struct, sys, time, uuid  # noqa: E401
HEADER, SPOKEN, PLACED, REFUSED, LONGEST = struct.Struct("<4sHHI"), (b"TNAG", 1, 1), 2, 3, 256 << 20


def place(tensors, kernels, capacity):
    lives, accessed, used, fast = {}, {}, [0] * len(kernels), set()
    for number, kernel in enumerate(kernels):
        for access in kernel["reads"] + kernel["writes"]:
            it = access["tensor"]
            is_always_there = tensors[it].get("tag") in ("weight", "optimizer_state")
            lives[it] = (0, len(kernels) - 1) if is_always_there else (lives.get(it, (number,))[0], number)
            accessed[it] = accessed.get(it, 0) + access["bytes"]
    room = {it: max(tensors[it]["bytes"], 1) * (last - first + 1) for it, (first, last) in lives.items()}
    for it in sorted(lives, key=lambda it: -accessed[it] / room[it]):
        held, life = tensors[it]["bytes"], slice(lives[it][0], lives[it][1] + 1)
        if max(used[life]) + held <= capacity:
            used[life] = [others + held for others in used[life]]
            fast.add(it)
    return fast, sum(accessed[it] for it in fast) / (sum(accessed.values()) or 1)


def answer(problem, options):
    begun, tiers, path = time.monotonic(), problem["tiers"], RESULTS / f"mapping-{uuid.uuid4()}.json"
    capacity = options.get("fast_bytes", tiers[0].get("capacity", float("inf")))
    fast, score = place(problem["tensors"], problem["kernels"], capacity)
    places = {tensor["key"]: min(int(it not in fast), len(tiers) - 1) for it, tensor in enumerate(problem["tensors"])}
    mapping = {"format": "tenure-mapping", "version": 1, "tiers": [tier["name"] for tier in tiers], "places": places}
    path.with_suffix(".new").write_text(json.dumps(mapping))
    path.with_suffix(".new").rename(path)  # A reader finds the whole file or none.
    seconds = time.monotonic() - begun
    return dict(mapping=str(path), planner="density", score=score, makespan_us=0.0, evaluations=1, seconds=seconds)


class Agent(socketserver.StreamRequestHandler):
    timeout = 30  # The seconds that a client may be silent.

    def handle(self):
        kind = PLACED
        while kind == PLACED and len(header := self.rfile.read(HEADER.size)) == HEADER.size:
            *spoken, length = HEADER.unpack(header)
            found = zip(("magic", "version", "kind", "length"), (*spoken, length > LONGEST), (*SPOKEN, False))
            code = next((name for name, it, known in found if it != known), "body")
            try:
                request = json.loads(self.rfile.read(length)) if code == "body" else {}
                reply = answer(request["problem"], request.get("options", {}))
            except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
                kind, reply = REFUSED, {"code": code, "message": f"this agent speaks version 1: {error!r}"}
            self.wfile.write(HEADER.pack(*SPOKEN[:2], kind, len(body := json.dumps(reply).encode())) + body)


if __name__ == "__main__":
    path, RESULTS = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    os.umask(0o077)
    fcntl.flock(lock := open(f"{path}.lock", "w"), fcntl.LOCK_EX | fcntl.LOCK_NB)  # Its owner, if any, is dead.
    path.unlink(missing_ok=True)
    socketserver.ThreadingUnixStreamServer(str(path), Agent).serve_forever()
