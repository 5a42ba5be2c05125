"""Models on a Ray cluster: more than its devices have room for, each request sent to a replica that has its model.

`application` makes a Ray Serve application from a mapping of models. Each replica keeps as many of them on its device
as fit into a number of bytes. Requests name a model, and go to a replica that has it.

Needs Ray Serve: ``pip install 'tenure[ray]'``; on GPUs also PyTorch.

>>> import tenure.ray  # doctest: +SKIP
>>> from ray import serve  # doctest: +SKIP
>>> models = {"small": make_small, "large": make_large}  # doctest: +SKIP
>>> application = tenure.ray.application(  # doctest: +SKIP
...     models, device_bytes=8 << 30, host_bytes=64 << 30, num_replicas=4, ray_actor_options={"num_gpus": 1}
... )
>>> handle = serve.run(application)  # doctest: +SKIP
>>> handle.options(multiplexed_model_id="small").remote(torch.ones(1, 8)).result()  # doctest: +SKIP
"""

from __future__ import annotations

from tenure.ray.application import application
from tenure.ray.replica import ModelReplica
from tenure.ray.router import ResidentRouter

__all__ = ["ModelReplica", "ResidentRouter", "application"]
