//! The options of `tenure_open`: `NAME=VALUE`, separated by commas.

use std::ffi::c_int;
use std::str::FromStr;
use std::sync::Arc;

use tenure_device::cuda;
use tenure_device::memory::MemoryConfig;
use tenure_device::sim::{SimConfig, SimDriver};

use crate::device::DeviceDriver;
use crate::failure::Failure;

/// The parsed options of `tenure_open`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DeviceOptions {
    kind: DriverKind,
    /// The size in bytes of a simulated device, if not the default.
    capacity: Option<u64>,
    pub(crate) memory: MemoryConfig,
    /// The limit on the pinned host memory of PyTorch's that is cached, in bytes, if not the default.
    pub(crate) pinned_cache_bytes: Option<u64>,
}

/// The driver of a device: CUDA's, or a simulated one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DriverKind {
    #[default]
    Cuda,
    Sim,
}

impl FromStr for DeviceOptions {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let mut options = Self::default();
        for option in text.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').ok_or_else(|| invalid(option, "expected NAME=VALUE"))?;
            match name.trim() {
                "driver" => options.kind = driver_kind(value.trim()).ok_or_else(|| invalid(option, DRIVERS))?,
                "allocator" => options.memory.policy = value.trim().parse()?,
                "fraction" => options.memory.fraction = number(option, value)?,
                "headroom" => options.memory.headroom_bytes = number(option, value)?,
                "pinned_cache" => options.pinned_cache_bytes = Some(number(option, value)?),
                "capacity" => options.capacity = Some(number(option, value)?),
                _ => {
                    return Err(invalid(
                        option,
                        "expected driver, allocator, fraction, headroom, pinned_cache or capacity",
                    ));
                }
            }
        }
        if options.capacity == Some(0) {
            return Err(invalid("capacity=0", "a device without memory serves nothing"));
        }
        if options.capacity.is_some() && options.kind != DriverKind::Sim {
            return Err(invalid("capacity", "only a simulated device has the capacity that one likes"));
        }
        Ok(options)
    }
}

impl DeviceOptions {
    /// Creates the driver of device number `device`.
    pub(crate) fn driver(&self, device: c_int) -> Result<DeviceDriver, Failure> {
        match self.kind {
            DriverKind::Cuda => {
                let index = u8::try_from(device)
                    .map_err(|_| Failure::Invalid(format!("device {device}: devices are numbered from 0")))?;
                Ok(DeviceDriver::Cuda(cuda::platform().cuda_driver(index)?))
            }
            DriverKind::Sim if device == 0 => {
                let config = SimConfig::default();
                let capacity_bytes = self.capacity.unwrap_or(config.capacity_bytes);
                Ok(DeviceDriver::Sim(Arc::new(SimDriver::new(SimConfig { capacity_bytes, ..config }))))
            }
            DriverKind::Sim => Err(Failure::Invalid(format!("device {device} cannot be simulated: only device 0 can"))),
        }
    }
}

const DRIVERS: &str = "the driver is cuda or sim";

fn driver_kind(name: &str) -> Option<DriverKind> {
    match name {
        "cuda" => Some(DriverKind::Cuda),
        "sim" => Some(DriverKind::Sim),
        _ => None,
    }
}

fn number<T: FromStr>(option: &str, value: &str) -> Result<T, Failure> {
    value.trim().parse().map_err(|_| invalid(option, "expected a number"))
}

fn invalid(option: &str, reason: &str) -> Failure {
    Failure::Invalid(format!("option `{option}`: {reason}"))
}

#[cfg(test)]
mod tests {
    use tenure_device::memory::AllocatorPolicy;

    use super::*;

    #[test]
    fn no_options_are_the_defaults() {
        assert_eq!("".parse::<DeviceOptions>().unwrap(), DeviceOptions::default());
    }

    #[test]
    fn options_are_read_by_name() {
        let options: DeviceOptions =
            "driver=sim, allocator=native,fraction=0.5,headroom=512,pinned_cache=9,capacity=4096".parse().unwrap();
        assert_eq!((options.kind, options.capacity), (DriverKind::Sim, Some(4096)));
        assert_eq!((options.memory.fraction, options.memory.headroom_bytes), (0.5, 512));
        assert_eq!(options.pinned_cache_bytes, Some(9));
        assert!(matches!(options.memory.policy, AllocatorPolicy::Native(_)));
    }

    #[test]
    fn invalid_options_are_named() {
        let message = |text: &str| text.parse::<DeviceOptions>().unwrap_err().to_string();
        assert_eq!(message("speed"), "option `speed`: expected NAME=VALUE");
        assert!(message("speed=9").starts_with("option `speed=9`: expected driver, allocator, fraction, headroom"));
        assert_eq!(message("driver=rocm"), "option `driver=rocm`: the driver is cuda or sim");
        assert_eq!(message("fraction=half"), "option `fraction=half`: expected a number");
        assert!(message("allocator=best").contains("expected \"paged\", \"native\" or \"expandable\""));
        assert!(message("driver=sim,capacity=0").contains("without memory"));
        assert!(message("capacity=5").contains("only a simulated device"));
    }
}
