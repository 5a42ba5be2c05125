//! Tests of `uint16`, `uint32` and `uint64` against Rust's arithmetic.

use proptest::prelude::*;
use tenure_tensor::ops::cat;
use tenure_tensor::{DType, Device, Element, Scalar, Tensor};

use crate::views::views;

/// Returns a tensor of these numbers.
fn tensor<T: Element>(numbers: &[T]) -> Tensor {
    Tensor::from_slice(numbers, &[numbers.len()]).unwrap()
}

/// Returns the elements of an operation's result.
fn elements<T: Element>(result: tenure_tensor::Result<Tensor>) -> Vec<T> {
    result.unwrap().to_vec().unwrap()
}

/// Applies a function to each pair.
fn each<U: Copy, R>(pairs: &[(U, U)], function: impl Fn(U, U) -> R) -> Vec<R> {
    pairs.iter().map(|(a, b)| function(*a, *b)).collect()
}

/// Defines a module with the tests of one type.
macro_rules! unsigned {
    ($name:ident, $type:ty, $dtype:ident) => {
        mod $name {
            use super::*;

            type U = $type;

            /// Numbers near both ends and in the middle, as often as any others.
            fn number() -> impl Strategy<Value = U> {
                prop_oneof![
                    any::<U>(),
                    (0..4_u8).prop_map(U::from),
                    (0..4_u8).prop_map(|down| U::MAX - U::from(down)),
                    (0..4_u8).prop_map(|up| U::MAX / 2 - 1 + U::from(up)),
                ]
            }

            fn pairs() -> impl Strategy<Value = Vec<(U, U)>> {
                prop::collection::vec((number(), number()), 1..40)
            }

            proptest! {
                #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

                #[test]
                fn arithmetic_wraps(pairs in pairs()) {
                    let (a, b): (Vec<U>, Vec<U>) = pairs.iter().copied().unzip();
                    let (x, y) = (tensor(&a), tensor(&b));
                    prop_assert_eq!(elements::<U>(x.add(&y)), each(&pairs, U::wrapping_add));
                    prop_assert_eq!(elements::<U>(x.sub(&y)), each(&pairs, U::wrapping_sub));
                    prop_assert_eq!(elements::<U>(x.mul(&y)), each(&pairs, U::wrapping_mul));
                    prop_assert_eq!(elements::<U>(x.add_scaled(&y, 3)), each(&pairs, |a, b| a.wrapping_add(b.wrapping_mul(3))));
                    prop_assert_eq!(elements::<U>(x.neg()), each(&pairs, |a, _| a.wrapping_neg()));
                    prop_assert_eq!(elements::<U>(x.square()), each(&pairs, |a, _| a.wrapping_mul(a)));
                    prop_assert_eq!(elements::<U>(x.abs()), a.clone());
                    prop_assert_eq!(elements::<U>(x.sign()), each(&pairs, |a, _| a.min(1)));
                    prop_assert_eq!(elements::<U>(x.pow(&y.remainder(&tensor(&[50 as U])).unwrap())),
                        each(&pairs, |a, b| a.wrapping_pow((b % 50) as u32)));
                    let divisor = y.maximum(1).unwrap();
                    prop_assert_eq!(elements::<U>(x.div_floor(&divisor)), each(&pairs, |a, b| a / b.max(1)));
                    prop_assert_eq!(elements::<U>(x.div_trunc(&divisor)), each(&pairs, |a, b| a / b.max(1)));
                    prop_assert_eq!(elements::<U>(x.remainder(&divisor)), each(&pairs, |a, b| a % b.max(1)));
                    prop_assert_eq!(elements::<U>(x.fmod(&divisor)), each(&pairs, |a, b| a % b.max(1)));
                }

                #[test]
                fn bits_and_shifts(pairs in pairs(), by in 0..70_u8) {
                    let (a, b): (Vec<U>, Vec<U>) = pairs.iter().copied().unzip();
                    let (x, y) = (tensor(&a), tensor(&b));
                    prop_assert_eq!(elements::<U>(x.bitwise_and(&y)), each(&pairs, |a, b| a & b));
                    prop_assert_eq!(elements::<U>(x.bitwise_or(&y)), each(&pairs, |a, b| a | b));
                    prop_assert_eq!(elements::<U>(x.bitwise_xor(&y)), each(&pairs, |a, b| a ^ b));
                    prop_assert_eq!(elements::<U>(x.bitwise_not()), each(&pairs, |a, _| !a));
                    let shift = tensor(&vec![U::from(by); a.len()]);
                    let by = u32::from(by);
                    prop_assert_eq!(elements::<U>(x.shift_left(&shift)), each(&pairs, |a, _| a.checked_shl(by).unwrap_or(0)));
                    prop_assert_eq!(elements::<U>(x.shift_right(&shift)), each(&pairs, |a, _| a.checked_shr(by).unwrap_or(0)));
                    // A shift by these numbers leaves nothing, unless they are small.
                    let shifted = each(&pairs, |a, b| u32::try_from(b).ok().and_then(|b| a.checked_shr(b)).unwrap_or(0));
                    prop_assert_eq!(elements::<U>(x.shift_right(&y)), shifted);
                }

                #[test]
                fn comparisons_and_extremes(pairs in pairs()) {
                    let (a, b): (Vec<U>, Vec<U>) = pairs.iter().copied().unzip();
                    let (x, y) = (tensor(&a), tensor(&b));
                    prop_assert_eq!(elements::<bool>(x.eq(&y)), each(&pairs, |a, b| a == b));
                    prop_assert_eq!(elements::<bool>(x.ne(&y)), each(&pairs, |a, b| a != b));
                    prop_assert_eq!(elements::<bool>(x.lt(&y)), each(&pairs, |a, b| a < b));
                    prop_assert_eq!(elements::<bool>(x.le(&y)), each(&pairs, |a, b| a <= b));
                    prop_assert_eq!(elements::<bool>(x.gt(&y)), each(&pairs, |a, b| a > b));
                    prop_assert_eq!(elements::<bool>(x.ge(&y)), each(&pairs, |a, b| a >= b));
                    prop_assert_eq!(elements::<bool>(x.logical_not()), each(&pairs, |a, _| a == 0));
                    let larger: Vec<U> = pairs.iter().map(|(a, b)| *a.max(b)).collect();
                    let smaller: Vec<U> = pairs.iter().map(|(a, b)| *a.min(b)).collect();
                    prop_assert_eq!(elements::<U>(x.maximum(&y)), larger);
                    prop_assert_eq!(elements::<U>(x.minimum(&y)), smaller);
                    let (largest, smallest) = (*a.iter().max().unwrap(), *a.iter().min().unwrap());
                    prop_assert_eq!(x.max_all().unwrap().item::<U>().unwrap(), largest);
                    prop_assert_eq!(x.min_all().unwrap().item::<U>().unwrap(), smallest);
                    let place = |wanted: U| a.iter().position(|number| *number == wanted).unwrap() as i64;
                    prop_assert_eq!(x.argmax(None, false).unwrap().item::<i64>().unwrap(), place(largest));
                    prop_assert_eq!(x.argmin(None, false).unwrap().item::<i64>().unwrap(), place(smallest));
                    let limits = [a[0].min(b[0]), a[0].max(b[0])].map(|limit| Scalar::from(u64::from(limit)));
                    let clamped: Vec<U> = a.iter().map(|number| *number.clamp(&a[0].min(b[0]), &a[0].max(b[0]))).collect();
                    prop_assert_eq!(elements::<U>(x.clamp(limits[0], limits[1])), clamped);
                }

                #[test]
                fn order_and_searches(pairs in pairs()) {
                    let (a, b): (Vec<U>, Vec<U>) = pairs.iter().copied().unzip();
                    let (x, y) = (tensor(&a), tensor(&b));
                    let mut sorted = a.clone();
                    sorted.sort_unstable();
                    let ascending = x.sort(0, false, false).unwrap();
                    prop_assert_eq!(ascending.0.to_vec::<U>().unwrap(), sorted.clone());
                    prop_assert_eq!(elements::<U>(x.gather(0, &ascending.1)), sorted.clone());
                    let places: Vec<i64> = b.iter().map(|b| sorted.partition_point(|a| a < b) as i64).collect();
                    prop_assert_eq!(elements::<i64>(ascending.0.searchsorted(&y, false, None)), places);
                    let found: Vec<bool> = b.iter().map(|b| a.contains(b)).collect();
                    prop_assert_eq!(elements::<bool>(y.isin(&x, false, false)), found);
                    let descending: Vec<U> = sorted.iter().rev().copied().collect();
                    prop_assert_eq!(x.sort(0, true, false).unwrap().0.to_vec::<U>().unwrap(), descending);
                }

                #[test]
                fn sums_and_products_are_those_of_64_bits(numbers in prop::collection::vec(number(), 1..40)) {
                    let x = tensor(&numbers);
                    let sum = numbers.iter().fold(0_u64, |sum, number| sum.wrapping_add(u64::from(*number)));
                    let product = numbers.iter().fold(1_u64, |product, number| product.wrapping_mul(u64::from(*number)));
                    prop_assert_eq!(x.sum_all().unwrap().item::<i64>().unwrap(), sum as i64);
                    prop_assert_eq!(x.prod(&[], false).unwrap().item::<i64>().unwrap(), product as i64);
                    let running = x.cumsum(0).unwrap().to_vec::<i64>().unwrap();
                    prop_assert_eq!(running[numbers.len() - 1], sum as i64);
                    prop_assert_eq!(x.matmul(&Tensor::ones(&[numbers.len()], DType::$dtype, Device::CPU).unwrap())
                        .unwrap().item::<U>().unwrap(), sum as U);
                }

                #[test]
                fn conversions_are_rusts(numbers in prop::collection::vec(number(), 1..40)) {
                    let x = tensor(&numbers);
                    macro_rules! both_ways {
                        ($other:ty, $to:ident) => {
                            let there = x.to_dtype(DType::$to).unwrap();
                            let expected: Vec<$other> = numbers.iter().map(|number| *number as $other).collect();
                            prop_assert_eq!(there.to_vec::<$other>().unwrap(), expected.clone());
                            let back: Vec<U> = expected.iter().map(|number| *number as U).collect();
                            prop_assert_eq!(elements::<U>(there.to_dtype(DType::$dtype)), back);
                        };
                    }
                    both_ways!(u8, U8);
                    both_ways!(i8, I8);
                    both_ways!(i16, I16);
                    both_ways!(i32, I32);
                    both_ways!(i64, I64);
                    both_ways!(u16, U16);
                    both_ways!(u32, U32);
                    both_ways!(u64, U64);
                    both_ways!(f64, F64);
                    let floats: Vec<f32> = numbers.iter().map(|number| *number as f32).collect();
                    prop_assert_eq!(elements::<f32>(x.to_dtype(DType::F32)), floats);
                    let truths: Vec<bool> = numbers.iter().map(|number| *number != 0).collect();
                    prop_assert_eq!(elements::<bool>(x.to_dtype(DType::Bool)), truths);
                }

                #[test]
                fn any_layouts((_, views) in views(3)) {
                    let condition = views[0].tensor(|i| i % 3 == 0);
                    let a = views[1].tensor(|i| U::MAX - i as U);
                    let b = views[2].tensor(|i| i as U);
                    let chosen = condition.where_(&a, &b).unwrap();
                    let sizes = chosen.sizes().to_vec();
                    let place = |view: usize, at| views[view].place(at, &sizes);
                    let expected: Vec<U> = (0..chosen.numel())
                        .map(|at| if place(0, at) % 3 == 0 { U::MAX - place(1, at) as U } else { place(2, at) as U })
                        .collect();
                    prop_assert_eq!(chosen.to_vec::<U>().unwrap(), expected);
                }
            }

            #[test]
            fn elements_are_made_moved_and_added() {
                let x = tensor(&[U::MAX, 7, 0, U::MAX / 2 + 1]);
                let index = tensor(&[3_i64, 0]);
                assert_eq!(elements::<U>(x.gather(0, &index)), [U::MAX / 2 + 1, U::MAX]);
                assert_eq!(elements::<U>(x.scatter(0, &index, &tensor(&[1 as U, 2]))), [2, 7, 0, 1]);
                assert_eq!(elements::<U>(x.scatter_add(0, &index, &tensor(&[1 as U, 2]))), [1, 7, 0, U::MAX / 2 + 2]);
                assert_eq!(elements::<U>(x.index_add(0, &tensor(&[1_i64, 1]), &tensor(&[1 as U, 2]))), [
                    U::MAX,
                    10,
                    0,
                    U::MAX / 2 + 1
                ]);
                assert_eq!(elements::<U>(cat(&[&x, &x.flip(&[0]).unwrap()], 0))[3..5], [U::MAX / 2 + 1; 2]);
                let dtype = DType::$dtype;
                assert_eq!(elements::<U>(Tensor::arange(3, 9, 2, dtype, Device::CPU)), [3, 5, 7]);
                let end = u64::from(U::MAX);
                assert_eq!(elements::<U>(Tensor::arange(end - 2, end, 1, dtype, Device::CPU)), [U::MAX - 2, U::MAX - 1]);
                assert_eq!(elements::<U>(Tensor::full(&[2], end, dtype, Device::CPU)), [U::MAX; 2]);
                assert_eq!(elements::<U>(Tensor::full(&[1], -1, dtype, Device::CPU)), [U::MAX]);
                assert!(Tensor::full(&[1], 1e30, dtype, Device::CPU).is_err());
                assert_eq!(x.select(0, 0).unwrap().item_scalar().unwrap(), Scalar::from(end));
                assert!(x.clone().requires_grad_(true).is_err());
                assert!(x.div_floor(0).is_err());
                let note = format!("dtype=torch.{dtype}");
                assert!(x.to_string().contains(&U::MAX.to_string()) && x.to_string().contains(&note), "{x}");
            }
        }
    };
}

unsigned!(of_16_bits, u16, U16);
unsigned!(of_32_bits, u32, U32);
unsigned!(of_64_bits, u64, U64);

#[test]
fn floats_become_the_unsigned_numbers_that_pytorch_makes_of_them() {
    let floats = tensor(&[-1.5, 2.7, 1e10, 1.5e19, f64::NAN]);
    let expected = [u64::MAX, 2, 10_000_000_000, 15_000_000_000_000_000_000, 0];
    assert_eq!(elements::<u64>(floats.to_dtype(DType::U64)), expected);
    assert_eq!(elements::<u16>(tensor(&[-1.5_f32, 2.7, 70_000.0]).to_dtype(DType::U16)), [u16::MAX, 2, 4464]);
    assert_eq!(elements::<u64>(Tensor::full(&[1], 1.5e19, DType::U64, Device::CPU)), [15_000_000_000_000_000_000]);
}

#[test]
fn numbers_from_2_to_the_63_on_are_exact_or_refused() {
    let large = 1_u64 << 63;
    let x = tensor(&[1_u64, large]);
    assert_eq!(elements::<u64>(x.add(large - 1)), [large, u64::MAX]);
    assert_eq!(elements::<bool>(x.ge(large)), [false, true]);
    assert_eq!(elements::<bool>(x.eq(large)), [false, true]);
    assert_eq!(elements::<u64>(x.clamp_min(large)), [large; 2]);
    assert_eq!(elements::<f32>(tensor(&[1.0_f32]).add(large)), [large as f32]);
    for refused in [
        tensor(&[1_i64]).add(large),
        tensor(&[1_i64]).clamp_min(large),
        tensor(&[1_u8]).eq(large),
        Tensor::full(&[1], large, DType::I64, Device::CPU),
        Tensor::arange(large, large + 2, 1, DType::I64, Device::CPU),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("9223372036854775808 does not fit"), "{error}");
    }
}

#[test]
fn an_operation_of_uint64_and_a_signed_type_says_that_they_have_no_common_type() {
    let error = tensor(&[1_u64]).add(&tensor(&[1_i64])).unwrap_err().to_string();
    assert!(error.contains("uint64 and int64: convert one of them first"), "{error}");
    let sum = tensor(&[65535_u16]).add(&tensor(&[-1_i8])).unwrap();
    assert_eq!(sum.to_vec::<i32>().unwrap(), [65534]);
    let sum = tensor(&[u32::MAX]).mul(&tensor(&[-1_i16])).unwrap();
    assert_eq!(sum.to_vec::<i64>().unwrap(), [-4_294_967_295]);
}
