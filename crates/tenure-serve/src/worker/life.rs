//! Signs of life of a process, and the memory that the system takes from processes by killing them.

use std::fs;
use std::time::{Duration, Instant};

/// The interval at which a process is asked for a sign of life.
const ASKED_EVERY: Duration = Duration::from_secs(2);

/// The time without a sign of life after which the server is not ready.
const READY_WITHIN: Duration = Duration::from_secs(4);

/// How long a process may take to start, and to give a sign of life.
#[derive(Clone, Copy, Debug)]
pub(super) struct LifePatience {
    pub(super) start: Duration,
    pub(super) answer: Duration,
}

/// Whether a process responds.
#[derive(Debug)]
pub(super) struct Life {
    patience: LifePatience,
    state: LifeState,
    /// How many processes the system had killed for want of memory when this one was last asked.
    memory_kills: u64,
}

#[derive(Clone, Copy, Debug)]
enum LifeState {
    Starting { since: Instant },
    Answered { asked: Instant },
    Asked { at: Instant },
}

/// The next step of watching over a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LifeStep {
    Wait { until: Instant },
    Ask,
    Kill,
}

impl Life {
    pub(super) fn new(now: Instant, patience: LifePatience) -> Self {
        Self { patience, state: LifeState::Starting { since: now }, memory_kills: memory_kills() }
    }

    /// Returns what to do now. If that is to ask or to kill, it counts as done. A sign of life, which wakes no caller, is
    /// seen at the next interval.
    pub(super) fn step(&mut self, now: Instant) -> LifeStep {
        let (end, step) = match self.state {
            LifeState::Starting { since } => (since + self.patience.start, LifeStep::Kill),
            LifeState::Answered { asked } => (asked + ASKED_EVERY, LifeStep::Ask),
            LifeState::Asked { at } => (at + self.patience.answer, LifeStep::Kill),
        };
        if now < end {
            return LifeStep::Wait { until: end.min(now + ASKED_EVERY) };
        }
        self.state = LifeState::Asked { at: now };
        self.memory_kills = memory_kills();
        step
    }

    /// Records that the process is ready, or gave a sign of life.
    pub(super) fn answered(&mut self, now: Instant) {
        self.state = match self.state {
            LifeState::Asked { at } => LifeState::Answered { asked: at },
            LifeState::Starting { .. } => LifeState::Answered { asked: now },
            answered => answered,
        };
    }

    /// Returns whether the process responds, as far as is known.
    pub(super) fn is_answering(&self, now: Instant) -> bool {
        !matches!(self.state, LifeState::Asked { at } if now > at + READY_WITHIN)
    }

    /// Returns whether the system has killed a process for want of memory since this one was last asked.
    pub(super) fn was_memory_short(&self) -> bool {
        memory_kills() > self.memory_kills
    }
}

/// Returns how many processes the system has killed for want of memory since it started.
fn memory_kills() -> u64 {
    let counters = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let kills = counters.lines().find_map(|line| line.strip_prefix("oom_kill "));
    kills.and_then(|kills| kills.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_gives_no_sign_of_life_is_not_ready_and_then_killed() {
        let seconds = Duration::from_secs;
        let origin = Instant::now();
        let patience = LifePatience { start: seconds(30), answer: seconds(10) };
        let mut life = Life::new(origin, patience);
        assert_eq!(life.step(origin + seconds(20)), LifeStep::Wait { until: origin + seconds(22) });
        assert_eq!(life.step(origin + seconds(29)), LifeStep::Wait { until: origin + seconds(30) });
        life.answered(origin + seconds(29));
        assert_eq!(life.step(origin + seconds(31)), LifeStep::Ask);
        life.answered(origin + seconds(32));
        assert_eq!(life.step(origin + seconds(32)), LifeStep::Wait { until: origin + seconds(33) });
        assert_eq!(life.step(origin + seconds(40)), LifeStep::Ask);
        assert!(life.is_answering(origin + seconds(44)) && !life.is_answering(origin + seconds(45)));
        assert_eq!(life.step(origin + seconds(45)), LifeStep::Wait { until: origin + seconds(47) });
        assert_eq!(life.step(origin + seconds(50)), LifeStep::Kill);
    }

    #[test]
    fn a_process_that_does_not_start_is_killed() {
        let origin = Instant::now();
        let patience = LifePatience { start: Duration::from_secs(1), answer: Duration::from_secs(1) };
        assert_eq!(Life::new(origin, patience).step(origin + Duration::from_secs(1)), LifeStep::Kill);
    }
}
