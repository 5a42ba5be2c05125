//! Tests of PipeSwitch's order of calls: every worker first inserts and places everything for every model, and then
//! parameters come and go.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tenure_alloc::{Address, BackingError, PoolId, PoolUse, Request};
use tenure_core::StreamId;
use tenure_device::memory::{DeviceMemory, MemoryError};
use tenure_device::share::{DaemonClient, RangeUse, ShareError, SharedCache, WorkerCache};
use tenure_device::{AccessMode, Call, Clock, CopyCalls, Driver, ErrorKind, Priority, StreamCalls};

use crate::cache::{SIZES, Worker, connect, memory, serve, serve_by, worker};
use crate::common::{GRANULE, PATIENCE, eventually, fill, sim};
use crate::process::{Process, listen, tell};

/// The tensors of two models, in bytes.
const MODELS: [&[u64]; 2] = [&[3_000_000, 64, 512], &[4096, 1 << 20]];

/// The patience of a worker whose wait is bound to fail.
const SHORT: Duration = Duration::from_millis(60);

fn allocate(memory: &DeviceMemory, bytes: u64, stream: StreamId) -> Result<Address, MemoryError> {
    memory.allocate(Request::new(bytes, stream)).map(|block| block.address)
}

/// Returns the reason for which an allocation is refused.
fn refused(memory: &DeviceMemory, bytes: u64, stream: StreamId) -> String {
    match memory.allocate(Request::new(bytes, stream)).unwrap_err() {
        MemoryError::Allocator(tenure_alloc::AllocError::Backing(BackingError::Failed { reason, .. })) => reason,
        other => panic!("{other}"),
    }
}

/// A model in a worker.
struct Model {
    tensors: Vec<Address>,
    computation: StreamId,
}

/// Creates a worker that has placed these models, each on streams of its own.
fn placed(owner: &SharedCache, patience: Duration, models: &[&[u64]]) -> (Worker, Vec<Model>) {
    let Worker { driver, memory, cache } = worker(owner);
    let cache = cache.with_patience(patience);
    let models = models
        .iter()
        .map(|sizes| {
            let [parameters, computation] = [(); 2].map(|()| driver.create_stream(Priority::Default).unwrap());
            cache.place_parameters(parameters).unwrap();
            cache.insert_shared_cache_for_computation(computation).unwrap();
            let tensors = sizes.iter().map(|&bytes| allocate(memory, bytes, parameters).unwrap()).collect();
            Model { tensors, computation }
        })
        .collect();
    (Worker { driver, memory, cache }, models)
}

/// Transfers a model's tensors, with values that depend on `seed`. Calls `meanwhile` while they are being written.
fn transfer_while(scheduler: &Worker, sizes: &[u64], seed: u64, meanwhile: impl FnOnce()) {
    let Worker { driver, memory, cache } = scheduler;
    let stream = driver.create_stream(Priority::Default).unwrap();
    cache.transfer_parameters(stream).unwrap();
    let blocks: Vec<_> = sizes.iter().map(|&bytes| allocate(memory, bytes, stream).unwrap()).collect();
    for (&block, &bytes) in blocks.iter().zip(sizes) {
        fill(&**driver, block, bytes, seed + bytes);
    }
    meanwhile();
    blocks.into_iter().for_each(|block| memory.free(block).unwrap());
    cache.clear_shared_cache(stream).unwrap();
}

fn transfer(scheduler: &Worker, sizes: &[u64], seed: u64) {
    transfer_while(scheduler, sizes, seed, || ());
}

/// Waits until `worker`, which has made `copies` copies to the host so far, has looked at the transferred parameters
/// and looks again: it does so at the start of each attempt to enter the range for computation.
fn looks_again(worker: &Worker, copies: u64) {
    // One look makes two copies: the length of the list of parameters, and the list.
    eventually("it looks again", || copies_to_host(worker) > copies + 2);
}

fn copies_to_host(worker: &Worker) -> u64 {
    worker.driver.calls(Some(Call::CopyFromDevice))
}

/// Returns whether a model's tensors have the values of `seed`.
fn holds(worker: &Worker, model: &Model, sizes: &[u64], seed: u64) -> bool {
    let other = worker.memory.allocate(Request::new(4 << 20, StreamId::NULL)).unwrap().address;
    model.tensors.iter().zip(sizes).all(|(&tensor, &bytes)| {
        fill(&*worker.driver, other, bytes, seed + bytes);
        worker.sum(tensor, bytes) == worker.sum(other, bytes)
    })
}

#[test]
fn models_that_were_placed_first_find_what_is_transferred_then() {
    let (owner, _folder) = serve();
    let workers = [(); 2].map(|()| placed(&owner, PATIENCE, &MODELS));
    let scheduler = worker(&owner);
    for (request, which) in [0, 1, 1, 0].into_iter().enumerate() {
        let seed = request as u64;
        transfer(&scheduler, MODELS[which], seed);
        for (worker, models) in &workers {
            let model = &models[which];
            let activation = allocate(worker.memory, 3 * GRANULE, model.computation).unwrap();
            assert!(holds(worker, model, MODELS[which], seed), "{request}");
            fill(&*worker.driver, activation, 3 * GRANULE, 1);
            worker.memory.free(activation).unwrap();
            worker.cache.check_parameters().unwrap();
        }
    }
}

#[test]
fn placed_parameters_can_not_be_written() {
    let (owner, _folder) = serve();
    let (Worker { driver, .. }, models) = placed(&owner, SHORT, &MODELS);
    let tensor = models[1].tensors[0];
    let error = driver.memset(tensor, 1, 1, StreamId::NULL).and_then(|()| driver.synchronize());
    assert!(matches!(error.unwrap_err().kind, ErrorKind::ReadOnly { .. }));
}

#[test]
fn nothing_is_computed_with_parameters_of_another_model() {
    let (owner, _folder) = serve();
    let (Worker { memory, cache, .. }, models) = &placed(&owner, SHORT, &MODELS);
    let scheduler = worker(&owner);
    transfer(&scheduler, MODELS[0], 1);
    let reason = refused(memory, GRANULE, models[1].computation);
    assert!(reason.starts_with("tensor 0 of the parameters that were placed here has 4096 bytes"), "{reason}");
    allocate(memory, GRANULE, models[0].computation).unwrap();
    transfer(&scheduler, &[3_000_000, 64], 1);
    let error = cache.check_parameters().unwrap_err();
    assert!(matches!(error, ShareError::PlacedOtherwise { index: 0, .. }), "of the model placed last: {error}");
}

#[test]
fn nothing_is_computed_before_anything_is_transferred() {
    let (owner, _folder) = serve();
    let (Worker { memory, cache, .. }, models) = &placed(&owner, SHORT, &MODELS);
    let reason = refused(memory, GRANULE, models[0].computation);
    assert!(reason.starts_with("no parameters are published"), "{reason}");
    assert!(matches!(cache.check_parameters(), Err(ShareError::NothingPublished)));
    // The same holds for parameters that were written in part and given up.
    let writer = worker(&owner);
    writer.cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::ReadWrite).unwrap();
    writer.cache.clear_shared_cache(StreamId::NULL).unwrap();
    refused(memory, GRANULE, models[0].computation);
    allocate(memory, GRANULE, StreamId::NULL).unwrap();
}

#[test]
fn a_computation_waits_for_its_parameters() {
    let (owner, _folder) = serve();
    let (worker_, models) = &placed(&owner, PATIENCE, &MODELS);
    let scheduler = worker(&owner);
    transfer(&scheduler, MODELS[1], 1);
    let copies = copies_to_host(worker_);
    thread::scope(|scope| {
        scope.spawn(|| allocate(worker_.memory, GRANULE, models[0].computation).unwrap());
        looks_again(worker_, copies);
        transfer(&scheduler, MODELS[0], 2);
    });
    assert!(holds(worker_, &models[0], MODELS[0], 2));
}

/// Begins a transfer that never ends.
pub(crate) fn transfer_in_part(socket: &Path) {
    let memory = memory(sim());
    let client = Arc::new(DaemonClient::connect(socket).unwrap());
    let cache = WorkerCache::recv_shared_cache(client, memory, SIZES).unwrap();
    cache.transfer_parameters(StreamId::NULL).unwrap();
    allocate(memory, MODELS[0][0], StreamId::NULL).unwrap();
    tell("writing");
    listen();
}

#[test]
fn nothing_is_computed_with_what_a_process_wrote_that_died_at_it() {
    let (owner, _folder) = serve();
    let (Worker { memory, cache, .. }, models) = &placed(&owner, SHORT, &MODELS[..1]);
    transfer(&worker(&owner), MODELS[0], 1);
    let mut writer = Process::start(&format!("transfer {}", owner.socket().unwrap().display()));
    assert_eq!(writer.hear(), "writing");
    cache.check_parameters().unwrap();
    memory.free(allocate(memory, GRANULE, models[0].computation).unwrap()).unwrap();
    writer.kill();
    eventually("its death is known", || cache.check_parameters().is_err());
    assert!(matches!(cache.check_parameters(), Err(ShareError::Incomplete)));
    let reason = refused(memory, GRANULE, models[0].computation);
    assert!(reason.contains("are incomplete"), "{reason}");
    let scheduler = worker(&owner);
    eventually("its lease is over", || {
        scheduler.cache.transfer_parameters(StreamId::NULL).is_ok_and(|_| {
            scheduler.cache.clear_shared_cache(StreamId::NULL).unwrap();
            true
        })
    });
    transfer(&scheduler, MODELS[0], 2);
    allocate(memory, GRANULE, models[0].computation).unwrap();
}

#[test]
fn nothing_is_computed_with_what_was_being_written_when_the_daemon_ended() {
    let (owner, _folder) = serve();
    let (Worker { memory, cache, .. }, models) = &placed(&owner, SHORT, &MODELS[..1]);
    let writer = worker(&owner);
    writer.cache.transfer_parameters(StreamId::NULL).unwrap();
    drop(owner);
    let reason = refused(memory, GRANULE, models[0].computation);
    assert!(reason.contains("are incomplete"), "{reason}");
    assert!(matches!(cache.check_parameters(), Err(ShareError::Incomplete)));
}

/// PipeSwitch computes with the first layers while the last ones are still being transferred.
#[test]
fn a_computation_that_begins_during_the_transfer_is_checked_after_it() {
    let (owner, _folder) = serve();
    let (Worker { memory, .. }, models) = &placed(&owner, SHORT, &MODELS);
    let scheduler = worker(&owner);
    let compute = || allocate(memory, GRANULE, models[0].computation);
    transfer_while(&scheduler, MODELS[0], 1, || _ = compute().unwrap());
    compute().unwrap();
    // The check has passed: from now on the program decides when the parameters may be replaced.
    transfer(&scheduler, MODELS[1], 1);
    compute().unwrap();
}

#[test]
fn another_model_than_the_one_being_transferred_is_found_out() {
    let (owner, _folder) = serve();
    let (Worker { memory, .. }, models) = &placed(&owner, SHORT, &MODELS);
    let scheduler = worker(&owner);
    transfer_while(&scheduler, MODELS[1], 1, || _ = allocate(memory, GRANULE, models[0].computation).unwrap());
    let reason = refused(memory, GRANULE, models[0].computation);
    assert!(reason.starts_with("tensor 0 of the parameters that were placed here has 3000000 bytes"), "{reason}");
}

#[test]
fn computation_is_one_stream_s_while_it_has_blocks_there() {
    let (owner, _folder) = serve();
    let [(first, one), (second, other)] = [(); 2].map(|()| placed(&owner, SHORT, &[&[], &[]]));
    let held = [GRANULE, 2 * GRANULE].map(|bytes| allocate(first.memory, bytes, one[0].computation).unwrap());
    let own = format!("of the pool from {} are leased to process {}", SIZES.parameter_bytes, std::process::id());
    for (memory, stream) in [(first.memory, one[1].computation), (second.memory, other[0].computation)] {
        let reason = refused(memory, GRANULE, stream);
        assert!(reason.contains(&own), "{reason}");
    }
    first.memory.free(held[0]).unwrap();
    refused(second.memory, GRANULE, other[0].computation);
    first.memory.free(held[1]).unwrap();
    assert_eq!(connect(&owner).status().unwrap().holdings, []);
    allocate(second.memory, GRANULE, other[0].computation).unwrap();
    refused(first.memory, GRANULE, one[1].computation);
}

#[test]
fn a_transfer_waits_for_computation() {
    let (owner, _folder) = serve();
    let [(first, one), (second, other)] = [(); 2].map(|()| placed(&owner, PATIENCE, &MODELS[..1]));
    transfer(&worker(&owner), MODELS[0], 1);
    let held = allocate(first.memory, GRANULE, one[0].computation).unwrap();
    fill(&*first.driver, held, GRANULE, 5);
    let written = first.sum(held, GRANULE);
    let copies = copies_to_host(&second);
    let found = thread::scope(|scope| {
        let waiting = scope.spawn(|| allocate(second.memory, GRANULE, other[0].computation).unwrap());
        looks_again(&second, copies);
        assert!(!waiting.is_finished());
        first.memory.free(held).unwrap();
        waiting.join().unwrap()
    });
    assert_eq!(second.sum(found, GRANULE), written, "the same memory");
}

#[test]
fn computations_of_many_threads_keep_each_other_out() {
    let (owner, _folder) = serve();
    let workers = [(); 2].map(|()| placed(&owner, PATIENCE, &[&[], &[]]));
    let computing = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (worker, models) in &workers {
            for model in models {
                scope.spawn(|| {
                    for bytes in (1..=20).map(|round| (1 + round % 3) * GRANULE) {
                        let blocks =
                            [bytes, GRANULE].map(|bytes| allocate(worker.memory, bytes, model.computation).unwrap());
                        assert_eq!(computing.fetch_add(1, Ordering::SeqCst), 0);
                        worker.memory.free(blocks[0]).unwrap();
                        thread::yield_now();
                        assert_eq!(computing.fetch_sub(1, Ordering::SeqCst), 1);
                        worker.memory.free(blocks[1]).unwrap();
                    }
                });
            }
        }
    });
    assert_eq!(connect(&owner).status().unwrap().holdings, []);
}

#[test]
fn a_computation_goes_on_in_other_memory_when_the_daemon_is_gone() {
    let (owner, _folder) = serve();
    let (Worker { memory, cache, .. }, models) = placed(&owner, SHORT, &[&[]]);
    let stream = models[0].computation;
    let shared = cache.pool().address()..cache.pool().address() + cache.pool().bytes();
    let first = allocate(memory, GRANULE, stream).unwrap();
    drop(owner);
    let second = allocate(memory, GRANULE, stream).unwrap();
    assert!(shared.contains(&first) && shared.contains(&second), "it has the range for as long as blocks are there");
    [first, second].into_iter().for_each(|block| memory.free(block).unwrap());
    assert!(!shared.contains(&allocate(memory, GRANULE, stream).unwrap()));
    cache.clear_shared_cache(stream).unwrap();
}

#[test]
fn a_range_freed_in_a_capture_is_given_back_after_it() {
    let (owner, _folder) = serve();
    let [(first, one), (second, other)] = [(); 2].map(|()| placed(&owner, SHORT, &[&[]]));
    let held = allocate(first.memory, GRANULE, one[0].computation).unwrap();
    let captured = first.driver.create_stream(Priority::Default).unwrap();
    let allocator = first.memory.allocator();
    let pool = PoolId(0, 7);
    allocator.begin_pool(pool, PoolUse::Capture, Box::new(move |stream| stream == captured)).unwrap();
    first.memory.free(held).unwrap();
    refused(second.memory, GRANULE, other[0].computation);
    allocator.end_pool(pool).unwrap();
    assert_eq!(connect(&owner).status().unwrap().holdings, []);
    allocate(second.memory, GRANULE, other[0].computation).unwrap();
}

#[test]
fn a_waiting_client_gets_the_range_before_its_last_holder_does() {
    // The clock stands still, so a place in the queue is kept however rarely its holder gets to run.
    let (owner, _folder) = serve_by(Clock::manual());
    let [(first, one), (second, other)] = [(); 2].map(|()| placed(&owner, PATIENCE, &MODELS[..1]));
    transfer(&worker(&owner), MODELS[0], 1);
    let held = allocate(first.memory, GRANULE, one[0].computation).unwrap();
    let copies = copies_to_host(&second);
    let had = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let block = allocate(second.memory, GRANULE, other[0].computation).unwrap();
            had.store(1, Ordering::SeqCst);
            second.memory.free(block).unwrap();
        });
        looks_again(&second, copies);
        first.memory.free(held).unwrap();
        let again = allocate(first.memory, GRANULE, one[0].computation).unwrap();
        let had = had.load(Ordering::SeqCst);
        // Free the block before the assertion, which would otherwise keep the other thread waiting.
        first.memory.free(again).unwrap();
        assert_eq!(had, 1);
    });
}

#[test]
fn waits_are_run_by_who_was_named_for_it() {
    static RUN: AtomicUsize = AtomicUsize::new(0);
    let (owner, _folder) = serve();
    let Worker { memory, cache, driver } = worker(&owner);
    let cache = cache.with_waits_in(|wait| {
        RUN.fetch_add(1, Ordering::Relaxed);
        wait();
    });
    let stream = driver.create_stream(Priority::Default).unwrap();
    cache.insert_shared_cache_for_computation(stream).unwrap();
    for _ in 0..3 {
        allocate(memory, GRANULE, stream).unwrap();
    }
    assert_eq!(RUN.load(Ordering::Relaxed), 1, "the first waits for others, and no other does");
}

#[test]
fn published_parameters_are_read_as_they_were_published() {
    let (owner, _folder) = serve();
    let writer = worker(&owner);
    writer.cache.transfer_parameters(StreamId::NULL).unwrap();
    allocate(writer.memory, 4096, StreamId::NULL).unwrap();
    writer.cache.publish_parameters(b"one").unwrap();
    let reader = worker(&owner);
    reader.cache.place_parameters(StreamId::NULL).unwrap();
    assert_eq!(reader.cache.about_parameters().as_deref(), Some(&b"one"[..]));
    assert!(matches!(reader.cache.check_parameters(), Err(ShareError::Outstanding { outstanding: 1 })));
    assert!(allocate(reader.memory, 8192, StreamId::NULL).is_err());
}

#[test]
fn transferred_parameters_are_not_published() {
    let (owner, _folder) = serve();
    transfer(&worker(&owner), MODELS[0], 1);
    let read = worker(&owner).cache.insert_shared_cache_for_parameter(StreamId::NULL, AccessMode::Read);
    assert!(matches!(read, Err(ShareError::NothingPublished)));
}

#[test]
fn a_transfer_that_is_dropped_is_none() {
    let (owner, _folder) = serve();
    let (Worker { memory, .. }, models) = &placed(&owner, SHORT, &MODELS);
    let writer = worker(&owner);
    writer.cache.transfer_parameters(StreamId::NULL).unwrap();
    drop(writer);
    let reason = refused(memory, GRANULE, models[0].computation);
    assert!(reason.starts_with("no parameters are published"), "{reason}");
}

#[test]
fn a_stream_has_each_range_once() {
    let (owner, _folder) = serve();
    let Worker { cache, memory, .. } = &worker(&owner);
    cache.place_parameters(StreamId::NULL).unwrap();
    let error = cache.place_parameters(StreamId::NULL).unwrap_err();
    assert!(matches!(error, ShareError::AlreadyInserted(RangeUse::Parameters)), "{error}");
    allocate(memory, 64, StreamId::NULL).unwrap();
    // From here on the stream's tensors are not parameters.
    cache.insert_shared_cache_for_computation(StreamId::NULL).unwrap();
    let (parameters, bytes) = cache.parameters();
    assert!(!(parameters..parameters + bytes).contains(&allocate(memory, 64, StreamId::NULL).unwrap()));
}
