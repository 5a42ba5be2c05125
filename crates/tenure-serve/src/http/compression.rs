//! Compression of answers in JSON, for clients that ask for gzip.

use std::io::Write;

use axum::body::{Body, to_bytes};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Body as _;

use crate::service::ServeError;
use crate::service::work::aside;

/// Shorter answers fit into a packet or two as they are.
const LEAST_BYTES: u64 = 1024;

/// Compresses an answer if it is JSON, long enough, and the client accepts that.
///
/// # Errors
/// The answer cannot be compressed, which does not happen in memory.
pub(super) async fn compress(accepts: bool, mut response: Response) -> Result<Response, ServeError> {
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    let size = response.body().size_hint().exact().filter(|size| is_json && *size > LEAST_BYTES);
    let Some(size) = size.and_then(|size| usize::try_from(size).ok()) else { return Ok(response) };
    response.headers_mut().append(VARY, HeaderValue::from_static("accept-encoding"));
    if !accepts {
        return Ok(response);
    }
    let (mut head, body) = response.into_parts();
    let failed = |reason: &dyn ToString| ServeError::Failed(format!("an answer: {}", reason.to_string()));
    let body = to_bytes(body, size).await.map_err(|error| failed(&error))?;
    // It takes longer than writing JSON.
    let packed = aside(size.saturating_mul(8), move || gzip(&body).map_err(|error| failed(&error))).await?;
    head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    head.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(head, Body::from(packed)))
}

fn gzip(bytes: &[u8]) -> std::io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 2), Compression::fast());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?.into())
}

/// Returns whether a client accepts gzip: its name, or else `*`, has a weight above zero.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let weights: Vec<(&str, f32)> = values.flat_map(|value| value.split(',')).filter_map(weighted).collect();
    let weight = |name: &str| weights.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    weight("gzip").or_else(|| weight("*")).is_some_and(|(_, weight)| *weight > 0.0)
}

/// Parses a name with its weight, which is 1 by default.
fn weighted(part: &str) -> Option<(&str, f32)> {
    match part.split_once(';') {
        None => Some((part.trim(), 1.0)),
        Some((name, weight)) => {
            let weight = weight.trim().strip_prefix("q=").or_else(|| weight.trim().strip_prefix("Q="))?;
            Some((name.trim(), weight.parse().ok()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_of_zero_refuses() {
        for (value, expected) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("*", true),
            ("gzip;q=0, *", false),
            ("gzip; q=0.000", false),
            ("br", false),
            ("", false),
            ("gzip;q=x", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]);
            assert_eq!(accepts_gzip(&headers), expected, "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
