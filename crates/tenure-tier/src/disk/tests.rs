//! Tests of disk tiers, with engines that work, fail, or hold requests back.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use tempfile::TempDir;

use super::engine::Request;
use super::*;

/// An engine that fails one request of one direction, and then goes on or stops.
struct Faulty {
    engine: ThreadEngine,
    direction: Direction,
    left: AtomicUsize,
    ends: bool,
}

impl Engine for Faulty {
    fn begin(&self, request: Request) -> Result<(), Box<Request>> {
        if request.direction != self.direction || self.left.fetch_sub(1, Ordering::Relaxed) != 0 {
            return if self.ends && self.left.load(Ordering::Relaxed) > usize::MAX / 2 {
                Err(Box::new(request))
            } else {
                self.engine.begin(request)
            };
        }
        thread::spawn(move || request.end(Err(io::Error::from_raw_os_error(libc::EIO))));
        Ok(())
    }

    fn name(&self) -> &'static str {
        "faults"
    }
}

/// An engine that holds back requests of a direction while its gate is closed.
struct Gated {
    engine: ThreadEngine,
    gate: Arc<Gate>,
}

/// The requests of each direction held back by a closed gate: reads first, then writes.
#[derive(Default)]
pub(crate) struct Gate {
    closed: Mutex<[Option<Vec<Request>>; 2]>,
}

impl Gate {
    /// Holds back requests of that direction from now on.
    pub(crate) fn close(&self, direction: Direction) {
        self.closed.lock()[direction as usize].get_or_insert_default();
    }

    /// Carries out the requests held back, and lets later ones pass.
    pub(crate) fn open(&self, direction: Direction) {
        let waiting = self.closed.lock()[direction as usize].take();
        waiting.into_iter().flatten().for_each(engine::carry_out);
    }
}

impl Engine for Gated {
    fn begin(&self, request: Request) -> Result<(), Box<Request>> {
        if let Some(waiting) = &mut self.gate.closed.lock()[request.direction as usize] {
            waiting.push(request);
            return Ok(());
        }
        self.engine.begin(request)
    }

    fn name(&self) -> &'static str {
        "a gate"
    }
}

/// A disk with a gate that can be closed.
pub(crate) fn gated(paths: &[PathBuf], capacity: u64) -> (Disk, Arc<Gate>) {
    let gate = Arc::<Gate>::default();
    let disk = Disk::with_engine(paths, options(capacity), |_, _| {
        let engine = ThreadEngine::start(2)?;
        let gate = Arc::clone(&gate);
        Ok(Box::new(Gated { engine, gate }) as Box<dyn Engine>)
    });
    (disk.unwrap(), gate)
}

pub(crate) fn folders(count: usize) -> (Vec<TempDir>, Vec<PathBuf>) {
    let folders: Vec<TempDir> = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
    let paths = folders.iter().map(|folder| folder.path().to_owned()).collect();
    (folders, paths)
}

fn options(capacity: u64) -> DiskOptions {
    DiskOptions { staging_bytes: 3 * CHUNK, ..DiskOptions::new(capacity) }
}

fn with_threads(paths: &[PathBuf], capacity: u64) -> Disk {
    Disk::with_engine(paths, options(capacity), |_, _| Ok(Box::new(ThreadEngine::start(3)?))).unwrap()
}

/// A disk that fails the request with that number, counted from 0.
pub(crate) fn faulty(paths: &[PathBuf], direction: Direction, number: usize, ends: bool) -> Disk {
    Disk::with_engine(paths, options(64 << 20), |_, _| {
        let engine = ThreadEngine::start(2)?;
        let left = AtomicUsize::new(number);
        Ok(Box::new(Faulty { engine, direction, left, ends }) as Box<dyn Engine>)
    })
    .unwrap()
}

pub(crate) fn some_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

fn write(disk: &Disk, name: &str, bytes: &[u8]) -> Result<Spilled, DiskError> {
    disk.write(name, bytes.to_vec())?.wait()
}

fn read(disk: &Disk, spilled: &Spilled) -> Result<Vec<u8>, DiskError> {
    disk.read(spilled, vec![0; spilled.bytes() as usize])?.wait()
}

#[test]
fn bytes_of_any_size_are_written_and_read_back() {
    let (_folders, paths) = folders(2);
    for disk in [Disk::open(&paths, options(32 << 20)).unwrap(), with_threads(&paths, 32 << 20)] {
        println!("{}", disk.description());
        for length in [0, 1, DISK_BLOCK - 1, DISK_BLOCK, CHUNK - 1, CHUNK, CHUNK + 1, 7 * CHUNK + 5] {
            let bytes = some_bytes(length as u64, length);
            let spilled = write(&disk, "a", &bytes).unwrap();
            assert_eq!((spilled.name(), spilled.bytes()), ("a", length as u64));
            assert!(read(&disk, &spilled).unwrap() == bytes, "{length}");
            assert!(read(&disk, &spilled).unwrap() == bytes, "{length}, again");
        }
        assert_eq!(disk.statistics().free_bytes, disk.capacity_bytes());
    }
}

#[test]
fn overlapping_requests_count_as_moved_together() {
    use Direction::{In, Out};
    let mut state = DiskState::new(Vec::new());
    state.begin_request(Out);
    state.end_request(Out, 1);
    state.begin_request(Out);
    state.begin_request(In);
    state.begin_request(In);
    state.end_request(In, 2);
    state.end_request(In, 4);
    state.end_request(Out, 8);
    assert_eq!(state.moved_together().0, 6);
    assert_eq!(state.moved().map(|(bytes, _)| bytes), [6, 9]);
}

#[test]
fn more_goes_out_at_once_than_there_is_memory_to_pass_through() {
    let (_folders, paths) = folders(1);
    let disk = Disk::open(&paths, options(64 << 20)).unwrap();
    let all: Vec<Vec<u8>> = (0..10).map(|seed| some_bytes(seed, 4 * CHUNK + 17)).collect();
    let writing: Vec<_> = all.iter().map(|bytes| disk.write("a", bytes.clone()).unwrap()).collect();
    let spilled: Vec<Spilled> = writing.into_iter().map(|ticket| ticket.wait().unwrap()).collect();
    let reading: Vec<_> = spilled.iter().map(|spilled| disk.read(spilled, vec![0; 4 * CHUNK + 17]).unwrap()).collect();
    let back: Vec<Vec<u8>> = reading.into_iter().map(|ticket| ticket.wait().unwrap()).collect();
    assert!(back == all);
    let DiskStatistics { written_bytes, read_bytes, writing, reading, .. } = disk.statistics();
    assert_eq!((written_bytes, read_bytes), (10 * ((4 << 20) + 4096), 10 * ((4 << 20) + 4096)));
    assert!(!writing.is_zero() && !reading.is_zero());
}

#[test]
fn tickets_and_tensors_may_be_dropped_at_any_time() {
    let (_folders, paths) = folders(1);
    let disk = Disk::open(&paths, options(8 << 20)).unwrap();
    drop(disk.write("a", some_bytes(1, 2 * CHUNK)).unwrap());
    let spilled = write(&disk, "b", &some_bytes(2, 2 * CHUNK)).unwrap();
    let reading = disk.read(&spilled, vec![0; 2 * CHUNK]).unwrap();
    // The room is not reused while it is read.
    drop((spilled, disk));
    assert!(reading.wait().unwrap() == some_bytes(2, 2 * CHUNK));
}

#[test]
fn nothing_is_left_in_the_folder_which_may_be_removed_meanwhile() {
    let (folder, paths) = folders(1);
    let disk = Disk::open(&paths, options(8 << 20)).unwrap();
    let spilled = write(&disk, "a", &[7; 100]).unwrap();
    assert_eq!(fs::read_dir(&paths[0]).unwrap().count(), 0);
    drop(folder);
    assert!(!paths[0].exists());
    assert_eq!(read(&disk, &spilled).unwrap(), [7; 100]);
}

#[test]
fn a_changed_bit_is_an_error_that_names_the_tensor_and_the_folder() {
    let (_folders, paths) = folders(1);
    let disk = with_threads(&paths, 8 << 20);
    let spilled = write(&disk, "layer.1/out#0", &some_bytes(3, 2 * CHUNK)).unwrap();
    let SpilledPiece { offset, .. } = spilled.inner.pieces[1];
    let file = &disk.inner.shared.files[0];
    let mut block = StagingMemory::chunks(1).unwrap().remove(0);
    file.file.read_exact_at(&mut block.bytes_mut()[..DISK_BLOCK], offset).unwrap();
    block.bytes_mut()[77] ^= 4;
    file.file.write_all_at(&block.bytes()[..DISK_BLOCK], offset).unwrap();
    let error = read(&disk, &spilled).unwrap_err();
    assert!(matches!(error, DiskError::Changed { .. }));
    let said = error.to_string();
    assert!(said.starts_with("layer.1/out#0: ") && said.contains(paths[0].to_str().unwrap()), "{said}");
}

#[test]
fn a_changed_bit_of_what_was_encoded_is_an_error_too() {
    let (_folders, paths) = folders(1);
    let disk = with_threads(&paths, 8 << 20);
    let coding = Coding { choice: Choice::Codec(Codec::Zeros), dtype: DType::F32, is_beside: false };
    let raw: Vec<u8> = (0..CHUNK as u32 / 2).flat_map(|i| (i % 2 * i).to_le_bytes()).collect();
    let spilled = disk.write_encoded("layer.1/out#0", raw, coding).unwrap().wait().unwrap();
    assert_eq!(spilled.encoded().codec, Codec::Zeros);
    let offset = spilled.inner.pieces[1].offset;
    let file = &disk.inner.shared.files[0];
    let mut block = StagingMemory::chunks(1).unwrap().remove(0);
    for place in [2, 77, 2000] {
        file.file.read_exact_at(&mut block.bytes_mut()[..DISK_BLOCK], offset).unwrap();
        block.bytes_mut()[place] ^= 4;
        file.file.write_all_at(&block.bytes()[..DISK_BLOCK], offset).unwrap();
        assert!(matches!(read(&disk, &spilled).unwrap_err(), DiskError::Changed { .. }));
    }
}

#[test]
fn a_file_that_was_cut_is_an_error() {
    let (_folders, paths) = folders(1);
    for disk in [Disk::open(&paths, options(8 << 20)).unwrap(), with_threads(&paths, 8 << 20)] {
        let spilled = write(&disk, "a", &some_bytes(3, 2 * CHUNK)).unwrap();
        disk.inner.shared.files[0].file.set_len(CHUNK as u64 + DISK_BLOCK as u64 + 100).unwrap();
        let error = read(&disk, &spilled).unwrap_err();
        assert!(
            matches!(&error, DiskError::Io { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof),
            "{error}"
        );
    }
}

#[test]
fn a_disk_that_fails_once_is_an_error_of_what_it_failed_for() {
    let (_folders, paths) = folders(1);
    for direction in [Direction::Out, Direction::In] {
        let disk = faulty(&paths, direction, 2, false);
        let bytes = some_bytes(1, 4 * CHUNK);
        let written = write(&disk, "first", &bytes);
        let failed = match direction {
            Direction::Out => written.unwrap_err(),
            Direction::In => read(&disk, &written.unwrap()).unwrap_err(),
        };
        let DiskError::Io { name, source, .. } = &failed else { panic!("{failed}") };
        assert_eq!((&**name, source.raw_os_error()), ("first", Some(libc::EIO)));
        let second = write(&disk, "second", &bytes).unwrap();
        assert!(read(&disk, &second).unwrap() == bytes);
        drop(second);
        assert_eq!(disk.statistics().free_bytes, disk.capacity_bytes());
    }
}

#[test]
fn a_ticket_calls_its_function_once_with_the_result() {
    let (_folders, paths) = folders(1);
    for fails in [false, true] {
        let disk = faulty(&paths, Direction::Out, if fails { 1 } else { 100 }, false);
        for is_over in [false, true] {
            let ticket = disk.write("a", some_bytes(1, 3 * CHUNK)).unwrap();
            while is_over && !ticket.is_over() {
                thread::yield_now();
            }
            let (told, hear) = std::sync::mpsc::channel();
            ticket.then(move |result| told.send(result.map(|spilled| spilled.bytes())).unwrap());
            let heard: Vec<_> = hear.iter().collect();
            assert!(heard.len() == 1 && heard[0].is_err() == (fails && !is_over), "{heard:?}");
        }
    }
}

#[test]
fn no_transfer_waits_for_an_engine_that_has_ended() {
    let (_folders, paths) = folders(1);
    for direction in [Direction::Out, Direction::In] {
        let disk = faulty(&paths, direction, 2, true);
        let written: Vec<_> = (0..4).map(|seed| disk.write("a", some_bytes(seed, 2 * CHUNK)).unwrap()).collect();
        let written: Vec<_> = written.into_iter().map(Ticket::wait).collect();
        let read: Vec<_> = written.iter().flatten().map(|spilled| read(&disk, spilled)).collect();
        assert!(written.iter().any(Result::is_err) || read.iter().any(Result::is_err));
        assert!(disk.write("b", vec![1]).unwrap().wait().is_err());
    }
}

#[test]
fn a_full_tier_says_how_full_and_has_room_again() {
    let (_folders, paths) = folders(2);
    let disk = Disk::open(&paths, options(4 << 20)).unwrap();
    let spilled = write(&disk, "a", &[1; 3 * CHUNK]).unwrap();
    let said = disk.write("b", vec![1; CHUNK + 1]).unwrap_err().to_string();
    let folders = format!("{}, {}", paths[0].display(), paths[1].display());
    let free = "1048576 of 4194304 are free; give the tier more";
    assert_eq!(said, format!("b: 1052672 bytes do not fit on disk in {folders}: {free}"));
    assert_eq!(disk.statistics().free_bytes, 1 << 20, "a refusal takes nothing");
    drop(spilled);
    write(&disk, "b", &[1; 4 * CHUNK]).unwrap();
}

#[test]
fn more_than_the_folder_has_is_refused_at_the_start() {
    let (_folders, paths) = folders(1);
    let error = Disk::open(&paths, DiskOptions::new(1 << 60)).unwrap_err();
    assert!(matches!(error, TierError::NoRoom { capacity: 0x1000_0000_0000_0000, .. }), "{error}");
    assert!(Disk::open(&[paths[0].join("missing")], DiskOptions::new(1 << 20)).is_err());
    assert!(Disk::open(&[], DiskOptions::new(1 << 20)).is_err());
    assert!(Disk::open(&paths, DiskOptions::new(4095)).is_err());
}

#[test]
fn no_more_is_written_in_a_day_than_is_allowed() {
    let (_folders, paths) = folders(1);
    let disk = Disk::open(&paths, DiskOptions { daily_bytes: Some(3 << 20), ..options(8 << 20) }).unwrap();
    drop(write(&disk, "a", &[1; 2 * CHUNK]).unwrap());
    let said = disk.write("b", vec![1; 2 * CHUNK]).unwrap_err().to_string();
    assert_eq!(said, "b: 3145728 bytes may be written in a day, and this would be more: allow more, or wait");
    write(&disk, "c", &[1; CHUNK]).unwrap();
    assert_eq!(disk.statistics().today_bytes, 3 << 20);
}

#[test]
fn a_buffer_of_another_size_is_refused() {
    let (_folders, paths) = folders(1);
    let disk = Disk::open(&paths, options(8 << 20)).unwrap();
    let spilled = write(&disk, "a", &[1; 10]).unwrap();
    assert_eq!(disk.read(&spilled, vec![0; 9]).unwrap_err().to_string(), "a: it has 10 bytes, and is read into 9");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// After any order of writes, reads and drops, everything comes back unchanged and all room becomes free again.
    #[test]
    fn everything_comes_back(
        steps in prop::collection::vec((0_u8..4, 0_usize..5 * CHUNK / 2, any::<u64>()), 1..40), count in 1_usize..4,
    ) {
        let (_folders, paths) = folders(count);
        let disk = Disk::open(&paths, options(12 << 20)).unwrap();
        let mut kept: Vec<(Spilled, u64)> = Vec::new();
        for (what, length, seed) in steps {
            match what {
                0 | 1 => match write(&disk, "a", &some_bytes(seed, length)) {
                    Ok(spilled) => kept.push((spilled, seed)),
                    Err(error) => prop_assert!(matches!(error, DiskError::Full { .. }), "{error}"),
                },
                _ if kept.is_empty() => {}
                2 => {
                    let (spilled, seed) = &kept[seed as usize % kept.len()];
                    prop_assert!(read(&disk, spilled).unwrap() == some_bytes(*seed, spilled.bytes() as usize));
                }
                _ => drop(kept.swap_remove(seed as usize % kept.len())),
            }
            let held: u64 = kept.iter().map(|(spilled, _)| spilled.bytes().next_multiple_of(DISK_BLOCK as u64)).sum();
            prop_assert_eq!(disk.statistics().free_bytes, disk.capacity_bytes() - held);
        }
    }
}

#[test]
fn folders_on_one_file_system_share_what_is_free() {
    let (_folders, paths) = folders(3);
    let one = Disk::free_bytes_in(&paths[..1]).unwrap();
    let all = Disk::free_bytes_in(&paths).unwrap();
    // Other processes write meanwhile.
    assert!(all > 0 && all < one + one / 2, "{all} in three, {one} in one");
    assert!(Disk::free_bytes_in(&["/does/not/exist".into()]).is_err());
}

#[test]
fn a_folder_in_memory_is_told_from_one_on_a_disk() {
    assert!(!Disk::is_in_memory(Path::new("/proc")) && !Disk::is_in_memory(Path::new("/does/not/exist")));
    let shared = Path::new("/dev/shm");
    if shared.is_dir() {
        assert!(Disk::is_in_memory(shared));
    }
}

/// A process that measures its memory besides tensors must not see how many chunks a disk has used.
#[test]
fn staging_memory_is_resident_from_the_start() {
    const COUNT: usize = 32;
    let chunks = StagingMemory::chunks(COUNT).unwrap();
    let address = chunks[0].as_ptr().addr();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|line| {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let bound = |text| usize::from_str_radix(text, 16).ok();
        !range.and_then(|(start, end)| Some(bound(start)?..bound(end)?)).is_some_and(|range| range.contains(&address))
    });
    let resident = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let kib: usize = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib << 10 >= COUNT * CHUNK, "{kib} KiB are resident");
}
