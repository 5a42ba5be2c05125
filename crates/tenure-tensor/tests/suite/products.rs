//! Tests of matrix products and attention: large ones, the same bits for any number of threads, extreme scores, and
//! errors.

use tenure_tensor::autograd::{self, BackwardOptions};
use tenure_tensor::{Attention, DType, Device, Result, Tensor, einsum, threads};

fn numbers(sizes: &[usize], seed: usize) -> Tensor {
    let count: usize = sizes.iter().product();
    let values: Vec<f64> = (0..count).map(|i| ((i * 7919 + seed) % 1009) as f64 / 250.0 - 2.0).collect();
    Tensor::from_slice(&values, sizes).unwrap()
}

fn singles(sizes: &[usize], seed: usize) -> Tensor {
    numbers(sizes, seed).to_dtype(DType::F32).unwrap()
}

/// Checks that the results have the same bits for one, two and three threads.
#[track_caller]
fn assert_same_for_all_threads(compute: impl Fn() -> Vec<Tensor>) {
    let [one, two, three] = [1, 2, 3].map(|count| {
        threads::set_threads(count).unwrap();
        compute().iter().map(|tensor| tensor.to_bytes().unwrap()).collect::<Vec<_>>()
    });
    assert!(one == two && one == three);
}

#[test]
fn threads_do_not_change_a_bit_of_products() {
    let a = singles(&[3, 200, 310], 1);
    let b = singles(&[310, 270], 2);
    let half = a.to_dtype(DType::BF16).unwrap();
    let vector = singles(&[310], 3);
    assert_same_for_all_threads(|| {
        vec![
            a.matmul(&b).unwrap(),
            a.transpose(-1, -2).unwrap().matmul(&a).unwrap(),
            half.matmul(&b.to_dtype(DType::BF16).unwrap()).unwrap(),
            a.matmul(&vector).unwrap(),
        ]
    });
}

#[test]
fn threads_do_not_change_a_bit_of_attention() {
    let [q, k, v] = [1, 2, 3].map(|seed| singles(&[2, 3, 150, 16], seed).requires_grad_(true).unwrap());
    assert_same_for_all_threads(|| {
        let out = q.attention(&k, &v, &Attention { is_causal: true, ..Attention::default() }).unwrap();
        let grads = autograd::grad(&[&out], &[&q, &k, &v], &[Some(&out)], BackwardOptions::default()).unwrap();
        [Some(out)].into_iter().chain(grads).flatten().collect()
    });
}

#[test]
fn tiles_are_what_small_products_are() {
    let a = singles(&[600, 70], 1);
    let b = singles(&[70, 900], 2);
    let whole = a.matmul(&b).unwrap().to_vec::<f32>().unwrap();
    let a = a.to_vec::<f32>().unwrap();
    let b = b.to_vec::<f32>().unwrap();
    for (row, column) in [(0, 0), (599, 899), (511, 512), (300, 64)] {
        let sum: f64 = (0..70).map(|i| f64::from(a[row * 70 + i]) * f64::from(b[i * 900 + column])).sum();
        assert!((f64::from(whole[row * 900 + column]) - sum).abs() < 1e-3);
    }
}

fn zeros(sizes: &[usize]) -> Tensor {
    Tensor::zeros(sizes, DType::F32, Device::CPU).unwrap()
}

#[test]
fn errors_say_what_does_not_fit() {
    let a = zeros(&[2, 3]);
    let b = zeros(&[2, 3]);
    let q = numbers(&[1, 3, 2, 4], 1);
    let k = numbers(&[1, 2, 2, 4], 2);
    let mask = numbers(&[3], 1);
    let single = singles(&[2], 1);
    let plain = Attention::default();
    let cases: [(Result<Tensor>, &str); 11] = [
        (a.matmul(&b), "3 columns on the left and 2 rows on the right"),
        (a.linear(&zeros(&[4, 2]), None), "has 3 features"),
        (a.matmul(&b.to_dtype(DType::F64).unwrap()), "to_dtype"),
        (einsum("ij,ij", &[&a]), "of 2 operands, got 1"),
        (einsum("ijk", &[&a]), "3 letters"),
        (einsum("ij,jk", &[&a, &b]), "'j' has size 3 in one operand and 2"),
        (einsum("ij->ik", &[&a]), "'k', which no operand has"),
        (einsum("i.->i", &[&a]), "neither a letter"),
        (q.attention(&k, &k, &Attention::default()), "multiple of heads"),
        (q.attention(&q, &q, &Attention { mask: Some(&mask), ..plain }), "broadcast"),
        (q.attention(&q, &q, &Attention { mask: Some(&single), ..plain }), "bool or float64"),
    ];
    for (result, expected) in cases {
        let error = result.err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// The weights of the masked scores would be infinite if they were computed.
#[test]
fn masked_scores_may_be_as_large_as_they_like() {
    let q = Tensor::from_slice(&[20.0_f64; 4], &[1, 1, 2, 2]).unwrap().requires_grad_(true).unwrap();
    let k = Tensor::from_slice(&[0.1, 0.1, 900.0, 900.0], &[1, 1, 2, 2]).unwrap().requires_grad_(true).unwrap();
    let v = numbers(&[1, 1, 2, 3], 3).requires_grad_(true).unwrap();
    let mask = Tensor::from_slice(&[true, false], &[1, 2]).unwrap();
    for (mask, dropout, create_graph) in [(None, 1e-300, false), (Some(&mask), 1e-300, false), (None, 0.0, true)] {
        let out = q.attention(&k, &v, &Attention { mask, is_causal: mask.is_none(), dropout, ..Attention::default() });
        let out = out.unwrap().narrow(2, 0, 1).unwrap().sum_all().unwrap();
        let options = BackwardOptions { create_graph, ..BackwardOptions::default() };
        let grads = autograd::grad(&[&out], &[&q, &k, &v], &[], options).unwrap();
        for grad in grads {
            assert!(grad.unwrap().to_vec::<f64>().unwrap().iter().all(|value| value.is_finite()), "{dropout}");
        }
    }
}
