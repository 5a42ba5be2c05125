//! The routes of the HTTP server.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::body::receive;
use super::compression::{accepts_gzip, compress};
use super::cors::{self, Cors};
use super::feed::{self, Feed};
use super::route::{ModelPath, Operator, Route, Sharing, json, object};
use super::sites::Sites;
use super::{infer, openai, openapi, page, shared_memory};
use crate::metrics;
use crate::protocol::{IndexRequest, ModelConfig, ModelState, ServerMetadata, Statistics};
use crate::scheduler::ClientId;
use crate::service::shared::{ServerShared, refuse_parameters};
use crate::service::{Peer, ServeError};
use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, Method, Request, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get, post};
use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tower::ServiceExt;

/// The routes of health checks. The last two, which other servers and load balancers use, say the same as `READY`.
const LIVE: &str = "/v2/health/live";
const READY: &str = "/v2/health/ready";
const HEALTH: &str = "/health";
const HEALTHZ: &str = "/healthz";

/// Returns the routes that need a token, if the server has tokens.
fn guarded_routes() -> Vec<Route> {
    let mut routes = vec![
        ("/events".into(), get(events)),
        ("/metrics".into(), get(prometheus)),
        ("/v2".into(), get(metadata_of_server)),
        // The protocol's OpenAPI file has the trailing slash.
        ("/v2/".into(), get(metadata_of_server)),
        ("/v2/models/stats".into(), get(all_statistics)),
        ("/v2/repository/index".into(), post(index)),
        ("/v2/repository/models/{model}/load".into(), post(load)),
        ("/v2/repository/models/{model}/unload".into(), post(unload)),
    ];
    for model in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        routes.extend([
            (model.into(), get(metadata)),
            (format!("{model}/ready"), get(model_ready)),
            (format!("{model}/config"), get(model_config)),
            (format!("{model}/stats"), get(statistics)),
            (format!("{model}/infer"), post(infer::infer)),
        ]);
    }
    routes.extend(shared_memory::routes());
    routes.extend(openai::routes());
    routes
}

/// Returns the routes that need no token: health checks carry none, the page asks for one itself, and the description
/// of the routes says nothing about the models.
fn open_routes() -> Vec<Route> {
    vec![
        ("/".into(), get(live_page)),
        ("/page.css".into(), get(async || file("text/css; charset=utf-8", page::STYLE))),
        ("/page.js".into(), get(async || file("text/javascript; charset=utf-8", page::SCRIPT))),
        ("/openapi.json".into(), get(description)),
        (LIVE.into(), get(live)),
        (READY.into(), get(ready)),
        (HEALTH.into(), get(ready)),
        (HEALTHZ.into(), get(ready)),
    ]
}

/// Builds the router of all routes.
fn router(shared: Arc<ServerShared>, feed: Arc<Feed>) -> Router {
    let mut router = Router::new();
    for (path, methods) in guarded_routes() {
        router = router.route(&path, methods);
    }
    for model in ["", "/models/{model}", "/models/{model}/versions/{version}"] {
        router = router.route(&format!("/v2{model}/trace/setting"), any(no_trace));
    }
    router = router
        .route("/v2/logging", any(async || ServeError::NoExtension("logging")))
        .layer(middleware::from_fn_with_state(shared.clone(), authorize));
    for (path, methods) in open_routes() {
        router = router.route(&path, methods);
    }
    router
        .fallback(async |method: Method, uri: Uri| {
            refusal(&uri, ServeError::UnknownRoute(format!("{method} {}", uri.path())))
        })
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            refusal(&uri, ServeError::Method(format!("{method} {}", uri.path())))
        })
        .layer(Extension(feed))
        .with_state(shared)
}

/// Returns an error in the form that clients of the route expect.
fn refusal(uri: &Uri, error: ServeError) -> Response {
    if uri.path().starts_with("/v1/") { openai::Refused::from(error).into_response() } else { error.into_response() }
}

/// All routes. Inference, by far the most frequent, bypasses the router, which allocates a dozen times for each
/// request.
pub(super) struct Routes {
    router: Router,
    shared: Arc<ServerShared>,
    sites: Sites,
}

impl Routes {
    pub(super) fn new(shared: Arc<ServerShared>, sites: Sites, feed: Arc<Feed>) -> Self {
        Self { router: router(shared.clone(), feed), shared, sites }
    }

    /// Returns the client that sent a request.
    pub(super) fn client(&self, peer: Peer, headers: &HeaderMap) -> ClientId {
        self.shared.client(peer, headers)
    }

    /// Answers a request, in the form and with the headers that its client asks for.
    pub(super) async fn answer(&self, peer: Peer, request: Request<Incoming>) -> Result<Response, ServeError> {
        let accepts_gzip = accepts_gzip(request.headers());
        compress(accepts_gzip, self.route(peer, request).await?).await
    }

    /// Returns the headers that let pages of other sites read the answer to a request.
    pub(super) fn cors(&self, headers: &HeaderMap) -> Cors {
        Cors::of(&self.sites.origins, headers)
    }

    async fn route(&self, peer: Peer, mut request: Request<Incoming>) -> Result<Response, ServeError> {
        // A token shows that a client is not another site's page.
        if !is_health(request.uri().path())
            && !self.shared.has_tokens()
            && let Err(error) = self.sites.check(request.method(), request.headers())
        {
            return Ok(refusal(request.uri(), error));
        }
        if let Some(answer) = cors::preflight(&self.sites.origins, request.method(), request.headers()) {
            return Ok(answer);
        }
        let Some(path) = ModelPath::of_inference(request.method(), request.uri().path()) else {
            request.extensions_mut().insert(peer);
            // Boxed, so that rare requests do not enlarge the futures of all.
            return Box::pin(self.router.clone().oneshot(request)).await.map_err(|error| match error {});
        };
        self.shared.authorize(request.headers())?;
        let (head, body) = request.into_parts();
        infer::answer(&self.shared, path, Some(peer), &head.headers, body).await
    }
}

/// Returns whether a route is a health check, which is answered to every client.
pub(super) fn is_health(path: &str) -> bool {
    matches!(path, LIVE | READY | HEALTH | HEALTHZ)
}

/// Middleware for all routes except health and the page: rejects requests without a valid token, if tokens are required.
async fn authorize(State(shared): Sharing, request: Request<Body>, next: Next) -> Response {
    match shared.authorize(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => refusal(request.uri(), error),
    }
}

/// Answers a liveness check in the status and in the body: clients read one or the other.
async fn live(State(shared): Sharing) -> Result<Response, ServeError> {
    shared
        .service
        .is_live()
        .then(|| json(&serde_json::json!({ "live": true })))
        .ok_or_else(|| ServeError::Failed("the server no longer works: start it again".into()))
}

/// Answers a readiness check. The protocol's text says `live` where it means `ready`.
async fn ready(State(shared): Sharing) -> Result<Response, ServeError> {
    let is_ready = shared.service.is_ready();
    is_ready.then(|| json(&serde_json::json!({ "ready": true, "live": true }))).ok_or(ServeError::NotServing)
}

/// Returns the page with the current state, or one that asks for a token if the client lacks a required one.
async fn live_page(State(shared): Sharing, headers: HeaderMap) -> Response {
    // The browser loads and runs only the page's own style and script, whatever the model names contain.
    let policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                  base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let headers_of_page = [(header::CONTENT_SECURITY_POLICY, policy), (header::CACHE_CONTROL, "no-store")];
    match shared.authorize(&headers) {
        Ok(()) => (headers_of_page, Html(page::page(&shared.service.snapshot()))).into_response(),
        Err(error) => {
            let asks = [(header::WWW_AUTHENTICATE, "Bearer")];
            (error.status(), asks, headers_of_page, Html(page::locked())).into_response()
        }
    }
}

/// Returns a file of the page, which may differ after a restart and so is not cached.
fn file(media_type: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, media_type), (header::CACHE_CONTROL, "no-store")], text)
}

/// Returns the description of all routes.
async fn description(State(shared): Sharing) -> Response {
    json(&openapi::document(shared.has_tokens()))
}

async fn events(Extension(feed): Extension<Arc<Feed>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, feed::CONTENT_TYPE), (header::CACHE_CONTROL, "no-store")], feed.body())
}

async fn prometheus(State(shared): Sharing) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], shared.service.metrics().to_text())
}

async fn index(State(shared): Sharing, headers: HeaderMap, body: Body) -> Result<Response, ServeError> {
    let body = receive(&headers, body, &shared.limits, &mut shared.share()).await?;
    let IndexRequest { ready } = parameters(&body)?;
    let mut entries = shared.service.index();
    entries.retain(|entry| !ready || entry.state == ModelState::Ready);
    Ok(json(&entries))
}

async fn load(
    State(shared): Sharing,
    _: Operator,
    path: ModelPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServeError> {
    let body = receive(&headers, body, &shared.limits, &mut shared.share()).await?;
    let LoadRequest { parameters } = parameters(&body)?;
    refuse_parameters(parameters.unwrap_or_default().keys())?;
    shared.service.load(&path.model).await?;
    Ok(json(&serde_json::Map::new()))
}

async fn unload(
    State(shared): Sharing,
    _: Operator,
    path: ModelPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServeError> {
    // No model depends on another, so `unload_dependents` has no effect.
    let body = receive(&headers, body, &shared.limits, &mut shared.share()).await?;
    let LoadRequest { .. } = parameters(&body)?;
    shared.service.unload(&path.model).await?;
    Ok(json(&serde_json::Map::new()))
}

async fn metadata_of_server(State(shared): Sharing) -> Response {
    json(&ServerMetadata::http(shared.has_cuda()))
}

async fn no_trace() -> ServeError {
    ServeError::NoExtension("trace")
}

async fn metadata(State(shared): Sharing, path: ModelPath) -> Result<Response, ServeError> {
    Ok(json(&*shared.service.metadata(&path.model, path.version.as_deref())?))
}

async fn model_ready(State(shared): Sharing, path: ModelPath) -> Result<Response, ServeError> {
    let is_ready = shared.service.is_model_ready(&path.model, path.version.as_deref())?;
    if is_ready {
        return Ok(json(&serde_json::json!({ "name": path.model, "ready": true })));
    }
    Err(ServeError::NotReady { model: path.model, reason: "POST v2/repository/index says why".into() })
}

async fn model_config(State(shared): Sharing, path: ModelPath) -> Result<Response, ServeError> {
    let metadata = shared.service.metadata(&path.model, path.version.as_deref())?;
    Ok(json(&ModelConfig::new(&metadata)))
}

async fn statistics(State(shared): Sharing, path: ModelPath) -> Result<Response, ServeError> {
    let model_stats = shared.statistics(Some((&path.model, path.version.as_deref())))?;
    Ok(json(&Statistics { model_stats }))
}

async fn all_statistics(State(shared): Sharing) -> Result<Response, ServeError> {
    Ok(json(&Statistics { model_stats: shared.statistics(None)? }))
}

/// The body of a request to load or unload a model.
#[derive(Default, Deserialize)]
struct LoadRequest {
    parameters: Option<BTreeMap<String, IgnoredAny>>,
}

/// Parses a body that may be empty.
fn parameters<T: Default + for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, ServeError> {
    if body.trim_ascii().is_empty() { Ok(T::default()) } else { object(body, "valid request") }
}

/// Returns the paths of all routes that answer something other than an error.
#[cfg(test)]
pub(super) fn paths() -> std::collections::BTreeSet<String> {
    guarded_routes().into_iter().chain(open_routes()).map(|(path, _)| path).collect()
}
