//! Tests of the scheduler's rules, one by one.

use std::time::Duration;

use tenure_serve::scheduler::{
    Batch, ClientId, Decision, DeviceId, ModelId, ModelSpec, Refusal, RegisterError, RequestId, RequestSpec, Scheduler,
    SchedulerConfig, Unanswered,
};

const COMPUTE: Duration = ms(10);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Creates devices with room for 10 chunks of one byte, each of which takes 10 ms to copy.
fn scheduler(devices: usize) -> (Scheduler, Vec<DeviceId>) {
    let config = SchedulerConfig { chunk_bytes: 1, copy_bytes_per_second: 100.0, ..SchedulerConfig::default() };
    let mut scheduler = Scheduler::new(config);
    let devices = (0..devices).map(|_| scheduler.add_device(10)).collect();
    (scheduler, devices)
}

fn model(bytes: u64) -> ModelSpec {
    ModelSpec { bytes, max_rows: 4, ..ModelSpec::default() }
}

fn ask(scheduler: &mut Scheduler, model: ModelId, now: Duration) -> RequestId {
    scheduler.submit(RequestSpec::new(model), now).unwrap()
}

fn run(scheduler: &mut Scheduler, now: Duration) -> Batch {
    match scheduler.poll(now) {
        Some(Decision::Run(batch)) => batch,
        other => panic!("{other:?}"),
    }
}

fn answer(request: RequestId, outcome: Unanswered) -> Option<Decision> {
    Some(Decision::Answer { request, outcome })
}

/// Runs a request for a model, so that its weights are resident.
fn warm(scheduler: &mut Scheduler, model: ModelId, now: Duration) {
    ask(scheduler, model, now);
    let batch = run(scheduler, now);
    scheduler.loaded(batch.device, model, ms(10) * batch.load_bytes as u32, now);
    assert_eq!(scheduler.finished(batch.id, Some(COMPUTE), now), batch.requests);
}

#[test]
fn weights_stay_or_go_on_coming_when_the_process_that_computed_with_them_ends() {
    for has_come in [false, true] {
        let (mut scheduler, device) = scheduler(1);
        let model = scheduler.add_model(model(4)).unwrap();
        let request = ask(&mut scheduler, model, ms(0));
        let batch = run(&mut scheduler, ms(0));
        if has_come {
            scheduler.loaded(batch.device, model, ms(4), ms(4));
        }
        scheduler.started(batch.id, ms(4));
        assert_eq!(scheduler.interrupted(batch.id, ms(5)), [request]);
        scheduler.loaded(batch.device, model, ms(6), ms(6));
        assert_eq!(scheduler.residency(device[0]).missing_bytes(model), Some(0));
        ask(&mut scheduler, model, ms(7));
        assert_eq!(run(&mut scheduler, ms(7)).load_bytes, 0);
    }
}

#[test]
fn a_model_that_could_never_run_is_not_registered() {
    let (mut scheduler, _) = scheduler(1);
    let refused = scheduler.add_model(model(11)).unwrap_err();
    assert_eq!(refused, RegisterError::TooLarge { bytes: 11, available: 10, needed: 11 });
    scheduler.add_model(model(7)).unwrap();
    let pinned = ModelSpec { is_pinned: true, ..model(4) };
    assert_eq!(scheduler.add_model(pinned.clone()), Err(RegisterError::PinsTooMuch { bytes: 4, largest: 7 }));
    scheduler.add_model(ModelSpec { bytes: 3, ..pinned }).unwrap();
    assert_eq!(scheduler.add_model(model(8)), Err(RegisterError::TooLarge { bytes: 8, available: 7, needed: 11 }));
    assert!(matches!(scheduler.add_model(ModelSpec { max_rows: 0, ..model(1) }), Err(RegisterError::NoBatch { .. })));
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let (mut scheduler, _) = scheduler(1);
    let name = scheduler.add_model(ModelSpec { max_queued: 8, ..model(2) }).unwrap();
    (0..8).for_each(|_| {
        ask(&mut scheduler, name, ms(0));
    });
    // This is the time for two bytes of weights and two batches.
    let refused = scheduler.submit(RequestSpec::new(name), ms(0)).unwrap_err();
    assert_eq!(refused, Refusal::Full { queued: 8, retry_after: ms(20) + COMPUTE * 2 });
    assert_eq!(refused.to_string(), "8 requests wait for the model, and no more may: try again in 40 ms");
    let large = scheduler.submit(RequestSpec { rows: 5, ..RequestSpec::new(name) }, ms(0)).unwrap_err();
    assert_eq!(
        large.to_string(),
        "a request of 5 rows is larger than a batch of 4: split it, or raise the model's max_rows"
    );
}

#[test]
fn a_deadline_that_cannot_be_met_is_refused_once_that_is_certain() {
    let (mut scheduler, _) = scheduler(1);
    let name = scheduler.add_model(model(2)).unwrap();
    let by = |at| RequestSpec { deadline: Some(ms(at)), ..RequestSpec::new(name) };
    let early = scheduler.submit(by(1), ms(0)).unwrap();
    assert_eq!(scheduler.next_wake(ms(0)), Some(ms(1)));
    assert_eq!(scheduler.poll(ms(1)), answer(early, Unanswered::Expired));
    // The first run takes its weights' time, and a few more may be slow.
    (0..9).for_each(|_| warm(&mut scheduler, name, ms(2)));
    assert_eq!(scheduler.submit(by(11), ms(2)), Err(Refusal::TooLate { left: ms(9), least: COMPUTE }));
    let first = ask(&mut scheduler, name, ms(2));
    let second = scheduler.submit(by(14), ms(2)).unwrap();
    // The deadline could still be met when the request was queued.
    assert_eq!(scheduler.poll(ms(5)), answer(second, Unanswered::TooLate));
    assert_eq!(run(&mut scheduler, ms(5)).requests, [first]);
}

#[test]
fn a_batch_waits_for_others_and_only_takes_those_of_its_shape() {
    let (mut scheduler, _) = scheduler(1);
    let name = scheduler.add_model(ModelSpec { max_delay: ms(5), ..model(2) }).unwrap();
    let mut ask = |rows, shape: u64, at| {
        let request = RequestSpec { rows, shape: [shape].into(), ..RequestSpec::new(name) };
        scheduler.submit(request, ms(at)).unwrap()
    };
    let [a, b, c, d] = [ask(1, 7, 0), ask(1, 8, 1), ask(2, 7, 2), ask(2, 7, 3)];
    // Five rows of one shape are more than a batch: the request that does not fit waits.
    let batch = run(&mut scheduler, ms(3));
    assert_eq!((batch.requests, batch.rows), (vec![a, c], 3));
    scheduler.finished(batch.id, Some(COMPUTE), ms(4));
    assert_eq!((scheduler.poll(ms(4)), scheduler.next_wake(ms(4))), (None, Some(ms(6))));
    let batch = run(&mut scheduler, ms(6));
    assert_eq!(batch.requests, [b]);
    scheduler.finished(batch.id, Some(COMPUTE), ms(7));
    assert_eq!(scheduler.next_wake(ms(7)), Some(ms(8)));
    assert_eq!(run(&mut scheduler, ms(8)).requests, [d]);
}

#[test]
fn resident_models_go_first_until_another_is_due() {
    let (mut scheduler, _) = scheduler(1);
    let [here, absent] = [8, 7].map(|bytes| scheduler.add_model(model(bytes)).unwrap());
    warm(&mut scheduler, here, ms(0));
    let waits = ask(&mut scheduler, absent, ms(0));
    for at in (0..200).step_by(10) {
        ask(&mut scheduler, here, ms(at));
        let batch = run(&mut scheduler, ms(at));
        assert_eq!((batch.model, batch.load_bytes), (here, 0));
        scheduler.finished(batch.id, Some(COMPUTE), ms(at + 10));
    }
    ask(&mut scheduler, here, ms(200));
    let batch = run(&mut scheduler, ms(200));
    assert_eq!((batch.requests, batch.load_bytes), (vec![waits], 7));
    // Only as many chunks leave as needed, from the end of the weights.
    assert_eq!(batch.evict.iter().map(|left| (left.model, left.chunks)).collect::<Vec<_>>(), [(here, 5)]);
}

#[test]
fn priority_goes_first_and_waits_less() {
    let (mut scheduler, _) = scheduler(1);
    let [low, high] = [0, 2].map(|priority| scheduler.add_model(ModelSpec { priority, ..model(2) }).unwrap());
    ask(&mut scheduler, low, ms(0));
    ask(&mut scheduler, high, ms(0));
    let batch = run(&mut scheduler, ms(0));
    assert_eq!(batch.model, high);
    // Among requests of one model, the request's own priority decides.
    let [first, second] = [0, 1].map(|priority| {
        let request = RequestSpec { rows: 3, priority, ..RequestSpec::new(high) };
        scheduler.submit(request, ms(1)).unwrap()
    });
    scheduler.finished(batch.id, Some(COMPUTE), ms(2));
    let batch = run(&mut scheduler, ms(2));
    assert_eq!(batch.requests, [second]);
    scheduler.finished(batch.id, Some(COMPUTE), ms(3));
    assert_eq!(run(&mut scheduler, ms(51)).requests, [first], "it is due after 50 ms, the other model's after 200");
}

#[test]
fn a_request_that_runs_is_cancelled_for_itself_alone() {
    let (mut scheduler, devices) = scheduler(1);
    let name = scheduler.add_model(model(2)).unwrap();
    let [a, b, c] = [0, 0, 0].map(|at| ask(&mut scheduler, name, ms(at)));
    assert!(scheduler.cancel(c));
    assert_eq!(scheduler.poll(ms(0)), answer(c, Unanswered::Cancelled));
    let batch = run(&mut scheduler, ms(0));
    assert!(scheduler.cancel(a) && !scheduler.cancel(a) && !scheduler.cancel(c));
    let discard = Decision::Discard { device: devices[0], batch: batch.id, request: a };
    assert_eq!(scheduler.poll(ms(1)), Some(discard));
    assert_eq!(scheduler.poll(ms(1)), answer(a, Unanswered::Cancelled));
    assert_eq!(scheduler.finished(batch.id, Some(COMPUTE), ms(10)), [b]);
    assert!(scheduler.finished(batch.id, Some(COMPUTE), ms(10)).is_empty(), "it is over");
}

#[test]
fn requests_that_a_lost_executor_had_not_started_run_again_once_and_first() {
    let (mut scheduler, devices) = scheduler(1);
    let name = scheduler.add_model(ModelSpec { max_rows: 1, ..model(2) }).unwrap();
    let [first, second] = [0, 1].map(|at| ask(&mut scheduler, name, ms(at)));
    run(&mut scheduler, ms(1));
    scheduler.executor_lost(devices[0]);
    assert_eq!(scheduler.poll(ms(2)), None);
    scheduler.executor_ready(devices[0]);
    let batch = run(&mut scheduler, ms(3));
    assert_eq!((batch.requests, batch.load_bytes), (vec![first], 2), "nothing is left on the device");
    scheduler.executor_lost(devices[0]);
    assert_eq!(scheduler.poll(ms(4)), answer(first, Unanswered::Lost));
    scheduler.executor_ready(devices[0]);
    let batch = run(&mut scheduler, ms(5));
    assert_eq!(batch.requests, [second]);
    scheduler.started(batch.id, ms(5));
    scheduler.executor_lost(devices[0]);
    assert_eq!(scheduler.poll(ms(6)), answer(second, Unanswered::Lost));
}

#[test]
fn a_model_that_is_removed_answers_what_waits_and_leaves_when_it_has_run() {
    let (mut scheduler, devices) = scheduler(1);
    let name = scheduler.add_model(model(2)).unwrap();
    let runs = ask(&mut scheduler, name, ms(0));
    let batch = run(&mut scheduler, ms(0));
    let waits = ask(&mut scheduler, name, ms(1));
    assert!(scheduler.remove_model(name));
    assert_eq!(scheduler.poll(ms(1)), answer(waits, Unanswered::Removed));
    assert_eq!(scheduler.poll(ms(1)), None);
    assert_eq!(scheduler.submit(RequestSpec::new(name), ms(1)), Err(Refusal::UnknownModel));
    assert_eq!(scheduler.finished(batch.id, Some(COMPUTE), ms(30)), [runs]);
    assert_eq!(scheduler.poll(ms(30)), Some(Decision::Unload { device: devices[0], model: name }));
    assert_eq!(scheduler.residency(devices[0]).free_bytes(), 10);
}

#[test]
fn the_next_model_is_copied_while_one_computes() {
    let (mut scheduler, devices) = scheduler(1);
    let [a, b, c] = [5, 5, 5].map(|bytes| scheduler.add_model(model(bytes)).unwrap());
    warm(&mut scheduler, c, ms(0));
    ask(&mut scheduler, a, ms(0));
    let batch = run(&mut scheduler, ms(0));
    assert_eq!((batch.model, batch.evict.len(), scheduler.upcoming(devices[0], ms(0))), (a, 0, None));
    scheduler.loaded(devices[0], a, ms(50), ms(50));
    ask(&mut scheduler, b, ms(51));
    ask(&mut scheduler, c, ms(52));
    assert_eq!(scheduler.upcoming(devices[0], ms(52)), Some(b));
    assert_eq!(scheduler.prefetch(devices[0], b, ms(52)), Ok(None), "it would displace what is wanted, or runs");
    let Some(Decision::Run(last)) = ({
        scheduler.finished(batch.id, Some(COMPUTE), ms(60));
        scheduler.poll(ms(60))
    }) else {
        panic!("the device is idle")
    };
    assert_eq!(last.model, c);
    let load = scheduler.prefetch(devices[0], b, ms(61)).unwrap().unwrap();
    assert_eq!((load.bytes, load.evict[0].model, load.evict[0].chunks), (5, a, 5));
    assert_eq!(scheduler.upcoming(devices[0], ms(61)), None, "one after the other");
    scheduler.loaded(devices[0], b, ms(9), ms(70));
    scheduler.finished(last.id, Some(COMPUTE), ms(70));
    assert_eq!(run(&mut scheduler, ms(70)).load_bytes, 0);
}

#[test]
fn background_work_runs_when_nothing_waits_and_yields_at_once() {
    let (mut scheduler, devices) = scheduler(2);
    let name = scheduler.add_model(model(2)).unwrap();
    warm(&mut scheduler, name, ms(0));
    assert!(scheduler.begin_background(devices[0]) && scheduler.begin_background(devices[1]));
    assert!(!scheduler.must_yield(devices[0], ms(1)));
    ask(&mut scheduler, name, ms(1));
    // Only the device that has the model must yield.
    assert!(scheduler.must_yield(devices[0], ms(1)) && !scheduler.must_yield(devices[1], ms(1)));
    assert_eq!(scheduler.poll(ms(1)), None);
    scheduler.end_background(devices[0]);
    assert!(!scheduler.begin_background(devices[0]), "a request waits");
    assert_eq!(run(&mut scheduler, ms(2)).device, devices[0]);
}

#[test]
fn a_model_runs_where_it_is_until_it_is_worth_a_copy() {
    let (mut scheduler, devices) = scheduler(2);
    let [a, b] = [2, 2].map(|bytes| scheduler.add_model(model(bytes)).unwrap());
    warm(&mut scheduler, a, ms(0));
    ask(&mut scheduler, b, ms(0));
    let batch = run(&mut scheduler, ms(0));
    assert_eq!(batch.device, devices[1], "there is most room");
    scheduler.loaded(devices[1], b, ms(20), ms(0));
    scheduler.finished(batch.id, Some(COMPUTE), ms(20));

    ask(&mut scheduler, a, ms(20));
    assert_eq!(run(&mut scheduler, ms(20)).device, devices[0]);
    ask(&mut scheduler, a, ms(21));
    // The other device would have to copy for 20 ms, and this one is free in 9.
    assert_eq!((scheduler.poll(ms(21)), scheduler.next_wake(ms(21))), (None, Some(ms(30))));
    // With three more batches in the queue, copying is worth it.
    (0..12).for_each(|_| {
        ask(&mut scheduler, a, ms(22));
    });
    let batch = run(&mut scheduler, ms(22));
    assert_eq!((batch.device, batch.rows, batch.load_bytes), (devices[1], 4, 2));
}

#[test]
fn models_run_beside_each_other_and_each_runs_one_batch_at_a_time() {
    let mut scheduler = Scheduler::new(SchedulerConfig { chunk_bytes: 1, ..SchedulerConfig::default() });
    scheduler.add_parallel_device(10, 2);
    let [slow, quick, third] = [2, 2, 2].map(|bytes| scheduler.add_model(model(bytes)).unwrap());
    ask(&mut scheduler, slow, ms(0));
    let hung = run(&mut scheduler, ms(0));
    ask(&mut scheduler, slow, ms(1));
    assert_eq!(scheduler.poll(ms(1)), None, "the model computes already");
    for at in [2, 20] {
        ask(&mut scheduler, quick, ms(at));
        let batch = run(&mut scheduler, ms(at));
        assert_eq!(batch.model, quick);
        ask(&mut scheduler, third, ms(at + 1));
        assert_eq!(scheduler.poll(ms(at + 1)), None, "two batches run");
        scheduler.finished(batch.id, Some(COMPUTE), ms(at + 10));
        let batch = run(&mut scheduler, ms(at + 10));
        assert_eq!(batch.model, third);
        scheduler.finished(batch.id, Some(COMPUTE), ms(at + 15));
    }
    scheduler.finished(hung.id, Some(ms(60)), ms(60));
    assert_eq!(run(&mut scheduler, ms(60)).model, slow);
}

#[test]
fn no_model_takes_the_room_for_which_one_that_is_due_waits_unless_a_batch_that_does_not_end_holds_it() {
    for is_overdue in [false, true] {
        let mut scheduler = Scheduler::new(SchedulerConfig { chunk_bytes: 1, ..SchedulerConfig::default() });
        scheduler.add_parallel_device(10, 3);
        let [small, other, largest] = [2, 2, 10].map(|bytes| scheduler.add_model(model(bytes)).unwrap());
        ask(&mut scheduler, small, ms(0));
        let batch = run(&mut scheduler, ms(0));
        // The next batch is expected to take as long as this.
        scheduler.finished(batch.id, Some(if is_overdue { ms(20) } else { ms(400) }), ms(0));
        ask(&mut scheduler, small, ms(0));
        let running = run(&mut scheduler, ms(0));
        ask(&mut scheduler, largest, ms(0));
        ask(&mut scheduler, other, ms(1));
        let batch = run(&mut scheduler, ms(1));
        assert_eq!(batch.model, other, "the largest model is not due yet");
        scheduler.finished(batch.id, Some(COMPUTE), ms(11));
        ask(&mut scheduler, other, ms(200));
        if is_overdue {
            assert_eq!(run(&mut scheduler, ms(200)).model, other);
        } else {
            assert_eq!(scheduler.poll(ms(200)), None);
            scheduler.finished(running.id, Some(ms(400)), ms(400));
            assert_eq!(run(&mut scheduler, ms(400)).model, largest);
        }
    }
}

#[test]
fn a_request_that_runs_at_its_deadline_is_answered_then() {
    let (mut scheduler, devices) = scheduler(1);
    let name = scheduler.add_model(model(2)).unwrap();
    let request = scheduler.submit(RequestSpec { deadline: Some(ms(50)), ..RequestSpec::new(name) }, ms(0)).unwrap();
    let batch = run(&mut scheduler, ms(0));
    assert_eq!(scheduler.next_wake(ms(1)), Some(ms(50)));
    let discard = Decision::Discard { device: devices[0], batch: batch.id, request };
    assert_eq!(scheduler.poll(ms(50)), Some(discard));
    assert_eq!(scheduler.poll(ms(50)), answer(request, Unanswered::Expired));
    assert!(scheduler.finished(batch.id, Some(ms(60)), ms(60)).is_empty());
    assert_eq!(scheduler.next_wake(ms(60)), None);
}

#[test]
fn a_client_with_many_requests_lets_others_go_between() {
    let (mut scheduler, _) = scheduler(1);
    let [name, other] = [2, 2].map(|bytes| scheduler.add_model(ModelSpec { max_rows: 1, ..model(bytes) }).unwrap());
    warm(&mut scheduler, name, ms(0));
    warm(&mut scheduler, other, ms(0));
    let from = |client, model| RequestSpec { client: Some(ClientId(client)), ..RequestSpec::new(model) };
    for _ in 0..60 {
        scheduler.submit(from(1, name), ms(0)).unwrap();
    }
    let batch = run(&mut scheduler, ms(0));
    let same_model = scheduler.submit(from(2, name), ms(1)).unwrap();
    let other_model = scheduler.submit(from(3, other), ms(1)).unwrap();
    scheduler.finished(batch.id, Some(COMPUTE), ms(10));
    let mut answered = Vec::new();
    for at in (10..).step_by(10).take(40) {
        let batch = run(&mut scheduler, ms(at));
        answered.extend(scheduler.finished(batch.id, Some(COMPUTE), ms(at + 10)));
    }
    // Without turns, all 60 requests that came before would go first.
    let place = |request| answered.iter().position(|answered| *answered == request).unwrap();
    assert!(place(same_model) <= 2 && place(other_model) <= 23, "{answered:?}");
}

#[test]
fn a_client_takes_at_most_half_of_the_free_places_of_a_queue() {
    let (mut scheduler, _) = scheduler(1);
    let name = scheduler.add_model(ModelSpec { max_queued: 8, max_rows: 1, ..model(2) }).unwrap();
    let from = |client| RequestSpec { client: Some(ClientId(client)), ..RequestSpec::new(name) };
    let queued = |scheduler: &mut Scheduler, client| {
        (0..10).take_while(|_| scheduler.submit(from(client), ms(0)).is_ok()).count()
    };
    assert_eq!([1, 2, 3].map(|client| queued(&mut scheduler, client)), [4, 2, 1]);
    let continued = RequestSpec { is_continuation: true, ..from(1) };
    assert!(scheduler.submit(continued, ms(0)).is_ok(), "a request that was accepted goes on");
}

#[test]
fn a_batch_takes_no_more_than_the_longest_time_unless_it_is_one_request() {
    let (mut scheduler, _) = scheduler(1);
    let name = scheduler.add_model(ModelSpec { max_rows: 16, ..model(2) }).unwrap();
    assert_eq!(scheduler.size_within_a_batch(name), u64::MAX, "nothing is measured");
    warm(&mut scheduler, name, ms(0));
    let of = |rows: u32| RequestSpec { rows, size: u64::from(rows) * 64, ..RequestSpec::new(name) };
    // 64 elements take 100 ms: the first batch is not counted, since it waited for weights.
    scheduler.submit(of(1), ms(0)).unwrap();
    let batch = run(&mut scheduler, ms(0));
    scheduler.finished(batch.id, Some(ms(100)), ms(100));
    assert_eq!(scheduler.size_within_a_batch(name), 128);
    for _ in 0..3 {
        scheduler.submit(of(1), ms(100)).unwrap();
    }
    let batch = run(&mut scheduler, ms(100));
    assert_eq!(batch.requests.len(), 2);
    scheduler.finished(batch.id, Some(ms(200)), ms(300));
    scheduler.submit(of(8), ms(300)).unwrap();
    assert_eq!(run(&mut scheduler, ms(300)).requests.len(), 1);
}

#[test]
fn a_model_rests_for_as_long_as_it_is_told() {
    let (mut scheduler, _) = scheduler(1);
    let [resting, other] = [2, 2].map(|bytes| scheduler.add_model(model(bytes)).unwrap());
    scheduler.rest(resting, ms(70));
    let first = ask(&mut scheduler, resting, ms(0));
    ask(&mut scheduler, other, ms(1));
    let batch = run(&mut scheduler, ms(1));
    assert_eq!(batch.model, other);
    scheduler.finished(batch.id, Some(COMPUTE), ms(11));
    assert_eq!((scheduler.poll(ms(11)), scheduler.next_wake(ms(11))), (None, Some(ms(70))));
    assert_eq!(run(&mut scheduler, ms(70)).requests, [first]);
}
