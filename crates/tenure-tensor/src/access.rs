//! Locks the storages of tensors and gives kernels access to their bytes.

use std::ops::Range;

use smallvec::SmallVec;
use tenure_core::{ExclusiveGuard, Generation, Storage, StorageGuard};

use crate::{Element, Result, Tensor, TensorError};

/// Access to the bytes of some tensors while a kernel computes. While it lives, no other thread writes to the tensors
/// it reads, and no other thread reads or writes the tensors it writes. Each storage is locked once, even if several of
/// the tensors are views of it.
///
/// ```
/// use tenure_tensor::{Access, DType, Device, Tensor};
///
/// let (source, target) = (Tensor::from_slice(&[1_i32, 2], &[2])?, Tensor::empty(&[2], DType::I32, Device::CPU)?);
/// let mut access = Access::new("double", &[&target], &[&source])?;
/// let (read, written) = access.slices::<i32, i32>(0, 0)?;
/// written.iter_mut().zip(read).for_each(|(to, from)| *to = 2 * from);
/// drop(access);
/// assert_eq!(target.to_vec::<i32>()?, [2, 4]);
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
pub struct Access<'a> {
    op: &'static str,
    writes: SmallVec<[&'a Tensor; 2]>,
    reads: SmallVec<[&'a Tensor; 4]>,
    guards: SmallVec<[(&'a Storage, Guard<'a>); 4]>,
}

/// The slices of all tensors that are read, and those of all tensors that are written.
type Split<'a, R, W, const READS: usize, const WRITES: usize> = ([&'a [R]; READS], [&'a mut [W]; WRITES]);

enum Guard<'a> {
    Shared(StorageGuard<'a>),
    Exclusive(ExclusiveGuard<'a>),
}

/// A locked storage: its bytes stay at this address.
pub(crate) struct Held<'a> {
    pub(crate) storage: &'a Storage,
    pub(crate) address: u64,
    pub(crate) generation: Generation,
    pub(crate) is_written: bool,
}

impl Guard<'_> {
    fn as_ptr(&self) -> *mut u8 {
        match self {
            Self::Shared(guard) => guard.as_ptr(),
            Self::Exclusive(guard) => guard.as_ptr(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Shared(guard) => guard.bytes(),
            Self::Exclusive(guard) => guard.bytes(),
        }
    }

    fn generation(&self) -> Generation {
        match self {
            Self::Shared(guard) => guard.generation(),
            Self::Exclusive(guard) => guard.generation(),
        }
    }
}

impl<'a> Access<'a> {
    /// Locks the storages of all tensors; waits until other threads release them.
    ///
    /// # Errors
    /// The tensors are on different devices; a written tensor's storage is
    /// [read-only](Storage::is_read_only); a storage was made smaller than a tensor on it needs.
    pub fn new(op: &'static str, writes: &[&'a Tensor], reads: &[&'a Tensor]) -> Result<Self> {
        let mut devices = writes.iter().chain(reads).map(|tensor| tensor.device());
        if let Some(left) = devices.next()
            && let Some(right) = devices.find(|device| *device != left)
        {
            return Err(TensorError::Device { op, left, right });
        }
        Self::on_any(op, writes, reads)
    }

    /// Locks as [`new`](Self::new) does, but allows tensors of different devices.
    pub(crate) fn on_any(op: &'static str, writes: &[&'a Tensor], reads: &[&'a Tensor]) -> Result<Self> {
        if let Some(tensor) = writes.iter().find(|tensor| tensor.storage().is_read_only()) {
            return Err(TensorError::ReadOnly { op, dtype: tensor.dtype(), sizes: tensor.sizes().to_vec() });
        }
        let all = writes.iter().map(|tensor| (*tensor, true)).chain(reads.iter().map(|tensor| (*tensor, false)));
        let mut wanted: SmallVec<[(&'a Storage, bool); 4]> =
            all.clone().map(|(tensor, is_written)| (tensor.storage(), is_written)).collect();
        // Every thread locks in the order of ranks, so that no two threads deadlock. The sort puts a storage's writer
        // first.
        wanted.sort_unstable_by_key(|(storage, is_written)| (storage.rank(), !is_written));
        wanted.dedup_by_key(|(storage, _)| storage.rank());
        let guards = wanted
            .into_iter()
            .map(|(storage, is_written)| {
                let guard =
                    if is_written { Guard::Exclusive(storage.lock_exclusive()) } else { Guard::Shared(storage.lock()) };
                (storage, guard)
            })
            .collect();
        let access = Self { op, writes: writes.into(), reads: reads.into(), guards };
        for (tensor, _) in all {
            tensor.layout().check_bounds(tensor.dtype(), access.guard(tensor).bytes())?;
        }
        Ok(access)
    }

    /// Returns the operation's name.
    pub(crate) fn op(&self) -> &'static str {
        self.op
    }

    /// Returns all written tensors, then all read tensors: the tensor, a pointer to its first element, whether it is
    /// written.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'a Tensor, *mut u8, bool)> {
        let written = self.writes.iter().map(|tensor| (*tensor, self.ptr(tensor), true));
        written.chain(self.reads.iter().map(|tensor| (*tensor, self.ptr(tensor), false)))
    }

    /// Returns all locked storages.
    pub(crate) fn storages(&self) -> impl Iterator<Item = Held<'_>> {
        self.guards.iter().map(|(storage, guard)| Held {
            storage,
            address: guard.as_ptr().addr() as u64,
            generation: guard.generation(),
            is_written: matches!(guard, Guard::Exclusive(_)),
        })
    }

    /// Returns the written tensor number `index`, for its sizes, strides and dtype.
    pub fn written(&self, index: usize) -> &'a Tensor {
        self.writes[index]
    }

    /// Returns the read tensor number `index`, for its sizes, strides and dtype.
    pub fn read(&self, index: usize) -> &'a Tensor {
        self.reads[index]
    }

    /// Returns a pointer to the first element of written tensor `index`. It is valid for reads and writes of the
    /// tensor's layout while this lives.
    pub fn write_ptr(&mut self, index: usize) -> *mut u8 {
        self.ptr(self.writes[index])
    }

    /// Returns a pointer to the first element of read tensor `index`. It is valid for reads of the tensor's layout
    /// while this lives.
    pub fn read_ptr(&self, index: usize) -> *const u8 {
        self.ptr(self.reads[index])
    }

    /// Returns the address of written tensor `index`, as kernels take it.
    pub(crate) fn write_word(&mut self, index: usize) -> u64 {
        self.write_ptr(index).addr() as u64
    }

    /// Returns the address of read tensor `index`, as kernels take it.
    pub(crate) fn read_word(&self, index: usize) -> u64 {
        self.read_ptr(index).addr() as u64
    }

    /// Returns the elements of read tensor `index`, which must be contiguous and on the CPU.
    ///
    /// # Errors
    /// The tensor has another dtype, is not contiguous, or overlaps a written tensor.
    pub fn slice<T: Element>(&self, index: usize) -> Result<&[T]> {
        let tensor = self.reads[index];
        self.check::<T>(tensor)?;
        if let Some(other) = self.writes.iter().find(|other| overlap(tensor, other)) {
            return Err(self.overlaps(tensor, other));
        }
        // SAFETY: the range has as many elements of this dtype as the layout, without gaps; the guard keeps writers
        // away, and no tensor that is written through this access overlaps it.
        Ok(unsafe { std::slice::from_raw_parts(pointer(self.ptr(tensor)), tensor.numel()) })
    }

    /// Returns the elements of written tensor `index`, which must be contiguous and on the CPU.
    ///
    /// # Errors
    /// The tensor has another dtype, is not contiguous, or overlaps another tensor of this access.
    pub fn slice_mut<T: Element>(&mut self, index: usize) -> Result<&mut [T]> {
        Ok(self.slices_mut::<T>([index])?.into_iter().next().unwrap_or_default())
    }

    /// Returns the elements of a read tensor and of a written tensor at the same time.
    ///
    /// # Errors
    /// The errors of [`slice`](Self::slice) and [`slice_mut`](Self::slice_mut).
    pub fn slices<R: Element, W: Element>(&mut self, read: usize, write: usize) -> Result<(&[R], &mut [W])> {
        let (read, length) = {
            let slice = self.slice::<R>(read)?;
            (slice.as_ptr(), slice.len())
        };
        let written = self.slice_mut::<W>(write)?;
        // SAFETY: the same slice as above; `slice` has checked that no written tensor overlaps it.
        Ok((unsafe { std::slice::from_raw_parts(read, length) }, written))
    }

    /// Returns the elements of several written tensors at the same time.
    ///
    /// # Errors
    /// The errors of [`slice_mut`](Self::slice_mut); an index is given twice.
    pub fn slices_mut<T: Element>(&mut self, indices: impl IntoIterator<Item = usize>) -> Result<Vec<&mut [T]>> {
        let mut slices = Vec::new();
        let mut taken: SmallVec<[usize; 4]> = SmallVec::new();
        for index in indices {
            let tensor = self.writes[index];
            self.check::<T>(tensor)?;
            let others = self.writes.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
            if let Some(other) = others.chain(&self.reads).find(|other| overlap(tensor, other)) {
                return Err(self.overlaps(tensor, other));
            }
            if taken.contains(&index) {
                return Err(self.overlaps(tensor, tensor));
            }
            taken.push(index);
            // SAFETY: the range has as many elements of this dtype as the layout, without gaps; the guard is exclusive,
            // no other tensor of this access overlaps it, and each tensor is taken once.
            slices.push(unsafe { std::slice::from_raw_parts_mut(pointer(self.ptr(tensor)), tensor.numel()) });
        }
        Ok(slices)
    }

    /// Returns the elements of all read tensors and of all written tensors at the same time.
    ///
    /// ```
    /// # use tenure_tensor::{Access, Tensor};
    /// # let (x, y) = (Tensor::from_slice(&[1_i32, 2], &[2])?, Tensor::from_slice(&[3_i32, 4], &[2])?);
    /// # let (sums, products) = (x.empty_like()?, x.empty_like()?);
    /// let mut access = Access::new("sums_and_products", &[&sums, &products], &[&x, &y])?;
    /// let ([x, y], [sums, products]) = access.split::<i32, i32, _, _>()?;
    /// (0..2).for_each(|i| (sums[i], products[i]) = (x[i] + y[i], x[i] * y[i]));
    /// assert_eq!((&*sums, &*products), (&[4, 6][..], &[3, 8][..]));
    /// # Ok::<(), tenure_tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`slice`](Self::slice) and [`slice_mut`](Self::slice_mut); `READS` or `WRITES` differs from the
    /// number of tensors.
    pub fn split<R: Element, W: Element, const READS: usize, const WRITES: usize>(
        &mut self,
    ) -> Result<Split<'_, R, W, READS, WRITES>> {
        if (self.reads.len(), self.writes.len()) != (READS, WRITES) {
            let reads = self.reads.len();
            let writes = self.writes.len();
            let reason = format!("{READS} read and {WRITES} written are asked for, but there are {reads} and {writes}");
            return Err(TensorError::argument(self.op, reason));
        }
        let mut reads = [(std::ptr::null(), 0); READS];
        for (index, read) in reads.iter_mut().enumerate() {
            let slice = self.slice::<R>(index)?;
            *read = (slice.as_ptr(), slice.len());
        }
        let mut writes = self.slices_mut::<W>(0..WRITES)?.into_iter();
        let writes = std::array::from_fn(|_| writes.next().unwrap_or_default());
        // SAFETY: the same slices as above; `slice` has checked that no written tensor overlaps them.
        Ok((reads.map(|(start, length)| unsafe { std::slice::from_raw_parts(start, length) }), writes))
    }

    fn guard(&self, tensor: &Tensor) -> &Guard<'a> {
        let found = self.guards.binary_search_by_key(&tensor.storage().rank(), |(storage, _)| storage.rank());
        &self.guards[found.expect("every tensor's storage is locked")].1
    }

    fn ptr(&self, tensor: &Tensor) -> *mut u8 {
        // `wrapping_add`: a storage of no bytes has a null pointer, which stays null.
        self.guard(tensor).as_ptr().wrapping_add(tensor.layout().offset() * tensor.dtype().size())
    }

    fn check<T: Element>(&self, tensor: &Tensor) -> Result<()> {
        if tensor.dtype() != T::DTYPE {
            let expected = format!("{} is asked for: convert with to_dtype() first", T::DTYPE);
            return Err(TensorError::DType { op: self.op, found: tensor.dtype(), expected });
        }
        if !tensor.device().is_cpu() {
            let reason = format!("a tensor on the CPU is needed, got one on {}: to_device() first", tensor.device());
            return Err(TensorError::argument(self.op, reason));
        }
        if !tensor.is_contiguous() {
            let sizes = tensor.sizes();
            let strides = tensor.strides();
            let reason = format!("contiguous() is needed first, got sizes {sizes:?} with strides {strides:?}");
            return Err(TensorError::argument(self.op, reason));
        }
        Ok(())
    }

    fn overlaps(&self, tensor: &Tensor, other: &Tensor) -> TensorError {
        let reason =
            format!("a tensor of sizes {:?} shares memory with one of sizes {:?}", tensor.sizes(), other.sizes());
        TensorError::Overlap { op: self.op, reason }
    }
}

/// Returns a pointer that a slice can have: never null.
fn pointer<T>(data: *mut u8) -> *mut T {
    if data.is_null() { std::ptr::dangling_mut() } else { data.cast() }
}

/// Returns whether the memory ranges of two tensors overlap.
pub(crate) fn overlap(left: &Tensor, right: &Tensor) -> bool {
    if !left.storage().is_alias_of(right.storage()) {
        return false;
    }
    let a = byte_range(left);
    let b = byte_range(right);
    a.start < b.end && b.start < a.end
}

/// Returns the bytes of the storage from the first element to the last.
fn byte_range(tensor: &Tensor) -> Range<usize> {
    let extent = tensor.layout().extent();
    extent.start * tensor.dtype().size()..extent.end * tensor.dtype().size()
}
