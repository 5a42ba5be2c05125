//! Routes of all protocols share this: the parts that they take from a request, and JSON.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use serde::{Deserialize, Serialize};

use crate::service::ServeError;
use crate::service::shared::ServerShared;

/// A path and its answers by method.
pub(super) type Route = (String, MethodRouter<Arc<ServerShared>>);

pub(super) type Sharing = State<Arc<ServerShared>>;

/// A client that is one of the [`Operators`](crate::service::Operators).
pub(super) struct Operator;

impl FromRequestParts<Arc<ServerShared>> for Operator {
    type Rejection = ServeError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<ServerShared>) -> Result<Self, ServeError> {
        shared.check_operator(parts.extensions.get().copied())?;
        Ok(Self)
    }
}

/// The model that a route names.
#[derive(Deserialize)]
pub(super) struct ModelPath {
    pub(super) model: String,
    pub(super) version: Option<String>,
}

impl ModelPath {
    /// Returns the model of an inference request, if the path has its name unescaped.
    pub(super) fn of_inference(method: &Method, path: &str) -> Option<Self> {
        let path = path.strip_prefix("/v2/models/")?.strip_suffix("/infer")?;
        let (model, version) = match path.split_once('/') {
            None => (path, None),
            Some((model, rest)) => (model, Some(rest.strip_prefix("versions/")?)),
        };
        let is_known = method == Method::POST && is_plain(model) && version.is_none_or(is_plain);
        is_known.then(|| Self { model: model.into(), version: version.map(String::from) })
    }
}

/// Returns whether a part of a path is a name as it stands.
fn is_plain(part: &str) -> bool {
    !part.is_empty() && !part.contains(['/', '%'])
}

impl<S: Send + Sync> FromRequestParts<S> for ModelPath {
    type Rejection = ServeError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ServeError> {
        let path = Path::<Self>::from_request_parts(parts, state).await;
        path.map(|Path(path)| path).map_err(|error| ServeError::Malformed(error.body_text()))
    }
}

/// Parses a JSON object, which the errors call `what`.
pub(super) fn object<'de, T: Deserialize<'de>>(body: &'de [u8], what: &str) -> Result<T, ServeError> {
    // serde would accept an array as the values of an object's fields.
    if body.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(ServeError::Malformed(format!("the body is not a {what}: it must be an object")));
    }
    serde_json::from_slice(body).map_err(|error| ServeError::Malformed(format!("the body is not a {what}: {error}")))
}

pub(super) fn json(message: &(impl Serialize + ?Sized)) -> Response {
    match serde_json::to_vec(message) {
        Ok(body) => json_response(body),
        Err(error) => ServeError::Failed(error.to_string()).into_response(),
    }
}

pub(super) fn json_response(body: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body.into()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_path_of_inference_needs_no_router() {
        let found = |method: Method, path: &str| {
            ModelPath::of_inference(&method, path).map(|ModelPath { model, version }| (model, version))
        };
        assert_eq!(found(Method::POST, "/v2/models/m/infer"), Some(("m".into(), None)));
        let versioned = found(Method::POST, "/v2/models/m.x/versions/1/infer");
        assert_eq!(versioned, Some(("m.x".into(), Some("1".into()))));
        assert_eq!(found(Method::GET, "/v2/models/m/infer"), None);
        for other in ["m%20x/infer", "/infer", "m/versions//infer", "m/versions/1/2/infer", "m/n/infer", "m/infer/"] {
            assert_eq!(found(Method::POST, &format!("/v2/models/{other}")), None, "{other}");
        }
    }
}
