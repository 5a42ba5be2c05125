"""Products of matrices and vectors, and sums of products."""

import torch
import torch.nn.functional as F
from harness import Case, Input, write


def case(name, function, *sizes, empty=None, **options):
    return Case(name, function, [Input(size) for size in sizes], empty, **options)


def equation(name, text, *sizes, **options):
    return case(name, lambda *x: torch.einsum(text, *x), *sizes, **options)


CASES = [
    case("matmul", torch.matmul, (3, 4), (4, 2), empty=[(3, 0), (0, 2)]),
    case("matmul_vectors", torch.matmul, (5,), (5,), empty=[(0,), (0,)]),
    case("matmul_row", torch.matmul, (4,), (2, 4, 3)),
    case("matmul_column", torch.matmul, (2, 3, 4), (4,)),
    case("matmul_fold", torch.matmul, (2, 3, 4), (4, 2), empty=[(2, 0, 4), (4, 2)]),
    case("matmul_broadcast", torch.matmul, (2, 1, 3, 2), (3, 2, 2), empty=[(0, 1, 3, 2), (3, 2, 2)]),
    case("matmul_left", torch.matmul, (3, 2), (2, 2, 3)),
    Case("matmul_integers", torch.matmul, [Input((3, 4), -9, 9, torch.int32)] + [Input((4, 2), -9, 9, torch.int32)]),
    case("bmm", torch.bmm, (2, 3, 4), (2, 4, 2), empty=[(0, 3, 4), (0, 4, 2)]),
    case("mv", torch.mv, (3, 4), (4,), empty=[(3, 0), (0,)]),
    case("dot", torch.dot, (6,), (6,), empty=[(0,), (0,)]),
    case("outer", torch.outer, (3,), (2,), empty=[(0,), (2,)]),
    case("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2), (3, 1), (3, 4), (4, 2), empty=[(3, 1), (3, 0), (0, 2)], scalar=[(), (3, 4), (4, 2)]),
    case("addmm_without", lambda c, a, b: torch.addmm(c, a, b, beta=0), (3, 2), (3, 4), (4, 2)),
    case("baddbmm", lambda c, a, b: torch.baddbmm(c, a, b, alpha=3), (2,), (2, 3, 4), (2, 4, 2), empty=[(2,), (0, 3, 4), (0, 4, 2)], scalar=[(), (2, 3, 4), (2, 4, 2)]),
    case("linear", F.linear, (2, 3, 4), (5, 4), (5,), empty=[(0, 4), (5, 4), (5,)]),
    case("linear_one", F.linear, (4,), (3, 4), (3,)),
    case("linear_without_bias", F.linear, (3, 4), (2, 4)),
    equation("einsum_matmul", "ij,jk->ik", (3, 4), (4, 2), empty=[(3, 0), (0, 2)]),
    equation("einsum_batches", "bij,bkj->bik", (2, 3, 2), (2, 4, 2)),
    equation("einsum_trace", "ii", (3, 3)),
    equation("einsum_diagonal", "iij->ji", (3, 3, 2)),
    equation("einsum_transpose", "ij->ji", (3, 2)),
    equation("einsum_implicit", "ba,ca", (3, 2), (4, 2)),
    equation("einsum_numbers", ",->", (), (), scalar=[(), ()]),
    equation("einsum_outer", "i,j->ij", (3,), (2,)),
    equation("einsum_ellipsis", "...ij,...jk->...ik", (2, 1, 3, 2), (3, 2, 2)),
    equation("einsum_ellipsis_dropped", "i...->...", (3, 2, 2)),
    equation("einsum_three", "ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    equation("einsum_bilinear", "bn,anm,bm->ba", (2, 3), (2, 3, 2), (2, 2)),
    equation("einsum_one", "ij,jk->k", (3, 1), (4, 2)),
]

write(__file__, CASES)
