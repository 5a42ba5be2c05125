//! Tests of exports: the messages are read again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;

use prost::Message;
use tenure_nn::networks::Architectures;
use tenure_onnx::proto::{DimensionValue, GraphProto, ModelProto, ValueInfoProto};
use tenure_onnx::{DynamicAxis, Error, ExportOptions, export, export_network};
use tenure_tensor::{DType, Device, Tensor, TensorError};

fn filled(sizes: &[usize]) -> Tensor {
    let count = sizes.iter().product::<usize>();
    let numbers: Vec<f32> = (0..count).map(|number| (number * 7 % 11) as f32 - 5.0).collect();
    Tensor::from_slice(&numbers, sizes).unwrap()
}

fn read(path: &Path) -> GraphProto {
    let model = ModelProto::decode(&*fs::read(path).unwrap()).unwrap();
    assert_eq!((model.ir_version, model.opset_import[0].version), (8, 18));
    model.graph.unwrap()
}

fn exported(
    options: &ExportOptions,
    input: &Tensor,
    function: impl FnMut(&[Tensor]) -> Result<Vec<Tensor>, TensorError>,
) -> Result<GraphProto, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    export(&path, &[input], options, function)?;
    Ok(read(&path))
}

fn operators(graph: &GraphProto) -> Vec<&str> {
    graph.node.iter().map(|node| node.op_type.as_str()).collect()
}

fn sizes(info: &ValueInfoProto) -> Vec<String> {
    let shape = info.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap().shape.as_ref().unwrap();
    let values = shape.dim.iter().map(|dim| dim.value.as_ref().unwrap());
    values
        .map(|value| match value {
            DimensionValue::Size(size) => size.to_string(),
            DimensionValue::Name(name) => name.clone(),
        })
        .collect()
}

fn dynamic() -> ExportOptions {
    ExportOptions {
        input_names: vec!["x".to_owned()],
        output_names: vec!["y".to_owned()],
        dynamic_axes: vec![DynamicAxis::new("x", 0, "batch")],
        ..ExportOptions::default()
    }
}

#[test]
fn a_function_becomes_nodes_and_its_tensors_become_initializers() {
    let weight = filled(&[4, 3]);
    let options = ExportOptions { names: vec![("weight".to_owned(), weight.clone())], ..dynamic() };
    let graph =
        exported(&options, &filled(&[2, 3]), |inputs| Ok(vec![inputs[0].linear(&weight, None)?.relu()?])).unwrap();
    assert_eq!(operators(&graph), ["Gemm", "Relu", "Identity"]);
    assert_eq!(graph.node[0].input, ["x", "weight"]);
    assert_eq!(
        (sizes(&graph.input[0]), sizes(&graph.output[0])),
        (vec!["batch".to_owned(), "3".to_owned()], vec!["batch".to_owned(), "4".to_owned()])
    );
    let initializer = &graph.initializer[0];
    assert_eq!((initializer.name.as_str(), initializer.dims.as_slice()), ("weight", &[4, 3][..]));
    assert_eq!(initializer.raw_data.as_deref(), Some(&*weight.to_bytes().unwrap()));
}

#[test]
fn operations_that_an_operation_is_composed_of_are_taken_where_it_has_no_mapping() {
    // `kl_div` has none.
    let target = filled(&[2, 3]).sigmoid().unwrap();
    let graph = exported(&ExportOptions::default(), &filled(&[2, 3]), |inputs| {
        Ok(vec![inputs[0].kl_div(&target, true, tenure_tensor::ops::LossReduction::Sum)?])
    })
    .unwrap();
    assert!(operators(&graph).contains(&"Exp"), "{:?}", operators(&graph));
}

#[test]
fn an_operation_in_place_gives_the_tensor_a_new_value() {
    let graph = exported(&ExportOptions::default(), &filled(&[2]), |inputs| {
        let y = inputs[0].exp()?;
        y.add_(1)?;
        Ok(vec![y.neg()?])
    })
    .unwrap();
    assert_eq!(operators(&graph), ["Exp", "Add", "Neg", "Identity"]);
    assert_eq!(graph.node[2].input, graph.node[1].output);
}

#[test]
fn tensors_made_of_values_are_refused() {
    let error = exported(&ExportOptions::default(), &filled(&[2]), |inputs| {
        Ok(vec![inputs[0].add(&Tensor::from_slice(&[1.0_f32, 2.0], &[2])?)?])
    })
    .unwrap_err();
    assert!(error.to_string().ends_with("make tensors of the program's values before the export"), "{error}");
}

#[test]
fn a_size_of_a_dynamic_axis_is_computed_in_the_graph() {
    let graph = exported(&dynamic(), &filled(&[2, 3]), |inputs| {
        let batch = inputs[0].size(0)?;
        Ok(vec![Tensor::zeros(&[batch + 1, 2], DType::F32, Device::CPU)?])
    })
    .unwrap();
    assert_eq!(operators(&graph), ["Shape", "Add", "Concat", "ConstantOfShape", "Identity"]);
}

#[test]
fn half_of_a_size_is_a_quotient_in_the_graph() {
    let graph = exported(&dynamic(), &filled(&[4, 3]), |inputs| {
        let half = inputs[0].size(0)? as isize / 2;
        Ok(vec![inputs[0].slice(0, 0, half, 1)?])
    })
    .unwrap();
    assert_eq!(operators(&graph), ["Shape", "Div", "Slice", "Identity"]);
}

#[test]
fn a_size_that_no_formula_gives_is_refused() {
    let error = exported(&dynamic(), &filled(&[4, 3]), |inputs| {
        let root = inputs[0].size(0)?.isqrt();
        Ok(vec![Tensor::zeros(&[root], DType::F32, Device::CPU)?])
    })
    .unwrap_err();
    assert!(error.to_string().contains("operation zeros: the number 2 (6, "), "{error}");
    assert!(error.to_string().contains("dynamic axes (batch)"), "{error}");
}

#[test]
fn many_bytes_go_to_a_second_file_at_aligned_places() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let one = filled(&[3]);
    let two = one.neg().unwrap();
    let options = ExportOptions { most_bytes_in_model: 23, ..ExportOptions::default() };
    export(&path, &[&filled(&[3])], &options, |inputs| Ok(vec![inputs[0].mul(&one)?.add(&two)?])).unwrap();
    let graph = read(&path);
    let data = fs::read(folder.path().join("model.onnx.data")).unwrap();
    for (initializer, (tensor, offset)) in graph.initializer.iter().zip([(&one, 0), (&two, 4096)]) {
        assert_eq!((initializer.data_location, &initializer.raw_data), (Some(1), &None));
        let entries: Vec<&str> = initializer.external_data.iter().map(|entry| entry.value.as_str()).collect();
        assert_eq!(entries, ["model.onnx.data", &offset.to_string(), "12"]);
        assert_eq!(data[offset..offset + 12], tensor.to_bytes().unwrap());
    }
}

/// Returns the options of a small network, and inputs.
fn small(architecture: &str) -> (&'static str, Vec<Tensor>) {
    let bert = r#"{"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "max_position_embeddings": 16, "type_vocab_size": 2}"#;
    let gpt2 = r#"{"vocab_size": 20, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}"#;
    let llama = r#"{"vocab_size": 20, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16, "rms_norm_eps": 1e-5}"#;
    let narrow = r#"{"width": 4, "classes": 5}"#;
    match architecture {
        "mlp" => (r#"{"sizes": [3, 4, 2]}"#, vec![filled(&[2, 3])]),
        "resnet18" | "resnet50" => (narrow, vec![filled(&[1, 3, 64, 64])]),
        "resnet34" | "resnet101" | "resnet152" => (narrow, vec![filled(&[1, 3, 32, 32])]),
        "densenet121" => (r#"{"classes": 5}"#, vec![filled(&[1, 3, 64, 64])]),
        "densenet201" => (r#"{"classes": 5}"#, vec![filled(&[1, 3, 32, 32])]),
        "inception_v3" => (r#"{"classes": 5}"#, vec![filled(&[1, 3, 75, 75])]),
        "r3d18" => (narrow, vec![filled(&[1, 3, 4, 16, 16])]),
        "bert" | "sentences" => (bert, vec![tokens(), mask()]),
        "gpt2" => (gpt2, vec![tokens()]),
        "llama" => (llama, vec![tokens()]),
        _ => panic!("{architecture} is a new architecture: give it small options here"),
    }
}

#[test]
fn every_architecture_is_exported_with_a_dynamic_batch() {
    let architectures = Architectures::default();
    for architecture in architectures.names() {
        let (options, inputs) = small(architecture);
        let network = architectures.build(architecture, serde_json::from_str(options).unwrap());
        let network = network.unwrap_or_else(|error| panic!("{architecture}: {error}"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        let input_names: Vec<String> = (0..inputs.len()).map(|index| format!("input_{index}")).collect();
        let mut dynamic_axes: Vec<DynamicAxis> =
            input_names.iter().map(|name| DynamicAxis::new(name, 0, "batch")).collect();
        if inputs[0].dtype() == DType::I64 {
            dynamic_axes.extend(input_names.iter().map(|name| DynamicAxis::new(name, 1, "length")));
        }
        let options = ExportOptions { input_names, dynamic_axes, ..ExportOptions::default() };
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        export_network(&path, &*network, &inputs, &options).unwrap_or_else(|error| panic!("{architecture}: {error}"));
        let graph = read(&path);
        assert_eq!(sizes(&graph.output[0])[0], "batch", "{architecture}");
        let names: Vec<&str> = graph.initializer.iter().map(|each| each.name.as_str()).collect();
        // Nothing computes with the pooler of a BERT.
        let weights = network.state().into_iter().map(|(name, _)| name).filter(|name| name.ends_with("weight"));
        for name in weights.filter(|name| !name.starts_with("pooler")) {
            assert!(names.contains(&name), "{architecture} has no {name}");
        }
    }
}

fn tokens() -> Tensor {
    Tensor::from_slice(&[1_i64, 2, 3, 4, 5, 6], &[2, 3]).unwrap()
}

fn mask() -> Tensor {
    Tensor::ones(&[2, 3], DType::I64, Device::CPU).unwrap()
}
