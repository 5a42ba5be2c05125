//! Tests of frames: every message survives encoding and decoding, and bytes that are not a frame are refused.

use proptest::prelude::*;
use tenure_device::AccessMode;
use tenure_device::share::wire::{DaemonReply, DaemonRequest, FRAME_BYTES, VERSION, WireError, decode, encode};
use tenure_device::share::{DaemonRefusal, DaemonStatus, DaemonTerms, Holding, LeaseId, LeaseKind, LeaseState};

fn access() -> impl Strategy<Value = AccessMode> {
    prop_oneof![Just(AccessMode::Read), Just(AccessMode::ReadWrite)]
}

fn request() -> impl Strategy<Value = DaemonRequest> {
    prop_oneof![
        Just(DaemonRequest::Attach),
        (any::<[u64; 2]>(), access(), any::<bool>())
            .prop_map(|([offset, bytes], access, waits)| DaemonRequest::LeasePool { offset, bytes, access, waits }),
        any::<[u64; 2]>().prop_map(|[offset, bytes]| DaemonRequest::IsWritten { offset, bytes }),
        any::<u64>().prop_map(|bytes| DaemonRequest::LeaseChunk { bytes }),
        (any::<u64>(), any::<u32>()).prop_map(|(bytes, wait_ms)| DaemonRequest::Room { bytes, wait_ms }),
        any::<u64>().prop_map(|lease| DaemonRequest::Release(LeaseId(lease))),
        any::<u64>().prop_map(|lease| DaemonRequest::Lower(LeaseId(lease))),
        Just(DaemonRequest::Recalls),
        Just(DaemonRequest::Status),
    ]
}

fn terms() -> impl Strategy<Value = DaemonTerms> {
    let pool = prop::collection::vec(0..u64::MAX / 64, 0..64);
    (".*", any::<[u8; 16]>(), pool).prop_map(|(device, uuid, pool)| DaemonTerms { device, uuid, pool })
}

fn holding() -> impl Strategy<Value = Holding> {
    let kind = prop_oneof![Just(LeaseKind::Pool), Just(LeaseKind::Chunk)];
    let state = prop_oneof![Just(LeaseState::Held), Just(LeaseState::Orphaned)];
    (any::<Option<u32>>(), kind, access(), state, any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
        |(pid, kind, access, state, leases, bytes, oldest_ms)| Holding {
            pid,
            kind,
            access,
            state,
            leases,
            bytes,
            oldest_ms,
        },
    )
}

fn status() -> impl Strategy<Value = DaemonStatus> {
    let holdings = (prop::collection::vec(any::<u32>(), 0..100), prop::collection::vec(holding(), 0..100));
    (terms(), any::<[u32; 5]>(), any::<[u64; 2]>(), any::<Option<u64>>(), holdings).prop_map(
        |(terms, counts, [uptime_ms, chunk_bytes], limit, (attached, holdings))| {
            let [pid, connections, unreleased, waiting, left_out] = counts;
            DaemonStatus {
                terms,
                pid,
                uptime_ms,
                connections,
                chunk_bytes,
                chunk_limit_bytes: limit,
                unreleased,
                waiting,
                attached,
                holdings,
                left_out,
            }
        },
    )
}

fn refusal() -> impl Strategy<Value = DaemonRefusal> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(uid, allowed)| DaemonRefusal::ForeignUser { uid, allowed }),
        any::<u32>().prop_map(|limit| DaemonRefusal::TooManyClients { limit }),
        any::<(u64, u64)>().prop_map(|(requested, available)| DaemonRefusal::Full { requested, available }),
        (any::<(u64, u64, Option<u32>)>(), access()).prop_map(|((offset, bytes, pid), access)| DaemonRefusal::Leased {
            offset,
            bytes,
            pid,
            access
        }),
        Just(DaemonRefusal::OutOfSight),
        ".*".prop_map(|reason| DaemonRefusal::Unwatched { reason }),
        ".*".prop_map(DaemonRefusal::Driver),
    ]
}

fn reply() -> impl Strategy<Value = DaemonReply> {
    prop_oneof![
        terms().prop_map(DaemonReply::Welcome),
        Just(DaemonReply::Attached),
        any::<u64>().prop_map(|lease| DaemonReply::Leased(LeaseId(lease))),
        any::<u64>().prop_map(DaemonReply::Recall),
        any::<bool>().prop_map(DaemonReply::Written),
        status().prop_map(DaemonReply::Status),
        refusal().prop_map(DaemonReply::Refused),
    ]
}

proptest! {
    #[test]
    fn requests_come_out_as_they_went_in(request in request()) {
        prop_assert_eq!(decode::<DaemonRequest>(&encode(&request).unwrap()), Ok(request));
    }

    #[test]
    fn replies_come_out_as_they_went_in(reply in reply()) {
        prop_assert_eq!(decode::<DaemonReply>(&encode(&reply).unwrap()), Ok(reply));
    }

    #[test]
    fn a_part_of_a_frame_is_none(reply in reply(), at: prop::sample::Index) {
        let frame = encode(&reply).unwrap();
        let part = &frame[..at.index(frame.len())];
        prop_assert!(decode::<DaemonReply>(part).is_err());
    }

    #[test]
    fn a_frame_with_something_behind_it_is_none(request in request(), more in 1..9usize) {
        let mut frame = encode(&request).unwrap();
        frame.extend(vec![0; more]);
        prop_assert_eq!(decode::<DaemonRequest>(&frame), Err(WireError::Trailing(more)));
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let frame = [&VERSION.to_le_bytes(), &bytes[..]].concat();
        if let Ok(request) = decode::<DaemonRequest>(&frame) {
            prop_assert_eq!(decode(&encode(&request).unwrap()), Ok(request));
        }
        // This checks only that decoding returns.
        let _ = decode::<DaemonReply>(&frame);
    }
}

#[test]
fn another_version_is_named() {
    let mut frame = encode(&DaemonRequest::Status).unwrap();
    frame[..2].copy_from_slice(&7u16.to_le_bytes());
    let error = decode::<DaemonRequest>(&frame).unwrap_err();
    assert_eq!(error, WireError::Version { theirs: 7 });
    assert!(error.to_string().contains("same release"));
}

#[test]
fn a_message_has_a_longest_length() {
    let long = DaemonReply::Refused(DaemonRefusal::Driver("x".repeat(FRAME_BYTES)));
    assert_eq!(encode(&long), Err(WireError::TooLong));
    assert_eq!(decode::<DaemonReply>(&vec![1; FRAME_BYTES + 1]), Err(WireError::TooLong));
}

fn welcome(pool: Vec<u64>) -> DaemonReply {
    DaemonReply::Welcome(DaemonTerms { device: "cuda:0".into(), uuid: [0; 16], pool })
}

#[test]
fn a_pool_that_has_no_size_is_no_offer() {
    let largest = welcome(vec![u64::MAX - 1, 1]);
    assert_eq!(decode(&encode(&largest).unwrap()), Ok(largest));
    let error = decode::<DaemonReply>(&encode(&welcome(vec![u64::MAX, 1])).unwrap()).unwrap_err();
    assert!(matches!(error, WireError::Malformed(_)), "{error}");
}

/// Checks that a status of a thousand holdings, the most that a daemon sends, fits in a frame.
#[test]
fn the_longest_status_fits() {
    let holding = Holding {
        pid: Some(u32::MAX),
        kind: LeaseKind::Chunk,
        access: AccessMode::ReadWrite,
        state: LeaseState::Orphaned,
        leases: u32::MAX,
        bytes: u64::MAX,
        oldest_ms: u64::MAX,
    };
    let status = DaemonStatus {
        terms: DaemonTerms { device: "cuda:255".into(), uuid: [255; 16], pool: vec![u64::MAX; 64] },
        pid: u32::MAX,
        uptime_ms: u64::MAX,
        connections: u32::MAX,
        chunk_bytes: u64::MAX,
        chunk_limit_bytes: Some(u64::MAX),
        unreleased: u32::MAX,
        waiting: u32::MAX,
        attached: vec![u32::MAX; 1000],
        holdings: vec![holding; 1000],
        left_out: u32::MAX,
    };
    assert!(encode(&DaemonReply::Status(status)).is_ok());
}
