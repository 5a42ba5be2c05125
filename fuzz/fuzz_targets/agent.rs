//! Takes any bytes as a client's message to an agent: a frame, and in it a request or measured times.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_agent::Measured;
use tenure_agent::serve::AgentRequest;
use tenure_agent::serve::frame::{Frame, Kind, MAGIC, VERSION};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some(frame)) = Frame::read(&mut rest) {
        let mut again = Vec::new();
        frame.write(&mut again).expect("no longer than it came");
        assert_eq!(Frame::read(&again[..]).expect("a frame"), Some(frame));
    }
    // The header is corrected, so that more inputs reach the body.
    let mut framed = [&MAGIC[..], &VERSION.to_le_bytes(), &Kind::Place.number().to_le_bytes()].concat();
    framed.extend((bytes.len() as u32).to_le_bytes());
    framed.extend(bytes);
    let frame = Frame::read(&framed[..]).expect("a frame").expect("not the end");
    if let Ok(measured) = Measured::from_json(&frame.body) {
        let again = measured.to_json().expect("it came as JSON");
        assert_eq!(Measured::from_json(&again).expect("it was valid"), measured);
    }
    match AgentRequest::from_json(&frame.body) {
        Ok(request) => {
            let again = request.to_json().expect("it came as JSON");
            assert_eq!(AgentRequest::from_json(&again).expect("it was valid"), request);
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
});
