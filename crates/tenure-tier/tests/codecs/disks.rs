//! Tests of codecs on the way to disks and back: encoded sizes and decoded bytes are those of the codecs alone.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tenure_core::DType;
use tenure_device::memory::{DeviceMemory, MemoryConfig};
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_tier::codec::{self, Choice, Codec, Coding, Encoded};
use tenure_tier::{Destination, Disk, DiskOptions, MovableBytes, Mover, MoverOptions, Urgency};

use crate::tensor;

const MIB: usize = 1 << 20;

fn disk() -> (tempfile::TempDir, Disk) {
    let folder = tempfile::tempdir().unwrap();
    let options = DiskOptions { staging_bytes: 3 * MIB, ..DiskOptions::new(64 << 20) };
    let disk = Disk::open(&[PathBuf::from(folder.path())], options).unwrap();
    (folder, disk)
}

fn by(choice: Choice, dtype: DType) -> Coding {
    Coding { choice, dtype, is_beside: true }
}

fn through(disk: &Disk, raw: &[u8], coding: Coding) -> (Vec<u8>, Encoded) {
    let spilled = disk.write_encoded("a", raw.to_vec(), coding).unwrap().wait().unwrap();
    (disk.read(&spilled, vec![0x55; raw.len()]).unwrap().wait().unwrap(), spilled.encoded())
}

/// Returns a tensor with parts of several kinds, one after the other.
fn mixed(dtype: DType, parts: &[(usize, usize)], seed: u64) -> Vec<u8> {
    parts.iter().flat_map(|(kind, count)| tensor(dtype, *kind, *count, seed)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn lossless_tensors_come_back_bit_for_bit(
        dtype in prop::sample::select(&[DType::U8, DType::BF16, DType::F32, DType::F64][..]),
        choice in prop::sample::select(&["auto", "zeros", "planes", "none"][..]),
        parts in prop::collection::vec((0_usize..6, 0_usize..300_000), 1..4),
        cut in 0_usize..4, seed: u64,
    ) {
        let (_folder, disk) = disk();
        let mut raw = mixed(dtype, &parts, seed);
        // This leaves a partial element, as in the bytes of a storage with other views.
        raw.truncate(raw.len().saturating_sub(cut));
        let (back, encoded) = through(&disk, &raw, by(choice.parse().unwrap(), dtype));
        prop_assert!(back == raw);
        prop_assert!(encoded.raw_bytes == raw.len() && encoded.bytes <= raw.len());
    }

    #[test]
    fn only_lossy_codecs_change_a_tensor(
        lossy in prop::sample::select(&[Codec::Fp16, Codec::CsrFp16][..]),
        dtype in prop::sample::select(&[DType::BF16, DType::F32][..]),
        kind in 0_usize..6, count in 1_usize..600_000, seed: u64,
    ) {
        let (_folder, disk) = disk();
        let raw = tensor(dtype, kind, count, seed);
        let (back, encoded) = through(&disk, &raw, by(Choice::Codec(lossy), dtype));
        prop_assert_eq!(back == raw, encoded.codec == Codec::None || by_itself(lossy, dtype, &raw) == raw);
        if encoded.codec == lossy && raw.len() <= MIB {
            prop_assert!(back == by_itself(lossy, dtype, &raw));
        }
        prop_assert!(dtype == DType::F32 || encoded.codec == Codec::None);
    }
}

fn by_itself(codec: Codec, dtype: DType, raw: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut back = vec![0; raw.len()];
    codec::encode(codec, dtype, raw, &mut stream);
    codec::decode(&stream, &mut back).unwrap();
    back
}

#[test]
fn fewer_bytes_pass_and_are_counted() {
    // Half of a normal distribution is below 0.
    let normal = tensor(DType::BF16, 2, 4 * MIB, 1);
    let half = tensor(DType::BF16, 3, 4 * MIB, 1);
    // While no speeds are known, the codec with the smallest result encodes the first pieces.
    let first = half[..2 * MIB].to_vec();
    for (choice, raw, at_most) in
        [("none", &half, 1.0), ("zeros", &half, 0.58), ("planes", &normal, 0.8), ("auto", &first, 0.58)]
    {
        let (_folder, disk) = disk();
        let before = disk.statistics();
        let (back, encoded) = through(&disk, raw, by(choice.parse().unwrap(), DType::BF16));
        assert!(back == *raw);
        let after = disk.statistics();
        let written = after.written_bytes - before.written_bytes;
        let read = after.read_bytes - before.read_bytes;
        assert_eq!((written, after.raw_bytes - before.raw_bytes), (read, raw.len() as u64));
        assert!((encoded.bytes as u64..encoded.bytes as u64 + 8 * 4096).contains(&written), "{written} {encoded:?}");
        assert!(encoded.bytes as f64 <= at_most * raw.len() as f64, "{choice}: {encoded:?}");
        assert_eq!(encoded.codec, choice.parse().unwrap_or(Codec::Zeros));
        assert_eq!(after.free_bytes, disk.capacity_bytes());
    }
}

#[test]
fn a_mover_encodes_what_goes_to_disk_of_a_device_and_of_the_host() {
    let raw = tensor(DType::F32, 3, MIB, 2);
    let coding = by(Choice::Codec(Codec::Zeros), DType::F32);
    let driver = Arc::new(SimDriver::new(SimConfig::default()));
    let memory: &'static DeviceMemory =
        Box::leak(Box::new(DeviceMemory::new(driver, MemoryConfig::default()).unwrap()));
    for memory in [None, Some(memory)] {
        let (_folder, disk) = disk();
        let mover =
            Mover::new(memory, MoverOptions { disk: Some(disk.clone()), ..MoverOptions::new(16 << 20) }).unwrap();
        let place = |bytes: Vec<u8>| match memory {
            None => {
                let bytes = Arc::new(Mutex::new(bytes));
                let (start, count) = {
                    let mut bytes = bytes.lock().unwrap();
                    (bytes.as_mut_ptr(), bytes.len())
                };
                // SAFETY: the test reads the bytes only after they have arrived.
                (unsafe { MovableBytes::new(start, count, None, Arc::clone(&bytes)) }, Ok(bytes))
            }
            Some(memory) => {
                let storage = tenure_core::Storage::new(bytes.len(), Arc::new(memory)).unwrap();
                let start = storage.lock().as_ptr().addr() as u64;
                memory.driver().copy_to_device(start, &bytes, memory.streams().null().id()).unwrap();
                // SAFETY: as above.
                (unsafe { MovableBytes::of(&storage, Some(&memory.streams().null())) }, Err(storage))
            }
        };
        let stored = mover.store_encoded("a", place(raw.clone()).0, Destination::Disk, coding).unwrap();
        stored.wait().unwrap();
        let encoded = stored.encoded();
        assert_eq!((encoded.codec, encoded.raw_bytes), (Codec::Zeros, raw.len()));
        assert!(encoded.bytes * 10 < raw.len() * 6, "{encoded:?}");
        assert!(disk.statistics().written_bytes * 10 < raw.len() as u64 * 6);
        let (target, kept) = place(vec![0; raw.len()]);
        mover.fetch(&stored, target, Urgency::Now).unwrap().wait().unwrap();
        let back = match kept {
            Ok(bytes) => bytes.lock().unwrap().clone(),
            Err(storage) => {
                let mut back = vec![0; raw.len()];
                let start = storage.lock().as_ptr().addr() as u64;
                let driver = memory.unwrap().driver();
                driver.copy_from_device(&mut back, start, memory.unwrap().streams().null().id()).unwrap();
                back
            }
        };
        assert!(back == raw);
    }
}
