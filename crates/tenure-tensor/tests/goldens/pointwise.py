"""More arithmetic of two and three operands, and conversions."""

import functools

import torch
from harness import Case, Input, write

CONTIGUOUS = ("contiguous",)


def pair(name, function, low=-2.0, high=2.0, **options):
    """Returns a case of a matrix and a row."""
    inputs = [Input((3, 4), low, high), Input((4,), low, high)]
    return Case(name, function, inputs, [(0, 4), (4,)], [(), ()], **options)


def integers(name, function, dtype=torch.int32, low=1):
    inputs = [Input((2, 3), -9 if dtype.is_signed else 0, 9, dtype), Input((3,), low, 6, dtype)]
    return Case(name, function, inputs, [(0, 3), (3,)], [(), ()])


CASES = [
    pair("div_floor", functools.partial(torch.div, rounding_mode="floor"), 0.5, 9.0),
    pair("div_trunc", functools.partial(torch.div, rounding_mode="trunc"), 0.5, 9.0),
    integers("div_floor_integers", functools.partial(torch.div, rounding_mode="floor")),
    integers("div_trunc_integers", functools.partial(torch.div, rounding_mode="trunc"), torch.int8, -5),
    pair("remainder", torch.remainder, 0.7, 5.0),
    Case("remainder_signs", torch.remainder, [Input((3, 4), -9.0, 9.0), Input((1,), -2.0, -1.0)]),
    integers("remainder_integers", torch.remainder, torch.int64),
    pair("fmod", torch.fmod, 0.7, 5.0),
    integers("fmod_integers", torch.fmod, torch.uint8),
    pair("pow", torch.pow, 0.3, 2.0),
    *[
        Case(f"pow_{name}", functools.partial(torch.pow, exponent=exponent), [Input((2, 3), 0.3)], [(0, 3)], [()])
        for name, exponent in {"zero": 0, "one": 1, "square": 2, "cube": 3, "root": 0.5, "inverse": -1.0, "odd": 2.3}.items()
    ],
    Case("pow_at_zero", lambda x, y: torch.pow(x - x, y), [Input((2,)), Input((2,), 1.0)], gradcheck=False),
    integers("pow_integers", torch.pow, torch.int64),
    pair("maximum", torch.maximum),
    pair("minimum", torch.minimum),
    pair("atan2", torch.atan2, 0.2),
    Case("lerp", torch.lerp, [Input((3, 4)), Input((4,)), Input((3, 1), 0.0, 1.0)], [(0, 4), (4,), (1,)], [(), (), ()]),
    Case("lerp_number", lambda a, b: torch.lerp(a, b, 0.7), [Input((3, 4)), Input((3, 4))], [(0, 4), (4,)], [(), ()]),
    Case("add_scaled", lambda a, b: torch.add(a, b, alpha=-0.3), [Input((3, 4)), Input((4,))], [(0, 4), (4,)], [(), ()]),
    Case("addcmul", lambda a, b, c: torch.addcmul(a, b, c, value=0.5), [Input((3, 4)), Input((4,)), Input((3, 1))], [(0, 4), (4,), (1,)], [(), (), ()]),
    Case("addcdiv", lambda a, b, c: torch.addcdiv(a, b, c, value=0.5), [Input((3, 4)), Input((4,)), Input((3, 1), 0.5)], [(0, 4), (4,), (1,)], [(), (), ()]),
    *[integers(name, getattr(torch, name)) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")],
    integers("shift_left", torch.bitwise_left_shift),
    integers("shift_right", torch.bitwise_right_shift, torch.int64),
    Case("bool_sum", torch.add, [Input((2, 3), dtype=torch.bool), Input((3,), dtype=torch.bool)], [(0, 3), (3,)], [(), ()]),
    Case("bool_product", torch.mul, [Input((2, 3), dtype=torch.bool), Input((3,), dtype=torch.bool)], [(0, 3), (3,)], [(), ()]),
    Case("to_integers", lambda x: x.to(torch.int32), [Input((2, 3), -9, 9, grad=False)], [(0, 3)], [()]),
    Case("to_double", lambda x: x.to(torch.float64), [Input((2, 3))], [(0, 3)], [()]),
    Case("to_half", lambda x: x.to(torch.float16), [Input((2, 3))], [(0, 3)], [()], gradcheck=False),
]

write(__file__, CASES)
