//! Models that several processes compute with: on the simulated driver, and with `TENURE_TEST_DRIVER=cuda` on a real
//! device.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::env;
use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tenure_core::StreamId;
use tenure_device::memory::{self, DeviceMemory, MemoryConfig};
use tenure_device::sim::{Failure, SimConfig, SimDriver};
use tenure_device::{Call, ErrorKind, Executor};
use tenure_switch::{Entry, Images, Lent, Manifest, Model, Origin, Standby, Switch, SwitchError, SwitchOptions, Terms};

type Memory = &'static DeviceMemory;

/// The granularity of simulated devices, in bytes.
const GRANULE: u64 = 64 << 10;

/// The environment variable of a child process of this program: it says how the child ends.
const ROLE: &str = "TENURE_STANDBY_ROLE";

fn is_cuda() -> bool {
    env::var("TENURE_TEST_DRIVER").is_ok_and(|driver| driver == "cuda")
}

/// Lets one test run at a time: a process that starts holds all descriptors for a moment, and some tests check the
/// memory in use.
fn alone() -> (MutexGuard<'static, ()>, Option<File>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock();
    let others = is_cuda().then(|| File::create(env::temp_dir().join("tenure-cuda-tests.lock")).unwrap());
    others.iter().for_each(|file| file.lock().unwrap());
    (alone, others)
}

fn simulated() -> (Arc<SimDriver>, Memory) {
    let config = SimConfig { granularity_bytes: GRANULE, capacity_bytes: 1 << 30, ..SimConfig::default() };
    let driver = Arc::new(SimDriver::new(config));
    let memory = DeviceMemory::new(Arc::clone(&driver) as _, MemoryConfig::default()).unwrap();
    (driver, Box::leak(Box::new(memory)))
}

/// Returns the device under test, and a chunk size that is no small part of the memory in use.
fn tested() -> (Memory, u64) {
    if is_cuda() { (memory::device(0).unwrap(), 32 << 20) } else { (simulated().1, GRANULE) }
}

fn free_bytes(memory: Memory) -> u64 {
    memory.driver().memory_info().unwrap().free
}

/// Returns whether as much is free as before, but for the little that the driver of a real device keeps for itself.
fn is_as_free(memory: Memory, before: u64) -> bool {
    free_bytes(memory) + if is_cuda() { 16 << 20 } else { 0 } >= before
}

/// Fills bytes with a pattern that depends on their place.
fn pattern(seed: u8, bytes: &mut [u8]) {
    bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = seed.wrapping_add((index % 251) as u8));
}

/// Returns a model of three groups, with a little more than three chunks.
fn manifest(chunk: u64, names: [&str; 4]) -> Arc<Manifest> {
    let sizes = [1, chunk + 17, 0, 2 * chunk + 300];
    Arc::new(
        Manifest::new(
            "lent",
            names
                .into_iter()
                .zip(sizes)
                .map(|(name, bytes)| {
                    let origin = Origin::Made(Arc::new(move |target: &mut [u8]| pattern(bytes as u8, target)));
                    Entry { name: name.into(), bytes, origin }
                })
                .collect(),
            vec![1, 2, 4],
        )
        .unwrap(),
    )
}

fn lent_manifest(chunk: u64) -> Arc<Manifest> {
    manifest(chunk, ["a", "b", "c", "d"])
}

/// A model in a memory of six chunks, on its way to the device.
struct Owner {
    images: Images,
    switch: Switch,
    model: Arc<Model>,
}

impl Owner {
    fn new(memory: Memory, chunk: u64) -> Self {
        let images = Images::new(20 * chunk, Some(Arc::clone(memory.driver()))).unwrap();
        let options = SwitchOptions { chunk_bytes: chunk, ..SwitchOptions::new(6 * chunk) };
        let switch = Switch::new(memory, options).unwrap();
        let model = Arc::new(switch.register(&lent_manifest(chunk)).unwrap());
        model.load(&images.acquire(model.manifest()).unwrap()).unwrap();
        Self { images, switch, model }
    }
}

fn descriptors(lent: &Lent) -> Vec<OwnedFd> {
    lent.descriptors().collect::<Result<_, _>>().unwrap()
}

fn open(memory: Memory, lent: &Lent) -> Standby {
    Standby::open(memory, &lent_manifest(lent.terms().chunk_bytes), &lent.terms(), descriptors(lent)).unwrap()
}

/// Checks all bytes of a standby, as a stream of the device sees them.
fn expect_bytes(memory: Memory, standby: &Standby) {
    let stream = memory.streams().current();
    for (index, entry) in standby.manifest().entries().iter().enumerate() {
        let mut bytes = vec![0; entry.bytes as usize];
        let mut expected = vec![0; entry.bytes as usize];
        if entry.bytes > 0 {
            memory.driver().copy_from_device(&mut bytes, standby.place(index).start, stream.id()).unwrap();
        }
        pattern(entry.bytes as u8, &mut expected);
        assert!(bytes == expected, "tensor {}", entry.name);
    }
    standby.used_by(&stream).unwrap();
}

fn expect_no_fault(memory: Memory) {
    memory.driver().synchronize().unwrap();
    if let Executor::Sim(sim) = memory.driver().executor() {
        assert_eq!(sim.fault(), None);
    }
}

#[test]
fn a_lent_model_has_its_bytes_elsewhere_takes_no_memory_and_stays_until_it_is_given_back() {
    let _alone = alone();
    let (memory, chunk) = tested();
    let Owner { images, switch, model } = Owner::new(memory, chunk);
    // The copies are still under way.
    let lent = model.lend().unwrap();
    let before = free_bytes(memory);
    let standby = open(memory, &lent);
    assert!(is_as_free(memory, before));
    expect_bytes(memory, &standby);
    // It does not leave, in part or whole, and no other model has its memory.
    let room = switch.free_bytes();
    assert_eq!((model.evict(1), model.evict(usize::MAX), model.is_lent()), (0, 0, true));
    assert_eq!((model.missing_bytes(), model.resident_bytes(), switch.free_bytes()), (0, 4 * chunk, room));
    let other = switch.register(&manifest(chunk, ["e", "f", "g", "h"])).unwrap();
    let refused = other.load(&images.acquire(other.manifest()).unwrap());
    assert!(matches!(refused, Err(SwitchError::NoDeviceRoom { .. })));
    assert_eq!(model.load(&images.acquire(model.manifest()).unwrap()).unwrap().copied_bytes, 0);
    // It is lent to another process too: both must be done.
    let second = model.lend().unwrap();
    drop(standby);
    drop(lent);
    assert_eq!((model.evict(usize::MAX), model.is_lent()), (0, true));
    drop(second);
    assert_eq!((model.evict(usize::MAX), model.is_lent()), (4 * chunk, false));
    assert!(other.load(&images.acquire(other.manifest()).unwrap()).is_ok());
    expect_no_fault(memory);
}

#[test]
fn memory_that_comes_to_others_is_not_used_any_more_when_a_standby_is_gone() {
    let _alone = alone();
    let (memory, chunk) = tested();
    let Owner { images, switch, model } = Owner::new(memory, chunk);
    let other = switch.register(&manifest(chunk, ["e", "f", "g", "h"])).unwrap();
    let image = images.acquire(other.manifest()).unwrap();
    let target = memory.driver().malloc(8).unwrap();
    let streams = [(); 2].map(|()| memory.streams().pooled(tenure_device::Priority::Default).unwrap());
    let lent = model.lend().unwrap();
    let standby = open(memory, &lent);
    for (index, stream) in streams.iter().enumerate() {
        let source = standby.place(3).end - 1;
        memory.driver().copy_on_device(target + index as u64, source, 1, stream.id()).unwrap();
        standby.used_by(stream).unwrap();
    }
    // The simulated device finds work that does not wait for both.
    drop(standby);
    drop(lent);
    model.evict(usize::MAX);
    other.load(&image).unwrap();
    memory.driver().free(target).unwrap();
    expect_no_fault(memory);
}

#[test]
fn a_standbys_storages_keep_it_and_wait_for_nothing() {
    let _alone = alone();
    let (memory, chunk) = tested();
    let Owner { switch, model, .. } = Owner::new(memory, chunk);
    let before = free_bytes(memory);
    let lent = model.lend().unwrap();
    let standby = Arc::new(open(memory, &lent));
    let storage = standby.storage(1);
    let place = standby.place(1);
    assert_eq!(storage.lock().as_ptr() as u64, place.start);
    // The storage is as long as the group, with the gap before the next one.
    let group = standby.manifest().groups()[1].clone();
    assert_eq!((storage.bytes() as u64, storage.device()), (group.end - group.start, memory.device()));
    drop(standby);
    let mut byte = [0];
    memory.driver().copy_from_device(&mut byte, place.start, StreamId::NULL).unwrap();
    assert_eq!(byte, [(chunk + 17) as u8]);
    drop(storage);
    drop(lent);
    drop((model, switch));
    assert!(is_as_free(memory, before + 4 * chunk));
    expect_no_fault(memory);
}

#[test]
fn a_mapping_for_reading_cannot_be_written() {
    let _alone = alone();
    let (driver, memory) = simulated();
    let Owner { model, .. } = Owner::new(memory, GRANULE);
    let lent = model.lend().unwrap();
    let standby = open(memory, &lent);
    let written = memory.driver().memset(standby.place(3).end - 1, 0, 1, StreamId::NULL);
    assert!(written.and_then(|()| memory.driver().synchronize()).is_err());
    assert!(matches!(driver.fault().unwrap().kind, ErrorKind::ReadOnly { .. }));
}

#[test]
fn only_a_whole_model_is_lent() {
    let _alone = alone();
    let (_, memory) = simulated();
    let Owner { images, switch, model } = Owner::new(memory, GRANULE);
    model.evict(1);
    let said = model.lend().err().unwrap().to_string();
    assert!(said.contains(&format!("lent: {GRANULE} bytes of it are not on the device")), "{said}");
    assert_eq!((model.is_lent(), model.evict(1)), (false, GRANULE));
    model.load(&images.acquire(model.manifest()).unwrap()).unwrap();
    assert!(model.lend().is_ok());
    // An empty model is always whole.
    let empty = Arc::new(switch.register(&Arc::new(Manifest::new("empty", vec![], vec![]).unwrap())).unwrap());
    let lent = empty.lend().unwrap();
    let standby = Standby::open(memory, empty.manifest(), &lent.terms(), descriptors(&lent));
    assert!(standby.is_ok());
}

#[test]
fn another_model_is_refused_and_leaves_nothing() {
    let _alone = alone();
    let (_, memory) = simulated();
    let Owner { switch, model, .. } = Owner::new(memory, GRANULE);
    let before = free_bytes(memory) + 4 * GRANULE;
    let lent = model.lend().unwrap();
    let right = lent.terms();
    let known = lent_manifest(GRANULE);
    let (driver, other) = simulated();
    let reserved = || driver.calls(Some(Call::Reserve)) - driver.calls(Some(Call::Unreserve));
    let reserved_before = reserved();
    let refused = |manifest: &Arc<Manifest>, terms: Terms, descriptors: Vec<OwnedFd>| {
        Standby::open(other, manifest, &terms, descriptors).err().unwrap().to_string()
    };
    // Manifests of other bytes, another order and other groups; another device; other chunks.
    let entries = |manifest: &Manifest| manifest.entries().to_vec();
    let swapped = manifest(GRANULE, ["b", "a", "c", "d"]);
    let regrouped = Arc::new(Manifest::new("lent", entries(&known), vec![2, 3, 4]).unwrap());
    let joined = Arc::new(Manifest::new("lent", entries(&known), vec![1, 4]).unwrap());
    let longer = manifest(2 * GRANULE, ["a", "b", "c", "d"]);
    for (manifest, what) in [(swapped, "layout"), (regrouped, "layout"), (joined, "layout"), (longer, "bytes")] {
        let said = refused(&manifest, right, descriptors(&lent));
        assert!(said.contains(what), "{said}");
    }
    let elsewhere = Terms { device: [1; 16], ..right };
    assert!(refused(&known, elsewhere, descriptors(&lent)).contains("device 01010101"));
    for chunk_bytes in [0, 1, GRANULE / 2, u64::MAX] {
        let said = refused(&known, Terms { chunk_bytes, ..right }, descriptors(&lent));
        assert!(said.contains(&format!("chunks of {chunk_bytes}")), "{said}");
    }
    // The terms must have the right number and size of chunks, and no other files.
    let twice = Terms { chunk_bytes: 2 * GRANULE, ..right };
    assert!(refused(&known, twice, descriptors(&lent)).contains(&GRANULE.to_string()));
    let mut fewer = descriptors(&lent);
    fewer.pop();
    assert!(refused(&known, right, fewer).contains("chunks: 3, and here it is 4"));
    let mut more = descriptors(&lent);
    more.extend(descriptors(&lent));
    assert!(refused(&known, right, more).contains("chunks: more, and here it is 4"));
    let mut file = descriptors(&lent);
    file[2] = File::open("/dev/null").unwrap().into();
    refused(&known, right, file);
    assert_eq!(reserved(), reserved_before);
    assert_eq!(driver.calls(Some(Call::SetAccess)), 0);
    drop(lent);
    drop((model, switch));
    assert_eq!(free_bytes(memory), before);
}

/// Whichever call fails, the lender's or the standby's, nothing is left of the first try, and the next try succeeds.
#[test]
fn no_failing_call_leaves_anything() {
    let _alone = alone();
    let mut has_failed = [0; 2];
    for who in [0, 1] {
        for call in 1.. {
            let [(owners, memory), (others, other)] = [simulated(), simulated()];
            let before = free_bytes(memory);
            let Owner { switch, model, .. } = Owner::new(memory, GRANULE);
            let lend_and_open = || -> Result<(Lent, Standby), SwitchError> {
                let lent = model.lend()?;
                let descriptors: Vec<OwnedFd> = lent.descriptors().collect::<Result<_, _>>()?;
                let standby = Standby::open(other, model.manifest(), &lent.terms(), descriptors)?;
                Ok((lent, standby))
            };
            let reserved = || others.calls(Some(Call::Reserve)) - others.calls(Some(Call::Unreserve));
            let reserved_before = reserved();
            [&owners, &others][who].inject(Failure::of_any(call));
            let first = lend_and_open();
            // Memory that a driver does not take back is freed when the process ends.
            [&owners, &others][who].clear_failures();
            let failed = first.is_err();
            drop(first);
            if failed {
                // A failed reservation was counted, too.
                assert_eq!(reserved(), reserved_before + u64::from((who, call) == (1, 1)));
                assert!(!model.is_lent());
                has_failed[who] += 1;
            }
            let (lent, standby) = lend_and_open().unwrap();
            expect_bytes(other, &standby);
            drop((standby, lent));
            assert_eq!(model.evict(usize::MAX), 4 * GRANULE);
            drop((model, switch));
            assert_eq!((memory.backing().held_bytes(), free_bytes(memory)), (0, before));
            expect_no_fault(memory);
            expect_no_fault(other);
            if !failed {
                break;
            }
        }
    }
    // The lender: a wait and four exports. The standby: a reservation, four imports and four mappings, and one access.
    assert_eq!(has_failed, [5, 10]);
}

/// Another process that stands by, and the connection to it.
struct Process {
    child: Child,
    connection: BufReader<UnixStream>,
}

impl Process {
    fn start(role: &str) -> Self {
        let (connection, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["worker", "--exact", "--nocapture"]).env(ROLE, role);
        let child = command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).spawn().unwrap();
        Self { child, connection: BufReader::new(connection) }
    }

    /// Sends a model's terms and its descriptors.
    fn send(&self, lent: &Lent) {
        let terms = serde_json::to_vec(&lent.terms()).unwrap();
        let descriptors = descriptors(lent);
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        tenure_ipc::send(self.connection.get_ref(), &[IoSlice::new(&terms)], &descriptors).unwrap();
    }

    fn say(&self, what: &str) {
        writeln!(self.connection.get_ref(), "{what}").unwrap();
    }

    /// Returns the next line of the other process; empty if it has ended.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.connection.read_line(&mut line).unwrap();
        line.trim().into()
    }

    /// Ends the process as a crash would. Its connection shows the end.
    fn kill(mut self) {
        self.child.kill().unwrap();
        assert_eq!(self.hear(), "");
        self.child.wait().unwrap();
    }

    fn finish(mut self) {
        assert_eq!(self.hear(), "");
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The code of the other process. On its own it does nothing.
#[test]
fn worker() {
    let Ok(role) = env::var(ROLE) else { return };
    let mut connection = BufReader::new(UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap()));
    let (memory, chunk) = tested();
    let (terms, descriptors) = receive(connection.get_ref());
    let before = free_bytes(memory);
    let standby = Standby::open(memory, &lent_manifest(chunk), &terms, descriptors).unwrap();
    assert!(is_as_free(memory, before));
    expect_bytes(memory, &standby);
    let mut say = |what: &str| {
        writeln!(connection.get_ref(), "{what}").unwrap();
        let mut line = String::new();
        connection.read_line(&mut line).unwrap();
        line
    };
    // The next line comes when the parent wants this to go on, or has ended.
    say("open");
    if role == "trespass" {
        let place = standby.place(1);
        let written = memory.driver().memset(place.start, 0, place.end - place.start, StreamId::NULL);
        let error = written.and_then(|()| memory.driver().synchronize()).map_or_else(|error| error.kind.code(), |()| 0);
        say(&error.to_string());
        return;
    }
    expect_bytes(memory, &standby);
    drop(standby);
    say("done");
}

fn receive(connection: &UnixStream) -> (Terms, Vec<OwnedFd>) {
    let mut frame = [0; 4096];
    let received = tenure_ipc::receive(connection, &mut frame, 8).unwrap();
    (serde_json::from_slice(&frame[..received.bytes]).unwrap(), received.descriptors)
}

#[test]
fn another_process_computes_with_a_model_until_it_says_that_it_is_done() {
    let _alone = alone();
    let (memory, chunk) = tested();
    let Owner { model, .. } = Owner::new(memory, chunk);
    let mut process = Process::start("stand by");
    let lent = model.lend().unwrap();
    process.send(&lent);
    assert_eq!(process.hear(), "open");
    assert_eq!(model.evict(usize::MAX), 0);
    process.say("go on");
    assert_eq!(process.hear(), "done");
    drop(lent);
    assert_eq!(model.evict(usize::MAX), 4 * chunk);
    process.say("end");
    process.finish();
    expect_no_fault(memory);
}

#[test]
fn a_process_that_is_killed_leaves_nothing_behind() {
    let _alone = alone();
    let (memory, chunk) = tested();
    // The first use costs a real device's driver some memory that it keeps.
    drop(Owner::new(memory, chunk));
    memory.driver().synchronize().unwrap();
    let before = free_bytes(memory);
    let Owner { images, switch, model } = Owner::new(memory, chunk);
    let mut process = Process::start("stand by");
    let lent = model.lend().unwrap();
    process.send(&lent);
    assert_eq!(process.hear(), "open");
    process.kill();
    drop(lent);
    assert_eq!(model.evict(usize::MAX), 4 * chunk);
    model.load(&images.acquire(model.manifest()).unwrap()).unwrap();
    assert!(model.lend().is_ok());
    drop((model, switch));
    assert!(is_as_free(memory, before));
    expect_no_fault(memory);
}

#[test]
fn a_lender_that_ends_leaves_the_bytes_with_the_standby() {
    let _alone = alone();
    let (memory, chunk) = tested();
    let Owner { switch, model, images } = Owner::new(memory, chunk);
    let mut process = Process::start("stand by");
    let lent = model.lend().unwrap();
    process.send(&lent);
    assert_eq!(process.hear(), "open");
    // The system does the same with the memory of a process that ends.
    drop((lent, model, switch, images));
    process.say("go on");
    assert_eq!(process.hear(), "done");
    process.say("end");
    process.finish();
}

#[test]
fn another_process_cannot_write_what_it_was_lent() {
    let _alone = alone();
    let (memory, chunk) = tested();
    let Owner { model, .. } = Owner::new(memory, chunk);
    let mut process = Process::start("trespass");
    let lent = model.lend().unwrap();
    process.send(&lent);
    assert_eq!(process.hear(), "open");
    process.say("go on");
    assert_ne!(process.hear(), "0");
    process.say("end");
    process.finish();
    expect_bytes(memory, &open(memory, &lent));
}
