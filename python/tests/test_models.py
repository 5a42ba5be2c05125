"""The programs of `python/examples` train to the losses of the same programs in Rust."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GOLDENS = json.loads((ROOT / "crates/tenure-nn/tests/goldens/losses.json").read_text())

# Where `cargo build --examples` and `cargo test` leave it.
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "debug", "examples", "losses")
needs_program = pytest.mark.skipif(
    not PROGRAM.exists(), reason=f"{PROGRAM} is not built: cargo build --package tenure-nn --example losses"
)

models = pytest.mark.parametrize("model", ["resnet18", "gpt2"])


def losses(*command: str | Path) -> list[float]:
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: list[float] = json.loads(printed)["losses"]
    return found


def of_python(model: str, options: dict[str, Any]) -> list[float]:
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return losses(sys.executable, ROOT / f"python/examples/{model}.py", "--json", *arguments)


@models
def test_a_model_trains_to_the_golden_losses(model: str) -> None:
    """The tolerance is that of `crates/tenure-nn/tests/losses.rs`, which says why there is one."""
    golden = GOLDENS[model]
    found = of_python(model, golden["options"])
    assert found == pytest.approx(golden["losses"], rel=1e-5)
    assert found[-1] < found[0]


@needs_program
@models
def test_a_model_trains_to_the_losses_of_rust_bit_for_bit(model: str) -> None:
    options = GOLDENS[model]["options"]
    assert of_python(model, options) == losses(PROGRAM, model, json.dumps(options))
