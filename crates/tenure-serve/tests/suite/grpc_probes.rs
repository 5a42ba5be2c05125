//! Tests of gRPC's health checks and reflection.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use bytes::{Buf, Bytes};
use h2::RecvStream;
use prost::Message;
use tenure_serve::grpc::messages::{
    FileDescriptorResponse, HealthCheckRequest, HealthCheckResponse, ListServiceResponse, ReflectionAnswer,
    ReflectionQuery, ServerReflectionRequest, ServerReflectionResponse, ServingStatus,
};
use tenure_serve::server::InferenceServerConfig;

use crate::grpc::{Client, NOT_FOUND, OK, UNIMPLEMENTED, framed, served};
use crate::loopback::Served;

const CHECK: &str = "grpc.health.v1.Health/Check";
const WATCH: &str = "grpc.health.v1.Health/Watch";
const VERSIONS: [&str; 2] = ["v1", "v1alpha"];

fn service(name: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: name.into() }
}

fn guarded() -> Served {
    let grpc = Some(([127, 0, 0, 1], 0).into());
    Served::with(InferenceServerConfig { grpc, tokens: vec!["secret".into()], ..InferenceServerConfig::default() })
}

#[test]
fn a_check_tells_whether_the_server_or_a_model_is_ready() {
    let served = guarded();
    let client = Client::new(&served);
    let check = |name: &str| client.ask::<HealthCheckResponse>(CHECK, &service(name)).status();
    let names = ["", "inference.GRPCInferenceService", "grpc.health.v1.Health", "echo_fp32"];
    assert_eq!(names.map(check), [ServingStatus::Serving; 4]);
    assert_eq!(client.call(CHECK, &service("none")).code(), NOT_FOUND);
    served.fake.is_ready.store(false, Ordering::SeqCst);
    assert_eq!(names.map(check), [ServingStatus::NotServing; 4]);
    assert_eq!(client.call(CHECK, &service("none")).code(), NOT_FOUND);
}

/// Waits for the next status.
fn next(served: &Served, stream: &mut RecvStream) -> ServingStatus {
    let mut data = served.runtime.block_on(stream.data()).unwrap().unwrap();
    data.advance(5);
    HealthCheckResponse::decode(data).unwrap().status()
}

#[test]
fn a_watch_tells_each_change() {
    let served = guarded();
    let client = Client::new(&served);
    let watch = |name: &str| {
        let (response, mut sent) = client.begin(WATCH, &[]);
        sent.send_data(framed(&service(name)), true).unwrap();
        served.runtime.block_on(response).unwrap().into_body()
    };
    let [mut server, mut model, mut none] = ["", "echo_fp32", "none"].map(watch);
    assert_eq!(next(&served, &mut server), ServingStatus::Serving);
    assert_eq!(next(&served, &mut model), ServingStatus::Serving);
    assert_eq!(next(&served, &mut none), ServingStatus::ServiceUnknown);
    served.fake.is_ready.store(false, Ordering::SeqCst);
    assert_eq!(next(&served, &mut server), ServingStatus::NotServing);
    assert_eq!(next(&served, &mut model), ServingStatus::NotServing);
}

/// Returns the answers to some queries in one call.
fn reflect(client: &Client<'_>, version: &str, queries: &[ReflectionQuery]) -> Vec<ReflectionAnswer> {
    let framed: Vec<Bytes> = queries
        .iter()
        .map(|query| framed(&ServerReflectionRequest { host: String::new(), query: Some(query.clone()) }))
        .collect();
    let method = format!("grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
    let answers: Vec<ServerReflectionResponse> = client.send(&method, &[], framed.concat().into()).messages();
    answers.into_iter().map(|answer| answer.answer.unwrap()).collect()
}

#[test]
fn reflection_has_the_services_and_their_files() {
    let served = served();
    let client = Client::new(&served);
    for version in VERSIONS {
        let answers = reflect(&client, version, &[ReflectionQuery::ListServices(String::new())]);
        let [ReflectionAnswer::Services(ListServiceResponse { services })] = &answers[..] else {
            panic!("{answers:?}")
        };
        let names: BTreeSet<&str> = services.iter().map(|service| &*service.name).collect();
        let expected = [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
            "inference.GRPCInferenceService",
        ];
        assert_eq!(names, BTreeSet::from(expected));
        let symbols =
            ["inference.GRPCInferenceService", "inference.ModelInferRequest.InferInputTensor", "inference.DataType"];
        let mut queries: Vec<_> = symbols.map(|name| ReflectionQuery::FileContainingSymbol(name.into())).into();
        queries.push(ReflectionQuery::FileByFilename("inference.proto".into()));
        let answers = reflect(&client, version, &queries);
        let ReflectionAnswer::Files(FileDescriptorResponse { files }) = &answers[0] else { panic!("{answers:?}") };
        assert!(files.len() == 1 && files[0].windows(15).any(|window| window == b"ModelInferReque"));
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        let unknown = reflect(&client, version, &[ReflectionQuery::FileContainingSymbol("inference.None".into())]);
        let [ReflectionAnswer::Error(error)] = &unknown[..] else { panic!("{unknown:?}") };
        assert_eq!(error.error_code, i32::from(NOT_FOUND));
    }
}

/// The fields of compiled files that name methods.
#[derive(Clone, PartialEq, Message)]
struct DeclaredService {
    #[prost(message, repeated, tag = "2")]
    methods: Vec<DeclaredMethod>,
}

#[derive(Clone, PartialEq, Message)]
struct DeclaredMethod {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct DeclaredFile {
    #[prost(message, repeated, tag = "6")]
    services: Vec<DeclaredService>,
}

#[test]
fn every_declared_method_of_inference_is_served() {
    let served = served();
    let client = Client::new(&served);
    let symbol = ReflectionQuery::FileContainingSymbol("inference.GRPCInferenceService".into());
    let answers = reflect(&client, "v1", &[symbol]);
    let [ReflectionAnswer::Files(FileDescriptorResponse { files })] = &answers[..] else { panic!("{answers:?}") };
    let file = DeclaredFile::decode(files[0].clone()).unwrap();
    let methods = &file.services[0].methods;
    assert_eq!(methods.len(), 18);
    for method in methods {
        let code = client.send(&method.name, &[], framed(&service(""))).code();
        assert_ne!(code, UNIMPLEMENTED, "{}", method.name);
    }
    assert_eq!(client.send("ServerLive", &[], framed(&service(""))).code(), OK);
}
