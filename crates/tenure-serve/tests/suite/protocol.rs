//! Tests of the protocol's messages, valid and invalid.

use std::time::Duration;

use bytes::Bytes;
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use tenure_serve::protocol::{
    Datatype, Encoded, Encoding, InferRequest, InferResponse, ModelMetadata, SharedTensor, Span, Tensor,
    TensorMetadata, Wanted, WantedOutput,
};

fn parse(json: &str, binary: &[u8]) -> Result<InferRequest, String> {
    let body = [json.as_bytes(), binary].concat();
    let request = InferRequest::parse("m", None, body.into(), Some(json.len()));
    request.map_err(|error| error.to_string())
}

#[test]
fn a_request_with_bytes_is_that_of_the_extension() {
    let json = r#"{ "model_name" : "mymodel", "inputs" : [
        { "name" : "input0", "shape" : [ 2, 2 ], "datatype" : "UINT32", "parameters" : { "binary_data_size" : 16 } },
        { "name" : "input1", "shape" : [ 3 ], "datatype" : "BOOL", "parameters" : { "binary_data_size" : 3 } } ],
        "outputs" : [ { "name" : "output0", "parameters" : { "binary_data" : true } }, { "name": "output1" } ] }"#;
    let request = parse(json, &[[0; 16].as_slice(), &[1; 3]].concat()).unwrap();
    let [input0, input1] = &request.inputs[..] else { panic!("{request:?}") };
    assert_eq!((input0.name(), input0.datatype(), input0.shape()), ("input0", Datatype::Uint32, &[2, 2][..]));
    assert_eq!((&input0.bytes()[..], &input1.bytes()[..]), (&[0; 16][..], &[1; 3][..]));
    let encodings = ["output0", "output1"].map(|name| request.wanted.encoding(name));
    assert_eq!(encodings, [Encoding::Binary, Encoding::Json]);
}

#[test]
fn an_output_says_how_it_is_sent_or_the_request_does() {
    let json = r#"{"id": "7", "parameters": {"binary_data_output": true, "priority": 3, "timeout": 1500, "mine": [1]},
        "inputs": [], "outputs": [{"name": "a"}, {"name": "b", "parameters": {"binary_data": false, "mine": {}}}]}"#;
    let request = parse(json, &[]).unwrap();
    assert_eq!(["a", "b"].map(|name| request.wanted.encoding(name)), [Encoding::Binary, Encoding::Json]);
    assert_eq!((request.id.as_deref(), request.priority), (Some("7"), 3));
    assert_eq!(request.timeout, Some(Duration::from_micros(1500)));
}

#[test]
fn errors_say_what_is_malformed() {
    let input = |fields: &str| format!(r#"{{"inputs": [{{"name": "x", {fields}}}]}}"#);
    let unclosed = format!(r#""shape": [1], "datatype": "FP32", "data": {}"#, "[".repeat(100_000));
    let nested = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let deep = format!(r#""shape": [1], "datatype": "FP32", "data": {}"#, nested(100_000));
    let of_many_dimensions = format!(r#""shape": {:?}, "datatype": "FP32", "data": {}"#, vec![1; 200], nested(200));
    for (json, expected) in [
        (String::new(), "not a message of the protocol: EOF"),
        (r#"[null, {}, [{"name": "x", "datatype": "BOOL", "shape": [0], "data": []}], []]"#.into(), "is an object"),
        (" []".into(), "not a message of the protocol: a message is an object"),
        (input("\n\"shape\": [2], \"datatype\": \"FP32\", \"data\": [1, NaN]"), "send the tensor as binary data"),
        (input(r#""shape": [2], "datatype": "FP32", "data": [1, -Infinity]"#), "NaN or an infinity in JSON is not"),
        (input(r#""shape": [2], "datatype": "FP32", "data": [1, nothing]"#), "not a message of the protocol: "),
        ("{}".into(), "missing field `inputs`"),
        (input(r#""shape": [1]"#), "missing field `datatype`"),
        (input(r#""shape": [1], "datatype": "FP8""#), r#"tensor "x": unknown datatype "FP8""#),
        (
            input(r#""shape": [-1], "datatype": "FP32", "data": []"#),
            r#"tensor "x": a tensor cannot have the shape [-1]"#,
        ),
        (input(r#""shape": [1], "datatype": "FP32""#), r#"tensor "x": it must have one of data, a"#),
        (input(r#""shape": [2], "datatype": "FP32", "data": [1]"#), r#"tensor "x": data of FP32 and shape [2]"#),
        (input(r#""shape": [1], "datatype": "FP16", "data": [65520]"#), "number out of range: 6.552e4"),
        (input(r#""shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}"#), "and 4 bytes are left"),
        (
            input(r#""shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 4}"#),
            r#"tensor "x": FP32 of shape [2] takes 8 bytes, and there are 4"#,
        ),
        (
            input(r#""shape": [1], "datatype": "INT16", "parameters": {"binary_data_size": 2}"#),
            "2 bytes follow the last tensor",
        ),
        (
            input(r#""shape": [], "datatype": "FP32", "parameters": {"shared_memory_region": "r"}"#),
            "needs a parameter shared_memory_byte_size",
        ),
        (r#"{"inputs": [], "parameters": {"sequence_id": 1}}"#.into(), "a sequence of requests is not supported"),
        (
            r#"{"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": 2}}]}"#.into(),
            "classification of an output is not supported",
        ),
        (r#"{"inputs": [], "outputs": [{"name": "y"}, {"name": "y"}]}"#.into(), r#"there are two tensors "y""#),
        (input(&unclosed), "not a message of the protocol: expected value"),
        (input(&deep), "invalid type: sequence, expected f32"),
        (input(&of_many_dimensions), "recursion limit exceeded"),
    ] {
        let error = parse(&json, &[0; 4]).unwrap_err();
        let start = &json[..json.len().min(100)];
        assert!(error.contains(expected) && error.lines().count() == 1, "{start}: {error}");
    }
    let error = InferRequest::parse("m", None, Bytes::from("{}"), Some(3)).unwrap_err().to_string();
    assert_eq!(error, "Inference-Header-Content-Length says 3 bytes of JSON, and the body has 2");
}

#[test]
fn a_model_is_asked_what_it_can_be_asked() {
    let tensor =
        |name: &str, datatype, shape: &[i64]| TensorMetadata { name: name.into(), datatype, shape: shape.into() };
    let model = ModelMetadata {
        name: "m".into(),
        versions: vec!["1".into()],
        platform: "test".into(),
        inputs: vec![tensor("x", Datatype::Int32, &[-1, 2]), tensor("z", Datatype::Bool, &[])],
        outputs: vec![tensor("y", Datatype::Int32, &[-1]), tensor("half", Datatype::Fp16, &[-1])],
        batching: None,
    };
    let x = |shape: &[usize]| {
        let bytes = vec![0; shape.iter().product::<usize>() * 4];
        Tensor::new("x", Datatype::Int32, shape.into(), bytes).unwrap()
    };
    let z = Tensor::new("z", Datatype::Bool, vec![], vec![0]).unwrap();
    let check = |inputs: &[&Tensor], outputs: &[&str]| {
        let outputs = outputs.iter().map(|name| WantedOutput { name: (*name).into(), encoding: None, span: None });
        let wanted = Wanted { outputs: outputs.collect(), ..Wanted::default() };
        let inputs = inputs.iter().copied().cloned().collect();
        let request = InferRequest { inputs, wanted, ..InferRequest::default() };
        model.check(&request).map_err(|error| error.to_string())
    };
    assert_eq!(check(&[&z, &x(&[5, 2])], &["y"]), Ok(()));
    for (inputs, outputs, expected) in [
        (
            &[&z, &x(&[5, 3])][..],
            &["y"][..],
            "the model takes INT32 of shape [-1, 2] (-1 is any size), not INT32 of [5, 3]",
        ),
        (&[&z, &x(&[2])], &["y"], "not INT32 of [2]"),
        (&[&x(&[1, 2])], &["y"], r#"model "m" needs an input "z", and the request has none"#),
        (&[&z, &x(&[1, 2]), &Tensor::strings("q", &["a"]).unwrap()], &["y"], r#"has no input "q": it has ["x", "z"]"#),
        (&[&z, &x(&[1, 2])], &["x"], r#"has no output "x": it has ["y", "half"]"#),
    ] {
        let error = check(inputs, outputs).unwrap_err();
        assert!(error.ends_with(expected) || error.contains(expected), "{error}");
    }
}

#[test]
fn an_answer_has_what_was_asked_for_in_that_order() {
    let response = InferResponse {
        model: "m".into(),
        outputs: ["a", "b", "c"].map(|name| Tensor::new(name, Datatype::Int8, vec![1], vec![1]).unwrap()).into(),
        ..Default::default()
    };
    let named = |name: &str, encoding| WantedOutput { name: name.into(), encoding, span: None };
    let outputs = vec![named("c", Some(Encoding::Binary)), named("a", None)];
    let Encoded { body, json_bytes } = response.encode(&Wanted { outputs, encoding: Encoding::Json }).unwrap();
    let json = r#"{"model_name":"m","outputs":[{"name":"c","datatype":"INT8","shape":[1],"parameters":{"binary_data_size":1}},{"name":"a","datatype":"INT8","shape":[1],"data":[1]}]}"#;
    assert_eq!((&body[..], json_bytes), (&[json.as_bytes(), &[1]].concat()[..], Some(json.len())));
}

/// Generates a tensor; with `in_json`, one that JSON can express.
fn tensor(name: String, in_json: bool) -> impl Strategy<Value = Tensor> {
    (select(&Datatype::ALL), prop::collection::vec(0usize..4, 0..4), any::<u64>()).prop_map(
        move |(datatype, shape, seed)| {
            let mut random = SmallRng::seed_from_u64(seed);
            let numel = shape.iter().product();
            let mut bytes = Vec::new();
            for _ in 0..numel {
                match datatype {
                    Datatype::Bool => bytes.push(u8::from(random.random::<bool>())),
                    Datatype::Fp16 if in_json => bytes.extend(finite(|| f16::from_bits(random.random())).to_le_bytes()),
                    Datatype::Bf16 if in_json => {
                        bytes.extend(finite(|| bf16::from_bits(random.random())).to_le_bytes())
                    }
                    Datatype::Fp32 if in_json => bytes.extend(finite(|| f32::from_bits(random.random())).to_le_bytes()),
                    Datatype::Fp64 if in_json => bytes.extend(finite(|| f64::from_bits(random.random())).to_le_bytes()),
                    Datatype::Bytes => {
                        let string: String = (0..random.random_range(0..5)).map(|_| random.random::<char>()).collect();
                        bytes.extend(u32::try_from(string.len()).unwrap().to_le_bytes());
                        bytes.extend(string.into_bytes());
                    }
                    _ => {
                        let mut element = vec![0; datatype.size().unwrap()];
                        random.fill_bytes(&mut element);
                        bytes.extend(element);
                    }
                }
            }
            Tensor::new(name.clone(), datatype, shape, bytes).unwrap()
        },
    )
}

fn finite<T: Copy + Into<f64>>(mut next: impl FnMut() -> T) -> T {
    loop {
        let number = next();
        if number.into().is_finite() {
            return number;
        }
    }
}

fn encoding() -> impl Strategy<Value = Encoding> {
    any::<bool>().prop_map(|binary| if binary { Encoding::Binary } else { Encoding::Json })
}

fn tensors(in_json: bool) -> impl Strategy<Value = Vec<Tensor>> {
    (0usize..4, any::<String>()).prop_flat_map(move |(count, name)| {
        (0..count).map(|number| tensor(format!("{name}{number}"), in_json)).collect::<Vec<_>>()
    })
}

fn request() -> impl Strategy<Value = (InferRequest, Encoding)> {
    let outputs = prop::collection::btree_map(any::<String>(), prop::option::of(encoding()), 0..3);
    let wanted = (outputs, encoding()).prop_map(|(outputs, encoding)| {
        let outputs = outputs.into_iter().map(|(name, encoding)| WantedOutput { name, encoding, span: None }).collect();
        Wanted { outputs, encoding }
    });
    let inputs = encoding().prop_flat_map(|encoding| (tensors(encoding == Encoding::Json), Just(encoding)));
    let timeout = prop::option::of((1..u64::MAX).prop_map(Duration::from_micros));
    (prop::option::of(any::<String>()), any::<u64>(), timeout, inputs, wanted).prop_map(
        |(id, priority, timeout, (inputs, encoding), wanted)| {
            let model = "m".into();
            let version = Some("1".into());
            let shared_inputs = Vec::new();
            (InferRequest { model, version, id, priority, timeout, inputs, shared_inputs, wanted }, encoding)
        },
    )
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_written((request, encoding) in request()) {
        let Encoded { body, json_bytes } = request.encode(encoding).unwrap();
        prop_assert_eq!(InferRequest::parse("m", Some("1".into()), body, json_bytes).unwrap(), request);
    }

    #[test]
    fn an_answer_is_read_as_it_was_written(
        (encoding, outputs) in encoding().prop_flat_map(|encoding| (Just(encoding), tensors(encoding == Encoding::Json))),
        (model, version, id) in any::<(String, Option<String>, Option<String>)>(),
    ) {
        let response = InferResponse { model, version, id, outputs };
        let Encoded { body, json_bytes } = response.encode(&Wanted { outputs: Vec::new(), encoding }).unwrap();
        prop_assert_eq!(InferResponse::parse(body, json_bytes).unwrap(), response);
    }
}

#[test]
fn tensors_in_shared_memory_are_read_as_they_were_written() {
    let span = |offset, byte_size| Span { region: "r \"1\"".into(), offset, byte_size };
    let input = SharedTensor { name: "x".into(), datatype: Datatype::Fp16, shape: vec![2, 2], span: span(0, 8) };
    let named = |name: &str, span| WantedOutput { name: name.into(), encoding: None, span };
    let wanted = Wanted { outputs: vec![named("y", Some(span(8, 4))), named("z", None)], ..Wanted::default() };
    let inputs = vec![Tensor::new("a", Datatype::Bool, vec![1], vec![1]).unwrap()];
    let request = InferRequest { model: "m".into(), inputs, shared_inputs: vec![input], wanted, ..Default::default() };
    for encoding in [Encoding::Json, Encoding::Binary] {
        let Encoded { body, json_bytes } = request.encode(encoding).unwrap();
        assert_eq!(InferRequest::parse("m", None, body, json_bytes).unwrap(), request);
    }
    let [input] = &request.shared_inputs[..] else { panic!("one") };
    assert_eq!(input.clone().with_bytes(vec![0; 8]).unwrap().shape(), [2, 2]);
    assert!(input.clone().with_bytes(vec![0; 7]).is_err());
}

#[test]
fn hostile_requests_are_refused_in_one_line() {
    let json = br#"{"id": "1", "parameters": {"binary_data_output": true, "timeout": 5}, "inputs": [
        {"name": "x", "shape": [2, 2], "datatype": "INT8", "data": [[1, 2], [3, 4]]},
        {"name": "b", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 11}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": false}}]}"#;
    let whole = [&json[..], b"\x02\0\0\0ab\x01\0\0\0c"].concat();
    assert!(InferRequest::parse("m", None, whole.clone().into(), Some(json.len())).is_ok());
    let mut random = SmallRng::seed_from_u64(1);
    let mut refused = 0;
    for _ in 0..10_000 {
        let mut body = whole.clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..body.len().max(1));
            match random.random_range(0..4) {
                _ if body.is_empty() => {}
                0 => body[at] = random.random(),
                1 => body[at] = *b"[]{}\",:0-9e".get(random.random_range(0..11)).unwrap(),
                2 => drop(body.remove(at)),
                _ => body.truncate(at),
            }
        }
        let json_bytes = random.random_bool(0.9).then(|| json.len().min(body.len() + 1));
        if let Err(error) = InferRequest::parse("m", None, body.into(), json_bytes) {
            refused += 1;
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
    }
    assert!(refused > 5_000, "{refused}");
}
