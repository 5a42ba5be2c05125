//! The tensors of a request that are in shared memory.

use std::mem;

use super::SharedMemoryError;
use super::peer::Peer;
use super::region::RegionPart;
use crate::http::ServeError;
use crate::http::body::{BodyShare, aside};
use crate::http::shared::ServerShared;
use crate::protocol::{InferRequest, InferResponse, Wanted};

/// The bytes that the system could copy in the time of one call which reads or writes a part, however small.
const CALL_BYTES: usize = 4 << 10;

/// The parts of shared memory that hold a request's tensors, found before the request is computed.
pub(crate) struct InPlace {
    /// The parts of the inputs, in their order.
    inputs: Vec<RegionPart>,
    /// The parts of the outputs, by name.
    outputs: Vec<(String, RegionPart)>,
}

impl InPlace {
    /// Finds the parts, and checks that the request's peer may use them.
    pub(crate) fn find(shared: &ServerShared, peer: Option<Peer>, request: &InferRequest) -> Result<Self, ServeError> {
        let Wanted { outputs, .. } = &request.wanted;
        let inputs = request.shared_inputs.iter().map(|input| &input.span);
        let outputs = outputs.iter().filter_map(|output| Some((&output.name, output.span.as_ref()?)));
        if inputs.len() > 0 || outputs.clone().next().is_some() {
            shared.neighbour(peer)?;
        }
        let of = |(name, span): (&String, _)| Ok((name.clone(), shared.regions.part(span)?));
        Ok(Self {
            inputs: inputs.map(|span| shared.regions.part(span)).collect::<Result<_, _>>()?,
            outputs: outputs.map(of).collect::<Result<_, SharedMemoryError>>()?,
        })
    }

    /// Returns the bytes of the inputs, unless they exceed `limit`.
    fn input_bytes(&self, limit: usize) -> Result<usize, ServeError> {
        let sum = self.inputs.iter().try_fold(0u64, |sum, part| sum.checked_add(part.byte_size()));
        let sum = sum.and_then(|sum| usize::try_from(sum).ok()).filter(|sum| *sum <= limit);
        Ok(sum.ok_or(SharedMemoryError::TooLarge(limit))?)
    }

    /// Reads the inputs as they are now into the request. They count against `share`, in which the request's body
    /// already takes `taken` bytes.
    pub(crate) async fn read(
        &mut self,
        shared: &ServerShared,
        share: &mut BodyShare,
        taken: usize,
        mut request: InferRequest,
    ) -> Result<InferRequest, ServeError> {
        if self.inputs.is_empty() {
            return Ok(request);
        }
        let bytes = self.input_bytes(shared.config.limits.body_bytes)?;
        share.grow(taken.saturating_add(bytes))?;
        let parts = mem::take(&mut self.inputs);
        let work_bytes = work_bytes(bytes, &parts);
        aside(work_bytes, move || {
            for (input, part) in mem::take(&mut request.shared_inputs).into_iter().zip(parts) {
                request.inputs.push(input.with_bytes(part.read()?).map_err(ServeError::Invalid)?);
            }
            Ok(request)
        })
        .await
    }

    /// Writes the outputs that belong in shared memory.
    pub(crate) async fn write(self, response: InferResponse) -> Result<InferResponse, ServeError> {
        if self.outputs.is_empty() {
            return Ok(response);
        }
        let bytes = response.outputs.iter().map(|output| output.bytes().len()).sum();
        let work_bytes = work_bytes(bytes, self.outputs.iter().map(|(_, part)| part));
        let write = move || {
            for (name, part) in &self.outputs {
                // A missing output is reported when the answer is encoded.
                if let Some(output) = response.outputs.iter().find(|output| output.name() == name) {
                    part.write(name, output.bytes())?;
                }
            }
            Ok(response)
        };
        aside(work_bytes, write).await
    }
}

/// Returns the number of bytes that could be copied in memory while `bytes` are copied to or from the parts. A copy
/// to or from a device always counts as long.
fn work_bytes<'a>(bytes: usize, parts: impl IntoIterator<Item = &'a RegionPart>) -> usize {
    parts
        .into_iter()
        .map(|part| if part.is_on_device() { usize::MAX } else { CALL_BYTES })
        .fold(bytes, usize::saturating_add)
}
