//! Tests of which operations are recorded, and when a recipe refuses to run.

use std::sync::Arc;

use parking_lot::Mutex;
use tenure_device::memory;
use tenure_tensor::autograd::{self, Recipes, SavedHooks, SavedId};
use tenure_tensor::{Access, DType, Device, Tensor, cuda, precision};

use super::common::{self, in_use, in_use_alone, simulated};
use super::{Inputs, Lie, silent};

#[test]
fn other_inputs_and_other_precision_are_refused() {
    let _alone = in_use_alone();
    let of = Inputs::new(Device::CPU, DType::F32, Lie::Dense);
    let x = of.of(&[4, 9]);
    let recipes = silent();
    let recipe = recipes.find(SavedId::of(&x.softmax(1).unwrap())).unwrap();
    let turned = of.of(&[9, 4]).t().unwrap();
    for inputs in
        [vec![], vec![turned], vec![of.of(&[4, 8])], vec![x.clone(), x.clone()], vec![x.to_dtype(DType::F64).unwrap()]]
    {
        let error = recipe.run(&inputs).unwrap_err().to_string();
        assert!(error.contains("other inputs"), "{error}");
    }
    let allowed = precision::tf32_in_products();
    precision::allow_tf32_in_products(!allowed);
    let error = recipe.run(std::slice::from_ref(&x)).unwrap_err().to_string();
    precision::allow_tf32_in_products(allowed);
    assert!(error.contains("was changed since"), "{error}");
    assert!(recipe.run(&[x]).is_ok());
}

#[test]
fn nothing_is_noted_outside_of_recipes() {
    let _in_use = in_use();
    let of = Inputs::new(Device::CPU, DType::F32, Lie::Dense);
    let x = of.of(&[4, 9]);
    let recipes = silent();
    let count = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&count);
    let inner = Recipes::enter(move |recipe| noted.lock().push(recipe.name));
    let a = x.exp().unwrap();
    let b = autograd::no_grad(|| x.exp()).unwrap();
    let c = x.t().unwrap();
    let written = x.mul(2.0).unwrap();
    written.relu_().unwrap();
    let same = x.contiguous().unwrap().to_dtype(DType::F32).unwrap().dropout(0.5, false).unwrap();
    assert_eq!(*count.lock(), ["exp", "mul"]);
    assert!(inner.find(SavedId::of(&a)).is_some() && recipes.find(SavedId::of(&a)).is_none());
    for none in [&b, &c, &written, &same, &x] {
        assert!(inner.find(SavedId::of(none)).is_none());
    }
    let book = inner.book();
    drop(inner);
    let d = x.exp().unwrap();
    assert!(book.find(SavedId::of(&a)).is_some() && book.find(SavedId::of(&d)).is_none());
    assert!(recipes.find(SavedId::of(&d)).is_some());
    let elsewhere = std::thread::spawn(move || SavedId::of(&x.exp().unwrap())).join().unwrap();
    assert!(recipes.find(elsewhere).is_none());
    drop(recipes);
    assert_eq!(*count.lock(), ["exp", "mul"]);
}

#[test]
fn a_simulated_kernel_notes_no_operation_in_the_waiting_thread() {
    let _in_use = in_use();
    let x = autograd::no_grad(|| Tensor::full(&[4], 2.0, DType::F32, common::cuda())).unwrap();
    let y = x.empty_like().unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&heard);
    let _recipes = Recipes::enter(move |recipe| noting.lock().push(recipe.name));
    let access = Access::new("double", &[&y], &[&x]).unwrap();
    cuda::submit(&access, |_| Ok(()), |out, x| out[0].copy_(&x[0].mul(2.0)?)).unwrap();
    drop(access);
    memory::device(0).unwrap().streams().current().synchronize().unwrap();
    assert!(heard.lock().is_empty());
    if simulated().is_some() {
        assert_eq!(y.to_vec::<f32>().unwrap(), [4.0; 4]);
    }
}

#[test]
fn the_observer_hears_of_an_operation_before_it_saves() {
    let _in_use = in_use();
    let of = Inputs::new(Device::CPU, DType::F32, Lie::Dense);
    let x = of.of(&[4, 9]);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&heard);
    let packing = Arc::clone(&heard);
    let recipes = Recipes::enter(move |recipe| noting.lock().push(recipe.name));
    let book = recipes.book();
    let _hooks = SavedHooks::enter(
        move |tensor: &Tensor, id: SavedId| {
            packing.lock().push(if book.find(id).is_some() { "saves what has one" } else { "saves" });
            Ok(tensor.clone())
        },
        |tensor: &Tensor| Ok(tensor.clone()),
    );
    x.exp().unwrap().gelu().unwrap();
    assert_eq!(*heard.lock(), ["exp", "saves what has one", "gelu", "saves what has one"]);
}
