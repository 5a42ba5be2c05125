//! The trailers that say how a call ended.

use std::fmt::Write;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::service::{ServeError, SharedMemoryError};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// gRPC's status code of an ended call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Ok = 0,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// Returns the code of an error. Errors that allow a later retry are `UNAVAILABLE`, like 503 over HTTP.
fn code(error: &ServeError) -> Code {
    match error {
        ServeError::Invalid(_) | ServeError::Malformed(_) => Code::InvalidArgument,
        ServeError::SharedMemory(error) => shared_memory(error),
        ServeError::UnknownModel { .. } => Code::NotFound,
        ServeError::UnknownRoute(_)
        | ServeError::NoExtension(_)
        | ServeError::Method(_)
        | ServeError::ContentEncoding(_)
        | ServeError::ContentType(_) => Code::Unimplemented,
        ServeError::Token => Code::Unauthenticated,
        ServeError::OtherSite | ServeError::OtherHost(_) | ServeError::Elsewhere => Code::PermissionDenied,
        ServeError::Slow(_) | ServeError::Stalled(_) | ServeError::DeadlinePassed(_) => Code::DeadlineExceeded,
        ServeError::TooLarge(_) | ServeError::TooMuchMemory(_) => Code::ResourceExhausted,
        ServeError::NotReady { .. }
        | ServeError::QueueFull { .. }
        | ServeError::Busy
        | ServeError::Crowded
        | ServeError::TryAgain(_)
        | ServeError::NotServing
        | ServeError::ShuttingDown => Code::Unavailable,
        ServeError::Failed(_) => Code::Internal,
    }
}

/// Returns the code of a shared-memory error.
fn shared_memory(error: &SharedMemoryError) -> Code {
    match error {
        SharedMemoryError::Unknown(_) => Code::NotFound,
        SharedMemoryError::Twice(_) => Code::AlreadyExists,
        SharedMemoryError::Full | SharedMemoryError::TooLarge(_) => Code::ResourceExhausted,
        SharedMemoryError::Failed { .. } => Code::Internal,
        _ => Code::InvalidArgument,
    }
}

/// Returns the number of the code that says how a call ended.
pub(super) fn number<T>(ended: &Result<T, ServeError>) -> u16 {
    ended.as_ref().map_or_else(code, |_| Code::Ok) as u16
}

/// Returns the trailers of a call that ended this way.
pub(super) fn trailers(ended: &Result<(), ServeError>) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert(STATUS, HeaderValue::from(number(ended)));
    let Err(error) = ended else { return trailers };
    if let Ok(message) = HeaderValue::from_str(&escape(&error.message())) {
        trailers.insert(MESSAGE, message);
    }
    if let Some(retry_after) = error.retry_after() {
        trailers.insert(PUSHBACK, u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX).into());
    }
    trailers
}

/// Percent-encodes a message for a header: every byte that is not plain ASCII becomes `%` and two digits.
fn escape(message: &str) -> String {
    let mut escaped = String::with_capacity(message.len());
    for byte in message.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            escaped.push(byte.into());
        } else {
            // Writing to memory does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_escaped_where_a_header_cannot_have_it() {
        assert_eq!(escape("50% of \"é\"\n"), "50%25 of \"%C3%A9\"%0A");
    }
}
