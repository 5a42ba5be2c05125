//! Reports that verify in which tier each tensor is.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Serialize;
use tenure_core::Tag;
use tenure_device::host::HostMemory;

use crate::placement::Verdict;
use crate::{Placement, Tier};

/// The contents of all tiers at one moment. Bytes are the requested sizes of live blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The program that the mapping is for.
    pub program: String,
    /// The tiers, in the mapping's order.
    pub tiers: Vec<TierReport>,
    /// Bytes by tag of CPU tensors in no tier: allocated by threads that did not enter the placement, or before they
    /// did. Tensors without a tag are left out.
    pub outside: BTreeMap<&'static str, u64>,
    /// The share of tagged bytes that are verified to be in the tier that the mapping says, 0 to 1; 1 if there are
    /// none. It is the share of the bytes that have a place and those outside of all tiers.
    pub verified_share: f64,
    /// The share of all tagged bytes, in tiers and outside, that have a place in the mapping, 0 to 1; 1 if there are
    /// none.
    pub mapped_share: f64,
    /// Tagged bytes that have no place in the mapping and are in the first tier.
    pub unmapped_bytes: u64,
    /// Whether any tier only emulates persistent memory.
    pub is_emulated: bool,
    /// The keys since the placement was opened.
    pub keys: KeyReport,
}

/// The contents of a tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierReport {
    /// The tier's name in the mapping.
    pub name: String,
    /// A description of the tier's memory.
    pub nature: String,
    /// Whether the tier only emulates persistent memory.
    pub is_emulated: bool,
    /// The capacity in bytes.
    pub capacity: u64,
    /// The most bytes that were allocated at once, with rounding.
    pub peak: u64,
    /// Bytes of live blocks that are resident in memory; `None` if the system does not report it.
    pub resident: Option<u64>,
    /// The reason why nothing in the tier can be verified, if there is one.
    pub trouble: Option<String>,
    /// The bytes in the tier by tag.
    pub tags: BTreeMap<&'static str, TagReport>,
}

/// The bytes with a tag in a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TagReport {
    /// All bytes.
    pub bytes: u64,
    /// The bytes that are verified to be in this tier, where the mapping places them.
    pub verified: u64,
    /// The bytes that the mapping has no place for. They are here because this is the first tier.
    pub unmapped: u64,
    /// The bytes that belong in another tier, which was full.
    pub missed: u64,
}

/// The keys of a mapping compared with those of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KeyReport {
    /// The number of the mapping's keys that some allocation had.
    pub came: usize,
    /// The mapping's keys that no allocation had so far.
    pub never_came: Vec<String>,
    /// The keys of allocations that the mapping has no place for.
    pub unmapped: Vec<String>,
    /// The keys that were ever placed in another tier because theirs was full.
    pub missed: Vec<String>,
    /// The bytes of all allocations that were missed.
    pub missed_bytes: u64,
}

impl Placement {
    /// Verifies in which tier each live block is, and returns a report.
    pub fn report(&self) -> Report {
        self.report_beside(&[])
    }

    /// Reports like [`report`](Self::report), for a program with CPU tensors outside of all tiers that Tenure does not
    /// manage. `outside` has their bytes by tag.
    pub fn report_beside(&self, outside: &[(Tag, u64)]) -> Report {
        Report::new(self, outside)
    }
}

impl Report {
    pub(crate) fn new(placement: &Placement, others: &[(Tag, u64)]) -> Self {
        let tiers: Vec<_> = placement
            .tiers()
            .iter()
            .enumerate()
            .map(|(number, tier)| TierReport::new(placement, number, tier))
            .collect();
        let outside = outside(others);
        let tagged = tiers.iter().flat_map(|tier| &tier.tags).filter(|(tag, _)| **tag != Tag::Unknown.name());
        let sum = |bytes: fn(&TagReport) -> u64| tagged.clone().map(|(_, tag)| bytes(tag)).sum::<u64>();
        let bytes = sum(|tag| tag.bytes);
        let verified = sum(|tag| tag.verified);
        let unmapped_bytes = sum(|tag| tag.unmapped);
        let mapped = bytes - unmapped_bytes;
        let outside_bytes = outside.values().sum::<u64>();
        let (never_came, (missed, missed_bytes)) = (placement.never_came(), placement.missed());
        let came = placement.mapping().places().count() - never_came.len();
        Self {
            program: placement.mapping().program().to_owned(),
            is_emulated: tiers.iter().any(|tier| tier.is_emulated),
            tiers,
            outside,
            verified_share: share(verified, mapped + outside_bytes),
            mapped_share: share(mapped, bytes + outside_bytes),
            unmapped_bytes,
            keys: KeyReport { came, never_came, unmapped: placement.unmapped(), missed, missed_bytes },
        }
    }

    /// Returns the bytes with a tag in the tier of that name.
    pub fn of(&self, tier: &str, tag: Tag) -> TagReport {
        let tier = self.tiers.iter().find(|report| report.name == tier);
        tier.and_then(|tier| tier.tags.get(tag.name())).copied().unwrap_or_default()
    }
}

impl TierReport {
    fn new(placement: &Placement, number: usize, tier: &Tier) -> Self {
        let region = tier.region();
        let trouble = tier.trouble();
        let mut tags: BTreeMap<&'static str, TagReport> = BTreeMap::new();
        let mut resident = Some(0);
        for (address, live) in placement.live(number) {
            let range = address..address + live.bytes;
            resident = resident.and_then(|sum| Some(sum + resident_bytes(&range)?));
            let is_contained = trouble.is_none() && region.contains(&range).unwrap_or(false);
            let tag = tags.entry(live.tag.name()).or_default();
            tag.bytes += live.bytes;
            let verdict = placement.verdict(number, &live);
            match verdict {
                Verdict::Placed => {}
                Verdict::Unmapped => tag.unmapped += live.bytes,
                Verdict::Missed => tag.missed += live.bytes,
            }
            if is_contained && verdict == Verdict::Placed {
                tag.verified += live.bytes;
            }
        }
        Self {
            name: tier.name().to_owned(),
            nature: tier.nature().to_string(),
            is_emulated: tier.nature().is_emulated(),
            capacity: tier.capacity_bytes(),
            peak: tier.peak_bytes(),
            resident,
            trouble,
            tags,
        }
    }
}

/// Returns a part divided by the whole, or 1 if the whole is 0.
fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 1.0 } else { part as f64 / all as f64 }
}

/// Returns the bytes of a block that are resident. Pages at its ends may be shared with other blocks; the result is at
/// most the block's size.
fn resident_bytes(range: &Range<u64>) -> Option<u64> {
    let resident = crate::system::resident_bytes(range).ok()?;
    Some(resident.min(range.end - range.start))
}

/// Returns the bytes by tag outside of all tiers: in the process's ordinary allocator, and in `others`.
fn outside(others: &[(Tag, u64)]) -> BTreeMap<&'static str, u64> {
    let own = HostMemory::installed().map(|memory| memory.statistics().tags).unwrap_or_default();
    let own = Tag::ALL.into_iter().map(|tag| (tag, own[tag as usize].requested_bytes.current));
    let mut all = BTreeMap::new();
    for (tag, bytes) in own.chain(others.iter().copied()).filter(|(tag, bytes)| *tag != Tag::Unknown && *bytes > 0) {
        *all.entry(tag.name()).or_default() += bytes;
    }
    all
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "placement of {:?}: {:.2} % of tagged bytes with a place are verified to be there; {:.2} % have a place, and {} \
             bytes have none",
            self.program,
            self.verified_share * 100.0,
            self.mapped_share * 100.0,
            self.unmapped_bytes
        )?;
        for tier in &self.tiers {
            writeln!(f, "  {}: {}, {} of {} bytes at the peak", tier.name, tier.nature, tier.peak, tier.capacity)?;
            if let Some(trouble) = &tier.trouble {
                writeln!(f, "    not verified: {trouble}")?;
            }
            for (tag, TagReport { bytes, verified, unmapped, missed }) in &tier.tags {
                writeln!(
                    f,
                    "    {tag}: {bytes} bytes, {verified} verified, {unmapped} without a place, {missed} missed"
                )?;
            }
        }
        for (tag, bytes) in &self.outside {
            writeln!(f, "  outside of all tiers: {bytes} bytes, {tag}")?;
        }
        let KeyReport { came, never_came, unmapped, missed, missed_bytes } = &self.keys;
        writeln!(
            f,
            "  keys: {came} of the mapping came, {} did not; {} of the program have no place; {} were missed, with {missed_bytes} bytes",
            never_came.len(),
            unmapped.len(),
            missed.len()
        )
    }
}
