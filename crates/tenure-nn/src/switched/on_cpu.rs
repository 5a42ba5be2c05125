//! The weights of models on the CPU. A network computes with the image itself, without a copy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_switch::groups::Grouping;
use tenure_switch::{Image, SwitchError};
use tenure_tensor::{Tensor, autograd};

use super::bound::{self, BoundTensors};
use super::managed::ModelDefinition;
use super::switcher::SwitcherShared;
use super::weights::Arrangement;
use super::weights::WeightOrder;
use crate::Result;

/// The state of a model's weights on the CPU.
#[derive(Default)]
pub(super) struct OnCpu {
    /// The image, which may still be loading, and the network's binding to it; `None` while the model is evicted.
    image: Option<(Arc<Image>, BoundTensors)>,
    /// The order that a call has learned. The next image will have it; the current one stays as it is.
    learned: Option<WeightOrder>,
}

impl OnCpu {
    /// Returns the size in bytes of the image, if the network is bound to one.
    pub(super) fn resident_bytes(&self, definition: &ModelDefinition) -> u64 {
        self.image.as_ref().map_or(0, |_| definition.manifest().bytes())
    }

    /// Returns whether the image could not be read.
    pub(super) fn has_failed(&self) -> bool {
        self.image.as_ref().is_some_and(|(image, _)| image.failure().is_some())
    }

    /// Calls `done` when the image has been read, with the time that its reading took, or with `None` if it cannot be
    /// read.
    pub(super) fn when_loaded(&self, done: Box<dyn FnOnce(Option<Duration>) + Send>) {
        match &self.image {
            Some((image, _)) => image.when_read(|outcome| done(outcome.ok())),
            None => done(None),
        }
    }

    /// Returns a function that waits for the image.
    pub(super) fn waiter(&self) -> Box<dyn FnOnce() -> Result<(), SwitchError>> {
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
    pub(super) fn bind(&mut self, definition: &mut ModelDefinition, image: Arc<Image>) -> Result<()> {
        let placed = definition.stored.placed(&definition.arrangement.order, &definition.arrangement.manifest);
        let bound = BoundTensors::bind(&mut *definition.network, placed, |group| image.storage(group))?;
        self.image = Some((image, bound));
        Ok(())
    }

    /// Unbinds the network and drops the image. If a call has learned the order, the next image will have it.
    pub(super) fn evict(&mut self, definition: &mut ModelDefinition, shared: &SwitcherShared) {
        let Some((image, bound)) = self.image.take() else { return };
        // Unbinding cannot fail here: the network takes back its own tensors.
        let _ = bound.unbind(&mut *definition.network);
        drop(image);
        shared.images.forget(definition.manifest());
        if let Some(order) = self.learned.take()
            && let Ok(arrangement) = Arrangement::new(&definition.stored, &shared.images, &definition.name, order)
        {
            definition.arrangement = arrangement;
            shared.keep_order(definition);
        }
    }

    /// Computes the outputs for inputs on the CPU, and learns the order of use if it is unknown.
    pub(super) fn compute(
        &mut self,
        definition: &mut ModelDefinition,
        inputs: &[Tensor],
        grouping: Grouping,
    ) -> Result<Vec<Tensor>> {
        let Some((image, bound)) = &self.image else { unreachable!("it was brought") };
        let answers = autograd::no_grad(|| definition.network.forward(inputs));
        let ended = Instant::now();
        // If weights did not arrive, the outputs are invalid.
        if let Some(error) = image.failure() {
            return Err(error.into());
        }
        let answers = bound::copy_weight_views(bound, answers?)?;
        if !definition.arrangement.order.is_recorded() && self.learned.is_none() {
            image.wait_for_all()?;
            let read = image.read_time().unwrap_or_default();
            self.learned =
                Some(WeightOrder::of_host_run(&definition.stored, &image.first_uses(), ended, read, grouping));
        }
        Ok(answers)
    }
}
