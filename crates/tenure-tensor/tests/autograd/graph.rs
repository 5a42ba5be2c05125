//! Graphs and backward passes through them.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_tensor::autocast::Autocast;
use tenure_tensor::autograd::{self, Anomaly, BackwardOptions, Context, GradMode, Gradcheck, SavedHooks};
use tenure_tensor::random::{self, Generator};
use tenure_tensor::{DType, Device, Result, Tensor};

use super::{grad, leaf, values};

#[test]
fn gradients_add_up_over_all_uses() {
    let x = leaf(&[1.0, 2.0]);
    let y = x.mul(&x).unwrap().add(&x.mul(3.0).unwrap()).unwrap().sum_all().unwrap();
    y.backward().unwrap();
    assert_eq!(grad(&x), [5.0, 7.0]);
}

/// Products and norms add their gradients to those that have arrived before.
#[test]
fn gradients_add_up_in_whatever_order_they_come() {
    type Use<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
    const SIZES: [usize; 3] = [2, 3, 4];
    let random =
        |sizes: &[usize]| Tensor::randn(sizes, DType::F64, Device::CPU, &Generator::new(sizes.len() as u64)).unwrap();
    let x = random(&SIZES);
    let weight = random(&[4, 4]);
    let bias = random(&[4]);
    let uses: [Use<'_>; 6] = [
        &|x| x.mul(3.0),
        &|x| x.linear(&weight, None),
        &|x| x.linear(&weight, Some(&bias)),
        &|x| x.rms_norm(&[4], Some(&bias), 1e-5),
        &|x| x.layer_norm(&[4], None, None, 1e-5),
        // The input is used twice, and its rows are not contiguous.
        &|x| x.transpose(0, 1)?.matmul(&x.sum(&[0, 1], false)?.mul(&weight)?)?.transpose(0, 1)?.contiguous(),
    ];
    let grad = |uses: &[Use<'_>]| {
        let x = x.detach().requires_grad_(true).unwrap();
        let y = x.mul(1.0).unwrap();
        let outputs: Vec<Tensor> = uses.iter().map(|used| used(&y).unwrap()).collect();
        let outputs: Vec<&Tensor> = outputs.iter().collect();
        let given = random(&SIZES);
        let grads = vec![Some(&given); outputs.len()];
        values(&autograd::grad(&outputs, &[&x], &grads, BackwardOptions::default()).unwrap().remove(0).unwrap())
    };
    let alone: Vec<Vec<f64>> = uses.iter().map(|used| grad(&[*used])).collect();
    let sum: Vec<f64> = (0..24).map(|at| alone.iter().map(|grad| grad[at]).sum()).collect();
    for turn in 0..uses.len() {
        let mut uses = uses;
        uses.rotate_left(turn);
        for (found, expected) in grad(&uses).into_iter().zip(&sum) {
            assert!((found - expected).abs() < 1e-12, "turn {turn}: {found}, {expected} one after the other");
        }
    }
}

#[test]
fn gradients_of_broadcast_tensors_are_summed_up() {
    let x = leaf(&[1.0, 2.0, 3.0]);
    let row = leaf(&[10.0]);
    x.mul(&row).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(grad(&row), [6.0]);
}

#[test]
fn gradients_have_gradients() {
    let x = leaf(&[3.0]);
    let cube = x.mul(&x).unwrap().mul(&x).unwrap();
    let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
    let first = autograd::grad(&[&cube], &[&x], &[], options).unwrap().remove(0).unwrap();
    let second = autograd::grad(&[&first], &[&x], &[], options).unwrap().remove(0).unwrap();
    let third = autograd::grad(&[&second], &[&x], &[], BackwardOptions::default()).unwrap().remove(0).unwrap();
    assert_eq!([values(&first), values(&second), values(&third)], [[27.0], [18.0], [6.0]]);
    assert!(x.grad().is_none());
}

#[test]
fn a_graph_deeper_than_the_stack_is_gone_through_and_dropped() {
    let x = leaf(&[1.0]);
    let mut y = x.clone();
    for _ in 0..50_000 {
        y = y.mul(1.0).unwrap();
    }
    y.backward().unwrap();
    assert_eq!(grad(&x), [1.0]);
}

#[test]
fn backward_twice_says_what_to_do() {
    let x = leaf(&[1.0]);
    let y = x.mul(&x).unwrap();
    y.backward().unwrap();
    let error = y.backward().unwrap_err().to_string();
    assert!(error.contains("mul") && error.contains("retain_graph"), "{error}");
}

#[test]
fn threads_do_not_change_a_bit() {
    let big = Tensor::full(&[300, 500], 1.5, DType::F32, Device::CPU).unwrap();
    assert_eq!(big.mul(2).unwrap().to_vec::<f32>().unwrap(), vec![3.0; 150_000]);
}

#[test]
fn a_graph_that_is_retained_can_be_gone_through_again() {
    let x = leaf(&[3.0]);
    let y = x.mul(&x).unwrap();
    let retain = BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
    autograd::backward(&[&y], &[], retain).unwrap();
    y.backward().unwrap();
    assert_eq!(grad(&x), [12.0]);
}

#[test]
fn a_gradient_is_needed_for_more_than_one_element() {
    let x = leaf(&[1.0, 2.0]);
    let error = x.mul(2.0).unwrap().backward().unwrap_err().to_string();
    assert!(error.contains("[2]") && error.contains("pass one"), "{error}");
}

#[test]
fn a_tensor_that_no_result_depends_on_has_no_gradient() {
    let x = leaf(&[1.0]);
    let unused = leaf(&[1.0]);
    let y = || x.mul(2.0).unwrap();
    let error = autograd::grad(&[&y()], &[&x, &unused], &[], BackwardOptions::default()).unwrap_err().to_string();
    assert!(error.contains("input 1") && error.contains("allow_unused"), "{error}");
    let options = BackwardOptions { allow_unused: true, ..BackwardOptions::default() };
    let found = autograd::grad(&[&y()], &[&x, &unused], &[], options).unwrap();
    assert!(found[0].is_some() && found[1].is_none());
}

#[test]
fn gradients_of_what_lies_between_can_be_asked_for() {
    let x = leaf(&[3.0]);
    let middle = x.mul(2.0).unwrap();
    let y = middle.mul(&middle).unwrap();
    let found = autograd::grad(&[&y], &[&middle], &[], BackwardOptions::default()).unwrap().remove(0).unwrap();
    assert_eq!(values(&found), [12.0]);
    assert!(x.grad().is_none() && middle.grad().is_none());
}

#[test]
fn a_saved_tensor_that_was_modified_is_named() {
    let x = leaf(&[1.0, 2.0]);
    let a = x.mul(2.0).unwrap();
    let y = a.mul(&a).unwrap();
    a.add_(1.0).unwrap();
    let error = y.sum_all().unwrap().backward().unwrap_err().to_string();
    assert!(error.contains("mul: a tensor that its gradient needs was modified in place"), "{error}");
    assert!(error.contains("float64 [2], which mul made, is at version 1, expected 0"), "{error}");
}

#[test]
fn anomaly_mode_names_the_operation_that_made_a_nan() {
    let _anomaly = Anomaly::detect();
    let x = leaf(&[0.0]);
    let error = x.div(&x).unwrap().mul(2.0).unwrap().backward().unwrap_err().to_string();
    assert!(error.starts_with("div: gradient 1 has a value that is not a number"), "{error}");
    assert!(error.contains("anomaly_mode_names_the_operation"), "no place of the forward call in {error}");
}

#[test]
fn a_function_of_the_user_has_second_derivatives() {
    /// Computes x³, with a formula written by hand.
    fn cube(x: &[Tensor]) -> Result<Vec<Tensor>> {
        let cubed = autograd::no_grad(|| x[0].mul(&x[0])?.mul(&x[0]))?;
        let cubed = autograd::attach(cubed, "cube", &[&x[0]], |saver| {
            let x = saver.save(&x[0])?;
            Ok(move |context: &Context<'_>| {
                let x = context.unpack(x)?;
                Ok([Some(context.grad(0)?.mul(&x.mul(&x)?.mul(3.0)?)?)].into_iter().collect())
            })
        })?;
        Ok(vec![cubed])
    }
    autograd::gradcheck(cube, &[leaf(&[1.0, -2.0])], Gradcheck::default()).unwrap();
    autograd::gradgradcheck(cube, &[leaf(&[1.0, -2.0])], Gradcheck::default()).unwrap();
}

#[test]
fn an_output_that_nothing_depends_on_brings_no_gradient() {
    let x = leaf(&[1.0]);
    let (used, unused) = autograd::no_grad(|| (x.mul(2.0).unwrap(), x.mul(3.0).unwrap()));
    autograd::attach_all(&[&used, &unused], "both", &[&x], |_| {
        Ok(|context: &Context<'_>| {
            assert!(context.grad_if_any(1).is_none());
            let second = context.grad(1)?.mul(3.0)?;
            Ok([Some(context.grad(0)?.mul(2.0)?.add(&second)?)].into_iter().collect())
        })
    })
    .unwrap();
    used.backward().unwrap();
    assert_eq!(grad(&x), [2.0]);
}

#[test]
fn a_formula_that_forgets_an_input_is_told() {
    let x = leaf(&[1.0]);
    let y = autograd::attach(x.detach(), "forgetful", &[&x, &x], |_| {
        Ok(|context: &Context<'_>| Ok([Some(context.grad(0)?)].into_iter().collect()))
    });
    let error = y.unwrap().backward().unwrap_err().to_string();
    assert_eq!(error, "forgetful: backward gave 1 gradients for 2 inputs");
}

#[test]
fn a_gradient_belongs_to_its_leaf_alone() {
    let x = leaf(&[1.0, 2.0]);
    let y = leaf(&[3.0, 4.0]);
    x.add(&y).unwrap().sum_all().unwrap().backward().unwrap();
    x.grad().unwrap().mul_(5.0).unwrap();
    assert_eq!((grad(&x), grad(&y)), (vec![5.0; 2], vec![1.0; 2]));
}

#[test]
fn a_gradient_that_was_given_is_not_written_to() {
    let x = leaf(&[1.0, 2.0]);
    let given = Tensor::from_slice(&[1.0, 1.0], &[2]).unwrap();
    for _ in 0..2 {
        let y = x.mul(1.0).unwrap().add(&x).unwrap().view(&[2]).unwrap();
        autograd::backward(&[&y], &[Some(&given)], BackwardOptions::default()).unwrap();
    }
    assert_eq!((grad(&x), values(&given)), (vec![4.0; 2], vec![1.0; 2]));
}

#[test]
fn gradients_are_added_where_they_are_unless_someone_has_them() {
    let x = leaf(&[1.0, 2.0]);
    let step = || x.mul(&x).unwrap().sum_all().unwrap().backward().unwrap();
    let place = || x.grad().unwrap().storage().generation();
    step();
    let first = place();
    step();
    assert_eq!((place(), grad(&x)), (first, vec![4.0, 8.0]));
    let kept = x.grad().unwrap();
    step();
    assert_ne!(place(), first);
    assert_eq!((values(&kept), grad(&x)), (vec![4.0, 8.0], vec![6.0, 12.0]));
}

#[test]
fn threads_that_go_back_at_once_lose_nothing() {
    let x = leaf(&[1.0; 100]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| x.mul(3.0).unwrap().sum_all().unwrap().backward().unwrap()));
        }
    });
    assert_eq!(grad(&x), vec![600.0; 100]);
}

fn makes_a_nan() -> Result<()> {
    let x = leaf(&[0.0]);
    x.div(&x).unwrap().backward()
}

#[test]
fn modes_that_go_out_of_order_leave_the_others() {
    let off = GradMode::enter(false);
    let on = GradMode::enter(true);
    drop(off);
    assert!(autograd::is_grad_enabled());
    let off = GradMode::enter(false);
    drop(on);
    assert!(!autograd::is_grad_enabled());
    drop(off);
    assert!(autograd::is_grad_enabled());
    let first = Anomaly::detect();
    let second = Anomaly::detect();
    drop(first);
    makes_a_nan().unwrap_err();
    drop(second);
    makes_a_nan().unwrap();
}

#[test]
fn a_thread_that_ends_can_compute_and_drop_graphs() {
    struct Late(Tensor);
    impl Drop for Late {
        fn drop(&mut self) {
            let _looks = Anomaly::detect();
            let _packs = SavedHooks::enter(|tensor: &Tensor, _| Ok(tensor.clone()), |tensor| Ok(tensor.clone()));
            let _casts = Autocast::enter(DType::BF16);
            let y = autograd::no_grad(|| self.0.mul(2.0)).unwrap().add(&self.0).unwrap();
            y.sum_all().unwrap().backward().unwrap();
            ENDED.fetch_add(1, Ordering::Relaxed);
        }
    }
    static ENDED: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    let thread = std::thread::spawn(|| {
        // The last values of a thread are dropped first: all others here are gone before this one.
        LATE.with_borrow_mut(|_| ());
        let x = leaf(&[1.0]);
        let late = autograd::with_grad(|| x.mul(&x).unwrap().add(&x).unwrap());
        drop((Anomaly::detect(), Autocast::enter(DType::BF16), x.mul(&x).unwrap().exp().unwrap()));
        LATE.set(Some(Late(late)));
    });
    thread.join().unwrap();
    assert_eq!(ENDED.load(Ordering::Relaxed), 1);
}

/// The gradient is zero as in PyTorch: an optimizer then decays such a parameter instead of skipping it.
#[test]
fn a_function_without_a_slope_has_a_gradient_of_zeros() {
    type Function = fn(&Tensor) -> Result<Tensor>;
    let functions: [Function; 11] = [
        Tensor::sign,
        Tensor::floor,
        Tensor::ceil,
        Tensor::round,
        Tensor::trunc,
        |x| x.pow(0),
        |x| x.div_floor(2.0),
        |x| x.div_trunc(2.0),
        |x| written(x, |to| to.fill_(3.0)),
        |x| written(x, |to| to.copy_(&Tensor::ones(&[2], DType::F64, Device::CPU)?)),
        |x| written(x, |to| to.uniform_(0.0, 1.0, &random::Generator::default())),
    ];
    for function in functions {
        let x = leaf(&[0.5, -1.5]);
        function(&x).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(grad(&x), [0.0, 0.0]);
    }
}

fn written(x: &Tensor, write: impl Fn(&Tensor) -> Result<()>) -> Result<Tensor> {
    let y = x.mul(1.0)?;
    write(&y)?;
    Ok(y)
}
