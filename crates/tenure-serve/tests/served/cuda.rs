//! A CUDA device that serves the examples: a simulated one unless `TENURE_TEST_DRIVER` is `cuda`.

use std::sync::LazyLock;
use std::{env, fs, thread};

use parking_lot::{Mutex, MutexGuard};
use tempfile::TempDir;
use tenure_device::memory::{self, DeviceMemory, MemoryConfig};
use tenure_device::sim::{SimConfig, SimPlatform};
use tenure_device::{Executor, Platform as _, cuda};
use tenure_serve::protocol::{Datatype, Tensor};
use tenure_serve::service::Service as _;
use tenure_serve::serving::ServingOptions;
use tenure_tensor::Device;

use super::{RESCAN, Served, example_models, request, until};

/// The size in bytes of a chunk of device memory, which has room for one of the models here.
pub(crate) const CHUNK: u64 = 16 << 20;

/// Returns the memories of the devices in this process: two, or one if there are no more.
pub(crate) fn device_memories() -> &'static [&'static DeviceMemory] {
    static MEMORIES: LazyLock<Vec<&DeviceMemory>> = LazyLock::new(|| {
        if env::var("TENURE_TEST_DRIVER").is_ok_and(|driver| driver == "cuda") {
            let count = cuda::platform().device_count().unwrap().min(2);
            return (0..count as u8).map(|index| memory::device(index).unwrap()).collect();
        }
        let config = SimConfig { capacity_bytes: 1 << 30, seed: 3, ..SimConfig::default() };
        let platform = SimPlatform::new(vec![config; 2]);
        [0, 1].map(|index| memory::install(platform.driver(index).unwrap(), MemoryConfig::default()).unwrap()).to_vec()
    });
    &MEMORIES
}

/// Locks the devices, which all tests in the process share, for one test.
pub(crate) fn all_alone() -> (MutexGuard<'static, ()>, &'static [&'static DeviceMemory]) {
    static ALONE: Mutex<()> = Mutex::new(());
    (ALONE.lock(), device_memories())
}

/// Locks the devices and returns the first one.
pub(crate) fn alone() -> (MutexGuard<'static, ()>, &'static DeviceMemory) {
    let (alone, devices) = all_alone();
    (alone, devices[0])
}

pub(crate) fn options(folder: &TempDir, device_bytes: u64) -> ServingOptions {
    ServingOptions {
        devices: vec![Device::cuda(0)],
        host_bytes: 256 << 20,
        rescan: RESCAN,
        ..ServingOptions::new(folder.path(), device_bytes)
    }
}

pub(crate) const MODELS: [&str; 4] = ["next-byte", "next-byte-2", "digits", "digits-2"];

/// Writes the examples, each under two names.
pub(crate) fn models() -> TempDir {
    let folder = example_models();
    for name in ["next-byte", "digits"] {
        let from = folder.path().join(name);
        let to = folder.path().join(format!("{name}-2"));
        fs::create_dir(&to).unwrap();
        for file in fs::read_dir(from).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    folder
}

pub(crate) fn input(model: &str) -> Tensor {
    if model.starts_with("digits") {
        let bytes = (0..28 * 28).flat_map(|pixel| (pixel as f32 / 784.0).to_le_bytes()).collect::<Vec<u8>>();
        return Tensor::new("image", Datatype::Fp32, vec![1, 1, 28, 28], bytes).unwrap();
    }
    let bytes = [72_i64, 101, 108].into_iter().flat_map(i64::to_le_bytes).collect::<Vec<u8>>();
    Tensor::new("tokens", Datatype::Int64, vec![1, 3], bytes).unwrap()
}

pub(crate) fn ask(served: &Served, model: &str) -> Vec<u8> {
    served.infer(&request(model, vec![input(model)])).unwrap().outputs[0].bytes().to_vec()
}

pub(crate) fn expect_peace(memory: &DeviceMemory) {
    memory.driver().synchronize().unwrap();
    if let Executor::Sim(driver) = memory.driver().executor() {
        assert_eq!(driver.fault(), None);
    }
}

/// Returns how often models were loaded to the device.
pub(crate) fn switches(served: &Served) -> u64 {
    served.serving.snapshot().models.iter().map(|model| model.switches).sum()
}

/// Asks each model in a thread of its own, and asserts the answers.
pub(crate) fn ask_at_the_same_time(served: &Served, expected: &[Vec<u8>]) {
    thread::scope(|scope| {
        for (model, expected) in MODELS.iter().zip(expected) {
            scope.spawn(move || (0..5).for_each(|_| assert!(ask(served, model) == *expected, "{model}")));
        }
    });
}

/// Unloads all models, asserts that no weights are left, and loads one again.
pub(crate) fn unload_all_and_load_one(served: &Served, expected: &[Vec<u8>]) {
    for model in MODELS {
        assert_eq!(served.post(&format!("/v2/repository/models/{model}/unload")), (200, String::new()));
    }
    until("nothing is left", || served.serving.snapshot().tiers.iter().all(|tier| tier.used_bytes == 0));
    assert_eq!(served.post("/v2/repository/models/digits/load"), (200, String::new()));
    assert!(ask(served, "digits") == expected[2]);
}
