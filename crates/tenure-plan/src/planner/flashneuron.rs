//! FlashNeuron's scheduler (Bae and others, FAST 2021), following its code: decides which of the tensors saved by the
//! forward pass are offloaded. It does not model the backward pass's reads, and takes a fixed compression ratio of 2.
//! It models the device's memory and one place to offload to, as fast as the first link out of the first tier. If there
//! are several places, the decoder takes the first with room, as for every planner.

use super::{Decisions, Decoder, Planner, PlannerOptions, PlannerResult, Treatment, Watch, begin};
use crate::Problem;

/// FlashNeuron's two phases choose the tensors to offload. The [`Decoder`] decides when they return, and treats the
/// others if they do not fit. The scheduler knows only time: if the objective is the score, for which nothing moves,
/// the tensors that it would offload get room in the first tier last.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlashNeuron;

/// Tensors of at most this many bytes are not offloaded.
const MIN_BYTES: u64 = 1 << 20;
/// The share of the pool that saved tensors may take.
const POOL_SHARE: f64 = 0.6;

impl Planner for FlashNeuron {
    fn name(&self) -> &str {
        "flashneuron"
    }

    fn plan(&self, problem: &Problem, options: &PlannerOptions, watch: &mut Watch<'_>) -> PlannerResult {
        let mut evaluator = begin(problem, options, watch)?;
        evaluator.cost(&Decoder::new(problem, options.objective).decode(&Self::decide(problem)));
        evaluator.finish()
    }
}

impl FlashNeuron {
    /// Returns the decisions: the chosen tensors move away, and the others get room first.
    pub(super) fn decide(problem: &Problem) -> Decisions {
        let mut decisions = Decisions::keep(problem.tensors().len(), &[]);
        for tensor in OffloadCandidates::of(problem).choose() {
            (decisions.treatments[tensor], decisions.priorities[tensor]) = (Treatment::Away, -1.0);
        }
        decisions
    }
}

/// A tensor that the forward pass saves.
#[derive(Clone, Copy, Debug)]
struct OffloadCandidate {
    tensor: usize,
    bytes: f64,
    /// The time at which it is saved, in nanoseconds of the forward pass.
    saved_ns: f64,
    /// The nanoseconds that writing it takes.
    write_ns: f64,
    codec: Codec,
}

/// A way to compress a tensor. `Sparse` includes `Half`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Codec {
    None,
    /// Half the bits.
    Half,
    /// Zeros left out, and half the bits of the other values.
    Sparse,
}

/// The tensors from which the scheduler chooses.
struct OffloadCandidates {
    /// The tensors, in the order in which they are saved.
    candidates: Vec<OffloadCandidate>,
    /// Bytes that must be offloaded.
    excess: f64,
    forward_ns: f64,
}

impl OffloadCandidates {
    fn of(problem: &Problem) -> Self {
        let backward = problem.backward().unwrap_or_else(|| fullest_kernel(problem));
        let begins = problem.begins_ns();
        let link = problem.links().iter().find(|link| link.from == 0);
        let candidates = problem.users().into_iter().enumerate().filter_map(|(tensor, users)| {
            // No field says which kernel saves it: take the last one of the forward pass that uses it, since the tensor
            // cannot leave before.
            let last = users.into_iter().take_while(|kernel| *kernel < backward).last();
            let life = problem.lifetime(tensor)?;
            let bytes = problem.tensors()[tensor].bytes;
            let always = problem.tensors()[tensor].is_always_there();
            let is_saved = *life.end() >= backward && !always;
            let codec = codec(problem, tensor);
            let ratio = [1.0, 2.0, 4.0][codec as usize];
            (is_saved && bytes > MIN_BYTES).then_some(OffloadCandidate {
                tensor,
                bytes: bytes as f64,
                saved_ns: begins[last? + 1],
                write_ns: bytes as f64 / ratio * 1e9 / link?.bandwidth as f64,
                codec,
            })
        });
        let mut candidates: Vec<OffloadCandidate> = candidates.collect();
        candidates.sort_by(|left, right| left.saved_ns.total_cmp(&right.saved_ns));
        let capacity = problem.tiers()[0].capacity.map_or(f64::INFINITY, |capacity| capacity as f64);
        let resident = problem.tensors().iter().filter(|tensor| tensor.is_always_there());
        let pool = capacity - resident.map(|tensor| tensor.bytes as f64).sum::<f64>();
        let all: f64 = candidates.iter().map(|candidate| candidate.bytes).sum();
        Self { candidates, excess: all - POOL_SHARE * pool.max(0.0), forward_ns: begins[backward] }
    }

    /// Returns the tensors to offload.
    fn choose(&self) -> Vec<usize> {
        let (mut chosen, last) = self.choose_in_order();
        self.replace_by_compressible(&mut chosen, last);
        let chosen = self.candidates.iter().zip(chosen).filter(|(_, is_chosen)| *is_chosen);
        chosen.map(|(candidate, _)| candidate.tensor).collect()
    }

    /// Runs the first phase: chooses tensors in the order in which they are saved, until enough are chosen. Also
    /// returns the number of the last.
    fn choose_in_order(&self) -> (Vec<bool>, usize) {
        let mut chosen = vec![false; self.candidates.len()];
        let mut excess = self.excess;
        let mut last = 0;
        if excess <= 0.0 {
            return (chosen, last);
        }
        for (number, candidate) in self.candidates.iter().enumerate() {
            (chosen[number], last) = (true, number);
            excess -= candidate.bytes;
            if excess < 0.0 {
                break;
            }
        }
        (chosen, last)
    }

    /// Runs the second phase: while the last write ends after the forward pass, replaces the latest chosen tensor that
    /// compresses least by the next tensors after the first phase's last that compress most, of at least as many bytes.
    fn replace_by_compressible(&self, chosen: &mut [bool], last: usize) {
        while self.written_ns(chosen) > self.forward_ns {
            let latest = |codec: fn(Codec) -> bool| {
                (0..chosen.len()).rev().find(|number| chosen[*number] && codec(self.candidates[*number].codec))
            };
            let Some(dropped) = latest(|codec| codec == Codec::None).or_else(|| latest(|codec| codec != Codec::Sparse))
            else {
                return;
            };
            let least = self.candidates[dropped].codec;
            let mut missing = self.candidates[dropped].bytes;
            let mut added = Vec::new();
            for codec in [Codec::Sparse, Codec::Half].into_iter().filter(|codec| *codec > least) {
                let unchosen = self.candidates.iter().enumerate().skip(last + 1).filter(|(number, _)| !chosen[*number]);
                for (number, candidate) in unchosen.filter(|(_, candidate)| candidate.codec == codec) {
                    if missing > 0.0 {
                        missing -= candidate.bytes;
                        added.push(number);
                    }
                }
            }
            if missing > 0.0 {
                return;
            }
            chosen[dropped] = false;
            added.into_iter().for_each(|number| chosen[number] = true);
        }
    }

    /// Returns the time at which the last chosen tensor has been written: each write waits for the one before.
    fn written_ns(&self, chosen: &[bool]) -> f64 {
        let chosen = self.candidates.iter().zip(chosen).filter(|(_, is_chosen)| **is_chosen);
        chosen.fold(0.0, |written, (candidate, _)| written.max(candidate.saved_ns) + candidate.write_ns)
    }
}

/// Returns the kernel at which the backward pass is assumed to begin if the problem does not say: where most bytes
/// exist that do not always exist.
fn fullest_kernel(problem: &Problem) -> usize {
    let live = problem.live_bytes(|tensor| !problem.tensors()[tensor].is_always_there());
    (0..live.len()).max_by_key(|kernel| live[*kernel]).unwrap_or(0)
}

/// Returns the way in which FlashNeuron would compress a tensor with the problem's ratio. Halving the bits always
/// halves the bytes: a higher ratio means that there are zeros, and a lower one that the tensor cannot be halved.
fn codec(problem: &Problem, tensor: usize) -> Codec {
    match problem.tensors()[tensor].compression {
        Some(ratio) if ratio > 2.0 => Codec::Sparse,
        Some(ratio) if ratio >= 2.0 => Codec::Half,
        _ => Codec::None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Codec, OffloadCandidate, OffloadCandidates};

    /// Makes candidates; writing a byte takes 1 ns.
    fn saved(excess: f64, forward_ns: f64, candidates: &[(f64, f64, Codec)]) -> OffloadCandidates {
        OffloadCandidates {
            candidates: candidates
                .iter()
                .enumerate()
                .map(|(tensor, &(saved_ns, bytes, codec))| {
                    let write_ns = bytes / [1.0, 2.0, 4.0][codec as usize];
                    OffloadCandidate { tensor, bytes, saved_ns, write_ns, codec }
                })
                .collect(),
            excess,
            forward_ns,
        }
    }

    #[test]
    fn nothing_goes_where_all_fits() {
        assert!(saved(0.0, 100.0, &[(10.0, 50.0, Codec::None)]).choose().is_empty());
    }

    #[test]
    fn the_first_phase_takes_tensors_as_they_are_saved_until_enough_is_gone() {
        let list = [
            (10.0, 40.0, Codec::None),
            (20.0, 40.0, Codec::None),
            (100.0, 40.0, Codec::None),
            (150.0, 40.0, Codec::None),
        ];
        let plenty = saved(100.0, 400.0, &list);
        assert_eq!(plenty.choose(), [0, 1, 2]);
        // Freeing exactly enough does not count as more than enough.
        assert_eq!(saved(80.0, 400.0, &list).choose(), [0, 1, 2]);
        // Written from 10 to 50; from 50 (30 late) to 90; from 100 to 140.
        assert_eq!(plenty.written_ns(&[true, true, true, false]), 140.0);
        assert_eq!(plenty.written_ns(&[true, true, false, false]), 90.0);
    }

    #[test]
    fn the_second_phase_gives_what_does_not_compress_for_what_does() {
        let list = [
            (10.0, 40.0, Codec::Half),
            (20.0, 60.0, Codec::None),
            (60.0, 60.0, Codec::None),
            (90.0, 40.0, Codec::Half),
            (100.0, 40.0, Codec::Sparse),
            (110.0, 40.0, Codec::Sparse),
        ];
        // The first three end at 10 + 20, 90 and 150. With 120 ns that is too late: the third is replaced by 60 bytes
        // of the two that compress most, at 100 + 10 and 110 + 10.
        assert_eq!(saved(130.0, 150.0, &list).choose(), [0, 1, 2]);
        assert_eq!(saved(130.0, 120.0, &list).choose(), [0, 1, 4, 5]);
        // With 119 ns the second would be replaced too, but only 40 bytes could take its place: it stays.
        assert_eq!(saved(130.0, 119.0, &list).choose(), [0, 1, 4, 5]);
        // If removing zeros is not enough, halving is added.
        let mut halves = list;
        halves[5].2 = Codec::Half;
        assert_eq!(saved(130.0, 120.0, &halves).choose(), [0, 1, 3, 4]);
    }
}
