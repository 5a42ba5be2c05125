//! Tests of allocations by the threads that an operation is divided among.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashSet;
use std::sync::{Arc, Barrier};
use std::thread;

use parking_lot::Mutex;
use tenure_core::{Allocator, AllocatorError, AllocatorScope, CpuAllocator, DataPtr, Name, Purpose, Site, Tag};
use tenure_tensor::{DType, Device, Tensor, threads};

/// An allocator that records which thread allocates, and for what purpose.
#[derive(Default)]
struct Noting {
    cpu: CpuAllocator,
    seen: Mutex<Vec<(thread::ThreadId, Tag, String)>>,
}

// SAFETY: the memory is the other allocator's, unchanged.
unsafe impl Allocator for Noting {
    fn device(&self) -> Device {
        self.cpu.device()
    }

    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        let (tag, key) = Purpose::identify();
        let key = key.key().map(|key| key.to_string()).unwrap_or_default();
        self.seen.lock().push((thread::current().id(), tag, key));
        self.cpu.allocate(bytes)
    }

    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.cpu.copy(source, target, bytes) }
    }
}

#[test]
fn every_thread_of_an_operation_allocates_as_its_caller_does() {
    threads::set_threads(3).unwrap();
    let noting = Arc::new(Noting::default());
    let scope = AllocatorScope::enter(noting.clone());
    let purpose = Purpose::enter(Tag::Activation, tenure_core::KeyId::NONE);
    let module = Site::enter_module(Name::new("conv1"));
    let op = Site::enter_operation(Name::of("conv"));
    // All three parts run at the same time.
    let together = Barrier::new(3);
    threads::for_each_part(3, |_| {
        together.wait();
        Tensor::empty(&[4], DType::F32, Device::CPU).unwrap();
    });
    drop((op, module, purpose, scope));

    let seen = noting.seen.lock();
    assert_eq!(seen.iter().map(|(thread, ..)| *thread).collect::<HashSet<_>>().len(), 3);
    assert!(seen.iter().all(|(_, tag, key)| (*tag, &**key) == (Tag::Activation, "conv1/conv/part#0")), "{seen:?}");

    // Afterwards the threads use the allocator no more.
    let before = seen.len();
    drop(seen);
    threads::for_each_part(3, |_| {
        together.wait();
        Tensor::empty(&[4], DType::F32, Device::CPU).unwrap();
    });
    assert_eq!(noting.seen.lock().len(), before);
}

#[test]
fn the_way_back_has_the_same_keys_in_every_step_of_a_program_without_modules() {
    let noting = Arc::new(Noting::default());
    let weight = Tensor::ones(&[4], DType::F32, Device::CPU).unwrap().requires_grad_(true).unwrap();
    let step = || {
        let scope = AllocatorScope::enter(noting.clone());
        weight.mul(&weight).unwrap().exp().unwrap().sum_all().unwrap().backward().unwrap();
        weight.set_grad(None).unwrap();
        drop(scope);
        std::mem::take(&mut *noting.seen.lock()).into_iter().map(|(.., key)| key).collect::<Vec<_>>()
    };
    let keys = step();
    assert!(keys.contains(&"/mul/grad#0".to_owned()), "{keys:?}");
    assert_eq!(keys, step());
}
