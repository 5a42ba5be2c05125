//! Models on a device, brought and evicted in any order: on the simulated driver, which finds every missing wait, and
//! with `TENURE_TEST_DRIVER=cuda` on a real device.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::env;
use std::sync::Arc;

use proptest::prelude::*;
use tenure_device::graph::Graph;
use tenure_device::memory::{self, DeviceMemory, MemoryConfig};
use tenure_device::sim::{Failure, SimConfig, SimDriver};
use tenure_device::{Executor, MemoryCalls, Priority, Stream};
use tenure_switch::{Entry, Images, Manifest, Model, Origin, Switch, SwitchError, SwitchOptions};

type Memory = &'static DeviceMemory;

const CHUNK: u64 = 64 << 10;

fn simulated(seed: u64) -> (Arc<SimDriver>, Memory) {
    let config = SimConfig { seed, granularity_bytes: CHUNK, capacity_bytes: 1 << 30, ..SimConfig::default() };
    let driver = Arc::new(SimDriver::new(config));
    let memory = DeviceMemory::new(Arc::clone(&driver) as _, MemoryConfig::default()).unwrap();
    (driver, Box::leak(Box::new(memory)))
}

/// Returns the devices under test, and their smallest chunk size.
fn memories() -> Vec<(Memory, u64)> {
    if env::var("TENURE_TEST_DRIVER").is_ok_and(|driver| driver == "cuda") {
        let memory = memory::device(0).unwrap();
        return vec![(memory, memory.driver().granularity())];
    }
    (0..4).map(|seed| (simulated(seed).1, CHUNK)).collect()
}

/// Creates room for images, and for `budget_bytes` on the device.
fn opened(memory: Memory, chunk_bytes: u64, budget_bytes: u64) -> (Images, Switch) {
    let images = Images::new(100 * chunk_bytes, Some(Arc::clone(memory.driver()))).unwrap();
    let options = SwitchOptions { chunk_bytes, ..SwitchOptions::new(budget_bytes) };
    (images, Switch::new(memory, options).unwrap())
}

/// Returns a model of tensors, each full of one value. `groups` has the number of tensors in each group.
fn manifest(name: &str, tensors: &[(u64, u8)], groups: &[usize]) -> Arc<Manifest> {
    let ends = groups.iter().scan(0, |end, count| {
        *end += count;
        Some(*end)
    });
    Arc::new(
        Manifest::new(
            name,
            tensors
                .iter()
                .map(|&(bytes, value)| {
                    let origin = Origin::Made(Arc::new(move |bytes: &mut [u8]| bytes.fill(value)));
                    Entry { name: value.to_string(), bytes, origin }
                })
                .collect(),
            ends.collect(),
        )
        .unwrap(),
    )
}

/// Returns a model of roughly `chunks` chunks, whose first tensor has the value `first`.
fn model(chunk: u64, chunks: u64, first: u8) -> Arc<Manifest> {
    let sizes = [1, chunk / 2 + 17, 0, chunk * (chunks - 1), 300, chunk / 3];
    let tensors: Vec<_> = sizes.into_iter().zip(first..).collect();
    manifest(&format!("model-{first}"), &tensors, &[1, 2, 1, 2])
}

/// Computes with a model: copies the last byte of each tensor, after a wait for its group.
fn compute(memory: Memory, model: &Model, stream: &Stream, target: u64) -> Result<(), SwitchError> {
    let mut waited = None;
    for entry in 0..model.manifest().entries().len() {
        let group = model.manifest().group_of(entry);
        if waited.replace(group) != Some(group) {
            model.wait(group, stream)?;
        }
        let place = model.place(entry);
        if !place.is_empty() {
            memory.driver().copy_on_device(target + entry as u64, place.end - 1, 1, stream.id())?;
        }
    }
    Ok(())
}

/// Checks the result of [`compute`].
fn expect_answer(memory: Memory, model: &Model, stream: &Stream, target: u64) {
    let entries = model.manifest().entries();
    let mut answer = vec![0; entries.len()];
    memory.driver().copy_from_device(&mut answer, target, stream.id()).unwrap();
    for (byte, entry) in answer.into_iter().zip(entries).filter(|(_, entry)| entry.bytes > 0) {
        assert_eq!(byte.to_string(), entry.name, "{}", model.manifest().name());
    }
}

/// Brings a model, computes with it, and marks the use.
fn run(memory: Memory, images: &Images, model: &Model, stream: &Stream, target: u64) -> Result<u64, SwitchError> {
    let image = images.acquire(model.manifest())?;
    let loaded = model.load(&image)?;
    // Marks the use even of work that was put on the stream before a failure.
    compute(memory, model, stream, target).and(model.used_by(stream))?;
    Ok(loaded.copied_bytes)
}

fn expect_peace(memory: Memory) {
    memory.driver().synchronize().unwrap();
    if let Executor::Sim(sim) = memory.driver().executor() {
        assert_eq!(sim.fault(), None);
    }
}

#[test]
fn a_model_is_computed_with_while_it_comes_and_costs_nothing_while_it_stays() {
    for (memory, chunk) in memories() {
        let (images, switch) = opened(memory, chunk, 5 * chunk);
        let models = [model(chunk, 3, 1), model(chunk, 3, 50)].map(|model| switch.register(&model).unwrap());
        let stream = memory.streams().pooled(Priority::Default).unwrap();
        let target = memory.driver().malloc(64).unwrap();
        let bytes = models[0].manifest().bytes();
        assert_eq!(run(memory, &images, &models[0], &stream, target).unwrap(), bytes);
        expect_answer(memory, &models[0], &stream, target);
        assert_eq!(run(memory, &images, &models[0], &stream, target).unwrap(), 0);
        // The other model has no room before the first one is evicted.
        let said = run(memory, &images, &models[1], &stream, target).unwrap_err().to_string();
        assert!(said.contains("model-50") && said.contains(&format!("{} of the {}", 2 * chunk, 5 * chunk)), "{said}");
        // Takes chunks from the model's end, and no more than are needed.
        assert_eq!(models[0].evict(1), chunk);
        assert_eq!((models[0].resident_bytes(), switch.free_bytes()), (2 * chunk, 3 * chunk));
        run(memory, &images, &models[1], &stream, target).unwrap();
        expect_answer(memory, &models[1], &stream, target);
        // The part of the first model that stayed is not copied again.
        models[1].evict(usize::MAX);
        assert_eq!(run(memory, &images, &models[0], &stream, target).unwrap(), bytes - 2 * chunk);
        expect_answer(memory, &models[0], &stream, target);
        let statistics = switch.statistics();
        assert_eq!((statistics.loads, statistics.evicted_bytes), (3, 4 * chunk));
        assert_eq!(statistics.copied_bytes, 3 * bytes - 2 * chunk);
        assert_eq!((statistics.taken_bytes, statistics.peak_bytes), (5 * chunk, 5 * chunk));
        drop(models);
        switch.trim().unwrap();
        assert_eq!(switch.free_bytes(), 5 * chunk);
        let statistics = switch.statistics();
        assert_eq!((statistics.taken_bytes, statistics.peak_bytes), (0, 5 * chunk));
        memory.driver().free(target).unwrap();
        expect_peace(memory);
    }
}

#[test]
fn a_captured_graph_waits_for_groups_that_come_and_stays_right_when_its_model_left_and_came_back() {
    for (memory, chunk) in memories() {
        let (images, switch) = opened(memory, chunk, 4 * chunk);
        let models = [model(chunk, 3, 1), model(chunk, 3, 50)].map(|model| switch.register(&model).unwrap());
        let target = memory.driver().malloc(64).unwrap();
        let stream = memory.streams().current();
        // Drivers cannot capture a copy from where nothing is mapped.
        assert!(Graph::capture(memory, |stream| compute(memory, &models[0], stream, target)).is_err());
        let graphs = [0, 1].map(|index| {
            let model = &models[index];
            let other = &models[1 - index];
            other.evict(usize::MAX);
            model.load(&images.acquire(model.manifest()).unwrap()).unwrap();
            switch.settle().unwrap();
            let captured = Graph::capture(memory, |stream| compute(memory, model, stream, target));
            model.used_by(&stream).unwrap();
            captured.unwrap().0
        });
        for turn in 0..5 {
            let model = &models[turn % 2];
            let other = &models[(turn + 1) % 2];
            other.evict(usize::MAX);
            let image = images.acquire(model.manifest()).unwrap();
            model.load(&image).unwrap();
            graphs[turn % 2].launch().unwrap();
            model.used_by(&stream).unwrap();
            if turn > 2 {
                expect_answer(memory, model, &stream, target);
            }
        }
        memory.driver().synchronize().unwrap();
        drop(graphs);
        memory.driver().free(target).unwrap();
        expect_peace(memory);
    }
}

#[test]
fn work_that_does_not_wait_for_a_group_is_found() {
    let (driver, memory) = simulated(1);
    let images = Images::new(1 << 20, Some(Arc::clone(&driver) as _)).unwrap();
    let switch = Switch::new(memory, SwitchOptions { chunk_bytes: CHUNK, ..SwitchOptions::new(4 * CHUNK) }).unwrap();
    let model = switch.register(&model(CHUNK, 3, 1)).unwrap();
    model.load(&images.acquire(model.manifest()).unwrap()).unwrap();
    let target = driver.malloc(8).unwrap();
    let stream = memory.streams().current();
    assert!(memory.driver().copy_on_device(target, model.place(3).start, 1, stream.id()).is_err());
}

#[test]
fn a_model_larger_than_the_budget_is_refused_at_once() {
    let (_, memory) = simulated(0);
    let switch = Switch::new(memory, SwitchOptions { chunk_bytes: CHUNK, ..SwitchOptions::new(2 * CHUNK) }).unwrap();
    let said = switch.register(&model(CHUNK, 3, 1)).err().unwrap().to_string();
    assert!(said.contains("it can never be there"), "{said}");
    assert!(switch.register(&manifest("empty", &[], &[])).is_ok());
}

/// A random event of the test below.
#[derive(Clone, Debug)]
enum Event {
    Run { model: usize, stream: usize },
    Evict { model: usize, chunks: usize },
    Look { stream: usize },
    Replace { model: usize },
    Trim,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0_usize..4, 0_usize..3).prop_map(|(model, stream)| Event::Run { model, stream }),
        2 => (0_usize..4, 1_usize..4).prop_map(|(model, chunks)| Event::Evict { model, chunks }),
        2 => (0_usize..3).prop_map(|stream| Event::Look { stream }),
        1 => (0_usize..4).prop_map(|model| Event::Replace { model }),
        1 => Just(Event::Trim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn every_answer_is_right_whatever_comes_and_goes(seed: u64, events in prop::collection::vec(event(), 1..40)) {
        let (_, memory) = simulated(seed);
        let images = Images::new(9 * CHUNK, Some(Arc::clone(memory.driver()))).unwrap();
        let options = SwitchOptions { chunk_bytes: CHUNK, ..SwitchOptions::new(7 * CHUNK) };
        let switch = Switch::new(memory, options).unwrap();
        let manifests: Vec<_> = (0..4).map(|index| model(CHUNK, 1 + index, 10 * index as u8 + 1)).collect();
        let mut models: Vec<Model> = manifests.iter().map(|manifest| switch.register(manifest).unwrap()).collect();
        let streams: Vec<_> = (0..3).map(|_| memory.streams().pooled(Priority::Default).unwrap()).collect();
        let targets: Vec<_> = (0..3).map(|_| memory.driver().malloc(64).unwrap()).collect();
        let mut answers: [Option<usize>; 3] = [None; 3];
        for event in events {
            match event {
                Event::Run { model, stream } => {
                    for other in (0..4).filter(|other| *other != model) {
                        let missing = models[model].missing_bytes().saturating_sub(switch.free_bytes());
                        models[other].evict(missing.div_ceil(CHUNK) as usize);
                    }
                    if let Err(error) = run(memory, &images, &models[model], &streams[stream], targets[stream]) {
                        prop_assert!(matches!(error, SwitchError::NoHostRoom { .. }), "{}", error);
                        // Other images are still being copied.
                        switch.settle().unwrap();
                        run(memory, &images, &models[model], &streams[stream], targets[stream]).unwrap();
                    }
                    answers[stream] = Some(model);
                }
                Event::Evict { model, chunks } => drop(models[model].evict(chunks)),
                Event::Look { stream } => {
                    if let Some(model) = answers[stream] {
                        expect_answer(memory, &models[model], &streams[stream], targets[stream]);
                    }
                }
                Event::Replace { model } => {
                    models[model] = switch.register(&manifests[model]).unwrap();
                }
                Event::Trim => switch.trim().unwrap(),
            }
            let there: u64 = models.iter().map(Model::resident_bytes).sum();
            prop_assert_eq!(there + switch.free_bytes(), 7 * CHUNK);
        }
        for (stream, model) in answers.iter().enumerate().filter_map(|(stream, model)| Some((stream, (*model)?))) {
            expect_answer(memory, &models[model], &streams[stream], targets[stream]);
        }
        expect_peace(memory);
    }
}

/// Whichever driver call fails, later results are right, and no memory is lost.
#[test]
fn no_failing_call_loses_memory_or_an_answer() {
    let mut has_failed = 0;
    for call in 1.. {
        let (driver, memory) = simulated(call);
        let (images, switch) = opened(memory, CHUNK, 4 * CHUNK);
        let models = [model(CHUNK, 3, 1), model(CHUNK, 3, 50)].map(|model| switch.register(&model).unwrap());
        let stream = memory.streams().current();
        let target = driver.malloc(64).unwrap();
        let turn = |turn: usize| {
            models[(turn + 1) % 2].evict(usize::MAX);
            run(memory, &images, &models[turn % 2], &stream, target)
        };
        driver.inject(Failure::of_any(call));
        let failed = (0..3).find_map(|number| turn(number).err());
        driver.clear_failures();
        for (number, model) in models.iter().enumerate() {
            turn(number).unwrap();
            expect_answer(memory, model, &stream, target);
        }
        drop(models);
        switch.trim().unwrap();
        assert_eq!(switch.free_bytes(), 4 * CHUNK);
        drop(switch);
        assert_eq!(memory.backing().held_bytes(), 0);
        expect_peace(memory);
        match failed {
            Some(_) => has_failed += 1,
            None if call > 100 => break,
            None => {}
        }
    }
    assert!(has_failed > 20, "{has_failed}");
}
