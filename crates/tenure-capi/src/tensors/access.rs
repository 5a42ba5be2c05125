//! Access to the bytes of tensors.

use std::ffi::c_void;

use tenure_tensor::cuda::StreamUse;
use tenure_tensor::{Access, Tensor};

use super::handle::{given, given_all};
use super::{IS_OPEN, refuse_while_open};
use crate::failure::{Failure, Status, guarded};

/// `tenure_access` of `tenure_tensor.h`.
pub struct OpenAccess {
    /// The use of the tensors by a stream, if the program has asked for it.
    pub(super) stream: Option<StreamUse>,
    /// It borrows `tensors`, and is dropped before them.
    pub(super) access: Access<'static>,
    /// The tensors, written ones first. They keep their place while the access lives.
    tensors: Box<[Tensor]>,
    writes: usize,
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `writes` and `reads` have so many handles; `access` is null or a place to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_access_begin(
    writes: *const *const Tensor,
    write_count: usize,
    reads: *const *const Tensor,
    read_count: usize,
    access: *mut *mut OpenAccess,
) -> Status {
    guarded(|| {
        if access.is_null() {
            return Err(Failure::null("the access's place"));
        }
        refuse_while_open()?;
        // SAFETY: by the function's contract.
        let (written, read) = unsafe { (given_all(writes, write_count)?, given_all(reads, read_count)?) };
        let tensors: Box<[Tensor]> = written.into_iter().chain(read).cloned().collect();
        // SAFETY: the references live as long as the box, which stays in place until the access is dropped.
        let borrowed: Vec<&'static Tensor> =
            tensors.iter().map(|tensor| unsafe { &*std::ptr::from_ref(tensor) }).collect();
        let (written, read) = borrowed.split_at(write_count);
        let opened = Access::new("tenure_access_begin", written, read)?;
        IS_OPEN.set(true);
        // SAFETY: not null, so a place to write to.
        unsafe {
            access.write(Box::into_raw(Box::new(OpenAccess {
                stream: None,
                access: opened,
                tensors,
                writes: write_count,
            })))
        };
        Ok(())
    })
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `access` is null or a live access; `tensor` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_access_data(
    access: *mut OpenAccess,
    tensor: *const Tensor,
    data: *mut *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: by the function's contract.
        let (opened, tensor) = unsafe { (access.as_mut(), given(tensor)?) };
        let OpenAccess { access, tensors, writes, .. } = opened.ok_or_else(|| Failure::null("an access"))?;
        if data.is_null() {
            return Err(Failure::null("the address's place"));
        }
        let index = tensors.iter().position(|other| other.is_same(tensor));
        let index = index.ok_or_else(|| Failure::Invalid("the access was not begun for this tensor".into()))?;
        let address = match index.checked_sub(*writes) {
            Some(read) => access.read_ptr(read).cast_mut(),
            None => access.write_ptr(index),
        };
        // SAFETY: not null, so a place to write to.
        unsafe { data.write(address.cast()) };
        Ok(())
    })
}

/// See `tenure_tensor.h`.
///
/// # Safety
/// `access` is null or a live access, which is not used again. Its thread is the one that began it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_access_end(access: *mut OpenAccess) {
    if !access.is_null() {
        IS_OPEN.set(false);
        // SAFETY: an access is a box of `tenure_access_begin`.
        let OpenAccess { stream, access, tensors, writes } = *unsafe { Box::from_raw(access) };
        drop(stream);
        // A capture that notes the writes locks the storages.
        drop(access);
        tensors[..writes].iter().for_each(|tensor| tensor.bump_version("tenure_access_end"));
    }
}
