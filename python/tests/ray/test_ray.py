"""`tenure.ray` on a cluster of two nodes, each with room for two of four models."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="pip install 'ray[serve]'")
pytest.importorskip("ray.serve", reason="pip install 'ray[serve]'")
cluster_utils = pytest.importorskip("ray.cluster_utils", reason="pip install 'ray[serve]'")

import tenure.ray  # noqa: E402
from tenure.ray.host import HostModels  # noqa: E402

NAMES = [f"model-{number}" for number in range(4)]
MODEL_BYTES = 1000


def builder(number: int, model_bytes: int = MODEL_BYTES) -> Callable[[], Any]:
    """Returns a function that makes a model: it multiplies by a number, and returns its node and its own id too."""

    def make() -> Any:
        # A local class, so that Ray sends its code to replicas, which do not have this file.
        class Weights:
            nbytes = model_bytes

        class Model:
            def parameters(self) -> list[Weights]:
                return [Weights()]

            def buffers(self) -> list[Weights]:
                return []

            def __call__(self, factor: int, *, plus: int = 0) -> tuple[int, str, int]:
                node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
                return factor * number + plus, node, id(self)

        return Model()

    return make


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    # The tests need no dashboard.
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    yield cluster
    ray.serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def handle(cluster: Any) -> Any:
    ray.serve.start(proxy_location="Disabled")
    application = tenure.ray.application(
        {name: builder(number) for number, name in enumerate(NAMES)},
        device="cpu",
        device_bytes=2 * MODEL_BYTES,
        host_bytes=1,
        num_replicas=2,
        ray_actor_options={"num_cpus": 1},
    )
    return ray.serve.run(application)


def ask(handle: Any, name: str, *inputs: Any, **named: Any) -> Any:
    return handle.options(multiplexed_model_id=name).remote(*inputs, **named).result(timeout_s=300)


def test_models_stay_where_they_are_and_are_spread_by_bytes(handle: Any) -> None:
    first = {name: ask(handle, name, 1)[1:] for name in NAMES}
    places = [node for node, _ in first.values()]
    assert len(set(places)) == 2 and all(places.count(node) == 2 for node in places)
    for name in random.Random(1).choices(NAMES, k=60):
        answer, *made = ask(handle, name, 10, plus=3)
        assert answer == 10 * NAMES.index(name) + 3
        # Each model was made once on its node, and never again.
        assert tuple(made) == first[name]


def test_a_request_without_a_known_model_is_told_which_there_are(handle: Any) -> None:
    with pytest.raises(Exception, match="there is no model 'absent': .* one of model-0, model-1"):
        ask(handle, "absent", 1)
    with pytest.raises(Exception, match="the request names no model: call handle.options"):
        handle.remote(1).result(timeout_s=300)
    assert ask(handle, NAMES[2], 5)[0] == 10


def test_a_node_that_goes_leaves_its_models_to_the_other(handle: Any, cluster: Any) -> None:
    before = {name: ask(handle, name, 1)[1] for name in NAMES}
    (head,) = set(before.values()) & {cluster.head_node.node_id}
    (worker,) = (node for node in cluster.list_all_nodes() if node.node_id != head)
    cluster.remove_node(worker)
    for name in NAMES:
        answer, node, _ = ask(handle, name, 7)
        assert (answer, node) == (7 * NAMES.index(name), head)


def test_the_model_that_was_asked_longest_ago_leaves() -> None:
    models = HostModels({name: builder(number) for number, name in enumerate(NAMES)}, 2 * MODEL_BYTES)
    assert models.bytes_of(NAMES[0]) == 0
    for name in (NAMES[0], NAMES[1], NAMES[0], NAMES[2]):
        models.call(name, (1,), {})
    assert models.resident() == [NAMES[0], NAMES[2]]
    assert models.bytes_of(NAMES[1]) == MODEL_BYTES


def test_a_model_without_room_is_refused_and_the_next_is_served() -> None:
    models = HostModels({"large": builder(1, 3000), "small": builder(2)}, 2 * MODEL_BYTES)
    for _ in range(2):
        with pytest.raises(tenure.Error, match="'large' has 3000 bytes of weights, and device_bytes is 2000: raise it"):
            models.call("large", (1,), {})
        assert models.call("small", (4,), {})[0] == 8


def test_an_invalid_application_is_refused() -> None:
    with pytest.raises(ValueError, match="models=.*: expected at least one"):
        tenure.ray.application({}, device_bytes=1, host_bytes=1)
    with pytest.raises(ValueError, match="device_bytes=0"):
        tenure.ray.application({"a": builder(1)}, device_bytes=0, host_bytes=1)
