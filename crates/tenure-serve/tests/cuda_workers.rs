//! Tests of models on a CUDA device that workers compute, and of workers that die: on a simulated device unless
//! `TENURE_TEST_DRIVER` is `cuda`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod served;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::{env, fs, io, thread};

use served::cuda::{
    CHUNK, MODELS, alone, ask, ask_at_the_same_time, device_memories, expect_peace, input, models, options, switches,
    unload_all_and_load_one,
};
use served::moody::{self, ABORT, LOOP, PANIC};
use served::processes::{
    is_stopped, is_there, kill_while_computing, kill_workers_under_load, leave_computing, signal, workers,
};
use served::{Served, request, until};
use tempfile::TempDir;
use tenure_device::memory::DeviceMemory;
use tenure_device::{Event, EventHandle, EventKind, Executor, Priority};
use tenure_nn::networks::Architectures;
use tenure_serve::service::Service as _;
use tenure_serve::serving::{Serving, ServingError, ServingOptions};
use tenure_serve::worker::WorkerCommand;

#[test]
#[ignore = "a worker of the other tests"]
fn is_a_worker() {
    device_memories();
    moody::be_a_worker();
}

/// Starts a server that computes in workers, with room on the device for `rooms` models.
fn serve(folder: TempDir, rooms: u64) -> Served {
    let options = ServingOptions { worker: Some(moody::command()), ..options(&folder, rooms * CHUNK) };
    Served::start(folder, options, moody::architectures())
}

/// Returns the free device memory in bytes, after a server is gone and cached memory is released.
fn free_bytes(memory: &DeviceMemory) -> u64 {
    memory.allocator().release_cached().unwrap();
    memory.driver().memory_info().unwrap().free
}

/// Returns whether as much is free as before, except for the little that the driver of a real device keeps for itself.
fn is_as_free(memory: &DeviceMemory, before: u64) -> bool {
    let is_simulated = matches!(memory.driver().executor(), Executor::Sim(_));
    free_bytes(memory) + if is_simulated { 0 } else { 64 << 20 } >= before
}

#[test]
fn workers_answer_what_this_process_does_while_models_come_and_go() {
    let (_alone, memory) = alone();
    let expected: Vec<Vec<u8>> = {
        let folder = models();
        let options = options(&folder, 8 * CHUNK);
        let here = Served::start(folder, options, Architectures::default());
        MODELS.map(|model| ask(&here, model)).to_vec()
    };
    let held = memory.backing().held_bytes();
    let free = free_bytes(memory);
    {
        let served = serve(models(), 2);
        for turn in 0..6 {
            for (model, expected) in MODELS.iter().zip(&expected) {
                assert!(ask(&served, model) == *expected, "{model} in turn {turn}");
            }
            assert!((1..=2 * CHUNK).contains(&served.memory()));
        }
        ask_at_the_same_time(&served, &expected);
        assert!(switches(&served) > 8, "{}", switches(&served));
        unload_all_and_load_one(&served, &expected);
    }
    assert!(memory.backing().held_bytes() <= held && is_as_free(memory, free));
    expect_peace(memory);
}

#[test]
fn a_worker_that_is_killed_fails_its_batch_and_loses_no_weights() {
    let (_alone, memory) = alone();
    let served = serve(moody::models(&["killed", "other"]), 2);
    assert_eq!(served.mood("killed", 2.0).unwrap().0, 6.0);
    // The second call is measured, and the model's weights are rearranged.
    assert_eq!(served.mood("killed", 2.0).unwrap().0, 6.0);
    assert_eq!((0..2).map(|_| served.mood("other", 2.0).unwrap().0).sum::<f32>(), 12.0);
    // A switch is counted when its copies are over, which may be after the answer.
    until("both were brought", || switches(&served) == 2);
    let [active, standby] = workers(&served);
    kill_while_computing(&served, active, standby);
    assert_eq!(served.mood("killed", 2.0), Ok((6.0, standby)));
    let [still, new] = workers(&served);
    assert!(still == standby && new != active && !is_there(active));
    // The standby worker, and then the active one while it has nothing to compute.
    signal("KILL", new);
    until("it is gone", || !is_there(new));
    assert_eq!(served.mood("killed", 4.0), Ok((12.0, standby)));
    let [_, newer] = workers(&served);
    signal("KILL", standby);
    until("the other takes its place", || served.serving.workers().first() == Some(&newer));
    assert_eq!((served.mood("other", 4.0), served.mood("killed", 1.0)), (Ok((12.0, newer)), Ok((3.0, newer))));
    assert_eq!((switches(&served), served.memory()), (2, 2 * CHUNK), "all weights stayed on the device");
    assert!(served.get("/metrics").1.contains("tenure_worker_deaths_total 3"));
    drop(served);
    until("no worker is left", || !is_there(newer));
    expect_peace(memory);
}

#[test]
fn a_batch_that_had_not_begun_is_run_again() {
    let (_alone, memory) = alone();
    let served = serve(moody::models(&["again"]), 1);
    assert!(served.mood("again", 1.0).is_ok());
    until("it was brought", || switches(&served) == 1);
    let [active, standby] = workers(&served);
    signal("STOP", active);
    until("it stands still", || is_stopped(active));
    thread::scope(|scope| {
        let asked = [(); 2].map(|()| scope.spawn(|| served.mood("again", 3.0)));
        // The first request goes to the worker at once, so that the other waits.
        until("one is given to the worker", || {
            served.serving.snapshot().models.iter().map(|model| model.queued).sum::<u64>() == 1
        });
        signal("KILL", active);
        for asked in asked {
            assert_eq!(asked.join().unwrap(), Ok((9.0, standby)));
        }
    });
    assert_eq!(switches(&served), 1);
    expect_peace(memory);
}

/// Another process, which passes an event when it is told to.
struct EventHolder {
    process: Child,
    /// The output from which the event's name is read. Other output, of the test runner, is skipped.
    output: BufReader<ChildStdout>,
}

impl EventHolder {
    fn start() -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "holds_an_event", "--ignored", "--nocapture"]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    fn handle(&mut self) -> EventHandle {
        let lines = self.output.by_ref().lines().map(Result::unwrap);
        let name = lines.into_iter().find_map(|line| line.split_once("event ").map(|(_, name)| name.to_owned()));
        let bytes: Vec<u8> = name.unwrap().split(' ').map(|byte| byte.parse().unwrap()).collect();
        EventHandle(bytes.try_into().unwrap())
    }

    fn pass(mut self) {
        self.process.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for EventHolder {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Makes copies to a device wait for another process, on all streams that a server may copy on. Returns `None` on a
/// real device, which has no event that waits forever.
fn hold_copies(memory: &'static DeviceMemory) -> Option<EventHolder> {
    let Executor::Sim(_) = memory.driver().executor() else { return None };
    let mut holder = EventHolder::start();
    let event = Event::open(Arc::clone(memory.driver()), &holder.handle()).unwrap();
    let mut streams = Vec::new();
    loop {
        let stream = memory.streams().pooled(Priority::High).unwrap();
        if streams.contains(&stream.id()) {
            return Some(holder);
        }
        event.wait(&stream).unwrap();
        streams.push(stream.id());
    }
}

#[test]
#[ignore = "a process of another test"]
fn holds_an_event() {
    let memory = device_memories()[0];
    let Executor::Sim(driver) = memory.driver().executor() else { return };
    let stream = memory.streams().pooled(Priority::Default).unwrap();
    driver.busy_until(stream.id(), 1_000_000).unwrap();
    let mut event = Event::new(Arc::clone(memory.driver()), EventKind::Interprocess);
    event.record(&stream).unwrap();
    let name = event.export().unwrap().0.map(|byte| byte.to_string()).join(" ");
    println!("event {name}");
    io::stdin().read_line(&mut String::new()).unwrap();
    memory.driver().synchronize().unwrap();
}

#[test]
fn a_worker_begins_before_weights_are_there_and_one_that_is_killed_then_loses_none() {
    let (_alone, memory) = alone();
    let served = serve(moody::models(&["arriving"]), 1);
    let [active, standby] = workers(&served);
    let Some(copies) = hold_copies(memory) else { return };
    thread::scope(|scope| {
        let running = scope.spawn(|| served.mood("arriving", 1.0));
        until("it computes", || served.has_begun("arriving"));
        assert!(!running.is_finished());
        signal("KILL", active);
        let (status, reason) = running.join().unwrap().unwrap_err();
        assert!(status == 503 && reason.contains("SIGKILL"), "{reason}");
        let running = scope.spawn(|| served.mood("arriving", 2.0));
        copies.pass();
        assert_eq!(running.join().unwrap(), Ok((6.0, standby)));
    });
    until("its weights are there", || switches(&served) == 1);
    expect_peace(memory);
}

#[test]
fn a_network_that_ends_its_process_is_served_on() {
    let (_alone, memory) = alone();
    let served = serve(moody::models(&["aborts", "good"]), 2);
    for _ in 0..3 {
        let (status, reason) = served.mood("aborts", ABORT).unwrap_err();
        assert!(status == 503 && reason.contains("SIGABRT"), "{reason}");
        assert_eq!(served.mood("good", 1.0).unwrap().0, 3.0);
    }
    assert_eq!(served.mood("aborts", 1.0).unwrap().0, 3.0);
    expect_peace(memory);
}

#[test]
fn a_network_that_panics_or_computes_an_abandoned_batch_ends_no_process() {
    let (_alone, memory) = alone();
    let served = serve(moody::models(&["panics", "left"]), 2);
    let [active, _] = workers(&served);
    let (status, reason) = served.mood("panics", PANIC).unwrap_err();
    assert!(status == 500 && reason.contains("the network panicked") && reason.contains("as it should"), "{reason}");
    assert_eq!(served.mood("panics", 2.0), Ok((6.0, active)));
    assert_eq!(served.mood("left", 1.0), Ok((3.0, active)));
    // It would go on forever.
    leave_computing(&served, "left", LOOP);
    assert_eq!(served.mood("left", 2.0), Ok((6.0, active)));
    expect_peace(memory);
}

const DEATHS: usize = 20;

#[test]
fn deaths_under_memory_pressure_lose_no_request_and_leave_nothing() {
    let (_alone, memory) = alone();
    let free = free_bytes(memory);
    let names = ["one", "two", "three"];
    {
        let served = serve(moody::models(&names), 2);
        names.iter().for_each(|name| assert_eq!(served.mood(name, 1.0).unwrap().0, 3.0));
        kill_workers_under_load(&served, names, DEATHS);
        names.iter().for_each(|name| assert_eq!(served.mood(name, 1.0).unwrap().0, 3.0));
        assert!(served.memory() <= 2 * CHUNK);
    }
    assert!(is_as_free(memory, free), "{} of {free}", free_bytes(memory));
    expect_peace(memory);
}

#[test]
fn a_command_that_starts_no_worker_is_an_error_at_once() {
    let (_alone, _) = alone();
    let folder = moody::models(&[]);
    for (program, expected) in [("/nowhere/worker", "No such file"), ("/bin/false", "exit status: 1")] {
        let worker = Some(WorkerCommand { program: program.into(), arguments: Vec::new() });
        let options = ServingOptions { worker, ..options(&folder, CHUNK) };
        let error = Serving::start(options, Architectures::none()).err().unwrap();
        assert!(matches!(error, ServingError::Worker(_)) && error.to_string().contains(expected), "{error}");
    }
}

/// Returns the number of open descriptors of this process.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn models_that_are_written_again_and_workers_that_are_killed_leave_nothing_open() {
    let (_alone, _memory) = alone();
    let served = serve(models(), 2);
    MODELS.iter().for_each(|model| drop(ask(&served, model)));
    let weights = |model: &str| served.folder.path().join(model).join("model.safetensors");
    let replace = |model: &str| {
        let new = served.folder.path().join("new");
        let content = fs::read(weights(model)).unwrap();
        fs::write(&new, content).unwrap();
        fs::rename(&new, weights(model)).unwrap();
        until("it was looked at", || served.post(&format!("/v2/repository/models/{model}/load")).0 == 200);
        until("it answers", || served.infer(&request(model, vec![input(model)])).is_ok());
    };
    let kill = |model: &str| {
        signal("KILL", workers(&served)[0]);
        until("it answers", || served.infer(&request(model, vec![input(model)])).is_ok());
        until("two workers", || workers(&served).len() == 2);
    };
    for what in [&replace as &dyn Fn(&str), &kill] {
        MODELS.iter().for_each(|model| what(model));
        let before = descriptors();
        for _ in 0..4 {
            MODELS.iter().for_each(|model| what(model));
        }
        assert!(descriptors() <= before + 4, "{before} {}", descriptors());
    }
}
