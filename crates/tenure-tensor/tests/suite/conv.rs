//! Tests of convolutions against their definition, and of their gradients against each other.

use tenure_tensor::autograd::{self, BackwardOptions};
use tenure_tensor::{Conv, DType, Tensor, threads};

/// Returns numbers with a very long period.
fn numbers(sizes: &[usize]) -> Tensor {
    let count: usize = sizes.iter().product();
    let values: Vec<f64> = (0..count).map(|i| ((i * 7919 + 13) % 1009) as f64 / 1009.0 - 0.5).collect();
    Tensor::from_slice(&values, sizes).unwrap()
}

fn index(sizes: &[usize], at: &[usize]) -> usize {
    sizes.iter().zip(at).fold(0, |place, (size, at)| place * size + at)
}

fn positions(sizes: &[usize]) -> Vec<Vec<usize>> {
    sizes.iter().fold(vec![vec![]], |all, size| {
        all.iter().flat_map(|at| (0..*size).map(|i| [&at[..], &[i]].concat()).collect::<Vec<_>>()).collect()
    })
}

/// The sizes and parameters of a convolution. Parameters have one number for each spatial dimension.
struct Case {
    input: Vec<usize>,
    weight: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
    groups: usize,
}

impl Case {
    fn how(&self) -> Conv<'_> {
        Conv { stride: &self.stride, padding: &self.padding, dilation: &self.dilation, groups: self.groups }
    }

    /// Computes the result by definition.
    fn expected(&self, x: &[f64], w: &[f64], bias: &[f64], sizes: &[usize]) -> Vec<f64> {
        let outputs = self.weight[0] / self.groups;
        let channels = self.weight[1];
        positions(sizes)
            .iter()
            .map(|at| {
                let image = at[0];
                let output = at[1];
                let mut sum = bias[output];
                for tap in positions(&self.weight[1..]) {
                    let mut from = vec![image, output / outputs * channels + tap[0]];
                    for dim in 0..self.stride.len() {
                        let place = at[dim + 2] * self.stride[dim] + tap[dim + 1] * self.dilation[dim];
                        from.push(place.wrapping_sub(self.padding[dim]));
                    }
                    if from[2..].iter().zip(&self.input[2..]).all(|(at, size)| at < size) {
                        let weight = [&[output], &tap[..]].concat();
                        sum += x[index(&self.input, &from)] * w[index(&self.weight, &weight)];
                    }
                }
                sum
            })
            .collect()
    }
}

fn case(
    input: &[usize],
    weight: &[usize],
    stride: &[usize],
    padding: &[usize],
    dilation: &[usize],
    groups: usize,
) -> Case {
    let [input, weight, stride, padding, dilation] = [input, weight, stride, padding, dilation].map(<[usize]>::to_vec);
    Case { input, weight, stride, padding, dilation, groups }
}

fn cases() -> Vec<Case> {
    vec![
        case(&[2, 3, 9], &[4, 3, 3], &[1], &[1], &[1], 1),
        case(&[2, 4, 17], &[6, 2, 4], &[3], &[2], &[2], 2),
        case(&[3, 5, 9, 11], &[50, 5, 3, 3], &[1, 1], &[1, 1], &[1, 1], 1),
        case(&[2, 3, 12, 10], &[7, 3, 5, 3], &[2, 3], &[2, 0], &[1, 2], 1),
        case(&[2, 6, 8, 8], &[6, 1, 3, 3], &[2, 2], &[1, 1], &[1, 1], 6),
        case(&[2, 8, 7, 7], &[4, 8, 1, 1], &[2, 2], &[0, 0], &[1, 1], 1),
        case(&[1, 2, 5, 30, 20], &[3, 2, 3, 3, 3], &[1, 2, 2], &[1, 1, 1], &[1, 1, 1], 1),
        // Rows are divided into parts that share the gathered pixels.
        case(&[1, 36, 3, 3], &[104, 36, 3, 3], &[1, 1], &[1, 1], &[1, 1], 1),
        // Some taps read nothing but zeros; in the last case all of them do.
        case(&[3, 4, 1, 2], &[6, 4, 3, 3], &[1, 1], &[1, 1], &[1, 1], 1),
        case(&[2, 4, 2, 2], &[6, 2, 5, 5], &[2, 2], &[2, 2], &[1, 1], 2),
        case(&[2, 20, 1], &[20, 1, 3], &[1], &[1], &[1], 20),
        case(&[2, 3, 1], &[4, 3, 2], &[1], &[5], &[10], 1),
    ]
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-9, "{found} and {expected}");
    }
}

#[test]
fn a_convolution_is_its_definition() {
    for case in cases() {
        let x = numbers(&case.input);
        let w = numbers(&case.weight);
        let bias = numbers(&case.weight[..1]);
        let out = x.conv(&w, Some(&bias), &case.how()).unwrap();
        let [x, w, bias] = [x, w, bias].map(|tensor| tensor.to_vec::<f64>().unwrap());
        close(&out.to_vec::<f64>().unwrap(), &case.expected(&x, &w, &bias, out.sizes()));
    }
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    a.mul(b).unwrap().sum_all().unwrap().item().unwrap()
}

/// A convolution is linear in input and weight, so its gradients are its transposes: <conv(x, w), g> = <x, dx> = <w,
/// dw>, for all x, w and g.
#[test]
fn gradients_are_the_transposes() {
    for case in cases() {
        let x = numbers(&case.input).requires_grad_(true).unwrap();
        let w = numbers(&case.weight).requires_grad_(true).unwrap();
        let out = x.conv(&w, None, &case.how()).unwrap();
        let g = numbers(out.sizes()).add(0.25).unwrap().requires_grad_(true).unwrap();
        let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
        let grads = autograd::grad(&[&out], &[&x, &w], &[Some(&g)], options).unwrap();
        let [dx, dw] = [0, 1].map(|index| grads[index].clone().unwrap());
        let expected = dot(&out, &g);
        close(&[dot(&x, &dx), dot(&w, &dw)], &[expected, expected]);

        // The gradient of <dx, x> with respect to g is conv(x, w) again, and so is that of <dw, w>.
        for (grad, with) in [(&dx, &x), (&dw, &w)] {
            let product = grad.mul(&with.detach()).unwrap().sum_all().unwrap();
            let again = autograd::grad(&[&product], &[&g], &[], options).unwrap()[0].clone().unwrap();
            close(&again.to_vec::<f64>().unwrap(), &out.to_vec::<f64>().unwrap());
        }
    }
}

#[test]
fn a_transposed_convolution_has_the_sizes_asked_for() {
    let x = numbers(&[2, 3, 5, 4]);
    let w = numbers(&[3, 2, 3, 3]);
    let how = Conv { stride: &[2], padding: &[1], ..Conv::default() };
    assert_eq!(x.conv_transpose(&w, None, &how, &[0]).unwrap().sizes(), [2, 2, 9, 7]);
    assert_eq!(x.conv_transpose(&w, None, &how, &[1, 0]).unwrap().sizes(), [2, 2, 10, 7]);
    assert!(x.conv_transpose(&w, None, &how, &[2]).err().unwrap().to_string().contains("output_padding"));
}

#[test]
fn threads_do_not_change_a_bit() {
    let x = numbers(&[5, 16, 30, 31]).to_dtype(DType::F32).unwrap().requires_grad_(true).unwrap();
    let w = numbers(&[100, 16, 3, 3]).to_dtype(DType::F32).unwrap().requires_grad_(true).unwrap();
    let run = |count| {
        threads::set_threads(count).unwrap();
        let out = x.conv(&w, None, &Conv { stride: &[2], padding: &[1], ..Conv::default() }).unwrap();
        let grads = autograd::grad(&[&out], &[&x, &w], &[Some(&out)], BackwardOptions::default()).unwrap();
        let all = [Some(out), grads[0].clone(), grads[1].clone()];
        all.map(|tensor| tensor.unwrap().to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    };
    let one = run(1);
    assert!(one == run(2) && one == run(3));
}

#[test]
fn errors_say_what_does_not_fit() {
    let x = numbers(&[1, 3, 4, 4]);
    let said = |w: &Tensor, how: &Conv<'_>| x.conv(w, None, how).err().unwrap().to_string();
    assert!(said(&numbers(&[2, 4, 3, 3]), &Conv::default()).contains("3 channels"));
    assert!(said(&numbers(&[2, 3, 5, 5]), &Conv::default()).contains("larger than images"));
    assert!(said(&numbers(&[2, 3, 3]), &Conv::default()).contains("spatial dimensions"));
    assert!(said(&numbers(&[2, 3, 3, 3]), &Conv { stride: &[1, 1, 1], ..Conv::default() }).contains("stride"));
}
