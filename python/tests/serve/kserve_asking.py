"""Sends requests through KServe's clients, whose protobuf messages cannot share a process with tritonclient's.

Arguments: http or grpc, an address, a `.npz` file of inputs named `MODEL/INPUT`, and one for answers, named `MODEL`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
import kserve
import numpy as np
from numpy.typing import NDArray

DATATYPES = {"float32": "FP32", "int64": "INT64"}


def request(model: str, inputs: dict[str, NDArray[Any]], use_binary: bool) -> Any:
    tensors = []
    for name, values in inputs.items():
        tensors.append(kserve.InferInput(name, list(values.shape), DATATYPES[values.dtype.name]))
        tensors[-1].set_data_from_numpy(values, binary_data=use_binary)
    return kserve.InferRequest(model, tensors)


async def ask_http(address: str, models: dict[str, dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    client, url = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2")), f"http://{address}"
    assert await client.is_server_live(url) and await client.is_server_ready(url)
    answers = {}
    for model, inputs in models.items():
        assert await client.is_model_ready(url, model)
        binary, plain = [
            (await client.infer(url, request(model, inputs, use_binary), model_name=model)).outputs[0].as_numpy()
            for use_binary in (True, False)
        ]
        assert np.array_equal(binary, plain), model
        answers[model] = plain
    try:
        await client.infer(url, request("absent", inputs, False), model_name="absent")
    except httpx.HTTPStatusError as error:
        assert error.response.status_code == 404 and "unknown model" in str(error), error
    else:
        raise AssertionError("a model that is not there has answered")
    return answers


async def ask_grpc(address: str, models: dict[str, dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    client = kserve.InferenceGRPCClient(address)
    assert await client.is_server_live() and await client.is_server_ready()
    answers = {}
    for model, inputs in models.items():
        assert await client.is_model_ready(model)
        answers[model] = (await client.infer(request(model, inputs, True))).outputs[0].as_numpy()
    return answers


def main() -> None:
    protocol, address, questions, answers = sys.argv[1:]
    models: dict[str, dict[str, NDArray[Any]]] = {}
    with np.load(questions) as file:
        for name in file.files:
            model, _, key = name.partition("/")
            models.setdefault(model, {})[key] = file[name]
    np.savez(answers, **asyncio.run((ask_http if protocol == "http" else ask_grpc)(address, models)))


if __name__ == "__main__":
    main()
