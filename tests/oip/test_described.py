"""Checks of health, and of the metadata of a server and its models."""

from __future__ import annotations

from typing import Any

import pytest
from checks import BEYOND, CONFIGURATION, REQUIRED, STATISTICS, check
from server import Model, Server, assert_error, good
from tensors import DATATYPES

HEALTH = (
    "The “server live” health API indicates if the inference server is able to receive and respond to metadata and \
inference requests."
)


@check("health.live", REQUIRED, HEALTH)
def test_live(server: Server) -> None:
    good(server.ask("GET", "v2/health/live"))


@check("health.ready", REQUIRED, "The “server ready” health API indicates if all the models are ready for inferencing.")
def test_ready(server: Server) -> None:
    good(server.ask("GET", "v2/health/ready"))


@check("health.model", REQUIRED, "The “model ready” health API indicates if a specific model is ready for inferencing.")
def test_model_ready(model: Model) -> None:
    good(model.server.ask("GET", f"{model.path}/ready"))


@check("health.live.body", REQUIRED, '$live_server_response = { "live" : $bool }')
def test_live_body(server: Server) -> None:
    assert server.get("v2/health/live").get("live") is True


# The specification names the field "live", and its OpenAPI file "ready".
@check("health.ready.body", REQUIRED, '$ready_server_response = { "live" : $bool }')
def test_ready_body(server: Server) -> None:
    body = server.get("v2/health/ready")
    assert body.get("live", body.get("ready")) is True


@check("health.model.body", REQUIRED, '$ready_model_response = { "name" : $string, "ready": $bool }')
def test_model_ready_body(model: Model) -> None:
    body = model.server.get(f"{model.path}/ready")
    assert (body.get("name"), body.get("ready")) == (model.name, True)


@check("health.model.unknown", REQUIRED, "The model name and (optionally) version must be available in the URL.")
def test_an_unknown_model_is_not_ready(server: Server) -> None:
    assert server.ask("GET", "v2/models/no-such-model/ready").status >= 400


@check(
    "metadata.server", REQUIRED, '$metadata_server_response = { "name", "version", "extensions" : [ $string, ... ] }'
)
def test_server_metadata(server: Server) -> None:
    metadata = server.get("v2")
    assert isinstance(metadata.get("name"), str) and isinstance(metadata.get("version"), str)
    assert isinstance(metadata.get("extensions"), list)
    assert all(isinstance(extension, str) for extension in metadata["extensions"])


def check_tensors(tensors: Any) -> None:
    assert isinstance(tensors, list)
    for tensor in tensors:
        assert isinstance(tensor["name"], str)
        assert tensor["datatype"] in DATATYPES, f"datatype {tensor['datatype']!r}"
        assert all(isinstance(size, int) and size >= -1 for size in tensor["shape"]), f"shape {tensor['shape']}"
    names = [tensor["name"] for tensor in tensors]
    assert len(set(names)) == len(names), f"a name twice: {names}"


@check("metadata.model", REQUIRED, "Variable-size dimensions are specified as -1.")
def test_model_metadata(model: Model) -> None:
    metadata = model.server.get(model.path)
    assert metadata["name"] == model.name
    assert isinstance(metadata["platform"], str)
    check_tensors(metadata["inputs"])
    check_tensors(metadata["outputs"])


@check(
    "metadata.versions", REQUIRED, "The model versions that may be explicitly requested via the appropriate endpoint."
)
def test_versions(model: Model) -> None:
    versions = model.metadata.get("versions") or []
    if not versions:
        pytest.skip("the model has no versions")
    for version in versions:
        assert model.server.get(f"{model.path}/versions/{version}")["name"] == model.name
        good(model.server.ask("GET", f"{model.path}/versions/{version}/ready"))


@check("metadata.model.unknown", REQUIRED, "A failed model metadata request must be indicated by an HTTP error status.")
def test_an_unknown_model_has_no_metadata(server: Server) -> None:
    assert_error(server.ask("GET", "v2/models/no-such-model"))


@check("metadata.version.unknown", REQUIRED, "The HTTP body must contain the $metadata_model_error_response object.")
def test_an_unknown_version_has_no_metadata(first: Model) -> None:
    assert_error(first.server.ask("GET", f"{first.path}/versions/987654321"))


@check("metadata.content-type", BEYOND, "Content-Type: application/json")
def test_metadata_is_said_to_be_json(server: Server, first: Model) -> None:
    for path in ("v2", first.path):
        assert server.ask("GET", path).headers.get("content-type", "").startswith("application/json")


@check("configuration", CONFIGURATION, "GET v2/models/${MODEL_NAME}[/versions/${MODEL_VERSION}]/config")
def test_configuration(model: Model) -> None:
    config = model.server.get(f"{model.path}/config")
    assert config["name"] == model.name
    for version in model.metadata.get("versions") or []:
        assert model.server.get(f"{model.path}/versions/{version}/config")["name"] == model.name


@check("configuration.tensors", CONFIGURATION, "the model's configuration described by the ModelConfig message")
def test_configuration_has_the_models_tensors(model: Model) -> None:
    config = model.server.get(f"{model.path}/config")
    for key, said in (("input", model.inputs), ("output", model.outputs)):
        assert {tensor["name"] for tensor in config[key]} == {tensor["name"] for tensor in said}
        assert all(tensor["data_type"].startswith("TYPE_") for tensor in config[key])


@check(
    "configuration.unknown", CONFIGURATION, "A failed model configuration request must be indicated by an HTTP error"
)
def test_an_unknown_model_has_no_configuration(server: Server) -> None:
    assert_error(server.ask("GET", "v2/models/no-such-model/config"))


def statistics(model: Model, path: str = "") -> list[dict[str, Any]]:
    found = model.server.get(path or f"{model.path}/stats")["model_stats"]
    return [stat for stat in found if stat["name"] == model.name]


@check("statistics", STATISTICS, "GET v2/models[/${MODEL_NAME}[/versions/${MODEL_VERSION}]]/stats")
def test_statistics(model: Model) -> None:
    for path in (
        "",
        "v2/models/stats",
        *(f"{model.path}/versions/{v}/stats" for v in model.metadata.get("versions") or []),
    ):
        found = statistics(model, path)
        assert found, f"nothing of {model.name} at {path or 'its own path'}"
        for stat in found:
            numbers = [stat[key] for key in ("last_inference", "inference_count", "execution_count")]
            assert all(isinstance(number, int) for number in numbers)
            assert isinstance(stat["batch_stats"], list)


@check("statistics.durations", STATISTICS, '$duration_stat = { "count" : $number, "ns" : $number }')
def test_statistics_have_durations(model: Model) -> None:
    model.infer()
    for stat in statistics(model):
        for key in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"):
            duration = stat["inference_stats"][key]
            assert isinstance(duration["count"], int) and isinstance(duration["ns"], int), key


@check("statistics.counts", STATISTICS, "The cumulative count of successful inference requests made for this model.")
def test_statistics_count_requests(model: Model) -> None:
    def count() -> tuple[int, int]:
        found = statistics(model)
        successes = sum(stat["inference_stats"]["success"]["count"] for stat in found)
        return sum(stat["inference_count"] for stat in found), successes

    before = count()
    model.infer()
    after = count()
    assert after[0] > before[0] and after[1] > before[1], f"{before}, then {after}"


@check("statistics.unknown", STATISTICS, "A failed statistics request will be indicated by an HTTP error status")
def test_an_unknown_model_has_no_statistics(server: Server) -> None:
    assert_error(server.ask("GET", "v2/models/no-such-model/stats"))
