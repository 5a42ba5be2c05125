//! Tests of tiers: their media, what they refuse, and their blocks.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tenure_core::{Allocator, DataPtr, KeyId, Purpose, Tag};
use tenure_tier::{Medium, Nature, Tier, TierError};

const MIB: u64 = 1 << 20;

/// Returns the error of a tier that cannot be opened.
fn refusal(medium: Medium, capacity: Option<u64>) -> TierError {
    let error = Tier::open("slow", &medium, capacity).err().expect("refused");
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
    error
}

fn in_folder(folder: &Path) -> Medium {
    Medium::Path(folder.into())
}

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_file_in_a_folder_has_no_name_and_says_that_it_is_emulated() {
    let folder = tempfile::tempdir().unwrap();
    let tier = Tier::open("slow", &in_folder(folder.path()), Some(MIB)).unwrap();
    assert_eq!(files(folder.path()), 0);
    // Tests may run on a file system of persistent memory.
    let is_dax = *tier.nature() == Nature::DaxFile;
    assert!(is_dax || tier.nature().is_emulated() && tier.nature().to_string().contains("EMULATED"));
}

#[test]
fn a_file_of_a_name_appears_whole_stays_and_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tier");
    let tier = Tier::open("slow", &Medium::Path(path.clone()), Some(MIB)).unwrap();
    let block = tier.allocate(5).unwrap();
    // SAFETY: the block has five bytes, and nothing else uses it.
    unsafe { block.as_ptr().cast::<[u8; 5]>().write(*b"bytes") };
    drop((block, tier));
    let content = fs::read(&path).unwrap();
    assert_eq!((content.len() as u64, &content[..5]), (MIB, &b"bytes"[..]));
    assert!(matches!(refusal(Medium::Path(path), Some(MIB)), TierError::Exists { .. }));
}

#[test]
fn a_file_that_was_made_is_gone_when_its_tier_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tier");
    let open = || Tier::open("slow", &Medium::Path(path.clone()), Some(MIB)).unwrap();
    open().discard();
    assert_eq!(files(folder.path()), 0);
    // Another file that has the name by now is not removed.
    let tier = open();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another's").unwrap();
    tier.discard();
    assert_eq!(fs::read(&path).unwrap(), b"another's");
}

#[test]
fn pages_of_what_is_free_are_given_back() {
    let tier = Tier::open("fast", &Medium::Dram, Some(4 * MIB)).unwrap();
    let blocks: Vec<DataPtr> = (0..3).map(|_| tier.allocate(MIB as usize).unwrap()).collect();
    for block in &blocks {
        // SAFETY: the block has at least these bytes.
        unsafe { block.as_ptr().write_bytes(7, MIB as usize) };
    }
    let [_first, second, third] = <[DataPtr; 3]>::try_from(blocks).ok().unwrap();
    let start = second.as_ptr();
    let kept = third.as_ptr();
    drop(second);
    tier.release_cached().unwrap();
    let mut pages = vec![1_u8; 2 * (MIB as usize / 4096)];
    // SAFETY: this asks which pages of the second and third block are resident, and `pages` has room for each answer.
    assert_eq!(unsafe { libc::mincore(start.cast(), 2 * MIB as usize, pages.as_mut_ptr()) }, 0);
    let (second, third) = pages.split_at(pages.len() / 2);
    assert!(second.iter().all(|page| page & 1 == 0) && third.iter().all(|page| page & 1 == 1));
    // SAFETY: the block is in use.
    assert_eq!(unsafe { kept.read() }, 7);
}

#[test]
fn the_room_of_a_file_is_taken_when_it_is_opened() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tier");
    let _tier = Tier::open("slow", &Medium::Path(path.clone()), Some(MIB)).unwrap();
    assert!(fs::metadata(path).unwrap().blocks() * 512 >= MIB);
}

#[test]
fn a_file_system_without_room_is_an_error_at_once_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let error = refusal(in_folder(folder.path()), Some(1 << 60));
    assert!(matches!(error, TierError::NoRoom { capacity: 0x1000_0000_0000_0000, .. }), "{error}");
    refusal(Medium::Path(folder.path().join("tier")), Some(1 << 60));
    assert_eq!(files(folder.path()), 0);
}

#[test]
fn a_medium_that_is_not_memory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(refusal(in_folder(folder.path()), None), TierError::NoCapacity { .. }));
    assert!(matches!(refusal(in_folder(folder.path()), Some(100)), TierError::TooSmall { capacity: 100, .. }));
    assert!(matches!(refusal(Medium::Path("/dev/null".into()), Some(MIB)), TierError::NotMemory { .. }));
    let missing = Medium::Path(folder.path().join("none/tier"));
    assert!(matches!(refusal(missing, Some(MIB)), TierError::System { call: "create", .. }));
    assert!(matches!(refusal(Medium::Node(u32::MAX), Some(MIB)), TierError::NoNode { node: u32::MAX, .. }));
}

#[test]
fn memory_of_a_node_is_on_the_node() {
    match Tier::open("near", &Medium::Node(0), Some(MIB)) {
        Ok(tier) => assert_eq!(tier.nature(), &Nature::Node(0)),
        // A container may have no nodes, or may not allow binding memory.
        Err(error @ (TierError::NoNode { .. } | TierError::System { .. })) => eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn freed_blocks_are_used_again_and_a_full_tier_names_itself() {
    let tier = Tier::open("small", &Medium::Dram, Some(MIB)).unwrap();
    let first = tier.allocate(600 << 10).unwrap();
    let error = tier.allocate(600 << 10).unwrap_err().to_string();
    assert!(error.starts_with("tier \"small\" (DRAM) is full: asked for 614400 bytes, 434176 of 1048576"), "{error}");
    let address = first.as_ptr();
    drop(first);
    assert_eq!(tier.allocate(600 << 10).unwrap().as_ptr(), address);
    assert!(tier.allocate(MIB as usize).is_ok(), "all is free again");
    assert!(tier.allocate(0).unwrap().is_null());
}

#[test]
fn a_block_keeps_its_tier() {
    let tier = Tier::open("gone", &Medium::Dram, Some(MIB)).unwrap();
    let block = tier.allocate(8).unwrap();
    drop(tier);
    // SAFETY: the block has eight bytes, and nothing else uses it.
    unsafe { block.as_ptr().cast::<u64>().write(7) };
}

#[test]
fn statistics_are_by_tag() {
    let tier = Tier::open("fast", &Medium::Dram, Some(MIB)).unwrap();
    let purpose = Purpose::enter(Tag::Weight, KeyId::NONE);
    let weight = tier.allocate(1000).unwrap();
    drop(purpose);
    let statistics = tier.statistics().tags[Tag::Weight as usize];
    assert_eq!((statistics.requested_bytes.current, statistics.allocated_bytes.current), (1000, 1024));
    drop(weight);
    assert_eq!(tier.statistics().tags[Tag::Weight as usize].allocated_bytes.current, 0);
}

proptest! {
    #[test]
    fn blocks_are_apart_inside_the_tier_and_keep_what_is_written(
        steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), 1_usize..100_000), 1..80),
    ) {
        let tier = Tier::open("any", &Medium::Dram, Some(MIB)).unwrap();
        let mut live: Vec<(DataPtr, usize, u8)> = Vec::new();
        let is_as_written = |(block, bytes, written): &(DataPtr, usize, u8)| {
            // SAFETY: the block has at least these bytes, and they were written.
            let content = unsafe { std::slice::from_raw_parts(block.as_ptr(), *bytes) };
            content.iter().all(|byte| byte == written)
        };
        for (number, (frees, which, bytes)) in steps.into_iter().enumerate() {
            if frees && !live.is_empty() {
                prop_assert!(is_as_written(&live.swap_remove(which.index(live.len()))));
            } else if let Ok(block) = tier.allocate(bytes) {
                let start = block.as_ptr().addr() as u64;
                prop_assert!(start.is_multiple_of(64) && tier.addresses().start <= start);
                prop_assert!(start + bytes as u64 <= tier.addresses().end);
                // SAFETY: the block has at least these bytes.
                unsafe { block.as_ptr().write_bytes(number as u8, bytes) };
                live.push((block, bytes, number as u8));
            }
            let requested: usize = live.iter().map(|(_, bytes, _)| bytes).sum();
            prop_assert_eq!(tier.statistics().all.requested_bytes.current, requested as u64);
        }
        prop_assert!(live.iter().all(is_as_written));
        live.clear();
        prop_assert!(tier.allocate(MIB as usize).is_ok());
    }

    #[test]
    fn any_text_is_a_medium_or_an_error_in_one_line(text in "(dram|numa:|/a)?[^\n]{0,12}(@[0-9]{0,30}[KMGT]?(iB)?)?") {
        if let Err(error) = Medium::with_capacity(&text) {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}
