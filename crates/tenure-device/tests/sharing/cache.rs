//! PipeSwitch's five calls.

use std::sync::Arc;

use tempfile::TempDir;
use tenure_alloc::adaptor::Donated;
use tenure_alloc::{CachingAllocator, NativeAllocator, Request, Resource, native};
use tenure_core::StreamId;
use tenure_device::DeviceBacking;
use tenure_device::Driver;
use tenure_device::share::{
    Client, DaemonConfig, MemoryDaemon, Refusal, ShareError, SharedCache, SharedCacheConfig, WorkerCache,
};
use tenure_device::sim::SimDriver;

use crate::common::{GRANULE, fill, quick, sim, socket, sum};

const SIZES: SharedCacheConfig =
    SharedCacheConfig { pool_bytes: 12 * GRANULE, parameter_bytes: 2 * GRANULE, computation_bytes: 8 * GRANULE };

fn serve() -> (MemoryDaemon, TempDir) {
    let (folder, socket) = socket();
    let cache = SharedCache::allocate_shared_cache(sim(), &SIZES).unwrap();
    (cache.send_shared_cache(DaemonConfig { socket, ..quick() }).unwrap(), folder)
}

struct Worker {
    driver: Arc<SimDriver>,
    allocator: Arc<Donated>,
    cache: WorkerCache,
}

fn worker(daemon: &MemoryDaemon) -> Worker {
    let driver = sim();
    let backing = Arc::new(DeviceBacking::new(Arc::<SimDriver>::clone(&driver)));
    let inner = NativeAllocator::new(Arc::<DeviceBacking>::clone(&backing), native::Config::default()).unwrap();
    let allocator = Arc::new(Donated::new(Arc::new(inner), backing));
    let client = Arc::new(Client::connect(daemon.socket()).unwrap());
    let device: Arc<dyn Driver> = Arc::<SimDriver>::clone(&driver);
    let cache = WorkerCache::recv_shared_cache(client, device, Arc::clone(&allocator), SIZES).unwrap();
    Worker { driver, allocator, cache }
}

#[test]
fn a_worker_s_blocks_lie_in_what_it_inserted() {
    let (daemon, _folder) = serve();
    let Worker { driver, allocator, cache } = worker(&daemon);
    let parameters = cache.insert_shared_cache_for_parameter(StreamId::NULL).unwrap();
    let computation = cache.insert_shared_cache_for_computation(StreamId::NULL).unwrap();
    assert_eq!(parameters, cache.pool().address());
    assert_eq!(computation, parameters + SIZES.parameter_bytes);
    let small = allocator.allocate(Request::new(2 * GRANULE, StreamId::NULL)).unwrap();
    let large = allocator.allocate(Request::new(8 * GRANULE, StreamId::NULL)).unwrap();
    assert_eq!((small.address, large.address), (parameters, computation), "best fit");
    assert_eq!(driver.counters().malloc, 0);
    allocator.free(small.address).unwrap();
    allocator.free(large.address).unwrap();
    cache.clear_shared_cache(StreamId::NULL).unwrap();
    allocator.allocate(Request::new(2 * GRANULE, StreamId::NULL)).unwrap();
    assert_eq!(driver.counters().malloc, 1);
}

#[test]
fn what_one_worker_left_the_next_finds() {
    let (daemon, _folder) = serve();
    let (first, second) = (worker(&daemon), worker(&daemon));
    let address = first.cache.insert_shared_cache_for_parameter(StreamId::NULL).unwrap();
    fill(&*first.driver, address, SIZES.parameter_bytes, 3);
    let written = sum(&*first.driver, address, SIZES.parameter_bytes);
    let error = second.cache.insert_shared_cache_for_parameter(StreamId::NULL).unwrap_err();
    assert!(matches!(error, ShareError::Refused(Refusal::Leased { .. })), "{error}");
    first.cache.clear_shared_cache(StreamId::NULL).unwrap();
    let address = second.cache.insert_shared_cache_for_parameter(StreamId::NULL).unwrap();
    assert_eq!(sum(&*second.driver, address, SIZES.parameter_bytes), written);
}

#[test]
fn what_blocks_live_in_is_not_cleared() {
    let (daemon, _folder) = serve();
    let (holder, other) = (worker(&daemon), worker(&daemon));
    holder.cache.insert_shared_cache(4 * GRANULE, GRANULE, StreamId::NULL).unwrap();
    let block = holder.allocator.allocate(Request::new(3 * GRANULE, StreamId::NULL)).unwrap();
    let error = holder.cache.clear_shared_cache(StreamId::NULL).unwrap_err();
    assert!(matches!(error, ShareError::Alloc(_)), "{error}");
    assert!(other.cache.insert_shared_cache(GRANULE, GRANULE, StreamId::NULL).is_err());
    holder.allocator.free(block.address).unwrap();
    holder.cache.clear_shared_cache(StreamId::NULL).unwrap();
    other.cache.insert_shared_cache(GRANULE, GRANULE, StreamId::NULL).unwrap();
}

#[test]
fn a_dropped_cache_keeps_what_blocks_live_in() {
    let (daemon, _folder) = serve();
    let Worker { driver, allocator, cache } = worker(&daemon);
    let stream = driver.create_stream(tenure_device::Priority::Default).unwrap();
    cache.insert_shared_cache_for_parameter(StreamId::NULL).unwrap();
    cache.insert_shared_cache_for_computation(stream).unwrap();
    let block = allocator.allocate(Request::new(2 * GRANULE, StreamId::NULL)).unwrap();
    drop(cache);
    let status = Client::connect(daemon.socket()).unwrap().status().unwrap();
    assert_eq!(status.holdings.iter().map(|holding| holding.bytes).sum::<u64>(), SIZES.parameter_bytes);
    fill(&*driver, block.address, 2 * GRANULE, 1);
}

#[test]
fn both_sides_must_be_configured_alike() {
    let (daemon, _folder) = serve();
    let Worker { driver, allocator, .. } = worker(&daemon);
    let client = Arc::new(Client::connect(daemon.socket()).unwrap());
    let config = SharedCacheConfig { pool_bytes: 13 * GRANULE, ..SIZES };
    let device: Arc<dyn Driver> = driver;
    let error = WorkerCache::recv_shared_cache(client, device, Arc::clone(&allocator), config).err().unwrap();
    assert!(error.to_string().contains("configure both alike"), "{error}");
    assert_eq!(allocator.statistics().all.reserved_bytes.current, 0);
}

#[test]
fn sizes_come_from_configuration_and_must_fit_together() {
    let config: SharedCacheConfig = serde_json::from_str(r#"{"pool_bytes": 25769803776}"#).unwrap();
    assert_eq!(config.chunks().unwrap(), [1 << 30, 11 << 30, 12 << 30]);
    assert_eq!(SharedCacheConfig::default().chunks().unwrap(), [1 << 30, 11 << 30]);
    assert!(SharedCacheConfig { pool_bytes: 1 << 30, ..config }.chunks().is_err());
    assert!(serde_json::from_str::<SharedCacheConfig>(r#"{"pool": 1}"#).is_err());
}
