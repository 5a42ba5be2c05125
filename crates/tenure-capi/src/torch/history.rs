//! The history of events, and the trackers that are called for each event.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::{ptr, slice};

use tenure_alloc::{HistoryAction, HistoryContext, HistoryEvent, KeepContexts, Recording};

use super::devices::{Topic, configure_all, device};
use super::object::Object;
use super::pools::CPool;
use crate::failure::{Failure, Status, guarded};

/// `tenure_event` of `tenure_torch.h`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CEvent {
    action: c_int,
    device: c_int,
    address: u64,
    bytes: u64,
    stream: *mut c_void,
    pool: CPool,
    time_us: i64,
    context: *mut c_void,
    note: *mut c_void,
}

/// `tenure_recording` of `tenure_torch.h`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CRecording {
    limit: usize,
    contexts: c_int,
    skip: *const c_int,
    skip_count: usize,
}

/// A C function to call with its object for each event.
pub(super) type Tracker = unsafe extern "C" fn(*mut c_void, *const CEvent);

pub(super) unsafe extern "C" fn record_history(recording: *const CRecording, clear: bool) -> Status {
    guarded(|| {
        // SAFETY: by the header, null or a recording.
        let recording = unsafe { recording.as_ref() }.map(recording_of).transpose()?;
        configure_all(Some(Topic::History), move |_, allocator| {
            match &recording {
                Some(recording) => allocator.history().start(recording.clone(), clear),
                None => allocator.history().stop(),
            }
            Ok(())
        })
    })
}

pub(super) extern "C" fn set_note(note: Object) {
    // This cannot fail. A thread that is ending causes no further events.
    let _ = guarded(|| {
        HistoryContext::set_note(note.into_context());
        Ok(())
    });
}

pub(super) unsafe extern "C" fn annotate(number: c_int, metadata: *const *const c_char, count: usize) -> Status {
    guarded(|| {
        // SAFETY: by the header, `count` pairs of C strings.
        let text = |index| unsafe { CStr::from_ptr(*metadata.add(index)) }.to_string_lossy().into_owned();
        let metadata = (0..count).map(|pair| (text(2 * pair), text(2 * pair + 1))).collect();
        device(number)?.memory.allocator().history().annotate(number as u32, metadata);
        Ok(())
    })
}

pub(super) extern "C" fn add_tracker(tracker: Tracker, user: Object) -> Status {
    guarded(|| {
        let user = Arc::new(user);
        configure_all(None, move |device, allocator| {
            let user = Arc::clone(&user);
            allocator.history().add_tracker(Box::new(move |event| {
                // SAFETY: the tracker was handed over with its object, which lives as long as this closure.
                unsafe { tracker(user.pointer(), &CEvent::new(device, event)) }
            }));
            Ok(())
        })
    })
}

impl CEvent {
    pub(super) fn new(device: c_int, event: &HistoryEvent) -> Self {
        Self {
            action: event.action as c_int,
            device,
            address: event.address,
            bytes: event.bytes,
            stream: ptr::without_provenance_mut(event.stream.0 as usize),
            pool: event.pool.into(),
            time_us: i64::try_from(event.time_us).unwrap_or(i64::MAX),
            context: Object::pointer_of(event.context.as_ref()),
            note: Object::pointer_of(event.note.as_ref()),
        }
    }
}

/// Converts C's settings for recording.
pub(super) fn recording_of(recording: &CRecording) -> Result<Recording, Failure> {
    let skip = match recording.skip_count {
        0 => &[],
        // SAFETY: by the header, this many actions.
        count => unsafe { slice::from_raw_parts(recording.skip, count) },
    };
    let contexts = match recording.contexts {
        0 => KeepContexts::Never,
        1 => KeepContexts::State,
        2 => KeepContexts::Alloc,
        3 => KeepContexts::All,
        other => return Err(Failure::Invalid(format!("contexts = {other}: expected 0 to 3"))),
    };
    let skip = skip.iter().copied().map(action).collect::<Result<_, _>>()?;
    Ok(Recording { limit: recording.limit, contexts, skip })
}

/// Returns the action with this number.
fn action(number: c_int) -> Result<HistoryAction, Failure> {
    let found = usize::try_from(number).ok().and_then(|number| HistoryAction::ALL.get(number));
    found.copied().ok_or_else(|| Failure::Invalid(format!("unknown action {number}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_numbered_as_pytorch_does() {
        // c10/core/CachingDeviceAllocator.h, TraceEntry::HistoryAction.
        assert!(HistoryAction::ALL.iter().enumerate().all(|(number, &action)| action as usize == number));
        assert_eq!(HistoryAction::ALL[8].name(), "oom");
        assert_eq!(HistoryAction::ALL[9].name(), "annotate");
        assert_eq!(HistoryAction::ALL[3].name(), "segment_alloc");
    }
}
