//! What is served where.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use subtle::{Choice, ConstantTimeEq};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::body::{Share, aside, receive};
use super::{Config, ServeError, Service, page};
use crate::metrics::{self, Metrics, Outcome};
use crate::protocol::{
    Encoded, IndexRequest, InferRequest, InferResponse, JSON_LENGTH, ModelState, ProtocolError, ServerMetadata, Wanted,
};

/// What all routes need.
struct Shared {
    service: Arc<dyn Service>,
    config: Config,
    /// KiB for bodies.
    memory: Arc<Semaphore>,
}

impl Shared {
    fn share(&self) -> Share {
        Share::new(self.memory.clone())
    }
}

type Sharing = State<Arc<Shared>>;

/// All routes.
pub(super) fn router(service: Arc<dyn Service>, config: Config) -> Router {
    let mut router = Router::new()
        .route("/", get(live_page))
        .route("/metrics", get(prometheus))
        .route("/v2", get(async || json(&ServerMetadata::TENURE)))
        .route("/v2/repository/index", post(index))
        .route("/v2/repository/models/{model}/load", post(load))
        .route("/v2/repository/models/{model}/unload", post(unload));
    for model in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        router = router
            .route(model, get(metadata))
            .route(&format!("{model}/ready"), get(model_ready))
            .route(&format!("{model}/infer"), post(infer));
    }
    let memory = Semaphore::new((config.limits.all_body_bytes / 1024).min(Semaphore::MAX_PERMITS));
    let shared = Arc::new(Shared { service, config, memory: Arc::new(memory) });
    router
        .layer(middleware::from_fn_with_state(shared.clone(), authorize))
        // Below the layer: whoever looks whether the server is there has no token.
        .route("/v2/health/live", get(live))
        .route("/v2/health/ready", get(ready))
        .fallback(async |method: Method, uri: Uri| ServeError::UnknownRoute(format!("{method} {}", uri.path())))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            ServeError::Method(format!("{method} {}", uri.path()))
        })
        .with_state(shared)
}

/// Lets those pass who have a token, if there are tokens, and do not come from another site.
async fn authorize(State(shared): Sharing, request: Request, next: Next) -> Result<Response, ServeError> {
    // A page that somebody looks at on this host reaches what listens on this host alone.
    let is_from_elsewhere = request.headers().get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    if is_from_elsewhere && request.method() != Method::GET {
        return Err(ServeError::OtherSite);
    }
    let tokens = &shared.config.tokens;
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked(7));
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer ")).map_or(&[][..], |(_, token)| token);
    // All are compared, each whole, so that the time tells nothing of how near a guess was.
    let is_known = tokens.iter().fold(Choice::from(0), |known, token| known | token.as_bytes().ct_eq(given));
    if tokens.is_empty() || is_known.into() { Ok(next.run(request).await) } else { Err(ServeError::Token) }
}

async fn live(State(shared): Sharing) -> Result<(), ServeError> {
    let failed = || ServeError::Failed("the server no longer works: start it again".into());
    shared.service.is_live().then_some(()).ok_or_else(failed)
}

async fn ready(State(shared): Sharing) -> Result<(), ServeError> {
    shared.service.is_ready().then_some(()).ok_or(ServeError::NotServing)
}

async fn live_page(State(shared): Sharing) -> impl IntoResponse {
    // Nothing but the page's own style is loaded or run, whatever names are in it.
    let policy = (header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'");
    ([policy, (header::CACHE_CONTROL, "no-store")], Html(page::page(&shared.service.snapshot())))
}

async fn prometheus(State(shared): Sharing) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], shared.service.metrics().to_text())
}

async fn index(State(shared): Sharing, headers: HeaderMap, body: Body) -> Result<Response, ServeError> {
    let body = receive(&headers, body, &shared.config.limits, &mut shared.share()).await?;
    let IndexRequest { ready } = parameters(&body)?;
    let mut entries = shared.service.index();
    entries.retain(|entry| !ready || entry.state == ModelState::Ready);
    Ok(json(&entries))
}

async fn load(State(shared): Sharing, path: ModelPath, headers: HeaderMap, body: Body) -> Result<Response, ServeError> {
    let body = receive(&headers, body, &shared.config.limits, &mut shared.share()).await?;
    let LoadRequest { parameters } = parameters(&body)?;
    // What is asked for would not be what is loaded.
    if let Some((name, _)) = parameters.unwrap_or_default().first_key_value() {
        let message = format!("the parameter {name:?} is not supported: a model is loaded as its files say");
        return Err(ServeError::Malformed(message));
    }
    shared.service.load(&path.model).await?;
    Ok(json(&serde_json::Map::new()))
}

async fn unload(
    State(shared): Sharing,
    path: ModelPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServeError> {
    // No model depends on another, so that `unload_dependents` says nothing.
    let body = receive(&headers, body, &shared.config.limits, &mut shared.share()).await?;
    let LoadRequest { .. } = parameters(&body)?;
    shared.service.unload(&path.model).await?;
    Ok(json(&serde_json::Map::new()))
}

async fn metadata(State(shared): Sharing, path: ModelPath) -> Result<Response, ServeError> {
    Ok(json(&*shared.service.metadata(&path.model, path.version.as_deref())?))
}

async fn model_ready(State(shared): Sharing, path: ModelPath) -> Result<(), ServeError> {
    let is_ready = shared.service.is_model_ready(&path.model, path.version.as_deref())?;
    let not_ready = || ServeError::NotReady { model: path.model, reason: "POST v2/repository/index says why".into() };
    is_ready.then_some(()).ok_or_else(not_ready)
}

async fn infer(
    State(shared): Sharing,
    path: ModelPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServeError> {
    let mut ending = Ending { metrics: shared.service.metrics(), model: String::new(), outcome: Outcome::Cancelled };
    let answer = answer(&shared, path, &headers, body, &mut ending.model).await;
    ending.outcome = answer.as_ref().map_or_else(ServeError::outcome, |_| Outcome::Answered);
    answer
}

/// `known` becomes the model's name, when it is known that there is such a model.
async fn answer(
    shared: &Shared,
    path: ModelPath,
    headers: &HeaderMap,
    body: Body,
    known: &mut String,
) -> Result<Response, ServeError> {
    let arrived = Instant::now();
    let json_bytes = json_length(headers)?;
    // Inputs may be parts of the body.
    let mut share = shared.share();
    let body = receive(headers, body, &shared.config.limits, &mut share).await?;
    let metadata = shared.service.metadata(&path.model, path.version.as_deref())?;
    known.clone_from(&path.model);
    let body_bytes = body.len();
    let parse = move || {
        let request = InferRequest::parse(path.model, path.version, body, json_bytes).map_err(ServeError::Invalid)?;
        metadata.check(&request).map_err(ServeError::Invalid)?;
        Ok(request)
    };
    let request = aside(body_bytes, parse).await?;
    let (id, wanted, timeout) = (request.id.clone(), request.wanted.clone(), request.timeout);
    let inferred = shared.service.infer(request);
    let mut response = match timeout {
        None => inferred.await?,
        Some(timeout) => {
            let in_time = timeout_at(arrived + timeout, inferred).await;
            in_time.map_err(|_| ServeError::DeadlinePassed(timeout))??
        }
    };
    response.id = id;
    let output_bytes = response.outputs.iter().map(|output| output.bytes().len()).sum();
    let Encoded { body, json_bytes } = aside(output_bytes, move || encode(&response, &wanted)).await?;
    let Some(json_bytes) = json_bytes else { return Ok(json_response(body)) };
    let mut response = ([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response();
    response.headers_mut().insert(JSON_LENGTH, json_bytes.into());
    Ok(response)
}

fn encode(response: &InferResponse, wanted: &Wanted) -> Result<Encoded, ServeError> {
    response.encode(wanted).map_err(|error| match error {
        // It was asked for in JSON.
        ProtocolError::Write(_) => ServeError::Invalid(error),
        _ => ServeError::Failed(format!("the server answered something else: {error}")),
    })
}

/// Counts how a request ended, even if it is dropped.
struct Ending<'a> {
    metrics: &'a Metrics,
    model: String,
    outcome: Outcome,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let outcome = if thread::panicking() { Outcome::Failed } else { self.outcome };
        self.metrics.ended(&self.model, outcome);
    }
}

/// The model that a route names.
#[derive(Deserialize)]
struct ModelPath {
    model: String,
    version: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for ModelPath {
    type Rejection = ServeError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ServeError> {
        let path = Path::<Self>::from_request_parts(parts, state).await;
        path.map(|Path(path)| path).map_err(|error| ServeError::Malformed(error.body_text()))
    }
}

/// What a model is loaded or unloaded with.
#[derive(Default, Deserialize)]
struct LoadRequest {
    parameters: Option<BTreeMap<String, IgnoredAny>>,
}

/// What a body says that may be empty.
fn parameters<T: Default + for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, ServeError> {
    if body.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(body).map_err(|error| ServeError::Malformed(format!("the body is no such request: {error}")))
}

fn json_length(headers: &HeaderMap) -> Result<Option<usize>, ServeError> {
    let Some(value) = headers.get(JSON_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|value| value.parse().ok());
    let malformed = || ServeError::Malformed(format!("Inference-Header-Content-Length is no length: {value:?}"));
    length.map(Some).ok_or_else(malformed)
}

fn json(message: &impl Serialize) -> Response {
    match serde_json::to_vec(message) {
        Ok(body) => json_response(body),
        Err(error) => ServeError::Failed(error.to_string()).into_response(),
    }
}

fn json_response(body: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body.into()).into_response()
}
