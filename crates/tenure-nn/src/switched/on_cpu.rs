//! Models on the CPU, which compute with their image itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_switch::groups::Grouping;
use tenure_switch::{Image, SwitchError};
use tenure_tensor::{Tensor, autograd};

use super::arrangement::Arrangement;
use super::bound::{self, BoundTensors};
use super::known::Parts;
use super::switcher::SwitcherShared;
use super::weights::WeightOrder;
use crate::Result;

/// A model on the CPU.
#[derive(Default)]
pub(super) struct OnCpu {
    image: Option<(Arc<Image>, BoundTensors)>,
    /// The order of the next image. The current image stays as it is.
    learned: Option<WeightOrder>,
}

impl OnCpu {
    pub(super) fn resident_bytes(&self, parts: &Parts) -> u64 {
        self.image.as_ref().map_or(0, |_| parts.manifest().bytes())
    }

    /// Returns whether the image could not be read.
    pub(super) fn has_failed(&self) -> bool {
        self.image.as_ref().is_some_and(|(image, _)| image.failure().is_some())
    }

    /// Calls `done` when the image has been read.
    pub(super) fn when_loaded(&self, done: Box<dyn FnOnce(Option<Duration>) + Send>) {
        match &self.image {
            Some((image, _)) => image.when_read(|outcome| done(outcome.ok())),
            None => done(None),
        }
    }

    /// Returns a function that waits for the image.
    pub(super) fn arriving(&self) -> Box<dyn FnOnce() -> Result<(), SwitchError>> {
        let image = self.image.as_ref().map(|(image, _)| Arc::clone(image));
        Box::new(move || image.map_or(Ok(()), |image| image.wait_for_all()))
    }

    /// Waits for the image, and returns how long its reading took.
    pub(super) fn copy_time(&self) -> Result<Option<Duration>, SwitchError> {
        let Some((image, _)) = &self.image else { return Ok(None) };
        image.wait_for_all()?;
        Ok(image.read_time())
    }

    /// Binds the network to an image, which may still be loading.
    pub(super) fn bind(&mut self, parts: &mut Parts, image: Arc<Image>) -> Result<()> {
        let placed = parts.stored.placed(&parts.arrangement.order, &parts.arrangement.manifest);
        let bound = BoundTensors::bind(&mut *parts.network, placed, |group| image.storage(group))?;
        self.image = Some((image, bound));
        Ok(())
    }

    /// Frees the model's memory.
    pub(super) fn evict(&mut self, parts: &mut Parts, shared: &SwitcherShared) {
        let Some((image, bound)) = self.image.take() else { return };
        // Unbinding cannot fail here: the network takes back its own tensors.
        let _ = bound.unbind(&mut *parts.network);
        drop(image);
        shared.images.forget(parts.manifest());
        if let Some(order) = self.learned.take()
            && let Ok(arrangement) = Arrangement::new(&parts.stored, &shared.images, &parts.name, order)
        {
            parts.arrangement = arrangement;
            shared.keep_order(parts);
        }
    }

    pub(super) fn compute(&mut self, parts: &mut Parts, inputs: &[Tensor], grouping: Grouping) -> Result<Vec<Tensor>> {
        let Some((image, bound)) = &self.image else { unreachable!("it was brought") };
        let answers = autograd::no_grad(|| parts.network.forward(inputs));
        let ended = Instant::now();
        // If weights did not arrive, the outputs are invalid.
        if let Some(error) = image.failure() {
            return Err(error.into());
        }
        let answers = bound::own(bound, answers?)?;
        if !parts.arrangement.order.is_recorded() && self.learned.is_none() {
            image.wait_for_all()?;
            let read = image.read_time().unwrap_or_default();
            self.learned = Some(WeightOrder::of_host_run(&parts.stored, &image.first_uses(), ended, read, grouping));
        }
        Ok(answers)
    }
}
