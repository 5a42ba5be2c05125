//! A gRPC server answers whatever is sent. `TENURE_TEST_FACTOR=10` draws ten times as many calls.

use std::collections::BTreeSet;
use std::env;

use tenure_serve::grpc::messages::{InferTensor, ModelInferRequest};
use tenure_serve::protocol::Datatype;

use crate::drawn::Random;
use crate::grpc::{
    Client, INTERNAL, INVALID_ARGUMENT, NOT_FOUND, OK, RESOURCE_EXHAUSTED, elements, framed, input, request, served,
};

#[test]
fn whatever_is_sent_the_server_answers_the_next() {
    let served = served();
    let client = Client::new(&served);
    let typed = InferTensor { contents: elements(Datatype::Fp32).0, ..input("FP32", &[1, 2]) };
    let typed = ModelInferRequest { inputs: vec![typed], raw_input_contents: Vec::new(), ..request("echo_fp32") };
    let right = [framed(&request("echo_fp32")), framed(&typed)];
    let mut random = Random(7);
    let mut below = |limit: usize| (random.unit() * limit as f64) as usize;
    let mut codes = BTreeSet::new();
    let factor = env::var("TENURE_TEST_FACTOR").map_or(1, |factor| factor.parse::<usize>().unwrap());
    let methods = [
        "ModelInfer",
        "ModelStreamInfer",
        "ModelInfer",
        "ModelStreamInfer",
        "ModelConfig",
        "ModelMetadata",
        "ModelReady",
        "ModelStatistics",
        "RepositoryIndex",
        "RepositoryModelLoad",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryStatus",
    ];
    for case in 0..2000 * factor {
        let mut bytes = right[case % 2].to_vec();
        for _ in 0..1 + below(3) {
            let at = below(bytes.len());
            let byte = below(256) as u8;
            match below(3) {
                0 => bytes[at] = byte,
                1 => bytes.truncate(1 + at),
                _ => bytes.insert(at, byte),
            }
        }
        let headers = [("grpc-encoding", ["identity", "gzip"][below(2)])];
        let reply = client.send(methods[below(methods.len())], &headers[..below(2)], bytes.into());
        assert_ne!(reply.code(), INTERNAL, "{reply:?}");
        codes.insert(reply.code());
    }
    let expected = [OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED];
    assert!(expected.iter().all(|code| codes.contains(code)), "{codes:?}");
    assert!(client.is_served());
}
