//! Tests of modules' members, state and modes, and of parameters used as tensors.

use std::collections::HashMap;

use tenure_nn::layers::{BatchNorm2d, Linear};
use tenure_nn::models::{Bert, BertConfig};
use tenure_nn::{Buffer, Module, Parameter, Scope, module};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Tensor};

/// Two layers that share a weight, like a language model's first and last.
struct Tied {
    first: Linear,
    last: Linear,
    twin: Parameter,
}
module!(Tied { first, last, twin });

fn tied() -> Tied {
    let scope = Scope::new(&Generator::new(0));
    let make = |name: &str| Linear::without_bias(&scope.at(name), 2, 3).unwrap();
    let first = make("first");
    let mut last = make("last");
    last.weight = first.weight.clone();
    // The same tensor with a name of its own.
    let twin = Parameter::new("twin", (*first.weight).clone()).unwrap();
    Tied { first, last, twin }
}

#[test]
fn a_parameter_in_several_places_is_one() {
    let mut model = tied();
    assert_eq!((model.parameters().len(), model.parameter_count()), (1, 6));
    let names: Vec<&str> = model.state().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["first.weight", "twin"]);
    model.to_dtype(DType::F64).unwrap();
    assert!(model.first.weight.is_same(&model.last.weight) && model.first.weight.is_same(&model.twin));
    assert_eq!(model.parameters().len(), 1);
}

#[test]
fn parameters_and_buffers_are_operands() {
    let tensor = |value: f32| Tensor::from_slice(&[value], &[1]).unwrap();
    let x = tensor(8.0);
    let p = Parameter::new("p", tensor(2.0)).unwrap();
    let b = Buffer::new("b", tensor(4.0));
    let is = |found: tenure_tensor::Result<Tensor>, expected: f32| {
        assert_eq!(found.unwrap().item::<f32>().unwrap(), expected)
    };
    is(&x + &p, 10.0);
    is(&p - &x, -6.0);
    is(&p * &p, 4.0);
    is(1.0 / &p, 0.5);
    is(&p - 1.0, 1.0);
    is((&x * &p) / &b, 4.0);
    is(&b - (&x - &p), -2.0);
    is(x.clone() - &b, 4.0);
    is(x.add(&p), 10.0);
    is(x.maximum(&b), 8.0);
    (&x * &p).unwrap().backward().unwrap();
    assert_eq!(p.grad().unwrap().item::<f32>().unwrap(), 8.0);
}

#[test]
fn a_model_of_shapes_takes_no_memory_and_computes_once_it_has_values() {
    let config = BertConfig {
        vocab_size: 11,
        hidden_size: 8,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 16,
        max_position_embeddings: 12,
        ..BertConfig::default()
    };
    let scope = Scope::new(&Generator::new(3));
    let mut model = Bert::new(&scope, &config).unwrap();
    let mut shapes = Bert::new(&scope.shapes(), &config).unwrap();
    model.eval();
    shapes.eval();
    let norm = BatchNorm2d::new(&scope.shapes(), 1 << 20).unwrap();
    for (_, tensor) in shapes.state().into_iter().chain(norm.state()) {
        assert!(tensor.storage().bytes() <= 8, "{tensor:?}");
    }
    let values: HashMap<&str, Tensor> = model.state().into_iter().map(|(name, value)| (name, value.clone())).collect();
    let by_shape: HashMap<usize, Tensor> = shapes
        .state()
        .into_iter()
        .map(|(name, shape)| {
            assert_eq!(shape.sizes(), values[name].sizes());
            (shape.id(), values[name].detach())
        })
        .collect();
    shapes.change(&|shape| Ok(by_shape[&shape.id()].clone())).unwrap();
    let tokens = Tensor::from_array([[1_i64, 5, 0], [7, 2, 10]]).unwrap();
    let [found, expected] = [&shapes, &model].map(|model| model.forward(&tokens, None).unwrap().to_bytes().unwrap());
    assert_eq!(found, expected);
}
