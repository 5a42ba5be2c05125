//! Descriptors of cuDNN's backend, and its errors.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type, cudnnBackendDescriptor_t,
    cudnnBackendDescriptorType_t as Kind, cudnnBackendHeurMode_t, cudnnConvolutionMode_t, cudnnDataType_t,
    cudnnHandle_t, cudnnPointwiseMode_t, cudnnReduceTensorOp_t, cudnnStatus_t,
};

use crate::ErrorKind;

/// A descriptor. Once it is finished, the descriptors that it refers to may be dropped.
pub(super) struct Descriptor(cudnnBackendDescriptor_t);

// SAFETY: a descriptor is memory that only its owner accesses.
unsafe impl Send for Descriptor {}
// SAFETY: a finished descriptor is only read.
unsafe impl Sync for Descriptor {}

/// A type that attributes can have.
pub(super) trait Value: Copy {
    const TYPE: Type;
}

macro_rules! values {
    ($($value:ty: $type:ident,)*) => {$(
        impl Value for $value {
            const TYPE: Type = Type::$type;
        }
    )*};
}

values! {
    i64: CUDNN_TYPE_INT64,
    i32: CUDNN_TYPE_INT32,
    f32: CUDNN_TYPE_FLOAT,
    f64: CUDNN_TYPE_DOUBLE,
    bool: CUDNN_TYPE_BOOLEAN,
    c_char: CUDNN_TYPE_CHAR,
    *mut c_void: CUDNN_TYPE_VOID_PTR,
    cudnnHandle_t: CUDNN_TYPE_HANDLE,
    cudnnDataType_t: CUDNN_TYPE_DATA_TYPE,
    cudnnConvolutionMode_t: CUDNN_TYPE_CONVOLUTION_MODE,
    cudnnPointwiseMode_t: CUDNN_TYPE_POINTWISE_MODE,
    cudnnReduceTensorOp_t: CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
    cudnnBackendHeurMode_t: CUDNN_TYPE_HEUR_MODE,
}

impl Descriptor {
    pub(super) fn new(kind: Kind) -> Result<Self, ErrorKind> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is writable.
        check(unsafe { sys::cudnnBackendCreateDescriptor(kind, &mut raw) })?;
        Ok(Self(raw))
    }

    pub(super) fn raw(&self) -> cudnnBackendDescriptor_t {
        self.0
    }

    /// Sets an attribute to values.
    pub(super) fn set<T: Value>(self, name: Name, values: &[T]) -> Result<Self, ErrorKind> {
        self.set_raw(name, T::TYPE, values.len(), values.as_ptr().cast())
    }

    /// Sets an attribute to other descriptors, which must be finished.
    pub(super) fn refer(self, name: Name, others: &[&Self]) -> Result<Self, ErrorKind> {
        let raw: Vec<cudnnBackendDescriptor_t> = others.iter().map(|other| other.0).collect();
        self.set_raw(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.len(), raw.as_ptr().cast())
    }

    fn set_raw(self, name: Name, kind: Type, count: usize, values: *const c_void) -> Result<Self, ErrorKind> {
        // SAFETY: the descriptor is alive, and `values` points to `count` values of that type.
        check(unsafe { sys::cudnnBackendSetAttribute(self.0, name, kind, count as i64, values) })?;
        Ok(self)
    }

    /// Finishes the descriptor: its attributes cannot change any more, and others may refer to it.
    pub(super) fn finish(self) -> Result<Self, ErrorKind> {
        // SAFETY: the descriptor is alive.
        check(unsafe { sys::cudnnBackendFinalize(self.0) })?;
        Ok(self)
    }

    /// Returns a number from a finished descriptor.
    pub(super) fn number(&self, name: Name) -> Result<i64, ErrorKind> {
        let (mut number, mut count) = (0_i64, 0);
        let to = ptr::from_mut(&mut number).cast();
        // SAFETY: the descriptor is alive, and there is room for one number.
        check(unsafe { sys::cudnnBackendGetAttribute(self.0, name, Type::CUDNN_TYPE_INT64, 1, &mut count, to) })?;
        Ok(number)
    }

    /// Returns the notes of an engine, as numbers, because a newer library may have notes that are not known here.
    pub(super) fn notes(&self, name: Name, kind: Type) -> Result<Vec<i32>, ErrorKind> {
        const ROOM: usize = 64;
        let mut notes = [0_i32; ROOM];
        let mut count = 0;
        let to = notes.as_mut_ptr().cast();
        // SAFETY: the descriptor is alive, and there is room for `ROOM` notes, which are C enums.
        check(unsafe { sys::cudnnBackendGetAttribute(self.0, name, kind, ROOM as i64, &mut count, to) })?;
        Ok(notes[..count.clamp(0, ROOM as i64) as usize].to_vec())
    }

    /// Returns up to `room` descriptors from a finished one.
    pub(super) fn descriptors(&self, name: Name, kind: Kind, room: usize) -> Result<Vec<Self>, ErrorKind> {
        let mut parts = (0..room).map(|_| Self::new(kind)).collect::<Result<Vec<_>, _>>()?;
        let mut raw: Vec<cudnnBackendDescriptor_t> = parts.iter().map(|part| part.0).collect();
        let mut count = 0;
        let kind = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
        let to = raw.as_mut_ptr().cast();
        // SAFETY: the descriptor is alive, and `raw` has room for `room` descriptors, which the library fills in.
        check(unsafe { sys::cudnnBackendGetAttribute(self.0, name, kind, room as i64, &mut count, to) })?;
        parts.truncate(count.max(0) as usize);
        Ok(parts)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is alive, and is not used after this.
        let _ = unsafe { sys::cudnnBackendDestroyDescriptor(self.0) };
    }
}

/// Converts the library's status to a result, with the library's message on failure.
pub(super) fn check(status: cudnnStatus_t) -> Result<(), ErrorKind> {
    if status == cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    let mut words = [0 as c_char; 512];
    // SAFETY: the call is told one character less than there is room for, so the last one stays a zero.
    unsafe { sys::cudnnGetLastErrorString(words.as_mut_ptr(), words.len() - 1) };
    // SAFETY: the last character is a zero.
    let words = unsafe { CStr::from_ptr(words.as_ptr()) }.to_string_lossy();
    let name = if words.is_empty() { format!("{status:?}") } else { format!("{status:?} ({words})") };
    Err(ErrorKind::Library { code: status as u32, name })
}
