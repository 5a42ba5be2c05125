//! Tests of recipes whose inputs are no longer there.

use std::sync::Arc;

use tenure_tensor::autograd::SavedId;
use tenure_tensor::{DType, Device, Tensor};

use super::common::{cuda, in_use};
use super::{Inputs, Lie, assert_same, check, silent};

#[test]
fn a_chain_is_computed_again_through_what_was_not_saved() {
    let _in_use = in_use();
    for device in [Device::CPU, cuda()] {
        let of = Inputs::new(device, DType::F32, Lie::Dense);
        let x = of.of(&[4, 9]);
        let recipes = silent();
        let y = {
            let shifted = x.add(1.0).unwrap();
            let halved = shifted.mul(0.5).unwrap();
            // Both are views of a tensor that is gone.
            halved.t().unwrap().matmul(&halved.view(&[4, 9]).unwrap()).unwrap().detach()
        };
        let recipe = check("matmul", &recipes.book(), &y);
        let [left, right] = &recipe.inputs[..] else { panic!("two factors") };
        assert!(left.alive().is_none() && left.id == right.id && left.layout != right.layout);
        assert!(Arc::ptr_eq(left.recipe.as_ref().unwrap(), right.recipe.as_ref().unwrap()));
    }
}

#[test]
fn a_chain_may_be_deeper_than_the_stack() {
    let _in_use = in_use();
    let x = Tensor::ones(&[5], DType::F32, Device::CPU).unwrap();
    let recipes = silent();
    let mut y = x.clone();
    for _ in 0..30_000 {
        y = y.add(1.0).unwrap();
    }
    assert_same("add", &recipes.find(SavedId::of(&y)).unwrap().compute().unwrap(), &y);
}

#[test]
fn a_modified_or_freed_input_gives_an_error_and_no_wrong_bits() {
    let _in_use = in_use();
    for device in [Device::CPU, cuda()] {
        let of = Inputs::new(device, DType::F32, Lie::Dense);
        let x = of.of(&[4, 9]).detach();
        let recipes = silent();
        let hidden = x.exp().unwrap();
        let y = hidden.mul(&x).unwrap();
        let expected = y.to_bytes().unwrap();
        let recipe = recipes.find(SavedId::of(&y)).unwrap();
        // Its value before the write can be computed again.
        hidden.narrow(1, 0, 3).unwrap().zero_().unwrap();
        assert!(recipe.inputs[0].alive().is_none());
        assert_eq!(recipe.compute().unwrap().to_bytes().unwrap(), expected);
        x.narrow(0, 0, 1).unwrap().add_(1.0).unwrap();
        let error = recipe.compute().unwrap_err().to_string();
        assert!(error.starts_with("exp: ") && error.contains("was modified in place by add_"), "{error}");
        drop(x);
        assert!(recipe.compute().is_err());

        let z = of.fresh(&[4, 9]).detach().exp().unwrap();
        let recipe = recipes.find(SavedId::of(&z)).unwrap();
        assert!(recipe.inputs[0].alive().is_none());
        let error = recipe.compute().unwrap_err().to_string();
        assert!(error.contains("is no longer in memory"), "{error}");
        // Another memory address is another generation.
        let w = of.of(&[4, 9]).detach();
        let recipe = recipes.find(SavedId::of(&w.exp().unwrap())).unwrap();
        w.storage().resize(4 * 9 * 4).unwrap();
        assert!(recipe.inputs[0].alive().is_none());
    }
}
