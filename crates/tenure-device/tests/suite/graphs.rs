//! Graphs: work that is captured once, and launched any number of times.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use tenure_alloc::Request;
use tenure_core::StreamId;
use tenure_device::graph::{Graph, GraphGate};
use tenure_device::memory::{DeviceMemory, MemoryConfig, MemoryError};
use tenure_device::{Call, Driver, EventKind, Priority, STREAMS_PER_POOL, Stream, StreamGuard, StreamKind};

use crate::common::{Tested, drivers, read, sim};

/// Returns the memory of a device for the rest of the process, as graphs need it.
fn memory(driver: &Tested) -> &'static DeviceMemory {
    memory_by("paged", driver)
}

/// Returns such memory with another policy.
fn memory_by(policy: &str, driver: &Tested) -> &'static DeviceMemory {
    let config = MemoryConfig { policy: policy.parse().unwrap(), ..MemoryConfig::default() };
    Box::leak(Box::new(DeviceMemory::new(driver.shared(), config).unwrap()))
}

#[test]
fn captured_work_runs_with_each_launch_and_not_before() {
    for driver in drivers() {
        let stream = driver.create_stream(Priority::Default).unwrap();
        let [from, to] = [0, 1].map(|_| driver.malloc(16).unwrap());
        driver.copy_to_device(from, &[1; 16], stream).unwrap();
        driver.copy_to_device(to, &[0; 16], stream).unwrap();

        driver.begin_capture(stream).unwrap();
        assert!(driver.is_capturing(stream).unwrap() && !driver.is_capturing(StreamId::NULL).unwrap());
        driver.copy_on_device(to, from, 16, stream).unwrap();
        driver.memset(from, 5, 4, stream).unwrap();
        let graph = driver.end_capture(stream).unwrap();
        assert!(!driver.is_capturing(stream).unwrap());
        driver.synchronize().unwrap();
        assert_eq!(read(&*driver, to, 16), [0; 16]);

        driver.launch_graph(graph, stream).unwrap();
        driver.synchronize().unwrap();
        assert_eq!(read(&*driver, to, 16), [1; 16]);
        driver.launch_graph(graph, stream).unwrap();
        driver.synchronize().unwrap();
        assert_eq!(read(&*driver, to, 5), [5, 5, 5, 5, 1]);

        driver.destroy_graph(graph).unwrap();
        assert!(driver.launch_graph(graph, stream).is_err());
        [from, to].into_iter().for_each(|address| driver.free(address).unwrap());
        driver.destroy_stream(stream).unwrap();
    }
}

#[test]
fn a_side_stream_joins_a_capture_by_its_events() {
    for driver in drivers() {
        let [main, side] = [0, 1].map(|_| driver.create_stream(Priority::Default).unwrap());
        let [fork, join] = [0, 1].map(|_| driver.create_event(EventKind::Order).unwrap());
        let address = driver.malloc(32).unwrap();
        driver.begin_capture(main).unwrap();
        driver.memset(address, 1, 16, main).unwrap();
        driver.record_event(fork, main).unwrap();
        driver.wait_event(side, fork).unwrap();
        assert!(driver.is_capturing(side).unwrap());
        driver.copy_on_device(address + 16, address, 8, side).unwrap();
        driver.record_event(join, side).unwrap();
        driver.memset(address + 24, 3, 8, main).unwrap();
        driver.wait_event(main, join).unwrap();
        driver.memset(address, 2, 4, main).unwrap();
        let graph = driver.end_capture(main).unwrap();

        // The events and the streams may be destroyed: the order that they gave is in the graph.
        [fork, join].into_iter().for_each(|event| driver.destroy_event(event).unwrap());
        driver.destroy_stream(side).unwrap();
        for _ in 0..3 {
            driver.launch_graph(graph, main).unwrap();
            let mut bytes = [0; 32];
            driver.copy_from_device(&mut bytes, address, main).unwrap();
            assert_eq!(bytes, std::array::from_fn::<u8, 32, _>(|at| [2, 1, 1, 1, 1, 1, 3, 3][at / 4]));
        }
        driver.destroy_graph(graph).unwrap();
        driver.free(address).unwrap();
        driver.destroy_stream(main).unwrap();
    }
}

#[test]
fn a_side_stream_that_does_not_come_back_leaves_no_graph() {
    for driver in drivers() {
        let [main, side] = [0, 1].map(|_| driver.create_stream(Priority::Default).unwrap());
        let fork = driver.create_event(EventKind::Order).unwrap();
        let address = driver.malloc(8).unwrap();
        driver.begin_capture(main).unwrap();
        driver.record_event(fork, main).unwrap();
        driver.wait_event(side, fork).unwrap();
        driver.memset(address, 1, 8, side).unwrap();
        assert!(driver.end_capture(main).is_err());
        assert!(!driver.is_capturing(main).unwrap());
        driver.memset(address, 4, 8, main).unwrap();
        driver.synchronize_stream(main).unwrap();
        driver.synchronize_stream(side).unwrap();
        assert_eq!(read(&*driver, address, 8), [4; 8]);
        driver.destroy_event(fork).unwrap();
        driver.free(address).unwrap();
        [main, side].into_iter().for_each(|stream| driver.destroy_stream(stream).unwrap());
    }
}

#[test]
fn waiting_for_a_captured_stream_ends_its_capture() {
    let wait: [fn(&dyn Driver, StreamId) -> bool; 3] = [
        |driver, stream| driver.synchronize_stream(stream).is_err(),
        |driver, stream| driver.query_stream(stream).is_err(),
        |driver, stream| driver.host_function(stream, Box::new(|| ())).is_err(),
    ];
    for driver in drivers() {
        for (number, wait) in wait.iter().enumerate() {
            let stream = driver.create_stream(Priority::Default).unwrap();
            driver.begin_capture(stream).unwrap();
            assert!(wait(&*driver, stream));
            let ended = driver.end_capture(stream);
            // The driver never saw the host function.
            assert!(ended.is_err() || number == 2);
            let _ = ended.map(|graph| driver.destroy_graph(graph).unwrap());
            driver.memset(0, 0, 0, stream).unwrap();
            driver.synchronize_stream(stream).unwrap();
            driver.destroy_stream(stream).unwrap();
        }
        assert!(driver.begin_capture(StreamId::NULL).is_err());
    }
}

#[test]
fn the_null_stream_takes_no_part_in_a_capture() {
    for driver in drivers() {
        let stream = driver.create_stream(Priority::Default).unwrap();
        let event = driver.create_event(EventKind::Order).unwrap();
        driver.begin_capture(stream).unwrap();
        driver.record_event(event, stream).unwrap();
        assert!(driver.wait_event(StreamId::NULL, event).is_err());
        assert!(driver.end_capture(stream).is_err());
        driver.memset(0, 0, 0, StreamId::NULL).unwrap();
        driver.synchronize().unwrap();
        driver.destroy_event(event).unwrap();
        driver.destroy_stream(stream).unwrap();
    }
}

#[test]
fn a_graph_waits_at_a_gate_for_the_last_record_before_its_launch() {
    for driver in drivers() {
        let memory = memory(&driver);
        let address = driver.malloc(16).unwrap();
        let copies = memory.streams().pooled(Priority::Default).unwrap();
        let mut gate = GraphGate::new(memory).unwrap();
        let (graph, ()) = Graph::capture(memory, |stream| {
            gate.wait(stream)?;
            Ok::<_, MemoryError>(memory.driver().copy_on_device(address + 8, address, 8, stream.id())?)
        })
        .unwrap();
        for round in 1..4 {
            driver.memset(address, round, 8, copies.id()).unwrap();
            gate.record(&copies).unwrap();
            graph.launch().unwrap();
            // The next round's copy must not come before this round's graph.
            driver.synchronize().unwrap();
            assert_eq!(read(&*driver, address + 8, 8), [round; 8]);
        }
        drop(graph);
        driver.free(address).unwrap();
    }
}

#[test]
fn memory_of_a_capture_is_the_graphs_own_until_both_are_gone() {
    for driver in drivers() {
        let memory = memory(&driver);
        let (graph, out) = Graph::capture(memory, |stream| {
            let [one, two] = [0, 1].map(|_| memory.allocate(Request::new(4096, stream.id())));
            let one = one?.address;
            let two = two?.address;
            memory.driver().memset(one, 9, 4096, stream.id())?;
            memory.driver().copy_on_device(two, one, 4096, stream.id())?;
            memory.free(one)?;
            Ok::<_, MemoryError>(two)
        })
        .unwrap();
        // A block from outside the capture lies elsewhere, though a block of the pool is free.
        let outside = memory.allocate(Request::new(4096, StreamId::NULL)).unwrap().address;
        driver.memset(outside, 1, 4096, StreamId::NULL).unwrap();
        graph.launch().unwrap();
        driver.synchronize().unwrap();
        assert_eq!(read(&*driver, out, 4096), [9; 4096]);
        assert_eq!(read(&*driver, outside, 4096), [1; 4096]);
        assert_eq!(memory.allocator().live_blocks(graph.pool()).unwrap(), [out]);
        memory.free(outside).unwrap();
        drop(graph);
        memory.free(out).unwrap();
        memory.allocator().release_cached().unwrap();
        assert_eq!(memory.backing().held_bytes(), 0);
    }
}

#[test]
fn memory_of_a_graph_that_is_gone_is_given_back_after_its_launches() {
    for driver in drivers() {
        for policy in ["paged", "expandable", "native"] {
            let memory = memory_by(policy, &driver);
            let side = memory.streams().pooled(Priority::Default).unwrap();
            let (graph, ()) = Graph::capture(memory, |stream| {
                let block = memory.allocate(Request::new(2 << 20, stream.id()))?;
                memory.driver().memset(block.address, 9, 2 << 20, stream.id())?;
                memory.free(block.address)
            })
            .unwrap();
            {
                // No memory is ever allocated on it.
                let _current = StreamGuard::new(&side);
                (0..4).for_each(|_| graph.launch().unwrap());
            }
            drop(graph);
            memory.allocator().release_cached().unwrap();
            assert_eq!(memory.backing().held_bytes(), 0);
            driver.synchronize().unwrap();
        }
    }
}

#[test]
fn others_frees_wait_for_their_streams_while_a_thread_captures() {
    for driver in drivers() {
        for policy in ["paged", "expandable", "native"] {
            let memory = memory_by(policy, &driver);
            let [own, other] = [0, 1].map(|_| memory.streams().pooled(Priority::Default).unwrap());
            let target = memory.allocate(Request::new(2 << 20, other.id())).unwrap().address;
            let (graph, ()) = Graph::capture(memory, |_| {
                thread::scope(|s| {
                    s.spawn(|| {
                        let block = memory.allocate(Request::new(2 << 20, own.id()))?.address;
                        memory.driver().memset(block, 3, 2 << 20, own.id())?;
                        own.lead_to(&other)?;
                        memory.driver().copy_on_device(target, block, 2 << 20, other.id())?;
                        memory.record_use(block, other.id())?;
                        memory.free(block)
                    })
                    .join()
                    .unwrap()
                })
            })
            .unwrap();
            let again = memory.allocate(Request::new(2 << 20, own.id())).unwrap().address;
            driver.memset(again, 5, 2 << 20, own.id()).unwrap();
            driver.synchronize().unwrap();
            assert_eq!(read(&*driver, target, 2 << 20), vec![3; 2 << 20]);
            drop(graph);
        }
    }
}

#[test]
fn a_capture_that_fails_leaves_nothing() {
    for driver in drivers() {
        let memory = memory(&driver);
        let failed = Graph::capture(memory, |stream| {
            let block = memory.allocate(Request::new(1 << 20, stream.id()))?;
            memory.free(block.address)?;
            Err::<(), _>(MemoryError::PerThreadStream)
        });
        assert!(matches!(failed, Err(MemoryError::PerThreadStream)));
        assert!(!memory.allocator().is_capturing());
        let waited = Graph::capture(memory, |stream| Ok::<_, MemoryError>(stream.synchronize()?));
        assert!(waited.is_err());
        memory.allocator().release_cached().unwrap();
        assert_eq!(memory.backing().held_bytes(), 0);
        let (graph, ()) = Graph::capture(memory, |_| Ok::<_, MemoryError>(())).unwrap();
        graph.launch().unwrap();
        driver.synchronize().unwrap();
    }
}

#[test]
fn a_capture_that_panics_leaves_its_stream_to_others() {
    for driver in drivers() {
        let memory = memory(&driver);
        let mut captured = None;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            Graph::capture::<(), MemoryError>(memory, |stream| {
                captured = Some(stream.clone());
                memory.driver().memset(memory.allocate(Request::new(64, stream.id()))?.address, 0, 64, stream.id())?;
                panic!("on purpose");
            })
            .map(drop)
        }));
        assert!(panicked.is_err());
        let stream = captured.unwrap();
        assert!(!driver.is_capturing(stream.id()).unwrap() && !memory.allocator().is_capturing());
        assert_eq!(memory.streams().current(), memory.streams().null());
        stream.synchronize().unwrap();
        let (graph, ()) = Graph::capture(memory, |_| Ok::<_, MemoryError>(())).unwrap();
        graph.launch().unwrap();
        driver.synchronize().unwrap();
    }
}

#[test]
fn a_capture_that_fails_leaves_no_graph() {
    let driver = sim(0);
    let memory: &'static DeviceMemory =
        Box::leak(Box::new(DeviceMemory::new(driver.clone(), MemoryConfig::default()).unwrap()));
    let failed = Graph::capture(memory, |_| Err::<(), _>(MemoryError::PerThreadStream));
    assert!(failed.is_err());
    assert_eq!(driver.calls(Some(Call::EndCapture)), driver.calls(Some(Call::DestroyGraph)));
}

#[test]
fn a_captured_stream_is_given_to_no_other_caller() {
    for driver in drivers() {
        let memory = memory(&driver);
        let others = || (0..STREAMS_PER_POOL).map(|_| memory.streams().pooled(Priority::Default).unwrap());
        let before: Vec<Stream> = others().collect();
        let body = |stream: &Stream| {
            assert_eq!(stream.kind(), StreamKind::Capture);
            assert!(!before.contains(stream) && others().all(|other| other != *stream));
            Ok::<_, MemoryError>(stream.id())
        };
        let [first, second] = [0, 1].map(|_| Graph::capture(memory, body).unwrap().1);
        assert_eq!(first, second, "one capture after the other has it");
    }
}
