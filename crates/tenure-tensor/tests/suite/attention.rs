//! Tests of attention with any number of threads, with extreme scores, and of its errors.

use tenure_tensor::autograd::{self, BackwardOptions};
use tenure_tensor::{Attention, DType, Tensor, threads};

fn numbers(sizes: &[usize], seed: usize) -> Tensor {
    let count: usize = sizes.iter().product();
    let values: Vec<f64> = (0..count).map(|i| ((i * 7919 + seed) % 1009) as f64 / 250.0 - 2.0).collect();
    Tensor::from_slice(&values, sizes).unwrap().requires_grad_(true).unwrap()
}

#[test]
fn threads_do_not_change_a_bit() {
    let inputs = [1, 2, 3].map(|seed| numbers(&[2, 3, 150, 16], seed).to_dtype(DType::F32).unwrap());
    let [q, k, v] = &inputs;
    let run = |count| {
        threads::set_threads(count).unwrap();
        let out = q.attention(k, v, &Attention { is_causal: true, ..Attention::default() }).unwrap();
        let grads = autograd::grad(&[&out], &[q, k, v], &[Some(&out)], BackwardOptions::default()).unwrap();
        let all = [Some(out)].into_iter().chain(grads);
        all.flat_map(|tensor| tensor.unwrap().to_vec::<f32>().unwrap()).map(f32::to_bits).collect::<Vec<_>>()
    };
    let one = run(1);
    assert!(one == run(2) && one == run(3));
}

#[test]
fn errors_say_what_does_not_fit() {
    let q = numbers(&[1, 3, 2, 4], 1);
    let k = numbers(&[1, 2, 2, 4], 2);
    let said = |mask: &Tensor| {
        q.attention(&q, &q, &Attention { mask: Some(mask), ..Attention::default() }).err().unwrap().to_string()
    };
    assert!(q.attention(&k, &k, &Attention::default()).err().unwrap().to_string().contains("multiple of heads"));
    assert!(said(&numbers(&[3], 1)).contains("broadcast"));
    assert!(said(&numbers(&[2], 1).to_dtype(DType::F32).unwrap()).contains("bool or float64"));
}

/// The weights of the masked scores would be infinite if they were computed.
#[test]
fn masked_scores_may_be_as_large_as_they_like() {
    let q = Tensor::from_slice(&[20.0_f64; 4], &[1, 1, 2, 2]).unwrap().requires_grad_(true).unwrap();
    let k = Tensor::from_slice(&[0.1, 0.1, 900.0, 900.0], &[1, 1, 2, 2]).unwrap().requires_grad_(true).unwrap();
    let v = numbers(&[1, 1, 2, 3], 3);
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
