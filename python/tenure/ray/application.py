"""The Ray Serve application of a mapping of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from tenure._arguments import whole_number
from tenure.ray.replica import Builder, ModelReplica
from tenure.ray.router import ResidentRouter

#: The time in seconds between two reports of replicas on their models. Until the next one, a router relies on where it
#: has sent requests.
_STATS_PERIOD_S = 1.0


def application(
    models: Mapping[str, Builder],
    *,
    device_bytes: int,
    host_bytes: int,
    device: str = "cuda",
    num_replicas: int = 1,
    **options: Any,
) -> serve.Application:
    """Makes an application whose replicas each keep the models that are requested there on their device.

    A request names its model by Ray Serve's ``multiplexed_model_id``, and its arguments are the model's. It goes to a
    replica where the model is resident; if there is none, to the replica whose models take the fewest bytes. While all
    replicas that have a model are busy (``max_ongoing_requests``), others load it.

    Parameters
    ----------
    models
        For each model's name, a function that makes the module. On a GPU each is called once, when a replica starts.
    device_bytes
        The bytes for weights on a replica's device. Models are evicted when others need their room.
    host_bytes
        The bytes of a replica's pinned memory for weights, on a GPU.
    device
        ``cuda``, where a `tenure.torch.Switcher` copies weights while a model computes; or ``cpu``, where models that
        are not resident are made anew.
    num_replicas
        The number of replicas.
    options
        Further options of ``serve.deployment``, such as ``ray_actor_options={"num_gpus": 1}``.

    Returns
    -------
    ray.serve.Application
        The application, to be passed to ``serve.run``.

    Raises
    ------
    ValueError
        There is no model, or a number is out of range.
    """
    if not models:
        raise ValueError("models={}: expected at least one")
    whole_number("device_bytes", device_bytes, 1, (1 << 63) - 1)
    whole_number("host_bytes", host_bytes, 1, (1 << 63) - 1)
    deployment = serve.deployment(
        ModelReplica,
        name="tenure",
        num_replicas=num_replicas,
        request_router_config=RequestRouterConfig(
            request_router_class=ResidentRouter, request_routing_stats_period_s=_STATS_PERIOD_S
        ),
        **options,
    )
    return deployment.bind(dict(models), device=device, device_bytes=device_bytes, host_bytes=host_bytes)
