//! Tests of the bytes of gRPC messages against the public protocol.

use std::fmt::{Debug, Write};

use bytes::Bytes;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use tenure_serve::grpc::messages::*;

fn hexadecimal(message: &impl Message) -> String {
    let mut text = String::new();
    message.encode_to_vec().iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
    text
}

fn parameters(name: &str, choice: ParameterChoice) -> Parameters {
    [(name.into(), InferParameter { choice: Some(choice) })].into()
}

fn contents() -> InferTensorContents {
    InferTensorContents {
        bools: vec![true, false],
        ints: vec![-1, 300],
        int64s: vec![-2],
        uints: vec![3, 4],
        uint64s: vec![5],
        fp32s: vec![1.5],
        fp64s: vec![-2.5],
        strings: vec![Bytes::from_static(b"a"), Bytes::new()],
    }
}

/// The expected bytes are those that `tritonclient` 2.73 writes for these messages.
#[test]
fn bytes_are_those_of_the_public_protocol() {
    let input = InferTensor {
        name: "x".into(),
        datatype: "FP32".into(),
        shape: vec![-1, 2],
        parameters: parameters("a", ParameterChoice::Bool(true)),
        contents: Some(contents()),
    };
    let request = ModelInferRequest {
        model_name: "m".into(),
        model_version: "2".into(),
        id: "i".into(),
        parameters: parameters("p", ParameterChoice::Double(0.5)),
        inputs: vec![input.clone()],
        outputs: vec![InferRequestedOutput {
            name: "y".into(),
            parameters: parameters("c", ParameterChoice::Int64(-3)),
        }],
        raw_input_contents: vec![Bytes::from_static(b"xy")],
    };
    assert_eq!(
        hexadecimal(&request),
        "0a016d1201321a0169220e0a0170120921000000000000e03f2a5b0a01781204465033321a0bffffffffffffffffff010222070a0161120208012a3a0a020100120cffffffffffffffffff01ac021a0afeffffffffffffffff01220203042a010532040000c03f3a0800000000000004c0420161420032150a017912100a0163120b10fdffffffffffffffff013a027879"
    );
    let answer = ModelInferResponse {
        model_name: "m".into(),
        model_version: "2".into(),
        id: "i".into(),
        parameters: parameters("p", ParameterChoice::String("s".into())),
        outputs: vec![InferTensor {
            name: "y".into(),
            shape: vec![1],
            parameters: parameters("a", ParameterChoice::Uint64(7)),
            ..input
        }],
        raw_output_contents: vec![Bytes::from_static(b"xy")],
    };
    let stream = ModelStreamInferResponse { error_message: "e".into(), infer_response: Some(answer) };
    assert_eq!(
        hexadecimal(&stream),
        "0a0165126a0a016d1201321a016922080a017012031a01732a510a01791204465033321a010122070a0161120228072a3a0a020100120cffffffffffffffffff01ac021a0afeffffffffffffffff01220203042a010532040000c03f3a0800000000000004c0420161420032027879"
    );
}

#[test]
fn bytes_of_what_says_what_there_is_are_those_of_the_public_protocol() {
    let tensor = |name: &str, datatype: &str, shape: i64| TensorMetadata {
        name: name.into(),
        datatype: datatype.into(),
        shape: vec![shape],
    };
    let model = ModelMetadataResponse {
        name: "m".into(),
        versions: vec!["1".into()],
        platform: "p".into(),
        inputs: vec![tensor("x", "INT8", -1)],
        outputs: vec![tensor("y", "BOOL", 2)],
    };
    assert_eq!(
        hexadecimal(&model),
        "0a016d1201311a017022150a01781204494e54381a0affffffffffffffffff012a0c0a01791204424f4f4c1a0102"
    );
    let server = ServerMetadataResponse { name: "n".into(), version: "v".into(), extensions: vec!["e".into()] };
    assert_eq!(hexadecimal(&server), "0a016e1201761a0165");
    let entry = ModelIndex { name: "n".into(), version: "v".into(), state: "s".into(), reason: "r".into() };
    assert_eq!(hexadecimal(&RepositoryIndexResponse { models: vec![entry] }), "0a0c0a016e1201761a0173220172");
    assert_eq!(hexadecimal(&RepositoryIndexRequest { repository_name: "r".into(), ready: true }), "0a01721001");
    let repository = |name: &str, choice| RepositoryModelRequest {
        repository_name: "r".into(),
        model_name: "m".into(),
        parameters: [(name.into(), ModelRepositoryParameter { choice: Some(choice) })].into(),
    };
    let load = repository("b", RepositoryChoice::Bytes(Bytes::from_static(b"z")));
    assert_eq!(hexadecimal(&load), "0a017212016d1a080a0162120322017a");
    assert_eq!(hexadecimal(&repository("u", RepositoryChoice::Bool(true))), "0a017212016d1a070a017512020801");
    let name = String::from("n");
    let version = String::from("v");
    let ready = ModelReadyRequest { name: name.clone(), version: version.clone() };
    assert_eq!(hexadecimal(&ready), "0a016e120176");
    assert_eq!(hexadecimal(&ModelMetadataRequest { name, version }), "0a016e120176");
    assert_eq!(hexadecimal(&ServerLiveResponse { live: true }), "0801");
    assert_eq!(hexadecimal(&ServerReadyResponse { ready: true }), "0801");
    assert_eq!(hexadecimal(&ModelReadyResponse { ready: true }), "0801");
}

#[test]
fn bytes_of_a_configuration_are_those_of_the_public_protocol() {
    let config = ModelConfig {
        name: "m".into(),
        platform: "p".into(),
        version_policy: Some(VersionPolicy { specific: Some(SpecificVersions { versions: vec![1, 2] }) }),
        max_batch_size: 8,
        inputs: vec![ModelInput { name: "x".into(), data_type: DataType::Fp32.into(), dims: vec![-1, 2] }],
        outputs: vec![ModelOutput { name: "y".into(), data_type: DataType::Bf16.into(), dims: vec![3] }],
        dynamic_batching: Some(DynamicBatching { preferred_batch_size: vec![8], max_queue_delay_microseconds: 2000 }),
        backend: "b".into(),
    };
    assert_eq!(
        hexadecimal(&ModelConfigResponse { config: Some(config) }),
        "0a3a0a016d1201701a061a040a02010220082a120a0178100b220bffffffffffffffffff010232080a0179100e1a01035a060a010810d00f8a010162"
    );
    let name = String::from("n");
    let version = String::from("v");
    let asked = ModelConfigRequest { name: name.clone(), version: version.clone() };
    assert_eq!(hexadecimal(&asked), "0a016e120176");
    assert_eq!(hexadecimal(&ModelStatisticsRequest { name, version }), "0a016e120176");
}

#[test]
fn bytes_of_statistics_are_those_of_the_public_protocol() {
    let times = |count| Some(StatisticDuration { count, ns: count + 100 });
    let statistics = ModelStatistics {
        name: "m".into(),
        version: "1".into(),
        last_inference: 5,
        inference_count: 6,
        execution_count: 7,
        inference_stats: Some(InferStatistics {
            success: times(1),
            fail: times(2),
            queue: times(3),
            compute_input: times(4),
            compute_infer: times(5),
            compute_output: times(6),
            cache_hit: times(7),
            cache_miss: times(8),
        }),
        batch_stats: vec![InferBatchStatistics {
            batch_size: 9,
            compute_input: times(1),
            compute_infer: times(2),
            compute_output: times(3),
        }],
    };
    assert_eq!(
        hexadecimal(&ModelStatisticsResponse { model_stats: vec![statistics] }),
        "0a540a016d12013118052006280732300a04080110651204080210661a04080310672204080410682a040805106932040806106a3a040807106b42040808106c3a1408091204080110651a0408021066220408031067"
    );
}

#[test]
fn bytes_of_regions_are_those_of_the_public_protocol() {
    let region = SystemRegion { name: "r".into(), key: "k".into(), offset: 1, byte_size: 2 };
    assert_eq!(hexadecimal(&region), "0a017212016b18012002");
    let regions = [("r".into(), region)].into();
    assert_eq!(hexadecimal(&SystemSharedMemoryStatusResponse { regions }), "0a0f0a0172120a0a017212016b18012002");
    assert_eq!(hexadecimal(&RegionRequest { name: "r".into() }), "0a0172");
}

fn any_parameters() -> impl Strategy<Value = Parameters> {
    let choice = prop_oneof![
        any::<bool>().prop_map(ParameterChoice::Bool),
        any::<i64>().prop_map(ParameterChoice::Int64),
        any::<String>().prop_map(ParameterChoice::String),
        // NaN does not equal itself.
        proptest::num::f64::NORMAL.prop_map(ParameterChoice::Double),
        any::<u64>().prop_map(ParameterChoice::Uint64),
    ];
    btree_map(any::<String>(), option::of(choice).prop_map(|choice| InferParameter { choice }), 0..3)
}

fn any_bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..20).prop_map(Bytes::from)
}

fn any_contents() -> impl Strategy<Value = InferTensorContents> {
    let integers = (vec(any::<i32>(), 0..4), vec(any::<i64>(), 0..4), vec(any::<u32>(), 0..4), vec(any::<u64>(), 0..4));
    let floats = (vec(proptest::num::f32::NORMAL, 0..4), vec(proptest::num::f64::NORMAL, 0..4));
    (vec(any::<bool>(), 0..4), integers, floats, vec(any_bytes(), 0..4)).prop_map(
        |(bools, (ints, int64s, uints, uint64s), (fp32s, fp64s), strings)| InferTensorContents {
            bools,
            ints,
            int64s,
            uints,
            uint64s,
            fp32s,
            fp64s,
            strings,
        },
    )
}

fn any_tensors() -> impl Strategy<Value = Vec<InferTensor>> {
    let tensor =
        (any::<String>(), any::<String>(), vec(any::<i64>(), 0..4), any_parameters(), option::of(any_contents()));
    let tensor = tensor.prop_map(|(name, datatype, shape, parameters, contents)| InferTensor {
        name,
        datatype,
        shape,
        parameters,
        contents,
    });
    vec(tensor, 0..3)
}

fn any_request() -> impl Strategy<Value = ModelInferRequest> {
    let output =
        (any::<String>(), any_parameters()).prop_map(|(name, parameters)| InferRequestedOutput { name, parameters });
    let names = (any::<String>(), any::<String>(), any::<String>());
    (names, any_parameters(), any_tensors(), vec(output, 0..3), vec(any_bytes(), 0..3)).prop_map(
        |((model_name, model_version, id), parameters, inputs, outputs, raw_input_contents)| ModelInferRequest {
            model_name,
            model_version,
            id,
            parameters,
            inputs,
            outputs,
            raw_input_contents,
        },
    )
}

fn any_answer() -> impl Strategy<Value = ModelStreamInferResponse> {
    let names = (any::<String>(), any::<String>(), any::<String>());
    let answer = (names, any_parameters(), any_tensors(), vec(any_bytes(), 0..3)).prop_map(
        |((model_name, model_version, id), parameters, outputs, raw_output_contents)| ModelInferResponse {
            model_name,
            model_version,
            id,
            parameters,
            outputs,
            raw_output_contents,
        },
    );
    (any::<String>(), option::of(answer))
        .prop_map(|(error_message, infer_response)| ModelStreamInferResponse { error_message, infer_response })
}

fn is_read_as_written<M: Message + Default + PartialEq + Debug>(message: &M) {
    assert_eq!(&M::decode(&message.encode_to_vec()[..]).unwrap(), message);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn a_message_is_read_as_it_was_written(request in any_request(), answer in any_answer()) {
        is_read_as_written(&request);
        is_read_as_written(&answer);
    }

    #[test]
    fn bytes_that_are_no_message_are_an_error_at_most(bytes in vec(any::<u8>(), 0..200), cut in any_request()) {
        let _ = ModelInferRequest::decode(&bytes[..]);
        let written = cut.encode_to_vec();
        let _ = ModelInferRequest::decode(&written[..written.len() / 2]);
    }
}
