//! Tests of Triton's extensions over gRPC: they answer the same as over HTTP, and share its regions of memory.

use bytes::Bytes;
use serde_json::{Value, json};
use tenure_serve::grpc::messages::{
    CudaSharedMemoryStatusResponse, DataType, InferRequestedOutput, InferTensor, InferTensorContents,
    ModelConfigRequest, ModelConfigResponse, ModelInferRequest, ModelInferResponse, ModelStatisticsRequest,
    ModelStatisticsResponse, ParameterChoice, Parameters, RegionRequest, RegionResponse, StatisticDuration,
    SystemRegion, SystemSharedMemoryStatusResponse,
};
use tenure_serve::protocol::Datatype;

use crate::grpc::{Client, INVALID_ARGUMENT, NOT_FOUND, OK, input, parameter, served};
use crate::loopback::Served;
use crate::shared_memory::Object;

pub(crate) const ALREADY_EXISTS: u16 = 6;

fn http(served: &Served, path: &str) -> Value {
    serde_json::from_slice(&served.ask("GET", path, &[], &[]).body).unwrap()
}

fn config(client: &Client<'_>, name: &str) -> tenure_serve::grpc::messages::ModelConfig {
    let asked = ModelConfigRequest { name: name.into(), version: "1".into() };
    client.ask::<ModelConfigResponse>("ModelConfig", &asked).config.unwrap()
}

#[test]
fn a_configuration_is_that_of_http() {
    let served = served();
    let client = Client::new(&served);
    for datatype in Datatype::ALL {
        let name = format!("echo_{datatype}").to_lowercase();
        let said = config(&client, &name);
        let data_type = |number| format!("TYPE_{:?}", DataType::try_from(number).unwrap()).to_uppercase();
        let tensor =
            |name: &str, number, dims: &[i64]| json!({"name": name, "data_type": data_type(number), "dims": dims});
        let batching = said.dynamic_batching.unwrap();
        let x = &said.inputs[0];
        let y = &said.outputs[0];
        let found = json!({
            "name": said.name,
            "platform": said.platform,
            "backend": said.backend,
            "version_policy": {"specific": {"versions": said.version_policy.unwrap().specific.unwrap().versions}},
            "max_batch_size": said.max_batch_size,
            "input": [tensor(&x.name, x.data_type, &x.dims)],
            "output": [tensor(&y.name, y.data_type, &y.dims)],
            "dynamic_batching": {
                "preferred_batch_size": batching.preferred_batch_size,
                "max_queue_delay_microseconds": batching.max_queue_delay_microseconds,
            },
        });
        assert_eq!(found, http(&served, &format!("/v2/models/{name}/config")), "{datatype}");
    }
    let slow = config(&client, "slow");
    assert_eq!((slow.max_batch_size, slow.dynamic_batching), (0, None));
    let unknown = ModelConfigRequest { name: "m".into(), version: String::new() };
    assert_eq!(client.call("ModelConfig", &unknown).error().0, NOT_FOUND);
}

#[test]
fn statistics_are_those_of_http() {
    let served = served();
    let client = Client::new(&served);
    let request = ModelInferRequest {
        model_name: "echo_int8".into(),
        inputs: vec![input("INT8", &[2, 1])],
        raw_input_contents: vec![Bytes::from_static(&[1, 2])],
        ..ModelInferRequest::default()
    };
    assert_eq!(client.infer(&request).code(), OK);
    let asked = ModelStatisticsRequest { name: "echo_int8".into(), version: String::new() };
    let mut said: ModelStatisticsResponse = client.ask("ModelStatistics", &asked);
    let of_http = http(&served, "/v2/models/echo_int8/stats");
    let model = said.model_stats.remove(0);
    let times = |times: Option<StatisticDuration>| {
        let StatisticDuration { count, ns } = times.unwrap();
        json!({"count": count, "ns": ns})
    };
    let stats = model.inference_stats.unwrap();
    let batch = &model.batch_stats[0];
    let found = json!({
        "name": model.name,
        "version": model.version,
        "last_inference": model.last_inference,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": {
            "success": times(stats.success),
            "fail": times(stats.fail),
            "queue": times(stats.queue),
            "compute_input": times(stats.compute_input),
            "compute_infer": times(stats.compute_infer),
            "compute_output": times(stats.compute_output),
            "cache_hit": times(stats.cache_hit),
            "cache_miss": times(stats.cache_miss),
        },
        "batch_stats": [{
            "batch_size": batch.batch_size,
            "compute_input": times(batch.compute_input),
            "compute_infer": times(batch.compute_infer),
            "compute_output": times(batch.compute_output),
        }],
    });
    assert_eq!(json!({"model_stats": [found]}), of_http);
    assert_eq!((batch.batch_size, stats.success.unwrap().count), (2, 1));

    let all: ModelStatisticsResponse = client.ask("ModelStatistics", &ModelStatisticsRequest::default());
    let names = http(&served, "/v2/models/stats")["model_stats"].as_array().unwrap().len();
    assert_eq!(all.model_stats.len(), names);
    let unknown = ModelStatisticsRequest { name: "m".into(), version: String::new() };
    assert_eq!(client.call("ModelStatistics", &unknown).error().0, NOT_FOUND);
}

fn registration(name: &str, object: &Object, offset: u64, byte_size: u64) -> SystemRegion {
    SystemRegion { name: name.into(), key: object.name.clone(), offset, byte_size }
}

fn regions(client: &Client<'_>, name: &str) -> Vec<SystemRegion> {
    let status: SystemSharedMemoryStatusResponse =
        client.ask("SystemSharedMemoryStatus", &RegionRequest { name: name.into() });
    status.regions.into_values().collect()
}

#[test]
fn regions_are_those_of_http() {
    let served = served();
    let object = Object::new(&[0; 8]);
    let client = Client::new(&served);
    let first = registration("first", &object, 0, 4);
    let second = registration("second", &object, 4, 4);
    for region in [&first, &second] {
        client.ask::<RegionResponse>("SystemSharedMemoryRegister", region);
    }
    assert_eq!(regions(&client, ""), [first.clone(), second.clone()]);
    assert_eq!(regions(&client, "second"), [second]);
    assert!(served.status("").contains(r#""name":"second""#));
    assert_eq!(client.call("SystemSharedMemoryRegister", &first).error().0, ALREADY_EXISTS);
    client.ask::<RegionResponse>("SystemSharedMemoryUnregister", &RegionRequest { name: "second".into() });
    assert_eq!(regions(&client, ""), [first]);
    client.ask::<RegionResponse>("SystemSharedMemoryUnregister", &RegionRequest::default());
    assert_eq!((regions(&client, ""), &*served.status("")), (vec![], "[]"));
    let status = client.call("SystemSharedMemoryStatus", &RegionRequest { name: "first".into() });
    assert_eq!(status.error().0, NOT_FOUND);
    let beyond = client.call("SystemSharedMemoryRegister", &registration("r", &object, 0, 9));
    let (code, message) = beyond.error();
    assert!(code == INVALID_ARGUMENT && message.contains("has 8 bytes"), "{code} {message}");
}

#[test]
fn there_are_no_regions_of_a_device() {
    let served = served();
    let client = Client::new(&served);
    let status: CudaSharedMemoryStatusResponse = client.ask("CudaSharedMemoryStatus", &RegionRequest::default());
    assert!(status.regions.is_empty());
    client.ask::<RegionResponse>("CudaSharedMemoryUnregister", &RegionRequest::default());
    let named = RegionRequest { name: "r".into() };
    assert_eq!(client.call("CudaSharedMemoryStatus", &named).error().0, NOT_FOUND);
    let reply = client.call("CudaSharedMemoryRegister", &named);
    let (code, message) = reply.error();
    assert!(code == INVALID_ARGUMENT && message.starts_with("memory of CUDA devices"), "{code} {message}");
}

/// Returns the parameters of a tensor that is in a region.
pub(crate) fn place(region: &str, offset: i64, byte_size: i64) -> Parameters {
    [
        ("shared_memory_region".into(), parameter(ParameterChoice::String(region.into()))),
        ("shared_memory_offset".into(), parameter(ParameterChoice::Int64(offset))),
        ("shared_memory_byte_size".into(), parameter(ParameterChoice::Int64(byte_size))),
    ]
    .into()
}

/// Creates a request for four bytes of a region, whose answer is written to a part of a region.
pub(crate) fn asking(from: Parameters, to: Option<Parameters>) -> ModelInferRequest {
    let outputs = to.map(|parameters| InferRequestedOutput { name: "y".into(), parameters });
    ModelInferRequest {
        model_name: "echo_int8".into(),
        inputs: vec![InferTensor { parameters: from, ..input("INT8", &[1, 4]) }],
        outputs: outputs.into_iter().collect(),
        ..ModelInferRequest::default()
    }
}

#[test]
fn inputs_are_read_and_outputs_are_written_where_they_are_said_to_be() {
    let served = served();
    let object = Object::new(&[0, 1, 2, 3, 4, 9, 9, 9, 9, 9]);
    let client = Client::new(&served);
    client.ask::<RegionResponse>("SystemSharedMemoryRegister", &registration("r", &object, 1, 9));
    let answer: ModelInferResponse = client.ask("ModelInfer", &asking(place("r", 0, 4), Some(place("r", 5, 4))));
    assert_eq!(object.bytes(), [0, 1, 2, 3, 4, 9, 1, 2, 3, 4]);
    let y = InferTensor { name: "y".into(), ..input("INT8", &[1, 4]) };
    assert_eq!((&answer.outputs[..], &answer.raw_output_contents[..]), (&[y][..], &[Bytes::new()][..]));
    let sent: ModelInferResponse = client.ask("ModelInfer", &asking(place("r", 0, 4), None));
    assert_eq!(sent.raw_output_contents, [&[1, 2, 3, 4][..]]);
    // A client that sends numbers in the message may still receive the answer in a region.
    let contents = Some(InferTensorContents { ints: vec![5, 6, 7, 8], ..InferTensorContents::default() });
    let mut typed = asking(Parameters::new(), Some(place("r", 5, 4)));
    typed.inputs[0].contents = contents;
    let answer: ModelInferResponse = client.ask("ModelInfer", &typed);
    assert_eq!((answer.outputs[0].contents.is_none(), answer.raw_output_contents.len()), (true, 0));
    assert_eq!(object.bytes(), [0, 1, 2, 3, 4, 9, 5, 6, 7, 8]);
}

#[test]
fn a_tensor_is_in_one_place_inside_its_region() {
    let served = served();
    let object = Object::new(&[5; 8]);
    let client = Client::new(&served);
    client.ask::<RegionResponse>("SystemSharedMemoryRegister", &registration("r", &object, 0, 8));
    let spoilt = |spoil: &dyn Fn(&mut ModelInferRequest)| {
        let mut request = asking(place("r", 0, 4), Some(place("r", 4, 4)));
        spoil(&mut request);
        request
    };
    let with = |name: &'static str, choice: ParameterChoice| {
        spoilt(&move |request| {
            request.inputs[0].parameters.insert(name.into(), parameter(choice.clone()));
        })
    };
    for (request, expected) in [
        (with("shared_memory_offset", ParameterChoice::Int64(5)), "region \"r\" has 8 bytes, and has no 4 from 5 on"),
        (with("shared_memory_offset", ParameterChoice::Uint64(u64::MAX)), "from 18446744073709551615 on"),
        (
            with("shared_memory_offset", ParameterChoice::Int64(-1)),
            "\"shared_memory_offset\" is not a number from 0 up",
        ),
        (with("shared_memory_byte_size", ParameterChoice::Int64(3)), "takes 4 bytes, and there are 3"),
        (with("shared_memory_region", ParameterChoice::Int64(3)), "\"shared_memory_region\" is not a string"),
        (
            spoilt(&|request| request.raw_input_contents = vec![Bytes::from_static(&[1; 4])]),
            "raw_input_contents has 1 tensors, and there are 0 inputs outside shared memory",
        ),
        (
            spoilt(&|request| {
                let contents = InferTensorContents { ints: vec![1; 4], ..InferTensorContents::default() };
                request.inputs[0].contents = Some(contents);
            }),
            "it has contents, and a parameter shared_memory_region",
        ),
        (
            spoilt(&|request| request.outputs[0].parameters = place("r", 0, 3)),
            "output \"y\" has 4 bytes, and its shared_memory_byte_size is 3",
        ),
    ] {
        let reply = client.infer(&request);
        let (code, message) = reply.error();
        assert!(code == INVALID_ARGUMENT && message.contains(expected), "{code} {message}, not {expected}");
    }
    let unknown = with("shared_memory_region", ParameterChoice::String("q".into()));
    assert_eq!(client.infer(&unknown).error().0, NOT_FOUND);
    assert_eq!(object.bytes(), [5; 8]);
    assert_eq!(client.infer(&spoilt(&|_| ())).code(), OK);
}
