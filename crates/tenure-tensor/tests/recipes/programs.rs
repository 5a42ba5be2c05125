//! Property tests of recipes, for random programs.

use std::collections::HashMap;

use proptest::prelude::*;
use tenure_tensor::autograd::SavedId;
use tenure_tensor::ops::cat;
use tenure_tensor::{DType, Device, Layout, Result, Tensor};

use super::common::{cuda, in_use};
use super::{Inputs, Lie, silent};

/// A step of a program: the operation, and which of the existing tensors it takes.
type Step = (u8, u8, u8);

fn step((operation, a, b): Step, there: &[Tensor]) -> Result<Option<Tensor>> {
    let [a, b] = [a, b].map(|number| &there[usize::from(number) % there.len()]);
    Ok(Some(match operation % 16 {
        0 => a.add(b)?,
        1 => a.mul(&b.sigmoid()?)?,
        2 => a.gelu()?,
        3 => a.softmax(-1)?,
        4 => a.layer_norm(&[8], None, None, 1e-5)?,
        5 => a.reshape(&[4, 4, 4])?.matmul(&b.reshape(&[4, 4, 4])?)?.tanh()?.view(&[2, 4, 8])?,
        6 => a.dropout(0.3, true)?,
        7 => cat(&[&a.narrow(1, 0, 2)?, &b.narrow(1, 1, 2)?], 1)?,
        8 => a.transpose(0, 1)?.contiguous()?.view(&[2, 4, 8])?,
        9 => a.to_dtype(DType::BF16)?.square()?.to_dtype(DType::F32)?.tanh()?,
        10 => a.swiglu(b)?,
        11 => a.gt(b)?.where_(a, 0.5)?,
        12 => a.sub(&b.mean(&[1], true)?)?,
        13 => a.view(&[1, 4, 4, 4])?.batch_norm(None, None, None, true, 0.1, 1e-5)?.view(&[2, 4, 8])?,
        14 => a.narrow(2, 0, 4)?.pow(3)?.tanh()?.repeat(&[1, 1, 2])?,
        _ => {
            a.mul_(0.5)?;
            return Ok(None);
        }
    }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every recorded result of a random program is recomputed with the same bits, whichever tensors are still alive.
    /// Only if the program writes in place may a recomputation fail instead; the error says so.
    #[test]
    fn any_computation_is_computed_again(
        steps in prop::collection::vec(any::<Step>(), 1..40),
        kept in any::<u64>(),
        writes in any::<bool>(),
        on_device in any::<bool>(),
    ) {
        let _in_use = in_use();
        let of = Inputs::new(if on_device { cuda() } else { Device::CPU }, DType::F32, Lie::Dense);
        let recipes = silent();
        // Tensors that require no gradient are saved by no operation.
        let mut there: Vec<Tensor> = (0..3).map(|_| of.of(&[2, 4, 8]).detach()).collect();
        let mut expected: HashMap<SavedId, (Layout, Vec<u8>)> = HashMap::new();
        let mut has_written = false;
        for next in steps {
            if !writes && next.0 % 16 == 15 {
                continue;
            }
            match step(next, &there).unwrap() {
                Some(made) => {
                    expected.insert(SavedId::of(&made), (made.layout().clone(), made.to_bytes().unwrap()));
                    there.push(made);
                }
                None => has_written = true,
            }
        }
        let leaves = there.len().min(3);
        let mut number = 0;
        there.retain(|_| { number += 1; number <= leaves || kept >> (number % 64) & 1 == 1 });
        for (id, (layout, bytes)) in expected {
            let Some(recipe) = recipes.find(id) else { continue };
            match recipe.compute() {
                Ok(made) => {
                    let made = Tensor::from_storage(made.storage().clone(), layout, DType::F32).unwrap();
                    prop_assert_eq!(made.to_bytes().unwrap(), bytes);
                }
                Err(error) => {
                    let error = error.to_string();
                    prop_assert!(has_written, "{}", error);
                    prop_assert!(error.contains("was modified in place") || error.contains("no longer in memory"), "{}", error);
                }
            }
        }
    }
}
