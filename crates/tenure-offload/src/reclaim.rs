//! Reclaiming of memory for allocations that find no room.

use std::sync::Arc;

use tenure_tier::{PendingFetch, Stored};

use crate::course::Course;
use crate::error::OffloadError;
use crate::held::HeldTensor;
use crate::identity::HeldId;
use crate::inner::EngineInner;
use crate::ledger::Ledger;
use crate::signature::Pass;

/// The part of the limit, one in so many, that is left free ahead of an interval: an allocator rounds up.
const SPARE_PART: u64 = 64;

/// Makes room for an allocation, if there is a way, and returns whether it did. It first releases a tensor that is on
/// its way out, as soon as that is stored. Otherwise it spills tensors that are not in use, the one that is needed last
/// first; where that is unknown, the one that was saved first. The caller holds no lock.
pub(crate) fn make_room(inner: &EngineInner) -> bool {
    let stream = inner.memory.device().map(|device| device.streams().current());
    let made = (|| {
        if inner.wake()? {
            return Ok(true);
        }
        let is_measured = inner.ledger.lock().pause(&inner.memory, stream.as_ref())?;
        let made = make_some(inner);
        if is_measured {
            inner.ledger.lock().resume(&inner.memory, stream.as_ref())?;
        }
        Ok(made)
    })();
    made.unwrap_or_else(|error| {
        inner.ledger.lock().fail(error);
        false
    })
}

fn make_some(inner: &EngineInner) -> bool {
    loop {
        match part_with_one(inner) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => {
                inner.ledger.lock().fail(error);
            }
        }
        let mut ledger = inner.ledger.lock();
        match let_go(inner, &mut ledger) {
            Some(Going::Gone) => return true,
            Some(Going::Leaving) => continue,
            Some(Going::Coming(id, arrival)) => {
                drop(ledger);
                // The tensor leaves in the next round. The caller that needs it gets the error.
                let _ = inner.stalled(|| arrival.wait());
                drop(arrival);
                inner.arrived(id);
                continue;
            }
            None => {}
        }
        if matches!(&ledger.course, Course::Measured(measured) if measured.pass == Pass::Budgeted) {
            let idle = ledger.idle();
            drop(ledger);
            if !inner.is_strict() {
                // The measured step may exceed the budget. The excess is measured, and reported after the step.
                return inner.set_limit(None).is_ok();
            }
            if idle.into_iter().any(|id| inner.give_up(id)) {
                return true;
            }
            ledger = inner.ledger.lock();
        }
        if inner.is_strict() {
            let too_small = too_small_so_far(inner, &ledger);
            ledger.no_room = ledger.no_room.take().or(too_small);
        }
        let Ledger { failure, no_room, .. } = &mut *ledger;
        *failure = failure.take().or(no_room.take());
        return false;
    }
}

/// Waits until no spill is under way.
pub(crate) fn wait_for_all(inner: &EngineInner) -> Result<(), OffloadError> {
    while wait_for_one(inner)? {}
    Ok(())
}

/// Waits for the spill that began first. Returns whether there was one.
fn wait_for_one(inner: &EngineInner) -> Result<bool, OffloadError> {
    let leaving = {
        let mut ledger = inner.ledger.lock();
        ledger.forget_gone();
        ledger.leaving.pop_front()
    };
    let Some((id, stored)) = leaving else { return Ok(false) };
    wait_for(inner, id, &stored)
}

/// Releases all tensors that are on their way out of a device, in the order of the thread's stream.
pub(crate) fn part_with_all(inner: &EngineInner) -> Result<(), OffloadError> {
    let Some(device) = inner.memory.device() else { return Ok(()) };
    let leaving: Vec<Stored> = {
        let ledger = inner.ledger.lock();
        ledger.leaving.iter().filter(|(_, stored)| stored.keeps_source()).map(|(_, stored)| stored.clone()).collect()
    };
    let stream = device.streams().current();
    Ok(leaving.iter().try_for_each(|stored| stored.lead_to(&stream))?)
}

/// Releases the tensor whose spill began first, and returns whether there was one. On a device, the thread's stream
/// waits in place of the host, and tensors are released in the same order each time, however long copies take: an
/// allocator that finds the same room need not piece it together anew.
fn part_with_one(inner: &EngineInner) -> Result<bool, OffloadError> {
    let (id, stored) = {
        let mut ledger = inner.ledger.lock();
        let is_host = inner.memory.device().is_none();
        if is_host && ledger.forget_gone() {
            // Spills have ended since the allocation found no room: now there may be some.
            return Ok(true);
        }
        match ledger.leaving.iter().find(|(_, stored)| stored.keeps_source()) {
            Some(first) => first.clone(),
            // The spills that ended just now made room, too.
            None => return Ok(is_host && ledger.forget_gone()),
        }
    };
    if let Some(device) = inner.memory.device() {
        stored.lead_to(&device.streams().current())?;
    }
    if !stored.keeps_source() {
        return Ok(true);
    }
    let waited = wait_for(inner, id, &stored);
    if waited.is_err() || inner.memory.device().is_none() {
        // The spill is done, or it failed, in which case only one call returns its error. On a device, a finished spill
        // stays listed, since another thread may be about to release it.
        inner.ledger.lock().leaving.retain(|(other, _)| *other != id);
    }
    waited
}

/// In a planned step on a device, releases as many tensors that are on their way out as the beginning interval needs
/// room for, in the order in which their spills began. So each such step releases the same tensors at the same point,
/// wherever blocks lie. If the allocator asked for room instead, it would get more or less depending on how fragmented
/// its memory is, and would piece the memory together anew each time.
pub(crate) fn part_ahead(inner: &EngineInner) -> Result<(), OffloadError> {
    let Some(device) = inner.memory.device() else { return Ok(()) };
    let parted: Vec<Stored> = {
        let mut ledger = inner.ledger.lock();
        // A device's memory that has been released is free in the order of its streams.
        ledger.leaving.retain(|(_, stored)| stored.keeps_source());
        if ledger.leaving.is_empty() {
            return Ok(());
        }
        let (Some(needed), Some(limit)) = (ledger.course.needed_bytes(), ledger.limit_bytes()) else { return Ok(()) };
        let leaving = || ledger.leaving.iter().map(|(_, stored)| stored);
        let leaving_bytes: u64 = leaving().map(Stored::bytes).sum();
        let mut excess = (needed + leaving_bytes).saturating_sub(limit - limit / SPARE_PART);
        leaving()
            .take_while(|stored| {
                let is_excess = excess > 0;
                excess = excess.saturating_sub(stored.bytes());
                is_excess
            })
            .cloned()
            .collect()
    };
    let stream = device.streams().current();
    Ok(parted.iter().try_for_each(|stored| stored.lead_to(&stream))?)
}

fn wait_for(inner: &EngineInner, id: HeldId, stored: &Stored) -> Result<bool, OffloadError> {
    match inner.stalled(|| stored.wait()) {
        // A failed spill counts as room if the tensor is not needed any more, as after a step that failed.
        Err(error) if inner.ledger.lock().held.contains_key(&id) => Err(error.into()),
        _ => Ok(true),
    }
}

/// The state of a tensor that was let go of.
enum Going {
    Gone,
    Leaving,
    /// The tensor was fetched too early, and is still arriving.
    Coming(HeldId, Arc<PendingFetch>),
}

/// Lets go of a tensor. Returns None if there is none to let go of.
fn let_go(inner: &EngineInner, ledger: &mut Ledger) -> Option<Going> {
    let is_planned = !matches!(ledger.course, Course::Measured(_));
    for id in ledger.idle() {
        let going = match &ledger.held[&id] {
            HeldTensor { arrival: Some(arrival), .. } => return Some(Going::Coming(id, Arc::clone(arrival))),
            HeldTensor { stored: Some(_), .. } => Going::Gone,
            _ => Going::Leaving,
        };
        if let Err(error) = inner.spill(ledger, id, 0) {
            ledger.fail(error);
            return None;
        }
        // The tensor stays if no tier has room for it. A smaller one may still fit.
        if ledger.held[&id].storage.is_none() {
            ledger.report.unplanned += u64::from(is_planned);
            return Some(going);
        }
    }
    None
}

/// Returns the error for an allocation that found no room although all tensors that may leave have left.
fn too_small_so_far(inner: &EngineInner, ledger: &Ledger) -> Option<OffloadError> {
    let when = match &ledger.course {
        Course::None => return None,
        Course::Measured(measured) if measured.is_backward() => "in backward".into(),
        Course::Measured(measured) => match measured.profile.saved().last() {
            Some(saved) => format!("after {} was saved", saved.key),
            None => "before anything was saved".into(),
        },
        Course::Planned { .. } | Course::Unwatched { .. } | Course::Free => {
            "in a step that takes more than those like it".into()
        }
    };
    let budget_bytes = ledger.budget_bytes?;
    Some(OffloadError::TooSmallSoFar { budget_bytes, held_bytes: inner.held_bytes() + ledger.aside_bytes, when })
}
