"""Functions of one number."""

import torch
from harness import Case, Input, write


def unary(name, low=-2.0, high=2.0, function=None, **options):
    function = function or getattr(torch, name)
    return Case(name, function, [Input((2, 3), low, high)], [(0, 3)], [()], **options)


def trigamma(x):
    """Computes the function to all digits: PyTorch's has nine."""
    return torch.special.zeta(2.0, x)


def digamma(x):
    """Computes the function with all digits of its gradient."""
    place = x.detach()
    return torch.digamma(place) + (x - place) * trigamma(place)


CASES = [
    unary("abs"),
    unary("sign"),
    unary("square"),
    unary("frac", 0.1, 0.9),
    unary("floor", 0.1, 0.9),
    unary("ceil", 0.1, 0.9),
    unary("round", 0.6, 1.4),
    unary("trunc", 0.1, 0.9),
    unary("sqrt", 0.2),
    unary("rsqrt", 0.5),
    unary("reciprocal", 0.3),
    unary("exp"),
    unary("expm1"),
    unary("log", 0.2),
    unary("log1p", -0.5),
    unary("log2", 0.2),
    unary("log10", 0.2),
    unary("sin"),
    unary("cos"),
    unary("tan", -1.0, 1.0),
    unary("asin", -0.8, 0.8),
    unary("acos", -0.8, 0.8),
    unary("atan"),
    unary("sinh"),
    unary("cosh"),
    unary("tanh"),
    unary("erf"),
    unary("erfc"),
    unary("erfinv", -0.8, 0.8),
    unary("lgamma", 0.3, 4.0),
    unary("digamma", 0.3, 4.0, exact=digamma),
    unary("polygamma", 0.3, 4.0, lambda x: x.polygamma(2)),
    unary("polygamma_first", 0.5, 4.0, lambda x: torch.polygamma(1, x), exact=trigamma),
    unary("sigmoid"),
    Case("exp_integers", torch.exp, [Input((2, 3), -3, 3, torch.int32)], [(0, 3)], [()]),
    Case("floor_integers", torch.floor, [Input((2, 3), -3, 3, torch.int32)], [(0, 3)], [()]),
    Case("abs_integers", torch.abs, [Input((2, 3), -3, 3, torch.int8)], [(0, 3)], [()]),
]

write(__file__, CASES)
