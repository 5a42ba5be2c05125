//! Tests of linear algebra: edge cases, and the messages of mistakes.

use tenure_tensor::autocast::Autocast;
use tenure_tensor::autograd::{Gradcheck, gradcheck};
use tenure_tensor::{DType, Device, Result, Tensor, TensorError};

fn matrices(numbers: &[f64], sizes: &[usize]) -> Tensor {
    Tensor::from_slice(numbers, sizes).unwrap()
}

#[track_caller]
fn says<T>(result: Result<T>, expected: &str) {
    assert_eq!(result.err().expect("a mistake").to_string(), expected);
}

#[test]
fn a_matrix_without_a_result_is_named() {
    let singular = matrices(&[1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0], &[2, 2, 2]);
    says(
        Tensor::linalg_inv(&singular),
        "linalg.inv: (Batch element 1): The diagonal element 2 is zero, the inversion could not be completed because \
         the input matrix is singular.",
    );
    let alone = singular.select(0, 1).unwrap();
    let right = matrices(&[1.0, 2.0], &[2]);
    says(
        Tensor::linalg_solve(&alone, &right, true),
        "torch.linalg.solve: The solver failed because the input matrix is singular.",
    );
    says(
        Tensor::linalg_cholesky(&alone.neg().unwrap(), false),
        "linalg.cholesky: The factorization could not be completed because the input is not positive-definite (the \
         leading minor of order 1 is not positive-definite).",
    );
    let infinite = alone.div(0.0).unwrap();
    says(
        Tensor::linalg_svdvals(&infinite),
        "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values.",
    );
    assert!(matches!(Tensor::linalg_svd(&infinite, false), Err(TensorError::Matrix { .. })));
}

#[test]
fn eigenvalues_of_a_matrix_that_is_not_finite_are_nan_and_leave_others_as_they_are() {
    let x = matrices(&[2.0, 0.0, 0.0, 1.0, f64::NAN, 0.0, 0.0, 1.0], &[2, 2, 2]);
    let (values, vectors) = Tensor::linalg_eigh(&x, "L").unwrap();
    let found = values.to_vec::<f64>().unwrap();
    assert_eq!(found[..2], [1.0, 2.0]);
    assert!(found[2..].iter().all(|value| value.is_nan()));
    assert!(vectors.select(0, 1).unwrap().to_vec::<f64>().unwrap().iter().all(|x| x.is_nan()));
}

#[test]
fn sizes_and_dtypes_that_do_not_fit_are_refused() {
    let wide = Tensor::ones(&[2, 3], DType::F32, Device::CPU).unwrap();
    says(wide.det(), "linalg.det: A must be batches of square matrices, but they are 2 by 3 matrices");
    says(wide.select(0, 0).unwrap().inverse(), "linalg.inv: The input tensor A must have at least 2 dimensions.");
    let square = wide.narrow(1, 0, 2).unwrap();
    says(
        Tensor::linalg_solve(&square, &wide, false),
        "linalg.solve: Incompatible shapes of A and B for the equation XA = B (2x2 and 2x3)",
    );
    says(
        square.to_dtype(DType::BF16).unwrap().inverse(),
        "linalg.inv: got bfloat16, but low precision dtypes are not supported: convert with to_dtype(float32) first",
    );
    says(Tensor::linalg_eigh(&square, "X"), "linalg.eigh: Expected UPLO argument to be 'L' or 'U', but got X");
    says(
        Tensor::linalg_qr(&square, "x"),
        "linalg.qr: received unrecognized mode 'x' but expected one of 'reduced' (default), 'r', or 'complete'",
    );
}

#[test]
fn a_factor_that_is_not_computed_has_no_gradient() {
    let tall = matrices(&[1.0, 2.0, 3.0, 5.0, 8.0, 13.0], &[3, 2]).requires_grad_(true).unwrap();
    for (mode, reason) in [("r", "mode='r'"), ("complete", "nrows > ncols")] {
        let (_, r) = Tensor::linalg_qr(&tall, mode).unwrap();
        let error = r.sum_all().unwrap().backward().unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// PyTorch gives zeros here.
#[test]
fn the_determinant_of_a_singular_matrix_has_its_gradient() {
    for numbers in [[1.0, 2.0, 2.0, 4.0], [0.0, 0.0, 0.0, 3.0]] {
        let x = matrices(&numbers, &[2, 2]).requires_grad_(true).unwrap();
        gradcheck(|x| Ok(vec![x[0].det()?]), &[x], Gradcheck::default()).unwrap();
    }
}

#[test]
fn exponentials_of_large_matrices_are_squared_up() {
    let x = matrices(&[0.0, 40.0, -40.0, 0.0], &[2, 2]);
    let found = x.matrix_exp().unwrap().to_vec::<f64>().unwrap();
    let (sine, cosine) = 40.0_f64.sin_cos();
    let errors = found.iter().zip([cosine, sine, -sine, cosine]).map(|(a, b)| (a - b).abs());
    assert!(errors.fold(0.0, f64::max) < 1e-12, "{found:?}");
}

#[test]
fn autocast_raises_matrices() {
    let x = matrices(&[2.0, 0.0, 0.0, 1.0], &[2, 2]).to_dtype(DType::BF16).unwrap();
    let _autocast = Autocast::enter(DType::BF16);
    assert_eq!(x.inverse().unwrap().to_vec::<f32>().unwrap(), [0.5, 0.0, 0.0, 1.0]);
    assert_eq!(Tensor::linalg_solve(&x, &x, true).unwrap().dtype(), DType::F32);
    assert_eq!(Tensor::linalg_svdvals(&x).unwrap().to_vec::<f32>().unwrap(), [2.0, 1.0]);
}
