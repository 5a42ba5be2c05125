//! Tests of PipeSwitch's five calls.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;
use tenure_alloc::snapshot::SnapshotState;
use tenure_alloc::{Address, AllocError, Request};
use tenure_core::StreamId;
use tenure_device::memory::{DeviceMemory, MemoryConfig, MemoryError};
use tenure_device::share::{
    DaemonClient, DaemonConfig, DaemonRefusal, RangeUse, ShareError, SharedCache, SharedCacheConfig, WorkerCache,
};
use tenure_device::sim::{Failure, SimConfig, SimDriver, SimPlatform};
use tenure_device::{AccessMode, Call, Clock, CopyCalls, Driver, ErrorKind, Platform, Priority, StreamCalls};

use crate::common::{Daemon, GRANULE, fill, quick, sim, socket, sum};

/// Sizes of a model's parameters, in bytes.
const PARAMETERS: [u64; 4] = [3 << 20, 64, 4, 512];

pub(crate) const SIZES: SharedCacheConfig =
    SharedCacheConfig { pool_bytes: 12 * GRANULE, parameter_bytes: 2 * GRANULE, computation_bytes: 8 * GRANULE };

pub(crate) fn serve() -> (SharedCache, TempDir) {
    serve_by(Clock::default())
}

/// Serves a cache with a daemon that measures time by `clock`.
pub(crate) fn serve_by(clock: Clock) -> (SharedCache, TempDir) {
    let (folder, socket) = socket();
    let mut cache = SharedCache::allocate_shared_cache(sim(), &SIZES).unwrap();
    cache.send_shared_cache(DaemonConfig { socket, clock, ..quick() }).unwrap();
    (cache, folder)
}

pub(crate) struct Worker {
    pub(crate) driver: Arc<SimDriver>,
    pub(crate) memory: &'static DeviceMemory,
    pub(crate) cache: WorkerCache,
}

pub(crate) fn connect(owner: &SharedCache) -> Arc<DaemonClient> {
    Arc::new(DaemonClient::connect(owner.socket().unwrap()).unwrap())
}

impl Worker {
    fn alloc(&self, bytes: u64) -> Address {
        self.memory.allocate(Request::new(bytes, StreamId::NULL)).unwrap().address
    }

    /// Returns the sum of a block's content.
    pub(crate) fn sum(&self, address: Address, bytes: u64) -> u64 {
        sum(&*self.driver, address, bytes)
    }
}

pub(crate) fn memory(driver: Arc<dyn Driver>) -> &'static DeviceMemory {
    let config = MemoryConfig { policy: "native".parse().unwrap(), ..MemoryConfig::default() };
    Box::leak(Box::new(DeviceMemory::new(driver, config).unwrap()))
}

pub(crate) fn worker(owner: &SharedCache) -> Worker {
    let driver = sim();
    let memory = memory(Arc::<SimDriver>::clone(&driver));
    let cache = WorkerCache::recv_shared_cache(connect(owner), memory, SIZES).unwrap();
    Worker { driver, memory, cache }
}

/// Writes parameters and publishes them. Returns their sums.
fn publish(writer: &Worker, about: &[u8]) -> [u64; 4] {
    writer.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
    let blocks = PARAMETERS.map(|bytes| (writer.alloc(bytes), bytes.next_multiple_of(8)));
    blocks.iter().for_each(|&(address, bytes)| fill(&*writer.driver, address, bytes, address));
    writer.cache.publish_parameters(about).unwrap();
    blocks.map(|(address, bytes)| writer.sum(address, bytes))
}

#[test]
fn a_worker_s_blocks_lie_in_what_it_inserted() {
    let (owner, _folder) = serve();
    let worker = worker(&owner);
    let Worker { driver, memory, cache } = &worker;
    let parameters = cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
    assert_eq!(parameters, cache.pool().address());
    let weights = [GRANULE, 4].map(|bytes| worker.alloc(bytes));
    let computation = cache.insert_shared_cache_for_computation(StreamId::NULL).unwrap();
    assert_eq!(computation, parameters + SIZES.parameter_bytes);
    let activation = worker.alloc(8 * GRANULE);
    assert_eq!((weights, activation), ([parameters, parameters + GRANULE], computation));
    assert_eq!(driver.counters().malloc, 0);
    weights.into_iter().chain([activation]).for_each(|block| memory.free(block).unwrap());
    cache.clear_shared_cache(StreamId::NULL).unwrap();
    assert_eq!(cache.streams(), []);
    worker.alloc(2 * GRANULE);
    assert_eq!(driver.counters().malloc, 1);
}

#[test]
fn a_worker_finds_the_cache_that_another_left() {
    let (owner, _folder) = serve();
    let first = worker(&owner);
    let second = worker(&owner);
    let address = first.cache.insert_shared_cache(GRANULE, 2 * GRANULE, StreamId::NULL).unwrap();
    fill(&*first.driver, address, GRANULE, 3);
    let written = first.sum(address, GRANULE);
    let error = second.cache.insert_shared_cache(GRANULE, 2 * GRANULE, StreamId::NULL).unwrap_err();
    assert!(matches!(error, ShareError::Refused(DaemonRefusal::Leased { .. })), "{error}");
    first.cache.clear_shared_cache(StreamId::NULL).unwrap();
    let address = second.cache.insert_shared_cache(GRANULE, 2 * GRANULE, StreamId::NULL).unwrap();
    assert_eq!(second.sum(address, GRANULE), written);
}

#[test]
fn published_parameters_are_read_by_all_and_copied_by_none() {
    let (owner, _folder) = serve();
    let writer = worker(&owner);
    let written = publish(&writer, b"a model");
    assert_eq!(writer.cache.about_parameters().as_deref(), Some(&b"a model"[..]));
    for reader in [worker(&owner), worker(&owner)] {
        reader.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::Read).unwrap();
        let read = PARAMETERS.map(|bytes| reader.sum(reader.alloc(bytes), bytes.next_multiple_of(8)));
        assert_eq!(read, written);
        assert_eq!(reader.cache.about_parameters().as_deref(), Some(&b"a model"[..]));
        reader.cache.check_parameters().unwrap();
        assert_eq!((reader.driver.counters().malloc, reader.driver.counters().create), (0, 0));
    }
}

#[test]
fn parameters_outlive_their_writer() {
    let (owner, _folder) = serve();
    let Worker { driver, memory, cache } = worker(&owner);
    let written = publish(&Worker { driver, memory, cache }, b"");
    let reader = worker(&owner);
    reader.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::Read).unwrap();
    drop(owner);
    let read = PARAMETERS.map(|bytes| reader.sum(reader.alloc(bytes), bytes.next_multiple_of(8)));
    assert_eq!(read, written);
    let blocks = reader.memory.allocator().snapshot().segments.into_iter().flat_map(|segment| segment.blocks);
    let live = blocks.filter(|block| block.state == SnapshotState::Allocated);
    live.for_each(|block| reader.memory.free(block.address).unwrap());
    reader.cache.clear_shared_cache(StreamId::NULL).unwrap();
}

#[test]
fn another_model_is_refused_before_it_computes_anything() {
    let (owner, _folder) = serve();
    publish(&worker(&owner), b"");
    let reader = worker(&owner);
    reader.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::Read).unwrap();
    let error = reader.memory.allocate(Request::new(64, StreamId::NULL)).unwrap_err();
    let differs = AllocError::LayoutDiffers { index: 0, requested: 64, recorded: 3 << 20 };
    assert_eq!(error, MemoryError::Allocator(differs));
    reader.alloc(PARAMETERS[0]);
    let error = reader.cache.insert_shared_cache_for_computation(StreamId::NULL).unwrap_err();
    assert!(matches!(error, ShareError::Outstanding { outstanding: 3 }), "{error}");
}

#[test]
fn parameters_are_read_after_they_are_published_and_not_before() {
    let (owner, _folder) = serve();
    let writer = worker(&owner);
    let reader = worker(&owner);
    let read = || reader.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::Read);
    assert!(matches!(read(), Err(ShareError::NothingPublished)));
    writer.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
    assert!(matches!(read(), Err(ShareError::Refused(DaemonRefusal::Leased { .. }))));
    writer.cache.publish_parameters(b"").unwrap();
    read().unwrap();
}

#[test]
fn parameters_are_published_after_all_work_that_was_queued() {
    let (owner, _folder) = serve();
    let writer = worker(&owner);
    let observer = worker(&owner);
    let parameters = writer.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
    let block = writer.alloc(GRANULE);
    let stream = writer.driver.create_stream(Priority::Default).unwrap();
    writer.driver.memset(block, 7, GRANULE, stream).unwrap();
    // The end of the range, which names the published parameters, as another process sees it once the work is done.
    let seen = Arc::new(Mutex::new(None));
    let end = observer.cache.pool().address() + SIZES.parameter_bytes - 64;
    let told = Arc::clone(&seen);
    // Host functions may not call the driver.
    writer
        .driver
        .host_function(
            stream,
            Box::new(move || {
                *told.lock().unwrap() = Some(
                    thread::spawn(move || {
                        let mut footer = [1; 64];
                        observer.driver.copy_from_device(&mut footer, end, StreamId::NULL).unwrap();
                        footer
                    })
                    .join()
                    .unwrap(),
                )
            }),
        )
        .unwrap();
    writer.cache.publish_parameters(b"").unwrap();
    let seen = seen.lock().unwrap().unwrap();
    assert!(seen[32..].starts_with(b"tenure unwritten"), "{seen:?}");
    let reader = worker(&owner);
    let read = reader.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::Read).unwrap();
    let mut bytes = vec![0; GRANULE as usize];
    reader.driver.copy_from_device(&mut bytes, read + (block - parameters), StreamId::NULL).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 7));
}

#[test]
fn parameters_whose_writing_fails_are_not_published() {
    let (owner, _folder) = serve();
    let writer = worker(&owner);
    let reader = worker(&owner);
    for call in [Call::Synchronize, Call::CopyToDevice] {
        writer.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
        writer.driver.inject(Failure::of(call, 1));
        let error = writer.cache.publish_parameters(b"").unwrap_err();
        assert!(matches!(error, ShareError::Driver(_)), "{error}");
        writer.cache.clear_shared_cache(StreamId::NULL).unwrap();
        let read = reader.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::Read);
        assert!(matches!(read, Err(ShareError::NothingPublished)), "{call}");
    }
}

#[test]
fn a_writer_that_begins_takes_back_published_parameters() {
    let (owner, _folder) = serve();
    let first = worker(&owner);
    let second = worker(&owner);
    first.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
    first.cache.publish_parameters(b"nothing").unwrap();
    first.cache.clear_shared_cache(StreamId::NULL).unwrap();
    second.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
    second.cache.clear_shared_cache(StreamId::NULL).unwrap();
    let read = first.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::Read);
    assert!(matches!(read, Err(ShareError::NothingPublished)));
}

#[test]
fn published_parameters_can_not_be_written() {
    let (owner, _folder) = serve();
    let writer = worker(&owner);
    let reader = worker(&owner);
    let written = publish(&writer, b"");
    reader.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::Read).unwrap();
    let block = reader.alloc(PARAMETERS[0]);
    let error = reader.driver.memset(block, 1, 1, StreamId::NULL).and_then(|()| reader.driver.synchronize());
    assert!(matches!(error.unwrap_err().kind, ErrorKind::ReadOnly { .. }));
    // The reader has lost its own context; the other processes have lost nothing.
    assert_eq!(writer.sum(writer.cache.pool().address(), PARAMETERS[0]), written[0]);
    let error = writer.driver.memset(writer.cache.pool().address(), 1, 1, StreamId::NULL);
    assert!(error.and_then(|()| writer.driver.synchronize()).is_err(), "their publisher can only read them too");
}

#[test]
fn parameters_that_fill_their_range_can_not_be_published() {
    let (owner, _folder) = serve();
    let writer = worker(&owner);
    let error = writer.cache.publish_parameters(b"").unwrap_err();
    assert!(matches!(error, ShareError::NotInserted(_)), "{error}");
    writer.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
    writer.alloc(SIZES.parameter_bytes);
    let error = writer.memory.allocate(Request::new(4, StreamId::NULL)).unwrap_err();
    assert!(matches!(error, MemoryError::Allocator(AllocError::RangeFull { .. })), "not from elsewhere: {error}");
    let error = writer.cache.publish_parameters(b"").unwrap_err();
    assert!(error.to_string().contains("`parameter_bytes`"), "{error}");
}

#[test]
fn a_range_with_live_blocks_is_not_cleared() {
    let (owner, _folder) = serve();
    let holder = worker(&owner);
    let other = worker(&owner);
    holder.cache.insert_shared_cache(4 * GRANULE, GRANULE, StreamId::NULL).unwrap();
    let block = holder.memory.allocate(Request::new(3 * GRANULE, StreamId::NULL)).unwrap();
    let error = holder.cache.clear_shared_cache(StreamId::NULL).unwrap_err();
    let in_use = ShareError::RangeInUse { range: RangeUse::Computation, blocks: 1, bytes: 3 * GRANULE };
    assert_eq!(error.to_string(), in_use.to_string());
    assert!(other.cache.insert_shared_cache(GRANULE, GRANULE, StreamId::NULL).is_err());
    holder.memory.free(block.address).unwrap();
    holder.cache.clear_shared_cache(StreamId::NULL).unwrap();
    other.cache.insert_shared_cache(GRANULE, GRANULE, StreamId::NULL).unwrap();
}

#[test]
fn a_range_in_which_blocks_live_keeps_no_other() {
    let (owner, _folder) = serve();
    let holder = worker(&owner);
    let other = worker(&owner);
    holder.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
    let block = holder.alloc(64);
    holder.cache.insert_shared_cache_for_computation(StreamId::NULL).unwrap();
    let error = holder.cache.clear_shared_cache(StreamId::NULL).unwrap_err();
    assert!(matches!(error, ShareError::RangeInUse { range: RangeUse::Parameters, .. }), "{error}");
    other.cache.insert_shared_cache_for_computation(StreamId::NULL).unwrap();
    holder.memory.free(block).unwrap();
    holder.cache.clear_shared_cache(StreamId::NULL).unwrap();
}

#[test]
fn the_range_for_parameters_is_taken_out_under_a_computation() {
    let (owner, _folder) = serve();
    publish(&worker(&owner), b"");
    let Worker { memory, cache, .. } = &worker(&owner);
    let computation = cache.insert_shared_cache_for_computation(StreamId::NULL).unwrap();
    let activation = memory.allocate(Request::new(GRANULE, StreamId::NULL)).unwrap();
    cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::Read).unwrap();
    cache.clear_parameters().unwrap();
    cache.check_parameters().unwrap();
    assert_eq!(activation.address, computation);
    assert_eq!(memory.allocate(Request::new(GRANULE, StreamId::NULL)).unwrap().address, computation + GRANULE);
}

#[test]
fn a_range_is_inserted_once_and_the_error_says_which() {
    let (owner, _folder) = serve();
    let Worker { cache, .. } = &worker(&owner);
    cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
    cache.insert_shared_cache_for_computation(StreamId::NULL).unwrap();
    for access in [AccessMode::Read, AccessMode::ReadWrite] {
        let error = cache.insert_shared_cache_for_parameter(StreamId::NULL, access).unwrap_err();
        assert!(matches!(error, ShareError::AlreadyInserted(RangeUse::Parameters)), "{error}");
    }
    let error = cache.insert_shared_cache_for_computation(StreamId::NULL).unwrap_err();
    assert!(matches!(error, ShareError::AlreadyInserted(RangeUse::Computation)), "{error}");
    let error = cache.insert_shared_cache(GRANULE, GRANULE, StreamId::NULL).unwrap_err();
    assert!(matches!(error, ShareError::AlreadyInserted(RangeUse::Parameters)), "{error}");
}

#[test]
fn other_parameters_than_expected_are_not_inserted() {
    let (owner, _folder) = serve();
    publish(&worker(&owner), b"a model");
    let reader = worker(&owner);
    let error = reader.cache.attach_parameters(StreamId::NULL, b"another").unwrap_err();
    assert!(matches!(error, ShareError::OtherParameters { published } if published == b"a model"));
    assert_eq!(reader.cache.streams(), []);
    reader.alloc(64);
    // The failed call gave its lease back too, so the process can try again.
    reader.cache.attach_parameters(StreamId::NULL, b"a model").unwrap();
}

#[test]
fn whether_parameters_fit_is_known_before_any_is_written() {
    let (owner, _folder) = serve();
    let writer = worker(&owner);
    let room = |bytes: u64| writer.cache.check_room(&[GRANULE, 3, bytes], b"about");
    let fits = (0..SIZES.parameter_bytes).step_by(512).take_while(|&bytes| room(bytes).is_ok()).last().unwrap();
    let error = room(fits + 512).unwrap_err();
    let ShareError::ParametersTooLarge { needed, bytes } = error else { panic!("{error}") };
    assert!(bytes == SIZES.parameter_bytes && needed > GRANULE + 512 + fits, "{needed}");
    assert!(room(u64::MAX).is_err());
    assert_eq!(writer.cache.streams(), []);
    writer.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
    let blocks = [GRANULE, 3, fits].map(|bytes| writer.alloc(bytes));
    assert_eq!(blocks[0], writer.cache.pool().address());
    writer.cache.publish_parameters(b"about").unwrap();
}

#[test]
fn a_range_that_the_cache_was_received_without_is_told() {
    let (owner, _folder) = serve();
    let Worker { memory, .. } = worker(&owner);
    let sizes = SharedCacheConfig { computation_bytes: 0, ..SIZES };
    let cache = WorkerCache::recv_shared_cache(connect(&owner), memory, sizes).unwrap();
    let error = cache.insert_shared_cache_for_computation(StreamId::NULL).unwrap_err();
    assert!(matches!(error, ShareError::NoRange(RangeUse::Computation)), "{error}");
    cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
}

#[test]
fn a_cache_that_could_not_be_sent_can_be_sent_elsewhere() {
    let (folder, socket) = socket();
    let mut first = SharedCache::allocate_shared_cache(sim(), &SIZES).unwrap();
    let mut second = SharedCache::allocate_shared_cache(sim(), &SIZES).unwrap();
    let at = |socket: &Path| DaemonConfig { socket: socket.into(), ..quick() };
    first.send_shared_cache(at(&socket)).unwrap();
    assert!(matches!(second.send_shared_cache(at(&socket)), Err(ShareError::AlreadyServed { .. })));
    let elsewhere = folder.path().join("elsewhere.sock");
    for _ in 0..2 {
        second.send_shared_cache(at(&elsewhere)).unwrap();
    }
    assert!(matches!(second.send_shared_cache(at(&socket)), Err(ShareError::AlreadySent { .. })));
    worker(&second).cache.insert_shared_cache_for_computation(StreamId::NULL).unwrap();
}

#[test]
fn a_dropped_cache_keeps_what_blocks_live_in() {
    let (owner, _folder) = serve();
    let worker = worker(&owner);
    let stream = worker.driver.create_stream(Priority::Default).unwrap();
    worker.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
    let block = worker.alloc(GRANULE);
    worker.cache.insert_shared_cache_for_computation(stream).unwrap();
    let Worker { driver, cache, .. } = worker;
    drop(cache);
    let status = connect(&owner).status().unwrap();
    assert_eq!(status.holdings.iter().map(|holding| holding.bytes).sum::<u64>(), SIZES.parameter_bytes);
    fill(&*driver, block, GRANULE, 1);
}

#[test]
fn a_cache_is_received_on_the_device_that_it_lies_on() {
    let (owner, _folder) = serve();
    let other = SimPlatform::new(vec![SimConfig::default(); 2]).driver(1).unwrap();
    let error = WorkerCache::recv_shared_cache(connect(&owner), memory(other), SIZES).err().unwrap();
    assert!(matches!(error, ShareError::OtherDevice { .. }), "{error}");
    assert!(error.to_string().contains("CUDA_VISIBLE_DEVICES"), "{error}");
}

#[test]
fn both_sides_must_be_configured_alike() {
    let (owner, _folder) = serve();
    let Worker { memory, .. } = worker(&owner);
    let config = SharedCacheConfig { pool_bytes: 13 * GRANULE, ..SIZES };
    let error = WorkerCache::recv_shared_cache(connect(&owner), memory, config).err().unwrap();
    assert!(error.to_string().contains("configure both alike"), "{error}");
    assert_eq!(memory.allocator().statistics().all.reserved_bytes.current, 0);
}

/// A device protects whole chunks, so parameters need chunks of their own.
#[test]
fn parameters_that_share_a_chunk_with_memory_that_others_write_are_refused() {
    let Worker { memory, .. } = worker(&serve().0);
    let received = |granules: &[u64], parameters: u64| {
        let daemon = Daemon::with_pool(granules);
        let parameter_bytes = parameters * GRANULE;
        let pool_bytes = granules.iter().sum::<u64>() * GRANULE;
        let config = SharedCacheConfig { pool_bytes, parameter_bytes, computation_bytes: 0 };
        WorkerCache::recv_shared_cache(daemon.client(), memory, config).map(drop)
    };
    let error = received(&[12], 2).unwrap_err().to_string();
    assert!(error.contains("--chunks 4194304,20971520"), "{error}");
    for (granules, parameters) in [(&[4, 8][..], 2), (&[4, 8], 5), (&[1, 2, 9], 2)] {
        assert!(received(granules, parameters).is_err(), "{granules:?}");
    }
    for (granules, parameters) in [(&[4, 8][..], 4), (&[1, 3, 8], 4), (&[12], 12)] {
        received(granules, parameters).unwrap();
    }
}

#[test]
fn sizes_come_from_configuration_and_must_fit_together() {
    let config: SharedCacheConfig = serde_json::from_str(r#"{"pool_bytes": 25769803776}"#).unwrap();
    assert_eq!(config.chunks().unwrap(), [1 << 30, 11 << 30, 12 << 30]);
    assert_eq!(SharedCacheConfig::default().chunks().unwrap(), [1 << 30, 11 << 30]);
    assert!(SharedCacheConfig { pool_bytes: 1 << 30, ..config }.chunks().is_err());
    assert!(SharedCacheConfig { parameter_bytes: 0, ..config }.chunks().is_err());
    assert!(SharedCacheConfig { computation_bytes: 0, ..config }.chunks().is_err());
    assert!(serde_json::from_str::<SharedCacheConfig>(r#"{"pool": 1}"#).is_err());
}
