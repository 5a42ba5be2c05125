//! Tests of operations on `uint16`, `uint32` and `uint64`, on CUDA against the CPU.

use tenure_tensor::ops::cat;
use tenure_tensor::{DType, Device, Result, Tensor};

use crate::common::{cuda, in_use};

const DTYPES: [DType; 3] = [DType::U16, DType::U32, DType::U64];

/// Returns numbers at both ends and in the middle, and some between.
fn numbers(dtype: DType, seed: u64, count: usize, device: Device) -> Result<Tensor> {
    let bits = dtype.size() as u32 * 8;
    let mut state = seed;
    let numbers: Vec<u64> = (0..count)
        .map(|i| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let drawn = state >> (64 - bits);
            match i % 5 {
                0 => drawn % 4,
                1 => (1 << (bits - 1)) - drawn % 3,
                2 => u64::MAX - drawn % 4,
                _ => drawn,
            }
        })
        .collect();
    Tensor::from_vec(numbers, &[count])?.to_dtype(dtype)?.to_device(device)
}

/// Returns results of all kinds of operations.
fn results(dtype: DType, count: usize, device: Device) -> Result<Vec<Tensor>> {
    let x = &numbers(dtype, 1, count, device)?;
    let y = &numbers(dtype, 2, count, device)?;
    let few = &y.remainder(5)?.add(1)?;
    let index = &Tensor::arange(0, count as i64, 1, DType::I64, device)?.mul(7)?.remainder(count as i64)?;
    let mut all = Vec::new();
    for result in [
        x.add(y),
        x.sub(y),
        x.mul(y),
        x.add_scaled(y, 3),
        x.div(few),
        x.div_floor(few),
        x.remainder(few),
        x.fmod(few),
        x.pow(few),
        x.neg(),
        x.abs(),
        x.sign(),
        x.square(),
        x.maximum(y),
        x.minimum(y),
        x.clamp(2, 1000),
        x.eq(y),
        x.lt(y),
        x.ge(y),
        x.logical_not(),
        x.logical_and(y),
        x.bitwise_and(y),
        x.bitwise_xor(y),
        x.bitwise_not(),
        x.shift_left(few),
        x.shift_right(few),
        x.lt(y)?.where_(x, y),
        x.sum_all(),
        x.prod(&[], false),
        x.cumsum(0),
        x.max_all(),
        x.min_all(),
        x.argmax(None, false),
        x.any(&[], false),
        x.count_nonzero(&[], false),
        x.argsort(0, false, true),
        x.argsort(0, true, true),
        Ok(x.sort(0, false, true)?.0),
        x.gather(0, index),
        x.scatter(0, index, y),
        x.scatter_add(0, index, y),
        x.index_add(0, index, y),
        x.masked_select(&x.gt(y)?),
        x.nonzero(),
        cat(&[x, y], 0),
        x.flip(&[0]),
        x.view(&[1, -1])?.matmul(&few.view(&[-1, 1])?),
        Tensor::arange(5, 5 + count as i64, 1, dtype, device),
        Tensor::full(&[count], 7, dtype, device),
        Tensor::full(&[3], -1, dtype, device),
    ] {
        all.push(result?);
    }
    for other in DType::ALL {
        all.push(x.to_dtype(other)?);
        all.push(few.sub(3)?.to_dtype(other)?.to_dtype(dtype)?);
    }
    // Floats of all sizes that the type holds.
    all.push(y.to_dtype(DType::F64)?.mul(0.75)?.to_dtype(dtype)?);
    Ok(all)
}

#[test]
fn operations_on_unsigned_integers_are_those_of_the_cpu() {
    let _in_use = in_use();
    for dtype in DTYPES {
        for count in [11, 700] {
            let expected = results(dtype, count, Device::CPU).unwrap();
            let found = results(dtype, count, cuda()).unwrap();
            for (at, (expected, found)) in expected.iter().zip(&found).enumerate() {
                assert_eq!((expected.sizes(), expected.dtype()), (found.sizes(), found.dtype()), "{dtype}, {at}");
                let found = found.to_device(Device::CPU).unwrap();
                assert_eq!(found.to_bytes().unwrap(), expected.to_bytes().unwrap(), "{dtype}, {count}, result {at}");
            }
        }
    }
}
