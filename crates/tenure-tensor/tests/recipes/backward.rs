//! Tests of saved tensors that are dropped, and recomputed in the backward pass.

use std::sync::Arc;

use parking_lot::Mutex;
use tenure_device::memory;
use tenure_device::{Priority, StreamGuard};
use tenure_tensor::autocast::Autocast;
use tenure_tensor::autograd::{self, Recipe, Recipes, SavedHooks, SavedId};
use tenure_tensor::random::default_generator;
use tenure_tensor::{Attention, Conv, DType, Device, Layout, Pool, Result, Tensor};

use super::common::{cuda, in_use, in_use_alone};
use super::{Inputs, Lie, check};

/// Runs parts of a transformer and of a convolutional network, with a checkpoint inside.
fn model(device: Device, dtype: Option<DType>) -> Vec<Vec<u8>> {
    let of = Inputs::new(device, DType::F32, Lie::Dense);
    let sizes: [&[usize]; 7] = [&[3, 5, 16], &[16], &[48, 16], &[16, 16], &[32, 16], &[16, 32], &[4, 3, 3, 3]];
    let leaves: Vec<Tensor> = sizes.iter().map(|sizes| of.of(sizes)).collect();
    tenure_tensor::random::manual_seed(9);
    let running = [0.0, 1.0].map(|value| Tensor::full(&[4], value, DType::F32, device).unwrap());
    let autocast = Autocast::enter(dtype);
    let loss = || -> Result<Tensor> {
        let [x, weight, qkv, out, up, down, kernel] = &leaves[..] else { panic!("seven") };
        let x = x.add(0.5)?;
        let h = x.rms_norm(&[16], Some(weight), 1e-5)?.linear(qkv, None)?;
        let heads: Vec<Tensor> = h.view(&[3, 5, 3, 2, 8])?.permute(&[2, 0, 3, 1, 4])?.unbind(0)?;
        let how = Attention { is_causal: true, dropout: 0.2, ..Attention::default() };
        let a = heads[0].attention(&heads[1], &heads[2], &how)?.transpose(1, 2)?.reshape(&[3, 5, 16])?;
        let x = x.add(&a.linear(out, Some(weight))?.dropout(0.1, true)?)?;
        let up = up.clone();
        let down = down.clone();
        let mlp = autograd::checkpoint(&[&x], move |x: &[Tensor]| {
            let hidden = x[0].layer_norm(&[16], None, None, 1e-5)?.linear(&up, None)?.gelu()?;
            Ok(vec![hidden.dropout(0.3, true)?.linear(&down, None)?])
        })?;
        let x = x.add(&mlp[0])?;
        let images = x.reshape(&[1, 3, 5, 16])?.conv(kernel, None, &Conv::default())?;
        let images = images.batch_norm(Some((&running[0], &running[1])), None, None, true, 0.1, 1e-5)?.relu()?;
        let pooled = images.max_pool(&Pool { kernel: &[2, 2], ..Pool::default() })?;
        pooled.softmax(-1)?.mul(&pooled)?.sum_all()
    };
    let loss = loss().unwrap();
    drop(autocast);
    loss.backward().unwrap();
    let grads = leaves.iter().map(|leaf| leaf.grad().unwrap());
    let all = grads.chain(running).chain([loss.detach()]);
    let mut bytes: Vec<Vec<u8>> = all.map(|tensor| tensor.to_bytes().unwrap()).collect();
    bytes.push(default_generator(Device::CPU).next_u64().to_le_bytes().to_vec());
    bytes
}

/// The value that a hook returns for a saved tensor.
enum Kept {
    Tensor(Tensor),
    Recipe(Arc<Recipe>, Layout),
}

/// Runs `body` with hooks that drop all saved tensors that can be recomputed. Returns how many those were.
fn dropping<T>(body: impl FnOnce() -> T) -> (T, usize) {
    let count = Arc::new(Mutex::new((0, 0)));
    let noting = Arc::clone(&count);
    let counting = Arc::clone(&count);
    let recipes = Recipes::enter(move |_| noting.lock().0 += 1);
    let book = recipes.book();
    let hooks = SavedHooks::enter(
        move |tensor: &Tensor, id: SavedId| {
            Ok(match book.find(id) {
                Some(recipe) => Kept::Recipe(recipe, tensor.layout().clone()),
                None => Kept::Tensor(tensor.clone()),
            })
        },
        move |kept| match kept {
            Kept::Tensor(tensor) => Ok(tensor.clone()),
            Kept::Recipe(recipe, layout) => {
                let noted = counting.lock().0;
                let made = recipe.compute()?;
                assert_eq!(counting.lock().0, noted, "what is computed again notes nothing");
                counting.lock().1 += 1;
                Tensor::from_storage(made.storage().clone(), layout.clone(), made.dtype())
            }
        },
    );
    let result = body();
    drop((hooks, recipes));
    let count = count.lock().1;
    (result, count)
}

#[test]
fn a_backward_pass_that_computes_again_has_the_same_gradients() {
    let _alone = in_use_alone();
    for device in [Device::CPU, cuda()] {
        for dtype in [None, Some(DType::BF16)] {
            let expected = model(device, dtype);
            let (found, count) = dropping(|| model(device, dtype));
            assert!(found == expected, "on {device}, autocast to {dtype:?}");
            assert!(count > 10, "{count} were computed again");
        }
    }
    // Now on another stream, where the gradients are computed too.
    let expected = model(cuda(), None);
    let memory = memory::device(0).unwrap();
    let side = memory.streams().pooled(Priority::Default).unwrap();
    let main = memory.streams().current();
    main.lead_to(&side).unwrap();
    let (found, _) = {
        let _side = StreamGuard::new(&side);
        dropping(|| model(cuda(), None))
    };
    side.lead_to(&main).unwrap();
    assert!(found == expected);
}

#[test]
fn a_checkpoint_that_runs_again_notes_nothing() {
    let _in_use = in_use();
    let of = Inputs::new(Device::CPU, DType::F32, Lie::Dense);
    let x = of.of(&[4, 9]);
    let names = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&names);
    let recipes = Recipes::enter(move |recipe| noting.lock().push(recipe.name));
    let y = autograd::checkpoint(&[&x], |x| Ok(vec![x[0].exp()?.tanh()?])).unwrap().remove(0);
    check("tanh", &recipes.book(), &y);
    y.sum_all().unwrap().backward().unwrap();
    assert_eq!(*names.lock(), ["exp", "tanh", "sum"]);
}
