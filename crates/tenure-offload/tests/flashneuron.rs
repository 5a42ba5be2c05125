//! FlashNeuron's calls on the host's memory.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{ptr, slice};

use proptest::prelude::*;
use tenure_core::{AllocatorRegistry, DeviceKind, Storage};
use tenure_offload::{FnMemory, FnMemoryError};

const KIB: u64 = 1 << 10;
const BLOCK: u64 = 4 * KIB;
const POOL: u64 = 256 * KIB;

fn memory() -> FnMemory {
    let pool =
        |bytes: u64| Storage::new(bytes as usize, AllocatorRegistry::global().allocator(DeviceKind::Cpu).unwrap());
    FnMemory::new(pool(POOL).unwrap(), pool(64 * KIB).unwrap())
}

#[test]
fn weights_are_low_and_offloaded_tensors_are_high() {
    let memory = memory();
    let [first, second] = [memory.device_malloc(BLOCK).unwrap(), memory.device_malloc(1).unwrap()];
    let [high, below] = [memory.device_malloc_reverse(BLOCK).unwrap(), memory.device_malloc_reverse(BLOCK).unwrap()];
    assert_eq!([second - first, high - first, below - first], [BLOCK, POOL - BLOCK, POOL - 2 * BLOCK]);
    memory.device_free(high).unwrap();
    memory.device_free(below).unwrap();
    // All memory but the two blocks that stay is in one piece again.
    memory.device_malloc_reverse(POOL - 2 * BLOCK).unwrap();
    assert_eq!(memory.device_occupancy_size(), 0);
}

#[test]
fn occupancies_are_what_is_free() {
    let memory = memory();
    assert_eq!((memory.device_occupancy(), memory.device_occupancy_size()), (1.0, POOL));
    memory.device_malloc(POOL / 4).unwrap();
    assert_eq!((memory.device_occupancy(), memory.device_occupancy_size()), (0.75, POOL / 4 * 3));
    assert_eq!([memory.device_occupancy_future(POOL / 2), memory.device_occupancy_future(POOL)], [0.25, -0.25]);
    assert_eq!((memory.p2p_occupancy(), memory.p2p_occupancy_size()), (1.0, 64 * KIB));
    let staged = memory.p2p_malloc(16 * KIB).unwrap();
    assert_eq!((memory.p2p_occupancy(), memory.device_occupancy()), (0.75, 0.75));
    memory.p2p_free(staged).unwrap();
    assert_eq!(memory.p2p_occupancy(), 1.0);
}

#[test]
fn a_full_pool_and_an_address_of_elsewhere_are_errors_that_name_the_call() {
    let memory = memory();
    let said = memory.p2p_malloc(65 * KIB).unwrap_err().to_string();
    let expected = "p2p_malloc: 66560 bytes do not fit in the p2p pool: of 65536 bytes 65536 are free, and 65536 in one \
                    piece; free some, or give it more";
    assert_eq!(said, expected);
    let address = memory.device_malloc(BLOCK).unwrap();
    memory.device_free(address).unwrap();
    assert!(matches!(memory.device_free(address), Err(FnMemoryError::Unknown { call: "device_free", .. })));
    assert!(memory.p2p_free(address).is_err(), "it was of the other pool");
    assert_eq!(memory.device_occupancy(), 1.0, "nothing was lost");
    let nothing = memory.device_malloc(0).unwrap();
    memory.device_free(nothing).unwrap();
}

proptest! {
    /// Blocks never share bytes, in whatever order they are handed out and freed.
    #[test]
    fn bytes_stay_what_they_are(steps in prop::collection::vec((0_u8..5, 1..60 * KIB), 1..60)) {
        let memory = memory();
        let mut live: Vec<(u64, u64, u8, bool)> = Vec::new();
        for (number, (what, bytes)) in steps.into_iter().enumerate() {
            let value = number as u8;
            let made = match what {
                0 => memory.device_malloc(bytes),
                1 => memory.device_malloc_reverse(bytes),
                2 => memory.p2p_malloc(bytes),
                _ if live.is_empty() => continue,
                _ => {
                    let (address, bytes, value, is_staged) = live.swap_remove(bytes as usize % live.len());
                    let start = ptr::with_exposed_provenance::<u8>(address as usize);
                    // SAFETY: the block was handed out, and written below.
                    let found = unsafe { slice::from_raw_parts(start, bytes as usize) };
                    prop_assert!(found.iter().all(|byte| *byte == value));
                    if is_staged { memory.p2p_free(address) } else { memory.device_free(address) }.unwrap();
                    continue;
                }
            };
            let Ok(address) = made else { continue };
            // SAFETY: the block was handed out.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(address as usize).write_bytes(value, bytes as usize) };
            live.push((address, bytes, value, what == 2));
        }
        let taken = |staged| -> u64 {
            let blocks = live.iter().filter(|(.., is_staged)| *is_staged == staged);
            blocks.map(|(_, bytes, ..)| bytes.next_multiple_of(BLOCK)).sum()
        };
        prop_assert_eq!(memory.device_occupancy_size(), POOL - taken(false));
        prop_assert_eq!(memory.p2p_occupancy_size(), 64 * KIB - taken(true));
    }
}
