//! Takes any bytes as a request for inference, all JSON or JSON up to the last brace: a parsed request is written and
//! parsed again.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tenure_serve::protocol::{Encoding, InferRequest};

fuzz_target!(|bytes: &[u8]| {
    let json_bytes = bytes.iter().rposition(|byte| *byte == b'}').map(|last| last + 1);
    for json_bytes in [None, json_bytes] {
        match InferRequest::parse("m", None, Bytes::copy_from_slice(bytes), json_bytes) {
            Ok(request) => {
                let encoded = request.encode(Encoding::Binary).expect("every tensor has bytes");
                let again = InferRequest::parse("m", None, encoded.body, encoded.json_bytes);
                assert_eq!(again.expect("it was valid"), request);
            }
            Err(error) => assert_eq!(error.to_string().lines().count(), 1),
        }
    }
});
