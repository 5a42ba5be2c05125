//! The datatypes of tensors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

/// The type of a tensor's elements, by the protocol's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Datatype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Bf16,
    Fp32,
    Fp64,
    /// Byte strings, each after its length in four bytes.
    Bytes,
}

impl Datatype {
    /// All datatypes.
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Bf16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    /// Returns the bytes of an element, or `None` for [`Datatype::Bytes`], whose elements differ in size.
    pub fn size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }

    /// Returns its name in the protocol, such as `FP32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Bf16 => "BF16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// The error of a name that is not a datatype's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown datatype {0:?}: use one of BOOL, UINT8 to UINT64, INT8 to INT64, FP16, BF16, FP32, FP64 and BYTES")]
pub struct UnknownDatatype(String);

impl FromStr for Datatype {
    type Err = UnknownDatatype;

    fn from_str(name: &str) -> Result<Self, UnknownDatatype> {
        let datatype = Self::ALL.into_iter().find(|datatype| datatype.name() == name);
        datatype.ok_or_else(|| UnknownDatatype(name.into()))
    }
}

impl Serialize for Datatype {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_datatype_in_capitals_only() {
        for datatype in Datatype::ALL {
            assert_eq!(datatype.to_string().parse(), Ok(datatype));
        }
        assert_eq!("fp32".parse::<Datatype>(), Err(UnknownDatatype("fp32".to_owned())));
    }
}
