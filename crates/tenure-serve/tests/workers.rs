//! Tests of models that workers compute, and of workers that die.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod served;

use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use served::moody::{self, ABORT, GREED, HANG, LOOP, PANIC, SPIN};
use served::processes::{is_stopped, is_there, kill_while_computing, leave_computing, signal, workers};
use served::{Served, example_models, floats, integers, probe, request, until};
use tenure_nn::networks::Architectures;
use tenure_serve::protocol::InferRequest;
use tenure_serve::service::Service;
use tenure_serve::serving::{Serving, ServingError, ServingOptions};

#[test]
#[ignore = "a worker of the other tests"]
fn is_a_worker() {
    moody::be_a_worker();
}

#[test]
fn workers_answer_what_this_process_does_while_models_come_and_go() {
    let requests = |seed: u64| -> InferRequest {
        let mut random = SmallRng::seed_from_u64(seed);
        match seed % 3 {
            0 => {
                let pixels: Vec<f32> = (0..2 * 28 * 28).map(|_| random.random()).collect();
                request("digits", vec![floats("image", &[2, 1, 28, 28], &pixels)])
            }
            1 => request("next-byte", vec![integers("tokens", &[1, 3], &[72, random.random_range(0..256), 9])]),
            _ => {
                let inputs =
                    vec![integers("input_ids", &[1, 2], &[5, 3]), integers("attention_mask", &[1, 2], &[1, 1])];
                request("tiny-sentences", inputs)
            }
        }
    };
    let here = Served::examples();
    // The models have 700 kB, 440 kB and 40 kB.
    let there = moody::serve(example_models(), 800_000);
    thread::scope(|scope| {
        for client in 0..2 {
            let here = &here;
            let there = &there;
            scope.spawn(move || {
                for seed in 0..30 {
                    let request = requests(client * 100 + seed);
                    assert_eq!(there.infer(&request).unwrap().outputs, here.infer(&request).unwrap().outputs);
                    assert!(there.memory() <= 800_000);
                }
            });
        }
    });
    let switches: u64 = there.serving.snapshot().models.iter().map(|model| model.switches).sum();
    assert!(switches > 5, "{switches}");
    let (status, reason) = there.infer(&request("next-byte", vec![integers("tokens", &[1, 1], &[999])])).unwrap_err();
    assert!(status == 400 && !reason.is_empty(), "{reason}");
    for name in ["digits", "next-byte", "tiny-sentences"] {
        assert_eq!(there.post(&format!("/v2/repository/models/{name}/unload")).0, 200);
    }
    assert_eq!(there.memory(), 0);
    for worker in there.serving.workers() {
        let maps = std::fs::read_to_string(format!("/proc/{worker}/maps")).unwrap();
        assert!(!maps.contains("memfd:digits") && !maps.contains("memfd:next-byte"));
    }
}

#[test]
fn a_worker_that_is_killed_fails_its_batch_and_another_goes_on() {
    let served = moody::serve(moody::models(&["killed", "other"]), 1 << 20);
    assert_eq!(served.mood("killed", 2.0).unwrap().0, 6.0);
    let [active, standby] = workers(&served);
    kill_while_computing(&served, active, standby);
    let (answer, new) = served.mood("killed", 2.0).unwrap();
    assert!(answer == 6.0 && ![active, standby].contains(&new) && !is_there(active));
    // The death of the worker that stands by affects no request.
    until("three workers", || served.serving.workers().len() == 3);
    let idle = served.serving.workers()[2];
    signal("KILL", idle);
    until("it is gone", || !is_there(idle));
    assert_eq!(served.mood("killed", 4.0), Ok((12.0, new)));
    until("three workers", || served.serving.workers().len() == 3);
    let all = served.serving.workers();
    assert!(!all.contains(&idle) && served.get("/metrics").1.contains("tenure_worker_deaths_total 2"));
    drop(served);
    until("no worker is left", || !all.iter().any(|worker| is_there(*worker)));
}

#[test]
fn a_batch_that_had_not_begun_is_run_again() {
    let served = moody::serve(moody::models(&["again"]), 1 << 20);
    assert!(served.mood("again", 1.0).is_ok());
    let [active, standby] = workers(&served);
    signal("STOP", active);
    until("it stands still", || is_stopped(active));
    thread::scope(|scope| {
        let asked = [(); 2].map(|()| scope.spawn(|| served.mood("again", 3.0)));
        // The first request goes to the worker at once, so that the other waits.
        until("one is given to the worker", || {
            served.serving.snapshot().models.iter().map(|model| model.queued).sum::<u64>() == 1
        });
        assert!(asked.iter().all(|asked| !asked.is_finished()));
        signal("KILL", active);
        for asked in asked {
            assert_eq!(asked.join().unwrap(), Ok((9.0, standby)));
        }
    });
}

#[test]
fn a_network_that_ends_its_process_is_served_on() {
    let served = moody::serve(moody::models(&["aborts", "good"]), 1 << 20);
    for _ in 0..4 {
        let (status, reason) = served.mood("aborts", ABORT).unwrap_err();
        assert!(status == 503 && reason.contains("SIGABRT"), "{reason}");
        assert_eq!(served.mood("good", 1.0).unwrap().0, 3.0);
    }
    assert_eq!(served.mood("aborts", 1.0).unwrap().0, 3.0);
}

#[test]
fn a_model_that_hangs_spares_the_others_and_its_worker_is_replaced_at_its_timeout() {
    let served = moody::serve(moody::models(&["hangs", "other"]), 1 << 20);
    let (_, first) = served.mood("hangs", 1.0).unwrap();
    let hurried = InferRequest { timeout: Some(Duration::from_millis(300)), ..probe::ask("hangs", HANG) };
    thread::scope(|scope| {
        let hanging = scope.spawn(|| served.infer(&hurried));
        until("it hangs", || served.is_endless("hangs"));
        assert_eq!(served.mood("other", 2.0).unwrap().0, 6.0);
        assert_eq!(hanging.join().unwrap().unwrap_err().0, 504);
        // Nothing else ends the worker.
        let (answer, second) = served.mood("hangs", 2.0).unwrap();
        assert!(answer == 6.0 && second != first);
    });
}

#[test]
fn a_request_that_takes_more_memory_than_there_is_is_the_callers_error() {
    let served = moody::serve(moody::models(&["greedy"]), 1 << 20);
    let (_, worker) = served.mood("greedy", 1.0).unwrap();
    for _ in 0..4 {
        let (status, reason) = served.mood("greedy", GREED).unwrap_err();
        assert!(status == 413 && reason.contains("memory") && !reason.contains("again"), "{status} {reason}");
        assert_eq!(served.mood("greedy", 2.0), Ok((6.0, worker)));
    }
}

#[test]
fn a_worker_that_gives_no_sign_of_life_is_replaced_and_the_server_is_not_ready_meanwhile() {
    let served = moody::serve(moody::models(&["still"]), 1 << 20);
    let (_, worker) = served.mood("still", 1.0).unwrap();
    signal("STOP", worker);
    until("the server is not ready", || served.get("/v2/health/ready").0 == 503);
    until("the worker is killed", || !is_there(worker));
    assert_eq!(served.mood("still", 2.0).unwrap().0, 6.0);
    until("the server is ready again", || served.get("/v2/health/ready").0 == 200);
}

#[test]
fn a_worker_whose_batches_take_long_yields_and_is_replaced_when_they_are_short_again() {
    let served = moody::serve(moody::models(&["heavy", "light"]), 1 << 20);
    let (_, light) = served.mood("light", 1.0).unwrap();
    let (_, normal) = served.mood("heavy", 1.0).unwrap();
    // It is answered only because the niceness is raised while it computes, and stays so.
    let (_, nice) = served.mood("heavy", SPIN).unwrap();
    assert_eq!(nice, normal);
    let mut short_batches = 0;
    let replaced = loop {
        let (answer, worker) = served.mood("heavy", 2.0).unwrap();
        assert_eq!(answer, 6.0);
        if worker != nice {
            break worker;
        }
        short_batches += 1;
        assert!(short_batches < 100, "the worker yields for ever");
    };
    assert!(short_batches > 1, "one short batch says little");
    until("the nice worker is gone", || !is_there(nice));
    assert_eq!(served.mood("heavy", SPIN).unwrap().1, replaced);
    assert_eq!(served.mood("light", 1.0), Ok((3.0, light)));
    assert!(served.get("/metrics").1.contains("tenure_worker_deaths_total 0"));
}

#[test]
fn a_model_does_not_get_the_worker_that_yields_for_another() {
    let served = moody::serve(moody::models(&["heavy", "light"]), 1 << 20);
    let (_, nice) = served.mood("heavy", SPIN).unwrap();
    assert_eq!(served.post("/v2/repository/models/heavy/unload").0, 200);
    until("the nice worker is gone", || !is_there(nice));
    // It is answered only if its worker's niceness is normal before.
    assert_eq!(served.mood("light", SPIN).unwrap().0, -18.0);
}

#[test]
fn a_network_that_panics_ends_no_process() {
    let served = moody::serve(moody::models(&["panics"]), 1 << 20);
    let [active, _] = workers(&served);
    let (status, reason) = served.mood("panics", PANIC).unwrap_err();
    assert!(status == 500 && reason.contains("the network panicked") && reason.contains("as it should"), "{reason}");
    assert_eq!(served.mood("panics", 2.0), Ok((6.0, active)));
}

#[test]
fn an_abandoned_batch_ends_at_the_next_weight() {
    let served = moody::serve(moody::models(&["left"]), 1 << 20);
    assert!(served.mood("left", 1.0).is_ok());
    let [active, _] = workers(&served);
    leave_computing(&served, "left", LOOP);
    // It would go on forever.
    assert_eq!(served.mood("left", 2.0), Ok((6.0, active)));
}

#[test]
fn a_request_whose_time_passes_while_it_is_computed_is_answered_at_once() {
    let served = moody::serve(moody::models(&["late"]), 1 << 20);
    assert!(served.mood("late", 1.0).is_ok());
    // The model computes until the batch is abandoned: there is an answer only because the time has passed.
    let hurried = InferRequest { timeout: Some(Duration::from_millis(200)), ..probe::ask("late", LOOP) };
    assert_eq!(served.infer(&hurried).unwrap_err().0, 504);
    assert_eq!(served.mood("late", 2.0).unwrap().0, 6.0);
}

#[test]
fn a_worker_that_does_not_end_an_abandoned_batch_is_ended() {
    let served = moody::serve(moody::models(&["hangs"]), 1 << 20);
    assert!(served.mood("hangs", 1.0).is_ok());
    let [_, standby] = workers(&served);
    leave_computing(&served, "hangs", HANG);
    assert_eq!(served.mood("hangs", 2.0), Ok((6.0, standby)));
}

#[test]
fn a_command_that_starts_no_worker_is_an_error_at_once() {
    let folder = moody::models(&[]);
    let mut options = ServingOptions::new(folder.path(), 1 << 20);
    for (program, expected) in [("/nowhere/worker", "No such file"), ("/bin/false", "exit status: 1")] {
        let mut command = moody::command();
        (command.program, command.arguments) = (program.into(), Vec::new());
        options.worker = Some(command);
        let error = Serving::start(options.clone(), Architectures::none()).err().unwrap();
        assert!(matches!(error, ServingError::Worker(_)) && error.to_string().contains(expected), "{error}");
    }
}
