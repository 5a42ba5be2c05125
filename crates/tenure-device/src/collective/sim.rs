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

/// The state that the devices of a group share: the inputs and results of their calls.
pub(super) struct Meeting(Mutex<MeetingState>);

struct MeetingState {
    /// The number of calls that each device has made.
    calls: Vec<usize>,
    /// The calls that some devices have not finished, by number.
    rounds: BTreeMap<usize, Round>,
    /// Whether the group was ended, or a device waited for too long.
    is_aborted: bool,
}

/// One call of all devices.
#[derive(Default)]
struct Round {
    /// The bytes of each device whose stream has reached the call.
    inputs: Vec<Option<Vec<u8>>>,
    /// The time at which the first device began to wait.
    waiting_since: Option<Instant>,
    result: Option<Arc<Vec<u8>>>,
    /// The number of devices that have the result.
    finished: usize,
}

impl Meeting {
    pub(super) fn new(size: usize) -> Self {
        Self(Mutex::new(MeetingState { calls: vec![0; size], rounds: BTreeMap::new(), is_aborted: false }))
    }

    /// Ends all waits. A device whose call is not complete keeps its own numbers.
    pub(super) fn abort(&self) {
        self.0.lock().is_aborted = true;
    }

    /// Counts a call of a device. Returns the call's number.
    fn next_call(&self, rank: usize) -> Result<usize, CollectiveError> {
        let mut state = self.0.lock();
        if state.is_aborted {
            return Err(CollectiveError::Alone);
        }
        state.calls[rank] += 1;
        Ok(state.calls[rank])
    }

    /// Stores the bytes of a device for a call.
    fn add_input(&self, number: usize, rank: usize, bytes: Vec<u8>) {
        let mut state = self.0.lock();
        let size = state.calls.len();
        let round = state.rounds.entry(number).or_default();
        round.inputs.resize(size, None);
        round.inputs[rank] = Some(bytes);
    }

    /// Returns whether a stream that waits in a call may continue: all devices have reached the call, or the waits were
    /// ended.
    fn may_continue(&self, number: usize) -> bool {
        let state = &mut *self.0.lock();
        let Some(round) = state.rounds.get_mut(&number) else { return state.is_aborted };
        if round.result.is_none() && !round.inputs.iter().all(Option::is_some) {
            state.is_aborted |= round.waiting_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE;
            return state.is_aborted;
        }
        true
    }

    /// Returns the result of a call, which `merge` computes from all devices' bytes in order of rank; `None` if a
    /// device has not reached the call. Removes the call once all devices have the result.
    fn take_result(&self, number: usize, merge: impl Fn(Vec<Vec<u8>>) -> Vec<u8>) -> Option<Arc<Vec<u8>>> {
        let state = &mut *self.0.lock();
        let round = state.rounds.get_mut(&number)?;
        if round.result.is_none() {
            if !round.inputs.iter().all(Option::is_some) {
                return None;
            }
            round.result = Some(Arc::new(merge(round.inputs.drain(..).flatten().collect())));
        }
        let result = round.result.clone();
        round.finished += 1;
        if round.finished == state.calls.len() {
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
    if matches!(dtype, DType::Bool | DType::I16 | DType::U16) {
        return Err(CollectiveError::DType(dtype));
    }
    launch(meeting, rank, driver, "all_reduce", address, count * dtype.size(), stream, move |inputs| {
        reduce(inputs, dtype, reduction)
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
    launch(meeting, rank, driver, "broadcast", address, bytes, stream, move |mut inputs| inputs.swap_remove(root))
}

/// Puts a collective call on a device's stream: it reads the device's bytes, waits for the other devices, and writes
/// the result that `merge` computes.
#[expect(clippy::too_many_arguments, reason = "what is called, and who calls")]
#[track_caller]
fn launch(
    meeting: &Arc<Meeting>,
    rank: usize,
    driver: &SimDriver,
    name: &'static str,
    address: Address,
    bytes: usize,
    stream: StreamId,
    merge: impl Fn(Vec<Vec<u8>>) -> Vec<u8> + Send + Sync + 'static,
) -> Result<(), CollectiveError> {
    let number = meeting.next_call(rank)?;
    let reader = Arc::clone(meeting);
    let waiter = Arc::clone(meeting);
    let writer = Arc::clone(meeting);
    let read = SimKernel::new(name, stream).reads(address, bytes as u64).body(move |memory| {
        let mut own = vec![0; bytes];
        memory.read(address, &mut own);
        reader.add_input(number, rank, own);
    });
    let write = SimKernel::new(name, stream).writes(address, bytes as u64).body(move |memory| {
        if let Some(result) = writer.take_result(number, &merge) {
            memory.write(address, &result);
        }
    });
    driver.launch(read)?;
    // The stream waits, as with NCCL's kernels; the host thread that runs its work does not.
    driver.wait_outside(stream, Box::new(move || waiter.may_continue(number)))?;
    driver.launch(write)?;
    Ok(())
}

/// Reduces the elements of all devices, one by one.
fn reduce(inputs: Vec<Vec<u8>>, dtype: DType, reduction: ReduceOp) -> Vec<u8> {
    let size = inputs.len() as f64;
    let width = dtype.size();
    let count = inputs.first().map_or(0, |bytes| bytes.len() / width);
    let mut result = Vec::with_capacity(count * width);
    for at in 0..count {
        let numbers = inputs.iter().map(|bytes| decode_element(dtype, &bytes[at * width..][..width]));
        let reduced = match reduction {
            ReduceOp::Sum => numbers.sum(),
            ReduceOp::Average => numbers.sum::<f64>() / size,
            ReduceOp::Max => numbers.fold(f64::NEG_INFINITY, f64::max),
        };
        encode_element(dtype, reduced, &mut result);
    }
    result
}

/// Reads one element as an `f64`, which is exact for integers up to 2⁵³: enough for tests.
fn decode_element(dtype: DType, bytes: &[u8]) -> f64 {
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

/// Appends one element in the form of `dtype`.
fn encode_element(dtype: DType, number: f64, bytes: &mut Vec<u8>) {
    match dtype {
        DType::F64 => bytes.extend(number.to_le_bytes()),
        DType::F32 => bytes.extend((number as f32).to_le_bytes()),
        DType::BF16 => bytes.extend(half::bf16::from_f64(number).to_le_bytes()),
        DType::F16 => bytes.extend(half::f16::from_f64(number).to_le_bytes()),
        DType::I64 => bytes.extend((number as i64).to_le_bytes()),
        DType::I32 => bytes.extend((number as i32).to_le_bytes()),
        DType::I8 => bytes.extend((number as i8).to_le_bytes()),
        DType::U32 => bytes.extend((number as u32).to_le_bytes()),
        DType::U64 => bytes.extend((number as u64).to_le_bytes()),
        _ => bytes.push(number as u8),
    }
}
