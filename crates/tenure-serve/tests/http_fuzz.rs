//! A fuzz test with ten thousand nearly valid requests; `TENURE_TEST_FACTOR=5` sends five times as many. It is a
//! separate program, since it measures the memory that the server keeps, and other tests would disturb that.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "suite/fake/mod.rs"]
mod fake;
#[allow(dead_code, reason = "others use more of it")]
#[path = "suite/loopback/mod.rs"]
mod loopback;

use std::io::Write;
use std::net::Shutdown;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{env, fs, thread};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use loopback::{Answer, Served, receive_all, wait_until};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tenure_serve::server::InferenceServerConfig;
use tenure_serve::service::Limits;

const CLIENTS: u64 = 8;

/// The allowed outcomes of a request, the strictest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Expected {
    /// Any answer or error; or the connection is closed, since the end of the request cannot be determined.
    Anything,
    /// The right answer, or an error that says why there is none.
    Answer,
    /// The right answer.
    Right,
}

/// A valid request that is mutated step by step.
struct Case {
    method: &'static str,
    path: String,
    version: &'static str,
    headers: Vec<String>,
    /// The body before compression and chunking.
    body: Vec<u8>,
    /// The value of the header with the JSON's length, if it is sent.
    json_bytes: Option<String>,
    encoding: Option<&'static str>,
    is_chunked: bool,
    last_chunk: &'static str,
    expected: Expected,
}

fn pick<T: Copy>(random: &mut SmallRng, among: &[T]) -> T {
    *among.choose(random).unwrap()
}

impl Case {
    fn valid(random: &mut SmallRng) -> Self {
        let mut case = Self {
            method: "POST",
            path: String::new(),
            version: "HTTP/1.1",
            headers: vec!["Host: localhost".into()],
            body: Vec::new(),
            json_bytes: None,
            encoding: None,
            is_chunked: random.random_bool(0.2),
            last_chunk: "0\r\n\r\n",
            expected: Expected::Right,
        };
        match random.random_range(0..10) {
            0 => {
                let paths = [
                    "/",
                    "/metrics",
                    "/v1/models",
                    "/v2",
                    "/v2/health/live",
                    "/v2/health/ready",
                    "/v2/models/slow",
                    "/v2/models/slow/config",
                    "/v2/models/stats",
                    "/v2/systemsharedmemory/status",
                ];
                case.path = pick(random, &paths).into();
            }
            1 => {
                case.path =
                    format!("/v2/models/echo_fp64{}", pick(random, &["", "/ready", "/stats", "/versions/1/ready"]))
            }
            2 => {
                case.path = "/v2/repository/index".into();
                case.body = pick(random, &["", "{}", r#"{"ready": true}"#]).into();
            }
            3 => {
                // No other request needs this model.
                case.path = format!("/v2/repository/models/echo_uint16/{}", pick(random, &["load", "unload"]));
                case.body = pick(random, &["", r#"{"parameters": {}}"#]).into();
            }
            _ => case.ask(random),
        }
        if case.path.split('/').any(|part| part == "repository" || part == "infer") {
            case.encoding = random.random_bool(0.1).then(|| pick(random, &["gzip", "deflate", "identity"]));
        } else {
            (case.method, case.is_chunked) = ("GET", false);
        }
        case
    }

    /// Asks a model for its input.
    fn ask(&mut self, random: &mut SmallRng) {
        let shape = [random.random_range(0..3), random.random_range(0..4)];
        let size = shape[0] * shape[1];
        let (model, datatype, element_bytes, element) = match random.random_range(0..8) {
            0 => ("echo_bool", "BOOL", 1, json!(true)),
            1 => ("echo_int64", "INT64", 8, json!(random.random::<i64>())),
            2 => ("echo_uint8", "UINT8", 1, json!(random.random::<u8>())),
            3 => ("echo_bytes", "BYTES", 4, json!("é\u{1}\"")),
            4 => (pick(random, &["full", "panics", "broken"]), "FP32", 4, json!(0.5)),
            _ => ("echo_fp32", "FP32", 4, json!(random.random::<f32>())),
        };
        self.path = format!("/v2/models/{model}{}/infer", pick(random, &["", "/versions/1"]));
        if !model.starts_with("echo_") {
            self.expected = Expected::Answer;
        }
        let mut input = json!({ "name": "x", "shape": shape, "datatype": datatype });
        let mut binary = Vec::new();
        if random.random_bool(0.5) {
            // For `BYTES`, zeros are strings of length zero.
            binary = vec![u8::from(datatype == "BOOL"); size * element_bytes];
            input["parameters"] = json!({ "binary_data_size": binary.len() });
        } else {
            input["data"] = vec![element; size].into();
        }
        let parameters = json!({ "binary_data_output": random.random::<bool>(), "priority": 1, "timeout": 9_000_000 });
        let asked = json!({ "id": "7".repeat(random.random_range(0..2000)), "inputs": [input], "outputs": [{ "name": "y" }], "parameters": parameters });
        self.body = asked.to_string().into();
        self.json_bytes = Some(self.body.len().to_string());
        self.body.extend(binary);
    }

    fn weaken(&mut self, to: Expected) {
        self.expected = self.expected.min(to);
    }

    fn mutate(&mut self, random: &mut SmallRng) {
        match random.random_range(0..8) {
            0 => {
                self.weaken(Expected::Answer);
                self.method = pick(random, &["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "get", "ODD"]);
            }
            1 => self.mutate_path(random),
            2 => self.mutate_headers(random),
            3 => {
                self.weaken(Expected::Answer);
                let lengths =
                    ["0", "1", "-1", "+2", "", "1e2", "0x10", "99", "18446744073709551615", "99999999999999999999"];
                self.json_bytes = pick(random, &lengths.map(Some)).map(String::from);
            }
            4 => {
                self.weaken(Expected::Answer);
                self.encoding = Some(pick(random, &["gzip", "deflate", "br", "gzip, gzip", "GZIP", "é"]));
            }
            5 if random.random() => {
                // There are too many or too few bytes after the JSON.
                self.weaken(Expected::Answer);
                let bytes = self.body.len() + random.random_range(0..10);
                self.body.resize(bytes.saturating_sub(5), 0);
            }
            5 => {
                self.weaken(Expected::Answer);
                mutate_bytes(&mut self.body, random);
            }
            _ => self.mutate_json(random),
        }
    }

    fn mutate_path(&mut self, random: &mut SmallRng) {
        self.weaken(Expected::Answer);
        let models = ["m", "slow", "panics", "broken", "%65cho_int8", "%ff", "%00", "%2f", "..", "", "a%", "b&'"];
        let mut parts: Vec<String> = self.path.split('/').map(String::from).collect();
        let at = random.random_range(0..parts.len());
        match random.random_range(0..5) {
            0 => parts[at] = pick(random, &models).into(),
            1 => parts.insert(at, pick(random, &models).into()),
            2 => drop(parts.remove(at)),
            3 => parts[at] = "x".repeat(random.random_range(1..3000)),
            _ => parts[at].push_str(pick(random, &["?x=y", "?", "#z", "/versions/2"])),
        }
        self.path = parts.join("/");
        if !self.path.starts_with('/') {
            self.weaken(Expected::Anything);
            self.path.insert_str(0, pick(random, &["", "*", "http://here", "://", "\u{7f}"]));
        }
    }

    fn mutate_headers(&mut self, random: &mut SmallRng) {
        let understood =
            ["Sec-Fetch-Site: cross-site", "Authorization: Bearer x", "Accept: image/png", "Content-Type: x/y"];
        let doubtful = [
            "Content-Length: 1",
            "Content-Length: 99999999999999999999",
            "Content-Length: -1",
            "Content-Length: 5, 5",
            "Content-Length: 70000000",
            "Transfer-Encoding: chunked",
            "Transfer-Encoding: gzip",
            "Transfer-Encoding: chunked, chunked",
            "Transfer-Encoding: identity",
            "Expect: 100-continue",
            "Upgrade: h2c\r\nConnection: upgrade",
            "Connection: keep-alive",
            "X: \0",
            " folded",
            "no colon",
            ": no name",
            "X : y",
            "Content-Encoding: gzip",
            "Host: ",
            "\r\n",
        ];
        let last_chunks = [
            "",
            "0\r\n",
            "0;x=y\r\nX: y\r\n\r\n",
            "-1\r\n\r\n",
            "g\r\n\r\n",
            "5\r\nab\r\n0\r\n\r\n",
            "1\r\nab\r\n0\r\n\r\n",
            "ffffffff\r\n",
            "fffffffffffffffff\r\n",
            "4000001\r\n",
            "\n0\n\n",
        ];
        match random.random_range(0..5) {
            0 => {
                self.weaken(Expected::Answer);
                self.headers.push(pick(random, &understood).into());
            }
            1 if self.is_chunked => {
                self.weaken(Expected::Anything);
                self.last_chunk = pick(random, &last_chunks);
            }
            1 => {
                self.weaken(Expected::Anything);
                self.version = pick(random, &["HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1 ", "", "\n"]);
            }
            2 => {
                // There are more headers, or longer ones, than allowed.
                self.weaken(Expected::Anything);
                let (count, length) = pick(random, &[(200, 1), (1, 40_000)]);
                self.headers.extend((0..count).map(|number| format!("X-{number}: {}", "y".repeat(length))));
            }
            _ => {
                self.weaken(Expected::Anything);
                let at = random.random_range(0..=self.headers.len());
                self.headers.insert(at, pick(random, &doubtful).into());
            }
        }
    }

    /// Replaces a random part of the JSON.
    fn mutate_json(&mut self, random: &mut SmallRng) {
        const PLACE: &str = "\u{1}";
        let json_bytes = self.json_bytes.as_ref().and_then(|bytes| bytes.parse().ok()).unwrap_or(self.body.len());
        let Some((json, binary)) = self.body.split_at_checked(json_bytes) else { return };
        let Ok(mut root) = serde_json::from_slice::<Value>(json) else { return };
        *part(&mut root, random) = PLACE.into();
        let deep = "[".repeat(random.random_range(1..2000));
        let long = format!("\"{}\"", "é".repeat(5000));
        let instead = [
            "null",
            "true",
            "0",
            "-1",
            "-0.0",
            "1.5",
            "1e999",
            "1e39",
            "9223372036854775808",
            "18446744073709551616",
            "\"\"",
            "\"\\ud800\"",
            "\"FP32\"",
            "\"FP16\"",
            "\"fp32\"",
            "{}",
            "[]",
            "[0]",
            "[1, 2]",
            "[-1, 2]",
            "[4294967296, 4294967296]",
            "[0, 9223372036854775807]",
            "[9223372036854775807, 0]",
            "[[1.5, 2], [3]]",
            "0, \"id\": 0",
            "0, \"inputs\": []",
            "{\"binary_data_size\": 18446744073709551615}",
            "{\"binary_data_size\": -1}",
            "{\"shared_memory_region\": \"a\"}",
            "{\"shared_memory_region\": \"a\", \"shared_memory_byte_size\": 18446744073709551615}",
            "{\"sequence_id\": 1}",
            "{\"timeout\": 1}",
            &deep,
            &long,
        ];
        let place = serde_json::to_string(PLACE).unwrap();
        let mut body = root.to_string().replacen(&place, pick(random, &instead), 1).into_bytes();
        // Otherwise the stated length no longer matches the JSON.
        if self.json_bytes.is_some() && random.random_bool(0.9) {
            self.json_bytes = Some(body.len().to_string());
        }
        body.extend(binary);
        self.body = body;
        self.weaken(Expected::Answer);
    }

    /// Returns the bytes of the request. If it `closes` the connection, no other request may follow.
    fn bytes(&self, closes: bool) -> Vec<u8> {
        let body = match self.encoding {
            Some("gzip") => {
                let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
                gzip.write_all(&self.body).unwrap();
                gzip.finish().unwrap()
            }
            Some("deflate") => {
                let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
                zlib.write_all(&self.body).unwrap();
                zlib.finish().unwrap()
            }
            _ => self.body.clone(),
        };
        let mut head = format!("{} {} {}\r\n", self.method, self.path, self.version);
        let named =
            [("Content-Encoding", self.encoding), ("Inference-Header-Content-Length", self.json_bytes.as_deref())];
        let named = named.into_iter().filter_map(|(name, value)| value.map(|value| format!("{name}: {value}")));
        let closing = closes.then(|| "Connection: close".into());
        let framing = if self.is_chunked {
            "Transfer-Encoding: chunked".into()
        } else {
            format!("Content-Length: {}", body.len())
        };
        for header in self.headers.iter().cloned().chain(named).chain(closing).chain([framing]) {
            head.push_str(&header);
            head.push_str("\r\n");
        }
        let mut bytes = format!("{head}\r\n").into_bytes();
        if self.is_chunked {
            for chunk in body.chunks(1 + body.len() / 3) {
                bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
                bytes.extend(chunk);
                bytes.extend(b"\r\n");
            }
            bytes.extend(self.last_chunk.bytes());
        } else {
            bytes.extend(body);
        }
        bytes
    }

    /// Asserts that an answer is one that the request may have.
    fn check(&self, answer: &Answer) {
        let Answer { status, headers, body } = answer;
        let path = self.path.split(['?', '#']).next().unwrap();
        let has_body = self.method != "HEAD" && !path.ends_with("/unregister");
        match *status {
            200 if self.expected == Expected::Anything || !has_body => {}
            200 if path.ends_with("/infer") => self.check_echo(answer),
            200 => assert!(!body.is_empty()),
            400 | 414 | 431 if self.expected == Expected::Anything && body.is_empty() => {}
            400..=599 if self.method == "HEAD" => assert!(body.is_empty() || self.expected == Expected::Anything),
            400..=599 => {
                assert_eq!(headers["content-length"], body.len().to_string());
                assert!(!answer.error().1.is_empty());
            }
            _ => panic!("a status that nothing has"),
        }
        assert!(*status == 200 || self.expected != Expected::Right, "{status}: {}", answer.text());
        let may_fail = self.path.contains("/panics") || self.path.contains("/broken");
        assert!(*status != 500 || may_fail, "{}", answer.text());
    }

    /// Asserts that the answer's tensor is the request's.
    fn check_echo(&self, answer: &Answer) {
        let parts = |body: &[u8], json_bytes: Option<&str>| {
            let (json, binary) = body.split_at(json_bytes.map_or(body.len(), |bytes| bytes.parse().unwrap()));
            (serde_json::from_slice::<Value>(json).unwrap(), binary.to_vec())
        };
        let (asked, asked_bytes) = parts(&self.body, self.json_bytes.as_deref());
        let json_bytes = answer.headers.get("inference-header-content-length");
        let (answered, answered_bytes) = parts(&answer.body, json_bytes.map(String::as_str));
        let input = &asked["inputs"][0];
        let output = &answered["outputs"][0];
        assert_eq!(asked_bytes.len() as u64, input["parameters"]["binary_data_size"].as_u64().unwrap_or(0));
        assert_eq!(answered["id"], asked["id"]);
        assert_eq!(output["name"], "y");
        assert_eq!((&output["shape"], &output["datatype"]), (&input["shape"], &input["datatype"]));
        match (&input["data"], &output["data"]) {
            (Value::Null, Value::Null) => assert_eq!(asked_bytes, answered_bytes),
            (Value::Null, data) | (data, Value::Null) => assert!(data.is_array()),
            (asked, answered) => {
                let asked = flat(asked);
                let answered = flat(answered);
                let rounded = |value: &Value| value.as_f64().map(|value| value as f32);
                assert_eq!(asked.len(), answered.len());
                assert!(
                    asked.iter().zip(&answered).all(|(asked, answered)| {
                        asked == answered || (output["datatype"] == "FP32" && rounded(asked) == rounded(answered))
                    }),
                    "{asked:?} {answered:?}"
                );
            }
        }
    }
}

/// Picks a random value inside a value: mostly a leaf, sometimes an array or object.
fn part<'a>(value: &'a mut Value, random: &mut SmallRng) -> &'a mut Value {
    let count = value.as_array().map_or(0, Vec::len).max(value.as_object().map_or(0, |values| values.len()));
    if count == 0 || random.random_bool(0.2) {
        return value;
    }
    let chosen = random.random_range(0..count);
    match value {
        Value::Array(values) => part(&mut values[chosen], random),
        Value::Object(values) => part(values.values_mut().nth(chosen).unwrap(), random),
        leaf => leaf,
    }
}

/// Returns the elements of nested arrays.
fn flat(data: &Value) -> Vec<&Value> {
    data.as_array().map_or_else(|| vec![data], |values| values.iter().flat_map(flat).collect())
}

fn mutate_bytes(bytes: &mut Vec<u8>, random: &mut SmallRng) {
    let at = random.random_range(0..=bytes.len());
    match random.random_range(0..4) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, pick(random, b"[]{}\",:\\0-9e; \r\n\0\xff")),
        2 => drop(bytes.drain(at..(at + random.random_range(0..20)).min(bytes.len()))),
        _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.random()),
    }
}

/// Tries one connection.
fn try_one(served: &Served, number: u64) {
    let mut random = SmallRng::seed_from_u64(number);
    let mut case = Case::valid(&mut random);
    for _ in 0..random.random_range(0..4) {
        case.mutate(&mut random);
    }
    let mut sent = case.bytes(true);
    let mut second = None;
    match random.random_range(0..6) {
        0 => {
            case.weaken(Expected::Anything);
            mutate_bytes(&mut sent, &mut random);
        }
        // Bytes after a request do not change its answer. HEAD is skipped: its answer states a length but has no bytes.
        1 if case.method != "HEAD" => {
            sent = case.bytes(false);
            match random.random_range(0..3) {
                0 => sent.extend(pick(&mut random, &[&b"]}\r\n\r\n"[..], b"\0\0\0\0\r\n\r\n", b"\r\nGET\r\n\r\n"])),
                _ => {
                    let next = Case::valid(&mut random);
                    sent.extend(next.bytes(true));
                    second = Some(next);
                }
            }
        }
        _ => {}
    }
    let answers = catch_unwind(AssertUnwindSafe(|| {
        let stream = served.send(&sent);
        if case.expected == Expected::Anything {
            match random.random_range(0..40) {
                0 => {}
                1..10 => return,
                _ => stream.shutdown(Shutdown::Write).unwrap_or(()),
            }
        }
        let received = receive_all(stream);
        let mut answers = Vec::new();
        let mut rest = &received[..];
        while let Some((answer, end)) = Answer::parse(rest) {
            rest = &rest[end..];
            answers.extend((answer.status >= 200).then_some(answer));
            if case.method == "HEAD" {
                break;
            }
        }
        let Some((first, others)) = answers.split_first() else {
            return assert_eq!(case.expected, Expected::Anything, "no answer");
        };
        case.check(first);
        if case.expected > Expected::Anything {
            // An unwanted body may close the connection.
            assert!(case.expected < Expected::Right || second.is_none() || others.len() == 1);
            second.iter().zip(others).for_each(|(second, answer)| second.check(answer));
        }
    }));
    if let Err(panic) = answers {
        eprintln!("case {number}, {:?} expected: {:?}", case.expected, String::from_utf8_lossy(&sent));
        resume_unwind(panic);
    }
}

fn try_all(served: &Served, numbers: Range<u64>) {
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let own = numbers.clone().skip(client as usize).step_by(CLIENTS as usize);
            scope.spawn(|| own.for_each(|number| try_one(served, number)));
        }
    });
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_kib() -> i64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    resident.trim_end_matches("kB").trim().parse().unwrap()
}

#[test]
fn whatever_is_sent_the_server_answers_the_next() {
    let cases = 10_000 * env::var("TENURE_TEST_FACTOR").map_or(1, |factor| factor.parse::<u64>().unwrap());
    let limits = Limits { receive: Duration::from_secs(1), ..Limits::default() };
    let mut served = Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() });
    served.fake.permits.add_permits(1 << 30);
    let before = descriptors();
    let request = r#"{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2]}]}"#;
    let infer = || served.ask("POST", "/v2/models/echo_fp32/infer", &[], request.as_bytes()).text();
    let answer = infer();
    assert!(answer.ends_with(r#""shape":[1,2],"data":[1.5,2.0]}]}"#), "{answer}");

    // Memory that stays allocated, such as the counts of each model, is there after the first quarter.
    try_all(&served, 0..cases / 4);
    let early_kib = resident_kib();
    try_all(&served, cases / 4..cases);
    assert_eq!(infer(), answer);
    wait_until("the end of all connections", || descriptors() <= before);
    assert_eq!(served.fake.waiting.load(Ordering::SeqCst), 0);
    let grown_kib = resident_kib() - early_kib;
    assert!(grown_kib < 2 << 10, "{grown_kib} KiB more");

    served.stop.take().unwrap().send(()).unwrap();
    served.runtime.block_on(served.running).unwrap();
}
