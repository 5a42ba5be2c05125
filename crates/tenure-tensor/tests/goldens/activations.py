"""Activations."""

import functools

import torch
import torch.nn.functional as F
from harness import Case, Input, write


def activation(name, function, **options):
    # No value is at a bend of the curve.
    inputs = [Input((2, 4), -4.9, 7.1, distinct=True)]
    return Case(name, function, inputs, [(0, 3)], [()], **options)


CASES = [
    activation("relu", F.relu),
    activation("relu6", F.relu6),
    activation("leaky_relu", functools.partial(F.leaky_relu, negative_slope=0.1)),
    activation("threshold", lambda x: F.threshold(x, 2.5, -2.0)),
    activation("hardtanh", lambda x: F.hardtanh(x, -1.5, 2.5)),
    activation("elu", functools.partial(F.elu, alpha=0.7)),
    activation("selu", F.selu),
    activation("celu", functools.partial(F.celu, alpha=1.3), exact=lambda x: torch.where(x > 0, x, 1.3 * (x / 1.3).expm1())),
    activation("gelu", F.gelu),
    activation("gelu_tanh", functools.partial(F.gelu, approximate="tanh")),
    activation("silu", F.silu),
    activation("mish", F.mish),
    activation("softplus", functools.partial(F.softplus, beta=1.5, threshold=8.0)),
    activation("logsigmoid", F.logsigmoid),
    activation("hardsigmoid", F.hardsigmoid, exact=lambda x: (x + 3).clamp(0, 6) / 6),
    activation("hardswish", F.hardswish),
    activation("softsign", F.softsign),
    Case("swiglu", lambda gate, x: F.silu(gate) * x, [Input((2, 4), -4.9, 7.1), Input((4,))], [(0, 4), (4,)], [(), ()]),
]

write(__file__, CASES)
