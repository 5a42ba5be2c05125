//! The few calls of a pickle that only make data: NumPy scalars, `OrderedDict` and `defaultdict`. They are recognised by
//! name and decoded here; nothing is imported or executed.

/// A name that a pickle may import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Global {
    /// `collections.OrderedDict`
    OrderedDict,
    /// `collections.defaultdict`
    DefaultDict,
    /// A type such as `int`, which a `defaultdict` makes missing values with.
    Factory,
    /// `numpy.dtype`
    NumpyDtype,
    /// `numpy._core.multiarray.scalar`, before NumPy 2 `numpy.core.multiarray.scalar`
    NumpyScalar,
    /// `_codecs.encode`, with which protocols 0 to 2 write bytes.
    Encode,
}

impl Global {
    pub(super) fn from_name(module: &str, name: &str) -> Option<Self> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("collections", "defaultdict") => Self::DefaultDict,
            ("builtins", "int" | "float" | "bool" | "str" | "list" | "dict" | "set" | "tuple") => Self::Factory,
            // Protocols 0 to 2 use the names of Python 2.
            ("__builtin__", "int" | "long" | "float" | "bool" | "unicode" | "list" | "dict" | "set" | "tuple") => {
                Self::Factory
            }
            ("numpy", "dtype") => Self::NumpyDtype,
            ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Self::NumpyScalar,
            ("_codecs", "encode") => Self::Encode,
            _ => return None,
        })
    }
}

/// The type of a NumPy scalar, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    Bool,
    Signed(u8),
    Unsigned(u8),
    Float(u8),
}

impl Dtype {
    /// Returns the type that NumPy calls `name`, such as `i8`.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "b1" => Self::Bool,
            "i1" | "i2" | "i4" | "i8" => Self::Signed(name.as_bytes()[1] - b'0'),
            "u1" | "u2" | "u4" | "u8" => Self::Unsigned(name.as_bytes()[1] - b'0'),
            "f4" | "f8" => Self::Float(name.as_bytes()[1] - b'0'),
            _ => return None,
        })
    }
}

/// The bytes of a scalar, and zeros behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortBytes {
    pub(super) length: u8,
    pub(super) bytes: [u8; 8],
}

impl ShortBytes {
    /// Returns `None` if there are more bytes than a scalar has.
    pub(super) fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; 8];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self { length: from.len() as u8, bytes })
    }
}
