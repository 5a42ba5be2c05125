//! Problems: a program's kernels and tensors, and the tiers of memory. `docs/reference/problem-format.md` documents
//! their file format.

mod error;
mod file;
pub mod generate;
mod kernel_trace;
mod recorded;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use tenure_core::Tag;

pub use error::ProblemError;

/// One iteration of a program: kernels that run one after the other, the tensors that they read and write, and the
/// tiers of memory in which tensors may live.
///
/// Every problem has been validated: keys exist and are unique, indices are in range, no sum of bytes or times exceeds
/// 64 bits, and no tensor is recomputed from itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    parts: ProblemParts,
    /// For each tensor, the first and the last kernel of its lifetime.
    lifetimes: Vec<Option<(usize, usize)>>,
    /// For each tensor, the bytes read and written by all kernels.
    accessed: Vec<u64>,
}

/// The parts of a [`Problem`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProblemParts {
    /// The program's name.
    pub name: String,
    /// The machine or program on which it was recorded, in words.
    pub source: String,
    /// Tiers of memory, the fastest first. The caller of a planner may replace them.
    pub tiers: Vec<ProblemTier>,
    /// Links between tiers.
    pub links: Vec<ProblemLink>,
    /// The tensors.
    pub tensors: Vec<ProblemTensor>,
    /// The kernels, in the order in which they run.
    pub kernels: Vec<ProblemKernel>,
    /// The first kernel of the backward pass; `None` if this is not training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backward: Option<usize>,
}

/// A tensor: bytes that are placed as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemTensor {
    /// Its key: it stays the same as long as the program uses the tensor in the same way, even if other tensors are
    /// added.
    pub key: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its purpose. Weights and optimizer states always exist; other tensors exist from the first kernel that touches
    /// them to the last.
    #[serde(with = "tag_name", default)]
    pub tag: Tag,
    /// The factor by which compression shrinks it, more than 1; `None` if it does not. It is compressed in tiers that
    /// kernels do not reach, and on the way to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<f64>,
    /// The way to recompute it; `None` if that is not possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recompute: Option<ProblemRecompute>,
}

impl ProblemTensor {
    /// Returns whether it exists from the first kernel to the last, whichever kernels touch it.
    pub fn is_always_there(&self) -> bool {
        matches!(self.tag, Tag::Weight | Tag::OptimizerState)
    }
}

/// The cost of recomputing a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemRecompute {
    /// Nanoseconds.
    pub time_ns: u64,
    /// The tensors that must exist.
    pub inputs: Vec<usize>,
}

/// A kernel: a unit of work that runs alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemKernel {
    /// Its name.
    pub name: String,
    /// Its nanoseconds, with all its tensors in the fastest tier.
    pub time_ns: u64,
    /// Its reads.
    pub reads: Vec<ProblemAccess>,
    /// Its writes.
    pub writes: Vec<ProblemAccess>,
}

impl ProblemKernel {
    /// Returns its reads, then its writes.
    pub fn accesses(&self) -> impl Iterator<Item = &ProblemAccess> {
        self.reads.iter().chain(&self.writes)
    }
}

/// The bytes of a tensor that a kernel reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemAccess {
    /// The tensor's number.
    pub tensor: usize,
    /// Bytes that cross the memory bus, more than the tensor's size if the kernel makes several passes.
    pub bytes: u64,
}

/// A tier: a kind of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemTier {
    /// Its name.
    pub name: String,
    /// Its capacity in bytes; `None` if it is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Whether kernels can access it directly. If not, tensors must be moved before use.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub is_reachable: bool,
    /// The bytes per second at which kernels read.
    pub read_bandwidth: u64,
    /// The bytes per second at which kernels write.
    pub write_bandwidth: u64,
    /// Nanoseconds until the first byte arrives.
    #[serde(default)]
    pub latency_ns: u64,
    /// The factor by which an access takes longer under load: pairs of the share of the bandwidth in use and the
    /// factor, both ascending. Values between two pairs are interpolated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loaded: Vec<[f64; 2]>,
}

/// A link from one tier to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemLink {
    /// The number of the tier at which it begins.
    pub from: usize,
    /// The number of the tier to which it leads.
    pub to: usize,
    /// Bytes per second.
    pub bandwidth: u64,
    /// The number of the link that shares this one's bandwidth, such as the opposite direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_with: Option<usize>,
}

impl Problem {
    /// Makes a problem of these parts.
    ///
    /// # Errors
    /// An error for the first part that is not valid.
    pub fn new(parts: ProblemParts) -> Result<Self, ProblemError> {
        error::check(&parts)?;
        let mut lifetimes = vec![None; parts.tensors.len()];
        let mut accessed = vec![0_u64; parts.tensors.len()];
        for (number, kernel) in parts.kernels.iter().enumerate() {
            for access in kernel.accesses() {
                let (first, _) = lifetimes[access.tensor].unwrap_or((number, number));
                lifetimes[access.tensor] = Some((first, number));
                // `check` has checked the sum of all accesses.
                accessed[access.tensor] += access.bytes;
            }
        }
        let last = parts.kernels.len().checked_sub(1);
        for (tensor, lifetime) in parts.tensors.iter().zip(&mut lifetimes) {
            if tensor.is_always_there() {
                *lifetime = last.map(|last| (0, last));
            }
        }
        Ok(Self { parts, lifetimes, accessed })
    }

    /// Returns the program's name.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// Returns the machine or program on which it was recorded, in words.
    pub fn source(&self) -> &str {
        &self.parts.source
    }

    /// Returns the tensors.
    pub fn tensors(&self) -> &[ProblemTensor] {
        &self.parts.tensors
    }

    /// Returns the kernels, in the order in which they run.
    pub fn kernels(&self) -> &[ProblemKernel] {
        &self.parts.kernels
    }

    /// Returns the first kernel of the backward pass; `None` if the problem names none.
    pub fn backward(&self) -> Option<usize> {
        self.parts.backward
    }

    /// Returns the tiers of memory, the fastest first.
    pub fn tiers(&self) -> &[ProblemTier] {
        &self.parts.tiers
    }

    /// Returns the links between tiers.
    pub fn links(&self) -> &[ProblemLink] {
        &self.parts.links
    }

    /// Returns the number of the link from one tier to another, if there is one.
    pub fn link(&self, from: usize, to: usize) -> Option<usize> {
        self.links().iter().position(|link| (link.from, link.to) == (from, to))
    }

    /// Returns the nanoseconds that all kernels take together if they never wait.
    pub fn kernels_ns(&self) -> u64 {
        // The sum was checked.
        self.kernels().iter().map(|kernel| kernel.time_ns).sum()
    }

    /// Returns the time at which each kernel begins, and at which the last ends, if none waits: nanoseconds from the
    /// beginning.
    pub fn begins_ns(&self) -> Vec<f64> {
        let mut begins_ns = vec![0.0];
        for kernel in self.kernels() {
            begins_ns.push(begins_ns[begins_ns.len() - 1] + kernel.time_ns as f64);
        }
        begins_ns
    }

    /// Returns for each tensor the kernels that use it, in their order.
    pub fn users(&self) -> Vec<Vec<usize>> {
        let mut users = vec![Vec::new(); self.tensors().len()];
        for (number, kernel) in self.kernels().iter().enumerate() {
            for access in kernel.accesses() {
                if users[access.tensor].last() != Some(&number) {
                    users[access.tensor].push(number);
                }
            }
        }
        users
    }

    /// Returns the problem with `capacity_bytes` in the first tier. A problem without tiers gets two: one as fast as an
    /// H200's memory, and pinned host memory, which kernels reach.
    #[must_use]
    pub fn with_fast_bytes(mut self, capacity_bytes: u64) -> Self {
        if self.parts.tiers.is_empty() {
            (self.parts.tiers, self.parts.links) = device_and_host();
        }
        self.parts.tiers[0].capacity = Some(capacity_bytes);
        self
    }

    /// Returns the parts, to make another problem.
    pub fn into_parts(self) -> ProblemParts {
        self.parts
    }

    /// Returns the kernels during which a tensor exists; `None` if it never does.
    pub fn lifetime(&self, tensor: usize) -> Option<RangeInclusive<usize>> {
        self.lifetimes[tensor].map(|(first, last)| first..=last)
    }

    /// Returns the bytes that a tensor takes in a tier. If it can be compressed, it is compressed where kernels do not
    /// reach.
    pub fn bytes_in(&self, tensor: usize, tier: usize) -> u64 {
        let tensor = &self.parts.tensors[tensor];
        match tensor.compression.filter(|_| !self.parts.tiers[tier].is_reachable) {
            Some(ratio) => (tensor.bytes as f64 / ratio).ceil() as u64,
            None => tensor.bytes,
        }
    }

    /// Returns the bytes that cross a link when a tensor moves: its size at the end where it is smaller.
    pub fn moved_bytes(&self, tensor: usize, link: usize) -> u64 {
        let ProblemLink { from, to, .. } = self.parts.links[link];
        self.bytes_in(tensor, from).min(self.bytes_in(tensor, to))
    }

    /// Returns the bytes of a tensor that kernels read and write, all together.
    pub fn accessed_bytes(&self, tensor: usize) -> u64 {
        self.accessed[tensor]
    }

    /// Returns the bytes of all tensors that kernels read and write.
    pub fn all_accessed_bytes(&self) -> u64 {
        self.accessed.iter().sum()
    }

    /// Returns the bytes of the tensors for which `counts` returns `true`, during each kernel.
    pub fn live_bytes(&self, counts: impl Fn(usize) -> bool) -> Vec<u64> {
        // Differences from one kernel to the next. Sums over all tensors fit into 64 bits.
        let mut changes = vec![(0_u64, 0_u64); self.parts.kernels.len() + 1];
        for (number, tensor) in self.parts.tensors.iter().enumerate().filter(|(number, _)| counts(*number)) {
            if let Some((first, last)) = self.lifetimes[number] {
                changes[first].0 += tensor.bytes;
                changes[last + 1].1 += tensor.bytes;
            }
        }
        changes.pop();
        let mut live = 0;
        changes
            .into_iter()
            .map(|(begun, ended)| {
                live = live + begun - ended;
                live
            })
            .collect()
    }

    /// Returns the most bytes of all tensors that exist at once.
    pub fn peak_bytes(&self) -> u64 {
        self.live_bytes(|_| true).into_iter().max().unwrap_or(0)
    }
}

fn yes() -> bool {
    true
}

/// Tags in files, written as their names.
mod tag_name {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use tenure_core::Tag;

    pub(super) fn serialize<S: Serializer>(tag: &Tag, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(tag.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Tag, D::Error> {
        let name = String::deserialize(deserializer)?;
        let tag = Tag::ALL.into_iter().find(|tag| tag.name() == name);
        tag.ok_or_else(|| {
            let names: Vec<&str> = Tag::ALL.iter().map(|tag| tag.name()).collect();
            D::Error::custom(format!("unknown tag {name:?}: use one of {}", names.join(", ")))
        })
    }
}

/// Bytes per second.
const DEVICE_BANDWIDTH: u64 = 4_200_000_000_000;
/// Bytes per second.
const HOST_BANDWIDTH: u64 = 55_000_000_000;

/// Returns the memory of an NVIDIA H200 and pinned host memory, with measured bandwidths: 4.2 TB/s for copies within
/// the device, reads plus writes; between the two 55 GB/s each way, and 102 GB/s both ways at once, which counts as not
/// shared.
fn device_and_host() -> (Vec<ProblemTier>, Vec<ProblemLink>) {
    let tier = |name: &str, bandwidth, latency_ns| ProblemTier {
        name: name.into(),
        capacity: None,
        is_reachable: true,
        read_bandwidth: bandwidth,
        write_bandwidth: bandwidth,
        latency_ns,
        loaded: Vec::new(),
    };
    let link = |from, to| ProblemLink { from, to, bandwidth: HOST_BANDWIDTH, shared_with: None };
    (vec![tier("device", DEVICE_BANDWIDTH, 0), tier("host", HOST_BANDWIDTH, 1000)], vec![link(0, 1), link(1, 0)])
}
