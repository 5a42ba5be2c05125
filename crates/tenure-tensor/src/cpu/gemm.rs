//! Matrix products.
//!
//! The `gemm` crate multiplies on the calling thread; this module divides a product into tiles, by its sizes alone. The
//! sum over the inner dimension is never divided.

use super::gemm_bf16;
use super::matrix::{Matrix, first_matrix, place};
use super::vectorized;
use super::{in_f32, widened};
use crate::kernel::on_cpu;
use crate::{Access, DType, Entry, Number, Result, Scalar, Tensor, threads};

/// A kernel that writes the product of two (batches of) matrices times a number, plus a broadcast base times another
/// number. All have the same batch sizes, and no two elements of the output share memory.
pub(crate) type Product = fn(&Tensor, [&Tensor; 2], Option<(&Tensor, Scalar)>, Scalar) -> Result<()>;

pub(crate) const PRODUCT: &[Entry<Product>] = on_cpu!(
    @ product: (F32 f32) (F64 f64) (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64) (U16 i16) (U32 i32) (U64 i64)
);
pub(crate) const PRODUCT_OF_HALVES: &[Entry<Product>] = on_cpu!(@ product_of_halves, (F16 BF16));

/// An element type of matrix products.
pub(crate) trait Multiply: Number {
    /// Computes `out = beta * out + alpha * a * b`, where `a` has `m` rows and `k` columns, and `b` has `k` rows and
    /// `n` columns.
    ///
    /// # Safety
    /// The elements of `a` and `b` must be readable, and those of `out` writable. No element of `out` shares memory
    /// with another element.
    unsafe fn multiply(sizes: [usize; 3], out: Matrix<Self>, a: Matrix<Self>, b: Matrix<Self>, alpha: Self, beta: Self);
}

macro_rules! multiply_with_library {
    ($($type:ty, $library:path;)*) => {$(
        impl Multiply for $type {
            unsafe fn multiply(
                [mut m, k, mut n]: [usize; 3],
                mut out: Matrix<Self>,
                mut a: Matrix<Self>,
                mut b: Matrix<Self>,
                alpha: Self,
                beta: Self,
            ) {
                use $library as library;

                // The library is fast if neighbours are in a column of the output.
                if out.column < out.row {
                    (m, n) = (n, m);
                    (out, a, b) = (out.transposed(), b.transposed(), a.transposed());
                }
                // SAFETY: the library requires what the caller promises.
                unsafe {
                    library::get_gemm_fn()(
                        m, n, k,
                        out.data, out.column as isize, out.row as isize, beta != 0.0,
                        a.data, a.column as isize, a.row as isize,
                        b.data, b.column as isize, b.row as isize,
                        beta, alpha, false, false, false, gemm_common::Parallelism::None,
                    );
                }
            }
        }
    )*};
}
multiply_with_library! {
    f32, gemm_f32::gemm::f32;
    f64, gemm_f64::gemm::f64;
}

macro_rules! multiply_integers {
    ($($type:ty),*) => {$(
        impl Multiply for $type {
            unsafe fn multiply(
                [m, k, n]: [usize; 3],
                out: Matrix<Self>,
                a: Matrix<Self>,
                b: Matrix<Self>,
                alpha: Self,
                beta: Self,
            ) {
                // SAFETY: as the caller promises.
                unsafe {
                    if (out.column, b.column) == (1, 1) {
                        // A constant stride lets the loops compute neighbours at once.
                        let out = Matrix { column: 1, ..out };
                        let b = Matrix { column: 1, ..b };
                        vectorized!(add_rows([m, k, n], out, a, b, alpha, beta));
                    } else {
                        add_rows([m, k, n], out, a, b, alpha, beta);
                    }
                }
            }
        }
    )*};
}
multiply_integers!(u8, i8, i16, i32, i64);

/// Computes [`Multiply::multiply`] by sums of rows.
///
/// # Safety
/// See [`Multiply::multiply`].
#[inline(always)]
unsafe fn add_rows<T: Number>([m, k, n]: [usize; 3], out: Matrix<T>, a: Matrix<T>, b: Matrix<T>, alpha: T, beta: T) {
    for row in 0..m {
        // SAFETY: these are elements of the three matrices, as the caller promises.
        unsafe {
            for column in 0..n {
                let to = out.at(row, column).data;
                to.write(if beta == T::ZERO { T::ZERO } else { to.read().times(beta) });
            }
            for inner in 0..k {
                let factor = a.at(row, inner).data.read().times(alpha);
                for column in 0..n {
                    let to = out.at(row, column).data;
                    to.write(to.read().plus(factor.times(b.at(inner, column).data.read())));
                }
            }
        }
    }
}

fn product<T: Multiply>(
    out: &Tensor,
    factors: [&Tensor; 2],
    base: Option<(&Tensor, Scalar)>,
    alpha: Scalar,
) -> Result<()> {
    let beta = begin(out, base)?;
    add_product::<T>(out, factors, alpha, beta)
}

/// Copies the base to the output. Returns the factor to multiply it with.
fn begin(out: &Tensor, base: Option<(&Tensor, Scalar)>) -> Result<Scalar> {
    let Some((base, beta)) = base else { return Ok(Scalar::Int(0)) };
    out.copy_raw(base)?;
    Ok(beta)
}

fn add_product<T: Multiply>(out: &Tensor, [a, b]: [&Tensor; 2], alpha: Scalar, beta: Scalar) -> Result<()> {
    let mut access = Access::new("matmul", &[out], &[a, b])?;
    let rank = out.rank();
    let m = out.sizes()[rank - 2];
    let k = a.sizes()[rank - 1];
    let n = out.sizes()[rank - 1];
    let to = first_matrix::<T>(access.write_ptr(0), out);
    let left = first_matrix::<T>(access.read_ptr(0), a);
    let right = first_matrix::<T>(access.read_ptr(1), b);
    let alpha = T::from_scalar(alpha);
    let beta = T::from_scalar(beta);

    let batches: usize = out.sizes()[..rank - 2].iter().product();
    let (rows, columns) = tile(batches, [m, k, n]);
    let down = m.div_ceil(rows);
    let across = n.div_ceil(columns);
    let together = (SMALL / (rows * columns * k).max(1)).max(1);
    threads::for_each_range(batches * down * across, together, |range| {
        for part in range {
            let batch = part / (down * across);
            let row = part / across % down * rows;
            let column = part % across * columns;
            let of = |matrix: Matrix<T>, tensor: &Tensor, row, column| {
                let place = place(batch, &out.sizes()[..rank - 2], tensor.strides());
                Matrix { data: matrix.data.wrapping_add(place), ..matrix }.at(row, column)
            };
            // SAFETY: these are tiles of matrices of the tensors that `access` holds; no two tiles write the same
            // elements.
            unsafe {
                T::multiply(
                    [rows.min(m - row), k, columns.min(n - column)],
                    of(to, out, row, column),
                    of(left, a, row, 0),
                    of(right, b, 0, column),
                    alpha,
                    beta,
                );
            }
        }
    });
    Ok(())
}

/// The number of multiplications that are worth waking a thread for.
const SMALL: usize = 2 << 20;

/// Returns the sizes of the tiles that a product is divided into. They are large, since every tile packs its rows and
/// columns anew, but there are enough of them for threads to share evenly.
fn tile(batches: usize, [m, k, n]: [usize; 3]) -> (usize, usize) {
    const PARTS: usize = 16;
    let mut rows = m.clamp(1, 512);
    let mut columns = n.clamp(1, 512);
    // A product with a vector is limited by memory, so smaller tiles pay.
    let small = (m.min(n) * SMALL / 16).clamp(SMALL / 16, SMALL);
    while batches * m.div_ceil(rows) * n.div_ceil(columns) < PARTS && rows * columns * k > small {
        if columns > 64 && columns >= rows {
            columns = (columns / 2).next_multiple_of(64);
        } else if rows > 6 {
            rows = (rows / 2).next_multiple_of(6);
        } else {
            break;
        }
    }
    (rows, columns)
}

fn product_of_halves(out: &Tensor, [a, b]: [&Tensor; 2], base: Option<(&Tensor, Scalar)>, alpha: Scalar) -> Result<()> {
    let beta = begin(out, base)?;
    if out.dtype() == DType::BF16 && gemm_bf16::is_there() {
        return gemm_bf16::product(out, a, b, alpha, beta);
    }
    in_f32(out, |wide| {
        if beta.to_bool() {
            wide.copy_raw(out)?;
        }
        add_product::<f32>(wide, [&widened(a)?, &widened(b)?], alpha, beta)
    })
}
