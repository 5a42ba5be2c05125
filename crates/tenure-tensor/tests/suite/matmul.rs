//! Tests of matrix products: large ones, the same bits for any number of threads, and errors.

use tenure_tensor::{DType, Device, Result, Tensor, einsum, threads};

fn numbers(sizes: &[usize], seed: usize) -> Tensor {
    let count: usize = sizes.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + seed) % 1009) as f32 / 250.0 - 2.0).collect();
    Tensor::from_slice(&values, sizes).unwrap()
}

#[test]
fn threads_do_not_change_a_bit() {
    let a = numbers(&[3, 200, 310], 1);
    let b = numbers(&[310, 270], 2);
    let half = a.to_dtype(DType::BF16).unwrap();
    let vector = numbers(&[310], 3);
    let run = |count| {
        threads::set_threads(count).unwrap();
        let products = [
            a.matmul(&b).unwrap(),
            a.transpose(-1, -2).unwrap().matmul(&a).unwrap(),
            half.matmul(&b.to_dtype(DType::BF16).unwrap()).unwrap().to_dtype(DType::F32).unwrap(),
            a.matmul(&vector).unwrap(),
        ];
        products.map(|out| out.to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    };
    let one = run(1);
    assert!(one == run(2) && one == run(3));
}

#[test]
fn tiles_are_what_small_products_are() {
    let a = numbers(&[600, 70], 1);
    let b = numbers(&[70, 900], 2);
    let whole = a.matmul(&b).unwrap().to_vec::<f32>().unwrap();
    for (row, column) in [(0, 0), (599, 899), (511, 512), (300, 64)] {
        let a = a.to_vec::<f32>().unwrap();
        let b = b.to_vec::<f32>().unwrap();
        let sum: f64 = (0..70).map(|i| f64::from(a[row * 70 + i]) * f64::from(b[i * 900 + column])).sum();
        assert!((f64::from(whole[row * 900 + column]) - sum).abs() < 1e-3);
    }
}

#[test]
fn errors_say_what_does_not_fit() {
    let matrix = |sizes: &[usize]| Tensor::zeros(sizes, DType::F32, Device::CPU).unwrap();
    let a = matrix(&[2, 3]);
    let b = matrix(&[2, 3]);
    let said = |result: Result<Tensor>| result.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(said(a.matmul(&b)).contains("3 columns on the left and 2 rows on the right"));
    assert!(said(a.linear(&matrix(&[4, 2]), None)).contains("has 3 features"));
    assert!(said(a.matmul(&b.to_dtype(DType::F64).unwrap())).contains("to_dtype"));
    assert!(said(einsum("ij,ij", &[&a])).contains("of 2 operands, got 1"));
    assert!(said(einsum("ijk", &[&a])).contains("3 letters"));
    assert!(said(einsum("ij,jk", &[&a, &b])).contains("'j' has size 3 in one operand and 2"));
    assert!(said(einsum("ij->ik", &[&a])).contains("'k', which no operand has"));
    assert!(said(einsum("i.->i", &[&a])).contains("neither a letter"));
}
