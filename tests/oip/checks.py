"""What a test checks: of which part of the protocol it is, and in which words that says so."""

from __future__ import annotations

import pytest

REQUIRED = "required"
# What the specification leaves open, and clients of it rely on all the same.
BEYOND = "beyond"
GRPC = "grpc"

BINARY = "extension:binary_tensor_data"
REPOSITORY = "extension:model_repository"
CONFIGURATION = "extension:model_configuration"
STATISTICS = "extension:statistics"
SHARED_MEMORY = "extension:system_shared_memory"
CUDA_SHARED_MEMORY = "extension:cuda_shared_memory"
PARAMETERS = "extension:parameters"


def check(id: str, part: str, words: str) -> pytest.MarkDecorator:
    """Marks a test as a check."""
    return pytest.mark.check(id, part, words)
