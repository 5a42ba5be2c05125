//! DLPack's structs and numbers (<https://dmlc.github.io/dlpack/latest/c_api.html>).

use std::ffi::{CStr, c_void};

use tenure::core::{DType, Device};

pub(super) const LEGACY: &CStr = c"dltensor";
pub(super) const VERSIONED: &CStr = c"dltensor_versioned";
pub(super) const USED_LEGACY: &CStr = c"used_dltensor";
pub(super) const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

/// The version that is exported. Every other version of this major number is understood too.
pub(super) const VERSION: Version = Version { major: 1, minor: 3 };

pub(super) const CPU: i32 = 1;
pub(super) const CUDA: i32 = 2;
pub(super) const CUDA_HOST: i32 = 3;
pub(super) const CUDA_MANAGED: i32 = 13;

/// The memory must not be written to.
pub(super) const READ_ONLY: u64 = 1;
/// The producer made a copy, which belongs to the consumer alone.
pub(super) const IS_COPIED: u64 = 2;

/// `DLPackVersion`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct TensorView {
    pub(super) data: *mut c_void,
    pub(super) device_type: i32,
    pub(super) device_id: i32,
    pub(super) dimensions: i32,
    pub(super) code: u8,
    pub(super) bits: u8,
    pub(super) lanes: u16,
    pub(super) shape: *mut i64,
    pub(super) strides: *mut i64,
    pub(super) byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
pub(super) struct LegacyTensor {
    pub(super) tensor: TensorView,
    pub(super) context: *mut c_void,
    pub(super) deleter: Option<unsafe extern "C" fn(*mut LegacyTensor)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
pub(super) struct VersionedTensor {
    pub(super) version: Version,
    pub(super) context: *mut c_void,
    pub(super) deleter: Option<unsafe extern "C" fn(*mut VersionedTensor)>,
    pub(super) flags: u64,
    pub(super) tensor: TensorView,
}

/// Returns the code and the bits of a dtype.
pub(super) fn code_of(dtype: DType) -> (u8, u8) {
    let code = match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::BF16 => 4,
        DType::Bool => 6,
    };
    (code, (dtype.size() * 8) as u8)
}

/// Returns the dtype of a code and bits.
pub(super) fn dtype_of(code: u8, bits: u8) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| code_of(*dtype) == (code, bits))
}

/// Returns the type and the number of a device.
pub(super) fn device_of(device: Device) -> (i32, i32) {
    if device.is_cpu() { (CPU, 0) } else { (CUDA, device.index().into()) }
}

/// Returns the device of a type and a number. Pinned memory is the CPU's.
pub(super) fn device_from(kind: i32, number: i32) -> Option<Device> {
    match (kind, u8::try_from(number)) {
        (CPU | CUDA_HOST, _) => Some(Device::CPU),
        (CUDA | CUDA_MANAGED, Ok(index)) => Some(Device::cuda(index)),
        _ => None,
    }
}
