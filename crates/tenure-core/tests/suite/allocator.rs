//! Tests of the CPU allocator, its reports, and the registry.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;

use proptest::prelude::*;
use tenure_core::{
    Allocator, AllocatorError, AllocatorRegistry, AllocatorScope, CpuAllocator, DataPtr, Device, DeviceKind,
    MemoryReporter, MemoryUse, NumaMove, OutOfMemory, move_to_numa_node,
};

/// A reporter that records every event.
#[derive(Default)]
struct Recorder {
    uses: Mutex<Vec<MemoryUse>>,
    refusals: Mutex<Vec<OutOfMemory>>,
}

impl MemoryReporter for Recorder {
    fn memory_use(&self, event: &MemoryUse) {
        self.uses.lock().unwrap().push(*event);
    }

    fn out_of_memory(&self, event: &OutOfMemory) {
        self.refusals.lock().unwrap().push(*event);
    }
}

fn recorded() -> (CpuAllocator, Arc<Recorder>) {
    let allocator = CpuAllocator::new();
    let recorder = Arc::new(Recorder::default());
    allocator.set_reporter(Some(recorder.clone()));
    (allocator, recorder)
}

/// Fills `bytes` bytes of `data` with `value`.
fn fill(data: &DataPtr, bytes: usize, value: u8) {
    // SAFETY: every caller has just been given as many bytes.
    unsafe { data.as_ptr().write_bytes(value, bytes) }
}

fn contents(data: &DataPtr, bytes: usize) -> Vec<u8> {
    // SAFETY: every caller has written as many bytes, or had them written.
    unsafe { std::slice::from_raw_parts(data.as_ptr(), bytes) }.to_vec()
}

proptest! {
    #[test]
    fn memory_is_aligned_disjoint_and_counted(sizes in prop::collection::vec(1..5000_usize, 1..40)) {
        let allocator = CpuAllocator::new();
        let live: Vec<_> = sizes.iter().map(|&bytes| (allocator.allocate(bytes).unwrap(), bytes)).collect();
        prop_assert_eq!(allocator.allocated_bytes(), sizes.iter().sum::<usize>());
        for (i, (data, bytes)) in live.iter().enumerate() {
            prop_assert_eq!(data.as_ptr() as usize % CpuAllocator::ALIGNMENT, 0);
            fill(data, *bytes, i as u8);
        }
        for (i, (data, bytes)) in live.iter().enumerate() {
            prop_assert!(contents(data, *bytes).iter().all(|&byte| byte == i as u8));
        }
        drop(live);
        prop_assert_eq!(allocator.allocated_bytes(), 0);
    }
}

#[test]
fn no_bytes_are_a_null_pointer_on_the_device() {
    let (allocator, recorder) = recorded();
    let data = allocator.allocate(0).unwrap();
    assert!(data.is_null());
    assert_eq!(data.device(), Device::CPU);
    assert!(recorder.uses.lock().unwrap().is_empty());
}

#[test]
fn raw_memory_is_its_own_context() {
    let allocator = CpuAllocator::new();
    let data = allocator.allocate(10).unwrap();
    assert_eq!(data.context(), data.as_ptr().cast());
    assert_eq!(data.deleter().map(|f| f as usize), allocator.raw_deleter().map(|f| f as usize));

    let raw = allocator.raw_allocate(100).unwrap();
    assert_eq!(allocator.allocated_bytes(), 110);
    // SAFETY: the pointer comes from `raw_allocate`, and is not used again.
    unsafe { allocator.raw_deallocate(raw) };
    assert_eq!(allocator.allocated_bytes(), 10);

    let nothing = allocator.raw_allocate(0).unwrap();
    assert!(nothing.is_null());
    // SAFETY: the pointer comes from `raw_allocate`.
    unsafe { allocator.raw_deallocate(nothing) };
}

/// An allocator that lends out bytes of a vector: the context is not the pointer.
struct Boxes;

// SAFETY: the bytes are those of a fresh vector, which is kept until the closure is called.
unsafe impl Allocator for Boxes {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        let mut owner = vec![0_u8; bytes];
        Ok(DataPtr::foreign(owner.as_mut_ptr(), Device::CPU, move || drop(owner)))
    }

    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError> {
        // SAFETY: by the function's contract.
        unsafe { source.copy_to_nonoverlapping(target, bytes) };
        Ok(())
    }
}

#[test]
fn an_allocator_with_contexts_of_its_own_gives_no_raw_memory() {
    assert!(Boxes.raw_deleter().is_none());
    assert_eq!(
        Boxes.raw_allocate(8).unwrap_err().to_string(),
        "raw allocation on cpu is not possible: the allocator's pointers need a context of their own"
    );
}

#[test]
fn junk_shows_in_any_sum() {
    let data = CpuAllocator::new().with_junk().allocate(11).unwrap();
    let bytes = contents(&data, 11);
    assert_eq!(bytes[..8], [CpuAllocator::JUNK, CpuAllocator::JUNK].concat());
    assert_eq!(bytes[8..], CpuAllocator::JUNK[..3], "to the last byte");
    assert!(f32::from_ne_bytes(bytes[..4].try_into().unwrap()).is_nan());
    assert!(f64::from_ne_bytes(bytes[..8].try_into().unwrap()) > 1e308);
    assert!(i64::from_ne_bytes(bytes[..8].try_into().unwrap()) > 1 << 62);
}

#[test]
fn memory_outlives_its_allocator() {
    let (allocator, recorder) = recorded();
    let data = allocator.allocate(64).unwrap();
    drop(allocator);
    fill(&data, 64, 1);
    drop(data);
    assert_eq!(recorder.uses.lock().unwrap().last().unwrap().total_allocated, 0);
}

#[test]
fn allocations_and_frees_are_reported() {
    let (allocator, recorder) = recorded();
    let first = allocator.allocate(100).unwrap();
    let address = first.as_ptr() as usize;
    let _second = allocator.allocate(50).unwrap();
    drop(first);
    allocator.set_reporter(None);
    let _unreported = allocator.allocate(1).unwrap();

    let uses = recorder.uses.lock().unwrap();
    assert_eq!(
        uses.iter().map(|event| (event.bytes, event.total_allocated)).collect::<Vec<_>>(),
        [(100, 100), (50, 150), (-100, 50)]
    );
    assert_eq!((uses[0].address, uses[2].address), (address, address));
    assert!(uses.iter().all(|event| event.device == Device::CPU && event.total_reserved == event.total_allocated));
}

#[test]
fn a_request_that_no_system_can_serve_is_reported_and_refused() {
    let (allocator, recorder) = recorded();
    let _live = allocator.allocate(100).unwrap();
    let requested = isize::MAX as usize - 4096;
    assert_eq!(
        allocator.allocate(requested).unwrap_err().to_string(),
        format!(
            "out of memory on cpu: asked for {requested} bytes with 100 allocated; free tensors that are no longer \
             needed, or make the request smaller"
        )
    );
    let expected = OutOfMemory { bytes: requested, total_allocated: 100, total_reserved: 100, device: Device::CPU };
    assert_eq!(*recorder.refusals.lock().unwrap(), [expected]);
    assert_eq!(allocator.allocated_bytes(), 100, "nothing changed");
}

#[test]
fn a_request_larger_than_any_address_space_is_an_error_not_a_wrap() {
    for requested in [isize::MAX as usize, usize::MAX - 63, usize::MAX] {
        assert_eq!(CpuAllocator::new().allocate(requested).err(), Some(AllocatorError::TooLarge { requested }));
    }
}

#[test]
fn memory_may_be_freed_on_another_thread() {
    let (allocator, recorder) = recorded();
    let (sender, receiver) = mpsc::channel::<(DataPtr, usize)>();
    thread::scope(|scope| {
        for thread in 0..4_usize {
            let allocator = &allocator;
            let sender = sender.clone();
            scope.spawn(move || {
                for i in 0..500 {
                    let bytes = 1 + (thread * 7919 + i * 104_729) % 3000;
                    let data = allocator.allocate(bytes).unwrap();
                    fill(&data, bytes, thread as u8);
                    sender.send((data, bytes)).unwrap();
                }
            });
        }
        drop(sender);
        for (data, bytes) in receiver {
            let bytes = contents(&data, bytes);
            assert!(bytes.iter().all(|&byte| byte == bytes[0]));
        }
    });
    assert_eq!(allocator.allocated_bytes(), 0);
    let uses = recorder.uses.lock().unwrap();
    assert_eq!((uses.len(), uses.iter().map(|event| event.bytes).sum::<isize>()), (4000, 0));
}

#[test]
fn moving_to_a_numa_node_keeps_the_bytes() {
    let bytes = 1 << 20;
    let data = CpuAllocator::new().allocate(bytes).unwrap();
    fill(&data, bytes, 0xa5);
    match move_to_numa_node(data.as_ptr(), bytes, 0).unwrap() {
        NumaMove::Moved => {}
        NumaMove::Unavailable(reason) => assert!(!reason.is_empty()),
    }
    assert!(contents(&data, bytes).iter().all(|&byte| byte == 0xa5));
}

#[test]
fn less_than_a_page_is_left_where_it_is() {
    let data = CpuAllocator::new().allocate(100).unwrap();
    assert!(move_to_numa_node(data.as_ptr(), 100, 0).is_ok());
}

#[test]
fn an_allocator_on_a_numa_node_gives_memory_there_or_as_usual() {
    let data = CpuAllocator::new().with_numa_node(0).allocate(1 << 20).unwrap();
    fill(&data, 1 << 20, 1);
}

#[cfg(target_os = "linux")]
#[test]
fn a_numa_node_that_cannot_be_is_an_error_that_frees_the_memory() {
    let allocator = CpuAllocator::new().with_numa_node(5000);
    assert_eq!(
        allocator.allocate(1 << 20).unwrap_err().to_string(),
        "NUMA node 5000 cannot take memory: no system has so many; the nodes are listed in /sys/devices/system/node"
    );
    assert_eq!(allocator.allocated_bytes(), 0);
}

#[test]
fn an_allocator_is_replaced_by_an_equal_or_higher_priority_only() {
    let registry = AllocatorRegistry::new();
    let allocators: [Arc<dyn Allocator>; 4] = std::array::from_fn(|_| Arc::new(CpuAllocator::new()) as _);
    let is_current =
        |expected: &Arc<dyn Allocator>| Arc::ptr_eq(&registry.allocator(DeviceKind::Cpu).unwrap(), expected);

    assert!(registry.register(DeviceKind::Cpu, allocators[0].clone(), 5));
    assert!(!registry.register(DeviceKind::Cpu, allocators[1].clone(), 4));
    assert!(is_current(&allocators[0]));
    assert!(registry.register(DeviceKind::Cpu, allocators[2].clone(), 5));
    assert!(is_current(&allocators[2]));
    assert!(registry.register(DeviceKind::Cpu, allocators[3].clone(), u8::MAX));
    assert!(is_current(&allocators[3]));
}

#[test]
fn kinds_are_registered_apart() {
    let registry = AllocatorRegistry::new();
    registry.register(DeviceKind::Cpu, Arc::new(CpuAllocator::new()), 9);
    assert_eq!(
        registry.allocator(DeviceKind::Cuda).err().unwrap().to_string(),
        "no allocator is registered for cuda: register one before allocating there"
    );
    assert!(registry.register(DeviceKind::Cuda, Arc::new(Boxes), 0));
    assert!(registry.allocator(DeviceKind::Cuda).is_ok());
}

#[test]
fn the_highest_priority_wins_whatever_the_order_of_threads() {
    let registry = AllocatorRegistry::new();
    let allocators: Vec<Arc<dyn Allocator>> = (0..8).map(|_| Arc::new(CpuAllocator::new()) as _).collect();
    let start = Barrier::new(allocators.len());
    thread::scope(|scope| {
        for (priority, allocator) in allocators.iter().enumerate() {
            let registry = &registry;
            let start = &start;
            scope.spawn(move || {
                start.wait();
                registry.register(DeviceKind::Cpu, allocator.clone(), priority as u8);
            });
        }
    });
    assert!(Arc::ptr_eq(&registry.allocator(DeviceKind::Cpu).unwrap(), &allocators[7]));
}

#[test]
fn the_processs_registry_begins_with_the_cpu() {
    let allocator = AllocatorRegistry::global().allocator(DeviceKind::Cpu).unwrap();
    assert_eq!(allocator.device(), Device::CPU);
}

/// The allocator of a full device.
struct Full(Device);

// SAFETY: there is no memory to misuse.
unsafe impl Allocator for Full {
    fn device(&self) -> Device {
        self.0
    }

    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        Err(AllocatorError::TooLarge { requested: bytes })
    }

    unsafe fn copy(&self, _: *const u8, _: *mut u8, _: usize) -> Result<(), AllocatorError> {
        Ok(())
    }
}

#[test]
fn a_thread_chooses_one_allocator_for_each_device() {
    let gpu: Arc<dyn Allocator> = Arc::new(Full(Device::cuda(0)));
    let cpu: [Arc<dyn Allocator>; 2] = [Arc::new(CpuAllocator::new()), Arc::new(CpuAllocator::new())];
    let is = |device, expected: &Arc<dyn Allocator>| {
        AllocatorScope::current(device).is_some_and(|found| Arc::ptr_eq(&found, expected))
    };
    let _gpu = AllocatorScope::enter(gpu.clone());
    let _outer = AllocatorScope::enter(cpu[0].clone());
    let inner = AllocatorScope::enter(cpu[1].clone());
    assert!(is(Device::CPU, &cpu[1]) && is(Device::cuda(0), &gpu));
    drop(inner);
    assert!(is(Device::CPU, &cpu[0]) && is(Device::cuda(0), &gpu));
    assert!(AllocatorScope::current(Device::cuda(1)).is_none());
}
