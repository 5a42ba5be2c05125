//! The messages between a server and its workers.
//!
//! A frame is a head of 16 bytes, the message in postcard, and the payload: the bytes of the message's tensors, one
//! after the other. All numbers in the head are little endian: the version and the number of descriptors that come with
//! the frame, two bytes each; the length of the message in four bytes, and of the payload in eight.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_nn::switched::{LentTerms, Measured};
use tenure_switch::{FirstUse, SwitchError};
use tenure_tensor::DType;

use crate::executor::{Computed, ModelError, Placed, RawTensor, text};

/// The version of every frame.
pub(super) const VERSION: u16 = 2;

/// The longest message, in bytes: a table of tensors and a network's options.
pub(super) const MESSAGE_BYTES: u32 = 128 << 20;

/// The longest payload, in bytes.
pub(super) const PAYLOAD_BYTES: u64 = 4 << 30;

/// The size of a frame's head.
pub(super) const HEAD_BYTES: usize = 16;

/// An order of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum WorkerOrder {
    /// The first order, with the CUDA device to compute on, if there is one. The worker answers with
    /// [`WorkerReport::Ready`].
    Start { device: Option<BorrowingDevice> },
    /// Lends a model. The descriptor of its tables comes with this, if it has any. Chunks follow.
    Lend(Box<Lend>),
    /// The next chunk of a loan, whose descriptor comes with this.
    Chunk { loan: u64 },
    /// Maps an image, whose descriptor comes with this. None of its groups are loaded yet.
    Map(Map),
    /// Groups of an image that finished loading: for each, whether it is there or failed.
    Arrived { image: u64, groups: Vec<(u32, bool)> },
    /// Unmaps an image or a loan. The worker answers with [`WorkerReport::Unmapped`].
    Unmap { image: u64 },
    /// Drops a network, which will not be used any more.
    Forget { model: u64 },
    /// Runs a batch on an image or a loan. The worker answers with [`WorkerReport::Begun`], and then
    /// [`WorkerReport::Done`].
    Run { batch: u64, image: u64, inputs: Vec<Sizes> },
    /// Abandons a batch: no request waits for it any more.
    Abandon { batch: u64 },
    /// Asks for a sign of life. The worker answers with [`WorkerReport::Alive`], whatever it computes.
    Ask,
}

/// The reason why an order cannot be followed: the server made an error, or the device failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    #[error("an image or a chunk without a descriptor")]
    NoDescriptor,
    #[error("the device cannot be used: {0}")]
    Device(#[from] tenure_nn::Error),
    #[error("unknown image {0}")]
    NoImage(u64),
    #[error("the image has no group {0}")]
    NoGroup(usize),
    #[error(transparent)]
    Switch(#[from] SwitchError),
}

/// The CUDA device on which a worker borrows weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BorrowingDevice {
    /// The device's number among CUDA devices.
    pub(super) index: u8,
    /// The size in bytes of the chunks in which weights are lent.
    pub(super) chunk_bytes: u64,
}

/// The order to borrow a model. Loans and images share one sequence of numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Lend {
    pub(super) loan: u64,
    pub(super) model: u64,
    pub(super) network: Description,
    pub(super) terms: LentTerms,
    /// The number of chunks that follow.
    pub(super) chunks: u64,
}

/// The order to map an image of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Map {
    pub(super) image: u64,
    pub(super) model: u64,
    pub(super) network: Description,
    /// The start and end of each group in bytes, the end excluded.
    pub(super) groups: Vec<(u64, u64)>,
    /// The positions of the network's tensors in the groups.
    pub(super) tensors: Vec<Placed>,
}

/// The description from which a network is built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Description {
    /// The model's name, for errors.
    pub(super) name: String,
    pub(super) architecture: String,
    /// The options as JSON.
    pub(super) options: String,
}

/// The dtype and sizes of a tensor whose bytes are in the payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sizes {
    #[serde(with = "text")]
    dtype: DType,
    sizes: Vec<u64>,
}

/// A report of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum WorkerReport {
    /// The worker accepts orders.
    Ready,
    /// The worker starts to compute a batch.
    Begun { batch: u64 },
    /// A batch is over.
    Done { batch: u64, outcome: Result<WorkerAnswer, Failure> },
    /// An image is no longer mapped.
    Unmapped { image: u64 },
    /// The process receives orders.
    Alive,
    /// The process ends now, since its device no longer responds.
    Ends { reason: String },
}

/// An answer. Times are relative to an arbitrary origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct WorkerAnswer {
    outputs: Vec<Sizes>,
    begun: Duration,
    ended: Duration,
    /// The time of each group's first use, and how long that use waited for the group.
    first_uses: Vec<Option<(Duration, Duration)>>,
    /// The order in which lent weights were used, if it was measured.
    measured: Option<Measured>,
}

/// The reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Failure {
    /// The request itself is wrong.
    Request(String),
    /// The request takes more memory than there is.
    Memory(String),
    Other(String),
}

impl Failure {
    pub(super) fn of(error: &ModelError) -> Self {
        match error {
            error if error.is_out_of_memory() => Self::Memory(error.to_string()),
            error if error.is_request_error() => Self::Request(error.to_string()),
            error => Self::Other(error.to_string()),
        }
    }
}

/// The reason why a frame is invalid or cannot be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum MessageError {
    #[error("the other side speaks version {0} of the protocol, and this one {VERSION}: use the same release for both")]
    Version(u16),
    #[error("a message of {0} bytes is too long")]
    MessageLength(u64),
    #[error("a payload of {0} bytes is too long: ask for less at once")]
    PayloadLength(u64),
    #[error("a frame with {0} descriptors: at most one comes with it")]
    Descriptors(u16),
    #[error("not a message: {0}")]
    Malformed(#[from] postcard::Error),
    #[error("not a message: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    #[error("the payload does not fit its tensors")]
    Payload,
}

/// The first bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) has_descriptor: bool,
    pub(super) message_bytes: usize,
    pub(super) payload_bytes: usize,
}

impl FrameHead {
    pub(super) fn decode(bytes: [u8; HEAD_BYTES]) -> Result<Self, MessageError> {
        let [a, b, c, d, e, f, g, h, payload @ ..] = bytes;
        let version = u16::from_le_bytes([a, b]);
        if version != VERSION {
            return Err(MessageError::Version(version));
        }
        let descriptors = u16::from_le_bytes([c, d]);
        let message = u32::from_le_bytes([e, f, g, h]);
        if descriptors > 1 {
            return Err(MessageError::Descriptors(descriptors));
        }
        if message > MESSAGE_BYTES {
            return Err(MessageError::MessageLength(message.into()));
        }
        let payload = u64::from_le_bytes(payload);
        let payload_bytes = usize::try_from(payload).ok().filter(|_| payload <= PAYLOAD_BYTES);
        let payload_bytes = payload_bytes.ok_or(MessageError::PayloadLength(payload))?;
        Ok(Self { has_descriptor: descriptors == 1, message_bytes: message as usize, payload_bytes })
    }
}

/// Encodes a head and a message, after which a payload of `payload_bytes` must follow.
pub(super) fn encode(
    message: &impl Serialize,
    has_descriptor: bool,
    payload_bytes: usize,
) -> Result<Vec<u8>, MessageError> {
    with_head(postcard::to_extend(message, vec![0; HEAD_BYTES])?, has_descriptor, payload_bytes)
}

/// Encodes a head and a message as JSON, for Python.
pub(super) fn encode_json(message: &impl Serialize, payload_bytes: usize) -> Result<Vec<u8>, MessageError> {
    let mut frame = vec![0; HEAD_BYTES];
    serde_json::to_writer(&mut frame, message)?;
    with_head(frame, false, payload_bytes)
}

/// Fills in the head of a frame whose message is already there.
fn with_head(mut frame: Vec<u8>, has_descriptor: bool, payload_bytes: usize) -> Result<Vec<u8>, MessageError> {
    let message_bytes = (frame.len() - HEAD_BYTES) as u64;
    let length = u32::try_from(message_bytes).ok().filter(|length| *length <= MESSAGE_BYTES);
    let length = length.ok_or(MessageError::MessageLength(message_bytes))?;
    if payload_bytes as u64 > PAYLOAD_BYTES {
        return Err(MessageError::PayloadLength(payload_bytes as u64));
    }
    frame[..2].copy_from_slice(&VERSION.to_le_bytes());
    frame[2..4].copy_from_slice(&u16::from(has_descriptor).to_le_bytes());
    frame[4..8].copy_from_slice(&length.to_le_bytes());
    frame[8..16].copy_from_slice(&(payload_bytes as u64).to_le_bytes());
    Ok(frame)
}

/// Decodes the message after a head.
pub(super) fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, MessageError> {
    let (message, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() { Ok(message) } else { Err(MessageError::Trailing(rest.len())) }
}

/// Converts tensors to the sizes in a message and the payload.
pub(super) fn pack(tensors: &[RawTensor]) -> (Vec<Sizes>, Vec<Bytes>) {
    let mut packed = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        packed.push(Sizes { dtype: tensor.dtype, sizes: tensor.sizes.iter().map(|size| *size as u64).collect() });
    }
    (packed, tensors.iter().flat_map(|tensor| tensor.parts.iter().cloned()).collect())
}

/// Converts the sizes in a message and the payload to tensors.
pub(super) fn unpack(tensors: Vec<Sizes>, mut payload: Bytes) -> Result<Vec<RawTensor>, MessageError> {
    let tensors = tensors
        .into_iter()
        .map(|Sizes { dtype, sizes }| {
            let sizes: Option<Vec<usize>> = sizes.into_iter().map(|size| usize::try_from(size).ok()).collect();
            let sizes = sizes.ok_or(MessageError::Payload)?;
            let bytes = sizes.iter().try_fold(dtype.size(), |bytes, size| bytes.checked_mul(*size));
            let bytes = bytes.filter(|bytes| *bytes <= payload.len()).ok_or(MessageError::Payload)?;
            Ok(RawTensor { dtype, sizes, parts: vec![payload.split_to(bytes)] })
        })
        .collect::<Result<_, MessageError>>()?;
    if payload.is_empty() { Ok(tensors) } else { Err(MessageError::Payload) }
}

impl WorkerAnswer {
    /// Converts an answer to a message and its payload.
    pub(super) fn pack(computed: &Computed) -> (Self, Vec<Bytes>) {
        let Computed { outputs, begun, ended, first_uses, measured } = computed;
        let (outputs, payload) = pack(outputs);
        let origin = first_uses.iter().flatten().map(|used| used.at).fold(*begun, Instant::min);
        let first_uses = first_uses.iter().map(|used| used.map(|used| (used.at - origin, used.waited))).collect();
        let begun = *begun - origin;
        let ended = *ended - origin;
        let measured = measured.clone();
        (Self { outputs, begun, ended, first_uses, measured }, payload)
    }

    /// Converts a message and its payload to an answer, whose times are right relative to each other.
    pub(super) fn unpack(self, payload: Bytes) -> Result<Computed, MessageError> {
        let now = Instant::now();
        let time = |since: Duration| now.checked_add(since).unwrap_or(now);
        Ok(Computed {
            outputs: unpack(self.outputs, payload)?,
            begun: time(self.begun),
            ended: time(self.ended),
            first_uses: self
                .first_uses
                .into_iter()
                .map(|used| used.map(|(at, waited)| FirstUse { at: time(at), waited }))
                .collect(),
            measured: self.measured,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn orders() -> Vec<WorkerOrder> {
        let network = Description { name: "m".into(), architecture: "bert".into(), options: "{}".into() };
        let tensors = vec![Placed { name: "weight".into(), dtype: DType::BF16, group: 1, begin: 256 }];
        vec![
            WorkerOrder::Map(Map { image: 1, model: 2, network, groups: vec![(0, 100), (256, 300)], tensors }),
            WorkerOrder::Arrived { image: 1, groups: vec![(0, true), (1, false)] },
            WorkerOrder::Unmap { image: 1 },
            WorkerOrder::Forget { model: 2 },
            WorkerOrder::Run { batch: 3, image: 1, inputs: vec![Sizes { dtype: DType::F32, sizes: vec![2, 3] }] },
            WorkerOrder::Abandon { batch: 3 },
            WorkerOrder::Start { device: Some(BorrowingDevice { index: 1, chunk_bytes: 16 << 20 }) },
            WorkerOrder::Chunk { loan: 4 },
        ]
    }

    #[test]
    fn a_message_is_what_was_sent_and_no_part_of_it_is_one() {
        for order in orders() {
            let frame = encode(&order, true, 24).unwrap();
            let (head, message) = frame.split_first_chunk().unwrap();
            let head = FrameHead::decode(*head).unwrap();
            assert_eq!(head, FrameHead { has_descriptor: true, message_bytes: message.len(), payload_bytes: 24 });
            assert_eq!(decode::<WorkerOrder>(message).unwrap(), order);
            assert!((0..message.len()).all(|end| decode::<WorkerOrder>(&message[..end]).is_err()), "{order:?}");
            assert!(matches!(decode::<WorkerOrder>(&[message, &[0]].concat()), Err(MessageError::Trailing(1))));
        }
    }

    #[test]
    fn a_head_of_another_version_or_of_more_than_is_allowed_is_refused() {
        let head: [u8; HEAD_BYTES] = encode(&WorkerReport::Ready, false, 0).unwrap()[..HEAD_BYTES].try_into().unwrap();
        for (place, expected) in [(0, "version"), (3, "descriptors"), (7, "message"), (15, "payload")] {
            let mut changed = head;
            changed[place] = 0xff;
            let said = FrameHead::decode(changed).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn tensors_and_times_come_as_they_were() {
        let now = Instant::now() + Duration::from_secs(1);
        let ms = Duration::from_millis;
        let parts = vec![Bytes::from(vec![1; 8]), Bytes::from(vec![2; 16])];
        let outputs = vec![
            RawTensor { dtype: DType::F32, sizes: vec![3, 2], parts },
            RawTensor { dtype: DType::U8, sizes: vec![0], parts: vec![Bytes::new()] },
        ];
        let first_uses = vec![None, Some(FirstUse { at: now - ms(9), waited: ms(2) })];
        let computed = Computed { outputs, begun: now, ended: now + ms(5), first_uses, measured: None };
        let (done, payload) = WorkerAnswer::pack(&computed);
        let payload: Bytes = payload.concat().into();
        let computed = done.clone().unpack(payload.clone()).unwrap();
        assert_eq!(computed.outputs[0].parts.concat(), payload);
        assert_eq!(computed.ended - computed.begun, ms(5));
        assert_eq!(computed.begun - computed.first_uses[1].unwrap().at, ms(9));
        for wrong in [payload.slice(1..), [&payload[..], &[0]].concat().into()] {
            assert!(matches!(done.clone().unpack(wrong), Err(MessageError::Payload)));
        }
    }

    #[test]
    fn sizes_that_have_no_product_are_refused() {
        let sizes = vec![Sizes { dtype: DType::F64, sizes: vec![u64::MAX, 2] }];
        assert!(matches!(unpack(sizes, Bytes::new()), Err(MessageError::Payload)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (decode::<WorkerOrder>(&bytes), decode::<WorkerReport>(&bytes));
        }

        #[test]
        fn a_message_with_changed_bytes_is_another_or_an_error(
            order in 0..8_usize, place in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut message = encode(&orders()[order], false, 0).unwrap()[HEAD_BYTES..].to_vec();
            let place = place.index(message.len());
            message[place] = byte;
            let _ = decode::<WorkerOrder>(&message);
        }
    }
}
