//! Collectives of simulated devices: work on their streams that waits for the other devices, as NCCL's kernels do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tenure_alloc::Address;
use tenure_core::{DType, StreamId};

use super::{CollectiveError, ReduceOp};
use crate::sim::{SimDriver, SimKernel};

/// The longest time that a device waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// The meeting point of a group's devices.
pub(super) struct Meeting(Mutex<MeetingState>);

struct MeetingState {
    /// The number of calls that each device has made.
    made: Vec<usize>,
    rounds: BTreeMap<usize, Round>,
    is_broken: bool,
}

/// One call of all devices.
#[derive(Default)]
struct Round {
    /// The bytes of each device that has made the call.
    given: Vec<Option<Vec<u8>>>,
    /// The time at which the first device began to wait.
    awaited: Option<Instant>,
    result: Option<Arc<Vec<u8>>>,
    gone: usize,
}

impl Meeting {
    pub(super) fn new(size: usize) -> Self {
        Self(Mutex::new(MeetingState { made: vec![0; size], rounds: BTreeMap::new(), is_broken: false }))
    }

    /// Lets all devices go on, with the numbers that they came with.
    pub(super) fn abort(&self) {
        self.0.lock().is_broken = true;
    }

    /// Returns the number of a device's next call.
    fn call(&self, rank: usize) -> Result<usize, CollectiveError> {
        let mut state = self.0.lock();
        if state.is_broken {
            return Err(CollectiveError::Alone);
        }
        state.made[rank] += 1;
        Ok(state.made[rank])
    }

    /// Notes that a device has made a call, with its bytes.
    fn give(&self, number: usize, rank: usize, bytes: Vec<u8>) {
        let mut state = self.0.lock();
        let size = state.made.len();
        let round = state.rounds.entry(number).or_default();
        round.given.resize(size, None);
        round.given[rank] = Some(bytes);
    }

    /// Returns whether all devices have made a call, or the waiting has ended.
    fn is_over(&self, number: usize) -> bool {
        let state = &mut *self.0.lock();
        let Some(round) = state.rounds.get_mut(&number) else { return state.is_broken };
        if round.result.is_none() && !round.given.iter().all(Option::is_some) {
            state.is_broken |= round.awaited.get_or_insert_with(Instant::now).elapsed() > PATIENCE;
            return state.is_broken;
        }
        true
    }

    /// Returns what `merge` makes of all devices' bytes, in order of rank, or `None` if a device did not make the call.
    fn take(&self, number: usize, merge: impl Fn(Vec<Vec<u8>>) -> Vec<u8>) -> Option<Arc<Vec<u8>>> {
        let state = &mut *self.0.lock();
        let round = state.rounds.get_mut(&number)?;
        if round.result.is_none() {
            if !round.given.iter().all(Option::is_some) {
                return None;
            }
            round.result = Some(Arc::new(merge(round.given.drain(..).flatten().collect())));
        }
        let result = round.result.clone();
        round.gone += 1;
        if round.gone == state.made.len() {
            state.rounds.remove(&number);
        }
        result
    }
}

#[expect(clippy::too_many_arguments, reason = "what is called, and who calls")]
#[track_caller]
pub(super) fn all_reduce(
    meeting: &Arc<Meeting>,
    rank: usize,
    driver: &SimDriver,
    address: Address,
    count: usize,
    dtype: DType,
    reduction: ReduceOp,
    stream: StreamId,
) -> Result<(), CollectiveError> {
    if matches!(dtype, DType::Bool | DType::I16) {
        return Err(CollectiveError::DType(dtype));
    }
    put(meeting, rank, driver, "all_reduce", address, count * dtype.size(), stream, move |given| {
        reduce(given, dtype, reduction)
    })
}

#[track_caller]
pub(super) fn broadcast(
    meeting: &Arc<Meeting>,
    rank: usize,
    driver: &SimDriver,
    address: Address,
    bytes: usize,
    root: usize,
    stream: StreamId,
) -> Result<(), CollectiveError> {
    put(meeting, rank, driver, "broadcast", address, bytes, stream, move |mut given| given.swap_remove(root))
}

#[expect(clippy::too_many_arguments, reason = "what is called, and who calls")]
#[track_caller]
fn put(
    meeting: &Arc<Meeting>,
    rank: usize,
    driver: &SimDriver,
    name: &'static str,
    address: Address,
    bytes: usize,
    stream: StreamId,
    merge: impl Fn(Vec<Vec<u8>>) -> Vec<u8> + Send + Sync + 'static,
) -> Result<(), CollectiveError> {
    let number = meeting.call(rank)?;
    let giver = Arc::clone(meeting);
    let waiter = Arc::clone(meeting);
    let taker = Arc::clone(meeting);
    let give = SimKernel::new(name, stream).reads(address, bytes as u64).body(move |memory| {
        let mut own = vec![0; bytes];
        memory.read(address, &mut own);
        giver.give(number, rank, own);
    });
    let take = SimKernel::new(name, stream).writes(address, bytes as u64).body(move |memory| {
        if let Some(result) = taker.take(number, &merge) {
            memory.write(address, &result);
        }
    });
    driver.launch(give)?;
    // The stream waits, as with NCCL's kernels; the host thread that runs its work does not.
    driver.wait_outside(stream, Box::new(move || waiter.is_over(number)))?;
    driver.launch(take)?;
    Ok(())
}

/// Reduces the numbers of all devices to one device's.
fn reduce(given: Vec<Vec<u8>>, dtype: DType, reduction: ReduceOp) -> Vec<u8> {
    let size = given.len() as f64;
    let width = dtype.size();
    let count = given.first().map_or(0, |bytes| bytes.len() / width);
    let mut result = Vec::with_capacity(count * width);
    for at in 0..count {
        let numbers = given.iter().map(|bytes| number(dtype, &bytes[at * width..][..width]));
        let reduced = match reduction {
            ReduceOp::Sum => numbers.sum(),
            ReduceOp::Average => numbers.sum::<f64>() / size,
            ReduceOp::Max => numbers.fold(f64::NEG_INFINITY, f64::max),
        };
        push(dtype, reduced, &mut result);
    }
    result
}

/// Reads one element as an `f64`, which is exact for integers up to 2⁵³: enough for tests.
fn number(dtype: DType, bytes: &[u8]) -> f64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(word);
    match dtype {
        DType::F64 => f64::from_bits(bits),
        DType::F32 => f32::from_bits(bits as u32).into(),
        DType::BF16 => half::bf16::from_bits(bits as u16).to_f64(),
        DType::F16 => half::f16::from_bits(bits as u16).to_f64(),
        DType::I64 => bits as i64 as f64,
        DType::I32 => (bits as i32).into(),
        DType::I8 => (bits as i8).into(),
        _ => bits as f64,
    }
}

fn push(dtype: DType, number: f64, bytes: &mut Vec<u8>) {
    match dtype {
        DType::F64 => bytes.extend(number.to_le_bytes()),
        DType::F32 => bytes.extend((number as f32).to_le_bytes()),
        DType::BF16 => bytes.extend(half::bf16::from_f64(number).to_le_bytes()),
        DType::F16 => bytes.extend(half::f16::from_f64(number).to_le_bytes()),
        DType::I64 => bytes.extend((number as i64).to_le_bytes()),
        DType::I32 => bytes.extend((number as i32).to_le_bytes()),
        DType::I8 => bytes.extend((number as i8).to_le_bytes()),
        _ => bytes.push(number as u8),
    }
}
