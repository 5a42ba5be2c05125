//! Problems: what is to live where. `docs/problem-format.md` has them as files.

mod error;
mod file;
pub mod generate;
mod kernel_trace;
mod recorded;
mod tiers;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use tenure_core::Tag;

pub use error::ProblemError;

/// One iteration of a program: kernels that run one after the other, the tensors that they read and write, and the tiers
/// of memory where tensors may live.
///
/// Every problem has been validated: keys are there and not twice, numbers refer to what there is, no sum of bytes or
/// times passes 64 bits, and nothing is computed again from itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    parts: Parts,
    /// Of each tensor: the first and the last kernel during which it is there.
    lifetimes: Vec<Option<(usize, usize)>>,
    /// Of each tensor: bytes read and written by all kernels.
    accessed: Vec<u64>,
}

/// What a [`Problem`] is made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Parts {
    /// What the program is called.
    pub name: String,
    /// Where it was recorded, in words.
    pub source: String,
    /// Tiers of memory, the fastest first. Planners can be given others.
    pub tiers: Vec<Tier>,
    /// Ways between tiers.
    pub links: Vec<Link>,
    /// The tensors.
    pub tensors: Vec<Tensor>,
    /// The kernels, in the order in which they run.
    pub kernels: Vec<Kernel>,
    /// The first kernel of the backward pass, if it is training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backward: Option<usize>,
}

/// Some bytes that are placed as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// What it is called: the same as long as the program does the same with it, whatever else is added.
    pub key: String,
    /// How large it is.
    pub bytes: u64,
    /// What it is for. Weights and the state of an optimizer are there all the time, others from the first kernel that
    /// touches them to the last.
    #[serde(with = "tag_name", default)]
    pub tag: Tag,
    /// How many times smaller it gets by compression, if it does: more than 1. It is compressed on the way to tiers that
    /// kernels do not reach, and there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<f64>,
    /// How it is computed again, if it can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recompute: Option<Recompute>,
}

impl Tensor {
    /// Whether it is there from the first kernel to the last, whichever touch it.
    pub fn is_always_there(&self) -> bool {
        matches!(self.tag, Tag::Weight | Tag::OptimizerState)
    }
}

/// What it takes to compute a tensor again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recompute {
    /// Nanoseconds.
    pub time_ns: u64,
    /// The tensors that must be there.
    pub inputs: Vec<usize>,
}

/// Something that runs by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// What it is called.
    pub name: String,
    /// Nanoseconds, with all its tensors in the fastest tier.
    pub time_ns: u64,
    /// What it reads.
    pub reads: Vec<Access>,
    /// What it writes.
    pub writes: Vec<Access>,
}

impl Kernel {
    /// What it reads, then what it writes.
    pub fn accesses(&self) -> impl Iterator<Item = &Access> {
        self.reads.iter().chain(&self.writes)
    }
}

/// How much of a tensor a kernel reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// The tensor's number.
    pub tensor: usize,
    /// Bytes that cross the bus, more than the tensor has if it goes through it several times.
    pub bytes: u64,
}

/// A kind of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// What it is called.
    pub name: String,
    /// Bytes; none if there is no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Whether kernels can read and write it where it is. If not, what they need must be moved first.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub is_reachable: bool,
    /// Bytes per second that kernels read.
    pub read_bandwidth: u64,
    /// Bytes per second that kernels write.
    pub write_bandwidth: u64,
    /// Nanoseconds until the first byte is there.
    #[serde(default)]
    pub latency_ns: u64,
    /// How many times longer an access takes under load: pairs of the share of the bandwidth that is in use, and the
    /// factor, both rising. Between two it is interpolated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loaded: Vec<[f64; 2]>,
}

/// A way from a tier to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The tier's number that it begins at.
    pub from: usize,
    /// The tier's number that it leads to.
    pub to: usize,
    /// Bytes per second.
    pub bandwidth: u64,
    /// The link that shares this one's bandwidth, such as the way back, by its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_with: Option<usize>,
}

impl Problem {
    /// A problem of these parts.
    ///
    /// # Errors
    /// The first part that makes no sense.
    pub fn new(parts: Parts) -> Result<Self, ProblemError> {
        error::check(&parts)?;
        let mut lifetimes = vec![None; parts.tensors.len()];
        let mut accessed = vec![0_u64; parts.tensors.len()];
        for (number, kernel) in parts.kernels.iter().enumerate() {
            for access in kernel.accesses() {
                let (first, _) = lifetimes[access.tensor].unwrap_or((number, number));
                lifetimes[access.tensor] = Some((first, number));
                // The sum of all was checked.
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

    /// What the program is called.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// Where it was recorded, in words.
    pub fn source(&self) -> &str {
        &self.parts.source
    }

    /// The tensors.
    pub fn tensors(&self) -> &[Tensor] {
        &self.parts.tensors
    }

    /// The kernels, in the order in which they run.
    pub fn kernels(&self) -> &[Kernel] {
        &self.parts.kernels
    }

    /// The first kernel of the backward pass, if it is training and that was said.
    pub fn backward(&self) -> Option<usize> {
        self.parts.backward
    }

    /// Tiers of memory, the fastest first.
    pub fn tiers(&self) -> &[Tier] {
        &self.parts.tiers
    }

    /// Ways between tiers.
    pub fn links(&self) -> &[Link] {
        &self.parts.links
    }

    /// The number of the link from a tier to another, if there is one.
    pub fn link(&self, from: usize, to: usize) -> Option<usize> {
        self.links().iter().position(|link| (link.from, link.to) == (from, to))
    }

    /// Nanoseconds that all kernels take together if nothing is in the way.
    pub fn kernels_ns(&self) -> u64 {
        // The sum was checked.
        self.kernels().iter().map(|kernel| kernel.time_ns).sum()
    }

    /// When each kernel begins, and when the last ends, if nothing is in the way: nanoseconds from the beginning.
    pub fn begins_ns(&self) -> Vec<f64> {
        let mut begins_ns = vec![0.0];
        for kernel in self.kernels() {
            begins_ns.push(begins_ns[begins_ns.len() - 1] + kernel.time_ns as f64);
        }
        begins_ns
    }

    /// Of each tensor, the kernels that use it, in their order.
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

    /// The same with so many bytes in the first tier. A problem without tiers gets two, of the speed of an H200's memory and of
    /// pinned host memory beside it, which kernels reach.
    #[must_use]
    pub fn with_fast_bytes(mut self, capacity_bytes: u64) -> Self {
        if self.parts.tiers.is_empty() {
            (self.parts.tiers, self.parts.links) = tiers::device_and_host();
        }
        self.parts.tiers[0].capacity = Some(capacity_bytes);
        self
    }

    /// What it is made of, to make another.
    pub fn into_parts(self) -> Parts {
        self.parts
    }

    /// The kernels during which a tensor is there; none if it never is.
    pub fn lifetime(&self, tensor: usize) -> Option<RangeInclusive<usize>> {
        self.lifetimes[tensor].map(|(first, last)| first..=last)
    }

    /// Bytes that a tensor takes in a tier: it is compressed, if it can be, where kernels do not reach.
    pub fn bytes_in(&self, tensor: usize, tier: usize) -> u64 {
        let tensor = &self.parts.tensors[tensor];
        match tensor.compression.filter(|_| !self.parts.tiers[tier].is_reachable) {
            Some(ratio) => (tensor.bytes as f64 / ratio).ceil() as u64,
            None => tensor.bytes,
        }
    }

    /// Bytes that cross a link when a tensor moves: what it takes at the end where it takes less.
    pub fn moved_bytes(&self, tensor: usize, link: usize) -> u64 {
        let Link { from, to, .. } = self.parts.links[link];
        self.bytes_in(tensor, from).min(self.bytes_in(tensor, to))
    }

    /// Bytes of a tensor that kernels read and write, all together.
    pub fn accessed_bytes(&self, tensor: usize) -> u64 {
        self.accessed[tensor]
    }

    /// Bytes of all tensors that kernels read and write.
    pub fn all_accessed_bytes(&self) -> u64 {
        self.accessed.iter().sum()
    }

    /// Bytes of the tensors that `counts`, during each kernel.
    pub fn live_bytes(&self, counts: impl Fn(usize) -> bool) -> Vec<u64> {
        // What begins at a kernel less what has ended before it: sums of all tensors do not pass 64 bits.
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

    /// Bytes of all tensors that are there at once, at most.
    pub fn peak_bytes(&self) -> u64 {
        self.live_bytes(|_| true).into_iter().max().unwrap_or(0)
    }
}

fn yes() -> bool {
    true
}

/// Tags in files go by their names.
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
            D::Error::custom(format!("there is no tag {name:?}: it is one of {}", names.join(", ")))
        })
    }
}
