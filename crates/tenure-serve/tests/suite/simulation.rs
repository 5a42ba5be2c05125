//! A simulation of a hundred models on a device with room for ten: the scheduler against simpler rules, in virtual
//! time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::drawn::Random;
use tenure_serve::scheduler::{
    Batch, Decision, ModelId, ModelSpec, RequestId, RequestSpec, Scheduler, SchedulerConfig,
};

const MODELS: usize = 100;
const MAX_ROWS: usize = 16;
const CHUNK: u64 = 32 << 20;
const CAPACITY: u64 = 10 * 13 * CHUNK;
const PATIENCE: Duration = ms(200);
const DEADLINE: Duration = ms(1000);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a model's size: 128 MiB to 704 MiB.
fn bytes(model: usize) -> u64 {
    (4 + (model as u64 * 7) % 19) * CHUNK
}

/// Returns the time to copy bytes at 25 GB/s.
fn copy(bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / 25e9)
}

fn compute(rows: usize) -> Duration {
    ms(3) + Duration::from_micros(250) * rows as u32
}

/// Generates arrival times by a Poisson process, and models by Zipf's law.
fn trace(seed: u64, per_second: f64, seconds: f64) -> Vec<(Duration, usize)> {
    let mut random = Random(seed);
    let (mut at, mut trace) = (0.0, Vec::new());
    loop {
        at -= (1.0 - random.unit()).ln() / per_second;
        if at > seconds {
            return trace;
        }
        trace.push((Duration::from_secs_f64(at), random.zipf(MODELS)));
    }
}

#[derive(Debug)]
struct Report {
    /// The requests that were answered before the deadline, a second.
    goodput: f64,
    p99: Duration,
    /// The 99th percentile of requests for the less popular half of the models.
    rare_p99: Duration,
    rare_in_time: f64,
}

fn report(trace: &[(Duration, usize)], waits: &[Option<Duration>]) -> Report {
    let p99 = |least: usize| {
        let of = trace.iter().zip(waits).filter(|((_, model), _)| *model >= least);
        // A request that was never answered waited forever.
        let mut sorted: Vec<Duration> = of.map(|(_, wait)| wait.unwrap_or(Duration::MAX)).collect();
        sorted.sort();
        sorted[sorted.len() * 99 / 100]
    };
    let in_time = |least: usize| {
        let of = trace.iter().zip(waits).filter(|((_, model), _)| *model >= least);
        of.filter(|(_, wait)| wait.is_some_and(|wait| wait <= DEADLINE)).count() as f64
    };
    let rare = trace.iter().filter(|(_, model)| *model >= MODELS / 2).count() as f64;
    Report {
        goodput: in_time(0) / trace.last().unwrap().0.as_secs_f64(),
        p99: p99(0),
        rare_p99: p99(MODELS / 2),
        rare_in_time: in_time(MODELS / 2) / rare,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// First come, first served; consecutive requests for one model run together.
    Fifo,
    /// The oldest request, with all others that wait for its model.
    FifoBatched,
    /// The oldest request for a resident model, if there is one.
    ResidentFirst,
}

/// Simulates a rule: models are loaded whole, the least recently used leaves, and requests for the chosen model run
/// together.
fn by_rule(rule: Rule, trace: &[(Duration, usize)]) -> Report {
    let mut arriving = trace.iter().enumerate().peekable();
    let mut queue: VecDeque<(usize, Duration, usize)> = VecDeque::new();
    let mut resident: Vec<usize> = Vec::new();
    let mut waits = vec![None; trace.len()];
    let mut now = Duration::ZERO;
    loop {
        while let Some((id, (at, model))) = arriving.next_if(|(_, (at, _))| *at <= now) {
            queue.push_back((id, *at, *model));
        }
        queue.retain(|(_, at, _)| *at + DEADLINE > now);
        let first = match rule {
            Rule::Fifo | Rule::FifoBatched => queue.front(),
            Rule::ResidentFirst => queue.iter().find(|(.., model)| resident.contains(model)).or(queue.front()),
        };
        let Some((.., model)) = first.copied() else {
            let Some((_, (at, _))) = arriving.peek() else { return report(trace, &waits) };
            now = *at;
            continue;
        };
        let mut batch = Vec::new();
        let mut is_row = true;
        queue.retain(|(id, at, other)| {
            is_row &= *other == model || rule != Rule::Fifo;
            let rides = *other == model && is_row && batch.len() < MAX_ROWS;
            batch.extend(rides.then_some((*id, *at)));
            !rides
        });
        let is_here = resident.contains(&model);
        resident.retain(|other| *other != model);
        while resident.iter().map(|other| bytes(*other)).sum::<u64>() + bytes(model) > CAPACITY {
            resident.remove(0);
        }
        resident.push(model);
        let missing = if is_here { Duration::ZERO } else { copy(bytes(model)) };
        now += compute(batch.len()).max(missing);
        batch.iter().for_each(|(id, at)| waits[*id] = Some(now - *at));
    }
}

/// Simulates the scheduler on an executor that computes while it copies, with or without copying ahead.
fn by_scheduler(is_ahead: bool, trace: &[(Duration, usize)]) -> Report {
    let config = SchedulerConfig { patience: PATIENCE, chunk_bytes: CHUNK, ..SchedulerConfig::default() };
    let mut scheduler = Scheduler::new(config);
    let device = scheduler.add_device(CAPACITY);
    let model = |model| ModelSpec {
        bytes: bytes(model),
        max_rows: MAX_ROWS as u32,
        max_queued: usize::MAX,
        ..ModelSpec::default()
    };
    let models: Vec<ModelId> = (0..MODELS).map(|index| scheduler.add_model(model(index)).unwrap()).collect();

    let mut arriving = trace.iter().enumerate().peekable();
    let mut names: Vec<(RequestId, usize)> = Vec::new();
    let mut waits = vec![None; trace.len()];
    // The link runs one copy after the other.
    let mut link = Duration::ZERO;
    let mut copies: Vec<(Duration, ModelId, Duration)> = Vec::new();
    let mut running: Option<(Duration, Batch)> = None;
    let mut now = Duration::ZERO;
    loop {
        copies.retain(|(end, model, took)| {
            if *end <= now {
                scheduler.loaded(device, *model, *took, now);
            }
            *end > now
        });
        if let Some((_, batch)) = running.take_if(|(end, _)| *end <= now) {
            for id in scheduler.finished(batch.id, Some(compute(batch.requests.len())), now) {
                let (_, index) = names[names.binary_search_by_key(&id, |(id, _)| *id).unwrap()];
                waits[index] = Some(now - trace[index].0);
            }
        }
        while let Some((index, (at, model))) = arriving.next_if(|(_, (at, _))| *at <= now) {
            let request = RequestSpec { deadline: Some(*at + DEADLINE), ..RequestSpec::new(models[*model]) };
            names.extend(scheduler.submit(request, now).ok().map(|id| (id, index)));
        }
        let mut begin = |copies: &mut Vec<_>, model, bytes| {
            let took = copy(bytes);
            link = link.max(now) + took;
            copies.push((link, model, took));
        };
        while let Some(decision) = scheduler.poll(now) {
            let Decision::Run(batch) = decision else { continue };
            if batch.load_bytes > 0 {
                begin(&mut copies, batch.model, batch.load_bytes);
            }
            let there = copies.iter().find(|(_, model, _)| *model == batch.model).map_or(now, |(end, ..)| *end);
            running = Some(((now + compute(batch.requests.len())).max(there), batch));
        }
        if let Some(model) = scheduler.upcoming(device, now).filter(|_| is_ahead)
            && let Ok(Some(load)) = scheduler.prefetch(device, model, now)
        {
            begin(&mut copies, model, load.bytes);
        }
        let events = copies.iter().map(|(end, ..)| *end).chain(running.iter().map(|(end, _)| *end));
        let arrival = arriving.peek().map(|(_, (at, _))| *at);
        match events.chain(arrival).chain(scheduler.next_wake(now)).min() {
            Some(next) => now = next,
            None => return report(trace, &waits),
        }
    }
}

#[derive(Debug)]
struct Reports {
    fifo: Report,
    batched: Report,
    resident_first: Report,
    ours: Report,
    ahead: Report,
}

fn reports(seed: u64, per_second: f64) -> Reports {
    let trace = trace(seed, per_second, 12.0);
    let reports = Reports {
        fifo: by_rule(Rule::Fifo, &trace),
        batched: by_rule(Rule::FifoBatched, &trace),
        resident_first: by_rule(Rule::ResidentFirst, &trace),
        ours: by_scheduler(false, &trace),
        ahead: by_scheduler(true, &trace),
    };
    println!("{per_second} requests a second, seed {seed}: {reports:#?}");
    reports
}

#[test]
fn more_is_answered_in_time_than_by_first_come_first_served() {
    for seed in [1, 2] {
        let Reports { fifo, batched, ours, ahead, .. } = reports(seed, 300.0);
        assert!(ours.goodput > 8.0 * fifo.goodput);
        assert!(ours.goodput > 1.02 * batched.goodput && ours.rare_in_time > batched.rare_in_time);
        assert!(ahead.goodput > ours.goodput && ahead.rare_in_time > 0.99);
    }
}

#[test]
fn rare_models_are_answered_as_all_others() {
    for seed in [1, 2] {
        let Reports { batched, resident_first, ours, ahead, .. } = reports(seed, 200.0);
        assert!(ours.rare_p99 < ours.p99 + PATIENCE);
        for other in [batched, resident_first] {
            assert!(ours.p99 < other.p99.mul_f64(0.9) && ahead.p99 < other.p99.mul_f64(0.75));
            assert!(ours.rare_p99 < other.rare_p99.mul_f64(0.9) && ahead.rare_p99 < other.rare_p99.mul_f64(0.75));
        }
    }
}
