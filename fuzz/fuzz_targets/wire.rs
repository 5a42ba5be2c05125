//! Takes any bytes as a frame of the memory daemon's protocol, with the version corrected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_device::share::wire::{DaemonReply, DaemonRequest, VERSION, WireError, decode, encode};

fuzz_target!(|bytes: &[u8]| {
    let frame = [&VERSION.to_le_bytes(), bytes].concat();
    if let Ok(request) = decode::<DaemonRequest>(&frame) {
        assert_eq!(decode(&encode(&request).expect("a short message")), Ok(request));
    }
    if let Ok(reply) = decode::<DaemonReply>(&frame) {
        // The input may encode numbers in more bytes than needed, never in fewer.
        assert_eq!(decode(&encode(&reply).expect("no longer than it came")), Ok(reply));
    }
    if let [a, b, ..] = bytes
        && [*a, *b] != VERSION.to_le_bytes()
    {
        assert!(matches!(decode::<DaemonRequest>(bytes), Err(WireError::Version { .. } | WireError::TooLong)));
    }
});
