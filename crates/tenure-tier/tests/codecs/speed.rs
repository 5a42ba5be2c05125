//! What the kernels take, beside a copy on the device and one to the host. Printed, for a reader: `--nocapture`.

use tenure_core::DType;
use tenure_device::{EventKind, Executor};
use tenure_tier::codec::cuda::{decode, encode};
use tenure_tier::codec::{Codec, max_bytes};

use crate::devices::{Placed, drivers};
use crate::tensor;

const BYTES: usize = 256 << 20;

/// 10⁹ bytes of the tensor a second, of some times.
fn rate(placed: &Placed<'_>, mut body: impl FnMut()) -> f64 {
    const TIMES: u32 = 10;
    let driver = placed.driver;
    let [start, end] = [(); 2].map(|()| driver.create_event(EventKind::Timing).unwrap());
    body();
    driver.record_event(start, placed.stream).unwrap();
    (0..TIMES).for_each(|_| body());
    driver.record_event(end, placed.stream).unwrap();
    driver.synchronize_event(end).unwrap();
    let us = driver.elapsed_us(start, end).unwrap() / f64::from(TIMES);
    [start, end].into_iter().for_each(|event| driver.destroy_event(event).unwrap());
    BYTES as f64 / us / 1e3
}

#[test]
fn kernels_beside_copies() {
    for (driver, _alone) in drivers() {
        if !matches!(driver.executor(), Executor::Cuda(_)) {
            continue;
        }
        for (codec, dtype, kind) in [
            (Codec::None, DType::BF16, 2),
            (Codec::Zeros, DType::BF16, 3),
            (Codec::Zeros, DType::F32, 3),
            (Codec::Planes, DType::BF16, 2),
            (Codec::Planes, DType::F32, 2),
            (Codec::Fp16, DType::F32, 2),
            (Codec::CsrFp16, DType::F32, 3),
        ] {
            let some = tensor(dtype, kind, (1 << 20) / dtype.size(), 1);
            let raw = some.repeat(BYTES / some.len());
            let placed = Placed::new(&*driver, codec, dtype, &raw, max_bytes(dtype, BYTES));
            let ratio = placed.encode().unwrap().bytes as f64 / BYTES as f64;
            let (stream, place) = (placed.stream, placed.place);
            // SAFETY: the memory is the test's.
            let encoding = rate(&placed, || unsafe { encode(&*driver, stream, &place).unwrap() });
            // SAFETY: as above.
            let decoding = rate(&placed, || unsafe { decode(&*driver, stream, &place).unwrap() });
            let copy = || driver.copy_on_device(place.stream, place.raw, BYTES as u64, stream).unwrap();
            let copying = rate(&placed, copy);
            println!(
                "{codec:>9} {dtype:>9} ratio {ratio:.3}: encoded at {encoding:.0} GB/s, decoded at {decoding:.0}, \
                 copied at {copying:.0}"
            );
        }
    }
}
