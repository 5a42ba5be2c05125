//! Collectives of simulated devices: kernels that wait for one another, as NCCL's do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tenure_alloc::Address;
use tenure_core::{DType, StreamId};

use super::{CollectiveError, Reduction};
use crate::sim::{Kernel, SimDriver};

/// How long a device waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where devices of a group meet.
pub(super) struct Meeting {
    state: Mutex<State>,
    came: Condvar,
}

struct State {
    /// How many calls each device has run.
    made: Vec<usize>,
    rounds: BTreeMap<usize, Round>,
    is_broken: bool,
}

/// One call of all devices.
#[derive(Default)]
struct Round {
    /// The bytes of each that has come.
    given: Vec<Option<Vec<u8>>>,
    result: Option<Arc<Vec<u8>>>,
    gone: usize,
}

impl Meeting {
    pub(super) fn new(size: usize) -> Self {
        let state = State { made: vec![0; size], rounds: BTreeMap::new(), is_broken: false };
        Self { state: Mutex::new(state), came: Condvar::new() }
    }

    /// Lets everybody go, with the numbers that they came with.
    pub(super) fn abort(&self) {
        self.state.lock().is_broken = true;
        self.came.notify_all();
    }

    fn check(&self) -> Result<(), CollectiveError> {
        if self.state.lock().is_broken { Err(CollectiveError::Alone) } else { Ok(()) }
    }

    /// What `merge` makes of all devices' bytes, in their order; none if one did not come.
    fn exchange(&self, rank: usize, bytes: Vec<u8>, merge: impl Fn(Vec<Vec<u8>>) -> Vec<u8>) -> Option<Arc<Vec<u8>>> {
        let mut state = self.state.lock();
        let size = state.made.len();
        let number = state.made[rank];
        state.made[rank] += 1;
        let round = state.rounds.entry(number).or_default();
        round.given.resize(size, None);
        round.given[rank] = Some(bytes);
        if round.given.iter().all(Option::is_some) {
            let given = std::mem::take(&mut round.given);
            round.result = Some(Arc::new(merge(given.into_iter().flatten().collect())));
            self.came.notify_all();
        }
        loop {
            let State { rounds, is_broken, .. } = &mut *state;
            let round = rounds.get_mut(&number)?;
            if let Some(result) = round.result.clone() {
                round.gone += 1;
                if round.gone == size {
                    rounds.remove(&number);
                }
                return Some(result);
            }
            if *is_broken || self.came.wait_for(&mut state, PATIENCE).timed_out() {
                state.is_broken = true;
                self.came.notify_all();
                return None;
            }
        }
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
    reduction: Reduction,
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
    meeting.check()?;
    let meeting = Arc::clone(meeting);
    let kernel = Kernel::new(name, stream).writes(address, bytes as u64).body(move |memory| {
        let mut own = vec![0; bytes];
        memory.read(address, &mut own);
        if let Some(result) = meeting.exchange(rank, own, &merge) {
            memory.write(address, &result);
        }
    });
    driver.launch(kernel)?;
    Ok(())
}

/// The numbers of all devices, as one device's.
fn reduce(given: Vec<Vec<u8>>, dtype: DType, reduction: Reduction) -> Vec<u8> {
    let size = given.len() as f64;
    let width = dtype.size();
    let count = given.first().map_or(0, |bytes| bytes.len() / width);
    let mut result = Vec::with_capacity(count * width);
    for at in 0..count {
        let numbers = given.iter().map(|bytes| number(dtype, &bytes[at * width..][..width]));
        let reduced = match reduction {
            Reduction::Sum => numbers.sum(),
            Reduction::Average => numbers.sum::<f64>() / size,
            Reduction::Max => numbers.fold(f64::NEG_INFINITY, f64::max),
        };
        push(dtype, reduced, &mut result);
    }
    result
}

/// Wide enough for what tests exchange: integers up to 2⁵³ are exact.
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
