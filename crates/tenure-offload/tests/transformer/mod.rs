//! A made-up training step of a transformer, as it is profiled on a device: thousands of operations, some hundreds of
//! which save a large tensor.

use tenure_offload::{Machine, Profile, Recipe, SavedIndex, SpillLink};

const MIB: u64 = 1 << 20;

/// The size of a step.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) layers: usize,
    /// The number of operations of a layer's forward pass. Backward has twice as many.
    pub(crate) operations: usize,
    /// The number of them that save a tensor.
    pub(crate) saves: usize,
    pub(crate) seed: u64,
}

/// Pseudorandom numbers (Knuth's linear congruential generator).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Returns the profile of one step. Three of four saved tensors can be recomputed, each from the one before.
pub(crate) fn step(size: Size) -> Profile {
    let Size { layers, operations, saves, seed } = size;
    let mut numbers = Numbers(seed);
    let mut profile = Profile::new();
    let mut times_ns = Vec::new();
    let operation = |profile: &mut Profile, times_ns: &mut Vec<u64>, numbers: &mut Numbers| {
        times_ns.push(if numbers.below(8) == 0 { 400_000 } else { 10_000 + numbers.below(60_000) });
        profile.end(4096 * MIB + numbers.below(200) * MIB);
    };
    for layer in 0..layers {
        for place in 0..saves {
            let first = times_ns.len();
            for _ in 0..operations / saves {
                operation(&mut profile, &mut times_ns, &mut numbers);
            }
            let time_ns: u64 = times_ns[first..].iter().sum();
            times_ns.push(2_000);
            let bytes = MIB + numbers.below(99) * MIB;
            let saved = profile.save(4096 * MIB, format!("layers.{layer}/{place}"), bytes);
            if place % 4 != 0 {
                profile.saved_mut(saved).recipe =
                    Some(Recipe { inputs: vec![SavedIndex(saved.0 - 1)], operations: 1, time_ns });
            }
            // The next operation holds the tensor, too, and so may one or two after it.
            for _ in 0..=numbers.below(3) {
                profile.hold(saved);
                operation(&mut profile, &mut times_ns, &mut numbers);
            }
        }
    }
    for saved in (0..layers * saves).rev() {
        times_ns.push(2_000);
        profile.need(4096 * MIB, SavedIndex(saved));
        for _ in 0..2 * operations / saves {
            operation(&mut profile, &mut times_ns, &mut numbers);
        }
    }
    times_ns.push(2_000);
    profile.end(4096 * MIB);
    profile.set_times(times_ns);
    profile
}

/// Returns a device whose budget has room for `percent` of the saved bytes, with links of 20 GB/s to pinned memory and
/// 3 GB/s to a disk.
pub(crate) fn machine(profile: &Profile, percent: u64) -> Machine {
    let link = |name: &str, capacity, bandwidth| SpillLink {
        name: name.into(),
        capacity,
        out_bandwidth: bandwidth,
        back_bandwidth: bandwidth,
        shared_bandwidth: None,
    };
    let links = vec![link("host", Some(8 << 30), 20_000_000_000), link("disk", Some(64 << 30), 3_000_000_000)];
    let roomy = Machine { budget_bytes: 1 << 50, slack_bytes: 0, bandwidth: 1 << 40, launch_ns: 0, links };
    let saved: u64 = profile.saved().iter().map(|saved| saved.bytes).sum();
    // Memory that is always taken cannot be planned.
    Machine { budget_bytes: 4096 * MIB + 200 * MIB + saved * percent / 100, ..roomy }
}
