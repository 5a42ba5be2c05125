//! Tests of the paged allocator in programs that repeat themselves, and do not say so.

use crate::common::MIB;
use crate::paged::{Fixture, tight};
use tenure_alloc::PagedConfig;
use tenure_core::StreamId;

const A: StreamId = StreamId(0);
const B: StreamId = StreamId(7);

/// A request, or the free of the block of an earlier request of the step.
#[derive(Clone, Copy)]
enum Action {
    Alloc { bytes: u64, stream: StreamId },
    Free { request: usize },
}

/// Pseudorandom numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Makes a step of 120 blocks of 2 to 40 MiB, of which up to 24 are alive at once, on two streams.
fn random_step(random: &mut Random) -> Vec<Action> {
    let (mut live, mut actions) = (Vec::new(), Vec::new());
    for request in 0..120 {
        while live.len() > 1 && random.below(24) < live.len() as u64 {
            let request = live.swap_remove(random.below(live.len() as u64) as usize);
            actions.push(Action::Free { request });
        }
        let stream = if random.below(4) == 0 { B } else { A };
        actions.push(Action::Alloc { bytes: (1 + random.below(20)) * 2 * MIB, stream });
        live.push(request);
    }
    actions.extend(live.into_iter().map(|request| Action::Free { request }));
    actions
}

/// Runs a step; `stays` is the number of the action after which a block is made that stays.
fn run(f: &Fixture, step: &[Action], stays: Option<usize>) {
    let mut blocks = Vec::new();
    for (number, action) in step.iter().enumerate() {
        match *action {
            Action::Alloc { bytes, stream } => blocks.push(f.try_alloc(bytes, stream).unwrap()),
            Action::Free { request } => f.free(blocks[request]),
        }
        if stays == Some(number) {
            f.alloc(6 * MIB);
        }
        // The streams end their work before the host goes on.
        [A, B].into_iter().for_each(|stream| f.backing.pass(stream));
    }
}

#[test]
fn random_steps_settle_although_blocks_stay() {
    for seed in 1..40 {
        let f = Fixture::new(PagedConfig { min_chunk_bytes: 4 * MIB, ..tight() });
        let step = random_step(&mut Random(seed));
        for number in 0..12 {
            run(&f, &step, (number < 4).then_some(step.len() / 2));
        }
        let mapped = f.calls("map");
        (0..3).for_each(|_| run(&f, &step, None));
        assert_eq!(f.calls("map"), mapped, "seed {seed}");
    }
}
