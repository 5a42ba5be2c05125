//! Tests that text models equal Hugging Face's, as `goldens/models.py` wrote them: names, outputs, gradients.

use tenure_nn::layers::Layer;
use tenure_nn::models::{Bert, Gpt2, Llama};
use tenure_tensor::{DType, Device, Tensor, ops};

use crate::common::{check, configs, golden, on_devices, tensor, with_scope};
use crate::fixtures::expect_error;

on_devices! {
    bert_is_hugging_faces
    gpt2_is_hugging_faces
    llama_is_hugging_faces
}

fn tokens() -> Tensor {
    let tokens: Vec<i64> = (0..10).map(|i| (7 * i + 3) % 11).collect();
    tensor(&tokens, &[2, 5])
}

fn bert_is_hugging_faces() {
    let model = with_scope(|scope| Bert::new(scope, &configs::bert()).unwrap());
    let mask = tensor(&[1_i64, 1, 1, 1, 1, 1, 1, 1, 0, 0], &[2, 5]);
    check(&golden("models", "bert"), &model, 1e-8, || {
        let hidden = model.forward(&tokens(), Some(&mask))?;
        ops::cat(&[&hidden.flatten(1, -1)?, &model.pool(&hidden)?], 1)
    });
}

fn gpt2_is_hugging_faces() {
    let model = with_scope(|scope| Gpt2::new(scope, &configs::gpt2()).unwrap());
    check(&golden("models", "gpt2"), &model, 1e-8, || model.forward(&tokens()));
}

#[test]
fn texts_that_a_model_has_no_positions_for_say_so() {
    let zeros = |sizes: &[usize]| Tensor::zeros(sizes, DType::I64, Device::CPU).unwrap();
    let gpt2 = with_scope(|scope| Gpt2::new(scope, &configs::gpt2()).unwrap());
    let bert = with_scope(|scope| Bert::new(scope, &configs::bert()).unwrap());
    let llama = with_scope(|scope| Llama::new(scope, &configs::llama()).unwrap());
    let long = zeros(&[1, 1000]);
    let flat = zeros(&[3]);
    let positions = (configs::gpt2().n_positions, configs::bert().max_position_embeddings);
    let cases = [
        (gpt2.forward(&long), format!("a text of 1000 tokens; the model has {} positions (n_positions)", positions.0)),
        (bert.forward(&long, None), format!("the model has {} positions (max_position_embeddings)", positions.1)),
        (gpt2.forward(&flat), "[batch, length] are expected, got [3]".into()),
        (bert.forward(&flat, None), "[batch, length] are expected, got [3]".into()),
        (llama.forward(&flat), "[batch, length] are expected, got [3]".into()),
    ];
    for (result, expected) in cases {
        expect_error(result, &expected);
    }
}

fn llama_is_hugging_faces() {
    let model = with_scope(|scope| Llama::new(scope, &configs::llama()).unwrap());
    // Cosines and sines are in single precision.
    check(&golden("models", "llama"), &model, 1e-6, || model.forward(&tokens()));
}
