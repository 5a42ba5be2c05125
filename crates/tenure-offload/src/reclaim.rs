//! Room, where an allocation finds none.

use std::cmp::Reverse;
use std::sync::Arc;

use tenure_tier::{Arrival, Stored};

use crate::OffloadError;
use crate::engine::{Shared, State};
use crate::held::Held;
use crate::step::{Course, Pass};

/// Makes some, if there is a way: of what is on its way out, as soon as it is; else lets go of what nobody uses, what is
/// needed last before others: as far as nothing is known of that, what was saved first. Called with no lock held.
pub(crate) fn make_room(shared: &Shared) -> bool {
    let stream = shared.memory.device().map(|device| device.streams().current());
    let made = (|| {
        if shared.wake()? {
            return Ok(true);
        }
        let is_measured = shared.state.lock().pause(&shared.memory, stream.as_ref())?;
        let made = make_some(shared);
        if is_measured {
            shared.state.lock().resume(&shared.memory, stream.as_ref())?;
        }
        Ok(made)
    })();
    made.unwrap_or_else(|error| {
        shared.state.lock().failure.get_or_insert(error);
        false
    })
}

fn make_some(shared: &Shared) -> bool {
    loop {
        match part_with_one(shared) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => {
                shared.state.lock().failure.get_or_insert(error);
            }
        }
        let mut state = shared.state.lock();
        match let_go(shared, &mut state) {
            Some(Going::Gone) => return true,
            Some(Going::Leaving) => continue,
            Some(Going::Coming(id, arrival)) => {
                drop(state);
                // It goes in the next round. What went wrong is told to who needs it.
                let _ = shared.stalled(|| arrival.wait());
                drop(arrival);
                shared.arrived(id);
                continue;
            }
            None => {}
        }
        if matches!(&state.course, Course::Measured(measured) if measured.pass == Pass::Budgeted) {
            let idle = state.idle();
            drop(state);
            if !shared.is_strict() {
                // What is too much is measured, and told when the step is over.
                return shared.set_limit(None).is_ok();
            }
            if idle.into_iter().any(|id| shared.give_up(id)) {
                return true;
            }
            state = shared.state.lock();
        }
        if shared.is_strict() {
            let too_small = shared.too_small_so_far(&state);
            state.no_room = state.no_room.take().or(too_small);
        }
        let State { failure, no_room, .. } = &mut *state;
        *failure = failure.take().or(no_room.take());
        return false;
    }
}

/// Waits until nothing is on its way out.
pub(crate) fn wait_for_all(shared: &Shared) -> Result<(), OffloadError> {
    while wait_for_one(shared)? {}
    Ok(())
}

/// Waits for what left first. Whether there was anything.
fn wait_for_one(shared: &Shared) -> Result<bool, OffloadError> {
    let leaving = {
        let mut state = shared.state.lock();
        state.forget_gone();
        state.leaving.pop_front()
    };
    let Some((id, stored)) = leaving else { return Ok(false) };
    wait_for(shared, id, &stored)
}

/// Lets go of all that is on its way out of a device, in the order of the thread's stream.
pub(crate) fn part_with_all(shared: &Shared) -> Result<(), OffloadError> {
    let Some(device) = shared.memory.device() else { return Ok(()) };
    let leaving: Vec<Stored> = {
        let state = shared.state.lock();
        state.leaving.iter().filter(|(_, stored)| stored.keeps_source()).map(|(_, stored)| stored.clone()).collect()
    };
    let stream = device.streams().current();
    Ok(leaving.iter().try_for_each(|stored| stored.lead_to(&stream))?)
}

/// Lets go of what left first: of a device in the order of the thread's stream, which waits in place of the host, and in
/// the same order each time, however long copies take: an allocator that finds the same room need not piece it together
/// anew. Whether there was anything.
fn part_with_one(shared: &Shared) -> Result<bool, OffloadError> {
    let (id, stored) = {
        let mut state = shared.state.lock();
        let is_host = shared.memory.device().is_none();
        if is_host && state.forget_gone() {
            // They went since there was no room: now there may be.
            return Ok(true);
        }
        match state.leaving.iter().find(|(_, stored)| stored.keeps_source()) {
            Some(first) => first.clone(),
            // So did what went just now.
            None => return Ok(is_host && state.forget_gone()),
        }
    };
    if let Some(device) = shared.memory.device() {
        stored.lead_to(&device.streams().current())?;
    }
    if !stored.keeps_source() {
        return Ok(true);
    }
    let waited = wait_for(shared, id, &stored);
    if waited.is_err() || shared.memory.device().is_none() {
        // It has left; or it cannot, which is told once. Of a device somebody may be about to free it.
        shared.state.lock().leaving.retain(|(other, _)| *other != id);
    }
    waited
}

fn wait_for(shared: &Shared, id: u64, stored: &Stored) -> Result<bool, OffloadError> {
    match shared.stalled(|| stored.wait()) {
        // What nobody needs any more, such as that of a step that failed, makes room all the same.
        Err(error) if shared.state.lock().held.contains_key(&id) => Err(error.into()),
        _ => Ok(true),
    }
}

/// What becomes of bytes that were let go of.
enum Going {
    Gone,
    Leaving,
    /// It was fetched too early.
    Coming(u64, Arc<Arrival>),
}

impl State {
    /// What nobody uses, what is needed last before others.
    fn idle(&self) -> Vec<u64> {
        let is_idle = |held: &Held| match (&held.storage, &held.arrival) {
            // Who needs it has a handle.
            (Some(_), Some(arrival)) => Arc::strong_count(arrival) == 1,
            (Some(storage), None) => storage.handles() == 1,
            (None, _) => false,
        };
        let mut idle: Vec<u64> = self.held.iter().filter(|(_, held)| is_idle(held)).map(|(id, _)| *id).collect();
        idle.sort_by_cached_key(|id| Reverse(self.course.needed_in(*id, self.first)));
        idle
    }
}

/// Lets go of something; none if nothing can.
fn let_go(shared: &Shared, state: &mut State) -> Option<Going> {
    let is_planned = !matches!(state.course, Course::Measured(_));
    for id in state.idle() {
        let going = match &state.held[&id] {
            Held { arrival: Some(arrival), .. } => return Some(Going::Coming(id, Arc::clone(arrival))),
            Held { stored: Some(_), .. } => Going::Gone,
            _ => Going::Leaving,
        };
        if let Err(error) = shared.spill(state, id, 0) {
            state.failure.get_or_insert(error);
            return None;
        }
        // It stays where there is no room for it; for a smaller one there may be.
        if state.held[&id].storage.is_none() {
            state.report.unplanned += u64::from(is_planned);
            return Some(going);
        }
    }
    None
}
