"""Writes in place to tensors and to their views, in the middle of graphs."""

import torch
from harness import Case, Input, write

MATRIX, ROW, COLUMN = Input((3, 4)), Input((4,)), Input((3, 1))


def arithmetic(x, y):
    a, b, c, d = x * 2, x * 2, x * 2, x * 2
    a.add_(y)
    b.sub_(y)
    c.mul_(y)
    d.div_(y)
    return a * x, b * x, c * x, d * x


def itself(x):
    # For a.mul_(a), PyTorch would need the value that it has overwritten.
    a = (x * 2) * (x * 2)
    a.add_(a)
    return a


def fused(x, a, b):
    p, q, r, s = x * 2, x * 2, x * 2, x * 2
    p.add_(a, alpha=-3)
    q.addcmul_(a, b, value=0.5)
    r.addcdiv_(a, b, value=0.5)
    s.lerp_(a.expand(3, 4), b.expand(3, 4))
    s.lerp_(x, 0.25)
    return p * x, q * x, r * x, s * x


def functions(x):
    a, b, c, d, e, f, g, h = (x * 2 for _ in range(8))
    for function, tensor in ((torch.exp_, a), (torch.relu_, b), (torch.sigmoid_, c), (torch.tanh_, d)):
        function(tensor[1:])
    e.add_(5).sqrt_()
    f.clamp_(-0.75, 1.5)
    g.masked_fill_(x > 0, 3)
    torch.nn.functional.silu(h, inplace=True)
    return a * x, b * x, c * x, d * x, e * x, f * x, g * x, h * x


def filled(x):
    a = x * 2
    a[1].zero_()
    a[:, 2].fill_(3)
    return a * x


def rows(x, y):
    table = torch.zeros(3, 4, dtype=x.dtype)
    table[1].copy_(y * 2)
    table[2].copy_(x[0])
    return table * x, table[1] * y


def view_of_result(x):
    y = (x * 2).view(4, 3)
    y.mul_(2.5)
    y.transpose(0, 1).mul_(3)
    return y * y


def base_after_view(x, w):
    base = x * 2
    view = base.view(-1)
    view.mul_(w)
    return base * x, view * 2


def view_after_base(x, w):
    base = x * 2
    first, other = base[0], base[:, 1:3]
    base.mul_(w)
    return first * 3, other * other


def view_after_other_view(x, w):
    base = x * 2
    first, column, repeated = base[0], base[:, 1], base[:, :1].expand(3, 4)
    first.mul_(w)
    column.add_(1)
    return first * 2, column * column, repeated * x, base


def view_of_view(x, w):
    base = x * 2
    part = base[1:].t()[1:3]
    part.mul_(w)
    part[0].add_(w)
    return base * x, part * 2


def detached(x):
    a = x * 2
    b = a * 3
    a.detach().fill_(5)
    return a * 1, b


def parts(x, w):
    base = x * 2
    # PyTorch refuses writes to views that come from one call of chunk().
    left, right = base[:, :2], base[:, 2:]
    middle = base.narrow(1, 1, 2)
    with torch.no_grad():
        left.mul_(1)
    middle.mul_(w)
    return left * 2, right * right, base


def swapped(x, w):
    a = x * 2
    b = w * 3
    a[0].copy_(b)
    b.mul_(a[1].clone())
    a[2].copy_(b)
    return a * x, b


# A flat view of a transposed tensor would need a copy.
DENSE = ("contiguous", "expanded", "sliced")

CASES = [
    Case("arithmetic", arithmetic, [Input((3, 4)), Input((4,), 0.5)], [(0, 4), (4,)], [(), ()]),
    Case("arithmetic_column", arithmetic, [Input((3, 4)), Input((3, 1), 0.5)], second=False),
    Case("itself", itself, [MATRIX], [(0, 4)], [()]),
    Case("fused", fused, [MATRIX, Input((4,)), Input((3, 1), 0.5)], second=False),
    Case("functions", functions, [Input((3, 4), -1)], second=False),
    Case("filled", filled, [MATRIX]),
    Case("rows", rows, [MATRIX, ROW]),
    Case("view_of_result", view_of_result, [MATRIX], variants=DENSE),
    Case("base_after_view", base_after_view, [MATRIX, Input((12,))], variants=DENSE),
    Case("view_after_base", view_after_base, [MATRIX, ROW]),
    Case("view_after_other_view", view_after_other_view, [MATRIX, ROW]),
    Case("view_of_view", view_of_view, [MATRIX, Input((2,))]),
    Case("detached", detached, [MATRIX], gradcheck=False),
    Case("parts", parts, [MATRIX, COLUMN], second=False),
    Case("swapped", swapped, [MATRIX, ROW], second=False),
]

write(__file__, CASES)
