//! Tests of a server with more connections than it has places.

use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_serve::server::InferenceServerConfig;
use tenure_serve::service::Limits;

use crate::loopback::{Served, receive, request, wait_until};

const INFER: &str = r#"{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2]}]}"#;

/// Starts a server with eight places, four of them for this host, on which connections may be silent for an hour.
fn patient() -> Served {
    let hour = Duration::from_secs(3600);
    let limits = Limits { connections: 8, head: hour, receive: hour, ..Limits::default() };
    Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() })
}

fn status(served: &Served, path: &str) -> u16 {
    served.ask("GET", path, &[], &[]).status
}

#[test]
fn silent_connections_keep_no_request_waiting() {
    let served = patient();
    let silent: Vec<TcpStream> = (0..100).map(|_| served.send(b"GET /v2 HT")).collect();
    for path in ["/v2/health/live", "/v2/health/ready", "/v2"] {
        assert_eq!(status(&served, path), 200, "{path}");
    }
    let ended = silent.into_iter().map(receive).take(90);
    assert!(ended.into_iter().all(|answer| answer.is_none()));
}

#[test]
fn requests_in_progress_go_on_and_health_checks_are_answered_beside_them() {
    let served = patient();
    let slow = |_| served.send(&request("POST", "/v2/models/slow/infer", &[], INFER.as_bytes()));
    let in_progress: Vec<TcpStream> = (0..4).map(slow).collect();
    wait_until("the requests", || served.fake.waiting.load(Ordering::SeqCst) == 4);
    assert_eq!(status(&served, "/v2/health/live"), 200);
    let refused = served.ask("GET", "/v2", &[], &[]);
    assert_eq!((refused.error().0, &*refused.headers["connection"]), (503, "close"));
    let _silent: Vec<TcpStream> = (0..100).map(|_| served.send(b"")).collect();
    assert_eq!(status(&served, "/v2/health/ready"), 200);
    served.fake.permits.add_permits(4);
    assert!(in_progress.into_iter().all(|stream| receive(stream).unwrap().status == 200));
    wait_until("a place is free", || status(&served, "/v2") == 200);
}

#[test]
fn a_connection_without_a_request_has_a_time_limit() {
    let limits = Limits { head: Duration::from_millis(50), ..Limits::default() };
    let served = Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() });
    for begun in ["", "GET /v2 HT"] {
        assert!(receive(served.send(begun.as_bytes())).is_none(), "{begun}");
    }
}
