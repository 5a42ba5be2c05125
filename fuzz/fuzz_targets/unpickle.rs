//! Takes any bytes as a snapshot, compressed or not. A trace that was read must survive being written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_plan::{Format, ReadOptions, Trace};

fuzz_target!(|bytes: &[u8]| {
    let options = ReadOptions { memory_bytes: 64 << 20, decoded_bytes: 64 << 20, ..ReadOptions::default() };
    if let Ok(trace) = Trace::read_from(bytes, "fuzz", &options) {
        let mut written = Vec::new();
        trace.write_to(&mut written, Format::Pickle).expect("memory takes any write");
        let again = Trace::read_from(written.as_slice(), trace.source(), &ReadOptions::default());
        let again = again.expect("our own pickles are read");
        // Notes about the file are not written, so they are not compared.
        assert_eq!((again.device(), again.settings()), (trace.device(), trace.settings()));
        assert_eq!((again.events(), again.earlier_events()), (trace.events(), trace.earlier_events()));
        trace.summary();
    }
});
