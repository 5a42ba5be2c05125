"""The models of a `tenure.ray` replica on a simulated GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .switching import computing

pytest.importorskip("ray.serve", reason="pip install 'ray[serve]'")


def test_models_of_a_replica_come_to_the_device_when_they_are_called() -> None:
    from tenure.ray.switched import SwitchedModels

    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))

    builders = {f"model-{seed}": lambda seed=seed: make(seed) for seed in range(3)}
    # Each model takes a chunk of 16 MiB.
    models = SwitchedModels(builders, "cuda", 32 << 20, 1 << 28)
    inputs = torch.randn(2, 64)
    assert models.resident() == []
    assert models.bytes_of("model-0") == 4 * (64 * 64 + 64 + 64 * 8 + 8)
    for name in ("model-0", "model-1", "model-2", "model-0", "model-2", "model-1") * 3:
        with computing(), torch.inference_mode():
            expected = builders[name]()(inputs)
            answer = models.call(name, (inputs,), {})
        assert answer.device.type == "cpu" and torch.equal(answer, expected)
        assert name in models.resident() and len(models.resident()) <= 2
