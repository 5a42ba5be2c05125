//! Synthetic problems, for training and comparing planners.

mod network;

use network::Network;
use network::Random;

use super::{Problem, ProblemError, ProblemKernel, ProblemLink, ProblemParts, ProblemTier};

/// The kind of network that a synthetic program trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// One layer after the other, some with a skip connection.
    Layered,
    /// Blocks of attention and dense layers.
    Transformer,
    /// Convolutions that shrink the image and enlarge it again.
    UNet,
    /// Layers that read the outputs of all layers before them.
    DenseBlocks,
}

/// A problem whose costs are only estimated.
#[derive(Clone, Debug)]
pub struct Uncertain {
    /// The problem as planners see it.
    pub told: Problem,
    /// The problem on which plans are played. It differs in the times of kernels and recomputation, in bandwidths, and
    /// in the effect of load on the slow tier.
    pub truth: Problem,
}

impl Uncertain {
    /// Makes an uncertain problem of a program. The fast tier holds 20 to 70 % of the program's peak; in the slow tier,
    /// load makes accesses slower. There is a link each way; in half of the problems the two share their bandwidth.
    /// Moving all bytes of the peak takes between a quarter of an iteration and three. The estimates differ from the
    /// truth by a factor for each kernel name and each recomputation time (0.5 to 2), and for each bandwidth (0.6 to
    /// 1.6).
    ///
    /// # Errors
    /// [`ProblemError`] if the program is not a valid problem.
    pub fn of(program: ProblemParts, seed: u64) -> Result<Self, ProblemError> {
        Self::draw(program, &mut Random::new(seed))
    }

    fn draw(mut parts: ProblemParts, random: &mut Random) -> Result<Self, ProblemError> {
        let program = Problem::new(parts.clone())?;
        let peak = program.peak_bytes() as f64;
        let seconds = parts.kernels.iter().map(|kernel| kernel.time_ns).sum::<u64>() as f64 / 1e9;
        // The bandwidth that kernels need if they never wait.
        let bandwidth = program.all_accessed_bytes() as f64 / seconds * random.scale(1.0, 3.0);
        let mut slow = tier("slow", None, bandwidth / random.scale(3.0, 20.0));
        slow.write_bandwidth = (slow.read_bandwidth as f64 / random.scale(1.0, 3.0)) as u64 + 1;
        slow.latency_ns = random.between(0, 500);
        slow.loaded = loaded(random);
        let mut fast = tier("fast", Some((peak * random.scale(0.2, 0.7)) as u64), bandwidth);
        fast.loaded = vec![[0.5, 1.0], [1.0, random.uniform(1.0, 1.5)]];
        let link = (peak / seconds * random.scale(0.3, 4.0)).min(slow.write_bandwidth as f64) as u64 + 1;
        let shared_with = random.chance(0.5).then_some(0);
        parts.links = vec![
            ProblemLink { from: 0, to: 1, bandwidth: link, shared_with: None },
            ProblemLink { from: 1, to: 0, bandwidth: link, shared_with },
        ];
        parts.tiers = vec![fast, slow];
        let mut truth = parts.clone();
        disturb(&mut truth, random);
        Ok(Self { told: Problem::new(parts)?, truth: Problem::new(truth)? })
    }
}

impl Family {
    /// Every family.
    pub const ALL: [Self; 4] = [Self::Layered, Self::Transformer, Self::UNet, Self::DenseBlocks];

    /// Makes a program of the family, without tiers: one iteration, usually of training. The same seed gives the same
    /// program on every machine.
    pub fn program(self, seed: u64) -> ProblemParts {
        self.draw(&mut Random::new(seed))
    }

    /// Makes a problem with two tiers in which tensors stay where they are: a fast one of 10 to 80 % of the program's
    /// peak, and an unlimited slow one.
    ///
    /// # Errors
    /// No known case: [`ProblemError`] if the program were not a valid problem.
    pub fn fixed(self, seed: u64) -> Result<Problem, ProblemError> {
        let random = &mut Random::new(seed);
        let mut parts = self.draw(random);
        let peak = Problem::new(parts.clone())?.peak_bytes();
        let capacity = (peak as f64 * random.scale(0.1, 0.8)) as u64;
        parts.tiers = vec![tier("fast", Some(capacity), 1e12), tier("slow", None, 1e11)];
        Problem::new(parts)
    }

    /// Makes a problem with three tiers: a fast one of 20 to 50 % of the program's peak, but at least as much as every
    /// kernel needs; one of 10 to 30 % that kernels reach; and a disk, which they do not reach. Links lead from the
    /// first tier to each other one, and back.
    ///
    /// # Errors
    /// No known case: [`ProblemError`] if the program were not a valid problem.
    pub fn tiered(self, seed: u64) -> Result<Problem, ProblemError> {
        let random = &mut Random::new(seed);
        let mut parts = self.draw(random);
        let program = Problem::new(parts.clone())?;
        let peak = program.peak_bytes() as f64;
        let seconds = program.kernels_ns() as f64 / 1e9;
        let needs =
            |kernel: &ProblemKernel| kernel.accesses().map(|access| parts.tensors[access.tensor].bytes).sum::<u64>();
        // A tensor that always exists and is used at one end of the iteration is needed at the other end, too.
        let ends = parts.kernels.first().map_or(0, needs) + parts.kernels.last().map_or(0, needs);
        let needed = parts.kernels.iter().map(needs).max().unwrap_or(0) + ends;
        let fast = ((peak * random.scale(0.2, 0.5)) as u64).max(needed);
        let beside = (peak * random.scale(0.1, 0.3)) as u64;
        let disk = ProblemTier { is_reachable: false, ..tier("disk", None, 1e10) };
        parts.tiers = vec![tier("fast", Some(fast), 1e12), tier("beside", Some(beside), 1e11), disk];
        let bandwidth = peak / seconds * random.scale(0.3, 4.0);
        let link =
            |from, to, bandwidth: f64| ProblemLink { from, to, bandwidth: bandwidth as u64 + 1, shared_with: None };
        parts.links = [(1, bandwidth), (2, bandwidth / 4.0)]
            .map(|(to, bandwidth)| [link(0, to, bandwidth), link(to, 0, bandwidth)])
            .concat();
        Problem::new(parts)
    }

    /// Makes a program, and the problem that [`Uncertain::of`] makes of it.
    ///
    /// # Errors
    /// No known case: [`ProblemError`] if the program were not a valid problem.
    pub fn contended(self, seed: u64) -> Result<Uncertain, ProblemError> {
        let random = &mut Random::new(seed);
        let program = self.draw(random);
        Uncertain::draw(program, random)
    }

    fn draw(self, random: &mut Random) -> ProblemParts {
        let name = match self {
            Self::Layered => "layered",
            Self::Transformer => "transformer",
            Self::UNet => "unet",
            Self::DenseBlocks => "dense-blocks",
        };
        let mut network = Network::new(name, random);
        match self {
            Self::Layered => network.layered(),
            Self::Transformer => network.transformer(),
            Self::UNet => network.unet(),
            Self::DenseBlocks => network.dense_blocks(),
        }
        network.finish()
    }
}

fn tier(name: &str, capacity: Option<u64>, bandwidth: f64) -> ProblemTier {
    let bandwidth = bandwidth as u64 + 1;
    ProblemTier {
        name: name.into(),
        capacity,
        is_reachable: true,
        read_bandwidth: bandwidth,
        write_bandwidth: bandwidth,
        latency_ns: 0,
        loaded: Vec::new(),
    }
}

/// Returns random slowdowns of accesses under load, starting at none.
fn loaded(random: &mut Random) -> Vec<[f64; 2]> {
    vec![[random.uniform(0.1, 0.5), 1.0], [1.0, random.uniform(1.2, 5.0)]]
}

/// Changes the estimated costs at random, to make the true ones.
fn disturb(parts: &mut ProblemParts, random: &mut Random) {
    let mut factors = std::collections::HashMap::new();
    for kernel in &mut parts.kernels {
        let factor = *factors.entry(kernel.name.clone()).or_insert_with(|| random.scale(0.5, 2.0));
        kernel.time_ns = (kernel.time_ns as f64 * factor) as u64;
    }
    for recompute in parts.tensors.iter_mut().filter_map(|tensor| tensor.recompute.as_mut()) {
        recompute.time_ns = (recompute.time_ns as f64 * random.scale(0.5, 2.0)) as u64;
    }
    for tier in &mut parts.tiers {
        tier.read_bandwidth = (tier.read_bandwidth as f64 * random.scale(0.6, 1.6)) as u64 + 1;
        tier.write_bandwidth = (tier.write_bandwidth as f64 * random.scale(0.6, 1.6)) as u64 + 1;
    }
    let factor = random.scale(0.6, 1.6);
    parts.links.iter_mut().for_each(|link| link.bandwidth = (link.bandwidth as f64 * factor) as u64 + 1);
    parts.tiers[1].loaded = loaded(random);
}
