//! Tests of the HTTP server over loopback, with a service that computes nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::loopback::{Answer, Served, receive, request, wait_until};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::{Value, json};
use tenure_serve::server::InferenceServerConfig;
use tenure_serve::service::Limits;

const INFER: &str = r#"{"id": "7", "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2]}]}"#;

impl Served {
    fn new() -> Self {
        Self::with(InferenceServerConfig::default())
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], &[])
    }

    fn infer(&self, model: &str, body: &str) -> Answer {
        self.ask("POST", &format!("/v2/models/{model}/infer"), &[], body.as_bytes())
    }

    fn wait_for_waiting(&self, requests: usize) {
        wait_until("a request or its end", || self.fake.waiting.load(Ordering::SeqCst) == requests);
    }

    fn is_counted(&self, line: &str) -> bool {
        self.get("/metrics").text().lines().any(|counted| counted == line)
    }
}

#[test]
fn an_answer_in_json_is_that_of_the_protocol() {
    let answer = Served::new().infer("echo_fp32", INFER);
    assert_eq!((answer.status, &*answer.headers["content-type"]), (200, "application/json"));
    assert_eq!(
        answer.text(),
        r#"{"model_name":"echo_fp32","model_version":"1","id":"7","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[1.5,2.0]}]}"#
    );
}

#[test]
fn an_answer_in_bytes_says_where_they_begin() {
    let json = r#"{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP16", "parameters": {"binary_data_size": 4}}],
        "parameters": {"binary_data_output": true}}"#;
    let header = format!("inference-header-content-length: {}", json.len());
    let body = [json.as_bytes(), &[1, 2, 3, 4]].concat();
    let answer = Served::new().ask("POST", "/v2/models/echo_fp16/versions/1/infer", &[&header], &body);
    assert_eq!((answer.status, &*answer.headers["content-type"]), (200, "application/octet-stream"));
    let json_bytes = answer.headers["inference-header-content-length"].parse::<usize>().unwrap();
    let (json, bytes) = answer.body.split_at(json_bytes);
    assert_eq!(bytes, [1, 2, 3, 4]);
    assert!(json.ends_with(br#""parameters":{"binary_data_size":4}}]}"#));
}

#[test]
fn a_server_and_its_models_say_what_they_are() {
    let served = Served::new();
    for (path, said) in [
        ("/v2/health/live", r#"{"live":true}"#),
        ("/v2/health/ready", r#"{"live":true,"ready":true}"#),
        ("/v2/models/echo_int8/ready", r#"{"name":"echo_int8","ready":true}"#),
        ("/v2/models/slow/versions/1/ready", r#"{"name":"slow","ready":true}"#),
    ] {
        let answer = served.get(path);
        assert_eq!((answer.status, &*answer.text()), (200, said), "{path}");
    }
    let server = served.get("/v2").text();
    assert_eq!(served.get("/v2/").text(), server);
    assert!(server.starts_with(r#"{"name":"tenure","version":""#));
    assert!(server.ends_with(
        r#""extensions":["binary_tensor_data","model_repository","model_configuration","statistics","system_shared_memory"]}"#
    ));
    let model = r#"{"name":"echo_int8","versions":["1"],"platform":"fake","inputs":[{"name":"x","datatype":"INT8","shape":[-1,-1]}],"outputs":[{"name":"y","datatype":"INT8","shape":[-1,-1]}]}"#;
    assert_eq!(served.get("/v2/models/echo_int8").text(), model);
    assert_eq!(served.get("/v2/models/echo%5Fint8/versions/1").text(), model);
}

#[test]
fn a_configuration_has_no_dimension_of_batches_where_requests_are_batched() {
    let served = Served::new();
    let config = r#"{"name":"echo_int8","platform":"fake","backend":"tenure","version_policy":{"specific":{"versions":[1]}},"max_batch_size":8,"input":[{"name":"x","data_type":"TYPE_INT8","dims":[-1]}],"output":[{"name":"y","data_type":"TYPE_INT8","dims":[-1]}],"dynamic_batching":{"preferred_batch_size":[8],"max_queue_delay_microseconds":2000}}"#;
    assert_eq!(served.get("/v2/models/echo_int8/config").text(), config);
    assert_eq!(served.get("/v2/models/echo_int8/versions/1/config").text(), config);
    assert!(served.get("/v2/models/echo_bytes/config").text().contains(r#""data_type":"TYPE_STRING""#));
    let whole = served.get("/v2/models/slow/config").text();
    assert!(whole.contains(r#""max_batch_size":0"#) && whole.contains(r#""dims":[-1,-1]"#), "{whole}");
    assert!(!whole.contains("dynamic_batching"), "{whole}");
    for path in ["/v2/models/m/config", "/v2/models/slow/versions/2/config"] {
        assert_eq!(served.get(path).error().0, 404, "{path}");
    }
}

#[test]
fn statistics_tell_what_became_of_requests_and_where_their_time_went() {
    let served = Served::new();
    let of = |path: &str| -> Vec<Value> {
        let mut said: Value = serde_json::from_slice(&served.get(path).body).unwrap();
        serde_json::from_value(said["model_stats"].take()).unwrap()
    };
    let [before] = &of("/v2/models/echo_fp32/stats")[..] else { panic!("one model") };
    assert_eq!((&before["name"], &before["version"]), (&json!("echo_fp32"), &json!("1")));
    assert_eq!((&before["last_inference"], &before["batch_stats"]), (&json!(0), &json!([])));
    let three = INFER.replace("[1, 2]", "[3, 2]").replace("[1.5, 2]", "[1, 2, 3, 4, 5, 6]");
    for body in [INFER, INFER, &three] {
        assert_eq!(served.infer("echo_fp32", body).status, 200);
    }
    assert_eq!(served.infer("echo_fp32", "{").status, 400);
    let [after] = &of("/v2/models/echo_fp32/versions/1/stats")[..] else { panic!("one model") };
    assert_eq!((&after["inference_count"], &after["execution_count"]), (&json!(5), &json!(3)));
    assert!(after["last_inference"].as_u64().unwrap() > 0);
    let requests = &after["inference_stats"];
    let counts = ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit"]
        .map(|what| requests[what]["count"].as_u64().unwrap());
    assert_eq!(counts, [3, 1, 3, 3, 3, 3, 0]);
    assert_eq!(requests["compute_infer"]["ns"], json!(9_000_000));
    let rows: Vec<_> = after["batch_stats"].as_array().unwrap().iter().map(|batch| &batch["batch_size"]).collect();
    assert_eq!(rows, [&json!(1), &json!(3)]);
    assert_eq!(after["batch_stats"][0]["compute_infer"], json!({"count": 2, "ns": 6_000_000}));
    let all = of("/v2/models/stats");
    assert_eq!(all.len(), 20);
    assert!(all.contains(after));
    for path in ["/v2/models/m/stats", "/v2/models/echo_fp32/versions/2/stats"] {
        assert_eq!(served.get(path).error().0, 404, "{path}");
    }
}

#[test]
fn a_model_that_is_unloaded_is_unavailable_until_it_is_loaded() {
    let served = Served::new();
    let post = |path: &str, body: &str| served.ask("POST", path, &[], body.as_bytes());
    let unload = r#"{"parameters": {"unload_dependents": false}}"#;
    assert_eq!(post("/v2/repository/models/echo_fp32/unload", unload).status, 200);
    assert_eq!(served.get("/v2/models/echo_fp32/ready").status, 503);
    assert_eq!(
        served.infer("echo_fp32", INFER).error(),
        (503, "model \"echo_fp32\" is not ready: it was unloaded".into())
    );
    let entry = r#"{"name":"echo_fp32","version":"1","state":"UNAVAILABLE","reason":""}"#;
    assert!(post("/v2/repository/index", "").text().contains(entry));
    assert!(!post("/v2/repository/index", r#"{"ready": true}"#).text().contains("UNAVAILABLE"));
    assert_eq!(post("/v2/repository/models/echo_fp32/load", "").status, 200);
    assert_eq!(served.infer("echo_fp32", INFER).status, 200);
    let (status, error) = post("/v2/repository/models/echo_fp32/load", r#"{"parameters": {"config": "{}"}}"#).error();
    assert!(status == 400 && error.starts_with("the parameter \"config\" is not supported"), "{error}");
}

#[test]
fn an_error_has_its_status_and_says_what_to_do() {
    let served = Served::new();
    let no_model = "unknown model \"m\": POST v2/repository/index lists models";
    let named = |model: &str, body: &str| served.infer(model, body).error();
    assert_eq!(named("m", INFER), (404, no_model.into()));
    assert_eq!(served.get("/v2/models/m").error(), (404, no_model.into()));
    for (path, extension) in [
        ("/v2/logging", "logging"),
        ("/v2/trace/setting", "trace"),
        ("/v2/models/echo_fp32/trace/setting", "trace"),
        ("/v2/models/echo_fp32/versions/1/trace/setting", "trace"),
    ] {
        let expected = (404, format!("the extension {extension} is not served: GET v2 lists those that are"));
        assert_eq!(served.get(path).error(), expected);
        assert_eq!(served.ask("POST", path, &[], b"{}").error(), expected);
    }
    assert_eq!(served.get("/v2/models/m/labels").error(), (404, "nothing is served at GET /v2/models/m/labels".into()));
    assert_eq!(named("echo_fp32", "{").0, 400);
    let (status, error) = named("broken", &INFER.replace(r#""id""#, r#""outputs": [{"name": "y"}], "id""#));
    assert!(status == 500 && error.starts_with("the server answered something else: "), "{error}");
    assert_eq!(served.ask("POST", "/v2/models/%ff/infer", &[], &[]).error().0, 400);

    let method = served.get("/v2/models/echo_fp32/infer");
    assert_eq!((method.error().0, &*method.headers["allow"]), (405, "POST"));
    let full = served.infer("full", INFER);
    assert_eq!((full.error().0, &*full.headers["retry-after"]), (503, "2"));
    let length = served.ask("POST", "/v2/models/echo_fp32/infer", &["Inference-Header-Content-Length: -1"], b"{}");
    assert_eq!(length.error(), (400, "invalid Inference-Header-Content-Length: \"-1\"".into()));
    let long =
        format!(r#"{{"inputs": [{{"name": "{}", "shape": [], "datatype": "INT8", "data": [0]}}]}}"#, "é".repeat(9000));
    assert!(named("echo_fp32", &long).1.len() < 3000);
}

#[test]
fn a_panic_is_an_error_of_one_request() {
    let served = Served::new();
    assert_eq!(served.infer("panics", INFER).error().0, 500);
    assert_eq!(served.infer("echo_fp32", INFER).status, 200);
    assert!(served.is_counted(r#"tenure_requests_total{model="panics",outcome="failed"} 1"#));
}

#[test]
fn a_request_whose_time_passes_is_dropped() {
    let served = Served::new();
    let request = INFER.replace(r#""id": "7""#, r#""parameters": {"timeout": 20000}"#);
    let error = served.infer("slow", &request).error();
    assert_eq!(error, (504, "there was no answer within 20ms, which was the request's timeout".into()));
    assert_eq!(served.fake.waiting.load(Ordering::SeqCst), 0);
}

#[test]
fn a_request_whose_client_goes_away_is_dropped() {
    let served = Served::new();
    let stream = served.send(&request("POST", "/v2/models/slow/infer", &[], INFER.as_bytes()));
    served.wait_for_waiting(1);
    drop(stream);
    served.wait_for_waiting(0);
    let line = r#"tenure_requests_total{model="slow",outcome="cancelled"} 1"#;
    wait_until("its count", || served.is_counted(line));
}

#[test]
fn bodies_may_be_compressed() {
    let served = Served::new();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(INFER.as_bytes()).unwrap();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(INFER.as_bytes()).unwrap();
    let path = "/v2/models/echo_fp32/infer";
    for (encoding, body) in [("gzip", gzip.finish().unwrap()), ("deflate", zlib.finish().unwrap())] {
        let header = format!("Content-Encoding: {encoding}");
        assert_eq!(served.ask("POST", path, &[&header], &body).status, 200, "{encoding}");
        let (status, error) = served.ask("POST", path, &[&header], &body[..body.len() / 2]).error();
        assert!(status == 400 && error.starts_with("the body is not what Content-Encoding says"), "{error}");
    }
    assert_eq!(served.ask("POST", path, &["Content-Encoding: br"], &[]).error().0, 415);
}

#[test]
fn a_body_has_a_limit_packed_and_unpacked() {
    let limits = Limits { body_bytes: 1000, ..Limits::default() };
    let served = Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() });
    let path = "/v2/models/echo_fp32/infer";
    let expected = (413, "the body is longer than 1000 bytes, which is the server's limit".into());
    assert_eq!(served.ask("POST", path, &[], &vec![b' '; 1 << 20]).error(), expected);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(&vec![0; 1 << 19]).unwrap();
    let bomb = gzip.finish().unwrap();
    assert!(bomb.len() < 1000);
    assert_eq!(served.ask("POST", path, &["Content-Encoding: gzip"], &bomb).error(), expected);
    let chunked = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n{}",
        "x".repeat(1024)
    );
    assert_eq!(receive(served.send(chunked.as_bytes())).unwrap().error(), expected);
    let asking = ["Expect: 100-continue", "Content-Length: 1001", "Connection: close"].join("\r\n");
    let asking = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{asking}\r\n\r\n");
    assert_eq!(receive(served.send(asking.as_bytes())).unwrap().error(), expected);
}

#[test]
fn bodies_have_a_limit_together() {
    let limits = Limits { all_body_bytes: 4096, ..Limits::default() };
    let served = Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() });
    let long = format!("{INFER}{}", " ".repeat(2500));
    let slow = served.send(&request("POST", "/v2/models/slow/infer", &[], long.as_bytes()));
    served.wait_for_waiting(1);
    let refused = served.infer("echo_fp32", &long);
    assert_eq!((refused.error().0, &*refused.headers["retry-after"]), (503, "1"));
    assert_eq!(served.infer("echo_fp32", INFER).status, 200);
    served.fake.permits.add_permits(1);
    assert_eq!(receive(slow).unwrap().status, 200);
    assert_eq!(served.infer("echo_fp32", &long).status, 200);
}

#[test]
fn headers_have_a_limit() {
    let served = Served::new();
    let header = format!("X: {}", "x".repeat(40 << 10));
    assert_eq!(served.ask("GET", "/v2", &[&header], &[]).status, 431);
}

#[test]
fn a_client_that_is_slow_to_send_is_not_waited_for() {
    let limits = Limits { receive: Duration::from_millis(50), ..Limits::default() };
    let served = Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() });
    let head = "POST /v2/models/echo_fp32/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{";
    // If even the head comes too late, there is no answer.
    let answer = (0..1000).find_map(|_| receive(served.send(head.as_bytes()))).unwrap();
    assert_eq!(answer.error(), (408, "the body did not come within 50ms".into()));
    assert!(receive(served.send(b"GET /v2 HT")).is_none());
}

#[test]
fn a_body_that_trickles_is_not_waited_for() {
    let limits = Limits { stall: Duration::from_millis(50), ..Limits::default() };
    let served = Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() });
    let head = "POST /v2/models/echo_fp32/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{";
    let answer = receive(served.send(head.as_bytes())).unwrap();
    assert_eq!(answer.error(), (408, "too little of the body came within 50ms".into()));
}

#[test]
fn a_body_that_unpacks_to_more_than_is_free_is_refused() {
    let limits = Limits { all_body_bytes: 1 << 20, ..Limits::default() };
    let served = Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() });
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(&vec![b' '; 2 << 20]).unwrap();
    let bomb = gzip.finish().unwrap();
    let path = "/v2/models/echo_fp32/infer";
    assert_eq!(served.ask("POST", path, &["Content-Encoding: gzip"], &bomb).error().0, 503);
    assert_eq!(served.infer("echo_fp32", INFER).status, 200);
}

#[test]
fn a_client_that_takes_no_answer_is_not_waited_for() {
    let limits = Limits { receive: Duration::from_millis(300), connections: 1, ..Limits::default() };
    let served = Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() });
    let bytes = vec![0; 16 << 20];
    let json = format!(
        r#"{{"inputs": [{{"name": "x", "shape": [1, {size}], "datatype": "INT8", "parameters": {{"binary_data_size": {size}}}}}],
        "parameters": {{"binary_data_output": true}}}}"#,
        size = bytes.len()
    );
    let header = format!("Inference-Header-Content-Length: {}", json.len());
    let request = request("POST", "/v2/models/echo_int8/infer", &[&header], &[json.as_bytes(), &bytes].concat());
    let _deaf = served.send(&request);
    wait_until("the place is free", || served.get("/v2").status == 200);
}

#[test]
fn a_server_that_ends_answers_what_it_has_begun() {
    let mut served = Served::new();
    let slow = served.send(&request("POST", "/v2/models/slow/infer", &[], INFER.as_bytes()));
    let idle = served.send(b"");
    served.wait_for_waiting(1);
    served.stop.take().unwrap().send(()).unwrap();
    wait_until("the listener is closed", || TcpStream::connect(served.address).is_err());
    served.fake.permits.add_permits(1);
    assert_eq!(receive(slow).unwrap().status, 200);
    served.runtime.block_on(served.running).unwrap();
    assert!(receive(idle).is_none());
}

#[test]
fn a_server_that_ends_does_not_wait_for_ever() {
    let limits = Limits { drain: Duration::from_millis(20), ..Limits::default() };
    let mut served = Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() });
    let slow = served.send(&request("POST", "/v2/models/slow/infer", &[], INFER.as_bytes()));
    served.wait_for_waiting(1);
    served.stop.take().unwrap().send(()).unwrap();
    served.runtime.block_on(served.running).unwrap();
    assert_eq!(served.fake.waiting.load(Ordering::SeqCst), 0);
    assert!(receive(slow).is_none());
}

#[test]
fn a_client_without_a_token_is_refused() {
    let served = Served::with(InferenceServerConfig {
        tokens: vec!["first".into(), "second".into()],
        ..InferenceServerConfig::default()
    });
    for header in ["X: y", "Authorization: Bearer", "Authorization: Bearer secon", "Authorization: Basic second"] {
        for (method, path) in
            [("GET", "/events"), ("GET", "/metrics"), ("GET", "/v2"), ("POST", "/v2/models/echo_fp32/infer")]
        {
            let answer = served.ask(method, path, &[header], &[]);
            assert_eq!((answer.error().0, &*answer.headers["www-authenticate"]), (401, "Bearer"), "{header} {path}");
        }
    }
    for header in ["Authorization: Bearer first", "authorization: bearer second"] {
        assert_eq!(served.ask("GET", "/v2", &[header], &[]).status, 200);
    }
    assert_eq!(served.get("/v2/health/ready").status, 200);
}

#[test]
fn the_page_shows_what_was_answered() {
    let served = Served::new();
    assert_eq!(served.infer("echo_fp32", INFER).status, 200);
    let page = served.get("/");
    assert_eq!((page.status, &*page.headers["content-type"]), (200, "text/html; charset=utf-8"));
    assert!(page.text().contains("<dt>Requests answered</dt><dd>1</dd>"));
    assert!(page.text().contains("3.0 ms"));
    assert!(served.is_counted(r#"tenure_requests_total{model="echo_fp32",outcome="answered"} 1"#));
}

/// The events of the live page's feed, as they arrive.
struct Events {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Events {
    /// Opens the feed and receives the answer's head.
    fn open(served: &Served, headers: &[&str]) -> Self {
        let mut events = Self { stream: served.send(&request("GET", "/events", headers, &[])), bytes: Vec::new() };
        let head = events.receive_until(b"\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
        events
    }

    /// Receives up to and including some bytes, and returns them as text.
    fn receive_until(&mut self, end: &[u8]) -> String {
        loop {
            if let Some(at) = self.bytes.windows(end.len()).position(|window| window == end) {
                let rest = self.bytes.split_off(at + end.len());
                return String::from_utf8(std::mem::replace(&mut self.bytes, rest)).unwrap();
            }
            let mut more = [0; 4096];
            let count = self.stream.read(&mut more).unwrap();
            assert!(count > 0, "the stream ended: {:?}", String::from_utf8_lossy(&self.bytes));
            self.bytes.extend_from_slice(&more[..count]);
        }
    }

    fn next(&mut self) -> Value {
        let event = self.receive_until(b"}\n\n");
        serde_json::from_str(event.split_once("data: ").unwrap().1).unwrap()
    }

    /// Waits for the first event that satisfies a condition.
    fn wait_for(&mut self, is_so: impl Fn(&Value) -> bool) -> Value {
        loop {
            let event = self.next();
            if is_so(&event) {
                return event;
            }
        }
    }
}

#[test]
fn pages_that_listen_are_told_what_happens() {
    let served = Served::new();
    let mut pages = [Events::open(&served, &[]), Events::open(&served, &[])];
    let of = |event: &Value, model: &str| -> Value {
        event["models"].as_array().unwrap().iter().find(|entry| entry["name"] == model).unwrap().clone()
    };
    let first = pages[0].next();
    assert_eq!(
        (&first["uptime_s"], &first["tiers"][0]),
        (&json!(83.0), &json!({"name": "host", "used_bytes": 27_000_000, "capacity_bytes": 64_000_000}))
    );
    assert_eq!(
        of(&first, "slow"),
        json!({"name": "slow", "state": "ready", "resident": [{"tier": "host", "bytes": 1_500_000}], "queued": 0,
            "answered": 0, "switches": 0, "median_ms": null, "p99_ms": null, "last_ms": []})
    );
    assert_eq!(served.infer("echo_fp32", INFER).status, 200);
    assert_eq!(served.ask("POST", "/v2/repository/models/echo_fp32/load", &[], &[]).status, 200);
    for page in &mut pages {
        let event = page.wait_for(|event| event["switches"] != json!([]));
        assert_eq!(
            (&event["switches"][0]["model"], &event["switches"][0]["took_ms"]),
            (&json!("echo_fp32"), &json!(4.0))
        );
        let asked = of(&event, "echo_fp32");
        assert_eq!(
            (&asked["answered"], &asked["median_ms"], &asked["last_ms"]),
            (&json!(1), &json!(3.0), &json!([3.0]))
        );
    }
}

#[test]
fn a_page_that_listens_does_not_hold_up_the_end() {
    let mut served = Served::new();
    let mut page = Events::open(&served, &[]);
    page.next();
    served.stop.take().unwrap().send(()).unwrap();
    served.runtime.block_on(served.running).unwrap();
    // The final chunk arrives, so the stream was not cut off.
    page.receive_until(b"\r\n0\r\n\r\n");
}

#[test]
fn a_page_that_is_gone_leaves_its_place() {
    let limits = Limits { connections: 1, ..Limits::default() };
    let served = Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() });
    drop(Events::open(&served, &[]));
    wait_until("the place is free", || served.get("/v2").status == 200);
}

#[test]
fn the_page_asks_for_a_token_and_says_nothing_without_one() {
    let served =
        Served::with(InferenceServerConfig { tokens: vec!["first".into()], ..InferenceServerConfig::default() });
    let locked = served.get("/");
    assert_eq!((locked.status, &*locked.headers["www-authenticate"]), (401, "Bearer"));
    assert!(locked.text().contains("page.js") && !locked.text().contains("echo_fp32"));
    let token = "Authorization: Bearer first";
    assert!(served.ask("GET", "/", &[token], &[]).text().contains("echo_fp32"));
    for (path, media_type) in [("/page.js", "text/javascript; charset=utf-8"), ("/page.css", "text/css; charset=utf-8")]
    {
        let file = served.get(path);
        assert_eq!((file.status, &*file.headers["content-type"]), (200, media_type));
    }
    assert_eq!(Events::open(&served, &[token]).next()["uptime_s"], 83.0);
}

#[test]
fn the_page_runs_and_loads_nothing_but_its_own() {
    let page = Served::new().get("/");
    let policy = &page.headers["content-security-policy"];
    assert!(
        policy.starts_with("default-src 'none'; style-src 'self'; script-src 'self'") && !policy.contains("unsafe")
    );
    assert!(!page.text().contains("://"), "an address of another site");
}

#[test]
fn half_precision_is_asked_for_and_answered_in_json() {
    let served = Served::new();
    for datatype in ["BF16", "FP16"] {
        let ask = |data: &str| {
            let body = format!(
                r#"{{"inputs": [{{"name": "x", "shape": [1, 2], "datatype": "{datatype}", "data": {data}}}]}}"#
            );
            served.ask("POST", &format!("/v2/models/echo_{}/infer", datatype.to_lowercase()), &[], body.as_bytes())
        };
        let answer = ask("[0.1, -3]");
        assert!(answer.text().ends_with(r#""data":[0.1,-3.0]}]}"#), "{}", answer.text());
        assert_eq!(ask("[1e39, 0]").error().0, 400);
    }
}

#[test]
fn a_long_answer_is_compressed_for_clients_that_ask() {
    let served = Served::new();
    let ask = |path, encoding| served.ask("GET", path, &[&format!("Accept-Encoding: {encoding}")], &[]);
    let plain = ask("/v2/models/stats", "gzip;q=0, *");
    assert_eq!((plain.headers.get("content-encoding"), &*plain.headers["vary"]), (None, "accept-encoding"));
    let packed = ask("/v2/models/stats", "deflate, gzip;q=0.5");
    assert_eq!(packed.headers["content-encoding"], "gzip");
    assert_eq!(packed.headers["content-length"], packed.body.len().to_string());
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed.body[..]).read_to_string(&mut text).unwrap();
    assert_eq!(text, plain.text());
    assert!(!ask("/v2", "gzip").headers.contains_key("content-encoding"));
}

#[test]
fn a_health_check_says_whether_models_can_be_asked() {
    let served = Served::new();
    let statuses = || ["/health", "/healthz", "/v2/health/ready"].map(|path| served.ask("GET", path, &[], &[]).status);
    assert_eq!(statuses(), [200; 3]);
    served.fake.is_ready.store(false, Ordering::SeqCst);
    assert_eq!(statuses(), [503; 3]);
}
