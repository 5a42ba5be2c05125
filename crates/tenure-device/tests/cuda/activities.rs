//! Recordings of activities, through CUPTI.

use tenure_device::activity::{self, ActivityKind, ActivityRecording, CudaTimes};
use tenure_device::cuda::LaunchConfig;
use tenure_device::{CopyCalls, Driver, MemoryCalls, Priority, StreamCalls};

use crate::common::{argument, device, kernel};

#[test]
fn cupti_records_kernels_and_copies_with_their_causes() {
    let Some(driver) = device() else { return };
    let spin = kernel(&driver, "spin");
    let stream = driver.create_stream(Priority::Default).unwrap();
    let address = driver.malloc(4096).unwrap();
    let recording = ActivityRecording::start(Some(1000), None).unwrap();
    activity::begin_cause(7);
    driver.copy_to_device(address, &[1; 4096], stream).unwrap();
    activity::begin_cause(8);
    let mut cycles = 1_000_000i64;
    // SAFETY: the kernel takes a 64-bit number, and touches no memory.
    unsafe { driver.launch(spin, LaunchConfig::linear(1), stream, &mut [argument(&mut cycles)]).unwrap() };
    activity::end_cause();
    driver.memset(address, 0, 1024, stream).unwrap();
    activity::end_cause();
    driver.synchronize().unwrap();
    let found = recording.stop();
    driver.free(address).unwrap();
    driver.destroy_stream(stream).unwrap();
    if let CudaTimes::Launches { reason } = &found.cuda {
        eprintln!("without CUPTI: {reason}");
    }
    let facts: Vec<_> = found.activities.iter().map(|it| (it.kind, it.bytes, it.cause)).collect();
    assert_eq!(
        facts,
        [
            (ActivityKind::CopyToDevice, 4096, Some(7)),
            (ActivityKind::Kernel, 0, Some(8)),
            (ActivityKind::Fill, 1024, Some(7)),
        ]
    );
    assert!(found.activities.iter().all(|it| it.device == driver.device()));
    assert!(found.activities[1].name.contains("spin"));
    if found.cuda == CudaTimes::Cupti {
        // A million cycles take more than 0.1 ms on any device.
        assert!((found.activities[1].end - found.activities[1].begin).as_micros() > 100);
        assert!(found.activities[0].end <= found.activities[1].begin);
    }
}
