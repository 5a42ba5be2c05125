//! Host memory of tensors on the CPU.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::{Arc, Mutex};

use tenure_core::{Allocator, AllocatorError, KeyId, Purpose, Tag};
use tenure_device::host::HostMemory;

/// Held by one test at a time: the figures cover the whole process.
static ALONE: Mutex<()> = Mutex::new(());

const MIB: usize = 1 << 20;

fn held() -> u64 {
    HostMemory::installed().unwrap().statistics().all.reserved_bytes.current
}

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn blocks_are_aligned_and_their_own_at_any_size() {
    let _alone = ALONE.lock();
    let memory = HostMemory::installed().unwrap();
    let sizes = [1, 64, 1000, 64 * 1024 - 1, 64 * 1024, 256 * 1024, 3 * MIB + 1];
    let blocks: Vec<_> = sizes.iter().map(|bytes| memory.allocate(*bytes).unwrap()).collect();
    for (fill, (block, bytes)) in blocks.iter().zip(sizes).enumerate() {
        assert_eq!(block.as_ptr() as usize % 64, 0);
        // SAFETY: `bytes` bytes of this block, which is ours.
        unsafe { block.as_ptr().write_bytes(fill as u8, bytes) };
    }
    for (fill, (block, bytes)) in blocks.iter().zip(sizes).enumerate() {
        // SAFETY: the bytes were written above.
        let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), bytes) };
        assert!(bytes.iter().all(|byte| *byte == fill as u8));
    }
    assert!(memory.allocate(0).unwrap().is_null());
    assert!(matches!(memory.allocate(usize::MAX / 2), Err(AllocatorError::OutOfMemory { .. })));
}

#[test]
fn freed_pages_stay_until_they_are_given_back() {
    let _alone = ALONE.lock();
    let memory = HostMemory::installed().unwrap();
    memory.release_cached().unwrap();
    let before = resident();
    let held_before = held();
    let block = memory.allocate(64 * MIB).unwrap();
    // SAFETY: 64 MiB of this block, which is ours.
    unsafe { block.as_ptr().write_bytes(1, 64 * MIB) };
    let first = block.as_ptr();
    drop(block);
    assert!(resident() >= before + 60 * MIB);
    assert_eq!(memory.allocate(40 * MIB).unwrap().as_ptr(), first);
    memory.release_cached().unwrap();
    assert!(resident() < before + 16 * MIB);
    assert_eq!(held(), held_before);
}

#[test]
fn within_a_limit_no_page_is_there_beside_those_that_count() {
    let _alone = ALONE.lock();
    let memory = HostMemory::installed().unwrap();
    memory.release_cached().unwrap();
    let allocate = |bytes: usize| {
        let block = memory.allocate(bytes).unwrap();
        // SAFETY: `bytes` bytes of this block, which is ours.
        unsafe { block.as_ptr().write_bytes(1, bytes) };
        block
    };
    // Every other block is a hole then, as large as a huge page.
    let mut blocks: Vec<_> = (0..64).map(|number| (number, allocate(2 * MIB))).collect();
    blocks.retain(|(number, _)| number % 2 == 0);
    memory.release_cached().unwrap();
    let before = resident();
    let held_before = held();
    let small_ones = (0..32).map(|_| {
        memory.set_limit(Some(held() + 3 * MIB as u64 / 2)).unwrap();
        allocate(3 * MIB / 2)
    });
    let small_ones: Vec<_> = small_ones.collect();
    let there = resident() - before;
    let counted = (held() - held_before) as usize;
    memory.set_limit(None).unwrap();
    drop((blocks, small_ones));
    assert_eq!(counted, 48 * MIB);
    assert!(there < counted + MIB, "{there} bytes are there, of which {counted} count");
}

#[test]
fn memory_that_the_languages_allocator_keeps_is_given_back_too() {
    let _alone = ALONE.lock();
    let mut boxes: Vec<Box<[u8]>> = (0..64 * 1024).map(|_| vec![1; 1024].into_boxed_slice()).collect();
    let before = resident();
    // The last block keeps the ones before it from being given back.
    let last = boxes.pop();
    drop(boxes);
    HostMemory::installed().unwrap().release_cached().unwrap();
    assert!(resident() + 48 * MIB < before, "{} of {before} bytes are there", resident());
    drop(last);
}

#[test]
fn allocated_memory_is_held_whatever_its_size() {
    let _alone = ALONE.lock();
    let memory = HostMemory::installed().unwrap();
    let before = held();
    let block = memory.allocate(1000).unwrap();
    assert_eq!(held(), before + 1000);
    drop(block);
    assert_eq!(held(), before);
}

#[test]
fn blocks_are_counted_by_what_they_are_for() {
    let _alone = ALONE.lock();
    let memory = HostMemory::installed().unwrap();
    let weights = || memory.statistics().tags[Tag::Weight as usize].allocated_bytes.current;
    let before = weights();
    let purpose = Purpose::enter(Tag::Weight, KeyId::NONE);
    let blocks = [memory.allocate(100).unwrap(), memory.allocate(MIB).unwrap()];
    drop(purpose);
    assert_eq!(weights() - before, 100 + MIB as u64);
    drop(blocks);
    assert_eq!(weights(), before);
}

#[test]
fn threads_may_free_what_others_allocated() {
    let _alone = ALONE.lock();
    let memory = HostMemory::installed().unwrap();
    let live = memory.statistics().all.allocated_bytes.current;
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        for thread in 0..4_usize {
            let memory = &memory;
            let sender = sender.clone();
            scope.spawn(move || {
                for step in 0..200 {
                    sender.send(memory.allocate(1 + (thread * 7919 + step * 104_729) % (2 * MIB)).unwrap()).unwrap();
                }
            });
        }
        drop(sender);
        scope.spawn(move || receiver.iter().for_each(drop));
    });
    assert_eq!(memory.statistics().all.allocated_bytes.current, live);
}

#[test]
fn a_large_block_finds_the_room_that_small_ones_leave_while_it_waits() {
    let _alone = ALONE.lock();
    let memory = HostMemory::installed().unwrap();
    let small = |_| memory.allocate(50 << 10).unwrap();
    let small: Arc<Mutex<Vec<_>>> = Arc::new(Mutex::new((0..36).map(small).collect()));
    let waiting = Arc::clone(&small);
    memory.add_free_memory_callback(Box::new(move || waiting.lock().unwrap().pop().is_some()));
    memory.release_cached().unwrap();
    let others = memory.statistics().all.allocated_bytes.current - 36 * (50 << 10);
    memory.set_limit(Some(others + 2 * MIB as u64)).unwrap();
    let large = memory.allocate(MIB);
    memory.set_limit(None).unwrap();
    large.unwrap();
    assert!(small.lock().unwrap().len() >= 16, "no more goes than must");
}

#[test]
fn small_and_large_blocks_share_a_limit_to_the_byte() {
    let _alone = ALONE.lock();
    let memory = HostMemory::installed().unwrap();
    memory.release_cached().unwrap();
    let others = memory.statistics().all.allocated_bytes.current;
    let limit = others + 4 * MIB as u64;
    memory.set_limit(Some(limit)).unwrap();
    let mut blocks = Vec::new();
    let mut number = 1_usize;
    for step in 0..4000 {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let drawn = number >> 33;
        let frees = step % 100 < 50;
        if frees && !blocks.is_empty() {
            blocks.swap_remove(drawn % blocks.len());
            continue;
        }
        let bytes = if step % 7 == 0 { 64 * 1024 + 4096 * (drawn % 256) } else { 1 + drawn % (64 * 1024 - 1) };
        let allocated = memory.statistics().all.allocated_bytes.current;
        match memory.allocate(bytes) {
            Ok(block) => blocks.push(block),
            Err(_) => assert!(allocated + bytes as u64 > limit, "{bytes} were refused with {allocated} of {limit}"),
        }
        assert!(held() <= limit);
    }
    memory.set_limit(None).unwrap();
}

/// Forks, and returns whether `child` returned true in the child. A child that hangs is ended after 20 s.
#[cfg(target_os = "linux")]
fn forked(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child touches host memory only, whose locks no other thread of the parent holds there, and ends.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(20);
                libc::_exit(i32::from(!child()))
            }
            child => {
                let mut status = 1;
                libc::waitpid(child, &raw mut status, 0);
                status == 0
            }
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_forked_child_gets_back_what_it_frees_and_leaves_its_parents_blocks_alone() {
    let _alone = ALONE.lock();
    HostMemory::install();
    let registered = tenure_core::AllocatorRegistry::global().allocator(tenure_core::DeviceKind::Cpu).unwrap();
    let live = || HostMemory::installed().unwrap().statistics().all.allocated_bytes.current;
    let blocks = || [1000, 3 * MIB].map(|bytes| registered.allocate(bytes).unwrap());
    let parents = HostMemory::installed().unwrap();
    let mut of_parent = Some(blocks());
    let before = live();
    let uses_its_own = || {
        let kept = blocks();
        let is_counted = live() == 1000 + 3 * MIB as u64;
        drop(kept);
        is_counted && live() == 0
    };
    let child = || {
        drop(of_parent.take());
        // What has kept the parent's host memory may go on with it.
        drop([1000, 3 * MIB].map(|bytes| parents.allocate(bytes).unwrap()));
        // The grandchild frees blocks of both.
        uses_its_own() && {
            let mut of_child = Some(blocks());
            forked(|| {
                drop(of_child.take());
                uses_its_own()
            })
        }
    };
    assert!(forked(child));
    assert!(of_parent.is_some() && live() == before);
}
