//! Devices: kinds, indices, and their names; and the identities of their streams.

use std::fmt;
use std::str::FromStr;

use crate::DeviceError;

/// A kind of device, for which an allocator is registered. c10's `DeviceType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DeviceKind {
    /// The host's processors and its memory.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl DeviceKind {
    /// Every kind, in declaration order: `DeviceKind::ALL[kind as usize] == kind`.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Cuda];

    /// Returns the kind's name: `cpu` or `cuda`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A device: a kind, and an index among the devices of that kind.
///
/// A device is always a specific one. c10's "current device" (index -1) belongs to a thread, and is resolved before a
/// `Device` is made. So `cuda` is short for `cuda:0`.
///
/// ```
/// use tenure_core::{Device, DeviceKind};
///
/// let device: Device = "cuda:1".parse()?;
/// assert_eq!((device.kind(), device.index()), (DeviceKind::Cuda, 1));
/// assert_eq!(device.to_string(), "cuda:1");
/// assert_eq!("cuda".parse::<Device>()?, Device::cuda(0));
/// assert_eq!(Device::CPU.to_string(), "cpu");
/// # Ok::<(), tenure_core::DeviceError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    kind: DeviceKind,
    index: u8,
}

impl Device {
    /// The host. There is one: all its processors reach all its memory.
    pub const CPU: Self = Self { kind: DeviceKind::Cpu, index: 0 };

    /// Returns the CUDA device with this index, whether or not the machine has it.
    pub const fn cuda(index: u8) -> Self {
        Self { kind: DeviceKind::Cuda, index }
    }

    /// Returns the device's kind.
    pub const fn kind(self) -> DeviceKind {
        self.kind
    }

    /// Returns the device's index among its kind, which is 0 for the CPU.
    pub const fn index(self) -> u8 {
        self.index
    }

    /// Returns whether the host's processors can read the device's memory in place.
    pub const fn is_cpu(self) -> bool {
        matches!(self.kind, DeviceKind::Cpu)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cpu => f.write_str("cpu"),
            DeviceKind::Cuda => write!(f, "cuda:{}", self.index),
        }
    }
}

impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let (name, index) = match text.split_once(':') {
            Some((name, index)) => (name, Some(index)),
            None => (text, None),
        };
        let Some(kind) = DeviceKind::ALL.into_iter().find(|kind| kind.name() == name) else {
            return Err(DeviceError::UnknownKind { text: text.to_owned() });
        };
        let index = match index {
            Some(digits) => parse_index(digits).ok_or_else(|| DeviceError::BadIndex { text: text.to_owned() })?,
            None => 0,
        };
        match (kind, index) {
            (DeviceKind::Cpu, 1..) => Err(DeviceError::OneCpu { text: text.to_owned() }),
            _ => Ok(Self { kind, index }),
        }
    }
}

/// Parses an index as it is printed: without a sign and leading zeros, both of which `u8::from_str` would accept.
fn parse_index(digits: &str) -> Option<u8> {
    let index: u8 = digits.parse().ok()?;
    (index.to_string() == digits).then_some(index)
}

/// The identity of a device's stream. Work put on a stream runs in order, and memory freed on it is reusable on it at
/// once.
///
/// The number is the driver's own handle where there is one. Zero is the null (default) stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The null stream of every device.
    pub const NULL: Self = Self(0);
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_prints_as_it_parses() {
        for device in (0..=u8::MAX).map(Device::cuda).chain([Device::CPU]) {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cpu:0".parse(), Ok(Device::CPU));
    }

    #[test]
    fn kinds_are_indexed_by_declaration_order() {
        for (position, kind) in DeviceKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, position);
        }
    }

    #[test]
    fn bad_text_is_named_in_the_error() {
        let message = |text: &str| text.parse::<Device>().unwrap_err().to_string();
        assert_eq!(message("gpu:0"), "unknown device \"gpu:0\": expected \"cpu\", \"cuda\" or \"cuda:INDEX\"");
        for text in ["", "CUDA", " cuda", "cuda ", "cuda0", ":0"] {
            assert!(message(text).starts_with("unknown device"), "{text:?}: {}", message(text));
        }
        assert_eq!(
            message("cuda:-1"),
            "bad device index in \"cuda:-1\": expected a number from 0 to 255 without sign or leading zeros"
        );
        for text in ["cuda:", "cuda:+1", "cuda:01", "cuda:256", "cuda:1:2", "cpu:x", "cuda: 1"] {
            assert!(message(text).starts_with("bad device index"), "{text:?}: {}", message(text));
        }
        assert_eq!(message("cpu:1"), "no device \"cpu:1\": there is one CPU device, \"cpu\"");
    }
}
