"""Decompositions and solvers of matrices. Results do not depend on the signs of vectors, which are arbitrary."""

import torch
from harness import Case, Input, write

PLAIN = ("contiguous", "transposed", "sliced")
FLOATS = ("f32", "f64")
SQUARE, BATCH = Input((3, 3)), Input((2, 3, 3))
NO_MATRICES = (0, 3, 3)


def regular(x):
    """Returns matrices that are far from singular."""
    return x + 5 * torch.eye(3, dtype=x.dtype)


def symmetric(x):
    return x + x.mT


def positive(x):
    return x @ x.mT + torch.eye(3, dtype=x.dtype)


def shown_svd(x, full_matrices):
    u, s, vh = torch.linalg.svd(x, full_matrices)
    count = s.shape[-1]
    return u[..., :count].abs(), s, vh[..., :count, :].abs()


def shown_eigh(x, uplo):
    values, vectors = torch.linalg.eigh(symmetric(x), uplo)
    return values, vectors.abs()


def case(name, function, inputs, empty=None, variants=PLAIN, **how):
    return Case(name, function, inputs, empty, None, variants, FLOATS, **how)


CASES = [
    case("cholesky", lambda x: torch.linalg.cholesky(positive(x)), [BATCH], [NO_MATRICES]),
    case("cholesky_upper", lambda x: torch.linalg.cholesky(positive(x), upper=True), [SQUARE]),
    case("qr", lambda x: tuple(torch.linalg.qr(regular(x))), [BATCH], [NO_MATRICES]),
    case("qr_tall", lambda x: tuple(torch.linalg.qr(x)), [Input((2, 4, 2))], [(2, 0, 2)]),
    case("qr_wide", lambda x: tuple(torch.linalg.qr(x)), [Input((2, 2, 4))], [(2, 3, 0)]),
    case("qr_complete", lambda x: tuple(torch.linalg.qr(x, "complete")), [Input((2, 4))]),
    case("qr_complete_tall", lambda x: tuple(torch.linalg.qr(x, "complete")), [Input((4, 2), grad=False)], [(3, 0)]),
    case("qr_r", lambda x: torch.linalg.qr(x, "r")[1], [Input((4, 2), grad=False)]),
    case("svd", lambda x: shown_svd(x, False), [BATCH], [NO_MATRICES]),
    case("svd_tall", lambda x: shown_svd(x, False), [Input((4, 2))], [(0, 2)]),
    case("svd_wide", lambda x: shown_svd(x, True), [Input((2, 4))], [(2, 0)]),
    case("svdvals", torch.linalg.svdvals, [Input((2, 3, 4))], [(0, 3, 4)]),
    case("svdvals_only", torch.linalg.svdvals, [Input((4, 3), grad=False)]),
    case("eigh", lambda x: shown_eigh(x, "L"), [BATCH], [NO_MATRICES]),
    case("eigh_upper", lambda x: shown_eigh(x, "U"), [SQUARE]),
    case("eigh_of_lower", lambda x: torch.linalg.eigh(x)[0], [Input((3, 3), grad=False)]),
    case("eigh_of_upper", lambda x: torch.linalg.eigh(x, "U")[0], [Input((3, 3), grad=False)]),
    case("eigvalsh", lambda x: torch.linalg.eigvalsh(symmetric(x)), [BATCH], [NO_MATRICES]),
    case("eigvalsh_of_upper", lambda x: torch.linalg.eigvalsh(x, "U"), [Input((3, 3), grad=False)]),
    case("solve", lambda x, y: torch.linalg.solve(regular(x), y), [BATCH, Input((2, 3, 2))], [NO_MATRICES, (0, 3, 2)]),
    case("solve_vector", lambda x, y: torch.linalg.solve(regular(x), y), [SQUARE, Input((3,))]),
    case("solve_vectors", lambda x, y: torch.linalg.solve(regular(x), y), [BATCH, Input((2, 3))]),
    case("solve_broadcast", lambda x, y: torch.linalg.solve(regular(x), y), [Input((2, 1, 3, 3)), Input((2, 3, 1))]),
    case("solve_right", lambda x, y: torch.linalg.solve(regular(x), y, left=False), [SQUARE, Input((2, 3))]),
    case("solve_triangular", lambda x, y: torch.linalg.solve_triangular(regular(x), y, upper=True), [BATCH, Input((2, 3, 2))], [NO_MATRICES, (0, 3, 2)]),
    case("solve_triangular_lower", lambda x, y: torch.linalg.solve_triangular(regular(x), y, upper=False), [BATCH, Input((3, 1))]),
    case("solve_triangular_unit", lambda x, y: torch.linalg.solve_triangular(x, y, upper=True, unitriangular=True), [SQUARE, Input((3, 2))]),
    case("solve_triangular_right", lambda x, y: torch.linalg.solve_triangular(regular(x), y, upper=False, left=False), [SQUARE, Input((2, 3))]),
    case("solve_triangular_unit_right", lambda x, y: torch.linalg.solve_triangular(x, y, upper=False, left=False, unitriangular=True), [SQUARE, Input((2, 3))]),
    case("inv", lambda x: torch.linalg.inv(regular(x)), [BATCH], [NO_MATRICES]),
    case("inverse", lambda x: torch.inverse(regular(x)), [SQUARE]),
    case("det", torch.det, [BATCH], [NO_MATRICES]),
    case("det_of_none", torch.det, [Input((0, 0))]),
    case("det_of_number", torch.det, [Input((2, 1, 1))], variants=PLAIN[:1]),
    case("slogdet", lambda x: tuple(torch.slogdet(x)), [BATCH], [NO_MATRICES]),
    case("slogdet_singular", lambda x: tuple(torch.slogdet(x)), [Input((2, 2), given=[1, 2, 2, 4], grad=False)], variants=PLAIN[:1]),
    case("logdet", lambda x: torch.logdet(positive(x)), [BATCH], [NO_MATRICES]),
    case("logdet_negative", torch.logdet, [Input((2, 2), given=[0, 1, 1, 0], grad=False)], variants=PLAIN[:1]),
    case("pinv", torch.linalg.pinv, [Input((2, 4, 3))], [(0, 4, 3)]),
    case("pinv_wide", torch.linalg.pinv, [Input((2, 4))], [(2, 0)]),
    case("pinv_limited", lambda x: torch.linalg.pinv(x, rtol=0.4), [Input((3, 3), given=[4, 0, 1, 0, 3, 0, 0, 0, 0.5])], variants=PLAIN[:1], gradcheck=False),
    case("pinv_symmetric", lambda x: torch.linalg.pinv(symmetric(regular(x)), hermitian=True), [SQUARE]),
    case("pinverse", lambda x: torch.pinverse(x, 1e-3), [Input((4, 2))]),
    case("matrix_rank", torch.linalg.matrix_rank, [Input((2, 2, 2), given=[1, 2, 2, 4, 3, 1, 1, 2])], variants=PLAIN[:1]),
    case("matrix_rank_limited", lambda x: torch.linalg.matrix_rank(x, atol=0.6), [Input((2, 3), given=[4, 0, 0, 0, 0.5, 0])], variants=PLAIN[:1]),
    case("matrix_rank_symmetric", lambda x: torch.linalg.matrix_rank(x, hermitian=True), [Input((2, 2), given=[1, 2, 2, 4])], variants=PLAIN[:1]),
    case("matrix_power", lambda x: torch.matrix_power(x, 3), [BATCH], [NO_MATRICES]),
    case("matrix_power_one", lambda x: torch.matrix_power(x, 1), [SQUARE]),
    case("matrix_power_none", lambda x: torch.matrix_power(x, 0), [Input((2, 3, 3), grad=False)]),
    case("matrix_power_inverse", lambda x: torch.matrix_power(regular(x), -2), [SQUARE]),
    case("matrix_power_integers", lambda x: torch.matrix_power(x, 5), [Input((2, 2), -3, 4, torch.int64)]),
    case("matrix_exp", torch.matrix_exp, [BATCH], [NO_MATRICES]),
    case("matrix_exp_small", torch.matrix_exp, [Input((3, 3), -0.1, 0.1)]),
]

write(__file__, CASES)
