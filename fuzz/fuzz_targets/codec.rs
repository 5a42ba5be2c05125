//! Takes any bytes as an encoded tensor and as a tensor: a decoded tensor is as long as its header says, and a lossless
//! encoding decodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_core::DType;
use tenure_tier::codec::{Codec, StreamReader, decode, encode, sequential};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(reader) = StreamReader::new(bytes) {
        let raw_bytes = reader.encoded().raw_bytes;
        // Zeros are encoded in nearly no bytes, so a large size needs a limit.
        if raw_bytes <= 64 << 20 {
            let mut into = vec![0; raw_bytes];
            if let Err(error) = reader.read(&mut into, &sequential) {
                assert_eq!(error.to_string().lines().count(), 1);
            }
        }
    }
    let [codec, dtype, raw @ ..] = bytes else { return };
    let codec = Codec::ALL[usize::from(*codec) % Codec::ALL.len()];
    let dtype = DType::ALL[usize::from(*dtype) % DType::ALL.len()];
    let mut stream = Vec::new();
    let mut back = vec![1; raw.len()];
    let encoded = encode(codec, dtype, raw, &mut stream);
    assert!(encoded.bytes <= raw.len() + 16);
    assert_eq!(decode(&stream, &mut back), Ok(encoded));
    assert!(encoded.codec.is_lossy() || back == raw);
});
