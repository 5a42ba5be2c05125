//! Tests of residency decisions against simpler rules, by the bytes that are copied again.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::drawn::Random;
use tenure_serve::scheduler::{Eviction, ModelId, ModelSpec, Residency, Scheduler, SchedulerConfig, WeightsSpec};

/// Returns this many different ids.
fn names(count: usize) -> Vec<ModelId> {
    let mut scheduler = Scheduler::new(SchedulerConfig::default());
    scheduler.add_device(1);
    (0..count).map(|_| scheduler.add_model(ModelSpec::default()).unwrap()).collect()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn weights(bytes: u64) -> WeightsSpec {
    WeightsSpec { bytes, reload: Duration::from_millis(bytes), priority: 0, is_pinned: false }
}

/// Returns the bytes that are copied if models of these sizes are used in this order, one a second.
fn ours(sizes: &[u64], capacity: u64, uses: &[usize]) -> u64 {
    let names = names(sizes.len());
    let mut residency = Residency::new(capacity, 1, seconds(500));
    names.iter().zip(sizes).for_each(|(name, bytes)| residency.add(*name, weights(*bytes)));
    let mut copied = 0;
    for (at, index) in uses.iter().enumerate() {
        copied += residency.missing_bytes(names[*index]).unwrap();
        residency.admit(names[*index], seconds(at as u64), &BTreeSet::new()).unwrap();
        residency.used(names[*index], 1, seconds(at as u64));
    }
    copied
}

/// Returns the same for whole models, where the one with the least `priority(bytes, time of use, inflation)` leaves.
fn by_priority(sizes: &[u64], capacity: u64, uses: &[usize], priority: impl Fn(u64, f64, f64) -> f64) -> u64 {
    let mut kept: HashMap<usize, f64> = HashMap::new();
    let (mut copied, mut inflation) = (0, 0.0);
    for (at, index) in uses.iter().enumerate() {
        let is_here = kept.remove(index).is_some();
        copied += if is_here { 0 } else { sizes[*index] };
        while kept.keys().map(|other| sizes[*other]).sum::<u64>() + sizes[*index] > capacity {
            let (least, value) =
                kept.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(index, value)| (*index, *value)).unwrap();
            inflation = value;
            kept.remove(&least);
        }
        kept.insert(*index, priority(sizes[*index], at as f64, inflation));
    }
    copied
}

fn least_recently_used(sizes: &[u64], capacity: u64, uses: &[usize]) -> u64 {
    by_priority(sizes, capacity, uses, |_, at, _| at)
}

/// Assumes that each copy has a fixed cost, equal to that of copying 10 bytes.
fn greedy_dual_size(sizes: &[u64], capacity: u64, uses: &[usize]) -> u64 {
    by_priority(sizes, capacity, uses, |bytes, _, inflation| inflation + (bytes + 10) as f64 / bytes as f64)
}

#[test]
fn fewer_bytes_are_copied_than_by_recency_or_greedy_dual_size() {
    for seed in 1..=3 {
        let mut random = Random(seed);
        // The sizes are 5 to 100; popular models may be large or small.
        let sizes: Vec<u64> = (0..100).map(|_| (5.0 * 20_f64.powf(random.unit())) as u64).collect();
        let uses: Vec<usize> = (0..4000).map(|_| random.zipf(100)).collect();
        let lru = least_recently_used(&sizes, 400, &uses);
        let gds = greedy_dual_size(&sizes, 400, &uses);
        let ours = ours(&sizes, 400, &uses);
        println!("copied: {ours}, by recency {lru}, by GreedyDual-Size {gds}");
        assert!(ours * 100 < lru * 80 && ours * 100 < gds * 80);
    }
}

#[test]
fn a_loop_over_more_than_fits_finds_most_of_it() {
    for (count, capacity) in [(11, 100), (15, 100), (20, 100)] {
        let uses: Vec<usize> = (0..1000).map(|at| at % count).collect();
        let sizes = vec![10; count];
        let lru = least_recently_used(&sizes, capacity, &uses);
        let ours = ours(&sizes, capacity, &uses);
        // A round over all models but the one used last must copy at least the bytes that do not fit.
        let floor = 1000 * 10 * (count as u64 * 10 - capacity) / (count as u64 * 10 - 10);
        println!("a loop over {count}: {ours}, by recency {lru}, at least {floor}");
        assert_eq!(lru, 10_000);
        assert!(ours < 2 * floor);
    }
}

#[test]
fn a_popular_model_displaces_those_that_were() {
    for phase in [100, 300, 1000] {
        let mut random = Random(phase as u64);
        let sizes = vec![10; 40];
        // Ten other models are popular in each phase.
        let uses: Vec<usize> = (0..4 * phase).map(|at| at / phase * 10 + random.zipf(10)).collect();
        let lru = least_recently_used(&sizes, 70, &uses);
        let ours = ours(&sizes, 70, &uses);
        println!("phases of {phase}: {ours}, by recency {lru}");
        assert!(ours * 2 < lru * 3);
    }
}

#[test]
fn the_end_of_what_is_worth_least_leaves_first() {
    let [rare, often, pinned, runs, wanted] = names(5)[..] else { panic!("five") };
    let mut residency = Residency::new(50, 1, seconds(60));
    for name in [rare, often, pinned, runs, wanted] {
        residency.add(name, WeightsSpec { is_pinned: name == pinned, ..weights(10) });
        residency.admit(name, seconds(0), &BTreeSet::new()).unwrap();
    }
    (0..10).for_each(|at| residency.used(often, 1, seconds(at)));
    residency.used(rare, 1, seconds(9));
    residency.hold(runs);
    let evict = |bytes| residency.clone().evict(bytes, seconds(10), &BTreeSet::from([wanted]));
    let eviction = |model, chunks| Eviction { model, chunks };
    assert_eq!(evict(4), Ok(vec![eviction(rare, 4)]));
    assert_eq!(evict(12), Ok(vec![eviction(rare, 10), eviction(often, 2)]));
    // The model that is wanted next leaves last, though it was never used.
    assert_eq!(evict(25), Ok(vec![eviction(rare, 10), eviction(often, 10), eviction(wanted, 5)]));
    let refused = evict(31).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "31 bytes find no room on the device: of 50 bytes 0 are free, pinned models hold 10, and models in use 10; wait for \
         those, or pin less"
    );
    residency.let_go(runs);
    assert_eq!(residency.evict(40, seconds(10), &BTreeSet::new()).unwrap().len(), 4);
    assert_eq!((residency.missing_bytes(pinned), residency.free_bytes()), (Some(0), 40));
}

#[test]
fn priority_and_the_time_to_copy_weigh_as_use_does() {
    let [cheap, dear, preferred] = names(3)[..] else { panic!("three") };
    let mut residency = Residency::new(30, 1, seconds(60));
    residency.add(cheap, weights(10));
    residency.add(dear, WeightsSpec { reload: seconds(1), ..weights(10) });
    residency.add(preferred, WeightsSpec { priority: 1, ..weights(10) });
    for name in [preferred, dear, cheap] {
        residency.admit(name, seconds(0), &BTreeSet::new()).unwrap();
        residency.used(name, 1, seconds(0));
    }
    let order = residency.evict(30, seconds(1), &BTreeSet::new()).unwrap();
    assert_eq!(order.iter().map(|eviction| eviction.model).collect::<Vec<_>>(), [cheap, preferred, dear]);
}

#[test]
fn where_memory_is_not_given_back_in_parts_a_model_leaves_as_a_whole() {
    let [first, second, third] = names(3)[..] else { panic!("three") };
    let mut residency = Residency::new(25, 1, seconds(60)).evicting_whole();
    for name in [first, second, third] {
        residency.add(name, weights(10));
    }
    let admit = |residency: &mut Residency, name, at| residency.admit(name, seconds(at), &BTreeSet::new()).unwrap();
    admit(&mut residency, first, 0);
    admit(&mut residency, second, 0);
    residency.used(second, 1, seconds(1));
    assert_eq!(admit(&mut residency, third, 2), [Eviction { model: first, chunks: 10 }]);
    assert_eq!((residency.missing_bytes(first), residency.free_bytes()), (Some(10), 5));
}
