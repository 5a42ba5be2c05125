//! Answers to the pages of other sites that `--allow-origin` names (CORS): browsers ask before they send most requests,
//! and hand over an answer only if its headers allow it.

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};

use super::sites::{self, Origin};

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST");
const EXPOSED: HeaderValue =
    HeaderValue::from_static("x-request-id, inference-header-content-length, retry-after, www-authenticate");
/// The seconds for which a browser may remember the answer to its question.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The headers that an answer needs so that a page of the request's origin may read it.
pub(super) enum Cors {
    /// No page of another site may use the server.
    Off,
    /// The request is not of an allowed origin, and others are.
    NotAllowed,
    /// The request is of an allowed origin.
    Allowed(HeaderValue),
}

impl Cors {
    pub(super) fn of(origins: &[Origin], headers: &HeaderMap) -> Self {
        match headers.get(ORIGIN).filter(|origin| sites::is_allowed(origins, origin)) {
            _ if origins.is_empty() => Self::Off,
            None => Self::NotAllowed,
            Some(origin) => Self::Allowed(origin.clone()),
        }
    }

    /// Adds the headers to an answer.
    pub(super) fn add_to(self, headers: &mut HeaderMap) {
        if matches!(self, Self::Off) {
            return;
        }
        // A cache must not give the answer for one origin to another.
        headers.append(VARY, HeaderValue::from_static("origin"));
        if let Self::Allowed(origin) = self {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }
}

/// Returns the answer to a browser that asks whether a page of an allowed origin may send a request. The question itself
/// has no token.
pub(super) fn preflight(origins: &[Origin], method: &Method, headers: &HeaderMap) -> Option<Response> {
    let is_question = method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if !is_question || !matches!(Cors::of(origins, headers), Cors::Allowed(_)) {
        return None;
    }
    let mut response = StatusCode::NO_CONTENT.into_response();
    let answer = response.headers_mut();
    answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    answer.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    answer.append(VARY, HeaderValue::from_static("access-control-request-headers"));
    if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    Some(response)
}
