//! The conversion of a tensor's elements from and to JSON.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use half::{bf16, f16};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, SeqAccess, Unexpected, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::error::TensorError;
use super::half_precision::{Half, nearest, shortest};
use super::tensor::push_string;
use super::{Datatype, Tensor};

/// Parses the elements of `data`: one flat array, or arrays nested like the shape. A number is rounded to the nearest
/// value of a floating-point type, for half precision by way of double precision. An integer must be in the range of its type; it may be written with a fraction of
/// zero, as clients do that know only floating-point numbers.
///
/// # Errors
/// The elements do not match the datatype or shape.
pub(super) fn parse(data: &RawValue, datatype: Datatype, shape: &[usize]) -> Result<Vec<u8>, TensorError> {
    let parsed = match datatype {
        Datatype::Bool => parse_as::<bool>(data, shape),
        Datatype::Uint8 => parse_as::<Integer<u8>>(data, shape),
        Datatype::Uint16 => parse_as::<Integer<u16>>(data, shape),
        Datatype::Uint32 => parse_as::<Integer<u32>>(data, shape),
        Datatype::Uint64 => parse_as::<Integer<u64>>(data, shape),
        Datatype::Int8 => parse_as::<Integer<i8>>(data, shape),
        Datatype::Int16 => parse_as::<Integer<i16>>(data, shape),
        Datatype::Int32 => parse_as::<Integer<i32>>(data, shape),
        Datatype::Int64 => parse_as::<Integer<i64>>(data, shape),
        Datatype::Fp16 => parse_as::<HalfPrecision<f16>>(data, shape),
        Datatype::Bf16 => parse_as::<HalfPrecision<bf16>>(data, shape),
        Datatype::Fp32 => parse_as::<f32>(data, shape),
        Datatype::Fp64 => parse_as::<f64>(data, shape),
        Datatype::Bytes => parse_as::<Cow<'_, str>>(data, shape),
    };
    parsed.map_err(|reason| TensorError::Data { datatype, shape: shape.into(), reason })
}

fn parse_as<'de, T: Element<'de>>(data: &'de RawValue, shape: &[usize]) -> serde_json::Result<Vec<u8>> {
    let text = data.get();
    let flat = [shape.iter().product()];
    let is_nested = text.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with('['));
    let sizes = if is_nested && shape.len() > 1 { shape } else { &flat };
    let mut bytes = Vec::new();
    let level = Level { sizes, bytes: &mut bytes, element: PhantomData::<T> };
    level.deserialize(&mut serde_json::Deserializer::from_str(text))?;
    Ok(bytes)
}

/// An element that JSON writes as one value.
trait Element<'de>: Deserialize<'de> {
    fn push(self, bytes: &mut Vec<u8>) -> Result<(), TensorError>;
}

/// An integer, which JSON may write as `5`, `5.0` or `5e0`.
struct Integer<T>(T);

/// The largest integer up to which every integer has an exact double.
const EXACT: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl<'de> Deserialize<'de> for Integer<$integer> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Self(0))
            }
        }

        impl Visitor<'_> for Integer<$integer> {
            type Value = Self;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(stringify!($integer))
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Self, E> {
                let fits = number.try_into().map(Self);
                fits.map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Self, E> {
                let fits = number.try_into().map(Self);
                fits.map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Self, E> {
                if number.fract() == 0.0 && number.abs() <= EXACT {
                    return self.visit_i64(number as i64);
                }
                Err(E::invalid_type(Unexpected::Float(number), &self))
            }
        }

        impl Element<'_> for Integer<$integer> {
            fn push(self, bytes: &mut Vec<u8>) -> Result<(), TensorError> {
                bytes.extend(self.0.to_le_bytes());
                Ok(())
            }
        }
    )*};
}

integers! { u8 u16 u32 u64 i8 i16 i32 i64 }

macro_rules! floats {
    ($($float:ty)*) => {$(
        impl Element<'_> for $float {
            fn push(self, bytes: &mut Vec<u8>) -> Result<(), TensorError> {
                bytes.extend(self.to_le_bytes());
                Ok(())
            }
        }
    )*};
}

floats! { f32 f64 }

/// A half-precision number, which JSON writes with more digits or fewer.
struct HalfPrecision<H>(H);

impl<'de, H: Half> Deserialize<'de> for HalfPrecision<H> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        nearest(number).map(Self).ok_or_else(|| D::Error::custom(format_args!("number out of range: {number:e}")))
    }
}

impl<H: Half> Element<'_> for HalfPrecision<H> {
    fn push(self, bytes: &mut Vec<u8>) -> Result<(), TensorError> {
        bytes.extend(self.0.to_bytes());
        Ok(())
    }
}

impl Element<'_> for bool {
    fn push(self, bytes: &mut Vec<u8>) -> Result<(), TensorError> {
        bytes.push(u8::from(self));
        Ok(())
    }
}

impl<'de> Element<'de> for Cow<'de, str> {
    fn push(self, bytes: &mut Vec<u8>) -> Result<(), TensorError> {
        push_string(bytes, self.as_bytes())
    }
}

/// A seed for one nesting level: an array with as many elements, or arrays of them, as the first size says.
struct Level<'a, T> {
    sizes: &'a [usize],
    bytes: &'a mut Vec<u8>,
    element: PhantomData<T>,
}

impl<'de, T: Element<'de>> DeserializeSeed<'de> for Level<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Element<'de>> Visitor<'de> for Level<'_, T> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "an array of {}", self.sizes.first().copied().unwrap_or(1))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        let (&size, inner) = self.sizes.split_first().unwrap_or((&1, &[]));
        for found in 0..size {
            let next = if inner.is_empty() {
                let element = array.next_element::<T>()?;
                element.map(|element| element.push(self.bytes).map_err(A::Error::custom)).transpose()?
            } else {
                array.next_element_seed(Level { sizes: inner, bytes: self.bytes, element: self.element })?
            };
            next.ok_or_else(|| A::Error::custom(format_args!("an array ends after {found} of {size}")))?;
        }
        // A surplus element is an error, whatever its value.
        let more = array.next_element::<IgnoredAny>()?;
        more.map_or(Ok(()), |_| Err(A::Error::custom(format_args!("an array has more than {size}"))))
    }
}

/// A tensor's elements, which serialize to one flat array.
pub(super) struct Elements<'a>(pub(super) &'a Tensor);

impl Serialize for Elements<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(tensor) = *self;
        match tensor.datatype() {
            Datatype::Bool => write(tensor, serializer, |[byte]| Ok(byte != 0)),
            Datatype::Uint8 => write(tensor, serializer, |bytes| Ok(u8::from_le_bytes(bytes))),
            Datatype::Uint16 => write(tensor, serializer, |bytes| Ok(u16::from_le_bytes(bytes))),
            Datatype::Uint32 => write(tensor, serializer, |bytes| Ok(u32::from_le_bytes(bytes))),
            Datatype::Uint64 => write(tensor, serializer, |bytes| Ok(u64::from_le_bytes(bytes))),
            Datatype::Int8 => write(tensor, serializer, |bytes| Ok(i8::from_le_bytes(bytes))),
            Datatype::Int16 => write(tensor, serializer, |bytes| Ok(i16::from_le_bytes(bytes))),
            Datatype::Int32 => write(tensor, serializer, |bytes| Ok(i32::from_le_bytes(bytes))),
            Datatype::Int64 => write(tensor, serializer, |bytes| Ok(i64::from_le_bytes(bytes))),
            Datatype::Fp16 => write(tensor, serializer, half_precision::<f16>),
            Datatype::Bf16 => write(tensor, serializer, half_precision::<bf16>),
            Datatype::Fp32 => write(tensor, serializer, |bytes| {
                Some(f32::from_le_bytes(bytes)).filter(|number| number.is_finite()).ok_or(NOT_FINITE)
            }),
            Datatype::Fp64 => write(tensor, serializer, |bytes| {
                Some(f64::from_le_bytes(bytes)).filter(|number| number.is_finite()).ok_or(NOT_FINITE)
            }),
            Datatype::Bytes => {
                let mut array = serializer.serialize_seq(Some(tensor.numel()))?;
                for string in tensor.iter_strings() {
                    let text = str::from_utf8(string).map_err(|_| fault(tensor, NOT_TEXT))?;
                    array.serialize_element(text)?;
                }
                array.end()
            }
        }
    }
}

const NOT_FINITE: &str = "JSON has no NaN and no infinity: ask for binary data";
const NOT_TEXT: &str = "not all of it is UTF-8, as JSON is: ask for binary data";

/// Reads a half-precision number as the number to write for it.
fn half_precision<H: Half>(bytes: [u8; 2]) -> Result<f32, &'static str> {
    let half = Some(H::from_bytes(bytes)).filter(|half| half.to_single().is_finite());
    half.map(shortest).ok_or(NOT_FINITE)
}

fn fault<E: serde::ser::Error>(tensor: &Tensor, reason: &str) -> E {
    E::custom(format_args!("tensor {:?}: {reason}", tensor.name()))
}

/// Writes the elements as an array; `read` converts the bytes of one element.
fn write<S: Serializer, T: Serialize, const SIZE: usize>(
    tensor: &Tensor,
    serializer: S,
    read: impl Fn([u8; SIZE]) -> Result<T, &'static str>,
) -> Result<S::Ok, S::Error> {
    let (elements, _) = tensor.bytes().as_chunks();
    let mut array = serializer.serialize_seq(Some(elements.len()))?;
    for &element in elements {
        array.serialize_element(&read(element).map_err(|reason| fault(tensor, reason))?)?;
    }
    array.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(data: &str, datatype: Datatype, shape: &[usize]) -> Result<Vec<u8>, String> {
        let data: &RawValue = serde_json::from_str(data).unwrap();
        parse(data, datatype, shape).map_err(|error| error.to_string())
    }

    #[test]
    fn data_may_be_flat_or_nested() {
        let flat = parsed("[1, 2, 3, 4, 5, 6]", Datatype::Uint8, &[2, 3]).unwrap();
        assert_eq!(flat, [1, 2, 3, 4, 5, 6]);
        assert_eq!(parsed("[ [1, 2, 3], [4, 5, 6] ]", Datatype::Uint8, &[2, 3]).unwrap(), flat);
        assert_eq!(parsed("[7]", Datatype::Uint8, &[]).unwrap(), [7]);
        assert_eq!(parsed("[[], []]", Datatype::Uint8, &[2, 0]).unwrap(), b"");
    }

    #[test]
    fn data_of_another_shape_is_refused() {
        for (data, reason) in [
            ("[1, 2, 3, 4, 5]", "ends after 5 of 6"),
            ("[1, 2, 3, 4, 5, 6, 7]", "has more than 6"),
            ("[[1, 2], [3, 4], [5, 6]]", "ends after 2 of 3"),
            ("[[1, 2, 3], [4, 5, 6], []]", "has more than 2"),
            ("[[[1], [2], [3]], [4, 5, 6]]", "invalid type: sequence, expected u8"),
            ("[1, 2, 3, [4, 5, 6]]", "invalid type: sequence, expected u8"),
            ("6", "expected an array of 6"),
        ] {
            let error = parsed(data, Datatype::Uint8, &[2, 3]).unwrap_err();
            assert!(error.contains(reason) && error.starts_with("data of UINT8 and shape [2, 3]: "), "{data}: {error}");
        }
    }

    #[test]
    fn a_number_is_exact_or_refused() {
        for (data, datatype, reason) in [
            ("[256]", Datatype::Uint8, "`256`, expected u8"),
            ("[-1]", Datatype::Uint64, "`-1`, expected u64"),
            ("[1.5]", Datatype::Int32, "`1.5`, expected i32"),
            ("[256.0]", Datatype::Uint8, "`256`, expected u8"),
            ("[18446744073709551616]", Datatype::Uint64, "expected u64"),
            ("[9007199254740994.0]", Datatype::Int64, "expected i64"),
            ("[9223372036854775808]", Datatype::Int64, "expected i64"),
            ("[1e39]", Datatype::Fp32, "number out of range"),
            ("[1e309]", Datatype::Fp64, "number out of range"),
            ("[1]", Datatype::Bool, "expected a boolean"),
            ("[true]", Datatype::Fp32, "expected f32"),
            ("[1]", Datatype::Bytes, "expected a string"),
            ("[null]", Datatype::Fp64, "expected f64"),
            ("[65520]", Datatype::Fp16, "number out of range"),
            ("[-3.4e38]", Datatype::Bf16, "number out of range"),
            ("[true]", Datatype::Bf16, "expected f64"),
        ] {
            let error = parsed(data, datatype, &[1]).unwrap_err();
            assert!(error.contains(reason), "{data}: {error}");
        }
        let largest = parsed("[18446744073709551615]", Datatype::Uint64, &[1]).unwrap();
        assert_eq!(largest, u64::MAX.to_le_bytes());
    }

    #[test]
    fn an_integer_may_have_a_fraction_of_zero() {
        let plain = parsed("[5, -7, 1000]", Datatype::Int64, &[3]).unwrap();
        assert_eq!(parsed("[5.0, -7.000, 1e3]", Datatype::Int64, &[3]).unwrap(), plain);
        assert_eq!(parsed("[255.0, -0.0]", Datatype::Uint8, &[2]).unwrap(), [255, 0]);
    }

    #[test]
    fn a_number_is_rounded_once() {
        // Halfway between two single-precision numbers, except for the last digits, which double precision cannot hold.
        let data = "[1.00000005960464477540000001]";
        assert_eq!(parsed(data, Datatype::Fp32, &[1]).unwrap(), 1.000_000_1_f32.to_le_bytes());
        // A little more than halfway between 1 and the next number, which single precision cannot tell.
        assert_eq!(
            parsed("[1.0039062500001]", Datatype::Bf16, &[1]).unwrap(),
            bf16::from_f32(1.007_812_5).to_le_bytes()
        );
        assert_eq!(parsed("[1.00390625]", Datatype::Bf16, &[1]).unwrap(), bf16::ONE.to_le_bytes());
    }

    #[test]
    fn strings_are_their_text() {
        assert_eq!(parsed(r#"["é\n"]"#, Datatype::Bytes, &[1]).unwrap(), b"\x03\0\0\0\xc3\xa9\n");
    }

    #[test]
    fn half_precision_is_written_with_the_fewest_digits() {
        for (datatype, text) in [(Datatype::Bf16, "[0.1,-0.0,257.0,1e-40]"), (Datatype::Fp16, "[0.1,-0.0,2049.0,6e-8]")]
        {
            let bytes = parsed(text, datatype, &[4]).unwrap();
            let tensor = Tensor::new("x", datatype, vec![4], bytes).unwrap();
            let written = serde_json::to_string(&Elements(&tensor)).unwrap();
            assert_eq!(parsed(&written, datatype, &[4]).unwrap(), **tensor.bytes());
            assert!(written.starts_with("[0.1,-0.0,2") && written.len() <= text.len(), "{written}");
        }
    }

    #[test]
    fn values_that_json_cannot_express_are_not_written() {
        for (tensor, reason) in [
            (Tensor::new("x", Datatype::Fp32, vec![1], f32::NAN.to_le_bytes().to_vec()), NOT_FINITE),
            (Tensor::new("x", Datatype::Fp64, vec![1], f64::INFINITY.to_le_bytes().to_vec()), NOT_FINITE),
            (Tensor::strings("x", &[b"\xff"]), NOT_TEXT),
            (Tensor::new("x", Datatype::Bf16, vec![1], bf16::NAN.to_le_bytes().to_vec()), NOT_FINITE),
            (Tensor::new("x", Datatype::Fp16, vec![1], f16::INFINITY.to_le_bytes().to_vec()), NOT_FINITE),
        ] {
            let error = serde_json::to_string(&Elements(&tensor.unwrap())).unwrap_err().to_string();
            assert!(error.starts_with(&format!("tensor \"x\": {reason}")), "{error}");
        }
    }
}
