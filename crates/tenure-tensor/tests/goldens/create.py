"""Creation of tensors."""

import torch
from harness import Case, Input, write

F16, F64, I32 = torch.float16, torch.float64, torch.int32


def made(name, function):
    return Case(name, function, [], variants=("contiguous",))


def like(name, function):
    return Case(name, function, [Input((2, 3), grad=False)], [(0, 3)], [()])


CASES = [
    made("zeros", lambda: [torch.zeros(2, 3), torch.zeros(0, dtype=I32), torch.zeros((), dtype=F16)]),
    made("ones", lambda: [torch.ones(2, 3, dtype=F64), torch.ones(0, dtype=torch.bool), torch.ones((), dtype=I32)]),
    made("full", lambda: [torch.full((2, 3), 0.1), torch.full((0,), 7, dtype=torch.uint8), torch.full((), 0.1, dtype=F16)]),
    made("arange", lambda: [torch.arange(5), torch.arange(7, -2, -3, dtype=I32), torch.arange(0.1, 1.0, 0.15), torch.arange(0)]),
    made("linspace", lambda: [torch.linspace(-1, 0.3, 7), torch.linspace(2, 9, 1, dtype=F64), torch.linspace(0, 1, 0, dtype=F16)]),
    made("logspace", lambda: [torch.logspace(0, 3, 4, 2.0), torch.logspace(-1, 0.5, 5, dtype=F64)]),
    made("eye", lambda: [torch.eye(3), torch.eye(2, 4, dtype=I32), torch.eye(3, 1, dtype=torch.bool), torch.eye(0)]),
    like("zeros_like", torch.zeros_like),
    like("ones_like", torch.ones_like),
    like("full_like", lambda x: torch.full_like(x, 1.25)),
]

write(__file__, CASES)
