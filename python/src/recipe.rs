//! How an operation of PyTorch's makes a result again.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use pyo3::prelude::*;
use tenure::offload::{Find, Id, Input, Recompute};
use tenure::prelude::*;
use tenure_capi::shared::{self, OnHostMemory};

use crate::errors::complaint;

/// A storage of PyTorch's: its address, its bytes, and how often it was written to.
pub(crate) type Bytes = (usize, usize, u64);

/// Which bytes, and how they are made themselves.
pub(crate) type Ingredient = (Id, Option<Arc<Recipe>>);

/// A storage, as one of PyTorch's.
pub(crate) fn given<'py>(storage: Storage, make: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let bytes = storage.bytes();
    let lent = shared::lend(storage);
    let made = make.call1((bytes,))?;
    if lent.is_taken() {
        Ok(made)
    } else {
        Err(complaint("PyTorch did not ask Tenure for memory: another allocator took its place".into()))
    }
}

/// How an operation of PyTorch's makes a result again.
pub(crate) struct Recipe {
    pub(crate) id: Id,
    pub(crate) inputs: Vec<Ingredient>,
    pub(crate) made_in: Option<usize>,
    pub(crate) bytes: usize,
    pub(crate) device: Device,
    pub(crate) stream: usize,
    pub(crate) make: Arc<Py<PyAny>>,
    /// See [`Budget::operation`](crate::budget::Budget::operation).
    pub(crate) compute: Py<PyAny>,
}

impl Recompute for Recipe {
    fn id(&self) -> Id {
        self.id
    }

    fn inputs(&self) -> Vec<Input> {
        let recompute = |recipe: &Arc<Self>| Arc::clone(recipe) as Arc<dyn Recompute>;
        let input =
            |(id, recipe): &Ingredient| Input { id: *id, stays: false, recompute: recipe.as_ref().map(recompute) };
        self.inputs.iter().map(input).collect()
    }

    fn made_in(&self) -> Option<usize> {
        self.made_in
    }

    fn run(&self, find: Find<'_>) -> Result<Storage, Failure> {
        // Also when the budget is over.
        let _on_host = self.device.is_cpu().then(OnHostMemory::enter);
        // Not one inside the other: a chain may be deeper than the stack.
        let (mut next, mut waiting, mut made) = (self, Vec::new(), HashMap::new());
        loop {
            let (mut inputs, mut lacking) = (Vec::with_capacity(next.inputs.len()), None);
            for (id, recipe) in &next.inputs {
                let found = match made.get(id) {
                    Some(found) => Some(Storage::clone(found)),
                    None => find(*id)?,
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
            made.insert(next.id, result);
            next = later;
        }
    }
}

impl Recipe {
    /// The result of an operation whose inputs are there.
    fn compute(&self, inputs: Vec<Storage>) -> Result<Storage, Failure> {
        Python::attach(|py| {
            let inputs = inputs.into_iter().map(|input| given(input, self.make.bind(py)));
            let inputs = inputs.collect::<PyResult<Vec<_>>>()?;
            let made = self.compute.call1(py, (inputs, self.stream))?;
            let (_result, address, bytes) = made.extract::<(Py<PyAny>, usize, usize)>(py)?;
            // SAFETY: the result has the storage.
            let storage = unsafe { shared::share(self.device, address, bytes) };
            storage.filter(|_| bytes == self.bytes).ok_or_else(|| "its operation makes something else now".into())
        })
    }
}

impl Drop for Recipe {
    /// One after the other, not one inside the other: a chain may be deeper than the stack.
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
