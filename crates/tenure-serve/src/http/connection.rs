//! HTTP connections, and the answers of their requests.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, header};
use axum::response::IntoResponse;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::sleep;

use super::answer_body::AnswerBody;
use super::feed::Feed;
use super::routes::{Routes, is_health};
use super::sites::Sites;
use crate::request_log::{REQUEST_ID, RequestEvent, RequestRecord};
use crate::service::connections::{Accepted, Connections};
use crate::service::places::{Place, PlaceKind};
use crate::service::shared::ServerShared;
use crate::service::work::guarded;
use crate::service::{Limits, Peer, ServeError, outcome};

/// Accepts connections and serves them until the server ends.
pub(crate) async fn serve(connections: Connections, shared: Arc<ServerShared>, sites: Sites) {
    let feed = Arc::new(Feed::default());
    let routes = Arc::new(Routes::new(shared.clone(), sites, feed.clone()));
    let limits = shared.limits;
    let served = connections.serve(shared.stopped(), move |accepted| serve_one(accepted, routes.clone(), limits));
    tokio::join!(served, feed.run(&*shared.service, shared.stopped()));
}

/// Serves HTTP/1.1 over a connection until its client closes it or the server ends.
async fn serve_one(accepted: Accepted, routes: Arc<Routes>, limits: Limits) -> io::Result<()> {
    let Accepted { stream, peer, place, mut closing } = accepted;
    let service = {
        let place = place.clone();
        service_fn(move |request| answer(routes.clone(), peer, place.clone(), request))
    };
    let mut builder = http1::Builder::new();
    // This is the time that a connection may be idle, too.
    builder.timer(TokioTimer::new()).header_read_timeout(limits.receive).max_header_size(limits.header_bytes);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut silence = pin!(sleep(limits.head));
    loop {
        tokio::select! {
            ended = &mut connection => return ended.map_err(io::Error::other),
            () = &mut silence, if !place.had_request() => {
                if !place.had_request() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            () = closing.begun() => break,
        }
    }
    connection.as_mut().graceful_shutdown();
    connection.await.map_err(io::Error::other)
}

/// Returns the answer of a route.
async fn answer(
    routes: Arc<Routes>,
    peer: Peer,
    place: Arc<Place>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let in_progress = place.begin();
    let record = RequestRecord::new(request.headers(), "http", request.method().as_str(), request.uri().path());
    record.comes_from(routes.client(peer, request.headers()));
    let mut event = RequestEvent::new(record.clone());
    let cors = routes.cors(request.headers());
    let is_refused = place.kind() == PlaceKind::Reserve && !is_health(request.uri().path());
    let routed = async {
        if is_refused {
            return Err(ServeError::Crowded);
        }
        // Boxed, since it has a few KiB, which would be copied at each move.
        Box::pin(routes.answer(peer, request)).await
    };
    let mut answer = record.scope(guarded(routed)).await.unwrap_or_else(ServeError::into_response);
    answer.headers_mut().insert(REQUEST_ID, record.id().clone());
    cors.add_to(answer.headers_mut());
    if place.kind() == PlaceKind::Reserve {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let status = answer.status();
    event.answered(outcome(status), status.as_u16(), answer.body().size_hint().exact());
    Ok(answer.map(|body| Body::new(AnswerBody::new(body, in_progress))))
}
impl IntoResponse for ServeError {
    fn into_response(self) -> Response<Body> {
        let body = serde_json::json!({ "error": self.message() }).to_string();
        let mut response = (self.status(), [(header::CONTENT_TYPE, "application/json")], body).into_response();
        let headers = response.headers_mut();
        if let Some(retry_after) = self.retry_after() {
            // The header has whole seconds, and at least one.
            headers.insert(header::RETRY_AFTER, retry_after.as_secs().saturating_add(1).into());
        }
        match self {
            Self::Token => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // Any remaining bytes of the body are not a request.
            Self::Slow(_) | Self::Stalled(_) | Self::TooLarge(_) => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}
