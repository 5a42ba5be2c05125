"""Texts of tensors as PyTorch prints them: `format.txt` has for each case a line `=== NAME`, and the text.

`../format.rs` has the same cases, and compares its texts with these.
"""

import pathlib

import torch

inf, nan = float("inf"), float("nan")


def f32(*values):
    return torch.tensor(values, dtype=torch.float32)


CASES = {
    "whole": f32(1, 2, 3),
    "fraction": f32(1.5, -2, 1 / 3),
    "zero": f32(0, -0.0),
    "ties": f32(1.03125, 1.00005, 2.5, -0.00015),
    "wide_range": f32(1, 1e-5, 300),
    "large": f32(1e8, 1),
    "larger": f32(1.5e10, 1e9),
    "small": f32(1e-8),
    "huge": torch.tensor([1e300, 1.25e-300], dtype=torch.float64),
    "not_finite": f32(1.5, inf, -inf, nan),
    "not_finite_whole": f32(1, inf, nan),
    "nothing_finite": f32(-inf, nan),
    "scientific_not_finite": f32(1e9, inf),
    "scalar": torch.tensor(3.25),
    "scalar_whole": torch.tensor(3.0),
    "scalar_integer": torch.tensor(-5),
    "scalar_true": torch.tensor(True),
    "scalar_nan": torch.tensor(nan),
    "integers": torch.tensor([[1, -20], [300, 4]]),
    "int8": torch.tensor([1, -128], dtype=torch.int8),
    "bool": torch.tensor([True, False]),
    "half": torch.tensor([1.5, 2, 65504], dtype=torch.float16),
    "bfloat16": torch.tensor([1 / 3, 2], dtype=torch.bfloat16),
    "empty": torch.zeros(0),
    "empty_matrix": torch.zeros(2, 0),
    "empty_integers": torch.zeros(0, 3, dtype=torch.int64),
    "three_dimensions": torch.arange(12.0).reshape(2, 2, 3) / 4,
    "four_dimensions": torch.arange(8).reshape(2, 1, 2, 2),
    "long_row": torch.arange(30.0) * 1.25,
    "long_integers": torch.arange(999),
    "cut": torch.arange(2000),
    "cut_matrix": torch.arange(10000.0).reshape(100, 100) / 8,
    "cut_rows": torch.arange(1200).reshape(400, 3),
    "cut_columns": torch.arange(1200).reshape(2, 600),
    "cut_blocks": torch.arange(1024).reshape(8, 8, 4, 4),
    "transposed": torch.arange(6).reshape(2, 3).t(),
    "leaf": torch.ones(2, requires_grad=True),
    "line_full": (torch.arange(9.0) / 8).double(),
    "line_over": (torch.arange(8.0) / 8 + 10).double(),
}

text = "".join(f"=== {name}\n{tensor!r}\n" for name, tensor in CASES.items())
pathlib.Path(__file__).with_suffix(".txt").write_text(text)
print(f"format.txt: {len(CASES)} cases, {len(text)} bytes")
