//! Handles of a switcher's models.

use std::sync::Arc;
use std::time::Duration;

use tenure_tensor::Tensor;

use super::switcher::SwitcherShared;
use super::{LentModel, Measured};
use crate::Result;

/// A handle of a [`Switcher`](super::Switcher)'s model. The model outlives its handles, until it is
/// [removed](Self::remove).
#[derive(Clone)]
pub struct SwitchedModel {
    shared: Arc<SwitcherShared>,
    name: Arc<str>,
    number: u64,
}

impl SwitchedModel {
    pub(super) fn new(shared: &Arc<SwitcherShared>, name: &str, number: u64) -> Self {
        Self { shared: Arc::clone(shared), name: name.into(), number }
    }

    /// Returns the model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Loads the model's missing weights, and computes its outputs. Inputs are copied to the device. On a CUDA device,
    /// the outputs are ready when the thread's current stream has done the work that it holds on return.
    ///
    /// # Errors
    /// There is no room for the model; its files cannot be read; the network refuses the inputs; the model was removed.
    /// The next call is unaffected.
    pub fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.shared.forward(&self.name, self.number, inputs)
    }

    /// Loads the model, as a call would.
    ///
    /// # Errors
    /// There is no room for the model; its files cannot be read; it was removed.
    pub fn load(&self) -> Result<()> {
        self.shared.load(&self.name, self.number)
    }

    /// Waits until the weights in transfer to the device have arrived. Calls on other threads go on meanwhile.
    ///
    /// # Errors
    /// The model's files cannot be read; a driver call failed; the model was removed.
    pub fn settle(&self) -> Result<()> {
        let wait = self.shared.with(&self.name, self.number, |model| model.waiter())?;
        Ok(wait()?)
    }

    /// Loads the model, as a call would, and lends it to another process, which may begin to compute before the weights
    /// have arrived. The model stays on the device as long as it is lent.
    ///
    /// # Errors
    /// [`SwitchedError::OnCpu`](super::SwitchedError::OnCpu); the errors of [`load`](Self::load).
    pub fn lend(&self) -> Result<LentModel> {
        self.shared.lend(&self.name, self.number)
    }

    /// Sets the order and groups in which the model's tensors are loaded from the measurements of a process that
    /// computed it, and loads it. The second call in this process does the same by itself. Does nothing if the order is
    /// known already. The model must not be lent.
    ///
    /// # Errors
    /// There is no room for the model; its files cannot be read; a driver call failed; it was removed.
    pub fn learn(&self, measured: &Measured) -> Result<()> {
        self.shared.with(&self.name, self.number, |model| model.learn(&self.shared, measured))?
    }

    /// Evicts the model from the device. A call loads it again. A [lent](Self::lend) model stays.
    ///
    /// # Errors
    /// The model was removed.
    pub fn evict(&self) -> Result<()> {
        self.shared.with(&self.name, self.number, |model| model.evict(&self.shared, u64::MAX))
    }

    /// Evicts `bytes` bytes of the model from the device, rounded up to whole chunks. They are at its end, which the
    /// next call needs last. On the CPU the whole model is evicted.
    ///
    /// # Errors
    /// The model was removed.
    pub fn evict_bytes(&self, bytes: u64) -> Result<()> {
        self.shared.with(&self.name, self.number, |model| model.evict(&self.shared, bytes))
    }

    /// Calls `done` when the weights in transfer have arrived. It is given the time from now until then, on the CPU the
    /// time from the beginning of their reading, or `None` if they cannot arrive. `done` runs on a thread of the driver
    /// or of the file reader: it must neither wait nor use the device.
    pub fn when_loaded(&self, done: impl FnOnce(Option<Duration>) + Send + 'static) {
        let mut done = Some(done);
        // If `done` is still here after this call, nothing else will call it.
        let told = self.shared.with(&self.name, self.number, |model| {
            if let Some(done) = done.take() {
                model.when_loaded(&self.shared, Box::new(done));
            }
        });
        if let (Err(_), Some(done)) = (told, done) {
            done(None);
        }
    }

    /// Evicts the model, and drops its image from the host's memory too, so that it is read from its files again.
    ///
    /// # Errors
    /// The model was removed.
    pub fn forget(&self) -> Result<()> {
        self.shared.with(&self.name, self.number, |model| {
            model.evict(&self.shared, u64::MAX);
            self.shared.images.forget(model.manifest());
        })
    }

    /// Sets how much the model's calls matter compared with other models'. Each unit, up to 10 and down to -10, doubles
    /// the worth of keeping the model on the device. It is 0 at first.
    ///
    /// # Errors
    /// The model was removed.
    pub fn set_priority(&self, priority: i32) -> Result<()> {
        self.shared.with(&self.name, self.number, |model| model.priority = priority.clamp(-10, 10))
    }

    /// Returns whether the whole model is on the device or in transfer to it.
    ///
    /// # Errors
    /// The model was removed.
    pub fn is_resident(&self) -> Result<bool> {
        self.shared.with(&self.name, self.number, |model| model.missing_bytes() == 0)
    }

    /// Returns the size in bytes of the model's weights that are on the device now; on a CUDA device in whole chunks.
    ///
    /// # Errors
    /// The model was removed.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.shared.with(&self.name, self.number, |model| model.resident_bytes())
    }

    /// Returns the sizes in bytes of the groups in which the model is loaded, in order. Until the order is learned,
    /// each tensor is a group.
    ///
    /// # Errors
    /// The model was removed.
    pub fn group_bytes(&self) -> Result<Vec<u64>> {
        self.shared.with(&self.name, self.number, |model| {
            model.manifest().groups().iter().map(|group| group.end - group.start).collect()
        })
    }

    /// Returns the size in bytes of the tables, such as those of tokens. On a CUDA device they stay in the host's
    /// memory, where a call reads the rows that it needs. They are in no group.
    ///
    /// # Errors
    /// The model was removed.
    pub fn table_bytes(&self) -> Result<u64> {
        self.shared.with(&self.name, self.number, |model| model.table_bytes())
    }

    /// Waits for the last load, and returns how long its copy took: to the device, or on the CPU from the files. It
    /// returns `None` before the first load.
    ///
    /// # Errors
    /// The model's files cannot be read; a driver call failed; the model was removed.
    pub fn copy_time(&self) -> Result<Option<Duration>> {
        Ok(self.shared.with(&self.name, self.number, |model| model.copy_time())??)
    }

    /// Returns how long the computation with each group takes by itself: on a CUDA device, if this switcher has
    /// measured it.
    ///
    /// # Errors
    /// The model was removed.
    pub fn compute_times(&self) -> Result<Option<Vec<Duration>>> {
        self.shared.with(&self.name, self.number, |model| model.compute_times())
    }

    /// Returns the number of input shapes for which calls are captured.
    ///
    /// # Errors
    /// The model was removed.
    pub fn captures(&self) -> Result<usize> {
        self.shared.with(&self.name, self.number, |model| model.captures())
    }

    /// Drops the model, its image and its memory. The name may be used again.
    ///
    /// # Errors
    /// The model was removed before.
    pub fn remove(&self) -> Result<()> {
        self.shared.remove(&self.name, self.number)
    }
}
