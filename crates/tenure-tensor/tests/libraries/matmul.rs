//! Tests of matrix products.

use std::sync::{PoisonError, RwLock};

use tenure_tensor::{DType, Device, Tensor, tuning};

use crate::common::{cuda, simulated};
use crate::{assert_near, numbers, tolerance, wide};

/// The process's choice of algorithms: locked by a test that changes it, and by one that needs it unchanged.
static CHOICE: RwLock<()> = RwLock::new(());

const DTYPES: [DType; 7] = [DType::F16, DType::BF16, DType::F32, DType::F64, DType::U8, DType::I32, DType::I64];

/// Compares the product of views of two tensors, on the CPU in `f64` and on the device.
#[track_caller]
fn check(what: &str, a: &Tensor, b: &Tensor, view: impl Fn(&Tensor, usize) -> Tensor) {
    let expected = view(&wide(a), 0).matmul(&view(&wide(b), 1)).unwrap();
    // Integers wrap.
    let expected = if a.dtype().is_floating() { expected } else { wide(&expected.to_dtype(a.dtype()).unwrap()) };
    let [on_a, on_b] = [a, b].map(|tensor| tensor.to_device(cuda()).unwrap());
    let found = view(&on_a, 0).matmul(&view(&on_b, 1)).unwrap();
    assert_near(what, &found, &expected, tolerance(a.dtype()));
}

fn sizes(rows: usize, columns: usize, is_transposed: bool) -> [usize; 2] {
    if is_transposed { [columns, rows] } else { [rows, columns] }
}

#[test]
fn any_sizes_and_orders() {
    for dtype in DTYPES {
        for [m, k, n] in [[1, 1, 1], [64, 64, 64], [5, 7, 3], [1, 300, 9], [9, 300, 1], [130, 33, 70], [256, 512, 128]]
        {
            for transposed in 0..4 {
                let is = [transposed & 1 != 0, transposed & 2 != 0];
                let a = numbers(&sizes(m, k, is[0]), dtype, 1);
                let b = numbers(&sizes(k, n, is[1]), dtype, 2);
                check(&format!("{dtype} {m}x{k}x{n}, transposed {is:?}"), &a, &b, |x, at| {
                    if is[at] { x.transpose(0, 1).unwrap() } else { x.clone() }
                });
            }
        }
    }
}

/// The library gets the even part of such a product, and the rest separately.
#[test]
fn sizes_that_are_no_multiple_of_eight() {
    let _changed = CHOICE.write().unwrap_or_else(PoisonError::into_inner);
    for dtype in [DType::F16, DType::BF16] {
        for [m, k, n] in [[601, 16, 24], [16, 601, 24], [24, 16, 601], [601, 16, 603]] {
            for transposed in 0..4 {
                let is = [transposed & 1 != 0, transposed & 2 != 0];
                let apart = |rows: usize, columns: usize, is: bool, seed: u64| {
                    let [rows, columns] = if is { [columns, rows] } else { [rows, columns] };
                    numbers(&[rows, columns.next_multiple_of(8)], dtype, seed)
                };
                let a = apart(m, k, is[0], 1);
                let b = apart(k, n, is[1], 2);
                // A simulated device has no algorithms to measure.
                for measures in [false, true].into_iter().filter(|measures| !measures || simulated().is_none()) {
                    tuning::measure_algorithms(measures);
                    check(&format!("{dtype} {m}x{k}x{n}, transposed {is:?}, measured {measures}"), &a, &b, |x, at| {
                        let columns = [[k, m], [n, k]][at][usize::from(is[at])];
                        let x = x.narrow(1, 0, columns).unwrap();
                        if is[at] { x.transpose(0, 1).unwrap() } else { x }
                    });
                }
                tuning::measure_algorithms(false);
            }
        }
    }
}

#[test]
fn parts_of_larger_matrices() {
    for dtype in DTYPES {
        let a = numbers(&[40, 50], dtype, 3);
        let b = numbers(&[50, 60], dtype, 4);
        // These views are aligned only to an element, and their rows are further apart than they are long.
        check(&format!("{dtype}, parts"), &a, &b, |x, at| match at {
            0 => x.narrow(0, 3, 31).unwrap().narrow(1, 1, 37).unwrap(),
            _ => x.narrow(0, 5, 37).unwrap().narrow(1, 3, 41).unwrap(),
        });
        // These views have every other element, which the library does not support.
        let a = numbers(&[30, 20, 2], dtype, 5);
        let b = numbers(&[20, 8], dtype, 6);
        check(
            &format!("{dtype}, every other"),
            &a,
            &b,
            |x, at| if at == 0 { x.select(2, 1).unwrap() } else { x.clone() },
        );
    }
}

fn whole(x: &Tensor, _: usize) -> Tensor {
    x.clone()
}

/// Returns heads as attention has them, from (batch, length, heads, width).
fn heads(x: &Tensor, at: usize) -> Tensor {
    let x = x.transpose(1, 2).unwrap();
    if at == 1 { x.transpose(-2, -1).unwrap() } else { x }
}

#[test]
fn batches() {
    for dtype in DTYPES {
        check("one batch", &numbers(&[6, 10, 20], dtype, 1), &numbers(&[6, 20, 30], dtype, 2), whole);
        check("a matrix for all", &numbers(&[6, 10, 20], dtype, 1), &numbers(&[20, 30], dtype, 2), whole);
        check("all of a matrix", &numbers(&[10, 20], dtype, 1), &numbers(&[6, 20, 30], dtype, 2), whole);
        check("broadcast", &numbers(&[4, 1, 10, 20], dtype, 1), &numbers(&[3, 20, 8], dtype, 2), whole);
        check("heads", &numbers(&[2, 16, 3, 8], dtype, 1), &numbers(&[2, 24, 3, 8], dtype, 2), heads);
        check("none", &numbers(&[0, 10, 20], dtype, 1), &numbers(&[0, 20, 30], dtype, 2), whole);
        check("nothing is summed up", &numbers(&[3, 4, 0], dtype, 1), &numbers(&[3, 0, 5], dtype, 2), whole);
    }
}

#[test]
fn products_are_added_to_a_matrix() {
    for dtype in DTYPES {
        let a = numbers(&[33, 20], dtype, 1);
        let b = numbers(&[20, 24], dtype, 2);
        for (name, base) in [("row", [1, 24]), ("column", [33, 1]), ("matrix", [33, 24])] {
            for (beta, alpha) in [(1, 1), (2, 3), (0, 1), (1, 2)] {
                let base = numbers(&base, dtype, 7);
                let expected = wide(&base).addmm(&wide(&a), &wide(&b), beta, alpha).unwrap();
                let is_whole = !dtype.is_floating();
                let expected = if is_whole { wide(&expected.to_dtype(dtype).unwrap()) } else { expected };
                let [base, a, b] = [&base, &a, &b].map(|tensor| tensor.to_device(cuda()).unwrap());
                let found = base.addmm(&a, &b, beta, alpha).unwrap();
                let what = format!("{dtype}: {beta} * {name} + {alpha} * product");
                assert_near(&what, &found, &expected, tolerance(dtype));
            }
        }
    }
}

#[test]
fn a_layer_with_a_bias() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for [rows, inputs, outputs] in [[7, 16, 24], [128, 768, 256], [3, 5, 1]] {
            let x = numbers(&[2, rows, inputs], dtype, 1);
            let weight = numbers(&[outputs, inputs], dtype, 2);
            let bias = numbers(&[outputs], dtype, 3);
            let expected = wide(&x).linear(&wide(&weight), Some(&wide(&bias))).unwrap();
            let [x, weight, bias] = [&x, &weight, &bias].map(|tensor| tensor.to_device(cuda()).unwrap());
            let found = x.linear(&weight, Some(&bias)).unwrap();
            assert_near(&format!("{dtype} {rows}x{inputs}x{outputs}"), &found, &expected, tolerance(dtype));
        }
    }
}

#[test]
fn the_same_bits_every_time() {
    let _stays = CHOICE.read().unwrap_or_else(PoisonError::into_inner);
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        // These are long sums for few elements, which the library divides.
        let [a, b] =
            [numbers(&[8, 4096], dtype, 1), numbers(&[4096, 8], dtype, 2)].map(|x| x.to_device(cuda()).unwrap());
        let product = || wide(&a.matmul(&b).unwrap().to_device(Device::CPU).unwrap()).to_vec::<f64>();
        let first = product().unwrap();
        (0..10).for_each(|_| assert_eq!(product().unwrap(), first));
    }
}
