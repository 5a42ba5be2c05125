//! Every subsystem's error converts into the crate's error, and keeps its message.

use tenure_core::{AllocatorError, DTypeError, DeviceError, DeviceKind, Error, LayoutError, StorageError};

/// Returns the messages of `error` itself and of the public error that it converts into.
fn converted<E>(error: E) -> (String, String)
where
    E: Into<Error> + Clone + std::error::Error + Send + Sync + 'static,
{
    let public: Box<dyn std::error::Error + Send + Sync> = Box::new(error.clone().into());
    (error.to_string(), public.to_string())
}

#[test]
fn a_converted_error_keeps_its_text() {
    for (own, public) in [
        converted(DeviceError::UnknownKind { text: "tpu".into() }),
        converted(DTypeError::Unknown { text: "f8".into() }),
        converted(LayoutError::ZeroStep),
        converted(AllocatorError::NotRegistered { kind: DeviceKind::Cuda }),
        converted(StorageError::NoAllocator),
        converted(StorageError::from(AllocatorError::TooLarge { requested: usize::MAX })),
    ] {
        assert!(!own.is_empty());
        assert_eq!(own, public);
    }
}

#[test]
fn a_converted_error_still_tells_its_subsystem() {
    fn parse(device: &str, dtype: &str) -> Result<(), Error> {
        device.parse::<tenure_core::Device>()?;
        dtype.parse::<tenure_core::DType>()?;
        Ok(())
    }
    assert!(matches!(parse("tpu", "f32"), Err(Error::Device(DeviceError::UnknownKind { .. }))));
    assert!(matches!(parse("cpu", "f8"), Err(Error::DType(DTypeError::Unknown { .. }))));
}
