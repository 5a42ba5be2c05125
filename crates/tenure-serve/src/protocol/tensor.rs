//! Tensors of a message, and those whose elements are in shared memory instead.

use std::ops::Range;

use bytes::Bytes;

use super::error::TensorError;
use super::{Datatype, ProtocolError};

/// A named tensor. Its elements are in row-major order without gaps, little endian. A `BOOL` is a byte of 0 or 1, and
/// each string of `BYTES` follows its length in four bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    name: String,
    datatype: Datatype,
    shape: Vec<usize>,
    bytes: Bytes,
}

impl Tensor {
    /// Creates a tensor from its bytes.
    ///
    /// # Errors
    /// The number of bytes does not match the shape, or they are not elements of this type.
    pub fn new(
        name: impl Into<String>,
        datatype: Datatype,
        shape: Vec<usize>,
        bytes: impl Into<Bytes>,
    ) -> Result<Self, ProtocolError> {
        let name = name.into();
        let bytes = bytes.into();
        match check(datatype, &shape, &bytes) {
            Ok(()) => Ok(Self { name, datatype, shape, bytes }),
            Err(reason) => Err(reason.of(&name)),
        }
    }

    /// Creates a one-dimensional tensor of `BYTES`.
    ///
    /// # Errors
    /// A string has 4 GiB or more.
    pub fn strings(name: impl Into<String>, strings: &[impl AsRef<[u8]>]) -> Result<Self, ProtocolError> {
        let name = name.into();
        let mut bytes = Vec::new();
        for string in strings {
            push_string(&mut bytes, string.as_ref()).map_err(|reason| reason.of(&name))?;
        }
        Self::new(name, Datatype::Bytes, vec![strings.len()], bytes)
    }

    /// Returns its name in the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of its elements.
    pub fn datatype(&self) -> Datatype {
        self.datatype
    }

    /// Returns its size in each dimension; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn numel(&self) -> usize {
        // The constructor checked that this does not overflow.
        self.shape.iter().product()
    }

    /// Returns the bytes of the elements. They may have any alignment: bytes that came after JSON are not aligned.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns some rows of a tensor that has a first dimension and is not of `BYTES`.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Self {
        let row_bytes = self.bytes.len() / self.shape[0].max(1);
        let bytes = self.bytes.slice(rows.start * row_bytes..rows.end * row_bytes);
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        Self { name: self.name.clone(), datatype: self.datatype, shape, bytes }
    }

    /// Joins tensors that differ only in their rows; `None` if there are none.
    pub(crate) fn joined(mut parts: Vec<Self>) -> Option<Self> {
        if parts.len() > 1 {
            let bytes: Vec<_> = parts.iter().map(|part| &part.bytes[..]).collect();
            let bytes = Bytes::from(bytes.concat());
            let rows = parts.iter().map(|part| part.shape[0]).sum();
            let joined = parts.first_mut()?;
            joined.shape[0] = rows;
            joined.bytes = bytes;
        }
        parts.into_iter().next()
    }

    /// Returns the strings of `BYTES`; empty for other types.
    pub fn iter_strings(&self) -> impl Iterator<Item = &[u8]> {
        let bytes: &[u8] = if self.datatype == Datatype::Bytes { &self.bytes } else { &[] };
        Strings(bytes).map_while(Result::ok)
    }
}

/// An iterator over strings that follow their lengths.
struct Strings<'a>(&'a [u8]);

impl<'a> Iterator for Strings<'a> {
    type Item = Result<&'a [u8], &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.is_empty() {
            return None;
        }
        let Some((length, rest)) = bytes.split_first_chunk() else { return Some(Err("a length is cut off")) };
        let string = usize::try_from(u32::from_le_bytes(*length)).ok().and_then(|length| rest.split_at_checked(length));
        let Some((string, rest)) = string else { return Some(Err("a string is longer than what is left")) };
        self.0 = rest;
        Some(Ok(string))
    }
}

/// Appends a string after its length.
pub(crate) fn push_string(bytes: &mut Vec<u8>, string: &[u8]) -> Result<(), TensorError> {
    let length = u32::try_from(string.len()).map_err(|_| TensorError::Strings {
        shape: vec![1],
        expected: 1,
        reason: "a string of 4 GiB or more has no length",
    })?;
    bytes.extend(length.to_le_bytes());
    bytes.extend(string);
    Ok(())
}

/// Converts sizes of a message to a shape, if a tensor in memory can have it.
pub(crate) fn shape(sizes: Vec<i64>) -> Result<Vec<usize>, TensorError> {
    let shape: Option<Vec<usize>> = sizes.iter().map(|&size| size.try_into().ok()).collect();
    shape.filter(|shape| numel(shape).is_some()).ok_or(TensorError::Shape(sizes))
}

/// Returns the number of elements. The product must not overflow, even if another size is zero. A tensor without elements
/// takes no memory, so its sizes have a limit of their own: rows are counted in 32 bits.
fn numel(shape: &[usize]) -> Option<usize> {
    let numel = shape.iter().try_fold(1usize, |numel, &size| numel.checked_mul(size))?;
    let is_countable = numel > 0 || shape.iter().all(|&size| u32::try_from(size).is_ok());
    is_countable.then_some(numel)
}

fn check(datatype: Datatype, shape: &[usize], bytes: &[u8]) -> Result<(), TensorError> {
    let impossible = || TensorError::Shape(shape.iter().map(|&size| size.try_into().unwrap_or(i64::MAX)).collect());
    let numel = numel(shape).ok_or_else(impossible)?;
    let Some(size) = datatype.size() else { return check_strings(shape, numel, bytes) };
    let expected = numel.checked_mul(size).ok_or_else(impossible)?;
    if bytes.len() != expected {
        return Err(TensorError::Length { datatype, shape: shape.into(), expected, found: bytes.len() });
    }
    let neither = bytes.iter().find(|byte| datatype == Datatype::Bool && **byte > 1);
    neither.map_or(Ok(()), |byte| Err(TensorError::Bool(*byte)))
}

fn check_strings(shape: &[usize], expected: usize, bytes: &[u8]) -> Result<(), TensorError> {
    let error = |reason| TensorError::Strings { shape: shape.into(), expected, reason };
    let mut found = 0usize;
    for string in Strings(bytes) {
        string.map_err(error)?;
        found += 1;
    }
    if found == expected {
        Ok(())
    } else {
        Err(error(if found < expected { "there are fewer" } else { "there are more" }))
    }
}

/// A part of a region of shared memory that the client registered by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The region's name.
    pub region: String,
    /// The offset of the part in the region, in bytes.
    pub offset: u64,
    /// The size of the part in bytes.
    pub byte_size: u64,
}

/// A tensor whose elements are in shared memory, where the client may change them at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedTensor {
    /// The tensor's name in the model.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Its size in each dimension.
    pub shape: Vec<usize>,
    /// The span that has its elements.
    pub span: Span,
}

impl SharedTensor {
    /// Builds the tensor from bytes that were read from its [`span`](Self::span).
    ///
    /// # Errors
    /// The number of bytes does not match the shape, or they are not elements of the type.
    pub fn with_bytes(self, bytes: impl Into<Bytes>) -> Result<Tensor, ProtocolError> {
        Tensor::new(self.name, self.datatype, self.shape, bytes)
    }
}

impl Span {
    /// Returns the span that a tensor's parameters describe, or `None` if they name no region.
    pub(crate) fn of(
        region: Option<String>,
        offset: Option<u64>,
        byte_size: Option<u64>,
    ) -> Result<Option<Self>, TensorError> {
        let Some(region) = region else { return Ok(None) };
        let byte_size = byte_size.ok_or(TensorError::NoByteSize)?;
        Ok(Some(Self { region, offset: offset.unwrap_or(0), byte_size }))
    }

    /// Returns the offset if it is to be sent: 0 is left out.
    pub(super) fn sent_offset(&self) -> Option<u64> {
        Some(self.offset).filter(|offset| *offset > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(datatype: Datatype, shape: &[usize], bytes: &'static [u8]) -> String {
        Tensor::new("x", datatype, shape.into(), bytes).unwrap_err().to_string()
    }

    #[test]
    fn bytes_are_as_many_as_the_shape_says() {
        assert!(Tensor::new("x", Datatype::Fp32, vec![2, 1], &[0; 8][..]).is_ok());
        assert!(Tensor::new("x", Datatype::Int64, vec![], &[0; 8][..]).is_ok());
        assert!(Tensor::new("x", Datatype::Int64, vec![3, 0], &[][..]).is_ok());
        let found = error(Datatype::Fp16, &[2, 2], &[0; 7]);
        assert_eq!(found, "tensor \"x\": FP16 of shape [2, 2] takes 8 bytes, and there are 7");
    }

    #[test]
    fn a_shape_that_overflows_is_refused() {
        for shape in [&[usize::MAX, 2][..], &[1 << 62, 1], &[1 << 40, 1 << 40, 0]] {
            let found = error(Datatype::Fp64, shape, &[]);
            assert!(found.contains("cannot have the shape"), "{found}");
        }
        assert!(shape(vec![-1]).is_err());
        assert!(shape(vec![i64::MAX, i64::MAX]).is_err());
        assert!(shape(vec![1 << 40, 0]).is_err());
        assert_eq!(shape(vec![2, 0]).ok(), Some(vec![2, 0]));
    }

    #[test]
    fn strings_stand_behind_their_lengths() {
        let tensor = Tensor::strings("x", &["ab", ""]).unwrap();
        assert_eq!(tensor.bytes()[..], *b"\x02\0\0\0ab\0\0\0\0");
        assert_eq!(tensor.iter_strings().collect::<Vec<_>>(), [&b"ab"[..], b""]);
        for (shape, bytes, reason) in [
            (1, &b"\x03\0\0\0ab"[..], "longer than what is left"),
            (1, b"\xff\xff\xff\xff", "longer than what is left"),
            (1, b"\x01\0", "a length is cut off"),
            (2, b"\x02\0\0\0ab", "there are fewer"),
            (0, b"\x02\0\0\0ab", "there are more"),
        ] {
            let found = error(Datatype::Bytes, &[shape], bytes);
            assert!(found.ends_with(reason), "{found}");
        }
    }

    #[test]
    fn a_bool_is_zero_or_one() {
        assert!(Tensor::new("x", Datatype::Bool, vec![2], &[0, 1][..]).is_ok());
        assert!(error(Datatype::Bool, &[2], &[0, 2]).ends_with("0 or 1, not 2"));
    }
}
