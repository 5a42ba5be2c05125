//! Recipes: how a PyTorch operation makes a result again.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use tenure::core::{Device, Storage};
use tenure::offload::{KnownBytes, Recomputation, RecomputeInput, SavedBytesId};
use tenure_device::host::OnHostMemory;

use crate::operations::Call;

/// An input of a recipe: the identity of its bytes, and the recipe that makes them, if known.
pub(crate) type Ingredient = (SavedBytesId, Option<Arc<Recipe>>);

/// The operation, inputs and result number that make one storage again.
pub(crate) struct Recipe {
    pub(crate) id: SavedBytesId,
    pub(crate) inputs: Vec<Ingredient>,
    pub(crate) made_in: Option<usize>,
    pub(crate) bytes: usize,
    pub(crate) device: Device,
    pub(crate) call: Arc<Call>,
    /// The index of the result among the call's results.
    pub(crate) number: usize,
}

impl Recomputation for Recipe {
    fn id(&self) -> SavedBytesId {
        self.id
    }

    fn inputs(&self) -> Vec<RecomputeInput> {
        self.inputs
            .iter()
            .map(|(id, recipe)| RecomputeInput {
                id: *id,
                here: None,
                recompute: recipe.as_ref().map(|recipe| Arc::clone(recipe) as _),
            })
            .collect()
    }

    fn made_in(&self) -> Option<usize> {
        self.made_in
    }

    fn run(&self, known: &dyn KnownBytes) -> Result<Storage, Failure> {
        // On the host also after the budget has been closed.
        let _on_host = self.device.is_cpu().then(OnHostMemory::enter);
        // A loop instead of recursion: a chain of recipes may be deeper than the stack.
        let mut next = self;
        let mut waiting = Vec::new();
        let mut made = HashMap::new();
        loop {
            let mut inputs = Vec::with_capacity(next.inputs.len());
            let mut lacking = None;
            for (id, recipe) in &next.inputs {
                let found = match made.get(id) {
                    Some(found) => Some(Storage::clone(found)),
                    None => known.find(*id)?,
                };
                match found {
                    Some(found) => inputs.push(found),
                    None => {
                        lacking = Some(recipe.as_deref().ok_or("what it is made of is gone")?);
                        break;
                    }
                }
            }
            if let Some(recipe) = lacking {
                waiting.push(std::mem::replace(&mut next, recipe));
                continue;
            }
            let result = next.compute(inputs)?;
            let Some(later) = waiting.pop() else { return Ok(result) };
            known.made(next.id, &result);
            made.insert(next.id, result);
            next = later;
        }
    }
}

impl Recipe {
    /// Computes the result from inputs that are all in memory.
    fn compute(&self, inputs: Vec<Storage>) -> Result<Storage, Failure> {
        let storage = self.call.run(self.number, inputs, self.device)?;
        let is_same = storage.bytes() == self.bytes;
        if is_same { Ok(storage) } else { Err("its operation makes something else now".into()) }
    }
}

impl Drop for Recipe {
    /// Frees the chain of recipes in a loop instead of recursively: it may be deeper than the stack.
    fn drop(&mut self) {
        let mut chain: Vec<Arc<Self>> = self.inputs.iter_mut().filter_map(|(_, recipe)| recipe.take()).collect();
        while let Some(next) = chain.pop() {
            if let Some(mut last) = Arc::into_inner(next) {
                chain.extend(last.inputs.iter_mut().filter_map(|(_, recipe)| recipe.take()));
            }
        }
    }
}

type Failure = Box<dyn Error + Send + Sync>;
