//! Python objects that graphs hold, and the garbage collector's way to them: a hook may refer to its tensor.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyWeakrefMethods, PyWeakrefReference};
use pyo3::{PyTraverseError, PyVisit};
use tenure::tensor::autograd::HookHandle;

use super::autograd::{not_a_tensor, raised};
use super::{TensorObject, convert, exception, wrapped};

/// A Python function that a graph calls. The graph owns it; the tensor object refers to it, so that the garbage
/// collector finds it through the object.
pub(super) struct HeldObject {
    object: Mutex<Option<Py<PyAny>>>,
}

impl HeldObject {
    pub(super) fn new(object: Py<PyAny>) -> Arc<Self> {
        Arc::new(Self { object: Mutex::new(Some(object)) })
    }

    /// Calls the function.
    ///
    /// # Errors
    /// The function's, or the garbage collector has freed it.
    pub(super) fn call<'py>(
        &self,
        py: Python<'py>,
        arguments: impl pyo3::call::PyCallArgs<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let object = self.object.lock().as_ref().map(|object| object.clone_ref(py));
        match object {
            Some(object) => object.into_bound(py).call1(arguments),
            None => {
                Err(PyRuntimeError::new_err("a function of this graph was freed with the tensor that it belongs to"))
            }
        }
    }
}

/// A hook that was registered. `remove` removes it.
#[pyclass(frozen, name = "RemovableHandle", module = "tenure.autograd")]
pub(crate) struct HookObject {
    handle: HookHandle,
}

#[pymethods]
impl HookObject {
    /// Removes the hook.
    fn remove(&self) {
        self.handle.remove();
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_arguments))]
    fn __exit__(&self, _arguments: &Bound<'_, PyTuple>) {
        self.remove();
    }
}

impl TensorObject {
    /// Keeps an object that the tensor's graph holds, for the garbage collector.
    pub(super) fn hold(&self, object: &Arc<HeldObject>) {
        let mut held = self.held.lock();
        // The graph has dropped the others.
        held.retain(|held| held.strong_count() > 0);
        held.push(Arc::downgrade(object));
    }
}

#[pymethods]
impl TensorObject {
    /// Calls `hook` with every gradient with respect to this tensor. A tensor that the hook returns takes its place.
    fn register_hook(&self, hook: Py<PyAny>) -> PyResult<HookObject> {
        let hook = HeldObject::new(hook);
        let held = Arc::clone(&hook);
        let handle = self.tensor().register_hook(move |grad| {
            Python::attach(|py| {
                let result = held.call(py, (TensorObject::from(grad.clone()),))?;
                match convert::tensor(&result) {
                    None if !result.is_none() => Err(not_a_tensor(&result)),
                    other => Ok(other),
                }
            })
            .map_err(raised)
        });
        let handle = handle.map_err(exception)?;
        self.hold(&hook);
        Ok(HookObject { handle })
    }

    /// Calls `hook` with this leaf when `backward` has added to its gradient, once in a pass.
    fn register_post_accumulate_grad_hook(slf: &Bound<'_, Self>, hook: Py<PyAny>) -> PyResult<HookObject> {
        // The hook gets this very object, as long as it lives, so that programs can look the leaf up.
        let this = PyWeakrefReference::new(slf)?.unbind();
        let hook = HeldObject::new(hook);
        let held = Arc::clone(&hook);
        let handle = slf.get().tensor().register_post_accumulate_grad_hook(move |leaf| {
            Python::attach(|py| {
                let object = match this.bind(py).upgrade() {
                    Some(object) => object,
                    None => wrapped(py, leaf.clone())?.into_any(),
                };
                held.call(py, (object,)).map(drop)
            })
            .map_err(raised)
        });
        let handle = handle.map_err(exception)?;
        slf.get().hold(&hook);
        Ok(HookObject { handle })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // What another handle or a graph can still reach is no garbage. Locks are held only for moments, without
        // Python's lock; a traversal that comes in between leaves the tensor to the next.
        let (Some(tensor), Some(held)) = (self.tensor.try_read(), self.held.try_lock()) else { return Ok(()) };
        if !tensor.is_only_handle() {
            return Ok(());
        }
        for held in held.iter().filter_map(Weak::upgrade) {
            if let Some(object) = held.object.try_lock() {
                visit.call(&*object)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        let held = std::mem::take(&mut *self.held.lock());
        for held in held.iter().filter_map(Weak::upgrade) {
            let object = held.object.lock().take();
            drop(object);
        }
    }
}
