"""Linear algebra by PyTorch's names: `tenure.linalg` against `torch.linalg`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import tenure

torch = pytest.importorskip("torch")

#: What `torch.linalg` has and `tenure.linalg` has not.
MISSING = {
    "cholesky_ex", "common_notes", "eig", "eigvals", "householder_product", "inv_ex", "ldl_factor", "ldl_factor_ex",
    "ldl_solve", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "solve_ex",
}  # fmt: skip


def ours(tensor: Any) -> tenure.Tensor:
    return tenure.from_dlpack(tensor)


def same(program: Callable[..., Any], *inputs: Any, close: float = 1e-10) -> None:
    """Checks that a program of a module and of tensors gives the values and the gradients of PyTorch."""
    theirs = [value.clone().requires_grad_() for value in inputs]
    mine = [ours(value.clone()).requires_grad_() for value in inputs]
    expected, found = program(torch, *theirs), program(tenure, *mine)
    assert found.shape == tuple(expected.shape)
    assert torch.allclose(torch.from_dlpack(found.detach()), expected.detach(), close, close)
    expected.sum().backward()
    found.sum().backward()
    for of_ours, of_theirs in zip(mine, theirs, strict=True):
        assert of_ours.grad is not None
        assert torch.allclose(torch.from_dlpack(of_ours.grad), of_theirs.grad, close, close)


def numbers(*sizes: int, seed: int = 0) -> Any:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def test_all_names_are_those_of_pytorch() -> None:
    names = {name for name in dir(torch.linalg) if not name.startswith("_") and not hasattr(torch, f"{name}_")}
    listed = set(tenure.linalg.__all__)
    assert listed <= set(dir(torch.linalg))
    public = {name for name in names if callable(getattr(torch.linalg, name))} - {"Tensor"}
    assert public - listed <= MISSING


@pytest.mark.parametrize("ord", [None, "fro", "nuc", math.inf, -math.inf, 1, -1, 2, -2])
def test_norms_of_matrices(ord: Any) -> None:
    same(lambda t, x: t.linalg.norm(x, ord), numbers(3, 4))
    if ord is not None:
        same(lambda t, x: t.linalg.matrix_norm(x, ord, (0, 2), True), numbers(3, 2, 4))


@pytest.mark.parametrize("ord", [2, 1, 3.5, math.inf, -math.inf, -1])
def test_norms_of_vectors(ord: Any) -> None:
    same(lambda t, x: t.linalg.vector_norm(x, ord), numbers(3, 4))
    same(lambda t, x: t.linalg.norm(x, ord, 1), numbers(3, 4))
    same(lambda t, x: t.linalg.vector_norm(x, ord, (0, 2), True, dtype=t.float64), numbers(3, 2, 2))


@pytest.mark.parametrize("p", [None, 2, -2, 1, "fro", math.inf])
def test_condition_numbers(p: Any) -> None:
    def program(t: Any, x: Any) -> Any:
        if t is torch and p not in (None, 2, -2):
            # PyTorch's function has no gradient here: it writes to the inverse.
            return t.linalg.matrix_norm(x, p) * t.linalg.matrix_norm(t.linalg.inv(x), p)
        return t.linalg.cond(x, p)

    same(program, numbers(2, 3, 3), close=1e-8)


def test_the_condition_number_of_a_singular_matrix_is_infinite() -> None:
    assert tenure.linalg.cond(tenure.ones(2, 2), 1).item() == math.inf


def test_products() -> None:
    same(lambda t, *x: t.linalg.multi_dot(x), numbers(2, 5), numbers(5, 1), numbers(1, 4), numbers(4, 3))
    same(lambda t, *x: t.linalg.multi_dot(x), numbers(5), numbers(5, 4), numbers(4))
    same(lambda t, x, y: t.linalg.vecdot(x, y, dim=0), numbers(3, 1), numbers(3, 4))
    same(lambda t, x, y: t.linalg.cross(x, y), numbers(2, 3), numbers(2, 3, seed=1))
    same(lambda t, x, y: t.linalg.matmul(x, y), numbers(2, 3), numbers(3, 2))
    same(lambda t, x: t.linalg.diagonal(x, offset=1), numbers(2, 3, 4))
    same(lambda t, x: t.linalg.vander(x, N=4), numbers(2, 3))


def test_systems_of_tensors() -> None:
    same(lambda t, x: t.linalg.tensorinv(x, 1), numbers(6, 2, 3))
    same(lambda t, x, y: t.linalg.tensorsolve(x, y), numbers(2, 3, 6), numbers(2, 3))
    same(lambda t, x, y: t.linalg.tensorsolve(x, y, (0,)), numbers(6, 2, 3), numbers(2, 3))


def test_tolerances_are_numbers_or_one_for_each_matrix() -> None:
    x = ours(numbers(2, 3, 3))
    limits = tenure.tensor([0.0, 2.0], dtype=tenure.float64)
    assert tenure.linalg.matrix_rank(x, rtol=limits).tolist() == [3, 0]
    assert tenure.linalg.matrix_rank(x, atol=1e3).tolist() == [0, 0]
    assert tenure.linalg.pinv(x, rtol=limits)[1].abs().max().item() == 0
    assert tenure.linalg.pinv(x, atol=1e-3).shape == (2, 3, 3)


def test_results_have_the_names_of_pytorch() -> None:
    x = ours(numbers(3, 3))
    for name in ("qr", "svd", "eigh", "slogdet"):
        theirs = getattr(torch.linalg, name)(torch.eye(3))
        result = getattr(tenure.linalg, name)(x)
        assert [getattr(theirs, field).shape for field in result._fields] == [one.shape for one in result]


def test_a_matrix_without_a_result_raises_the_error_of_pytorch() -> None:
    assert issubclass(tenure.linalg.LinAlgError, RuntimeError)
    programs: list[Callable[[Any], Any]] = [
        lambda t: t.linalg.inv(t.zeros(2, 2)),
        lambda t: t.linalg.solve(t.ones(3, 2, 2), t.ones(2)),
        lambda t: t.linalg.cholesky(-t.eye(2)),
        lambda t: t.linalg.cholesky(t.stack([t.eye(3), t.diag(t.tensor([1.0, 1.0, -1.0]))])),
        lambda t: t.linalg.svd(t.full((2, 2), math.nan)),
    ]
    for program in programs:
        with pytest.raises(torch.linalg.LinAlgError) as expected:
            program(torch)
        with pytest.raises(tenure.linalg.LinAlgError) as found:
            program(tenure)
        assert str(found.value) == str(expected.value)


def test_mistakes_are_told_as_by_pytorch() -> None:
    programs: list[Callable[[Any], Any]] = [
        lambda t: t.linalg.det(t.ones(2, 3)),
        lambda t: t.linalg.slogdet(t.ones(3)),
        lambda t: t.linalg.solve(t.eye(2), t.ones(3)),
        lambda t: t.linalg.solve_triangular(t.eye(2), t.ones(3, 3), upper=True, left=False),
        lambda t: t.linalg.matrix_norm(t.ones(3)),
        lambda t: t.linalg.matrix_norm(t.ones(3, 3), 3),
        lambda t: t.linalg.matrix_norm(t.ones(3, 3), dim=(0, 0)),
        lambda t: t.linalg.cond(t.ones(2, 3), 1),
        lambda t: t.linalg.cond(t.ones(3)),
        lambda t: t.linalg.multi_dot([t.ones(3)]),
    ]
    for program in programs:
        with pytest.raises(RuntimeError) as expected:
            program(torch)
        with pytest.raises(tenure.Error) as found:
            program(tenure)
        assert str(found.value).rstrip(".") == str(expected.value).rstrip(".")


def test_large_matrices_are_solved_in_single_precision() -> None:
    a = numbers(200, 200).float() + 20 * torch.eye(200)
    b = numbers(200, 3, seed=1).float()
    x = tenure.linalg.solve(ours(a), ours(b))
    assert (ours(a) @ x - ours(b)).abs().max().item() < 1e-4


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_the_gradient_of_eigenvectors_is_symmetric_as_in_pytorch(uplo: str) -> None:
    a = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight = a * 2 + 1
    a = (a + a.T).requires_grad_()
    ours = tenure.from_dlpack(a.detach().clone()).requires_grad_()
    (torch.linalg.eigh(a, UPLO=uplo)[1].square() * weight).sum().backward()
    (tenure.linalg.eigh(ours, UPLO=uplo)[1].square() * tenure.from_dlpack(weight)).sum().backward()
    assert ours.grad is not None and torch.allclose(torch.from_dlpack(ours.grad), a.grad)
