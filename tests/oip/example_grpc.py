"""The example's protocol over gRPC: each call asks the example over HTTP. It needs the package grpcio."""

from __future__ import annotations

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from messages import SERVICE, every, field, integer, integers, number, sizes, text
from wire import Address, Answer, Connection

JSON_LENGTH = "Inference-Header-Content-Length"
DATA_TYPES = {"TYPE_BOOL": 1, "TYPE_INT64": 9, "TYPE_FP16": 10, "TYPE_FP32": 11, "TYPE_STRING": 13}
KINDS = {"FP32": (6, ""), "INT64": (3, "Q"), "BOOL": (1, "B")}
EXTENSIONS = ["model_repository", "model_configuration", "statistics", "system_shared_memory"]

# The faults, each with the check that finds it.
FAULTS = {
    "grpc-lists-too-much": "grpc.extensions",
    "grpc-no-dims": "grpc.configuration",
    "grpc-counts-nothing": "grpc.statistics",
    "grpc-other-size": "grpc.shared-memory.register",
    "grpc-no-offset": "grpc.shared-memory.input",
    "grpc-sends-outputs": "grpc.shared-memory.output",
    "grpc-forgets-no-region": "grpc.shared-memory.unregister",
    "grpc-any-size": "grpc.shared-memory.error.beyond",
}


class Gateway(grpc.GenericRpcHandler):
    def __init__(self, url: str, faults: list[str]) -> None:
        self.address, self.faults = Address(url), faults

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        call = getattr(self, details.method.removeprefix(SERVICE), None)

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                return call(request)
            except Exception as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

        return grpc.unary_unary_rpc_method_handler(answer) if call else None

    def ask(self, method: str, path: str, body: Any = b"", headers: dict[str, str] | None = None) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        with Connection(self.address) as connection:
            answer = connection.ask(method, path, raw, headers)
        if answer.status != 200:
            raise ValueError(answer.json()["error"])
        return answer

    def get(self, path: str) -> Any:
        return self.ask("GET", path).json()

    def ServerLive(self, _: bytes) -> bytes:
        return integer(1, 1)

    def ServerReady(self, _: bytes) -> bytes:
        return integer(1, 1)

    def ModelReady(self, request: bytes) -> bytes:
        return integer(1, self.get(f"v2/models/{text(request, 1)}/ready")["ready"])

    def ServerMetadata(self, _: bytes) -> bytes:
        metadata = self.get("v2")
        extensions = EXTENSIONS + ["cuda_shared_memory"] * ("grpc-lists-too-much" in self.faults)
        return field(1, metadata["name"]) + field(2, "1") + b"".join(field(3, name) for name in extensions)

    def ModelMetadata(self, request: bytes) -> bytes:
        metadata = self.get(f"v2/models/{text(request, 1)}")
        message = field(1, metadata["name"]) + field(2, "1") + field(3, metadata["platform"])
        for tag, key in ((4, "inputs"), (5, "outputs")):
            for spec in metadata[key]:
                tensor = field(1, spec["name"]) + field(2, spec["datatype"]) + sizes(3, spec["shape"])
                message += field(tag, tensor)
        return message

    def ModelConfig(self, request: bytes) -> bytes:
        config = self.get(f"v2/models/{text(request, 1)}/config")
        message = field(1, config["name"])
        for tag, key, dims in ((5, "input", 4), (6, "output", 3)):
            for spec in config[key]:
                said = [] if "grpc-no-dims" in self.faults else spec["dims"]
                tensor = field(1, spec["name"]) + integer(2, DATA_TYPES[spec["data_type"]]) + sizes(dims, said)
                message += field(tag, tensor)
        return field(1, message)

    def ModelStatistics(self, request: bytes) -> bytes:
        name = text(request, 1)
        found = self.get(f"v2/models/{name}/stats" if name else "v2/models/stats")["model_stats"]
        message = b""
        for stats in found:
            count = 0 if "grpc-counts-nothing" in self.faults else stats["inference_count"]
            times = field(1, integer(1, count) + integer(2, stats["inference_stats"]["success"]["ns"]))
            message += field(1, field(1, stats["name"]) + integer(4, count) + field(6, times))
        return message

    def RepositoryIndex(self, _: bytes) -> bytes:
        entries = self.ask("POST", "v2/repository/index", {}).json()
        return b"".join(field(1, field(1, entry["name"]) + field(3, entry["state"])) for entry in entries)

    def SystemSharedMemoryStatus(self, request: bytes) -> bytes:
        path = f"region/{text(request, 1)}/status" if request else "status"
        message = b""
        for region in self.get(f"v2/systemsharedmemory/{path}"):
            size = region["byte_size"] + ("grpc-other-size" in self.faults)
            said = field(1, region["name"]) + field(2, region["key"]) + integer(3, region["offset"]) + integer(4, size)
            message += field(1, field(1, region["name"]) + field(2, said))
        return message

    def SystemSharedMemoryRegister(self, request: bytes) -> bytes:
        size = 1 << 20 if "grpc-any-size" in self.faults else number(request, 4)
        body = {"key": text(request, 2), "offset": number(request, 3), "byte_size": size}
        self.ask("POST", f"v2/systemsharedmemory/region/{text(request, 1)}/register", body)
        return b""

    def SystemSharedMemoryUnregister(self, request: bytes) -> bytes:
        if "grpc-forgets-no-region" not in self.faults:
            path = f"region/{text(request, 1)}/unregister" if request else "unregister"
            self.ask("POST", f"v2/systemsharedmemory/{path}")
        return b""

    def ModelInfer(self, request: bytes) -> bytes:
        inputs, binary, raw = [], b"", iter(every(request, 7))
        for tensor in every(request, 5):
            spec = {"name": text(tensor, 1), "datatype": text(tensor, 2), "shape": integers(tensor, 3)}
            parameters = self.place(tensor, 4)
            if not parameters:
                data = next(raw, None) or of_contents(spec["datatype"], tensor)
                parameters, binary = {"binary_data_size": len(data)}, binary + data
            inputs.append({**spec, "parameters": parameters})
        wanted = [{"name": text(output, 1), "parameters": self.place(output, 2)} for output in every(request, 6)]
        body: dict[str, Any] = {"inputs": inputs, "parameters": {"binary_data_output": True}}
        message = json.dumps({**body, "outputs": wanted} if wanted else body).encode()
        headers = {JSON_LENGTH: str(len(message))}
        answer = self.ask("POST", f"v2/models/{text(request, 1)}/infer", message + binary, headers)
        return field(3, text(request, 3)) + self.answered(answer)

    def answered(self, answer: Answer) -> bytes:
        length = int(answer.headers.get(JSON_LENGTH.lower(), len(answer.body)))
        said, binary = json.loads(answer.body[:length]), answer.body[length:]
        message = field(1, said["model_name"])
        for output in said["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size", 0)
            tensor = field(1, output["name"]) + field(2, output["datatype"]) + sizes(3, output["shape"])
            raw = b"sent" if size == 0 and "grpc-sends-outputs" in self.faults else binary[:size]
            message, binary = message + field(5, tensor) + field(6, raw), binary[size:]
        return message

    def place(self, tensor: bytes, tag: int) -> dict[str, Any]:
        """Returns the parameters of a tensor."""
        found: dict[str, Any] = {}
        for entry in every(tensor, tag):
            (value,) = every(entry, 2)
            found[text(entry, 1)] = text(value, 3) or number(value, 2)
        if "grpc-no-offset" in self.faults:
            found.pop("shared_memory_offset", None)
        return found


def of_contents(datatype: str, tensor: bytes) -> bytes:
    tag, code = KINDS[datatype]
    (contents,) = every(tensor, 5)
    if not code:
        return b"".join(every(contents, tag))
    values = integers(contents, tag)
    return struct.pack(f"<{len(values)}{code}", *values)


def start(url: str, faults: list[str]) -> tuple[grpc.Server, int]:
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Gateway(url, faults),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port
