//! Tests of storages: shared bytes that can move, and a generation that changes when they do.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use proptest::prelude::*;
use tenure_core::{Allocator, AllocatorError, Arrival, CpuAllocator, DataPtr, Device, Error, Storage, StorageError};

fn cpu() -> Arc<CpuAllocator> {
    Arc::new(CpuAllocator::new().with_junk())
}

fn write(storage: &Storage, bytes: &[u8]) {
    let guard = storage.lock();
    assert_eq!(bytes.len(), guard.bytes());
    // SAFETY: the guard has as many bytes of host memory, filled with junk when they were allocated. A test has its
    // storage to itself.
    unsafe { guard.as_mut_slice() }.copy_from_slice(bytes);
}

fn read(storage: &Storage) -> Vec<u8> {
    let guard = storage.lock();
    // SAFETY: as for `write`.
    unsafe { guard.as_slice() }.to_vec()
}

/// Returns the bytes of a vector, and the number of times that they have been freed.
fn foreign(bytes: usize) -> (DataPtr, Arc<AtomicU32>) {
    let frees = Arc::new(AtomicU32::new(0));
    let mut owner = vec![0_u8; bytes];
    let data = DataPtr::foreign(owner.as_mut_ptr(), Device::CPU, {
        let frees = Arc::clone(&frees);
        move || {
            drop(owner);
            frees.fetch_add(1, Ordering::Relaxed);
        }
    });
    (data, frees)
}

proptest! {
    #[test]
    fn a_resize_keeps_the_common_prefix(
        (first, second) in (prop::collection::vec(any::<u8>(), 0..300), prop::collection::vec(any::<u8>(), 0..300)),
    ) {
        let allocator = cpu();
        let storage = Storage::new(first.len(), allocator.clone()).unwrap();
        write(&storage, &first);
        storage.resize(second.len()).unwrap();
        let kept = first.len().min(second.len());
        prop_assert_eq!(storage.bytes(), second.len());
        prop_assert_eq!(&read(&storage)[..kept], &first[..kept]);
        write(&storage, &second);
        prop_assert_eq!(read(&storage), second);
        prop_assert_eq!(allocator.allocated_bytes(), storage.bytes(), "the old bytes are freed");
    }
}

#[test]
fn clones_share_bytes_and_the_last_frees_them() {
    let allocator = cpu();
    let storage = Storage::new(4, allocator.clone()).unwrap();
    let view = storage.clone();
    assert!(view.is_alias_of(&storage));
    assert!(!view.is_alias_of(&Storage::new(4, allocator.clone()).unwrap()));
    write(&storage, b"abcd");
    drop(storage);
    assert_eq!(read(&view), b"abcd");
    drop(view);
    assert_eq!(allocator.allocated_bytes(), 0);
}

#[test]
fn a_weak_handle_keeps_no_bytes_but_can_become_one_that_does() {
    let allocator = cpu();
    let storage = Storage::new(16, allocator.clone()).unwrap();
    assert!(storage.is_unique());
    let weak = storage.downgrade();
    assert!(!storage.is_unique(), "the weak handle may become another reader");
    assert!(weak.upgrade().unwrap().is_alias_of(&storage));
    drop(storage);
    assert!(weak.upgrade().is_none());
    assert_eq!(allocator.allocated_bytes(), 0);
}

#[test]
fn an_empty_storage_is_an_ordinary_one() {
    let storage = Storage::new(0, cpu()).unwrap();
    assert_eq!((storage.bytes(), storage.device()), (0, Device::CPU));
    assert!(storage.lock().as_ptr().is_null());
    assert_eq!(read(&storage), []);
    storage.resize(2).unwrap();
    write(&storage, b"ab");
    storage.resize(0).unwrap();
    assert!(storage.lock().as_ptr().is_null());
    assert_eq!(read(&storage), []);
}

#[test]
fn a_storage_of_no_device_bytes_has_the_device() {
    // SAFETY: there are no bytes.
    let storage = unsafe { Storage::from_data_ptr(DataPtr::null(Device::cuda(2)), 0, None) };
    assert_eq!(storage.device(), Device::cuda(2));
}

#[test]
fn foreign_bytes_are_freed_by_their_owner_once() {
    let (data, frees) = foreign(3);
    // SAFETY: a vector of three bytes.
    let storage = unsafe { Storage::from_data_ptr(data, 3, None) };
    write(&storage, b"xyz");
    assert_eq!(read(&storage.clone()), b"xyz");
    assert_eq!(frees.load(Ordering::Relaxed), 0);
    drop(storage);
    assert_eq!(frees.load(Ordering::Relaxed), 1);
}

#[test]
fn foreign_bytes_resize_only_with_an_allocator() {
    let (data, _) = foreign(3);
    // SAFETY: a vector of three bytes.
    let fixed = unsafe { Storage::from_data_ptr(data, 3, None) };
    assert!(!fixed.is_resizable() && fixed.allocator().is_none());
    let generation = fixed.generation();
    assert_eq!(
        fixed.resize(4).unwrap_err().to_string(),
        "a storage of 3 bytes that is not resizable was asked for 4: copy to a new storage"
    );
    assert_eq!(
        fixed.set_resizable(true).unwrap_err().to_string(),
        "a storage without an allocator cannot be made resizable: give it one when it is made"
    );
    assert_eq!((fixed.bytes(), fixed.generation()), (3, generation));

    let (data, frees) = foreign(3);
    // SAFETY: a vector of three bytes.
    let storage = unsafe { Storage::from_data_ptr(data, 3, Some(cpu())) };
    write(&storage, b"xyz");
    storage.resize(2).unwrap();
    assert_eq!((read(&storage), frees.load(Ordering::Relaxed)), (b"xy".to_vec(), 1));
}

#[test]
fn an_exported_storage_can_be_fixed_for_a_while() {
    let storage = Storage::new(8, cpu()).unwrap();
    assert!(storage.is_resizable());
    storage.set_resizable(false).unwrap();
    assert_eq!(storage.resize(16), Err(StorageError::NotResizable { bytes: 8, requested: 16 }));
    storage.set_resizable(true).unwrap();
    assert_eq!(storage.resize(16), Ok(()));
}

#[test]
fn the_generation_changes_when_the_bytes_do_and_never_repeats() {
    let mut seen = HashSet::new();
    for _ in 0..3 {
        let storage = Storage::new(8, cpu()).unwrap();
        assert!(seen.insert(storage.generation()));
        assert!(!seen.insert(storage.clone().generation()), "a clone has the same bytes");
        storage.resize(16).unwrap();
        assert!(seen.insert(storage.generation()));
        storage.resize(8).unwrap();
        assert!(seen.insert(storage.generation()), "the same size is not the same bytes");
        let (data, _) = foreign(8);
        // SAFETY: a vector of eight bytes.
        drop(unsafe { storage.set_data_ptr(data, 8) });
        assert!(seen.insert(storage.generation()));
    }
}

#[test]
fn generations_are_unique_across_threads() {
    let mut seen = HashSet::new();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..500).map(|_| Storage::new(0, cpu()).unwrap().generation()).collect::<Vec<_>>()))
            .collect();
        for thread in threads {
            for generation in thread.join().unwrap() {
                assert!(seen.insert(generation));
            }
        }
    });
}

#[test]
fn set_data_ptr_hands_back_the_old_owner() {
    let allocator = cpu();
    let storage = Storage::new(5, allocator.clone()).unwrap();
    let address = storage.lock().as_ptr();
    let (data, frees) = foreign(3);
    // SAFETY: a vector of three bytes.
    let old = unsafe { storage.set_data_ptr(data, 3) };
    assert_eq!((old.as_ptr(), allocator.allocated_bytes()), (address, 5));
    assert_eq!(storage.bytes(), 3);
    drop((old, storage));
    assert_eq!((allocator.allocated_bytes(), frees.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn bytes_on_another_device_are_not_copied_by_this_allocator() {
    let storage = Storage::new(4, cpu()).unwrap();
    let mut bytes = [0_u8; 4];
    let elsewhere = DataPtr::foreign(bytes.as_mut_ptr(), Device::cuda(0), || ());
    // SAFETY: the bytes are never read, as the test checks.
    drop(unsafe { storage.set_data_ptr(elsewhere, 4) });
    assert_eq!(
        storage.resize(8).unwrap_err().to_string(),
        "a storage whose data is on cuda:0 cannot be resized by an allocator of cpu: move it first"
    );
    assert_eq!((storage.bytes(), storage.device()), (4, Device::cuda(0)));
}

#[test]
#[should_panic(expected = "the host cannot read bytes on cuda:0: copy them to the CPU first")]
fn device_bytes_are_no_slice() {
    // SAFETY: there are no bytes.
    let storage = unsafe { Storage::from_data_ptr(DataPtr::null(Device::cuda(0)), 0, None) };
    // SAFETY: there are no bytes.
    unsafe { storage.lock().as_slice() };
}

/// An allocator of CPU memory that refuses to allocate, or fails to copy, when a test wants it to.
#[derive(Default)]
struct Faulty {
    inner: CpuAllocator,
    refuse: AtomicBool,
    fail_copy: AtomicBool,
}

// SAFETY: the memory is that of the CPU allocator.
unsafe impl Allocator for Faulty {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        if self.refuse.load(Ordering::Relaxed) {
            return Err(AllocatorError::OutOfMemory { device: Device::CPU, requested: bytes, allocated: 0 });
        }
        self.inner.allocate(bytes)
    }

    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError> {
        if self.fail_copy.load(Ordering::Relaxed) {
            return Err(AllocatorError::Failed { device: Device::CPU, call: "copy", reason: "on purpose".into() });
        }
        // SAFETY: by the function's contract.
        unsafe { self.inner.copy(source, target, bytes) }
    }
}

#[test]
fn a_failed_resize_changes_nothing() {
    let allocator = Arc::new(Faulty::default());
    let storage = Storage::new(3, allocator.clone()).unwrap();
    // SAFETY: three bytes of host memory.
    unsafe { storage.lock().as_ptr().write_bytes(b'a', 3) };
    let address = storage.lock().as_ptr();
    let generation = storage.generation();
    for (fault, text) in [(&allocator.refuse, "out of memory on cpu"), (&allocator.fail_copy, "copy on cpu failed")] {
        fault.store(true, Ordering::Relaxed);
        assert!(storage.resize(6).unwrap_err().to_string().starts_with(text));
        fault.store(false, Ordering::Relaxed);
        assert_eq!((storage.lock().as_ptr(), storage.generation()), (address, generation));
        assert_eq!(read(&storage), b"aaa");
        assert_eq!(allocator.inner.allocated_bytes(), 3);
    }
    assert!(storage.resize(6).is_ok());
}

#[test]
fn a_storage_that_cannot_be_made_says_why() {
    let error = Error::from(Storage::new(usize::MAX, cpu()).unwrap_err());
    assert_eq!(
        error.to_string(),
        format!("a request of {} bytes is larger than any memory: check the shape it was computed from", usize::MAX)
    );
}

#[test]
fn a_deleter_may_use_the_storage_it_was_replaced_in() {
    let storage = Storage::new(0, cpu()).unwrap();
    let seen = Arc::new(AtomicU32::new(0));
    let data = DataPtr::foreign(std::ptr::null_mut(), Device::CPU, {
        let storage = storage.clone();
        let seen = Arc::clone(&seen);
        move || seen.store(storage.bytes() as u32, Ordering::Relaxed)
    });
    // SAFETY: there are no bytes.
    drop(unsafe { storage.set_data_ptr(data, 0) });
    storage.resize(7).unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 7);
}

#[test]
fn a_guard_keeps_the_bytes_in_place_while_others_resize() {
    let storage = Storage::new(64, cpu()).unwrap();
    write(&storage, &[1; 64]);
    thread::scope(|scope| {
        let resizer = scope.spawn(|| {
            for bytes in (64..164).rev() {
                storage.resize(bytes).unwrap();
            }
        });
        while !resizer.is_finished() {
            let guard = storage.lock();
            let address = guard.as_ptr();
            let bytes = guard.bytes();
            let generation = guard.generation();
            // SAFETY: the junk fill or `write` wrote every byte, and nothing writes now.
            let prefix = unsafe { &guard.as_slice()[..64] };
            assert!(prefix.iter().all(|&byte| byte == 1));
            assert_eq!((guard.as_ptr(), storage.bytes(), storage.generation()), (address, bytes, generation));
        }
    });
    assert_eq!(storage.bytes(), 64);
}

#[test]
fn bytes_that_are_on_their_way_are_waited_for_by_who_uses_them_alone() {
    struct Coming(Mutex<mpsc::Receiver<()>>, Arc<AtomicU32>);
    impl Arrival for Coming {
        fn wait(&self) {
            // The second time, the sender is gone.
            let _ = self.0.lock().unwrap().recv();
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (arrived, arrival) = mpsc::channel();
    let mut bytes = vec![7_u8; 4];
    let waits = Arc::new(AtomicU32::new(0));
    let data = DataPtr::foreign(bytes.as_mut_ptr(), Device::CPU, || ());
    // SAFETY: the vector lives longer, and nothing else uses it.
    let storage = unsafe { Storage::arriving(data, 4, Coming(Mutex::new(arrival), Arc::clone(&waits))) };
    assert_eq!((storage.bytes(), storage.device(), storage.is_resizable()), (4, Device::CPU, false));
    assert_eq!(storage.generation(), storage.clone().generation());
    assert_eq!(waits.load(Ordering::Relaxed), 0);
    thread::scope(|scope| {
        let user = scope.spawn(|| storage.lock().bytes());
        arrived.send(()).unwrap();
        assert_eq!(user.join().unwrap(), 4);
    });
    drop(arrived);
    drop(storage.lock_exclusive());
    assert_eq!(waits.load(Ordering::Relaxed), 2);
}

#[test]
fn a_read_only_storage_says_so_and_is_not_resizable() {
    static BYTES: [u8; 3] = [1, 2, 3];
    let data = DataPtr::foreign(BYTES.as_ptr().cast_mut(), Device::CPU, || ());
    // SAFETY: the bytes are constant, and live as long as the process.
    let storage = unsafe { Storage::read_only(data, 3) };
    assert!(storage.is_read_only() && storage.clone().is_read_only());
    assert_eq!(read(&storage), BYTES);
    assert_eq!(storage.resize(4), Err(StorageError::NotResizable { bytes: 3, requested: 4 }));
    assert!(!Storage::new(3, cpu()).unwrap().is_read_only());
}
