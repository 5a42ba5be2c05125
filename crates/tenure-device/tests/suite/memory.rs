//! A process's memory on a device, on every driver, and the text of out-of-memory errors.

use std::sync::Arc;

use tenure_alloc::snapshot::Holder;
use tenure_alloc::{AllocError, HistoryAction, HistoryEvent, NativeConfig, Recording, Request};
use tenure_core::{Allocator, AllocatorError, Device, Key, KeyId, Purpose, Storage, StreamId, Tag};
use tenure_device::memory::{self, AllocatorPolicy, DeviceMemory, MemoryConfig, MemoryError, OutOfMemoryReport};
use tenure_device::sim::{SimConfig, SimDriver, SimPlatform};
use tenure_device::{DeviceProcess, Driver, LibraryUse, Platform, Priority, StreamGuard};

use crate::common::{Tested, drivers, read};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Creates a device of 1 GiB.
fn gibibyte() -> Arc<SimDriver> {
    Arc::new(SimDriver::new(SimConfig { capacity_bytes: GIB, ..SimConfig::default() }))
}

fn policies() -> [AllocatorPolicy; 3] {
    ["paged", "native", "expandable"].map(|name| name.parse().unwrap())
}

fn memory(driver: &Arc<SimDriver>, config: MemoryConfig) -> DeviceMemory {
    DeviceMemory::new(Arc::clone(driver) as _, config).unwrap()
}

/// Returns memory that lives as long as the test process, as storages need it.
fn lasting(driver: Arc<dyn Driver>, policy: AllocatorPolicy) -> &'static DeviceMemory {
    let config = MemoryConfig { policy, ..MemoryConfig::default() };
    Box::leak(Box::new(DeviceMemory::new(driver, config).unwrap()))
}

/// Runs `test` with every policy on every kind of device, and checks that no memory is left allocated.
fn everywhere(test: impl Fn(&Tested, &'static DeviceMemory)) {
    for device in drivers() {
        for policy in policies() {
            let memory = lasting(device.shared(), policy);
            test(&device, memory);
            memory.allocator().release_cached().unwrap();
            assert_eq!(memory.backing().held_bytes(), 0);
            // SAFETY: `lasting` leaked it, and every storage of the test is gone.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(memory).cast_mut()) });
        }
    }
}

fn report(error: MemoryError) -> OutOfMemoryReport {
    match error {
        MemoryError::OutOfMemory(report) => *report,
        other => panic!("not out of memory: {other}"),
    }
}

#[test]
fn every_policy_allocates_and_frees() {
    everywhere(|device, memory| {
        let blocks = [512, MIB, 3 * MIB].map(|bytes| memory.allocate(Request::new(bytes, StreamId::NULL)).unwrap());
        for block in blocks {
            device.memset(block.address + block.bytes - 512, 7, 512, StreamId::NULL).unwrap();
            assert_eq!(read(&**device, block.address + block.bytes - 1, 1), [7]);
            memory.free(block.address).unwrap();
        }
        assert_eq!(memory.allocator().statistics().all.allocated_bytes.current, 0);
        let twice = memory.free(blocks[0].address).unwrap_err();
        assert_eq!(twice, MemoryError::Allocator(AllocError::UnknownAddress(blocks[0].address)));
    });
}

#[test]
fn an_unknown_policy_is_named() {
    let error = "best".parse::<AllocatorPolicy>().unwrap_err();
    assert_eq!(error.to_string(), "unknown allocator \"best\": expected \"paged\", \"native\" or \"expandable\"");
}

#[test]
fn a_fraction_is_a_limit() {
    for policy in policies() {
        let memory = memory(&gibibyte(), MemoryConfig { policy, fraction: 0.5, ..MemoryConfig::default() });
        let report = report(memory.allocate(Request::new(513 * MIB, StreamId::NULL)).unwrap_err());
        assert_eq!((report.allowed_bytes, report.free_bytes), (512 * MIB, GIB));
        assert!(report.advice()[0].ends_with("raise its memory fraction to at least 0.51."), "{:?}", report.advice());
        memory.allocate(Request::new(500 * MIB, StreamId::NULL)).unwrap();
    }
    let config = MemoryConfig { fraction: 1.5, ..MemoryConfig::default() };
    assert!(DeviceMemory::new(gibibyte(), config).is_err());
}

#[test]
fn the_headroom_stays_free() {
    for policy in policies() {
        let config = MemoryConfig { policy, headroom_bytes: 256 * MIB, ..MemoryConfig::default() };
        let memory = memory(&gibibyte(), config);
        let kept = memory.allocate(Request::new(500 * MIB, StreamId::NULL)).unwrap();
        let cached = memory.allocate(Request::new(200 * MIB, StreamId::NULL)).unwrap();
        memory.free(cached.address).unwrap();
        let report = report(memory.allocate(Request::new(300 * MIB, StreamId::NULL)).unwrap_err());
        // PyTorch's expandable segments keep a chunk of which a part is in use.
        assert!((504 * MIB..=524 * MIB).contains(&report.free_bytes), "{report}");
        assert!(report.advice()[0].starts_with("The headroom is reached: one of 2"), "{report}");
        memory.allocate(Request::new(260 * MIB, StreamId::NULL)).unwrap();
        memory.free(kept.address).unwrap();
    }
}

#[test]
fn the_context_counts_against_the_fraction() {
    let config = SimConfig { capacity_bytes: GIB, context_bytes: 100 * MIB, ..SimConfig::default() };
    for policy in policies() {
        let memory = memory(
            &Arc::new(SimDriver::new(config)),
            MemoryConfig { policy, fraction: 0.5, ..MemoryConfig::default() },
        );
        let report = report(memory.allocate(Request::new(450 * MIB, StreamId::NULL)).unwrap_err());
        assert_eq!((report.overhead_bytes, report.in_use_bytes()), (Some(100 * MIB), 100 * MIB));
        assert!(report.advice()[0].ends_with("raise its memory fraction to at least 0.54."), "{report}");
        memory.allocate(Request::new(400 * MIB, StreamId::NULL)).unwrap();
    }
}

#[test]
fn a_storage_on_the_device_is_freed_with_its_last_handle() {
    everywhere(|_, memory| {
        let storage = Storage::new(3 * MIB as usize, Arc::new(memory)).unwrap();
        assert_eq!((storage.device(), storage.bytes()), (Device::cuda(0), 3 << 20));
        let view = storage.clone();
        drop(storage);
        assert_eq!(memory.allocator().statistics().all.allocation.current, 1);
        drop(view);
        assert_eq!(memory.allocator().statistics().all.allocation.current, 0);
    });
}

#[test]
fn a_resized_storage_keeps_its_bytes() {
    everywhere(|device, memory| {
        let storage = Storage::new(4096, Arc::new(memory)).unwrap();
        device.memset(storage.lock().as_ptr() as u64, 9, 4096, StreamId::NULL).unwrap();
        storage.resize(4 << 20).unwrap();
        assert_eq!(read(&**device, storage.lock().as_ptr() as u64, 4096), [9; 4096]);
    });
}

/// The simulated device finds a race if the old bytes are reused on their own stream before the copy has run.
#[test]
fn a_copy_on_another_stream_outlives_the_free_of_its_source() {
    const BYTES: u64 = 64 << 10;
    everywhere(|device, memory| {
        let other = device.create_stream(Priority::Default).unwrap();
        let old = memory.allocate(Request::new(BYTES, other)).unwrap();
        device.memset(old.address, 3, old.bytes, other).unwrap();
        device.synchronize_stream(other).unwrap();

        let target = Allocator::allocate(&memory, BYTES as usize).unwrap();
        // SAFETY: both are blocks of at least `BYTES` bytes.
        unsafe { Allocator::copy(&memory, old.address as *const u8, target.as_ptr(), BYTES as usize).unwrap() };
        memory.free(old.address).unwrap();
        let reused = memory.allocate(Request::new(BYTES, other)).unwrap();
        device.memset(reused.address, 4, reused.bytes, other).unwrap();
        device.synchronize().unwrap();
        assert_eq!(read(&**device, target.as_ptr() as u64, 1), [3]);
        memory.free(reused.address).unwrap();
    });
}

#[test]
fn a_storage_is_allocated_on_the_current_stream() {
    everywhere(|_, memory| {
        memory.allocator().history().start(Recording::events(16), true);
        let stream = memory.streams().pooled(Priority::Default).unwrap();
        let _current = StreamGuard::new(&stream);
        drop(Storage::new(4096, Arc::new(memory)).unwrap());
        let events = memory.allocator().snapshot().device_traces.concat();
        assert_eq!(
            events
                .iter()
                .filter(|event: &&HistoryEvent| matches!(
                    event.action,
                    HistoryAction::Alloc | HistoryAction::FreeCompleted
                ))
                .map(|event| event.stream)
                .collect::<Vec<_>>(),
            [stream.id(); 2]
        );
    });
}

#[test]
fn a_storage_carries_its_purpose() {
    everywhere(|_, memory| {
        let module = "encoder.0".to_owned();
        let op = "linear".to_owned();
        let role = "weight".to_owned();
        let key = KeyId::intern(Key { module, op, role, occurrence: 0 });
        let purpose = Purpose::enter(Tag::Weight, key);
        let _storage = Storage::new(4096, Arc::new(memory)).unwrap();
        drop(purpose);
        let [holder] = memory.allocator().snapshot().holders(9)[..] else { panic!("one block") };
        assert_eq!((holder.tag, holder.key, holder.bytes), (Tag::Weight, key, 4096));
    });
}

/// The simulated device finds a race if the bytes are reused before the other stream is done with them.
#[test]
fn a_recorded_storage_is_not_reused_before_the_other_stream_has_passed() {
    let platform = SimPlatform::new(vec![SimConfig::default(); 6]);
    let driver = platform.driver(5).unwrap();
    assert!(memory::installed(5).is_none());
    let memory = memory::install(Arc::clone(&driver), MemoryConfig::default()).unwrap();
    assert!(std::ptr::eq(memory, memory::installed(5).unwrap()) && std::ptr::eq(memory, memory::device(5).unwrap()));
    let twice = memory::install(Arc::clone(&driver), MemoryConfig::default()).err().unwrap();
    assert_eq!(twice, MemoryError::AlreadyInstalled { device: Device::cuda(5) });

    let other = memory.streams().pooled(Priority::Default).unwrap();
    for bytes in [4096, 4 << 20] {
        let storage = Storage::new(bytes, Arc::new(memory)).unwrap();
        driver.memset(storage.lock().as_ptr() as u64, 1, 4096, other.id()).unwrap();
        assert_eq!(memory::record_stream(&storage, other.id()), Ok(true));
        drop(storage);
        let next = Storage::new(bytes, Arc::new(memory)).unwrap();
        driver.memset(next.lock().as_ptr() as u64, 2, 4096, StreamId::NULL).unwrap();
    }
    driver.synchronize().unwrap();
}

/// The simulated device finds a race if the other stream does not wait, or if the bytes are reused before it is done.
#[test]
fn a_storage_is_led_to_another_stream_and_back() {
    let platform = SimPlatform::new(vec![SimConfig::default(); 5]);
    let driver = platform.driver(4).unwrap();
    let memory = memory::install(Arc::clone(&driver), MemoryConfig::default()).unwrap();
    let ours = memory.streams().pooled(Priority::Default).unwrap();
    let _guard = StreamGuard::new(&ours);
    let theirs = memory.streams().pooled(Priority::Default).unwrap();
    for _ in 0..10 {
        let storage = Storage::new(4096, Arc::new(memory)).unwrap();
        let address = storage.lock().as_ptr() as u64;
        driver.memset(address, 1, 4096, ours.id()).unwrap();
        memory::lead_to(&storage, &theirs).unwrap();
        driver.memset(address, 2, 4096, theirs.id()).unwrap();
    }
    driver.synchronize().unwrap();
}

#[test]
fn foreign_bytes_are_not_recorded() {
    let storage = Storage::new(16, Arc::new(tenure_core::CpuAllocator::new())).unwrap();
    assert_eq!(memory::record_stream(&storage, StreamId(1)), Ok(false));
}

#[test]
fn no_bytes_are_a_null_pointer_on_the_device() {
    let memory = lasting(gibibyte(), AllocatorPolicy::default());
    let data = Allocator::allocate(&memory, 0).unwrap();
    assert!(data.is_null() && data.device() == Device::cuda(0));
}

#[test]
fn an_error_of_the_allocator_trait_carries_the_report() {
    let memory = lasting(gibibyte(), AllocatorPolicy::default());
    let AllocatorError::DeviceOutOfMemory { device, requested, report } =
        Allocator::allocate(&memory, 2 << 30).unwrap_err()
    else {
        panic!("not out of memory")
    };
    assert_eq!((device, requested), (Device::cuda(0), 2 << 30));
    assert!(report.starts_with("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"), "{report}");
}

#[test]
fn a_report_says_who_holds_what_by_tag_and_key() {
    let key = KeyId::intern(Key { module: "layer.3".into(), op: "matmul".into(), role: "out".into(), occurrence: 0 });
    for policy in policies() {
        let memory = memory(&gibibyte(), MemoryConfig { policy, ..MemoryConfig::default() });
        let request = |bytes, tag| Request::new(bytes, StreamId::NULL).with_tag(tag);
        memory.allocate(request(64 * MIB, Tag::Weight)).unwrap();
        memory.allocate(request(512 * MIB, Tag::Activation).with_key(key)).unwrap();
        memory.allocate(request(128 * MIB, Tag::Activation)).unwrap();
        let report = report(memory.allocate(request(512 * MIB, Tag::Gradient)).unwrap_err());
        let activation = holder(Tag::Activation, KeyId::NONE, 640 * MIB, 2);
        assert_eq!(report.tags, [activation, holder(Tag::Weight, KeyId::NONE, 64 * MIB, 1)]);
        assert_eq!(report.keys, [holder(Tag::Activation, key, 512 * MIB, 1)]);
        assert_eq!(report.allocated_bytes, 704 * MIB);
        assert!(report.advice().last().unwrap().contains("recompute activations"), "{report}");
    }
}

#[test]
fn a_report_says_what_context_and_other_processes_hold() {
    let config = SimConfig {
        capacity_bytes: GIB,
        context_bytes: 100 * MIB,
        other_bytes: 300 * MIB,
        seed: 0,
        ..SimConfig::default()
    };
    for policy in policies() {
        let driver = Arc::new(SimDriver::new(config));
        let memory = memory(&driver, MemoryConfig { policy, ..MemoryConfig::default() });
        memory.allocate(Request::new(200 * MIB, StreamId::NULL)).unwrap();
        let held = memory.backing().held_bytes();
        let process = |pid, mib| DeviceProcess { pid, bytes: Some(mib * MIB) };
        let own = DeviceProcess { pid: std::process::id(), bytes: Some(100 * MIB + held) };
        driver.set_processes(Some(vec![process(1, 10), own, process(2, 280)]));
        let report = report(memory.allocate(Request::new(600 * MIB, StreamId::NULL)).unwrap_err());
        assert_eq!(report.overhead_bytes, Some(100 * MIB));
        assert_eq!(report.others, [process(2, 280), process(1, 10)]);
        assert_eq!(report.elsewhere_bytes(), 300 * MIB);
        let advice = report.advice();
        let text = report.to_string();
        assert_eq!(advice[0], "Stop process 2, which holds 280.00 MiB, or move it to another device.");
        assert!(text.contains("not named here, hold 10.00 MiB."), "{text}");
    }
}

#[test]
fn an_allocation_after_an_out_of_memory_error_works() {
    for policy in policies() {
        let memory = memory(&gibibyte(), MemoryConfig { policy, ..MemoryConfig::default() });
        memory.allocate(Request::new(2 * GIB, StreamId::NULL)).unwrap_err();
        memory.allocate(Request::new(512 * MIB, StreamId::NULL)).unwrap();
    }
}

#[test]
fn bad_settings_are_refused() {
    let policy = AllocatorPolicy::Native(NativeConfig { max_split_size: Some(1), ..NativeConfig::default() });
    let config = MemoryConfig { policy, ..MemoryConfig::default() };
    let error = DeviceMemory::new(gibibyte(), config).err().unwrap();
    assert!(matches!(error, MemoryError::Allocator(AllocError::InvalidSetting { .. })), "{error}");
}

fn holder(tag: Tag, key: KeyId, bytes: u64, blocks: usize) -> Holder {
    Holder { tag, key, bytes, blocks }
}

fn key(module: &str) -> KeyId {
    KeyId::intern(Key { module: module.into(), op: "matmul".into(), role: "out".into(), occurrence: 0 })
}

/// Returns the part of a report that Tenure adds.
fn list_of_holders(text: &str) -> &str {
    &text[text.find("Held, by tag").unwrap()..]
}

fn first_advice(report: OutOfMemoryReport) -> String {
    report.advice().remove(0)
}

/// Returns the report of a full, shared device.
fn sample() -> OutOfMemoryReport {
    let nccl =
        LibraryUse { library: "libnccl.so.2".to_owned(), bytes: 256 * MIB, peak_bytes: 256 * MIB, allocations: 3 };
    OutOfMemoryReport {
        device: Device::cuda(0),
        requested_bytes: 2 * GIB,
        stream: StreamId::NULL,
        total_bytes: 140 * GIB,
        free_bytes: GIB,
        allowed_bytes: 126 * GIB,
        headroom_bytes: 0,
        overhead_bytes: Some(512 * MIB),
        reserved_bytes: 118 * GIB,
        allocated_bytes: 117 * GIB,
        awaited_bytes: 0,
        pooled_bytes: 0,
        tags: vec![holder(Tag::Activation, KeyId::NONE, 97 * GIB, 1204), holder(Tag::Weight, KeyId::NONE, 20 * GIB, 1)],
        keys: vec![
            holder(Tag::Weight, key("embedding"), 20 * GIB, 1),
            holder(Tag::Activation, key("encoder.layer.3"), 3 * GIB, 24),
        ],
        libraries: vec![nccl],
        others: vec![DeviceProcess { pid: 4711, bytes: Some(20 * GIB) }, DeviceProcess { pid: 4712, bytes: None }],
    }
}

#[test]
fn a_report_in_words() {
    let expected = "\
CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 140.00 GiB of which 1.00 GiB is free. \
This process has 118.50 GiB in use (512.00 MiB of it context, kernels and libraries), and may use 126.00 GiB (90.0% \
of the device). Of that 117.00 GiB is allocated by live blocks, 1.00 GiB is reserved but unallocated.
Held, by tag:
  activation         97.00 GiB  82.9%  1204 blocks
  weight             20.00 GiB  17.1%  1 block
Held, by key:
  weight             20.00 GiB  1 block  embedding/matmul/out#0
  activation          3.00 GiB  24 blocks  encoder.layer.3/matmul/out#0
Held, by other libraries of this process:
  libnccl.so.2                  256.00 MiB
Other processes:
  pid 4711           20.00 GiB
  pid 4712          not told
The driver, and processes that are not named here, hold 512.00 MiB.
What to try:
  - Stop process 4711, which holds 20.00 GiB, or move it to another device.
  - The most, 97.00 GiB, is held as `activation`: recompute activations (checkpointing), offload them to the host, or \
use smaller batches.";
    assert_eq!(sample().to_string(), expected);
}

#[test]
fn a_report_without_what_the_system_does_not_tell() {
    let report = OutOfMemoryReport {
        overhead_bytes: None,
        libraries: Vec::new(),
        allowed_bytes: 140 * GIB,
        tags: Vec::new(),
        keys: Vec::new(),
        others: Vec::new(),
        ..sample()
    };
    let expected = "\
CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 140.00 GiB of which 1.00 GiB is free. \
This process has 118.00 GiB in use (its context not counted: the system does not tell). Of that 117.00 GiB is \
allocated by live blocks, 1.00 GiB is reserved but unallocated.
Other processes, and the context of this one, hold 21.00 GiB.
What to try:
  - Look for other processes on the device (`nvidia-smi`), and stop those not needed.";
    assert_eq!(report.to_string(), expected);
}

/// PyTorch's text, which people know and programs search for, comes first and whole.
#[test]
fn a_report_in_pytorchs_words() {
    let report = OutOfMemoryReport { pooled_bytes: 256 * MIB, ..sample() };
    let expected = "\
CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 140.00 GiB of which 1.00 GiB is free. \
Including non-PyTorch memory, this process has 118.50 GiB memory in use. Process 4711 has 20.00 GiB memory in use. \
126.00 GiB allowed; Of the allocated memory 117.25 GiB is allocated by PyTorch, with 256.00 MiB allocated in private \
pools (e.g., CUDA Graphs), and 768.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is \
large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for \
Memory Management  \
(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)
Tenure: This process has 118.50 GiB in use (512.00 MiB of it context, kernels and libraries), and may use 126.00 GiB \
(90.0% of the device). Of that 117.00 GiB is allocated by live blocks, 1.00 GiB is reserved but unallocated.
Held, by tag:
";
    let text = report.in_pytorch().to_string();
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(list_of_holders(&text), list_of_holders(&report.to_string()));
}

#[test]
fn advice_fits_the_cause() {
    let too_large = first_advice(OutOfMemoryReport { requested_bytes: 200 * GIB, ..sample() });
    assert!(too_large.contains("larger than the device"), "{too_large}");
    let limited = first_advice(OutOfMemoryReport { allowed_bytes: 119 * GIB, free_bytes: 19 * GIB, ..sample() });
    assert!(limited.ends_with("raise its memory fraction to at least 0.87."), "{limited}");
    let in_pieces =
        OutOfMemoryReport { allocated_bytes: 100 * GIB, others: Vec::new(), free_bytes: 21 * GIB, ..sample() };
    assert!(first_advice(in_pieces.clone()).contains("18.00 GiB is reserved and not allocated"), "{in_pieces}");
}

/// A host function must not call the driver: blocks that it frees are freed with the next call elsewhere.
#[test]
fn memory_that_a_host_function_frees_is_freed() {
    everywhere(|device, memory| {
        let stream = device.create_stream(Priority::Default).unwrap();
        let storage = Storage::new(4 << 20, Arc::new(memory)).unwrap();
        memory::record_stream(&storage, stream).unwrap();
        let block = memory.allocate(Request::new(4 * MIB, stream)).unwrap();
        memory.record_stream(block.address, StreamId::NULL).unwrap();
        device
            .host_function(
                stream,
                Box::new(move || {
                    drop(storage);
                    memory.free(block.address).unwrap();
                }),
            )
            .unwrap();
        device.synchronize_stream(stream).unwrap();
        assert_eq!(memory.allocator().statistics().all.allocated_bytes.current, 0);
    });
}

#[test]
fn the_stream_of_each_thread_is_refused() {
    let memory = memory(&gibibyte(), MemoryConfig::default());
    let block = memory.allocate(Request::new(MIB, StreamId::NULL)).unwrap();
    let per_thread = StreamId(2);
    assert_eq!(memory.allocate(Request::new(MIB, per_thread)), Err(MemoryError::PerThreadStream));
    assert_eq!(memory.record_stream(block.address, per_thread), Err(MemoryError::PerThreadStream));
}
