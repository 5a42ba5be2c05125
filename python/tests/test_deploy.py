"""The container image and KServe's resources, as far as they can be checked without Docker and Kubernetes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "kserve"
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "debug", "tenure")
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")

# Python types of the clients' scalar types. A port or a quantity of resources is an `object`.
PLAIN: dict[str, Any] = {"str": str, "int": int, "bool": bool, "object": (str, int), "IntOrString": (str, int)}

needs_program = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built: cargo build")


def resource(name: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    return yaml.safe_load((DEPLOY / name).read_text())


def container() -> Any:
    (container,) = resource("servingruntime.yaml")["spec"]["containers"]
    return container


def instructions(name: str) -> list[list[str]]:
    """Returns the arguments of all instructions with this name."""
    return [line.split()[1:] for line in DOCKERFILE.splitlines() if line.startswith(f"{name} ")]


def check_options(arguments: list[str]) -> None:
    """Checks that each option is one of `tenure serve`, and that the program understands its value."""
    said = subprocess.run([PROGRAM, "serve", "--help"], check=True, capture_output=True, text=True).stdout
    known = set(re.findall(r"--[a-z-]+", said))
    assert {argument.partition("=")[0] for argument in arguments if argument.startswith("--")} <= known
    # The program reads all arguments before it reports that there is no such folder.
    folder, *options = arguments
    assert folder.startswith("/")
    options = [re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", option) for option in options]
    ended = subprocess.run([PROGRAM, "serve", f"{folder}/of-a-test", *options], capture_output=True, text=True)
    assert ended.returncode == 2 and f"{folder}/of-a-test" in ended.stderr and "No such file" in ended.stderr


def check_type(models: Any, kind: str, said: Any, at: str) -> None:
    """Checks that a type of KServe's or Kubernetes' clients has every field that `said` gives, in the right form."""
    if element := re.fullmatch(r"[Ll]ist\[(.*)\]", kind):
        assert isinstance(said, list), f"{at}: {said!r} is no list"
        for index, each in enumerate(said):
            check_type(models, element[1], each, f"{at}[{index}]")
    elif values := re.fullmatch(r"[Dd]ict[(\[]str, (.*)[)\]]", kind):
        assert isinstance(said, dict), f"{at}: {said!r} is no table"
        for name, each in said.items():
            check_type(models, values[1], each, f"{at}.{name}")
    elif kind in PLAIN:
        # To Python, a bool is an int as well.
        assert isinstance(said, PLAIN[kind]) and (kind == "bool") == isinstance(said, bool), (
            f"{at}: {said!r} is no {kind}"
        )
    else:
        of = models(kind)
        names = {json: python for python, json in of.attribute_map.items()}
        assert set(said) <= set(names), f"{at}: {kind} has no {set(said) - set(names)}"
        for name, value in said.items():
            check_type(models, of.openapi_types[names[name]], value, f"{at}.{name}")
        # The client's constructor refuses an object without its required fields.
        of(**{names[name]: value for name, value in said.items()})


def test_the_resources_are_such_to_kserves_own_client() -> None:
    kserve = pytest.importorskip("kserve", reason="pip install kserve")
    kubernetes = pytest.importorskip("kubernetes.client", reason="pip install kserve")

    def models(kind: str) -> Any:
        return getattr(kserve, kind, None) or getattr(kubernetes, kind)

    check_type(models, "V1alpha1ServingRuntime", resource("servingruntime.yaml"), "ServingRuntime")
    service = resource("inferenceservice.yaml")
    check_type(models, "V1beta1InferenceService", service, "InferenceService")
    service["spec"]["predictor"]["model"]["modelFormats"] = {"name": "tenure"}
    with pytest.raises(AssertionError, match="has no {'modelFormats'}"):
        check_type(models, "V1beta1InferenceService", service, "InferenceService")


def test_a_service_asks_for_what_the_runtime_has() -> None:
    runtime, service = resource("servingruntime.yaml"), resource("inferenceservice.yaml")
    assert (runtime["apiVersion"], runtime["kind"]) == ("serving.kserve.io/v1alpha1", "ServingRuntime")
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    assert runtime["spec"]["protocolVersions"] == ["v2", "grpc-v2"] and runtime["spec"]["multiModel"] is False
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]


@needs_program
def test_a_serving_runtimes_arguments_are_the_programs() -> None:
    asked = container()
    # KServe uses the container of this name, and mounts models at this path.
    assert asked["name"] == "kserve-container" and asked["args"][0] == "/mnt/models"
    assert asked["command"] == ["tenure", "serve"]
    check_options(asked["args"])
    (port,) = asked["ports"]
    assert f"--listen=0.0.0.0:{port['containerPort']}" in asked["args"]
    probes = {name: asked[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in probes.values()} == {port["containerPort"]}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/v2/health/live",
        "liveness": "/v2/health/live",
        "readiness": "/v2/health/ready",
    }
    annotations = resource("servingruntime.yaml")["spec"]["annotations"]
    assert annotations["prometheus.kserve.io/port"] == str(port["containerPort"])


@needs_program
def test_an_images_arguments_are_the_programs() -> None:
    (entry,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    assert " ".join(entry) == '["tenure", "serve"]'
    arguments = re.findall(r'"([^"]*)"', " ".join(command))
    check_options(arguments)
    assert instructions("EXPOSE") == [["8000", "8001"]]
    assert "0.0.0.0:8000" in arguments and "8001" in arguments
    # KServe's arguments replace these, for the same program.
    assert instructions("USER")[0] == ["10001"] and f"--uid {instructions('USER')[0][0]} " in DOCKERFILE


def test_an_image_copies_what_there_is() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for *sources, _ in instructions("COPY") if "--from=build" not in sources for source in sources}
    assert copied == kept
    assert [source for source in copied if not (ROOT / source).exists()] == []
    members = re.search(r"^members = \[(.*)\]$", (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert members is not None
    # Cargo reads the manifest of each member.
    assert {member.partition("/")[0] for member in re.findall(r'"([^"]*)"', members[1])} <= copied


def test_an_image_is_built_with_the_packages_that_ci_installs() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    of_ci = {name for names in re.findall(r"packages\+=\(([a-z0-9 -]+)\)", ci) for name in names.split()}
    (installed,) = re.findall(r"apt-get install --yes --no-install-recommends ([^&]*)&&", DOCKERFILE)
    packages = set(shlex.split(installed))
    # The Python package is not in the image.
    assert packages == {name for name in of_ci if not name.startswith("python3")}
