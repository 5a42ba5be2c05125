//! Frames: the messages on a connection, each with its length.

use std::io::{self, ErrorKind, Read, Write};

/// The first bytes of each frame.
pub const MAGIC: [u8; 4] = *b"TNAG";
/// The version of the protocol.
pub const VERSION: u16 = 1;
/// The longest body, in bytes.
pub const MAX_BODY_BYTES: u32 = 256 << 20;
/// The length of the header: magic, version, kind and the body's length. Every version has them in these places.
pub const HEADER_BYTES: usize = 12;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request to place a problem's tensors.
    Place,
    /// The answer to it.
    Placed,
    /// The reason why there is no answer.
    Refused,
    /// A report of measured times.
    Report,
    /// The answer to it: how the agent uses them.
    Learned,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Place, Self::Placed, Self::Refused, Self::Report, Self::Learned];

    /// Returns the kind's number in a frame.
    pub fn number(self) -> u16 {
        match self {
            Self::Place => 1,
            Self::Placed => 2,
            Self::Refused => 3,
            Self::Report => 4,
            Self::Learned => 5,
        }
    }
}

/// A frame: its kind, and a body in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The kind.
    pub kind: Kind,
    /// The body.
    pub body: Vec<u8>,
}

/// The reason why a frame cannot be read or written. Its message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The data is of another protocol.
    #[error("a frame begins with {MAGIC:?}, not with {found:?}: is this a client of an agent?")]
    Magic {
        /// The first bytes.
        found: [u8; 4],
    },
    /// The frame has another version of the protocol.
    #[error("unsupported version {found} of the protocol: use version {VERSION}")]
    Version {
        /// The version of the other end.
        found: u16,
    },
    /// There is no kind with this number.
    #[error("unknown kind {found} of frame: there are 1 to {}", Kind::ALL.len())]
    Kind {
        /// The number.
        found: u16,
    },
    /// The body is longer than allowed.
    #[error("a body of {found} bytes is too long: {MAX_BODY_BYTES} are the most")]
    Length {
        /// The bytes of the body.
        found: u64,
    },
    /// The connection ended in the middle of a frame.
    #[error("the connection ended in the middle of a frame")]
    Cut,
    /// The operating system returned an error, or the time ran out.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Frame {
    /// Reads the next frame, or returns `None` if the connection has ended. Memory is used only for received bytes, not
    /// for the announced length.
    ///
    /// # Errors
    /// The data is not a frame of this version.
    pub fn read(mut input: impl Read) -> Result<Option<Self>, FrameError> {
        let mut header = [0; HEADER_BYTES];
        let mut filled = 0;
        while filled < HEADER_BYTES {
            match input.read(&mut header[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Err(error) if filled == 0 && error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Ok(0) => return Err(FrameError::Cut),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let [m0, m1, m2, m3, v0, v1, k0, k1, l0, l1, l2, l3] = header;
        let found = [m0, m1, m2, m3];
        let version = u16::from_le_bytes([v0, v1]);
        let kind = u16::from_le_bytes([k0, k1]);
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if found != MAGIC {
            return Err(FrameError::Magic { found });
        }
        if version != VERSION {
            return Err(FrameError::Version { found: version });
        }
        if length > MAX_BODY_BYTES {
            return Err(FrameError::Length { found: length.into() });
        }
        let known = Kind::ALL.into_iter().find(|known| known.number() == kind);
        let kind = known.ok_or(FrameError::Kind { found: kind })?;
        let mut body = Vec::new();
        input.take(length.into()).read_to_end(&mut body)?;
        if body.len() < length as usize {
            return Err(FrameError::Cut);
        }
        Ok(Some(Self { kind, body }))
    }

    /// Writes the frame.
    ///
    /// # Errors
    /// The body is too long, and nothing is written; errors of `out`.
    pub fn write(&self, mut out: impl Write) -> Result<(), FrameError> {
        let length = u32::try_from(self.body.len()).ok().filter(|length| *length <= MAX_BODY_BYTES);
        let length = length.ok_or(FrameError::Length { found: self.body.len() as u64 })?;
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend(self.kind.number().to_le_bytes());
        header.extend(length.to_le_bytes());
        out.write_all(&header)?;
        out.write_all(&self.body)?;
        Ok(out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: Kind, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Frame { kind, body: body.to_vec() }.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn frames_are_read_one_after_the_other_as_they_were_written() {
        let both = [bytes(Kind::Place, b"{}"), bytes(Kind::Refused, b"")].concat();
        let mut input = &both[..];
        assert_eq!(Frame::read(&mut input).unwrap(), Some(Frame { kind: Kind::Place, body: b"{}".to_vec() }));
        assert_eq!(Frame::read(&mut input).unwrap(), Some(Frame { kind: Kind::Refused, body: Vec::new() }));
        assert_eq!(Frame::read(&mut input).unwrap(), None);
    }

    #[test]
    fn a_header_has_the_layout_that_is_documented() {
        assert_eq!(bytes(Kind::Place, b"{}"), b"TNAG\x01\0\x01\0\x02\0\0\0{}");
    }

    #[test]
    fn a_frame_that_ends_early_is_told_from_the_end() {
        let whole = bytes(Kind::Place, b"{}");
        for length in 1..whole.len() {
            assert!(matches!(Frame::read(&whole[..length]), Err(FrameError::Cut)), "{length} bytes");
        }
    }

    #[test]
    fn a_length_takes_no_memory_before_it_is_there() {
        let mut longest = bytes(Kind::Place, b"");
        longest[8..].copy_from_slice(&MAX_BODY_BYTES.to_le_bytes());
        assert!(matches!(Frame::read(&longest[..]), Err(FrameError::Cut)));
        longest[8..].copy_from_slice(&(MAX_BODY_BYTES + 1).to_le_bytes());
        assert!(matches!(Frame::read(&longest[..]), Err(FrameError::Length { found }) if found == (256 << 20) + 1));
    }

    #[test]
    fn another_magic_version_or_kind_is_an_error_that_says_which() {
        let with = |place: usize, byte: u8| {
            let mut frame = bytes(Kind::Place, b"{}");
            frame[place] = byte;
            Frame::read(&frame[..]).unwrap_err()
        };
        assert!(matches!(with(0, b'X'), FrameError::Magic { found } if found == *b"XNAG"));
        assert!(matches!(with(4, 9), FrameError::Version { found: 9 }));
        assert!(matches!(with(6, 0), FrameError::Kind { found: 0 }));
    }
}
