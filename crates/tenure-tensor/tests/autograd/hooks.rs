//! Hooks on tensors and on saved tensors.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tenure_tensor::autograd::{self, BackwardOptions, SavedHooks};
use tenure_tensor::{AutogradError, DType, Layout, Tensor, TensorError};

use super::{grad, leaf, values};

#[test]
fn hooks_run_in_order_and_replace_the_gradient() {
    let x = leaf(&[1.0]);
    let middle = x.mul(2.0).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    for (tensor, factor) in [(&middle, 10.0), (&middle, 3.0), (&x, 7.0)] {
        let seen = Arc::clone(&seen);
        tensor
            .register_hook(move |grad| {
                seen.lock().unwrap().push(values(grad)[0]);
                grad.mul(factor).map(Some)
            })
            .unwrap();
    }
    middle.backward().unwrap();
    assert_eq!(*seen.lock().unwrap(), [1.0, 10.0, 60.0]);
    assert_eq!(grad(&x), [420.0]);
}

#[test]
fn a_hook_gets_the_sum_over_all_uses_once() {
    let x = leaf(&[1.0]);
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let handle = x
        .register_hook(move |grad| {
            counter.fetch_add(1, Ordering::Relaxed);
            assert_eq!(values(grad), [5.0]);
            Ok(None)
        })
        .unwrap();
    let step = || x.mul(2.0).unwrap().add(&x.mul(3.0).unwrap()).unwrap().backward().unwrap();
    step();
    handle.remove();
    step();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(grad(&x), [10.0]);
}

#[test]
fn a_hook_needs_a_gradient() {
    let x = Tensor::from_slice(&[1.0], &[1]).unwrap();
    assert!(x.register_hook(|_| Ok(None)).unwrap_err().to_string().contains("requires a gradient"));
    x.retain_grad().unwrap_err();
}

#[test]
fn a_hook_that_fails_ends_the_way_back() {
    let x = leaf(&[1.0]);
    x.register_hook(|_| Err(TensorError::argument("hook", "no"))).unwrap();
    assert_eq!(x.mul(2.0).unwrap().backward().unwrap_err().to_string(), "hook: no");
    assert!(x.grad().is_none());
}

fn say(tensor: &Tensor) -> String {
    tensor.sum_all().unwrap().backward().unwrap_err().to_string()
}

#[test]
fn a_hook_that_changes_the_kind_of_a_gradient_is_told() {
    let x = leaf(&[1.0, 2.0, 3.0]);
    let middle = x.mul(2.0).unwrap();
    middle.register_hook(|grad: &Tensor| grad.expand(&[2, 3]).map(Some)).unwrap();
    assert_eq!(
        say(&middle),
        "register_hook: a hook of output 0 of mul gave a gradient of float64 [2, 3] on cpu for one of float64 [3] on cpu"
    );
    x.register_hook(|grad| grad.to_dtype(DType::F32).map(Some)).unwrap();
    assert_eq!(
        say(&x),
        "register_hook: a hook of a leaf gave a gradient of float32 [3] on cpu for one of float64 [3] on cpu"
    );
    assert!(x.grad().is_none());
}

#[test]
fn a_retained_gradient_is_what_hooks_made_of_it() {
    let x = leaf(&[1.0]);
    let middle = x.mul(2.0).unwrap();
    middle.retain_grad().unwrap();
    middle.register_hook(|grad| grad.mul(5.0).map(Some)).unwrap();
    middle.mul(3.0).unwrap().backward().unwrap();
    assert_eq!((grad(&middle), grad(&x)), (vec![15.0], vec![30.0]));
}

#[test]
fn after_a_write_the_retained_gradient_is_that_of_what_was_written() {
    let x = leaf(&[1.0]);
    let y = x.mul(2.0).unwrap();
    y.retain_grad().unwrap();
    let before = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&before);
    y.register_hook(move |grad| {
        seen.lock().unwrap().extend(values(grad));
        Ok(None)
    })
    .unwrap();
    y.mul_(10.0).unwrap();
    y.mul(3.0).unwrap().backward().unwrap();
    assert_eq!((grad(&y), grad(&x)), (vec![3.0], vec![60.0]));
    assert_eq!(*before.lock().unwrap(), [30.0], "the hook was of what y was before");
}

/// A packed tensor: its values and sizes.
type Packed = (Vec<f64>, Vec<usize>);

fn pack_values() -> SavedHooks {
    SavedHooks::enter(
        |tensor, _| Ok((tensor.to_vec::<f64>()?, tensor.sizes().to_vec())),
        |(values, sizes): &Packed| Tensor::from_slice(values, sizes),
    )
}

#[test]
fn packed_tensors_give_the_same_gradients_as_often_as_they_are_needed() {
    let x = leaf(&[2.0, 3.0]);
    let y = {
        let _hooks = pack_values();
        x.mul(&x).unwrap().mul(&x).unwrap().sum_all().unwrap()
    };
    let retain = BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
    for _ in 0..2 {
        let found = autograd::grad(&[&y], &[&x], &[], retain).unwrap().remove(0).unwrap();
        assert_eq!(values(&found), [12.0, 27.0]);
    }
    let create = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    let first = autograd::grad(&[&y], &[&x], &[], create).unwrap().remove(0).unwrap();
    let second = autograd::grad(&[&first.sum_all().unwrap()], &[&x], &[], retain).unwrap().remove(0).unwrap();
    assert_eq!(values(&second), [12.0, 18.0]);
}

#[test]
fn parameters_and_their_views_are_packed_and_told_by_their_storage() {
    let weight = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap().requires_grad_(true).unwrap();
    let x = Tensor::from_slice(&[1.0, 1.0], &[1, 2]).unwrap().requires_grad_(true).unwrap();
    let packed: Arc<Mutex<HashMap<_, Vec<Layout>>>> = Arc::default();
    let seen = Arc::clone(&packed);
    let hooks = SavedHooks::enter(
        move |tensor: &Tensor, id| {
            assert!(!tensor.requires_grad());
            seen.lock().unwrap().entry(id).or_default().push(tensor.layout().clone());
            Ok(tensor.clone())
        },
        |tensor: &Tensor| Ok(tensor.clone()),
    );
    let y = x.mul(&weight.transpose(0, 1).unwrap()).unwrap().mul(&weight).unwrap();
    drop(hooks);
    let packed = packed.lock().unwrap();
    let of_weight: Vec<_> = packed.iter().filter(|(id, _)| id.generation == weight.storage().generation()).collect();
    assert_eq!(of_weight.len(), 1, "one storage at one version has one id");
    assert_eq!(of_weight[0].1.len(), 2);
    assert_ne!(of_weight[0].1[0], of_weight[0].1[1], "which the layout tells apart");
    y.sum_all().unwrap().backward().unwrap();
    assert_eq!(values(&weight.grad().unwrap()), [2.0, 6.0, 4.0, 8.0]);
}

#[test]
fn a_pack_hook_that_fails_leaves_all_as_it_was() {
    let x = leaf(&[2.0]);
    let a = x.mul(2.0).unwrap();
    let b = x.mul(3.0).unwrap();
    {
        let _hooks = SavedHooks::enter(
            |_, _| Err::<(), _>(TensorError::argument("pack", "the disk is full")),
            |()| unreachable!("nothing was packed"),
        );
        assert_eq!(a.mul(&b).unwrap_err().to_string(), "pack: the disk is full");
        assert_eq!(a.mul_(&b).unwrap_err().to_string(), "pack: the disk is full");
    }
    assert_eq!((values(&a), a.version()), (vec![4.0], 0));
    a.mul(&b).unwrap().backward().unwrap();
    assert_eq!(grad(&x), [24.0]);
}

#[test]
fn a_pack_hook_that_modifies_what_it_is_given_is_an_error_that_names_it() {
    let x = leaf(&[2.0, 3.0]);
    let y = x.mul(1.0).unwrap();
    {
        let _hooks = SavedHooks::enter(
            |tensor: &Tensor, _| {
                tensor.mul_(2.0)?;
                Ok(tensor.clone())
            },
            |tensor: &Tensor| Ok(tensor.clone()),
        );
        let said = "pack hook of saved tensors: it modified in place, by mul_, the float64 [2] that it was given, which is \
                    used besides: let it copy() the tensor, and modify the copy";
        assert_eq!(y.mul(&y).unwrap_err().to_string(), said);
    }
    // A copy belongs to the hook, which may modify it.
    let quantized = {
        let _hooks = SavedHooks::enter(
            |tensor: &Tensor, _| {
                let copy = tensor.copy()?;
                copy.fill_(5.0)?;
                Ok(copy)
            },
            |tensor: &Tensor| Ok(tensor.clone()),
        );
        x.square().unwrap().sum_all().unwrap()
    };
    quantized.backward().unwrap();
    assert_eq!(grad(&x), [10.0, 10.0]);
}

#[test]
fn unpack_must_return_the_packed_tensor() {
    let x = leaf(&[2.0, 3.0]);
    let y = {
        let _hooks = SavedHooks::enter(|_, _| Ok(()), |()| Tensor::from_slice(&[1.0], &[1]));
        x.mul(&x).unwrap().sum_all().unwrap()
    };
    let error = y.backward().unwrap_err().to_string();
    assert!(error.contains("unpacked as float64 [1], but packed as float64 [2]"), "{error}");
}

/// Enters hooks that count.
fn counted(count: &Arc<AtomicUsize>) -> SavedHooks {
    let count = Arc::clone(count);
    SavedHooks::enter(
        move |tensor: &Tensor, _| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(tensor.clone())
        },
        |tensor: &Tensor| Ok(tensor.clone()),
    )
}

#[test]
fn the_innermost_hooks_apply_and_end_with_their_scope() {
    let x = leaf(&[2.0]);
    let outer = Arc::default();
    let inner = Arc::default();
    let _outer = counted(&outer);
    {
        let _inner = counted(&inner);
        x.mul(&x).unwrap();
    }
    x.mul(&x).unwrap();
    assert_eq!((inner.load(Ordering::Relaxed), outer.load(Ordering::Relaxed)), (2, 2));
}

/// Enters hooks that note a name.
fn noted(name: &'static str, log: &Arc<Mutex<Vec<&'static str>>>) -> SavedHooks {
    let log = Arc::clone(log);
    SavedHooks::enter(
        move |tensor: &Tensor, _| {
            log.lock().unwrap().push(name);
            Ok(tensor.clone())
        },
        |tensor: &Tensor| Ok(tensor.clone()),
    )
}

#[test]
fn hooks_that_go_out_of_order_leave_the_others() {
    let x = leaf(&[2.0]);
    let log = Arc::default();
    let first = noted("first", &log);
    let second = noted("second", &log);
    drop(first);
    x.square().unwrap();
    let third = noted("third", &log);
    drop(second);
    x.square().unwrap();
    drop(third);
    x.square().unwrap();
    assert_eq!(*log.lock().unwrap(), ["second", "third"]);
}

#[test]
fn no_graph_holds_itself() {
    let token = Arc::new(());
    let packed = Arc::clone(&token);
    let hooks = SavedHooks::enter(
        move |tensor, _| Ok((tensor.clone(), Arc::clone(&packed))),
        |(tensor, _): &(Tensor, Arc<()>)| Ok(tensor.clone()),
    );
    let x = leaf(&[2.0, 3.0]);
    let a = x.mul(2.0).unwrap();
    let part = a.narrow(0, 0, 1).unwrap();
    // Each of these saves `a` or a view of it, and then becomes an ancestor of `a`.
    let b = a.mul(&x).unwrap();
    let c = part.mul(&part).unwrap();
    a.add_(&b).unwrap();
    part.mul_(&c).unwrap();
    drop(hooks);
    assert!(Arc::strong_count(&token) > 1);
    drop((a, b, c, part));
    assert_eq!(Arc::strong_count(&token), 1);
}

#[test]
fn a_leaf_is_told_when_its_gradient_is_whole_while_backward_goes_on() {
    let log = Arc::<Mutex<Vec<(&str, Vec<f64>)>>>::default();
    let leaves = [("first", leaf(&[2.0])), ("last", leaf(&[3.0]))];
    for (name, leaf) in &leaves {
        let name = *name;
        let log = Arc::clone(&log);
        leaf.register_post_accumulate_grad_hook(move |leaf| {
            log.lock().unwrap().push((name, leaf.grad().unwrap().to_vec::<f64>()?));
            Ok(())
        })
        .unwrap();
    }
    let [(_, first), (_, last)] = &leaves;
    // Each leaf is used twice. The last gets its gradient before the pass reaches the nodes that lead to the first.
    let y = first.mul(first).unwrap().mul(last).unwrap().mul(last).unwrap();
    y.backward().unwrap();
    assert_eq!(log.lock().unwrap().drain(..).collect::<Vec<_>>(), [("last", vec![24.0]), ("first", vec![36.0])]);
    let handle = first.register_post_accumulate_grad_hook(|_| panic!("it is removed")).unwrap();
    handle.remove();
    // A gradient that `grad` returns is not added to the leaf.
    let y = first.square().unwrap();
    autograd::grad(&[&y], &[first], &[], BackwardOptions::default()).unwrap();
    assert!(log.lock().unwrap().is_empty());
    y.register_post_accumulate_grad_hook(|_| Ok(())).unwrap_err();
    first.detach().register_post_accumulate_grad_hook(|_| Ok(())).unwrap_err();
}

/// Returns the error of a gradient that needs a tensor that was written to.
fn refused() -> String {
    let x = leaf(&[2.0, 3.0]);
    let y = x.mul(1.0).unwrap();
    let z = y.mul(&y).unwrap();
    y.add_(1.0).unwrap();
    say(&z)
}

#[test]
fn a_modified_tensor_is_refused_in_the_same_words_with_and_without_hooks() {
    let plain = refused();
    let _hooks = SavedHooks::enter(
        |tensor, _| Ok(tensor.clone()),
        |packed| {
            let node = String::new();
            let origin = String::new();
            let writer = packed.writes().last_writer();
            let dtype = packed.dtype();
            let sizes = packed.sizes().to_vec();
            let found = packed.version();
            Err(AutogradError::Modified { node, dtype, sizes, origin, writer, found, saved: 0 }.into())
        },
    );
    assert_eq!(refused(), plain);
}
