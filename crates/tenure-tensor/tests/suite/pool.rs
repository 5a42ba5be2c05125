//! Tests of pooling, against results of PyTorch 2.11, and of its gradients.

use tenure_tensor::autograd::{self, BackwardOptions};
use tenure_tensor::{DType, Pool, Tensor, threads};

fn numbers(sizes: &[usize]) -> Tensor {
    let count: usize = sizes.iter().product();
    let values: Vec<f64> = (0..count).map(|i| ((i * 7919 + 13) % 1009) as f64).collect();
    Tensor::from_slice(&values, sizes).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_vec().unwrap()
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    a.mul(b).unwrap().sum_all().unwrap().item().unwrap()
}

#[test]
fn the_largest_of_each_window() {
    let x = Tensor::from_slice(&[1.0, 5.0, 2.0, 0.0, 3.0, 4.0], &[1, 6]).unwrap();
    let pooled = |how: &Pool<'_>| values(&x.max_pool(how).unwrap());
    let two = Pool { kernel: &[2], ..Pool::default() };
    assert_eq!(pooled(&two), [5.0, 2.0, 4.0]);
    assert_eq!(pooled(&Pool { stride: &[1], dilation: &[3], ..two }), [1.0, 5.0, 4.0]);
    assert_eq!(pooled(&Pool { stride: &[4], padding: &[1], ..two }), [1.0, 3.0]);
    assert_eq!(pooled(&Pool { kernel: &[4], ..two }), [5.0]);
    assert_eq!(pooled(&Pool { kernel: &[4], ceil: true, ..two }), [5.0, 4.0]);
}

#[test]
fn nan_and_infinity_are_elements_too() {
    let x = Tensor::from_slice(&[1.0, f64::NAN, f64::NEG_INFINITY, f64::NEG_INFINITY], &[1, 4]).unwrap();
    let x = x.requires_grad_(true).unwrap();
    let out = x.max_pool(&Pool { kernel: &[2], ..Pool::default() }).unwrap();
    assert!(values(&out)[0].is_nan() && values(&out)[1] == f64::NEG_INFINITY);
    let ones = Tensor::from_slice(&[1.0, 1.0], &[1, 2]).unwrap();
    autograd::backward(&[&out], &[Some(&ones)], BackwardOptions::default()).unwrap();
    assert_eq!(values(&x.grad().unwrap()), [0.0, 1.0, 1.0, 0.0]);
}

/// PyTorch gives the same result.
#[test]
fn a_dilated_window_over_the_padding_alone_is_of_nothing() {
    let x = Tensor::from_slice(&[7.0], &[1, 1]).unwrap().requires_grad_(true).unwrap();
    let how = Pool { kernel: &[2], stride: &[1], padding: &[1], dilation: &[2], ..Pool::default() };
    let out = x.max_pool(&how).unwrap();
    assert_eq!(values(&out), [f64::NEG_INFINITY]);
    let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    let weight = Tensor::from_slice(&[3.0], &[1, 1]).unwrap().requires_grad_(true).unwrap();
    let grad = autograd::grad(&[&out], &[&x], &[Some(&weight)], options).unwrap().remove(0).unwrap();
    assert_eq!(values(&grad), [0.0]);
    assert_eq!(values(&autograd::grad(&[&grad], &[&weight], &[], options).unwrap().remove(0).unwrap()), [0.0]);
}

#[test]
fn means_count_padding_or_not() {
    let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0], &[1, 5]).unwrap();
    let how = Pool { kernel: &[3], stride: &[2], padding: &[1], ..Pool::default() };
    assert_eq!(values(&x.avg_pool(&how, true).unwrap()), [1.0, 3.0, 3.0]);
    assert_eq!(values(&x.avg_pool(&how, false).unwrap()), [1.5, 3.0, 4.5]);
    assert_eq!(values(&x.adaptive_avg_pool(&[2]).unwrap()), [2.0, 4.0]);
    assert_eq!(values(&x.adaptive_avg_pool(&[1]).unwrap()), [3.0]);
}

/// Pooling is linear near each input: <pool(x), g> = <x, dx>, and the gradient of that with respect to g is pool(x).
#[test]
fn gradients_are_the_transposes() {
    type Pooling = fn(&Tensor) -> Tensor;
    let poolings: [(&[usize], Pooling); 5] = [
        (&[2, 3, 9, 8], |x| {
            x.max_pool(&Pool { kernel: &[3, 3], stride: &[2], padding: &[1], ..Pool::default() }).unwrap()
        }),
        (&[1, 2, 5, 6, 7], |x| {
            x.max_pool(&Pool { kernel: &[2, 3, 2], dilation: &[2], stride: &[1, 2, 3], ..Pool::default() }).unwrap()
        }),
        (&[1, 1, 20, 20], |x| x.max_pool(&Pool { kernel: &[17, 17], stride: &[1], ..Pool::default() }).unwrap()),
        (&[2, 3, 9, 8], |x| {
            x.avg_pool(&Pool { kernel: &[3, 2], stride: &[2], padding: &[1], ceil: true, ..Pool::default() }, true)
                .unwrap()
        }),
        (&[2, 3, 9, 8], |x| x.adaptive_avg_pool(&[4, 5]).unwrap()),
    ];
    for (sizes, pooling) in poolings {
        let x = numbers(sizes).requires_grad_(true).unwrap();
        let out = pooling(&x);
        let g = numbers(out.sizes()).requires_grad_(true).unwrap();
        let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
        let dx = autograd::grad(&[&out], &[&x], &[Some(&g)], options).unwrap().remove(0).unwrap();
        let expected = dot(&out, &g);
        assert!((dot(&x, &dx) - expected).abs() < 1e-9 * expected.abs());
        let product = dx.mul(&x.detach()).unwrap().sum_all().unwrap();
        let again = autograd::grad(&[&product], &[&g], &[], options).unwrap().remove(0).unwrap();
        for (found, expected) in values(&again).iter().zip(values(&out)) {
            assert!((found - expected).abs() < 1e-9 * expected.abs());
        }
    }
}

#[test]
fn halves_and_any_number_of_threads_agree() {
    let x = numbers(&[7, 16, 40, 40]);
    let how = Pool { kernel: &[3, 3], stride: &[2], padding: &[1], ..Pool::default() };
    let half = x.to_dtype(DType::BF16).unwrap();
    let expected = half.to_dtype(DType::F64).unwrap().max_pool(&how).unwrap();
    for count in [1, 2, 3] {
        threads::set_threads(count).unwrap();
        assert!(values(&half.max_pool(&how).unwrap().to_dtype(DType::F64).unwrap()) == values(&expected));
    }
}

#[test]
fn errors_say_what_does_not_fit() {
    let x = numbers(&[1, 1, 4, 4]);
    let said = |how: &Pool<'_>| x.max_pool(how).err().unwrap().to_string();
    assert!(said(&Pool { kernel: &[2, 2], padding: &[2], ..Pool::default() }).contains("half"));
    assert!(said(&Pool { kernel: &[5, 5], ..Pool::default() }).contains("larger than images"));
    assert!(said(&Pool::default()).contains("spatial dimensions"));
}
