//! Tests of request ids and the request log.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, Once};

use serde_json::{Value, json};
use tenure_serve::request_log::TARGET;
use tenure_serve::server::InferenceServerConfig;
use tracing_subscriber::EnvFilter;

use crate::loopback::{Served, receive, request, wait_until};
use crate::served;

const INFER: &str = r#"{"id": "7", "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2]}]}"#;

static LOGGED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOGGED.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Captures the log from now on.
pub(crate) fn keep_log() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        let filter = EnvFilter::new(format!("{TARGET}=info"));
        tracing_subscriber::fmt().with_env_filter(filter).json().flatten_event(true).with_writer(|| Log).init();
    });
}

/// Waits for `count` events of an id, and returns them.
pub(crate) fn logged(id: &str, count: usize) -> Vec<Value> {
    let events = || -> Vec<Value> {
        let logged = String::from_utf8(LOGGED.lock().unwrap().clone()).unwrap();
        let events = logged.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        events.map(|line| serde_json::from_str(line).unwrap()).filter(|event: &Value| event["id"] == id).collect()
    };
    wait_until("events", || events().len() >= count);
    let events = events();
    assert_eq!(events.len(), count, "{events:?}");
    events
}

/// Returns the fields of an event that are the same in each run.
pub(crate) fn fixed(event: &Value) -> Value {
    let mut fixed = event.as_object().unwrap().clone();
    for name in ["timestamp", "level", "message", "target", "total_ms"] {
        assert!(fixed.remove(name).is_some(), "{event}");
    }
    fixed.into()
}

#[test]
fn a_request_has_an_id_that_its_answer_has_too() {
    let served = Served::with(InferenceServerConfig::default());
    let id_of = |method, path, header: &str, body: &[u8]| {
        served.ask(method, path, &[header], body).headers.remove("x-request-id").unwrap()
    };
    let infer = "/v2/models/echo_fp32/infer";
    assert_eq!(id_of("POST", infer, "X-Request-Id: of/a-client", INFER.as_bytes()), "of/a-client");
    for (method, path) in
        [("POST", infer), ("GET", "/"), ("GET", "/nowhere"), ("POST", "/metrics"), ("GET", "/v1/models/m")]
    {
        assert_eq!(id_of(method, path, "X-Request-Id: mine", b"{"), "mine", "{path}");
        let made = id_of(method, path, "X: y", b"{");
        assert!(made.len() == 32 && made.bytes().all(|byte| byte.is_ascii_hexdigit()), "{made}");
    }
    for header in ["X-Request-Id: a b", "X-Request-Id:", &format!("X-Request-Id: {}", "x".repeat(129))] {
        assert_eq!(id_of("GET", "/v2", header, b"").len(), 32, "{header}");
    }
}

#[test]
fn the_outcome_of_a_request_is_logged() {
    keep_log();
    let served =
        Served::with(InferenceServerConfig { tokens: vec!["secret".into()], ..InferenceServerConfig::default() });
    let ask = |id: &str, method: &str, path: &str, body: &str| {
        let headers = [&*format!("X-Request-Id: {id}"), "Authorization: Bearer secret"];
        served.ask(method, path, &headers, body.as_bytes())
    };
    let answered = ask("log-1", "POST", "/v2/models/echo_fp32/infer?token=secret", INFER);
    let [event] = &logged("log-1", 1)[..] else { unreachable!() };
    assert_eq!(
        fixed(event),
        json!({"id": "log-1", "protocol": "http", "method": "POST", "path": "/v2/models/echo_fp32/infer",
            "model": "echo_fp32", "status": 200, "outcome": "answered", "bytes_in": INFER.len(),
            "bytes_out": answered.body.len()})
    );
    assert!(event["total_ms"].as_f64().unwrap() > 0.0);
    let outcome = |id, method, path, body| {
        ask(id, method, path, body);
        let event = logged(id, 1).remove(0);
        (event["status"].clone(), event["outcome"].clone(), event.get("model").cloned())
    };
    let model = |name: &str| Some(Value::from(name));
    assert_eq!(outcome("log-2", "GET", "/v2", ""), (200.into(), "answered".into(), None));
    assert_eq!(outcome("log-3", "GET", "/nowhere", ""), (404.into(), "refused".into(), None));
    assert_eq!(outcome("log-4", "POST", "/v2/models/m/infer", INFER), (404.into(), "refused".into(), None));
    assert_eq!(
        outcome("log-5", "POST", "/v2/models/full/infer", INFER),
        (503.into(), "unavailable".into(), model("full"))
    );
    assert_eq!(
        outcome("log-6", "POST", "/v2/models/panics/infer", INFER),
        (500.into(), "failed".into(), model("panics"))
    );
    receive(served.send(&request("GET", "/v2", &["X-Request-Id: log-7"], b""))).unwrap();
    assert_eq!((&logged("log-7", 1)[0]["status"], &logged("log-7", 1)[0]["outcome"]), (&401.into(), &"refused".into()));
}

#[test]
fn a_request_whose_client_goes_away_is_logged() {
    keep_log();
    let served = Served::with(InferenceServerConfig::default());
    let headers = ["X-Request-Id: log-gone"];
    let stream = served.send(&request("POST", "/v2/models/slow/infer", &headers, INFER.as_bytes()));
    wait_until("the request", || served.fake.waiting.load(Ordering::SeqCst) == 1);
    drop(stream);
    let event = logged("log-gone", 1).remove(0);
    assert_eq!((&event["outcome"], &event["model"], event.get("status")), (&"cancelled".into(), &"slow".into(), None));
}

#[test]
fn where_the_time_of_a_request_went_is_logged() {
    keep_log();
    let (served, _control) = served::Served::probes(&["p"], "batching = { max_rows = 4 }", 1 << 20);
    let body = r#"{"inputs": [{"name": "x", "shape": [2, 1], "datatype": "FP32", "data": [1, 2]}]}"#;
    served.ask("POST", "/v2/models/p/infer", "X-Request-Id: log-phases\r\n", body.as_bytes());
    let event = logged("log-phases", 1).remove(0);
    assert_eq!((&event["model"], &event["rows"]), (&"p".into(), &2.into()), "{event}");
    let ms = |name: &str| event[name].as_f64().unwrap();
    let phases = ms("queue_ms") + ms("copy_ms") + ms("wait_ms") + ms("compute_ms");
    // Each phase is truncated.
    assert!(0.0 < phases && phases <= ms("total_ms") + 0.004, "{event}");
}
