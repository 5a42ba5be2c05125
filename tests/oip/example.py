"""A server that passes the suite: three models that return their inputs, with all extensions that are checked.

    python tests/oip/example.py [FAULT]...

It prints its address, and on a second line its gRPC address if grpcio is installed. A fault is one that the suite must
find: `FAULTS` lists them, and `example_grpc.py` lists those of gRPC. It is an example, not a fast server.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import os
import struct
import sys
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

FORMATS = {"FP32": "f", "INT64": "q", "FP16": "e", "BOOL": "?"}
MODELS = {"texts": ["BYTES"], "numbers": ["FP32", "INT64", "BOOL"], "halves": ["FP16"]}
EXTENSIONS = ["binary_tensor_data", "model_repository", "model_configuration", "statistics", "system_shared_memory"]
EXTENSIONS += ["cuda_shared_memory"]
JSON_LENGTH = "Inference-Header-Content-Length"

# The faults, each with the check that finds it.
FAULTS = {
    "no-bodies": "health.live.body",
    "no-id": "infer.id",
    "all-outputs": "infer.outputs",
    "no-nesting": "infer.nested",
    "any-shape": "error.data.fewer",
    "plain-errors": "error.model.unknown",
    "swapped-bytes": "binary.equal",
    "wrong-header": "binary.output.all",
    "accepts-trailing": "binary.error.trailing",
    "never-unloads": "repository.unload",
    "counts-nothing": "statistics.counts",
    "no-offset": "shared-memory.input",
    "forgets-no-region": "shared-memory.unregister",
    "no-config-name": "configuration",
    "any-handle": "cuda-shared-memory.error.handle",
    "lists-a-region": "cuda-shared-memory.status",
}


class Wrong(Exception):
    """A client's mistake."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


class State:
    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        self.unloaded: set[str] = set()
        self.counts = dict.fromkeys(MODELS, 0)
        self.regions: dict[str, dict[str, Any]] = {}


def metadata(name: str) -> dict[str, Any]:
    specs = [{"datatype": datatype, "shape": [-1, 2]} for datatype in MODELS[name]]
    inputs = [{"name": f"in{at}", **spec} for at, spec in enumerate(specs)]
    outputs = [{"name": f"out{at}", **spec} for at, spec in enumerate(specs)]
    return {"name": name, "versions": ["1"], "platform": "example", "inputs": inputs, "outputs": outputs}


def flatten(data: Any, depth: int) -> list[Any]:
    if depth == 0:
        return [data]
    if not isinstance(data, list):
        raise Wrong("data is not nested as its shape is")
    return [value for part in data for value in flatten(part, depth - 1)]


def is_shaped(data: Any, shape: list[int]) -> bool:
    return not shape or (len(data) == shape[0] and all(is_shaped(part, shape[1:]) for part in data))


def to_bytes(datatype: str, values: list[Any]) -> bytes:
    try:
        if datatype == "BYTES":
            return b"".join(struct.pack("<I", len(value.encode())) + value.encode() for value in values)
        return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)
    except (struct.error, AttributeError, KeyError) as error:
        raise Wrong(f"values are no {datatype}: {error}") from None


def elements(datatype: str, data: bytes) -> list[Any]:
    if datatype != "BYTES":
        size = struct.calcsize(FORMATS[datatype])
        if len(data) % size:
            raise Wrong("bytes are no whole number of elements")
        return list(struct.unpack(f"<{len(data) // size}{FORMATS[datatype]}", data))
    found = []
    while data:
        if len(data) < 4 or 4 + int.from_bytes(data[:4], "little") > len(data):
            raise Wrong("an element is longer than what is left")
        end = 4 + int.from_bytes(data[:4], "little")
        found.append(data[4:end].decode())
        data = data[end:]
    return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    state: State

    def log_message(self, *_: Any) -> None:
        pass

    def has(self, fault: str) -> bool:
        return fault in self.state.faults

    def respond(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def do_DELETE(self) -> None:
        self.answer("DELETE")

    def answer(self, method: str) -> None:
        try:
            body = self.body()
            parts = [unquote(part, errors="strict") for part in self.path.strip("/").split("/")]
            self.route(method, parts, body)
        except (Wrong, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = b"error" if self.has("plain-errors") else json.dumps({"error": str(error) or "wrong"}).encode()
            status = getattr(error, "status", 400)
            self.respond(status, reason, {"Allow": "POST"} if status == 405 else None)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        unpack = {None: bytes, "gzip": gzip.decompress, "deflate": zlib.decompress}
        encoding = self.headers.get("Content-Encoding")
        if encoding not in unpack:
            raise Wrong("unknown Content-Encoding", 415)
        try:
            return unpack[encoding](body)
        except (OSError, zlib.error) as error:
            raise Wrong(str(error)) from None

    def route(self, method: str, parts: list[str], body: bytes) -> None:
        match method, parts:
            case "GET", ["v2"]:
                found: Any = {"name": "example", "version": "1", "extensions": EXTENSIONS}
            case "GET", ["v2", "health", "live" | "ready" as what]:
                found = {what: True}
                if self.has("no-bodies"):
                    return self.respond(200, b"")
            case "POST", ["v2", "repository", "index"]:
                found = self.index(json.loads(body or b"{}"))
            case "POST", ["v2", "repository", "models", name, "load" | "unload" as what]:
                self.known(name)
                (self.state.unloaded.discard if what == "load" else self.state.unloaded.add)(name)
                found = {}
            case "GET", ["v2", "models", "stats"]:
                found = {"model_stats": [self.statistics(name) for name in MODELS]}
            case _, ["v2", "systemsharedmemory", *rest]:
                found = self.shared_memory(method, rest, body)
            case _, ["v2", "cudasharedmemory", *rest]:
                found = self.cuda_shared_memory(method, rest)
            case _, ["v2", "models", name, *rest]:
                return self.model(method, name, rest, body)
            case _:
                raise Wrong("no such route", 404)
        self.respond(200, json.dumps(found).encode())

    def known(self, name: str) -> None:
        if name not in MODELS:
            raise Wrong(f"no model {name!r}", 404)

    def is_ready(self, name: str) -> bool:
        return name not in self.state.unloaded or self.has("never-unloads")

    def index(self, request: dict[str, Any]) -> list[dict[str, str]]:
        names = [name for name in MODELS if self.is_ready(name) or not request.get("ready")]
        state = {True: "READY", False: "UNAVAILABLE"}
        return [{"name": name, "version": "1", "state": state[self.is_ready(name)], "reason": ""} for name in names]

    def model(self, method: str, name: str, rest: list[str], body: bytes) -> None:
        self.known(name)
        if rest[:1] == ["versions"]:
            if rest[1:2] != ["1"]:
                raise Wrong("no such version", 404)
            rest = rest[2:]
        match method, rest:
            case "GET", []:
                found: Any = metadata(name)
            case "GET", ["ready"]:
                if not self.is_ready(name):
                    raise Wrong("unloaded", 503)
                found = {"name": name, "ready": True}
            case "GET", ["config"]:
                kinds = [
                    [
                        {
                            "name": t["name"],
                            "data_type": f"TYPE_{t['datatype'].replace('BYTES', 'STRING')}",
                            "dims": [2],
                        }
                        for t in metadata(name)[key]
                    ]
                    for key in ("inputs", "outputs")
                ]
                found = {"name": "?" if self.has("no-config-name") else name, "input": kinds[0], "output": kinds[1]}
            case "GET", ["stats"]:
                found = {"model_stats": [self.statistics(name)]}
            case "POST", ["infer"]:
                return self.infer(name, body)
            case _, ["infer" | "ready"] | []:
                raise Wrong("another method", 405)
            case _:
                raise Wrong("no such route", 404)
        self.respond(200, json.dumps(found).encode())

    def statistics(self, name: str) -> dict[str, Any]:
        count = 0 if self.has("counts-nothing") else self.state.counts[name]
        keys = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
        durations = {key: {"count": 0 if key == "fail" else count, "ns": count} for key in keys}
        counts = {"last_inference": 1, "inference_count": count, "execution_count": count}
        return {"name": name, "version": "1", **counts, "inference_stats": durations, "batch_stats": []}

    def shared_memory(self, method: str, rest: list[str], body: bytes) -> Any:
        regions = self.state.regions
        match method, rest:
            case "GET", ["status"]:
                return list(regions.values())
            case "GET", ["region", name, "status"]:
                return [regions[name]]
            case "POST", ["region", name, "register"]:
                region = json.loads(body)
                path = Path("/dev/shm") / region["key"].lstrip("/")
                if not path.is_file() or region["offset"] + region["byte_size"] > os.path.getsize(path):
                    raise Wrong("no such memory")
                regions[name] = {"name": name, **region}
            case "POST", ["region", name, "unregister"]:
                if not self.has("forgets-no-region"):
                    regions.pop(name, None)
            case "POST", ["unregister"]:
                regions.clear()
            case _:
                raise Wrong("no such route", 404)
        return {}

    def cuda_shared_memory(self, method: str, rest: list[str]) -> Any:
        match method, rest:
            case "GET", ["status"]:
                return [{"name": "r", "device_id": 0, "byte_size": 1}] if self.has("lists-a-region") else []
            case "POST", ["region", _, "register"] if not self.has("any-handle"):
                raise Wrong("no memory of a device has this handle")
            case "POST", ["unregister"] | ["region", _, "register" | "unregister"]:
                return {}
        raise Wrong("no such route", 404)

    def place(self, parameters: dict[str, Any]) -> tuple[Path, int, int]:
        region = self.state.regions.get(parameters["shared_memory_region"])
        if region is None:
            raise Wrong("no such region")
        size = parameters["shared_memory_byte_size"]
        offset = 0 if self.has("no-offset") else parameters.get("shared_memory_offset", 0)
        if offset + size > region["byte_size"]:
            raise Wrong("beyond the region")
        return Path("/dev/shm") / region["key"].lstrip("/"), region["offset"] + offset, size

    def infer(self, name: str, body: bytes) -> None:
        if not self.is_ready(name):
            raise Wrong("unloaded", 503)
        length = int(self.headers.get(JSON_LENGTH, len(body)))
        if not 0 <= length <= len(body):
            raise Wrong("a wrong length")
        message, binary = json.loads(body[:length]), body[length:]
        if not isinstance(message.get("id", ""), str) or not isinstance(message.get("outputs", []), list):
            raise Wrong("fields of other types")
        inputs: dict[str, dict[str, Any]] = {}
        for tensor in message["inputs"]:
            if tensor["name"] in inputs:
                raise Wrong("an input twice")
            binary = self.read(tensor, binary)
            inputs[tensor["name"]] = tensor
        if binary and not self.has("accepts-trailing"):
            raise Wrong("bytes of no tensor")
        specs = metadata(name)["inputs"]
        if set(inputs) != {spec["name"] for spec in specs}:
            raise Wrong("other inputs than the model's")
        for spec in specs:
            self.check(spec, inputs[spec["name"]])
        self.state.counts[name] += 1
        self.write(name, message, inputs)

    def read(self, tensor: dict[str, Any], binary: bytes) -> bytes:
        """Puts a tensor's bytes into it, and returns the remaining ones."""
        parameters, shape = tensor.get("parameters", {}), tensor["shape"]
        is_json = "data" in tensor
        if not isinstance(shape, list):
            raise Wrong("a shape that is none")
        if is_json and parameters:
            raise Wrong("data in two places")
        if is_json:
            is_nested = bool(tensor["data"]) and isinstance(tensor["data"][0], list)
            if is_nested and (self.has("no-nesting") or not is_shaped(tensor["data"], shape)):
                raise Wrong("data is not nested as its shape is")
            tensor["bytes"] = to_bytes(tensor["datatype"], flatten(tensor["data"], len(shape) if is_nested else 1))
        elif "shared_memory_region" in parameters:
            path, begin, size = self.place(parameters)
            tensor["bytes"] = path.read_bytes()[begin : begin + size]
        else:
            size = parameters["binary_data_size"]
            if not 0 <= size <= len(binary):
                raise Wrong("a wrong size")
            tensor["bytes"], binary = binary[:size], binary[size:]
        return binary

    def check(self, spec: dict[str, Any], tensor: dict[str, Any]) -> None:
        shape = tensor["shape"]
        if tensor["datatype"] != spec["datatype"] or len(shape) != 2 or shape[1] != 2 or shape[0] < 0:
            raise Wrong("another datatype or shape")
        count = len(elements(tensor["datatype"], tensor["bytes"]))
        if count != math.prod(shape) and not self.has("any-shape"):
            raise Wrong("another number of elements")

    def write(self, name: str, message: dict[str, Any], inputs: dict[str, dict[str, Any]]) -> None:
        names = [output["name"] for output in metadata(name)["outputs"]]
        wanted = message.get("outputs") or [{"name": output} for output in names]
        if any(output["name"] not in names for output in wanted):
            raise Wrong("no such output")
        if self.has("all-outputs"):
            wanted = [{"name": output} for output in names]
        binary_by_default = message.get("parameters", {}).get("binary_data_output", False)
        outputs, binary = [], b""
        for output in wanted:
            tensor, parameters = inputs[output["name"].replace("out", "in")], output.get("parameters", {})
            said = {"name": output["name"], "datatype": tensor["datatype"], "shape": tensor["shape"]}
            if "shared_memory_region" in parameters:
                path, begin, _ = self.place(parameters)
                with path.open("r+b") as file:
                    file.seek(begin)
                    file.write(tensor["bytes"])
            elif parameters.get("binary_data", binary_by_default):
                said["parameters"] = {"binary_data_size": len(tensor["bytes"])}
                binary += tensor["bytes"][::-1] if self.has("swapped-bytes") else tensor["bytes"]
            else:
                said["data"] = elements(tensor["datatype"], tensor["bytes"])
            outputs.append(said)
        answer: dict[str, Any] = {"model_name": name, "model_version": "1", "outputs": outputs}
        if "id" in message and not self.has("no-id"):
            answer["id"] = message["id"]
        text = json.dumps(answer).encode()
        if not binary:
            return self.pack(text)
        length = len(text) + (1 if self.has("wrong-header") else 0)
        self.respond(200, text + binary, {"Content-Type": "application/octet-stream", JSON_LENGTH: str(length)})

    def pack(self, text: bytes) -> None:
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            return self.respond(200, gzip.compress(text), {"Content-Encoding": "gzip"})
        self.respond(200, text)


def main() -> None:
    Handler.state = State(sys.argv[1:])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url, faults = f"http://127.0.0.1:{server.server_port}", set(FAULTS)
    print(url, flush=True)
    if importlib.util.find_spec("grpc"):
        import example_grpc

        over_grpc, port = example_grpc.start(url, sys.argv[1:])
        faults |= set(example_grpc.FAULTS)
        print(f"grpc://127.0.0.1:{port}", flush=True)
    assert set(sys.argv[1:]) <= faults, f"faults are {', '.join(sorted(faults))}"
    server.serve_forever()


if __name__ == "__main__":
    main()
