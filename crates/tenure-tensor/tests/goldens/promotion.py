"""The dtypes that PyTorch promotes tensors, tensors without dimensions, and numbers to, for `promotion.rs`.

This is no family: it writes a table, `{kind: {left: {right: dtype}}}`.
"""

import json
import pathlib

import torch
from harness import DTYPES, NAMES

TENSORS = {name: torch.ones(2, dtype=dtype) for name, dtype in DTYPES.items()}
NUMBERS = {name: torch.ones((), dtype=dtype) for name, dtype in DTYPES.items()}
SCALARS = {"bool": True, "int": 1, "float": 1.0}


def table(left: dict, right: dict) -> dict:
    return {a: {b: NAMES[torch.result_type(left[a], right[b])] for b in right} for a in left}


if __name__ in ("__main__", "<run_path>"):
    kinds = {
        "tensors": table(TENSORS, TENSORS),
        "tensor and 0-d": table(TENSORS, NUMBERS),
        "both 0-d": table(NUMBERS, NUMBERS),
        "tensor and number": table(TENSORS, SCALARS),
        "0-d and number": table(NUMBERS, SCALARS),
    }
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(kinds, indent=1).replace("\n   ", "").replace("\n  }", " }") + "\n")
    print(f"{path.name}: {path.stat().st_size} bytes")
