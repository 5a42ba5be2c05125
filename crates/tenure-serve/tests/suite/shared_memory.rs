//! Tests of tensors in shared memory, written as Triton's clients do.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tenure_serve::server::InferenceServerConfig;
use tenure_serve::service::Limits;

use crate::loopback::{Answer, Served};

const FOLDER: &str = "/dev/shm";
const REGION: &str = "/v2/systemsharedmemory/region";

/// An entry in the folder of shared memory, removed when this is dropped.
pub(crate) struct Object {
    pub(crate) name: String,
}

impl Object {
    fn named() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        Self { name: format!("tenure-test-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)) }
    }

    pub(crate) fn new(bytes: &[u8]) -> Self {
        let object = Self::named();
        fs::write(object.path(), bytes).unwrap();
        object
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(FOLDER).join(&self.name)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    fn resize(&self, bytes: u64) {
        OpenOptions::new().write(true).open(self.path()).unwrap().set_len(bytes).unwrap();
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let path = self.path();
        let _ = if path.is_dir() && !path.is_symlink() { fs::remove_dir(path) } else { fs::remove_file(path) };
    }
}

impl Served {
    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.ask("POST", path, &[], body.as_bytes())
    }

    pub(crate) fn register(&self, region: &str, key: &str, offset: u64, byte_size: u64) -> Answer {
        let body = format!(r#"{{"key": {key:?}, "offset": {offset}, "byte_size": {byte_size}}}"#);
        self.post(&format!("{REGION}/{region}/register"), &body)
    }

    /// Registers a whole object.
    fn share(&self, region: &str, object: &Object) {
        let registered = self.register(region, &object.name, 0, object.bytes().len() as u64);
        assert_eq!((registered.status, &*registered.text()), (200, ""));
    }

    pub(crate) fn status(&self, path: &str) -> String {
        self.ask("GET", &format!("/v2/systemsharedmemory{path}/status"), &[], &[]).text()
    }

    /// Asks the echo model for `bytes` bytes in a matrix of one row, with these parameters.
    pub(crate) fn echo(&self, bytes: usize, input: &str, output: &str) -> Answer {
        let body = format!(
            r#"{{"inputs": [{{"name": "x", "shape": [1, {bytes}], "datatype": "INT8", "parameters": {input}}}],
                "outputs": [{{"name": "y", "parameters": {output}}}]}}"#
        );
        self.post("/v2/models/echo_int8/infer", &body)
    }
}

pub(crate) fn span(region: &str, offset: u64, byte_size: u64) -> String {
    format!(
        r#"{{"shared_memory_region": {region:?}, "shared_memory_offset": {offset}, "shared_memory_byte_size": {byte_size}}}"#
    )
}

fn served() -> Served {
    Served::with(InferenceServerConfig::default())
}

#[test]
fn inputs_are_read_and_outputs_are_written_where_they_are_said_to_be() {
    let served = served();
    let inputs = Object::new(&[0, 0, 1, 2, 3, 4, 0]);
    let outputs = Object::new(&[9; 8]);
    assert_eq!(served.register("inputs", &format!("/{}", inputs.name), 1, 6).status, 200);
    served.share("outputs", &outputs);
    let answer = served.echo(4, &span("inputs", 1, 4), &span("outputs", 2, 5));
    assert_eq!(
        (answer.status, &*answer.text()),
        (
            200,
            r#"{"model_name":"echo_int8","model_version":"1","outputs":[{"name":"y","datatype":"INT8","shape":[1,4]}]}"#
        )
    );
    assert_eq!(outputs.bytes(), [9, 9, 1, 2, 3, 4, 9, 9]);
    let sent = served.echo(4, &span("inputs", 1, 4), "{}");
    assert!(sent.text().contains(r#""data":[1,2,3,4]"#), "{}", sent.text());
}

#[test]
fn each_request_sees_what_is_in_its_region_at_that_time() {
    let served = served();
    let object = Object::new(&[1, 2]);
    served.share("r", &object);
    assert!(served.echo(2, &span("r", 0, 2), "{}").text().contains("[1,2]"));
    fs::write(object.path(), [3, 4]).unwrap();
    assert!(served.echo(2, &span("r", 0, 2), "{}").text().contains("[3,4]"));
}

#[test]
fn strings_and_half_precision_are_in_shared_memory_as_they_are_sent_as_bytes() {
    let served = served();
    let object = Object::new(b"\x02\0\0\0ab\x3c\0");
    served.share("r", &object);
    let ask = |model: &str, datatype: &str, offset, bytes, output: &str| {
        let span = span("r", offset, bytes);
        let body = format!(
            r#"{{"inputs": [{{"name": "x", "shape": [1, 1], "datatype": "{datatype}", "parameters": {span}}}],
                "outputs": [{{"name": "y", "parameters": {output}}}]}}"#
        );
        served.post(&format!("/v2/models/{model}/infer"), &body)
    };
    assert!(ask("echo_bytes", "BYTES", 0, 6, "{}").text().contains(r#""data":["ab"]"#));
    assert_eq!(ask("echo_fp16", "FP16", 6, 2, &span("r", 0, 2)).status, 200);
    assert_eq!(object.bytes()[..2], *b"\x3c\0");
}

#[test]
fn regions_are_listed_until_they_are_unregistered() {
    let served = served();
    let object = Object::new(&[0; 8]);
    assert_eq!(served.status(""), "[]");
    for (region, offset) in [("second", 4), ("first", 0)] {
        assert_eq!(served.register(region, &object.name, offset, 4).status, 200);
    }
    let said =
        |name: &str, offset| format!(r#"{{"name":"{name}","key":"{}","offset":{offset},"byte_size":4}}"#, object.name);
    assert_eq!(served.status(""), format!("[{},{}]", said("first", 0), said("second", 4)));
    assert_eq!(served.status("/region/second"), format!("[{}]", said("second", 4)));
    assert_eq!(served.post(&format!("{REGION}/first/unregister"), "").status, 200);
    assert_eq!(served.status(""), format!("[{}]", said("second", 4)));
    assert_eq!(served.post("/v2/systemsharedmemory/unregister", "{}").status, 200);
    assert_eq!(served.status(""), "[]");
    assert_eq!(served.post(&format!("{REGION}/first/unregister"), "").status, 200, "clients begin with this");
}

#[test]
fn there_are_no_regions_of_a_device() {
    let served = served();
    assert_eq!(served.ask("GET", "/v2/cudasharedmemory/status", &[], &[]).text(), "[]");
    assert_eq!(served.post("/v2/cudasharedmemory/unregister", "").status, 200);
    let body = r#"{"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 8}"#;
    let (status, error) = served.post("/v2/cudasharedmemory/region/r/register", body).error();
    assert!(status == 400 && error.starts_with("memory of CUDA devices cannot be registered"), "{status} {error}");
    assert_eq!(served.ask("GET", "/v2/cudasharedmemory/region/r/status", &[], &[]).error().0, 404);
    assert_eq!(served.post("/v2/cudasharedmemory/region/r/unregister", "").status, 200);
}

#[test]
fn a_name_is_one_regions() {
    let served = served();
    let object = Object::new(&[0; 8]);
    served.share("r", &object);
    let (status, error) = served.register("r", &object.name, 0, 8).error();
    assert!(status == 409 && error.starts_with("there is a region \"r\" already"), "{error}");
    assert_eq!(served.post(&format!("{REGION}/r/unregister"), "").status, 200);
    served.share("r", &object);
}

#[test]
fn a_key_names_an_object_of_shared_memory_and_no_other_file() {
    let served = served();
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), [7; 8]).unwrap();
    let link = Object::named();
    let folder = Object::named();
    let pipe = Object::named();
    symlink(secret.path(), link.path()).unwrap();
    fs::create_dir(folder.path()).unwrap();
    let path = CString::new(pipe.path().to_str().unwrap()).unwrap();
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let long = "x".repeat(256);
    let no_key = "is not a key of shared memory";
    for (key, expected) in [
        ("", no_key),
        ("/", no_key),
        (".", no_key),
        ("/..", no_key),
        ("//etc", no_key),
        ("../etc/passwd", no_key),
        ("a/b", no_key),
        ("a\\u0000b", no_key),
        (&long, no_key),
        ("tenure-test-that-does-not-exist", "No such file"),
        (&link.name, "cannot be opened"),
        (&folder.name, "cannot be opened"),
        (&pipe.name, "is not shared memory"),
    ] {
        let body = format!(r#"{{"key": "{key}", "offset": 0, "byte_size": 1}}"#);
        let (status, error) = served.post(&format!("{REGION}/r/register"), &body).error();
        assert!(status == 400 && error.contains(expected), "{key}: {status} {error}");
    }
    assert_eq!(served.status(""), "[]");
}

#[test]
fn a_region_is_inside_its_object() {
    let served = served();
    let object = Object::new(&[0; 8]);
    for (offset, byte_size, expected) in [
        (0, 9, "has 8 bytes, and the region would end at 9"),
        (8, 1, "has 8 bytes, and the region would end at 9"),
        (0, 0, "no region begins at 0 and has 0 bytes"),
        (u64::MAX, 1, "no region begins at"),
        (1, u64::MAX, "no region begins at"),
        (1 << 62, 1 << 62, "no region begins at"),
    ] {
        let (status, error) = served.register("r", &object.name, offset, byte_size).error();
        assert!(status == 400 && error.contains(expected), "{offset} {byte_size}: {error}");
    }
    for body in ["", "{}", r#"{"key": "k"}"#, r#"{"key": "k", "byte_size": -1}"#, r#"{"key": 1, "byte_size": 1}"#] {
        let (status, error) = served.post(&format!("{REGION}/r/register"), body).error();
        assert!(status == 400 && error.starts_with("the body is not a region of shared memory"), "{error}");
    }
}

#[test]
fn a_tensor_is_inside_its_region() {
    let served = served();
    let object = Object::new(&[5; 16]);
    assert_eq!(served.register("r", &object.name, 4, 8).status, 200);
    let good = span("r", 0, 8);
    for (input, output, expected) in [
        (span("r", 1, 8), &good, (400, "region \"r\" has 8 bytes, and has no 8 from 1 on")),
        (span("r", 8, u64::MAX), &good, (400, "and has no 18446744073709551615 from 8 on")),
        (span("r", u64::MAX, 8), &good, (400, "from 18446744073709551615 on")),
        (span("r", 0, 7), &good, (400, "takes 8 bytes, and there are 7")),
        (span("q", 0, 8), &good, (404, "unknown region \"q\" of shared memory")),
        (good.clone(), &span("q", 0, 8), (404, "unknown region \"q\" of shared memory")),
        (good.clone(), &span("r", 4, 8), (400, "region \"r\" has 8 bytes, and has no 8 from 4 on")),
        (good.clone(), &span("r", 0, 7), (400, "output \"y\" has 8 bytes, and its shared_memory_byte_size is 7")),
        (r#"{"shared_memory_region": "r"}"#.into(), &good, (400, "needs a parameter shared_memory_byte_size")),
        (good.replace('}', r#", "binary_data_size": 8}"#), &good, (400, "it must have one of data")),
    ] {
        let (status, error) = served.echo(8, &input, output).error();
        assert!(status == expected.0 && error.contains(expected.1), "{input} {output}: {status} {error}");
    }
    assert_eq!(object.bytes(), [5; 16]);
    assert_eq!(served.echo(8, &good, &good).status, 200);
}

#[test]
fn an_object_that_shrinks_is_an_error_of_a_request() {
    let served = served();
    let object = Object::new(&[1; 1 << 16]);
    served.share("r", &object);
    let ask = |output: &str| served.echo(8, &span("r", 0, 8), output);
    let far = span("r", 1 << 15, 8);
    assert_eq!(ask(&far).status, 200);
    object.resize(8);
    let (status, error) = ask(&far).error();
    assert!(status == 400 && error.ends_with("has 8 bytes, and the region would end at 32776"), "{error}");
    assert_eq!(object.bytes().len(), 8, "it is not made longer");
    object.resize(0);
    assert_eq!(ask("{}").error().0, 400);
    object.resize(8);
    assert_eq!(ask("{}").status, 200);
}

#[test]
fn an_object_may_change_its_size_at_any_time() {
    let served = served();
    let object = Object::new(&[1; 1 << 16]);
    served.share("r", &object);
    let whole = span("r", 0, 1 << 16);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                [0, 1 << 16].into_iter().for_each(|bytes| object.resize(bytes));
            }
        });
        let answers: Vec<Answer> = (0..200).map(|_| served.echo(1 << 16, &whole, &whole)).collect();
        is_over.store(true, Ordering::Relaxed);
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            let (status, error) = answer.error();
            assert!(status == 400 && error.starts_with("shared memory"), "{status} {error}");
        }
    });
}

#[test]
fn an_object_whose_name_is_gone_is_still_used() {
    let served = served();
    let object = Object::new(&[1; 8]);
    served.share("r", &object);
    let mut kept = File::open(object.path()).unwrap();
    fs::remove_file(object.path()).unwrap();
    assert_eq!(served.echo(4, &span("r", 0, 4), &span("r", 4, 4)).status, 200);
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut kept, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 8]);
}

#[test]
fn inputs_in_shared_memory_have_the_limits_of_bodies() {
    let limits = Limits { body_bytes: 2000, all_body_bytes: 4096, ..Limits::default() };
    let served = Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() });
    let object = Object::new(&[1; 10_000]);
    served.share("r", &object);
    let (status, error) = served.echo(2001, &span("r", 0, 2001), "{}").error();
    assert!(status == 413 && error.contains("more than 2000 bytes"), "{error}");
    assert_eq!(served.echo(2000, &span("r", 0, 2000), &span("r", 4000, 2000)).status, 200);
    let limits = Limits { body_bytes: 10_000, all_body_bytes: 4096, ..Limits::default() };
    let served = Served::with(InferenceServerConfig { limits, ..InferenceServerConfig::default() });
    served.share("r", &object);
    // It never fits, so it is not to be sent again.
    assert_eq!(served.echo(8000, &span("r", 0, 8000), "{}").error().0, 413);
}

#[test]
fn regions_are_not_without_number() {
    let served = served();
    let object = Object::new(&[1; 8]);
    for number in 0..256 {
        assert_eq!(served.register(&format!("r{number}"), &object.name, 0, 8).status, 200);
    }
    let (status, error) = served.register("one-more", &object.name, 0, 8).error();
    assert!(status == 409 && error.starts_with("there are 256 regions"), "{error}");
}

#[test]
fn a_client_without_a_token_uses_no_shared_memory() {
    let served = Served::with(InferenceServerConfig { tokens: vec!["t".into()], ..InferenceServerConfig::default() });
    let object = Object::new(&[1; 8]);
    assert_eq!(served.register("r", &object.name, 0, 8).error().0, 401);
    assert_eq!(served.ask("GET", "/v2/systemsharedmemory/status", &[], &[]).error().0, 401);
    let token = "Authorization: Bearer t";
    assert_eq!(served.ask("GET", "/v2/systemsharedmemory/status", &[token], &[]).text(), "[]");
}
