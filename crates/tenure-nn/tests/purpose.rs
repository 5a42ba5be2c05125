//! A test of the purposes of allocations, as the process's allocator sees them: it is a program of its own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use parking_lot::Mutex;
use tenure_core::{
    Allocator, AllocatorError, AllocatorRegistry, CpuAllocator, DataPtr, Device, DeviceKind, Purpose, Tag,
};
use tenure_nn::data::{DataLoader, LoaderOptions, TextWindows};
use tenure_nn::layers::{Layer, Linear};
use tenure_nn::optim::{Adam, Optimizer};
use tenure_nn::{Module, Scope, purpose};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Tensor};

/// An allocator that records the purpose of every allocation.
struct Noting {
    cpu: CpuAllocator,
    seen: Mutex<Vec<(Tag, String)>>,
}

// SAFETY: the memory is the other allocator's, unchanged.
unsafe impl Allocator for Noting {
    fn device(&self) -> Device {
        self.cpu.device()
    }

    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        let (tag, key) = Purpose::current();
        let key = key.key().map(|key| format!("{}/{}/{}", key.module, key.op, key.role));
        self.seen.lock().push((tag, key.unwrap_or_default()));
        self.cpu.allocate(bytes)
    }

    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.cpu.copy(source, target, bytes) }
    }
}

#[test]
fn every_part_of_a_step_says_what_it_allocates_for() {
    let noting = Arc::new(Noting { cpu: CpuAllocator::new(), seen: Mutex::default() });
    assert!(AllocatorRegistry::global().register(DeviceKind::Cpu, noting.clone(), u8::MAX));
    let seen = || std::mem::take(&mut *noting.seen.lock());
    let is_all = |tag: Tag| {
        let seen = seen();
        assert!(!seen.is_empty() && seen.iter().all(|(found, _)| *found == tag), "{tag}: {seen:?}");
    };

    let scope = Scope::new(&Generator::new(0)).at("encoder").at(3);
    let mut model = Linear::new(&scope, 2, 2).unwrap();
    let weights = [(Tag::Weight, "encoder.3/parameter/weight"), (Tag::Weight, "encoder.3/parameter/bias")];
    let found = seen();
    assert!(weights.iter().all(|(tag, key)| found.contains(&(*tag, (*key).to_owned()))), "{found:?}");
    model.to_dtype(DType::F64).unwrap();
    is_all(Tag::Weight);

    let text = TextWindows::of_tokens(vec![1, 2, 3, 4, 5], 2).unwrap();
    let loader = DataLoader::new(text, LoaderOptions::default());
    let (tokens, _) = loader.epoch(0, 0).next().unwrap().unwrap();
    is_all(Tag::Input);

    let x: Tensor = tokens.to_dtype(DType::F64).unwrap();
    seen();
    let loss = purpose::forward(|| model.forward(&x)?.sum_all()).unwrap();
    is_all(Tag::Activation);
    purpose::backward(&loss).unwrap();
    is_all(Tag::Gradient);

    Optimizer::new(model.parameters(), 0.1, Adam::default()).step().unwrap();
    let found: Vec<_> = seen().into_iter().filter(|(tag, _)| *tag == Tag::OptimizerState).collect();
    let keys: Vec<&str> = found.iter().map(|(_, key)| &**key).collect();
    assert_eq!(
        keys,
        [
            "encoder.3/exp_avg/weight",
            "encoder.3/exp_avg_sq/weight",
            "encoder.3/exp_avg/bias",
            "encoder.3/exp_avg_sq/bias"
        ]
    );
}
