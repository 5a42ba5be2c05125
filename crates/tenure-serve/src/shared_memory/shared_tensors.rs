//! The tensors of a request that lie in a client's shared memory: inputs are copied from there, and outputs back to it.

use std::mem;

use super::SharedMemoryError;
use super::region::RegionPart;
use crate::protocol::{InferRequest, InferResponse};
use crate::service::body::BodyShare;
use crate::service::shared::ServerShared;
use crate::service::work::{MEDIUM_BYTES, aside};
use crate::service::{Peer, ServeError};

/// The fixed cost of a call that reads or writes a part, as the number of bytes that are copied in memory in that time.
const CALL_COST_BYTES: usize = 4 << 10;

/// The parts of shared memory for a request's tensors, found before the request is computed.
pub(crate) struct SharedTensors {
    /// The parts that hold inputs, in the order of the request's `shared_inputs`.
    inputs: Vec<RegionPart>,
    /// The names of the outputs that belong in shared memory, and their parts.
    outputs: Vec<(String, RegionPart)>,
}

impl SharedTensors {
    /// Finds the parts that the request names.
    ///
    /// # Errors
    /// The request names parts, and its client may not use shared memory; a part is not within a registered region.
    pub(crate) fn find(shared: &ServerShared, peer: Option<Peer>, request: &InferRequest) -> Result<Self, ServeError> {
        let wanted = &request.wanted.outputs;
        if !request.shared_inputs.is_empty() || wanted.iter().any(|output| output.span.is_some()) {
            shared.check_operator(peer)?;
        }
        let mut inputs = Vec::with_capacity(request.shared_inputs.len());
        for input in &request.shared_inputs {
            inputs.push(shared.regions.part(&input.span)?);
        }
        let mut outputs = Vec::new();
        for output in wanted {
            if let Some(span) = &output.span {
                outputs.push((output.name.clone(), shared.regions.part(span)?));
            }
        }
        Ok(Self { inputs, outputs })
    }

    /// Returns the size in bytes of all inputs together.
    ///
    /// # Errors
    /// [`SharedMemoryError::TooLarge`] if it is above `limit`.
    fn input_bytes(&self, limit: usize) -> Result<usize, ServeError> {
        let sum = self.inputs.iter().try_fold(0u64, |sum, part| sum.checked_add(part.byte_size()));
        let sum = sum.and_then(|sum| usize::try_from(sum).ok()).filter(|sum| *sum <= limit);
        Ok(sum.ok_or(SharedMemoryError::TooLarge(limit))?)
    }

    /// Copies the inputs from shared memory into the request, and returns it. `share` grows to `taken` bytes, those of
    /// the request's body, plus those of the inputs.
    pub(crate) async fn read_inputs(
        &mut self,
        shared: &ServerShared,
        share: &mut BodyShare,
        taken: usize,
        mut request: InferRequest,
    ) -> Result<InferRequest, ServeError> {
        if self.inputs.is_empty() {
            return Ok(request);
        }
        let bytes = self.input_bytes(shared.limits.body_bytes)?;
        share.grow(taken.saturating_add(bytes))?;
        let parts = mem::take(&mut self.inputs);
        let cost = cost_bytes(bytes, &parts);
        aside(cost, move || {
            for (input, part) in mem::take(&mut request.shared_inputs).into_iter().zip(parts) {
                request.inputs.push(input.with_bytes(part.read()?).map_err(ServeError::Invalid)?);
            }
            Ok(request)
        })
        .await
    }

    /// Copies the response's outputs to the parts that the request named for them, and returns the response.
    pub(crate) async fn write_outputs(self, response: InferResponse) -> Result<InferResponse, ServeError> {
        if self.outputs.is_empty() {
            return Ok(response);
        }
        let bytes = response.outputs.iter().map(|output| output.bytes().len()).sum();
        let cost = cost_bytes(bytes, self.outputs.iter().map(|(_, part)| part));
        aside(cost, move || {
            for (name, part) in &self.outputs {
                // A missing output is reported when the answer is encoded.
                if let Some(output) = response.outputs.iter().find(|output| output.name() == name) {
                    part.write(name, output.bytes())?;
                }
            }
            Ok(response)
        })
        .await
    }
}

/// Returns the cost of copying `bytes` bytes to or from the parts, as the number of bytes that are copied in memory in
/// that time. If a part is on a device, [`aside`] does the work on another thread, which only waits.
fn cost_bytes<'a>(bytes: usize, parts: impl IntoIterator<Item = &'a RegionPart>) -> usize {
    let mut cost = bytes;
    for part in parts {
        if part.is_on_device() {
            return MEDIUM_BYTES;
        }
        cost = cost.saturating_add(CALL_COST_BYTES);
    }
    cost
}
