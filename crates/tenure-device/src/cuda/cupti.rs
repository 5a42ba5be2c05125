//! Records of NVIDIA devices' work, through CUPTI's activity interface.
//!
//! CUPTI fills buffers with records, and gives them back through a callback on a thread of its own. A record of a
//! kernel or copy has the number of the driver call that launched it, its *correlation*. Another record says which
//! cause that call had: CUPTI writes it for each driver call while a thread has pushed an *external correlation*.
//! The layouts of records differ between versions of CUPTI only after the fields that this module reads.

use std::alloc::{self, Layout};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::CStr;
use std::ptr;
use std::time::Duration;

use cpp_demangle::{DemangleOptions, Symbol};
use cudarc::cupti::sys::{
    self, CUpti_Activity, CUpti_ActivityExternalCorrelation, CUpti_ActivityKernel10, CUpti_ActivityKind,
    CUpti_ActivityMemcpy6, CUpti_ActivityMemcpyKind, CUpti_ActivityMemcpyPtoP4, CUpti_ActivityMemset4,
    CUpti_ExternalCorrelationKind, CUptiResult,
};
use cudarc::driver::sys::CUcontext;
use parking_lot::Mutex;
use tenure_core::{Device, StreamId};

use crate::activity_log::{Activity, ActivityKind};

/// The size of a buffer for records, in bytes, and its alignment, which CUPTI requires.
const BUFFER: (usize, usize) = (1 << 20, 8);

/// The kinds of records. Calls of the driver and of the runtime, which libraries call, are enabled because only their
/// records bring those of external correlations.
const KINDS: [CUpti_ActivityKind; 7] = [
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMSET,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_DRIVER,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_RUNTIME,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
];

/// The name of Tenure's causes among the external correlations of a process.
const CAUSE: CUpti_ExternalCorrelationKind = CUpti_ExternalCorrelationKind::CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

/// CUPTI's flag that even buffers that are not full are given back.
const FLUSH_FORCED: u32 = 1;

/// The records of the recording.
static COLLECTED: Mutex<Option<Collected>> = Mutex::new(None);

#[derive(Default)]
struct Collected {
    /// CUPTI's time of the start, in ns.
    started_ns: u64,
    max_activities: usize,
    /// The activities, each with its correlation.
    activities: Vec<(u32, Activity)>,
    causes: HashMap<u32, u64>,
    names: KernelNames,
    dropped: u64,
}

/// Starts to record. Fails with a reason, in words, if CUPTI is missing or refuses.
pub(crate) fn start(max_activities: usize) -> Result<(), String> {
    // SAFETY: loading a library runs its initialisers; this one is NVIDIA's.
    if !unsafe { sys::is_culib_present() } {
        return Err("CUPTI was not found (libcupti.so, or libcupti.so.13): put its folder into LD_LIBRARY_PATH; the \
                    Python package `nvidia-cuda-cupti` and the CUDA toolkit have it"
            .to_owned());
    }
    // SAFETY: both functions live as long as the program.
    check("cuptiActivityRegisterCallbacks", unsafe {
        sys::cuptiActivityRegisterCallbacks(Some(give_buffer), Some(take_buffer))
    })?;
    *COLLECTED.lock() = Some(Collected { max_activities, ..Collected::default() });
    let started = KINDS.into_iter().try_for_each(|kind| {
        // SAFETY: the kind is one of CUPTI's.
        check("cuptiActivityEnable", unsafe { sys::cuptiActivityEnable(kind) })
    });
    // Taken last, since enabling takes long.
    let started = started.and_then(|()| {
        let mut now_ns = 0;
        // SAFETY: `now_ns` is writable.
        check("cuptiGetTimestamp", unsafe { sys::cuptiGetTimestamp(&mut now_ns) })?;
        Ok(now_ns)
    });
    match started {
        Ok(now_ns) => COLLECTED.lock().iter_mut().for_each(|collected| collected.started_ns = now_ns),
        Err(reason) => {
            drop(stop());
            return Err(reason);
        }
    }
    Ok(())
}

/// Ends the recording. Returns its activities, and the number of those that were not kept.
pub(crate) fn stop() -> (Vec<Activity>, u64) {
    for kind in KINDS {
        // SAFETY: the kind is one of CUPTI's. One that was not enabled stays so.
        let _ = unsafe { sys::cuptiActivityDisable(kind) };
    }
    // SAFETY: the callbacks were registered.
    let _ = unsafe { sys::cuptiActivityFlushAll(FLUSH_FORCED) };
    let Some(collected) = COLLECTED.lock().take() else { return (Vec::new(), 0) };
    let Collected { activities, causes, dropped, .. } = collected;
    let caused = activities.into_iter().map(|(correlation, activity)| {
        let cause = causes.get(&correlation).copied();
        Activity { cause, ..activity }
    });
    (caused.collect(), dropped)
}

/// Makes `cause` the cause of this thread's driver calls. Returns whether CUPTI records.
pub(crate) fn push(cause: u64) -> bool {
    if COLLECTED.lock().is_none() {
        return false;
    }
    // SAFETY: CUPTI is loaded, since it records.
    unsafe { sys::cuptiActivityPushExternalCorrelationId(CAUSE, cause) == CUptiResult::CUPTI_SUCCESS }
}

/// Ends a cause of [`push`].
pub(crate) fn pop() {
    // SAFETY: CUPTI is loaded, since it recorded the cause. It accepts null.
    let _ = unsafe { sys::cuptiActivityPopExternalCorrelationId(CAUSE, ptr::null_mut()) };
}

fn check(call: &str, result: CUptiResult) -> Result<(), String> {
    match result {
        CUptiResult::CUPTI_SUCCESS => Ok(()),
        failed => Err(format!("{call} failed: {failed:?}")),
    }
}

/// Gives CUPTI an empty buffer.
unsafe extern "C" fn give_buffer(buffer: *mut *mut u8, bytes: *mut usize, most_records: *mut usize) {
    // SAFETY: CUPTI passes three pointers to writable memory. Size and alignment are not 0.
    unsafe {
        *buffer = alloc::alloc(layout());
        // CUPTI drops records if it gets no buffer.
        *bytes = if (*buffer).is_null() { 0 } else { BUFFER.0 };
        *most_records = 0;
    }
}

/// Takes a buffer with records back from CUPTI.
unsafe extern "C" fn take_buffer(context: CUcontext, stream: u32, buffer: *mut u8, _bytes: usize, valid_bytes: usize) {
    if buffer.is_null() {
        return;
    }
    let mut dropped = 0;
    // SAFETY: `dropped` is writable, and CUPTI passed the context and stream.
    let _ = unsafe { sys::cuptiActivityGetNumDroppedRecords(context, stream, &mut dropped) };
    if let Some(collected) = &mut *COLLECTED.lock() {
        collected.dropped += dropped as u64;
        let mut record: *mut CUpti_Activity = ptr::null_mut();
        // SAFETY: CUPTI wrote `valid_bytes` of records into the buffer, and `record` is null or one of them.
        while unsafe { sys::cuptiActivityGetNextRecord(buffer, valid_bytes, &mut record) } == CUptiResult::CUPTI_SUCCESS
        {
            // SAFETY: `record` is a record in the buffer.
            unsafe { collected.add(record) };
        }
    }
    // SAFETY: `give_buffer` allocated it with this layout.
    unsafe { alloc::dealloc(buffer, layout()) };
}

fn layout() -> Layout {
    const LAYOUT: Layout = match Layout::from_size_align(BUFFER.0, BUFFER.1) {
        Ok(layout) => layout,
        Err(_) => panic!("the alignment is a power of two"),
    };
    LAYOUT
}

impl Collected {
    /// Adds a record.
    ///
    /// # Safety
    /// `record` is a record of CUPTI's.
    unsafe fn add(&mut self, record: *const CUpti_Activity) {
        // A number, not the enum: a newer CUPTI may have other kinds.
        // SAFETY: each record begins with its kind, a `u32`.
        let kind = unsafe { record.cast::<u32>().read_unaligned() };
        // SAFETY: the kind tells the record's type. Fields are copied one by one, because records of other versions
        // may end earlier.
        unsafe {
            if kind == CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL as u32
                || kind == CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_KERNEL as u32
            {
                let it = record.cast::<CUpti_ActivityKernel10>();
                let name = (&raw const (*it).name).read_unaligned();
                let name = if name.is_null() { Cow::Borrowed("kernel") } else { self.name(CStr::from_ptr(name)) };
                self.keep(
                    (&raw const (*it).correlationId).read_unaligned(),
                    (&raw const (*it).deviceId).read_unaligned(),
                    (&raw const (*it).streamId).read_unaligned(),
                    (&raw const (*it).start).read_unaligned()..(&raw const (*it).end).read_unaligned(),
                    (ActivityKind::Kernel, name, 0),
                );
            } else if kind == CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY as u32 {
                let it = record.cast::<CUpti_ActivityMemcpy6>();
                let (kind, name) = copy_kind((&raw const (*it).copyKind).read_unaligned());
                self.keep(
                    (&raw const (*it).correlationId).read_unaligned(),
                    (&raw const (*it).deviceId).read_unaligned(),
                    (&raw const (*it).streamId).read_unaligned(),
                    (&raw const (*it).start).read_unaligned()..(&raw const (*it).end).read_unaligned(),
                    (kind, name.into(), (&raw const (*it).bytes).read_unaligned()),
                );
            } else if kind == CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY2 as u32 {
                let it = record.cast::<CUpti_ActivityMemcpyPtoP4>();
                self.keep(
                    (&raw const (*it).correlationId).read_unaligned(),
                    (&raw const (*it).deviceId).read_unaligned(),
                    (&raw const (*it).streamId).read_unaligned(),
                    (&raw const (*it).start).read_unaligned()..(&raw const (*it).end).read_unaligned(),
                    (ActivityKind::CopyOnDevice, "Memcpy PtoP".into(), (&raw const (*it).bytes).read_unaligned()),
                );
            } else if kind == CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMSET as u32 {
                let it = record.cast::<CUpti_ActivityMemset4>();
                self.keep(
                    (&raw const (*it).correlationId).read_unaligned(),
                    (&raw const (*it).deviceId).read_unaligned(),
                    (&raw const (*it).streamId).read_unaligned(),
                    (&raw const (*it).start).read_unaligned()..(&raw const (*it).end).read_unaligned(),
                    (ActivityKind::Fill, "Memset".into(), (&raw const (*it).bytes).read_unaligned()),
                );
            } else if kind == CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION as u32 {
                let it = record.cast::<CUpti_ActivityExternalCorrelation>();
                let whose = (&raw const (*it).externalKind).cast::<u32>().read_unaligned();
                if whose == CAUSE as u32 && self.causes.len() < self.max_activities {
                    let correlation = (&raw const (*it).correlationId).read_unaligned();
                    self.causes.insert(correlation, (&raw const (*it).externalId).read_unaligned());
                }
            }
        }
    }

    fn name(&mut self, symbol: &CStr) -> Cow<'static, str> {
        self.names.demangled(symbol.to_bytes()).to_owned().into()
    }

    fn keep(
        &mut self,
        correlation: u32,
        device: u32,
        stream: u32,
        times_ns: std::ops::Range<u64>,
        (kind, name, bytes): (ActivityKind, Cow<'static, str>, u64),
    ) {
        if self.activities.len() >= self.max_activities {
            self.dropped += 1;
            return;
        }
        let since = |ns: u64| Duration::from_nanos(ns.saturating_sub(self.started_ns));
        let activity = Activity {
            device: Device::cuda(u8::try_from(device).unwrap_or(u8::MAX)),
            stream: StreamId(stream.into()),
            kind,
            name,
            begin: since(times_ns.start),
            end: since(times_ns.end),
            bytes,
            cause: None,
        };
        self.activities.push((correlation, activity));
    }
}

/// Returns the kind and name of a copy.
fn copy_kind(kind: u8) -> (ActivityKind, &'static str) {
    match u32::from(kind) {
        kind if kind == CUpti_ActivityMemcpyKind::CUPTI_ACTIVITY_MEMCPY_KIND_HTOD as u32 => {
            (ActivityKind::CopyToDevice, "Memcpy HtoD")
        }
        kind if kind == CUpti_ActivityMemcpyKind::CUPTI_ACTIVITY_MEMCPY_KIND_DTOH as u32 => {
            (ActivityKind::CopyFromDevice, "Memcpy DtoH")
        }
        kind if kind == CUpti_ActivityMemcpyKind::CUPTI_ACTIVITY_MEMCPY_KIND_DTOD as u32 => {
            (ActivityKind::CopyOnDevice, "Memcpy DtoD")
        }
        _ => (ActivityKind::CopyOnDevice, "Memcpy"),
    }
}

/// The names of kernels in C++, each demangled once.
#[derive(Default)]
struct KernelNames(HashMap<Vec<u8>, String>);

impl KernelNames {
    /// Returns the name that a kernel has in its source, given its symbol.
    fn demangled(&mut self, symbol: &[u8]) -> &str {
        if !self.0.contains_key(symbol) {
            self.0.insert(symbol.to_vec(), demangle(symbol));
        }
        &self.0[symbol]
    }
}

/// Returns the name of a symbol. A symbol that is not in the form of C++ compilers is a name itself.
fn demangle(symbol: &[u8]) -> String {
    let name = Symbol::new(symbol).ok().and_then(|parsed| parsed.demangle_with_options(&DemangleOptions::new()).ok());
    name.unwrap_or_else(|| String::from_utf8_lossy(symbol).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_of_templates_become_names_with_their_arguments() {
        let mut names = KernelNames::default();
        let name = names.demangled(b"_ZN2at6native18elementwise_kernelILi128ELi4EfEEviPT1_").to_owned();
        assert_eq!(name, "void at::native::elementwise_kernel<128, 4, float>(int, float*)");
        assert_eq!(names.demangled(b"_ZN2at6native18elementwise_kernelILi128ELi4EfEEviPT1_"), name);
        assert_eq!(names.0.len(), 1);
    }

    #[test]
    fn names_that_are_not_mangled_stay_as_they_are() {
        let mut names = KernelNames::default();
        for name in ["exp", "sm90_xmma_gemm_f32f32_tf32f32", "ampere_sgemm_128x64_nn", "", "_Z", "_Zwrong"] {
            assert_eq!(names.demangled(name.as_bytes()), name);
        }
        assert_eq!(names.demangled(b"a\xff"), "a\u{FFFD}");
    }
}
