//! Snapshots of a device's memory, shown to a C visitor.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use tenure_alloc::snapshot::{Segment, SnapshotAnnotation, SnapshotBlock, SnapshotState};
use tenure_alloc::{HistoryEvent, PoolId, PoolKind};
use tenure_device::pinned::PinnedBlock;

use super::devices::device;
use super::history::CEvent;
use super::object::Object;
use super::pools::CPool;
use crate::failure::{Status, guarded};

/// `tenure_segment` of `tenure_torch.h`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CSegment {
    device: c_int,
    is_large: bool,
    is_expandable: bool,
    made: u64,
    address: u64,
    stream: *mut c_void,
    pool: CPool,
    context: *mut c_void,
}

/// `tenure_segment_block`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CBlock {
    bytes: u64,
    requested: u64,
    is_allocated: bool,
    is_active: bool,
    context: *mut c_void,
}

/// `tenure_annotation`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CAnnotation {
    device: c_int,
    time_us: i64,
    metadata: *const *const c_char,
    count: usize,
}

/// `tenure_visitor`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Visitor {
    user: *mut c_void,
    segment: unsafe extern "C" fn(*mut c_void, *const CSegment),
    block: unsafe extern "C" fn(*mut c_void, *const CBlock),
    event: unsafe extern "C" fn(*mut c_void, *const CEvent),
    annotation: unsafe extern "C" fn(*mut c_void, *const CAnnotation),
}

pub(super) unsafe extern "C" fn snapshot(number: c_int, pool: CPool, traces: bool, visitor: *const Visitor) -> Status {
    guarded(|| {
        // SAFETY: by the header, a visitor.
        let visitor = unsafe { &*visitor };
        let pool = Some(PoolId::from(pool)).filter(|pool| *pool != PoolId::default());
        let snapshot = device(number)?.memory.allocator().snapshot_of(pool, traces);
        for segment in &snapshot.segments {
            visitor.show_segment(segment);
        }
        for event in snapshot.device_traces.iter().flatten() {
            visitor.show_event(number, event);
        }
        snapshot.annotations.iter().for_each(|annotation| visitor.show_annotation(annotation));
        Ok(())
    })
}

impl Visitor {
    fn show_segment(&self, segment: &Segment) {
        let shown = CSegment {
            device: segment.device as c_int,
            is_large: segment.kind == PoolKind::Large,
            is_expandable: segment.is_expandable,
            made: segment.made,
            address: segment.address,
            stream: ptr::without_provenance_mut(segment.stream.0 as usize),
            pool: segment.pool.into(),
            context: Object::pointer_of(segment.context.as_ref()),
        };
        // SAFETY: a function of the visitor, with its object.
        unsafe { (self.segment)(self.user, &shown) }
        segment.blocks.iter().for_each(|block| self.show_block(block));
    }

    fn show_block(&self, block: &SnapshotBlock) {
        let shown = CBlock {
            bytes: block.bytes,
            requested: block.requested,
            is_allocated: block.state == SnapshotState::Allocated,
            is_active: block.state != SnapshotState::Inactive,
            context: Object::pointer_of(block.context.as_ref()),
        };
        // SAFETY: a function of the visitor, with its object.
        unsafe { (self.block)(self.user, &shown) }
    }

    /// Shows a block of pinned memory as a segment with one block.
    pub(super) fn show_pinned(&self, block: &PinnedBlock) {
        let context = Object::pointer_of(block.context.as_ref());
        let segment = CSegment {
            device: -1,
            is_large: true,
            is_expandable: false,
            made: 0,
            address: block.address,
            stream: ptr::null_mut(),
            pool: block.pool.into(),
            context,
        };
        let shown = CBlock {
            bytes: block.bytes,
            requested: block.bytes,
            is_allocated: block.is_live,
            is_active: block.is_used,
            context,
        };
        // SAFETY: functions of the visitor, with their object.
        unsafe {
            (self.segment)(self.user, &segment);
            (self.block)(self.user, &shown);
        }
    }

    pub(super) fn show_event(&self, number: c_int, event: &HistoryEvent) {
        // SAFETY: a function of the visitor, with its object.
        unsafe { (self.event)(self.user, &CEvent::new(number, event)) }
    }

    fn show_annotation(&self, annotation: &SnapshotAnnotation) {
        let text = |text: &String| CString::new(text.replace('\0', " ")).unwrap_or_default();
        let owned: Vec<CString> =
            annotation.metadata.iter().flat_map(|(name, value)| [text(name), text(value)]).collect();
        let metadata: Vec<*const c_char> = owned.iter().map(|text| text.as_ptr()).collect();
        let shown = CAnnotation {
            device: annotation.device as c_int,
            time_us: i64::try_from(annotation.time_us).unwrap_or(i64::MAX),
            metadata: metadata.as_ptr(),
            count: annotation.metadata.len(),
        };
        // SAFETY: a function of the visitor, with its object.
        unsafe { (self.annotation)(self.user, &shown) }
    }
}
