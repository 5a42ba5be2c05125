"""The mark of a check: its part of the protocol, and the words of the specification that it tests."""

from __future__ import annotations

import pytest

REQUIRED = "required"
# The part for behaviour that the specification leaves open, and that clients rely on all the same.
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
    """Marks a test as part of a check."""
    return pytest.mark.check(id, part, words)
