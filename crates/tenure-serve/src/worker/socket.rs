//! Frames over a Unix socket, and the descriptors that come with them.

use std::io::{self, IoSlice, Read};
use std::iter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_ipc::MAX_DESCRIPTORS;

use super::message::{self, FrameHead, HEAD_BYTES, MessageError};

/// The most bytes of memory reserved for a message or payload before its bytes arrive.
const CHUNK: usize = 1 << 20;

/// The most parts that the system accepts in one call.
const MAX_PARTS: usize = 1024;

/// A frame to be sent.
pub(super) struct Outgoing {
    frame: Vec<u8>,
    payload: Vec<Bytes>,
    descriptor: Option<Descriptor>,
}

/// A descriptor that comes with a frame.
pub(super) enum Descriptor {
    Open(OwnedFd),
    /// A function that opens the descriptor when the frame is sent: more frames may be queued than a process may have
    /// open descriptors.
    Later(Box<dyn Fn() -> io::Result<OwnedFd> + Send>),
}

/// A received frame.
pub(super) struct Incoming<M> {
    pub(super) message: M,
    pub(super) payload: Bytes,
    pub(super) descriptor: Option<OwnedFd>,
}

impl Outgoing {
    /// Creates a frame with a message in postcard.
    pub(super) fn new(
        message: &impl Serialize,
        payload: Vec<Bytes>,
        descriptor: Option<Descriptor>,
    ) -> Result<Self, MessageError> {
        let bytes = payload.iter().map(Bytes::len).sum();
        Ok(Self { frame: message::encode(message, descriptor.is_some(), bytes)?, payload, descriptor })
    }

    /// Creates a frame with a JSON message.
    pub(super) fn json(message: &impl Serialize, payload: Vec<Bytes>) -> Result<Self, MessageError> {
        let bytes = payload.iter().map(Bytes::len).sum();
        Ok(Self { frame: message::encode_json(message, bytes)?, payload, descriptor: None })
    }

    /// Sends the frame, and waits until the system has taken all of it.
    pub(super) fn send(&self, stream: &UnixStream) -> io::Result<()> {
        let made = match &self.descriptor {
            Some(Descriptor::Later(make)) => Some(make()?),
            _ => None,
        };
        let mut descriptor: Option<BorrowedFd<'_>> = match &self.descriptor {
            Some(Descriptor::Open(open)) => Some(open.as_fd()),
            _ => made.as_ref().map(AsFd::as_fd),
        };
        // All parts go in as few calls as possible: a batch has a part for each of its requests, and each call may wake
        // the reader.
        let mut parts: Vec<_> = iter::once(&self.frame[..]).chain(self.payload.iter().map(|part| &part[..])).collect();
        parts.retain(|part| !part.is_empty());
        let mut slices: Vec<_> = parts.into_iter().map(IoSlice::new).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            let now = &left[..left.len().min(MAX_PARTS)];
            let sent = tenure_ipc::send(stream, now, descriptor.take().as_slice())?;
            IoSlice::advance_slices(&mut left, sent);
        }
        Ok(())
    }
}

/// Receives the next frame; returns `None` if the other end is gone, even in the middle of a frame.
///
/// # Errors
///
/// The frame is invalid.
pub(super) fn receive<M: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<Incoming<M>>> {
    end_as_none(receive_as(stream, message::decode))
}

/// Receives the next frame with a JSON message: see [`receive`].
pub(super) fn receive_json<M: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<Incoming<M>>> {
    end_as_none(receive_as(stream, |message| Ok(serde_json::from_slice(message)?)))
}

/// Returns `None` for the errors that say that the other end is gone.
fn end_as_none<M>(received: io::Result<Incoming<M>>) -> io::Result<Option<Incoming<M>>> {
    match received {
        Ok(incoming) => Ok(Some(incoming)),
        Err(error) => match error.kind() {
            // The system resets a socket if the other end closes it with unread frames.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Ok(None),
            _ => Err(error),
        },
    }
}

/// Receives the next frame, whose message `decode` decodes.
fn receive_as<M>(
    mut stream: &UnixStream,
    decode: impl FnOnce(&[u8]) -> Result<M, MessageError>,
) -> io::Result<Incoming<M>> {
    let mut head = [0; HEAD_BYTES];
    let mut descriptors = Vec::new();
    let mut read = 0;
    while read < HEAD_BYTES {
        let received = tenure_ipc::receive(stream, &mut head[read..], MAX_DESCRIPTORS)?;
        descriptors.extend(received.descriptors);
        match received.bytes {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => read += bytes,
        }
    }
    let FrameHead { has_descriptor, message_bytes, payload_bytes } = FrameHead::decode(head).map_err(invalid)?;
    // Descriptors that the system had no room for are missing.
    if descriptors.len() != usize::from(has_descriptor) {
        return Err(invalid("a descriptor is missing, or is too many: check the limit on open files"));
    }
    let message = decode(&read_exactly(&mut stream, message_bytes)?).map_err(invalid)?;
    let payload = read_exactly(&mut stream, payload_bytes)?.into();
    Ok(Incoming { message, payload, descriptor: descriptors.pop() })
}

/// Reads exactly this many bytes. Memory grows only with the bytes that arrive, whatever length was announced.
fn read_exactly(stream: &mut &UnixStream, bytes: usize) -> io::Result<Vec<u8>> {
    let mut read = Vec::with_capacity(bytes.min(CHUNK));
    stream.take(bytes as u64).read_to_end(&mut read)?;
    if read.len() == bytes { Ok(read) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::thread;

    use super::super::message::WorkerReport;
    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    #[test]
    fn frames_come_in_their_order_with_their_payloads_and_descriptors() {
        let (a, b) = pair();
        let payload = vec![Bytes::from(vec![1; 3]), Bytes::from(vec![7; 5 << 20])];
        let sender = thread::spawn(move || {
            let open = || File::open("/dev/zero").map(OwnedFd::from);
            let descriptors = [None, Some(Descriptor::Open(open().unwrap())), Some(Descriptor::Later(Box::new(open)))];
            for (batch, descriptor) in (1..).zip(descriptors) {
                Outgoing::new(&WorkerReport::Begun { batch }, payload.clone(), descriptor).unwrap().send(&a).unwrap();
            }
        });
        for batch in [1, 2, 3] {
            let incoming = receive::<WorkerReport>(&b).unwrap().unwrap();
            assert_eq!(incoming.message, WorkerReport::Begun { batch });
            assert!(incoming.payload.len() == 3 + (5 << 20) && incoming.payload[..4] == [1, 1, 1, 7]);
            assert_eq!(incoming.descriptor.is_some(), batch > 1);
        }
        sender.join().unwrap();
        assert!(receive::<WorkerReport>(&b).unwrap().is_none());
    }

    #[test]
    fn an_end_that_is_gone_is_no_error_and_takes_no_memory() {
        let frame = message::encode(&WorkerReport::Ready, false, 0).unwrap();
        let mut long = frame.clone();
        long[11] = 0xff;
        for cut in [&frame[..0], &frame[..7], &frame[..HEAD_BYTES], &long] {
            let (mut a, b) = pair();
            a.write_all(cut).unwrap();
            drop(a);
            assert!(receive::<WorkerReport>(&b).unwrap().is_none());
        }
        let (a, mut b) = pair();
        b.write_all(&frame).unwrap();
        drop(a);
        let reset = b.read(&mut [0]).unwrap_err();
        assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
        let (a, mut b) = pair();
        b.write_all(&frame).unwrap();
        drop(a);
        assert!(receive::<WorkerReport>(&b).unwrap().is_none());
    }

    #[test]
    fn a_frame_that_lies_is_an_error() {
        let mut without = message::encode(&WorkerReport::Ready, false, 0).unwrap();
        without[2] = 1;
        let (mut a, b) = pair();
        a.write_all(&without).unwrap();
        assert_eq!(receive::<WorkerReport>(&b).err().unwrap().kind(), io::ErrorKind::InvalidData);
    }
}
