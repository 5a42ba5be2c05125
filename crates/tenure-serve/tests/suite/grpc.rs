//! Tests of the protocol over gRPC, with an HTTP/2 client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::{HeaderMap, Request};
use bytes::{Buf, Bytes};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use prost::Message;
use serde_json::{Value, json};
use tenure_serve::grpc::messages::{
    InferParameter, InferRequestedOutput, InferTensor, InferTensorContents, ModelInferRequest, ModelInferResponse,
    ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse, ModelRepositoryParameter,
    ModelStreamInferResponse, ParameterChoice, RepositoryIndexRequest, RepositoryIndexResponse, RepositoryModelRequest,
    RepositoryModelResponse, ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse,
    ServerReadyRequest, ServerReadyResponse,
};
use tenure_serve::protocol::{Datatype, Tensor};
use tenure_serve::server::InferenceServerConfig;
use tenure_serve::service::Limits;
use tokio::task::JoinHandle;

use crate::loopback::{Served, wait_until};
use crate::request_log::{fixed, keep_log, logged};

pub(crate) const OK: u16 = 0;
pub(crate) const INVALID_ARGUMENT: u16 = 3;
const DEADLINE_EXCEEDED: u16 = 4;
pub(crate) const NOT_FOUND: u16 = 5;
pub(crate) const RESOURCE_EXHAUSTED: u16 = 8;
pub(crate) const UNIMPLEMENTED: u16 = 12;
pub(crate) const INTERNAL: u16 = 13;
const UNAVAILABLE: u16 = 14;
const UNAUTHENTICATED: u16 = 16;

/// The reply to a call.
#[derive(Debug)]
pub(crate) struct Reply {
    http: u16,
    code: u16,
    message: String,
    /// The id in the metadata.
    id: String,
    trailers: HeaderMap,
    body: Bytes,
}

impl Reply {
    pub(crate) fn code(&self) -> u16 {
        self.code
    }

    pub(crate) fn error(&self) -> (u16, &str) {
        assert!(self.body.is_empty(), "{self:?}");
        (self.code, &self.message)
    }

    pub(crate) fn messages<M: Message + Default>(&self) -> Vec<M> {
        assert_eq!((self.code, &*self.message), (OK, ""));
        let mut body = self.body.clone();
        let mut messages = Vec::new();
        while !body.is_empty() {
            assert_eq!(body.get_u8(), 0);
            let length = body.get_u32() as usize;
            messages.push(M::decode(body.split_to(length)).unwrap());
        }
        messages
    }
}

/// A client's connection.
pub(crate) struct Client<'a> {
    served: &'a Served,
    requests: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(served: &'a Served) -> Self {
        Self::with(served, h2::client::Builder::new().initial_window_size(1 << 26))
    }

    fn with(served: &'a Served, builder: &h2::client::Builder) -> Self {
        let (requests, connection) = served.runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(served.grpc_address.unwrap()).await.unwrap();
            builder.handshake(stream).await.unwrap()
        });
        Self { served, requests, connection: served.runtime.spawn(connection) }
    }

    /// Begins a call of a method of the inference service, or of the service before its slash.
    pub(crate) fn begin(&self, method: &str, headers: &[(&str, &str)]) -> (ResponseFuture, SendStream<Bytes>) {
        let path =
            if method.contains('/') { method.into() } else { format!("inference.GRPCInferenceService/{method}") };
        let mut request = Request::post(format!("http://here/{path}"));
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut requests = self.served.runtime.block_on(self.requests.clone().ready()).unwrap();
        requests.send_request(request.body(()).unwrap(), false).unwrap()
    }

    /// Sends a call with a framed body, and returns the reply.
    pub(crate) fn send(&self, method: &str, headers: &[(&str, &str)], body: Bytes) -> Reply {
        let (response, mut stream) = self.begin(method, headers);
        // The server may answer before it has read everything.
        let _ = stream.send_data(body, true);
        self.reply(response).unwrap()
    }

    fn reply(&self, response: ResponseFuture) -> Result<Reply, h2::Error> {
        self.served.runtime.block_on(async {
            let (head, mut stream) = response.await?.into_parts();
            let id = head.headers.get("x-request-id").map_or("", |id| id.to_str().unwrap()).into();
            let mut body = Vec::new();
            while let Some(data) = stream.data().await {
                let data = data?;
                stream.flow_control().release_capacity(data.len())?;
                body.extend(data);
            }
            let trailers = stream.trailers().await?.unwrap_or(head.headers);
            let text = |name| trailers.get(name).map_or("", |value| value.to_str().unwrap());
            let code = text("grpc-status").parse().unwrap_or(u16::MAX);
            let message = unescape(text("grpc-message"));
            Ok(Reply { http: head.status.as_u16(), code, message, id, trailers, body: body.into() })
        })
    }

    pub(crate) fn call(&self, method: &str, message: &impl Message) -> Reply {
        self.send(method, &[], framed(message))
    }

    pub(crate) fn ask<M: Message + Default>(&self, method: &str, message: &impl Message) -> M {
        let mut messages = self.call(method, message).messages();
        assert_eq!(messages.len(), 1);
        messages.remove(0)
    }

    pub(crate) fn infer(&self, message: &ModelInferRequest) -> Reply {
        self.call("ModelInfer", message)
    }

    /// Returns whether a model answers.
    pub(crate) fn is_served(&self) -> bool {
        self.infer(&request("echo_fp32")).code == OK
    }
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next().unwrap()).to_digit(16).unwrap() as u8;
        bytes.push(if byte == b'%' { digit() << 4 | digit() } else { byte });
    }
    String::from_utf8(bytes).unwrap()
}

pub(crate) fn framed(message: &impl Message) -> Bytes {
    with_head(0, &message.encode_to_vec())
}

fn with_head(is_packed: u8, message: &[u8]) -> Bytes {
    [&[is_packed][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat().into()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

fn served_with(limits: Limits) -> Served {
    let grpc: SocketAddr = ([127, 0, 0, 1], 0).into();
    Served::with(InferenceServerConfig { grpc: Some(grpc), limits, ..InferenceServerConfig::default() })
}

pub(crate) fn served() -> Served {
    served_with(Limits::default())
}

pub(crate) fn input(datatype: &str, shape: &[i64]) -> InferTensor {
    InferTensor { name: "x".into(), datatype: datatype.into(), shape: shape.into(), ..InferTensor::default() }
}

/// Creates a request with two single-precision numbers as bytes.
pub(crate) fn request(model: &str) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.into(),
        id: "7".into(),
        inputs: vec![input("FP32", &[1, 2])],
        raw_input_contents: vec![Bytes::from_static(&[0, 0, 0xc0, 0x3f, 0, 0, 0, 0x40])],
        ..ModelInferRequest::default()
    }
}

pub(crate) fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { choice: Some(choice) }
}

fn waiting(served: &Served, requests: usize) {
    wait_until("a request or its end", || served.fake.waiting.load(Ordering::SeqCst) == requests);
}

fn is_counted(served: &Served, line: &str) -> bool {
    served.ask("GET", "/metrics", &[], &[]).text().lines().any(|counted| counted == line)
}

/// Returns two elements of each type, as numbers and as bytes.
pub(crate) fn elements(datatype: Datatype) -> (Option<InferTensorContents>, Vec<u8>) {
    let none = InferTensorContents::default;
    let (contents, bytes): (_, Vec<u8>) = match datatype {
        Datatype::Bool => (InferTensorContents { bools: vec![true, false], ..none() }, vec![1, 0]),
        Datatype::Uint8 => (InferTensorContents { uints: vec![255, 1], ..none() }, vec![255, 1]),
        Datatype::Uint16 => (InferTensorContents { uints: vec![65535, 1], ..none() }, vec![255, 255, 1, 0]),
        Datatype::Uint32 => {
            (InferTensorContents { uints: vec![u32::MAX, 1], ..none() }, vec![255, 255, 255, 255, 1, 0, 0, 0])
        }
        Datatype::Uint64 => {
            let bytes = [u64::MAX.to_le_bytes(), 1_u64.to_le_bytes()].concat();
            (InferTensorContents { uint64s: vec![u64::MAX, 1], ..none() }, bytes)
        }
        Datatype::Int8 => (InferTensorContents { ints: vec![-128, 1], ..none() }, vec![128, 1]),
        Datatype::Int16 => (InferTensorContents { ints: vec![-2, 1], ..none() }, vec![254, 255, 1, 0]),
        Datatype::Int32 => (InferTensorContents { ints: vec![i32::MIN, 1], ..none() }, vec![0, 0, 0, 128, 1, 0, 0, 0]),
        Datatype::Int64 => {
            let bytes = [i64::MIN.to_le_bytes(), 1_i64.to_le_bytes()].concat();
            (InferTensorContents { int64s: vec![i64::MIN, 1], ..none() }, bytes)
        }
        Datatype::Fp32 => {
            let bytes = [f32::INFINITY.to_le_bytes(), (-1.5_f32).to_le_bytes()].concat();
            (InferTensorContents { fp32s: vec![f32::INFINITY, -1.5], ..none() }, bytes)
        }
        Datatype::Fp64 => {
            let bytes = [0.1_f64.to_le_bytes(), (-1.5_f64).to_le_bytes()].concat();
            (InferTensorContents { fp64s: vec![0.1, -1.5], ..none() }, bytes)
        }
        Datatype::Bytes => {
            let strings = [&b"\xff"[..], b""];
            let tensor = Tensor::strings("x", &strings).unwrap();
            (InferTensorContents { strings: strings.map(Bytes::from_static).into(), ..none() }, tensor.bytes().to_vec())
        }
        Datatype::Fp16 | Datatype::Bf16 => return (None, vec![1, 2, 3, 4]),
    };
    (Some(contents), bytes)
}

#[test]
fn a_server_and_its_models_say_what_they_are() {
    let served = served();
    let client = Client::new(&served);
    assert_eq!(
        client.ask::<ServerLiveResponse>("ServerLive", &ServerLiveRequest {}),
        ServerLiveResponse { live: true }
    );
    assert_eq!(
        client.ask::<ServerReadyResponse>("ServerReady", &ServerReadyRequest {}),
        ServerReadyResponse { ready: true }
    );
    let server: ServerMetadataResponse = client.ask("ServerMetadata", &ServerMetadataRequest {});
    let extensions = ["model_repository", "model_configuration", "statistics", "system_shared_memory"];
    assert_eq!((&*server.name, &server.extensions[..]), ("tenure", &extensions.map(String::from)[..]));

    let name = String::from("echo_int8");
    let version = String::from("1");
    let model: ModelMetadataResponse =
        client.ask("ModelMetadata", &ModelMetadataRequest { name: name.clone(), version: version.clone() });
    assert_eq!((&*model.name, &model.versions[..], &*model.platform), ("echo_int8", &["1".into()][..], "fake"));
    let x = &model.inputs[0];
    let y = &model.outputs[0];
    assert_eq!((&*x.name, &*x.datatype, &x.shape[..]), ("x", "INT8", &[-1, -1][..]));
    assert_eq!((&*y.name, &*y.datatype, &y.shape[..]), ("y", "INT8", &[-1, -1][..]));

    for (name, version, ready) in [("echo_int8", "1", true), ("echo_int8", "", true), ("m", "", false)] {
        let asked = ModelReadyRequest { name: name.into(), version: version.into() };
        assert_eq!(client.ask::<ModelReadyResponse>("ModelReady", &asked), ModelReadyResponse { ready }, "{name}");
    }
}

#[test]
fn every_type_comes_back_as_it_was_sent() {
    let served = served();
    let client = Client::new(&served);
    for datatype in Datatype::ALL {
        let (contents, bytes) = elements(datatype);
        let raw = ModelInferRequest {
            model_name: format!("echo_{datatype}").to_lowercase(),
            model_version: "1".into(),
            id: "é".into(),
            inputs: vec![input(datatype.name(), &[1, 2])],
            raw_input_contents: vec![bytes.into()],
            ..ModelInferRequest::default()
        };
        let answer: ModelInferResponse = client.ask("ModelInfer", &raw);
        assert_eq!((&answer.model_name, &*answer.model_version, &*answer.id), (&raw.model_name, "1", "é"));
        assert_eq!(answer.raw_output_contents, raw.raw_input_contents, "{datatype}");
        let output = InferTensor { name: "y".into(), ..raw.inputs[0].clone() };
        assert_eq!(answer.outputs, std::slice::from_ref(&output));

        let is_half = contents.is_none();
        let contents = Some(contents.unwrap_or(InferTensorContents { fp32s: vec![1.0; 2], ..Default::default() }));
        let inputs = vec![InferTensor { contents: contents.clone(), ..raw.inputs[0].clone() }];
        let typed = ModelInferRequest { inputs, raw_input_contents: Vec::new(), ..raw };
        let reply = client.infer(&typed);
        if is_half {
            let message = format!("tensor \"x\": contents have no {datatype}: send it as raw_input_contents");
            assert_eq!(reply.error(), (INVALID_ARGUMENT, &*message));
            continue;
        }
        let [answer] = &reply.messages::<ModelInferResponse>()[..] else { panic!("{reply:?}") };
        assert!(answer.raw_output_contents.is_empty());
        assert_eq!(answer.outputs, [InferTensor { contents, ..output }], "{datatype}");
    }
}

#[test]
fn a_model_that_is_unloaded_is_unavailable_until_it_is_loaded() {
    let served = served();
    let client = Client::new(&served);
    let model = RepositoryModelRequest { model_name: "echo_fp32".into(), ..RepositoryModelRequest::default() };
    let with = |name: &str| {
        let parameters = [(name.into(), ModelRepositoryParameter::default())].into();
        RepositoryModelRequest { parameters, ..model.clone() }
    };
    let unloaded: RepositoryModelResponse = client.ask("RepositoryModelUnload", &with("unload_dependents"));
    assert_eq!(unloaded, RepositoryModelResponse {});
    let asked = ModelReadyRequest { name: "echo_fp32".into(), version: String::new() };
    assert_eq!(client.ask::<ModelReadyResponse>("ModelReady", &asked), ModelReadyResponse { ready: false });
    let not_ready = "model \"echo_fp32\" is not ready: it was unloaded";
    assert_eq!(client.infer(&request("echo_fp32")).error(), (UNAVAILABLE, not_ready));
    let states = |ready| {
        let asked = RepositoryIndexRequest { repository_name: String::new(), ready };
        let index: RepositoryIndexResponse = client.ask("RepositoryIndex", &asked);
        index.models.iter().filter(|model| model.state == "UNAVAILABLE" && model.name == "echo_fp32").count()
    };
    assert_eq!((states(false), states(true)), (1, 0));
    let refused = client.call("RepositoryModelLoad", &with("config"));
    let message = "the parameter \"config\" is not supported: a model is loaded as its files say";
    assert_eq!(refused.error(), (INVALID_ARGUMENT, message));
    let loaded: RepositoryModelResponse = client.ask("RepositoryModelLoad", &model);
    assert_eq!(loaded, RepositoryModelResponse {});
    assert!(client.is_served());
    for method in ["RepositoryModelLoad", "RepositoryModelUnload", "ModelMetadata"] {
        // The field number of a model's name is that of a repository's name in other messages.
        let wrong_field =
            RepositoryModelRequest { repository_name: "m".into(), model_name: "m".into(), ..model.clone() };
        assert_eq!(client.call(method, &wrong_field).code, NOT_FOUND, "{method}");
    }
}

#[test]
fn an_error_has_its_code_and_says_what_to_do() {
    let served = served();
    let client = Client::new(&served);
    let error = |message: ModelInferRequest| {
        let reply = client.infer(&message);
        let (code, message) = reply.error();
        assert_eq!(reply.http, 200);
        (code, message.to_owned())
    };
    let no_model = "unknown model \"m\": POST v2/repository/index lists models";
    assert_eq!(error(request("m")), (NOT_FOUND, no_model.into()));
    assert_eq!(error(ModelInferRequest { model_version: "2".into(), ..request("echo_fp32") }).0, NOT_FOUND);
    let (code, message) = error(request("broken").asking_for("y"));
    assert!(code == INTERNAL && message.starts_with("the server answered something else: "), "{message}");
    let full = client.infer(&request("full"));
    assert_eq!(full.error(), (UNAVAILABLE, "too many requests wait for model \"full\": try again in 1.5s"));
    assert_eq!(full.trailers["grpc-retry-pushback-ms"], "1500");

    let contents = |contents| ModelInferRequest {
        inputs: vec![InferTensor { contents: Some(contents), ..input("INT8", &[1, 1]) }],
        raw_input_contents: Vec::new(),
        ..request("echo_int8")
    };
    let parameters = |name: &str, choice| ModelInferRequest {
        parameters: [(name.into(), parameter(choice))].into(),
        ..request("echo_fp32")
    };
    let x = || input("FP32", &[1, 2]);
    let shared = [("shared_memory_region".into(), parameter(ParameterChoice::String("r".into())))];
    let classification = [("classification".into(), parameter(ParameterChoice::Int64(3)))];
    let wanted = InferRequestedOutput { name: "y".into(), parameters: classification.into() };
    for (message, expected) in [
        (request("echo_int8"), "the model takes INT8 of shape [-1, -1] (-1 is any size), not FP32 of [1, 2]"),
        (request("echo_fp32").asking_for("z"), "model \"echo_fp32\" has no output \"z\": it has [\"y\"]"),
        (
            ModelInferRequest { inputs: vec![], raw_input_contents: vec![], ..request("echo_fp32") },
            "needs an input \"x\"",
        ),
        (ModelInferRequest { inputs: vec![x(), x()], ..request("echo_fp32") }, "there are two tensors \"x\""),
        (
            ModelInferRequest { raw_input_contents: vec![Bytes::new(); 2], ..request("echo_fp32") },
            "raw_input_contents has 2 tensors, and there are 1 inputs",
        ),
        (
            ModelInferRequest { raw_input_contents: vec![Bytes::new()], ..request("echo_fp32") },
            "FP32 of shape [1, 2] takes 8 bytes, and there are 0",
        ),
        (
            ModelInferRequest { inputs: vec![input("FP32", &[1, -2])], ..request("echo_fp32") },
            "a tensor cannot have the shape [1, -2]",
        ),
        (ModelInferRequest { inputs: vec![input("FP8", &[1, 8])], ..request("echo_fp32") }, "unknown datatype \"FP8\""),
        (
            ModelInferRequest {
                inputs: vec![InferTensor { parameters: shared.into(), ..x() }],
                ..request("echo_fp32")
            },
            "needs a parameter shared_memory_byte_size",
        ),
        (
            ModelInferRequest { outputs: vec![wanted], ..request("echo_fp32") },
            "classification of an output is not supported",
        ),
        (contents(InferTensorContents { ints: vec![128], ..Default::default() }), "INT8 has no 128"),
        (
            contents(InferTensorContents { ints: vec![1, 2], ..Default::default() }),
            "INT8 of shape [1, 1] takes 1 bytes, and there are 2",
        ),
        (
            contents(InferTensorContents { fp32s: vec![1.0], ..Default::default() }),
            "INT8 has its elements in int_contents, and there are others",
        ),
        (
            ModelInferRequest {
                raw_input_contents: vec![Bytes::new()],
                ..contents(InferTensorContents { ints: vec![1], ..Default::default() })
            },
            "it must have all, and contents none",
        ),
        (parameters("sequence_id", ParameterChoice::Int64(1)), "a sequence of requests is not supported"),
        (parameters("timeout", ParameterChoice::String("1".into())), "\"timeout\" is not a number from 0 up"),
        (parameters("priority", ParameterChoice::Int64(-1)), "\"priority\" is not a number from 0 up"),
    ] {
        let (code, message) = error(message);
        assert!(code == INVALID_ARGUMENT && message.contains(expected), "{code} {message}, not {expected}");
    }
    let name = "é".repeat(9000);
    assert!(
        error(ModelInferRequest { inputs: vec![InferTensor { name, ..x() }], ..request("echo_fp32") }).1.len() < 3000
    );
}

trait AskingFor {
    fn asking_for(self, output: &str) -> Self;
}

impl AskingFor for ModelInferRequest {
    fn asking_for(mut self, output: &str) -> Self {
        self.outputs = vec![InferRequestedOutput { name: output.into(), ..InferRequestedOutput::default() }];
        self
    }
}

#[test]
fn invalid_calls_are_refused() {
    let served = served();
    let client = Client::new(&served);
    for method in ["TraceSetting", "LogSettings", "SystemSharedMemory", "SystemSharedMemoryNothing", "nothing"] {
        let message = format!("nothing is served at /inference.GRPCInferenceService/{method}");
        assert_eq!(client.call(method, &ServerLiveRequest {}).error(), (UNIMPLEMENTED, &*message));
    }
    assert_eq!(client.send("ServerLive", &[("content-type", "application/json")], Bytes::new()).http, 415);
    let error = |headers: &[(&str, &str)], body: Bytes| {
        let reply = client.send("ModelInfer", headers, body);
        let (code, message) = reply.error();
        (code, message.to_owned())
    };
    assert_eq!(error(&[], Bytes::new()), (INVALID_ARGUMENT, "the call has no message".into()));
    let one = framed(&request("echo_fp32"));
    let two = Bytes::from([&one[..], &one].concat());
    assert_eq!(error(&[], two), (INVALID_ARGUMENT, "the call has more than one message".into()));
    for end in [3, 9] {
        let cut = "the body was cut off: it ends within a message";
        assert_eq!(error(&[], one.slice(..end)), (INVALID_ARGUMENT, cut.into()));
    }
    let (code, message) = error(&[], with_head(0, &[0xff; 3]));
    assert!(code == INVALID_ARGUMENT && message.starts_with("not a message of the protocol: "), "{message}");
    assert_eq!(error(&[("grpc-timeout", "soon")], one.clone()).0, INVALID_ARGUMENT);
    assert!(client.is_served());

    let mut other = TcpStream::connect(served.grpc_address.unwrap()).unwrap();
    other.write_all(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    // The connection is closed, with frames at most.
    let _ = other.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP"));
}

#[test]
fn a_panic_is_an_error_of_one_call() {
    let served = served();
    let client = Client::new(&served);
    assert_eq!(client.infer(&request("panics")).code, INTERNAL);
    assert!(client.is_served());
    assert!(is_counted(&served, r#"tenure_requests_total{model="panics",outcome="failed"} 1"#));
}

#[test]
fn a_call_whose_time_passes_is_dropped() {
    let served = served();
    let client = Client::new(&served);
    let message = "there was no answer within 20ms, which was the request's timeout";
    let slow = framed(&request("slow"));
    assert_eq!(client.send("ModelInfer", &[("grpc-timeout", "20m")], slow).error(), (DEADLINE_EXCEEDED, message));
    let parameters = [("timeout".into(), parameter(ParameterChoice::Int64(20_000)))].into();
    let slow = framed(&ModelInferRequest { parameters, ..request("slow") });
    assert_eq!(client.send("ModelInfer", &[("grpc-timeout", "1H")], slow).error(), (DEADLINE_EXCEEDED, message));
    assert_eq!(served.fake.waiting.load(Ordering::SeqCst), 0);
    assert!(is_counted(&served, r#"tenure_requests_total{model="slow",outcome="timed_out"} 2"#));
    // The limit has passed when the call arrives; a call for metadata may still be answered.
    let late = client.send("ServerMetadata", &[("grpc-timeout", "0n")], framed(&ServerMetadataRequest {}));
    assert!([OK, DEADLINE_EXCEEDED].contains(&late.code));
}

#[test]
fn a_call_that_is_cancelled_is_dropped() {
    let served = served();
    let client = Client::new(&served);
    for (calls, method) in ["ModelInfer", "ModelStreamInfer"].into_iter().enumerate() {
        let (_response, mut stream) = client.begin(method, &[]);
        stream.send_data(framed(&request("slow")), false).unwrap();
        if method == "ModelInfer" {
            stream.send_data(Bytes::new(), true).unwrap();
        }
        waiting(&served, 1);
        stream.send_reset(Reason::CANCEL);
        waiting(&served, 0);
        let line = format!(r#"tenure_requests_total{{model="slow",outcome="cancelled"}} {}"#, calls + 1);
        wait_until("its count", || is_counted(&served, &line));
    }
    assert!(client.is_served());
    let (_response, mut stream) = client.begin("ModelInfer", &[]);
    stream.send_data(framed(&request("slow")), true).unwrap();
    waiting(&served, 1);
    client.connection.abort();
    waiting(&served, 0);
}

#[test]
fn messages_may_be_compressed() {
    let served = served();
    let client = Client::new(&served);
    let message = request("echo_fp32").encode_to_vec();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(&message).unwrap();
    for (encoding, packed) in [("gzip", gzip(&message)), ("deflate", zlib.finish().unwrap())] {
        let headers = [("grpc-encoding", encoding)];
        assert_eq!(client.send("ModelInfer", &headers, with_head(1, &packed)).code, OK, "{encoding}");
        assert_eq!(client.send("ModelInfer", &headers, with_head(0, &message)).code, OK, "{encoding}");
        assert_eq!(client.send("ModelInfer", &headers, with_head(1, &packed[..9])).code, INVALID_ARGUMENT);
    }
    assert_eq!(client.send("ModelInfer", &[], with_head(1, &message)).code, INVALID_ARGUMENT);
    let unknown = client.send("ModelInfer", &[("grpc-encoding", "br")], with_head(1, &message));
    assert_eq!(
        (unknown.error().0, unknown.trailers["grpc-accept-encoding"].as_bytes()),
        (UNIMPLEMENTED, &b"identity,gzip,deflate"[..])
    );
}

#[test]
fn a_message_has_a_limit_packed_and_unpacked() {
    let served = served_with(Limits { body_bytes: 1000, ..Limits::default() });
    let client = Client::new(&served);
    let expected = (RESOURCE_EXHAUSTED, "the body is longer than 1000 bytes, which is the server's limit");
    assert_eq!(client.send("ModelInfer", &[], with_head(0, &vec![0; 1 << 20])).error(), expected);
    let bomb = gzip(&vec![0; 1 << 19]);
    assert!(bomb.len() < 1000);
    assert_eq!(client.send("ModelInfer", &[("grpc-encoding", "gzip")], with_head(1, &bomb)).error(), expected);
    let (response, mut stream) = client.begin("ModelInfer", &[]);
    // The announced length is refused before the body arrives.
    stream.send_data(Bytes::from_static(&[0, 0, 0, 4, 0]), false).unwrap();
    assert_eq!(client.reply(response).unwrap().error(), expected);
    assert!(client.is_served());
}

#[test]
fn messages_have_a_limit_together() {
    let served = served_with(Limits { all_body_bytes: 8192, ..Limits::default() });
    let client = Client::new(&served);
    let long = |model: &str| ModelInferRequest { id: "i".repeat(5000), ..request(model) };
    let (response, mut stream) = client.begin("ModelInfer", &[]);
    stream.send_data(framed(&long("slow")), true).unwrap();
    waiting(&served, 1);
    let refused = client.infer(&long("echo_fp32"));
    assert_eq!((refused.error().0, refused.trailers["grpc-retry-pushback-ms"].as_bytes()), (UNAVAILABLE, &b"500"[..]));
    assert!(client.is_served());
    served.fake.permits.add_permits(1);
    assert_eq!(client.reply(response).unwrap().code, OK);
    assert_eq!(client.infer(&long("echo_fp32")).code, OK);
    let many = ModelInferRequest { inputs: vec![InferTensor::default(); 1000], ..request("echo_fp32") };
    // It never fits, so it is not to be sent again.
    let refused = client.infer(&many);
    assert_eq!(refused.error().0, RESOURCE_EXHAUSTED);
    assert!(!refused.trailers.contains_key("grpc-retry-pushback-ms"));
}

#[test]
fn a_client_that_is_slow_to_send_is_not_waited_for() {
    let served = served_with(Limits { receive: Duration::from_millis(300), ..Limits::default() });
    let client = Client::new(&served);
    let (response, mut stream) = client.begin("ModelInfer", &[]);
    stream.send_data(Bytes::from_static(&[0, 0]), false).unwrap();
    let reply = client.reply(response).unwrap();
    assert_eq!(reply.error(), (DEADLINE_EXCEEDED, "the body did not come within 300ms"));
    // A connection without a call is closed too.
    drop(stream);
    let Client { connection, requests, .. } = client;
    served.runtime.block_on(connection).unwrap().unwrap();
    drop(requests);
    let mut silent = TcpStream::connect(served.grpc_address.unwrap()).unwrap();
    let _ = silent.read_to_end(&mut Vec::new());
}

#[test]
fn a_connection_without_a_call_is_closed() {
    let hour = Duration::from_secs(3600);
    let served = served_with(Limits { head: Duration::from_millis(300), receive: hour, ..Limits::default() });
    let Client { connection, requests, .. } = Client::new(&served);
    served.runtime.block_on(connection).unwrap().unwrap();
    drop(requests);
}

#[test]
fn a_client_that_takes_no_answer_is_not_waited_for() {
    let served = served_with(Limits { receive: Duration::from_secs(1), connections: 1, ..Limits::default() });
    let client = Client::with(&served, h2::client::Builder::new().initial_window_size(1000));
    let long = ModelInferRequest {
        inputs: vec![input("INT8", &[1, 1 << 20])],
        raw_input_contents: vec![vec![0; 1 << 20].into()],
        ..request("echo_int8")
    };
    let (response, mut stream) = client.begin("ModelInfer", &[]);
    stream.send_data(framed(&long), true).unwrap();
    let failed = served.runtime.block_on(async {
        let mut body = response.await.unwrap().into_body();
        loop {
            // It receives data and opens no more window.
            if let Err(error) = body.data().await.unwrap() {
                break error;
            }
        }
    });
    assert_eq!(failed.reason(), Some(Reason::CANCEL));
    drop(stream);
    assert!(client.is_served());
}

#[test]
fn more_calls_than_there_are_places_for_wait_and_more_connections_are_answered_health_checks() {
    let served = served_with(Limits { connections: 1, ..Limits::default() });
    let first = Client::new(&served);
    let (response, mut stream) = first.begin("ModelInfer", &[]);
    stream.send_data(framed(&request("slow")), true).unwrap();
    waiting(&served, 1);
    let (second, mut stream) = first.begin("ModelInfer", &[]);
    stream.send_data(framed(&request("echo_fp32")), true).unwrap();
    assert_eq!(Client::new(&served).call("ServerLive", &ServerLiveRequest {}).code, OK);
    assert_eq!(Client::new(&served).infer(&request("echo_fp32")).code, UNAVAILABLE);
    assert!(!is_counted(&served, r#"tenure_requests_total{model="echo_fp32",outcome="answered"} 1"#));
    let late = first.send("ModelInfer", &[("grpc-timeout", "1m")], framed(&request("echo_fp32")));
    let message = "there was no answer within 1ms, which was the request's timeout";
    assert_eq!(late.error(), (DEADLINE_EXCEEDED, message));
    served.fake.permits.add_permits(1);
    assert_eq!([response, second].map(|response| first.reply(response).unwrap().code), [OK; 2]);
    wait_until("a place is free", || Client::new(&served).is_served());
}

#[test]
fn a_connection_in_reserve_ends_after_a_call() {
    let served = served_with(Limits { connections: 1, ..Limits::default() });
    let first = Client::new(&served);
    let (response, mut stream) = first.begin("ModelInfer", &[]);
    stream.send_data(framed(&request("slow")), true).unwrap();
    waiting(&served, 1);
    let other = Client::new(&served);
    assert_eq!(other.infer(&request("echo_fp32")).code, UNAVAILABLE);
    served.runtime.block_on(other.connection).unwrap().unwrap();
    served.fake.permits.add_permits(1);
    assert_eq!(first.reply(response).unwrap().code, OK);
}

#[test]
fn a_server_that_ends_answers_what_it_has_begun() {
    let mut served = served();
    let stop = served.stop.take().unwrap();
    let address = served.grpc_address.unwrap();
    {
        let client = Client::new(&served);
        let _idle = Client::new(&served);
        let silent = TcpStream::connect(address).unwrap();
        let (response, mut stream) = client.begin("ModelInfer", &[]);
        stream.send_data(framed(&request("slow")), true).unwrap();
        waiting(&served, 1);
        stop.send(()).unwrap();
        wait_until("the listener is closed", || TcpStream::connect(address).is_err());
        served.fake.permits.add_permits(1);
        assert_eq!(client.reply(response).unwrap().code, OK);
        drop(silent);
    }
    served.runtime.block_on(served.running).unwrap();
}

#[test]
fn a_server_that_ends_does_not_wait_for_ever() {
    let mut served = served_with(Limits { drain: Duration::from_millis(20), ..Limits::default() });
    let stop = served.stop.take().unwrap();
    let client = Client::new(&served);
    let (response, mut stream) = client.begin("ModelInfer", &[]);
    stream.send_data(framed(&request("slow")), true).unwrap();
    waiting(&served, 1);
    stop.send(()).unwrap();
    waiting(&served, 0);
    assert!(client.reply(response).is_err());
    drop(client);
    served.runtime.block_on(served.running).unwrap();
}

#[test]
fn a_client_without_a_token_is_refused() {
    let grpc = Some(([127, 0, 0, 1], 0).into());
    let served = Served::with(InferenceServerConfig {
        tokens: vec!["first".into(), "second".into()],
        grpc,
        ..InferenceServerConfig::default()
    });
    let client = Client::new(&served);
    for header in ["", "Bearer", "Bearer secon", "Basic second"] {
        for method in ["ModelInfer", "ModelStreamInfer", "ServerMetadata", "RepositoryIndex"] {
            let refused = client.send(method, &[("authorization", header)], framed(&ServerMetadataRequest {}));
            assert_eq!(refused.error().0, UNAUTHENTICATED, "{header} {method}");
        }
    }
    for header in ["Bearer first", "bearer second"] {
        let headers = [("authorization", header)];
        assert_eq!(client.send("ServerMetadata", &headers, framed(&ServerMetadataRequest {})).code, OK);
    }
    assert_eq!(client.call("ServerReady", &ServerReadyRequest {}).code, OK);
    assert_eq!(client.call("ServerLive", &ServerLiveRequest {}).code, OK);
}

#[test]
fn a_stream_answers_one_message_after_the_other() {
    let served = served();
    let client = Client::new(&served);
    let asked = [request("echo_fp32"), request("m"), request("panics"), request("echo_fp32")];
    let body: Vec<u8> = asked.iter().flat_map(framed).collect();
    let answers: Vec<ModelStreamInferResponse> = client.send("ModelStreamInfer", &[], body.into()).messages();
    assert_eq!(answers.len(), 4);
    for (answer, asked) in answers.iter().zip(&asked) {
        let outputs = answer.infer_response.as_ref().map(|answer| &answer.raw_output_contents);
        let expected = (asked.model_name == "echo_fp32").then_some(&asked.raw_input_contents);
        assert_eq!((outputs, answer.error_message.is_empty()), (expected, expected.is_some()));
    }
    assert!(answers[1].error_message.starts_with("unknown model \"m\""));
    assert!(client.send("ModelStreamInfer", &[], Bytes::new()).messages::<ModelStreamInferResponse>().is_empty());
}

#[test]
fn a_call_has_an_id_under_which_it_is_logged() {
    keep_log();
    let served = served();
    let client = Client::new(&served);
    let metadata = [("x-request-id", "grpc-1")];
    let asked = framed(&request("echo_fp32"));
    let reply = client.send("ModelInfer", &metadata, asked.clone());
    assert_eq!((reply.code, &*reply.id), (OK, "grpc-1"));
    assert_eq!(
        fixed(&logged("grpc-1", 1)[0]),
        json!({"id": "grpc-1", "protocol": "grpc", "method": "POST", "path": "/inference.GRPCInferenceService/ModelInfer",
            "model": "echo_fp32", "status": 0, "outcome": "answered", "bytes_in": asked.len(),
            "bytes_out": reply.body.len()})
    );
    let refused = client.send("ModelInfer", &[("x-request-id", "grpc-2")], framed(&request("m")));
    assert_eq!((refused.code, &*refused.id), (NOT_FOUND, "grpc-2"));
    assert_eq!(logged("grpc-2", 1)[0]["status"], NOT_FOUND);
    assert_eq!(client.call("ServerMetadata", &ServerMetadataRequest {}).id.len(), 32);

    let messages = ["echo_fp32", "m"].map(|model| framed(&request(model)));
    let stream = client.send("ModelStreamInfer", &[("x-request-id", "grpc-3")], messages.concat().into());
    assert_eq!((stream.code, &*stream.id), (OK, "grpc-3"));
    let events = logged("grpc-3", 3);
    assert_eq!(
        events.iter().map(|event: &Value| (event.get("model").cloned(), event["status"].clone())).collect::<Vec<_>>(),
        [(Some("echo_fp32".into()), OK.into()), (None, NOT_FOUND.into()), (None, OK.into())]
    );
}
