//! Tests of tiers in forked children.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tenure_core::{Allocator, DataPtr};
use tenure_tier::{Disk, DiskError, DiskOptions, Medium, Tier};

const MIB: u64 = 1 << 20;

fn in_a_file() -> Tier {
    Tier::open("slow", &Medium::Path(std::env::temp_dir()), Some(MIB)).unwrap()
}

fn number(block: &DataPtr) -> *mut u64 {
    block.as_ptr().cast()
}

/// Forks, runs `parent` in this process and then `child` in the child, and returns whether `child` returned true. A
/// child that hangs is ended after 20 s.
///
/// # Safety
/// Both functions may touch only memory of their own.
unsafe fn forked(parent: impl FnOnce(), child: impl FnOnce() -> bool) -> bool {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let mut byte = 0_u8;
    // SAFETY: the caller guarantees that `child` may run in a forked process.
    match unsafe { libc::fork() } {
        // SAFETY: the child reads a byte, runs the caller's function, and ends.
        0 => unsafe {
            libc::alarm(20);
            let is_told = libc::read(ends[0], (&raw mut byte).cast(), 1) == 1;
            libc::_exit(i32::from(!(is_told && child())))
        },
        forked => {
            parent();
            let mut status = 1;
            // SAFETY: the byte, the status, the child and the descriptors are this function's own.
            unsafe {
                libc::write(ends[1], (&raw const byte).cast(), 1);
                libc::waitpid(forked, &mut status, 0);
                libc::close(ends[0]);
                libc::close(ends[1]);
            }
            status == 0
        }
    }
}

#[test]
fn neither_sees_what_the_other_writes_and_a_child_has_what_was_there_when_it_was_forked() {
    let tiers = [in_a_file(), in_a_file(), Tier::open("fast", &Medium::Dram, Some(MIB)).unwrap()];
    // In the child, nothing writes to these pages, except the first, before it reads them.
    let blocks = tiers.each_ref().map(|tier| [tier.allocate(300_000).unwrap(), tier.allocate(300_000).unwrap()]);
    let all = || blocks.iter().flatten().map(number);
    // SAFETY: each block has eight bytes, which nothing else in this process uses. Volatile, since other processes read
    // them.
    let write = |value: u64| all().for_each(|at| unsafe { at.write_volatile(value) });
    // SAFETY: as above, and the bytes have been written.
    let is = |value: u64| all().all(|at| unsafe { at.read_volatile() } == value);
    write(1);
    // SAFETY: the functions only read and write the blocks.
    let is_well = unsafe {
        forked(
            || write(2),
            || {
                let before = is(1);
                write(3);
                // A child of the child sees this write.
                before && forked(|| write(4), || is(3)) && is(4)
            },
        )
    };
    assert!(is_well && is(2));
}

#[test]
fn a_child_allocates_and_frees_for_itself() {
    let tier = in_a_file();
    let mut block = Some(tier.allocate(500_000).unwrap());
    // SAFETY: only this test reads and writes the blocks.
    unsafe { number(block.as_ref().unwrap()).write(1) };
    let is_well = {
        let block = block.take();
        let tier = &tier;
        // SAFETY: as above. The child has only this thread.
        unsafe {
            forked(
                || (),
                move || {
                    let fresh = tier.allocate(400_000).unwrap();
                    number(&fresh).write(7);
                    let is_there = number(block.as_ref().unwrap()).read() == 1 && number(&fresh).read() == 7;
                    drop((block, fresh));
                    is_there && tier.allocate(MIB as usize).is_ok()
                },
            )
        }
    };
    assert!(is_well);
}

#[test]
fn a_tier_needs_no_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    let path = fs::canonicalize(folder.path()).unwrap();
    let nameless = Tier::open("slow", &Medium::Path(path.clone()), Some(MIB)).unwrap();
    let named = Tier::open("slow", &Medium::Path(path.join("tier")), Some(MIB)).unwrap();
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    let mut targets = descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    assert!(!targets.any(|target| target.starts_with(&path)));
    drop((nameless, named));
}

#[test]
fn children_that_are_forked_while_other_threads_allocate_never_wait_for_them() {
    let tier = in_a_file();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    drop(tier.allocate(1000).unwrap());
                }
            });
        }
        // SAFETY: the child only allocates.
        let is_well = (0..50).all(|_| unsafe { forked(|| (), || tier.allocate(1000).is_ok()) });
        is_over.store(true, Relaxed);
        assert!(is_well);
    });
}

#[test]
fn a_child_is_told_that_disks_are_its_parents() {
    let disk = Disk::open(&[std::env::temp_dir()], DiskOptions::new(MIB)).unwrap();
    let spilled = disk.write("a", vec![7; 10]).unwrap().wait().unwrap();
    let child = || {
        let is_forked = |error| matches!(error, Some(DiskError::Forked { .. }));
        let refused =
            is_forked(disk.write("b", vec![1; 10]).err()) && is_forked(disk.read(&spilled, vec![0; 10]).err());
        drop((spilled.clone(), disk.clone()));
        refused
    };
    // SAFETY: the child allocates, and writes to memory of its own.
    assert!(unsafe { forked(|| (), child) });
    assert_eq!(disk.read(&spilled, vec![0; 10]).unwrap().wait().unwrap(), [7; 10]);
}
