//! Times of driver calls on a GPU, printed to be read: small calls, copies of registered memory, and memory calls
//! beside their model. Without a GPU it prints only the reason.
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]
#![allow(clippy::unwrap_used, reason = "a benchmark ends where a call fails")]

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/cuda/common.rs"]
mod common;

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use common::{argument, device, kernel};
use tenure_alloc::ChunkId;
use tenure_core::StreamId;
use tenure_device::cuda::LaunchConfig;
use tenure_device::{AccessMode, CopyCalls, Driver, EventCalls, EventKind, MemoryCalls, Priority, StreamCalls, cost};

fn main() {
    small_calls();
    copies_from_and_to_registered_memory();
    memory_calls_beside_their_model();
}

/// Prints the mean time of one call of `action`, over many calls.
fn time(what: &str, mut action: impl FnMut()) {
    const COUNT: u32 = 2000;
    action();
    let start = Instant::now();
    (0..COUNT).for_each(|_| action());
    println!("{what:32} {:8.3} µs", start.elapsed().as_secs_f64() * 1e6 / f64::from(COUNT));
}

fn small_calls() {
    let Some(driver) = device() else { return };
    let spin = kernel(&driver, "spin");
    let measure = || {
        let stream = driver.create_stream(Priority::Default).unwrap();
        let event = driver.create_event(EventKind::Order).unwrap();
        time("memory_info", || _ = black_box(driver.memory_info().unwrap()));
        time("query_stream", || _ = black_box(driver.query_stream(stream).unwrap()));
        time("record_event", || driver.record_event(event, stream).unwrap());
        driver.synchronize_stream(stream).unwrap();
        time("query_event", || _ = black_box(driver.query_event(event).unwrap()));
        time("wait_event", || driver.wait_event(StreamId::NULL, event).unwrap());
        time("create and destroy an event", || {
            driver.destroy_event(driver.create_event(EventKind::Order).unwrap()).unwrap();
        });
        let mut cycles = 0i64;
        time("launch", || {
            // SAFETY: the kernel takes a 64-bit number, and touches no memory.
            unsafe { driver.launch(spin, LaunchConfig::linear(1), stream, &mut [argument(&mut cycles)]).unwrap() };
        });
        driver.synchronize().unwrap();
        driver.destroy_event(event).unwrap();
        driver.destroy_stream(stream).unwrap();
    };
    println!("on a thread without a context:");
    thread::scope(|scope| scope.spawn(measure).join().unwrap());
}

fn copies_from_and_to_registered_memory() {
    const BYTES: usize = 256 << 20;
    let Some(driver) = device() else { return };
    let mut host = vec![7u8; BYTES];
    let address = driver.malloc(BYTES as u64).unwrap();
    let stream = driver.create_stream(Priority::Default).unwrap();
    let [start, end] = [0; 2].map(|_| driver.create_event(EventKind::Timing).unwrap());
    let copies = |what: &str, host: &mut [u8]| {
        let gb_s = |copy: &dyn Fn()| {
            copy();
            driver.record_event(start, stream).unwrap();
            copy();
            driver.record_event(end, stream).unwrap();
            driver.synchronize_stream(stream).unwrap();
            BYTES as f64 / driver.elapsed_us(start, end).unwrap() / 1e3
        };
        let source = host.as_ptr();
        let target = host.as_mut_ptr();
        // SAFETY: `host` outlives the copies, which are waited for.
        let to = gb_s(&|| unsafe { driver.copy_to_device_async(address, source, BYTES as u64, stream).unwrap() });
        // SAFETY: as above, and no other code touches it.
        let from = gb_s(&|| unsafe { driver.copy_from_device_async(target, address, BYTES as u64, stream).unwrap() });
        println!("{what:12} to the device {to:6.1} GB/s, from it {from:6.1} GB/s");
    };
    copies("pageable", &mut host);
    let begin = Instant::now();
    // SAFETY: `host` stays where it is until it is unregistered.
    unsafe { driver.register_host(host.as_mut_ptr(), BYTES as u64, AccessMode::ReadWrite).unwrap() };
    println!("registering 256 MiB takes {:?}", begin.elapsed());
    copies("registered", &mut host);
    driver.unregister_host(host.as_mut_ptr()).unwrap();
    driver.unregister_host(host.as_mut_ptr()).unwrap_err();
    assert!(host.iter().all(|&byte| byte == 7));
    driver.free(address).unwrap();
    driver.destroy_event(start).unwrap();
    driver.destroy_event(end).unwrap();
    driver.destroy_stream(stream).unwrap();
}

fn memory_calls_beside_their_model() {
    const ROUNDS: usize = 15;
    let Some(driver) = device() else { return };
    println!("median µs of a call, and as modelled:");
    for bytes in [2u64 << 20, 16 << 20, 32 << 20, 64 << 20, 256 << 20, 1 << 30] {
        let mut times: [Vec<f64>; 7] = Default::default();
        for _ in 0..ROUNDS {
            let mut call = 0;
            let mut time = |action: &mut dyn FnMut()| {
                let start = Instant::now();
                action();
                times[call].push(start.elapsed().as_secs_f64() * 1e6);
                call += 1;
            };
            let mut segment = 0;
            let mut chunk = ChunkId(0);
            let range = driver.reserve(bytes).unwrap();
            time(&mut || segment = driver.malloc(bytes).unwrap());
            time(&mut || driver.free(segment).unwrap());
            time(&mut || chunk = driver.create(bytes).unwrap());
            time(&mut || driver.map(range, chunk).unwrap());
            time(&mut || driver.set_access(range, bytes, AccessMode::ReadWrite).unwrap());
            time(&mut || driver.unmap(range, bytes).unwrap());
            time(&mut || driver.release(chunk).unwrap());
            driver.unreserve(range, bytes).unwrap();
        }
        print!("{:5} MiB", bytes >> 20);
        let model = [cost::MALLOC, cost::FREE, cost::CREATE, cost::MAP, cost::SET_ACCESS, cost::UNMAP, cost::RELEASE];
        let names = ["malloc", "free", "create", "map", "set_access", "unmap", "release"];
        for ((name, mut times), model) in names.into_iter().zip(times).zip(model) {
            times.sort_by(f64::total_cmp);
            print!("  {name} {:.1} ({:.1})", times[ROUNDS / 2], model.us(bytes));
        }
        println!();
    }
}
