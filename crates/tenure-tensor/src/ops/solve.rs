//! Solutions of systems of linear equations, and inverses.

use tenure_linalg::Triangle;

use super::entered;
use super::linalg::{check, check_dtype, check_square, identities, on_host, parts, square, to_device_of};
use super::matmul::check_operands;
use super::pointwise::broadcast;
use super::view::signed;
use crate::autocast::raise;
use crate::autograd::{Context, attach};
use crate::cpu;
use crate::operation::operations;
use crate::{Result, Tensor, TensorError};

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes inverse matrices: [`linalg_inv`](Self::linalg_inv) by its older name.
        ///
        /// # Errors
        /// The errors of [`linalg_inv`](Self::linalg_inv).
        inverse(input: Tensor) -> Tensor = Tensor::linalg_inv;
    }
    Function for all {
        /// Solves A·X = B, or X·A = B unless `left`, for square matrices A. B has matrices, or one vector for each
        /// matrix; batches are broadcast. PyTorch's `linalg.solve`. Matrices of a CUDA device are computed on the host.
        ///
        /// # Errors
        /// No square matrices, other sizes of `other`, different dtypes or devices; neither `float32` nor `float64`; a
        /// singular matrix.
        linalg_solve(input: Tensor, other: Tensor, left: Bool = true) -> Tensor;

        /// Solves A·X = B, or X·A = B unless `left`, for triangular matrices A: `upper` ones or lower ones, of which the
        /// other elements are not read. The diagonal counts as ones if `unitriangular`. Batches are broadcast. A zero on
        /// the diagonal makes results infinite or NaN. PyTorch's `linalg.solve_triangular`. Matrices of a CUDA device
        /// are computed on the host.
        ///
        /// # Errors
        /// No square matrices, other sizes of `other`, different dtypes or devices; neither `float32` nor `float64`.
        linalg_solve_triangular(
            input: Tensor, other: Tensor, upper: Bool, left: Bool = true, unitriangular: Bool = false
        ) -> Tensor;

        /// Computes inverse matrices. PyTorch's `linalg.inv`. Matrices of a CUDA device are computed on the host.
        ///
        /// # Errors
        /// No square matrices; neither `float32` nor `float64`; a singular matrix.
        linalg_inv(input: Tensor) -> Tensor;
    }
}

fn linalg_solve(input: &Tensor, other: &Tensor, left: bool) -> Result<Tensor> {
    const OP: &str = "linalg.solve";
    let _op = entered("linalg_solve");
    let a = square(OP, input)?;
    let b = raise(other)?;
    let is_vector = b.rank() == 1 || (a.rank() == b.rank() + 1 && b.sizes() == &a.sizes()[..b.rank()]);
    if !is_vector {
        let [a, b] = operands(OP, &a, &b, left)?;
        return if left { solved(&a, &b) } else { solved(&a.mt()?, &b.mt()?)?.mt() };
    }
    if !left {
        let reason = "Vector broadcasting of the left hand side is not supported for left=False. In this case \
                      linalg.solve is equivalent to B / A.squeeze(-1)";
        return Err(TensorError::argument(OP, reason));
    }
    let [a, b] = operands(OP, &a, &b.unsqueeze(-1)?, true)?;
    solved(&a, &b)?.squeeze(-1)
}

/// Checks the operands, and broadcasts their batches.
fn operands(op: &'static str, a: &Tensor, b: &Tensor, left: bool) -> Result<[Tensor; 2]> {
    check_square(op, a)?;
    if b.rank() < 2 {
        return Err(TensorError::shape(op, "The input tensor B must have at least 2 dimensions."));
    }
    check_operands(op, &[a, b])?;
    check_dtype(op, a)?;
    let (batch, n, _) = parts(a);
    let (other_batch, rows, columns) = parts(b);
    if n != if left { rows } else { columns } {
        let equation = if left { "AX = B" } else { "XA = B" };
        let reason =
            format!("Incompatible shapes of A and B for the equation {equation} ({n}x{n} and {rows}x{columns})");
        return Err(TensorError::shape(op, reason));
    }
    let batch = broadcast(op, &batch, &other_batch)?;
    let expanded = |tensor: &Tensor, rows, columns| tensor.expand(&signed(&[&batch[..], &[rows, columns]].concat()));
    Ok([expanded(a, n, n)?, expanded(b, rows, columns)?])
}

/// Solves A·X = B for matrices of one batch.
fn solved(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let out = on_host(b)?.copy()?;
    if out.numel() > 0 {
        let failed = cpu::linalg::solve(&out, &on_host(a)?)?;
        check("torch.linalg.solve", a, failed, |_| {
            "The solver failed because the input matrix is singular.".to_owned()
        })?;
    }
    attach_solution(to_device_of(b, out)?, a, b)
}

/// Solves A·X = B. If A is singular, the solution is not finite.
pub(super) fn solve_unchecked(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let out = on_host(b)?.copy()?;
    if out.numel() > 0 {
        cpu::linalg::solve(&out, &on_host(a)?)?;
    }
    attach_solution(to_device_of(b, out)?, a, b)
}

fn attach_solution(out: Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    attach(out.clone(), "linalg_solve", &[a, b], |saver| {
        let matrix = saver.save(a)?;
        let solution = saver.save_output(&out, 0)?;
        Ok(move |context: &Context<'_>| {
            let to_b = solve_unchecked(&context.unpack(matrix)?.mt()?, &context.grad(0)?)?;
            let to_a = context.give(0, || to_b.matmul(&context.unpack(solution)?.mt()?)?.neg())?;
            Ok([to_a, Some(to_b)].into_iter().collect())
        })
    })
}

fn linalg_solve_triangular(
    input: &Tensor,
    other: &Tensor,
    upper: bool,
    left: bool,
    unitriangular: bool,
) -> Result<Tensor> {
    const OP: &str = "linalg.solve_triangular";
    let _op = entered("linalg_solve_triangular");
    let [a, b] = operands(OP, &raise(input)?, &raise(other)?, left)?;
    let triangle = Triangle { is_upper: upper == left, is_unit: unitriangular };
    match left {
        true => solved_triangle(&a, &b, triangle),
        false => solved_triangle(&a.mt()?, &b.mt()?, triangle)?.mt(),
    }
}

/// Solves A·X = B for triangular matrices of one batch.
fn solved_triangle(a: &Tensor, b: &Tensor, triangle: Triangle) -> Result<Tensor> {
    let out = on_host(b)?.copy()?;
    if out.numel() > 0 {
        cpu::linalg::solve_triangular(&out, &on_host(a)?, triangle)?;
    }
    let out = to_device_of(b, out)?;
    attach(out.clone(), "linalg_solve_triangular", &[a, b], |saver| {
        let matrix = saver.save(a)?;
        let solution = saver.save_output(&out, 0)?;
        let Triangle { is_upper, is_unit } = triangle;
        Ok(move |context: &Context<'_>| {
            let turned = Triangle { is_upper: !is_upper, is_unit };
            let to_b = solved_triangle(&context.unpack(matrix)?.mt()?, &context.grad(0)?, turned)?;
            let to_a = context.give(0, || {
                let whole = to_b.matmul(&context.unpack(solution)?.mt()?)?.neg()?;
                let without = isize::from(is_unit);
                if is_upper { whole.triu(without) } else { whole.tril(-without) }
            })?;
            Ok([to_a, Some(to_b)].into_iter().collect())
        })
    })
}

fn linalg_inv(input: &Tensor) -> Result<Tensor> {
    const OP: &str = "linalg.inv";
    let _op = entered("linalg_inv");
    let input = square(OP, input)?;
    let (batch, n, _) = parts(&input);
    let out = identities(&batch, n, &on_host(&input)?)?;
    if out.numel() > 0 {
        let failed = cpu::linalg::solve(&out, &on_host(&input)?)?;
        check(OP, &input, failed, |pivot| {
            format!(
                "The diagonal element {} is zero, the inversion could not be completed because the input matrix is \
                 singular.",
                pivot + 1
            )
        })?;
    }
    let out = to_device_of(&input, out)?;
    attach(out.clone(), "linalg_inv", &[&input], |saver| {
        let inverse = saver.save_output(&out, 0)?;
        Ok(move |context: &Context<'_>| {
            let turned = context.unpack(inverse)?.mt()?;
            Ok([Some(turned.matmul(&context.grad(0)?)?.matmul(&turned)?.neg()?)].into_iter().collect())
        })
    })
}
