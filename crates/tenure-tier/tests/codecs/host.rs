//! Tests of codecs on the host: tensors come back, and changed streams are errors.

use std::thread;

use half::f16;
use proptest::prelude::*;
use tenure_core::DType;
use tenure_tier::codec::{Codec, CodecError, Encoded, StreamReader, StreamWriter, decode, encode, max_bytes};

use crate::tensor;

/// Runs jobs on three threads, each of which takes every third job.
fn threads(count: usize, job: &(dyn Fn(usize) + Sync)) {
    thread::scope(|scope| {
        for first in 0..3 {
            scope.spawn(move || (first..count).step_by(3).rev().for_each(job));
        }
    });
}

/// Returns the bytes that decoding gives.
fn expected(codec: Codec, raw: &[u8]) -> Vec<u8> {
    if !codec.is_lossy() {
        return raw.to_vec();
    }
    // A partial last element is padded with zeros.
    let cast = raw.chunks(4).flat_map(|bytes| {
        let mut whole = [0; 4];
        whole[..bytes.len()].copy_from_slice(bytes);
        f16::from_f32(f32::from_le_bytes(whole)).to_f32().to_le_bytes()
    });
    cast.take(raw.len()).collect()
}

fn check(codec: Codec, dtype: DType, raw: &[u8]) {
    let mut stream = vec![7];
    let encoded = encode(codec, dtype, raw, &mut stream);
    let stream = &stream[1..];
    assert_eq!((encoded.bytes, encoded.raw_bytes), (stream.len(), raw.len()));
    assert!(encoded.bytes <= raw.len() + 16 && encoded.bytes <= max_bytes(dtype, raw.len()));
    assert!(encoded.codec == codec || encoded.codec == Codec::None);
    let mut back = vec![1; raw.len()];
    assert_eq!(decode(stream, &mut back), Ok(encoded));
    assert!(back == expected(encoded.codec, raw), "{codec} of {dtype}");

    let writer = StreamWriter::new(codec, dtype, raw, &threads);
    let mut by_threads = vec![9; writer.encoded().bytes];
    writer.write(&mut by_threads, &threads);
    assert!(by_threads == stream);
    back.fill(2);
    StreamReader::new(stream).unwrap().read(&mut back, &threads).unwrap();
    assert!(back == expected(encoded.codec, raw));
}

fn dtypes() -> impl Strategy<Value = DType> {
    (0..DType::ALL.len()).prop_map(|number| DType::ALL[number])
}

fn codecs() -> impl Strategy<Value = Codec> {
    (0..Codec::ALL.len()).prop_map(|number| Codec::ALL[number])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn tensors_come_back(codec in codecs(), dtype in dtypes(), kind in 0..6_usize, count in 0..9000_usize, cut in 0..8_usize,
        seed: u64)
    {
        let mut raw = tensor(dtype, kind, count, seed);
        raw.truncate(raw.len().saturating_sub(cut));
        check(codec, dtype, &raw);
    }

    #[test]
    fn any_bytes_come_back(codec in codecs(), dtype in dtypes(), raw in prop::collection::vec(any::<u8>(), 0..9000)) {
        check(codec, dtype, &raw);
    }

    #[test]
    fn a_changed_or_cut_stream_is_an_error_or_another_tensor(
        codec in codecs(), dtype in dtypes(), kind in 0..6_usize, count in 0..4000_usize, at: usize, bit in 0..8_u32,
        cut: usize,
    ) {
        let raw = tensor(dtype, kind, count, 1);
        let mut stream = Vec::new();
        encode(codec, dtype, &raw, &mut stream);
        let mut into = vec![0; raw.len()];
        prop_assert!(decode(&stream[..cut % stream.len()], &mut into).is_err());
        let longer = [&stream[..], &[0; 16]].concat();
        prop_assert!(decode(&longer, &mut into).is_err());
        let place = at % stream.len();
        stream[place] ^= 1 << bit;
        let _ = decode(&stream, &mut into);
        // Most information of a small tensor is in its header and table.
        let place = at % stream.len().min(32);
        stream[place] ^= 1 << bit;
        let _ = decode(&stream, &mut into);
    }
}

#[test]
fn many_spans_come_back() {
    for (codec, dtype) in [(Codec::Zeros, DType::U8), (Codec::Planes, DType::BF16), (Codec::CsrFp16, DType::F32)] {
        for kind in [2, 3, 5] {
            check(codec, dtype, &tensor(dtype, kind, 200_001, 3));
        }
    }
}

#[test]
fn every_half_comes_back_as_itself() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(|bits| f16::from_bits(bits).to_f32().to_le_bytes()).collect();
    for codec in [Codec::Fp16, Codec::CsrFp16] {
        check(codec, DType::F32, &all);
    }
}

#[test]
fn tensors_get_as_small_as_they_must() {
    let ratio = |codec, dtype: DType, kind| {
        let raw = tensor(dtype, kind, 1 << 18, 5);
        encode(codec, dtype, &raw, &mut Vec::new()).bytes as f64 / raw.len() as f64
    };
    for (codec, dtype, kind, most) in [
        (Codec::Zeros, DType::F32, 3, 0.54),
        (Codec::Zeros, DType::BF16, 3, 0.58),
        (Codec::Planes, DType::BF16, 2, 0.74),
        (Codec::Planes, DType::F32, 2, 0.87),
        (Codec::Fp16, DType::F32, 2, 0.502),
        (Codec::CsrFp16, DType::F32, 3, 0.29),
        (Codec::Zeros, DType::I64, 1, 0.001),
        (Codec::Planes, DType::BF16, 1, 0.003),
        (Codec::Zeros, DType::F32, 0, 1.000_1),
        (Codec::Planes, DType::I16, 2, 1.000_1),
    ] {
        let ratio = ratio(codec, dtype, kind);
        assert!(ratio <= most, "{codec} of {dtype}, kind {kind}: {ratio}");
    }
}

#[test]
fn only_an_element_of_zero_bits_is_zero() {
    let tensor = [-0.0_f32, 0.0, f32::from_bits(0xffc1_2345), f32::from_bits(1)].map(f32::to_le_bytes).concat();
    for codec in [Codec::Zeros, Codec::Planes] {
        check(codec, DType::F32, &tensor.repeat(2000));
    }
}

#[test]
fn names_are_those_of_the_command_line() {
    for codec in Codec::ALL {
        assert_eq!(codec.to_string().parse(), Ok(codec));
        assert_eq!(Codec::ALL[codec as usize], codec);
    }
    assert_eq!(Codec::ALL.map(Codec::is_lossy), [false, false, false, true, true]);
    let error = "lz4".parse::<Codec>().unwrap_err().to_string();
    assert!(error.starts_with("there is no codec \"lz4\": none, zeros"), "{error}");
}

#[test]
fn stream_errors_name_the_problem() {
    let raw = vec![0; 5000];
    let mut stream = Vec::new();
    let encoded = encode(Codec::Zeros, DType::F32, &raw, &mut stream);
    assert_eq!(encoded, Encoded { codec: Codec::Zeros, raw_bytes: 5000, bytes: 32 });
    let mut into = raw.clone();
    assert_eq!(decode(&[], &mut into), Err(CodecError::Length { bytes: 0, expected: 16 }));
    assert_eq!(decode(&stream[..20], &mut into), Err(CodecError::Length { bytes: 20, expected: 32 }));
    assert_eq!(decode(&stream, &mut into[1..]), Err(CodecError::Size { raw_bytes: 5000, given: 4999 }));
    let with = |at: usize, value| {
        let mut changed = stream.clone();
        changed[at] = value;
        decode(&changed, &mut raw.clone())
    };
    for (at, value) in [(0, 0), (4, 5), (5, 3), (6, 1), (15, 255)] {
        assert_eq!(with(at, value), Err(CodecError::Header), "{at}");
    }
    assert_eq!(with(16, 1), Err(CodecError::Block { block: 1 }));
    assert_eq!(with(20, 1), Err(CodecError::Length { bytes: 32, expected: 48 }));
    // The table has room for more blocks than there were.
    assert_eq!(with(9, 0x53), Err(CodecError::Length { bytes: 32, expected: 48 }));
}
