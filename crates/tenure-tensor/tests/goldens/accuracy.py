"""Functions of one number over most of their domain, in f64: `../accuracy.rs` compares f32 with these."""

import torch
import torch.nn.functional as F
from harness import Case, Input, write


def over(name, low, high, function=None, **options):
    inputs = [Input((24,), low, high)]
    return Case(name, function or getattr(torch, name), inputs, variants=("contiguous",), dtypes=("f64",), gradcheck=False, **options)


def trigamma(x):
    """Computes the function to all digits: PyTorch's has nine."""
    return torch.special.zeta(2.0, x)


def digamma(x):
    """Computes the function with all digits of its gradient."""
    place = x.detach()
    return torch.digamma(place) + (x - place) * trigamma(place)


CASES = [
    *[over(name, 1e-3, 1e3) for name in ("sqrt", "rsqrt", "reciprocal", "log", "log2", "log10")],
    *[over(name, -20.0, 20.0) for name in ("exp", "expm1", "sinh", "cosh", "sin", "cos", "tan", "atan", "sigmoid")],
    *[over(name, -0.999, 0.999) for name in ("asin", "acos", "erfinv")],
    *[over(name, -4.0, 4.0) for name in ("tanh", "erf", "erfc")],
    over("lgamma", -9.0, 30.0),
    over("digamma", -9.0, 30.0, exact=digamma),
    over("polygamma_1", -9.0, 30.0, lambda x: torch.polygamma(1, x), exact=trigamma),
    *[over(f"polygamma_{n}", -9.0, 30.0, lambda x, n=n: torch.polygamma(n, x)) for n in (3, 10)],
    over("log1p", -0.99, 9.0),
    *[over(name, -9.0, 9.0, getattr(F, name)) for name in ("gelu", "silu", "mish", "logsigmoid", "selu", "softplus")],
    over("gelu_tanh", -9.0, 9.0, lambda x: F.gelu(x, approximate="tanh")),
]

write(__file__, CASES)
