//! Work on requests: where it runs, so that long work does not delay short requests.

use std::any::Any;
use std::fmt::Display;
use std::future::poll_fn;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::LazyLock;
use std::task::Poll;
use std::thread;

use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;

use super::ServeError;
use crate::niceness::raise_this_thread;

/// Work on more bytes than this takes about 100 µs or more, and runs where it does not delay other requests.
const SHORT_BYTES: usize = 64 << 10;

/// Work on more bytes than this takes some ms or more, and must not take the processors from short requests.
pub(crate) const MEDIUM_BYTES: usize = 1 << 20;

/// Writing a number in JSON takes as long as other work on this many bytes.
pub(crate) const NUMBER_BYTES: usize = 32;

/// A connection lets others run each time that it has sent or received this many bytes, which takes about 100 µs. Until
/// then, the thread that runs it may be the one that would notice the events of other connections.
pub(crate) const TURN_BYTES: usize = 256 << 10;

/// Turns for work of medium length and for long work. A batch answers many requests at once. If all their answers were
/// written at once, requests that are short would wait for a processor, even if each long thread yields.
static MEDIUM_WORK: LazyLock<Semaphore> = LazyLock::new(half_the_processors);
static LONG_WORK: LazyLock<Semaphore> = LazyLock::new(half_the_processors);

fn half_the_processors() -> Semaphore {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    Semaphore::new(processors.div_ceil(2))
}

/// Runs work on this many bytes. If it is not short, it waits for a turn and runs on another thread; if it takes long, its
/// thread yields the processors to others.
pub(crate) async fn aside<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, ServeError> + Send + 'static,
) -> Result<T, ServeError> {
    if bytes <= SHORT_BYTES {
        return work();
    }
    if bytes <= MEDIUM_BYTES {
        let _turn = MEDIUM_WORK.acquire().await;
        return on_another_thread(work).await;
    }
    let turn = LONG_WORK.acquire().await;
    let (sender, receiver) = oneshot::channel();
    let spawned = thread::Builder::new().name("serve: long body".into()).spawn(move || {
        raise_this_thread();
        // The client may be gone.
        let _ = sender.send(work());
        drop(turn);
    });
    spawned.map_err(failed)?;
    receiver.await.map_err(failed)?
}

/// Runs work that may wait for the system.
pub(crate) async fn on_another_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ServeError> + Send + 'static,
) -> Result<T, ServeError> {
    spawn_blocking(work).await.map_err(failed)?
}

fn failed(error: impl Display) -> ServeError {
    ServeError::Failed(format!("the server failed at a message: {error}"))
}

/// Runs a request's future. If it panics, only this request fails and its connection goes on.
pub(crate) async fn guarded<T>(answer: impl Future<Output = Result<T, ServeError>>) -> Result<T, ServeError> {
    let mut answer = pin!(answer);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| Poll::Ready(Err(failure(&*panic))))
    })
    .await
}

fn failure(panic: &(dyn Any + Send)) -> ServeError {
    let message = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!("a request failed: {}", message.unwrap_or("it panicked"));
    ServeError::Failed("the server failed at this request: its log says how".into())
}
