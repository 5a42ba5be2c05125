//! Tests of new tensors, from numbers, from Rust's memory, and from bytes.

use half::bf16;
use tenure_tensor::{DType, Device, Result, Scalar, Tensor};

const CPU: Device = Device::CPU;

fn arange(start: impl Into<Scalar>, end: impl Into<Scalar>, step: impl Into<Scalar>, dtype: DType) -> Result<Tensor> {
    Tensor::arange(start, end, step, dtype, CPU)
}

#[test]
fn ranges_count_up_and_down() {
    assert_eq!(arange(1, 10, 3, DType::I64).unwrap().to_vec::<i64>().unwrap(), [1, 4, 7]);
    assert_eq!(arange(5, -1, -2, DType::I32).unwrap().to_vec::<i32>().unwrap(), [5, 3, 1]);
    assert_eq!(arange(0.0, 1.0, 0.25, DType::F32).unwrap().to_vec::<f32>().unwrap(), [0.0, 0.25, 0.5, 0.75]);
    assert_eq!(arange(0, 3, 1, DType::F64).unwrap().to_vec::<f64>().unwrap(), [0.0, 1.0, 2.0]);
    let far = arange(i64::MAX - 2, i64::MAX, 1, DType::I64).unwrap();
    assert_eq!(far.to_vec::<i64>().unwrap(), [i64::MAX - 2, i64::MAX - 1]);
    assert_eq!(arange(2, 2, 1, DType::I64).unwrap().sizes(), [0]);
}

#[test]
fn ranges_that_do_not_end_are_refused() {
    let error = arange(0, 3, -1, DType::I64).unwrap_err().to_string();
    let reason = "a step to a larger number must be positive";
    assert_eq!(error, format!("arange: steps of -1 do not lead from 0 to 3: {reason}"));
    assert!(arange(0, 3, 0, DType::I64).is_err() && arange(0.0, f64::INFINITY, 1.0, DType::F32).is_err());
    assert!(arange(0.0, f64::NAN, 1.0, DType::F32).is_err() && arange(0, 2, 1, DType::Bool).is_err());
}

#[test]
fn spaces_are_exact_at_both_ends() {
    let numbers = Tensor::linspace(-1.0, 0.3, 5, DType::F64, CPU).unwrap().to_vec::<f64>().unwrap();
    assert_eq!((numbers.len(), numbers[0], numbers[4]), (5, -1.0, 0.3));
    assert!((numbers[1] + 0.675).abs() < 1e-12 && (numbers[3] + 0.025).abs() < 1e-12);
    assert_eq!(Tensor::linspace(2.0, 9.0, 1, DType::F32, CPU).unwrap().to_vec::<f32>().unwrap(), [2.0]);
    let powers = Tensor::logspace(0.0, 3.0, 4, 2.0, DType::F32, CPU).unwrap();
    assert_eq!(powers.to_vec::<f32>().unwrap(), [1.0, 2.0, 4.0, 8.0]);
}

#[test]
fn an_identity_need_not_be_square() {
    let matrix = Tensor::eye(2, 3, DType::I8, CPU).unwrap();
    assert_eq!(matrix.to_vec::<i8>().unwrap(), [1, 0, 0, 0, 1, 0]);
}

#[test]
fn a_tensor_like_another_has_its_order_in_memory() {
    let turned = Tensor::zeros(&[2, 3], DType::BF16, CPU).unwrap().t().unwrap();
    let ones = turned.ones_like().unwrap();
    assert_eq!((ones.sizes(), ones.strides(), ones.dtype()), (turned.sizes(), turned.strides(), DType::BF16));
    assert_eq!(ones.to_vec::<bf16>().unwrap(), [bf16::ONE; 6]);
}

#[test]
fn a_vector_is_used_where_it_is() {
    let elements = vec![1_i16, 2, 3, 4, 5, 6];
    let first = elements.as_ptr();
    let tensor = Tensor::from_vec(elements, &[2, 3]).unwrap();
    assert_eq!(tensor.storage().lock().as_ptr().cast_const().cast(), first);
    tensor.select(0, 1).unwrap().fill_(7).unwrap();
    assert_eq!(tensor.to_vec::<i16>().unwrap(), [1, 2, 3, 7, 7, 7]);
    assert_eq!(Tensor::from_vec(Vec::<f32>::new(), &[0, 3]).unwrap().sizes(), [0, 3]);
    let error = Tensor::from_vec(vec![1.0_f32], &[2]).unwrap_err().to_string();
    assert_eq!(error, "from_vec: 1 elements do not fill sizes [2], which hold 2");
}

fn error(bytes: &[u8], dtype: DType) -> String {
    Tensor::from_bytes(bytes, &[2], dtype).unwrap_err().to_string()
}

#[test]
fn bytes_are_checked_and_need_no_alignment() {
    let bytes: Vec<u8> = std::iter::once(9).chain([1.5_f64, -2.0].into_iter().flat_map(f64::to_ne_bytes)).collect();
    let tensor = Tensor::from_bytes(&bytes[1..], &[2], DType::F64).unwrap();
    assert_eq!(tensor.to_vec::<f64>().unwrap(), [1.5, -2.0]);
    assert_eq!(tensor.to_bytes().unwrap(), bytes[1..]);
    assert_eq!(Tensor::from_bytes(&[], &[0], DType::Bool).unwrap().to_bytes().unwrap(), [0_u8; 0]);
    assert_eq!(error(&[0, 2], DType::Bool), "from_bytes: a byte of bool is 0 or 1, found another");
    assert_eq!(error(&[0, 2], DType::I32), "from_bytes: 2 bytes do not fill int32 [2], which take 8");
}

#[test]
fn arrays_are_written_as_they_are() {
    let matrix = Tensor::from_array([[1_i8, 2], [3, 4], [5, 6]]).unwrap();
    assert_eq!((matrix.sizes(), matrix.to_vec::<i8>().unwrap()), (&[3, 2][..], vec![1, 2, 3, 4, 5, 6]));
    assert_eq!(Tensor::from_array(true).unwrap().sizes(), [0_usize; 0]);
    assert_eq!(Tensor::from_array([[0.0_f32; 0]; 2]).unwrap().sizes(), [2, 0]);
}
