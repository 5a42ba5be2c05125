//! A model of a switcher.

use std::sync::Arc;
use std::time::Duration;

use tenure_tensor::Tensor;

use super::switcher::Shared;
use super::{LentModel, Measured};
use crate::Result;

/// A model of a [`Switcher`](super::Switcher). A handle: the model stays when it is dropped, until it is [removed](Self::remove).
#[derive(Clone)]
pub struct SwitchedModel {
    shared: Arc<Shared>,
    name: Arc<str>,
    number: u64,
}

impl SwitchedModel {
    pub(super) fn new(shared: &Arc<Shared>, name: &str, number: u64) -> Self {
        Self { shared: Arc::clone(shared), name: name.into(), number }
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Brings what is missing of the model, and computes its answers to inputs. Inputs are brought to the device. On a CUDA device, the
    /// answers are computed when the thread's current stream has passed what is on it then.
    ///
    /// # Errors
    /// There is no room for it; its files cannot be read; what the network says of its inputs; it was removed. The next call is
    /// right.
    pub fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.shared.forward(&self.name, self.number, inputs)
    }

    /// Brings it, as a call would.
    ///
    /// # Errors
    /// There is no room for it; its files cannot be read; it was removed.
    pub fn load(&self) -> Result<()> {
        self.shared.load(&self.name, self.number)
    }

    /// Waits until what is on its way to the device is there. Other calls go on meanwhile.
    ///
    /// # Errors
    /// Its files cannot be read; a driver call failed; it was removed.
    pub fn settle(&self) -> Result<()> {
        let wait = self.shared.with(&self.name, self.number, |known| known.arriving())?;
        Ok(wait()?)
    }

    /// Brings it, as a call would, and lends it to a process that computes it, which may begin before its weights are there.
    /// It stays on the device as long as it is lent.
    ///
    /// # Errors
    /// [`SwitchedError::OnCpu`](super::SwitchedError::OnCpu); those of [`load`](Self::load).
    pub fn lend(&self) -> Result<LentModel> {
        self.shared.lend(&self.name, self.number)
    }

    /// Arranges it by what a process measured that computed it, and brings it, as the second call does where it is computed in
    /// this process. Nothing happens if its order is known already. It must not be lent.
    ///
    /// # Errors
    /// There is no room for it; its files cannot be read; a driver call failed; it was removed.
    pub fn learn(&self, measured: &Measured) -> Result<()> {
        self.shared.with(&self.name, self.number, |known| known.learn(&self.shared, measured))?
    }

    /// Has it leave the device. It comes back when it is called. One that is [lent](Self::lend) stays.
    ///
    /// # Errors
    /// It was removed.
    pub fn evict(&self) -> Result<()> {
        self.shared.with(&self.name, self.number, |known| known.evict(&self.shared, u64::MAX))
    }

    /// Has so many bytes of it leave the device, or a little more: its end, which is needed last when it comes back. On the CPU all
    /// of it leaves.
    ///
    /// # Errors
    /// It was removed.
    pub fn evict_bytes(&self, bytes: u64) -> Result<()> {
        self.shared.with(&self.name, self.number, |known| known.evict(&self.shared, bytes))
    }

    /// Calls `done` when what is on its way to the device is there, with the time from now until then; with nothing where it does not
    /// come. It is called on a thread of the driver's or of the reader's, which must not wait, and must not use the device.
    pub fn when_loaded(&self, done: impl FnOnce(Option<Duration>) + Send + 'static) {
        let mut done = Some(done);
        // What is not called by then never is.
        let told = self.shared.with(&self.name, self.number, |known| {
            if let Some(done) = done.take() {
                known.when_loaded(&self.shared, Box::new(done));
            }
        });
        if let (Err(_), Some(done)) = (told, done) {
            done(None);
        }
    }

    /// Has its image leave the host's memory too, so that it comes from its files.
    ///
    /// # Errors
    /// It was removed.
    pub fn forget(&self) -> Result<()> {
        self.shared.with(&self.name, self.number, |known| {
            known.evict(&self.shared, u64::MAX);
            self.shared.images.forget(known.manifest());
        })
    }

    /// Says how much its calls matter beside those of other models: each unit, up to 10 and down to -10, doubles what it is worth to keep it on
    /// the device. 0 at first.
    ///
    /// # Errors
    /// It was removed.
    pub fn set_priority(&self, priority: i32) -> Result<()> {
        self.shared.with(&self.name, self.number, |known| known.priority = priority.clamp(-10, 10))
    }

    /// Says whether it stays on the device once it is there.
    ///
    /// # Errors
    /// It was removed.
    pub fn set_pinned(&self, is_pinned: bool) -> Result<()> {
        self.shared.with(&self.name, self.number, |known| known.is_pinned = is_pinned)
    }

    /// Whether all of it is on the device, or on its way there.
    ///
    /// # Errors
    /// It was removed.
    pub fn is_resident(&self) -> Result<bool> {
        self.shared.with(&self.name, self.number, |known| known.missing_bytes() == 0)
    }

    /// Bytes of it that are on the device now; on a CUDA device in whole chunks.
    ///
    /// # Errors
    /// It was removed.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.shared.with(&self.name, self.number, |known| known.resident_bytes())
    }

    /// Bytes of the groups in which it comes, in their order: each tensor by itself until their order is learned.
    ///
    /// # Errors
    /// It was removed.
    pub fn group_bytes(&self) -> Result<Vec<u64>> {
        self.shared.with(&self.name, self.number, |known| {
            known.manifest().groups().iter().map(|group| group.end - group.start).collect()
        })
    }

    /// Bytes of tables such as those of words: on a CUDA device they stay in the host's memory, where a call reads the rows that it
    /// needs in place. They are in no group.
    ///
    /// # Errors
    /// It was removed.
    pub fn table_bytes(&self) -> Result<u64> {
        self.shared.with(&self.name, self.number, |known| known.table_bytes())
    }

    /// How long it took to copy what was missing when it was brought last: to the device, or on the CPU from its files. It is
    /// waited for. Nothing before it was brought.
    ///
    /// # Errors
    /// Its files cannot be read; a driver call failed; it was removed.
    pub fn copy_time(&self) -> Result<Option<Duration>> {
        Ok(self.shared.with(&self.name, self.number, |known| known.copy_time())??)
    }

    /// How long what uses each group computes, alone: on a CUDA device, if this switcher has measured it.
    ///
    /// # Errors
    /// It was removed.
    pub fn compute_times(&self) -> Result<Option<Vec<Duration>>> {
        self.shared.with(&self.name, self.number, |known| known.compute_times())
    }

    /// For how many sizes of inputs its calls are captured.
    ///
    /// # Errors
    /// It was removed.
    pub fn captures(&self) -> Result<usize> {
        self.shared.with(&self.name, self.number, |known| known.captures())
    }

    /// Lets go of the model, its image and its memory. The name is free then.
    ///
    /// # Errors
    /// It was removed before.
    pub fn remove(&self) -> Result<()> {
        self.shared.remove(&self.name, self.number)
    }
}
