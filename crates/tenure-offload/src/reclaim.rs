//! Making room in memory: for allocations that find none, and ahead of planned intervals.

use std::sync::Arc;

use tenure_tier::{PendingFetch, Stored};

use crate::course::Course;
use crate::error::OffloadError;
use crate::identity::{Pass, TensorId};
use crate::inner::EngineInner;
use crate::ledger::Ledger;
use crate::place::Place;

/// Makes room for an allocation, and returns whether it could. First releases the source of a spill under way, after
/// waiting for its copy. If there is none, spills tensors that no caller uses, the one that is needed last first, or,
/// where that is unknown, the one that was saved first. The caller must hold no lock.
pub(crate) fn make_room(inner: &EngineInner) -> bool {
    let stream = inner.memory.device().map(|device| device.streams().current());
    let made = (|| {
        if inner.wake()? {
            return Ok(true);
        }
        inner.watch_all();
        inner.ledger.lock().pause(&inner.memory, stream.as_ref())?;
        let made = release_or_evict(inner);
        inner.ledger.lock().resume(&inner.memory, stream.as_ref())?;
        Ok(made)
    })();
    made.unwrap_or_else(|error| {
        inner.ledger.lock().fail(error);
        false
    })
}

/// Releases the source of a spill, or begins to evict tensors until there is one to release. Returns whether some
/// memory was freed. If nothing can be, notes why.
fn release_or_evict(inner: &EngineInner) -> bool {
    let mut is_planned = true;
    loop {
        match release_one(inner, is_planned) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => {
                inner.ledger.lock().fail(error);
            }
        }
        let given_up = inner.ledger.lock().give_up_intermediate();
        if given_up.is_some() {
            return true;
        }
        let mut ledger = inner.ledger.lock();
        match evict_one(inner, &mut ledger) {
            Some(Evicted::Freed) => return true,
            Some(Evicted::Spilling) => {
                is_planned = false;
                continue;
            }
            Some(Evicted::Arriving(id, arrival)) => {
                drop(ledger);
                // The next round evicts the tensor. A caller that needs it gets the error of its fetch.
                let _ = inner.stalled(|| arrival.wait());
                drop(arrival);
                inner.end_arrival(id);
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
            if idle.into_iter().any(|id| inner.drop_bytes(id)) {
                return true;
            }
            ledger = inner.ledger.lock();
        }
        // Where there is zero-copy memory, it serves updates and planned steps.
        let can_overflow = inner.mover.zero_copy().is_some() && matches!(ledger.course, Course::Planned { .. });
        let may_lift = !ledger.is_updating && !can_overflow;
        drop(ledger);
        let is_lifted = may_lift && inner.lift_limit();
        ledger = inner.ledger.lock();
        if is_lifted {
            ledger.exceed();
            return true;
        }
        let too_small = if inner.is_strict() { too_small_so_far(inner, &ledger) } else { None };
        ledger.refused = ledger.no_room.take().or(too_small);
        return false;
    }
}

/// Waits for all spills under way.
pub(crate) fn wait_for_spills(inner: &EngineInner) -> Result<(), OffloadError> {
    while wait_for_first_spill(inner)? {}
    Ok(())
}

/// Waits for the spill that began first. Returns whether there was one.
fn wait_for_first_spill(inner: &EngineInner) -> Result<bool, OffloadError> {
    let first = {
        let mut ledger = inner.ledger.lock();
        ledger.remove_released_spills();
        ledger.spills.pop_front()
    };
    let Some((id, spill)) = first else { return Ok(false) };
    wait_for_spill(inner, id, &spill)
}

/// Releases the sources of all spills from a device, in the order of the thread's stream: its later work waits for
/// their copies.
pub(crate) fn release_all(inner: &EngineInner) -> Result<(), OffloadError> {
    let Some(device) = inner.memory.device() else { return Ok(()) };
    let spills: Vec<Stored> = {
        let ledger = inner.ledger.lock();
        ledger.spills.iter().filter(|(_, spill)| spill.keeps_source()).map(|(_, spill)| spill.clone()).collect()
    };
    let stream = device.streams().current();
    Ok(spills.iter().try_for_each(|spill| spill.lead_to(&stream))?)
}

/// Releases the source of the spill that began first, and returns whether there was one. On a device, the thread's
/// stream waits for the copy in place of the host. Sources are then released in the same order in each step, however
/// long copies take, so that the allocator finds the same free blocks. If its plan has that spill, later steps release
/// it ahead.
fn release_one(inner: &EngineInner, is_planned: bool) -> Result<bool, OffloadError> {
    let (id, spill) = {
        let mut ledger = inner.ledger.lock();
        let is_host = inner.memory.device().is_none();
        if is_host && ledger.remove_released_spills() {
            // Spills have ended since the allocation found no room: now there may be some.
            return Ok(true);
        }
        match ledger.spills.iter().find(|(_, spill)| spill.keeps_source()) {
            Some(first) => first.clone(),
            // The spills that ended just now made room, too.
            None => return Ok(is_host && ledger.remove_released_spills()),
        }
    };
    if let Some(device) = inner.memory.device() {
        if is_planned {
            inner.ledger.lock().course.note_late_release(spill.bytes());
        }
        spill.lead_to(&device.streams().current())?;
    }
    if !spill.keeps_source() {
        return Ok(true);
    }
    let waited = wait_for_spill(inner, id, &spill);
    if waited.is_err() || inner.memory.device().is_none() {
        // The spill is done, or it failed, in which case only one call returns its error. On a device, a finished spill
        // stays listed, since another thread may be about to release it.
        inner.ledger.lock().spills.retain(|(other, _)| *other != id);
    }
    waited
}

/// In a planned step on a device, releases the sources of spills, in the order in which the spills began, until the
/// beginning interval has the room that it needs. Thus each step of a plan releases the same tensors at the same point.
/// If they were released only when the allocator asks for room, their number would depend on fragmentation.
pub(crate) fn release_ahead(inner: &EngineInner) -> Result<(), OffloadError> {
    let Some(device) = inner.memory.device() else { return Ok(()) };
    let released: Vec<Stored> = {
        let mut ledger = inner.ledger.lock();
        // Memory of a device that has been released is already free, in the order of its stream.
        ledger.spills.retain(|(_, spill)| spill.keeps_source());
        if ledger.spills.is_empty() {
            return Ok(());
        }
        let (Some(needed), Some(limit)) = (ledger.course.needed_bytes(), ledger.limit_bytes()) else { return Ok(()) };
        let spills = || ledger.spills.iter().map(|(_, spill)| spill);
        let spilling_bytes: u64 = spills().map(Stored::bytes).sum();
        let room_bytes = limit.saturating_sub(ledger.ahead_bytes);
        let mut excess = (needed + spilling_bytes).saturating_sub(room_bytes) + ledger.course.late_bytes();
        let mut released = Vec::new();
        for spill in spills() {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(spill.bytes());
            released.push(spill.clone());
        }
        released
    };
    let stream = device.streams().current();
    Ok(released.iter().try_for_each(|spill| spill.lead_to(&stream))?)
}

/// Waits for a spill. Returns its error if its tensor still exists.
fn wait_for_spill(inner: &EngineInner, id: TensorId, spill: &Stored) -> Result<bool, OffloadError> {
    match inner.stalled(|| spill.wait()) {
        // A failed spill counts as room if the tensor is not needed any more, as after a step that failed.
        Err(error) if inner.ledger.lock().tensors.contains_key(&id) => Err(error.into()),
        _ => Ok(true),
    }
}

/// The state of a tensor that was chosen to leave memory.
enum Evicted {
    /// Its storage was dropped, since its bytes had been spilled before.
    Freed,
    /// Its spill has begun.
    Spilling,
    /// The tensor was fetched too early, and its fetch is still under way.
    Arriving(TensorId, Arc<PendingFetch>),
}

/// Makes one tensor that no caller uses leave memory. Returns None if there is none, or no tier has room for any.
fn evict_one(inner: &EngineInner, ledger: &mut Ledger) -> Option<Evicted> {
    let is_planned = !matches!(ledger.course, Course::Measured(_));
    for id in ledger.idle() {
        let evicted = match &ledger.tensors[&id].place {
            Place::Arriving { arrival, .. } => return Some(Evicted::Arriving(id, Arc::clone(arrival))),
            Place::InMemory { spilled: Some(_), .. } => Evicted::Freed,
            _ => Evicted::Spilling,
        };
        if let Err(error) = inner.spill(ledger, id, 0) {
            ledger.fail(error);
            return None;
        }
        // The tensor stays if no tier has room for it. A smaller one may still fit.
        if matches!(ledger.tensors[&id].place, Place::Spilled(_)) {
            ledger.report.unplanned += u64::from(is_planned);
            return Some(evicted);
        }
    }
    None
}

/// Returns the error for an allocation that found no room after all tensors that may leave memory have left it.
fn too_small_so_far(inner: &EngineInner, ledger: &Ledger) -> Option<OffloadError> {
    let when = match &ledger.course {
        Course::None => "outside of a step".into(),
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
    let held_bytes = inner.allocated_bytes() + ledger.aside_bytes;
    let known_bytes = ledger.measured_need_bytes();
    let least_bytes = known_bytes.map(|bytes| bytes + ledger.aside_bytes + inner.memory.slack_bytes());
    let least_bytes = least_bytes.filter(|bytes| *bytes > budget_bytes);
    Some(OffloadError::TooSmallSoFar { budget_bytes, held_bytes, when, least_bytes })
}
