//! The bodies of requests: received within their limits, and decompressed.

use std::fmt::Display;
use std::io::Read;
use std::num::NonZero;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Limits, ServeError};
use crate::niceness::raise_this_thread;
use crate::request_log;

/// Work on more bytes than this takes about 100 µs or more, and runs where it does not delay other requests.
const SHORT_BYTES: usize = 64 << 10;

/// Work on more bytes than this takes some ms or more, and must not take the processors from short requests.
pub(crate) const MEDIUM_BYTES: usize = 1 << 20;

/// Writing a number in JSON takes as long as other work on this many bytes.
pub(crate) const NUMBER_BYTES: usize = 32;

/// A connection lets others run each time that it has sent or received this many bytes, which takes about 100 µs. Until
/// then, the thread that runs it may be the one that would notice the events of other connections.
pub(crate) const TURN_BYTES: usize = 256 << 10;

/// A compressed body is expected to become this many times as long.
const UNPACKED_TIMES: usize = 8;

/// How long the server reads on after a body exceeds its limit. A client that is cut off while it sends does not see
/// the answer.
const FAREWELL: Duration = Duration::from_secs(1);

/// A share of the memory for all bodies, held until it is dropped. It is counted in KiB.
pub(crate) struct BodyShare {
    free: Arc<Semaphore>,
    /// The bytes of all shares together.
    all_bytes: usize,
    taken: Option<OwnedSemaphorePermit>,
}

impl BodyShare {
    pub(crate) fn new(free: Arc<Semaphore>, all_bytes: usize) -> Self {
        Self { free, all_bytes, taken: None }
    }

    /// Grows the share to this many bytes if they are free. It does not wait: the requests that hold the rest may wait
    /// too.
    ///
    /// # Errors
    /// Others hold too many bytes, or there are fewer bytes in all.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ServeError> {
        if bytes > self.all_bytes {
            let message = format!(
                "the request takes {bytes} bytes of memory when it is read, and the server has {} for all requests: send less",
                self.all_bytes
            );
            return Err(ServeError::TooMuchMemory(message));
        }
        let taken = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(bytes.div_ceil(1024).saturating_sub(taken)).map_err(|_| ServeError::Busy)?;
        let more = self.free.clone().try_acquire_many_owned(more).map_err(|_| ServeError::Busy)?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        Ok(())
    }
}

/// The least progress of a body: in each period, at least a KiB and a sixteenth of what has arrived before.
///
/// A client that stops or trickles would hold the memory of what it has sent until the whole time for its body is over.
/// A body that comes evenly, however slowly, brings a larger part of it in each sixth of that time.
pub(crate) struct Pace {
    period: Duration,
    ends: Instant,
    due_bytes: usize,
    /// The number of bytes after which others run.
    turn_ends: usize,
}

impl Pace {
    pub(crate) fn new(period: Duration) -> Self {
        Self { period, ends: Instant::now(), due_bytes: 0, turn_ends: TURN_BYTES }
    }

    /// Waits for more of a body of which `bytes` have arrived, and lets others run before if that was much.
    ///
    /// # Errors
    /// The body makes too little progress.
    pub(crate) async fn wait<T>(&mut self, bytes: usize, more: impl Future<Output = T>) -> Result<T, ServeError> {
        if bytes >= self.due_bytes {
            self.ends = Instant::now() + self.period;
            self.due_bytes = bytes + (bytes / 16).max(1024);
        }
        if bytes >= self.turn_ends {
            self.turn_ends = bytes + TURN_BYTES;
            yield_now().await;
        }
        timeout_at(self.ends, more).await.map_err(|_| ServeError::Stalled(self.period))
    }
}

/// Receives a body and decompresses it, counting it against `share`.
pub(super) async fn receive(
    headers: &HeaderMap,
    body: impl Body<Data = Bytes, Error: Display>,
    limits: &Limits,
    share: &mut BodyShare,
) -> Result<Bytes, ServeError> {
    let limit = limits.body_bytes;
    // A client that sends `Expect` for a body that is too large gets the error before it sends the body.
    if headers.contains_key(header::EXPECT) && body.size_hint().lower() > limit as u64 {
        return Err(ServeError::TooLarge(limit));
    }
    let received = timeout(limits.receive, collect(body, limits, share)).await;
    let body = received.map_err(|_| ServeError::Slow(limits.receive))??;
    if let Some(record) = request_log::current() {
        record.received(body.len());
    }
    let packing = match headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes()) {
        None | Some(b"identity") => return Ok(body),
        Some(b"gzip") => Packing::Gzip,
        Some(b"deflate") => Packing::Zlib,
        Some(other) => return Err(ServeError::ContentEncoding(String::from_utf8_lossy(other).into_owned())),
    };
    unpack(packing, body, limit, share).await
}

async fn collect(
    body: impl Body<Data = Bytes, Error: Display>,
    limits: &Limits,
    share: &mut BodyShare,
) -> Result<Bytes, ServeError> {
    let limit = limits.body_bytes;
    let mut body = pin!(body);
    let said = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    let mut refusal = (said > limit).then_some(ServeError::TooLarge(limit));
    let mut pace = Pace::new(limits.stall);
    while refusal.is_none()
        && let Some(frame) = pace.wait(bytes.len(), body.frame()).await?
    {
        let frame = frame.map_err(|error| ServeError::Malformed(format!("the body was cut off: {error}")))?;
        let data = frame.into_data().unwrap_or_default();
        if data.len() > limit - bytes.len() {
            refusal = Some(ServeError::TooLarge(limit));
        } else {
            // A body that said its size has just that in the end.
            let most = if bytes.len() + data.len() <= said { said } else { limit };
            refusal = append(&mut bytes, &data, most, share).err();
        }
    }
    let Some(refusal) = refusal else { return Ok(bytes.into()) };
    let discard = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout(FAREWELL, discard).await;
    Err(refusal)
}

/// Appends data to bytes, whose memory doubles up to `most` bytes, and counts that memory against `share` before it is
/// taken. Bytes that were only announced take none.
fn append(bytes: &mut Vec<u8>, data: &[u8], most: usize, share: &mut BodyShare) -> Result<(), ServeError> {
    let needed = bytes.len() + data.len();
    if needed > bytes.capacity() {
        let capacity = bytes.capacity().saturating_mul(2).min(most).max(needed);
        share.grow(capacity)?;
        bytes.reserve_exact(capacity - bytes.len());
    }
    bytes.extend_from_slice(data);
    Ok(())
}

/// A compression of bodies.
#[derive(Clone, Copy)]
pub(crate) enum Packing {
    Gzip,
    Zlib,
}

/// Decompresses a body on another thread: a few bytes may become many. They count against `share` in place of the body,
/// as they come.
pub(crate) async fn unpack(
    packing: Packing,
    body: Bytes,
    limit: usize,
    share: &mut BodyShare,
) -> Result<Bytes, ServeError> {
    let mut unpacked = BodyShare::new(share.free.clone(), share.all_bytes);
    let done = aside(body.len().saturating_mul(UNPACKED_TIMES), move || {
        let bytes = match packing {
            Packing::Gzip => read(MultiGzDecoder::new(&body[..]), limit, &mut unpacked),
            Packing::Zlib => read(ZlibDecoder::new(&body[..]), limit, &mut unpacked),
        }?;
        Ok((bytes, unpacked))
    });
    let (bytes, unpacked) = done.await?;
    *share = unpacked;
    Ok(bytes)
}

fn read(mut packed: impl Read, limit: usize, share: &mut BodyShare) -> Result<Bytes, ServeError> {
    let mut bytes = Vec::new();
    let mut part = vec![0; 32 << 10];
    loop {
        let count = packed.read(&mut part);
        let count = count
            .map_err(|error| ServeError::Malformed(format!("the body is not what Content-Encoding says: {error}")))?;
        if count == 0 {
            return Ok(bytes.into());
        }
        if count > limit - bytes.len() {
            return Err(ServeError::TooLarge(limit));
        }
        append(&mut bytes, &part[..count], limit, share)?;
    }
}

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

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn share(bytes: usize) -> BodyShare {
        BodyShare::new(Arc::new(Semaphore::new(bytes / 1024)), 1 << 30)
    }

    #[test]
    fn what_unpacks_to_no_end_is_unpacked_up_to_the_limit() {
        assert!(matches!(read(io::repeat(0), 1000, &mut share(1 << 20)), Err(ServeError::TooLarge(1000))));
        assert_eq!(read(io::repeat(0).take(1000), 1000, &mut share(1 << 20)).unwrap().len(), 1000);
    }

    #[test]
    fn what_unpacks_to_more_than_there_is_memory_for_is_not_unpacked() {
        let mut small = share(256 << 10);
        assert!(matches!(read(io::repeat(0), 1 << 30, &mut small), Err(ServeError::Busy)));
        let free = small.free.clone();
        drop(small);
        assert_eq!(free.available_permits(), 256);
    }

    #[test]
    fn a_body_that_never_fits_is_not_asked_for_again() {
        let mut share = share(1 << 20);
        assert!(matches!(share.grow(2 << 20), Err(ServeError::Busy)));
        assert!(matches!(share.grow((1 << 30) + 1), Err(ServeError::TooMuchMemory(_))));
        assert!(share.grow(1 << 20).is_ok());
    }

    #[test]
    fn a_body_takes_the_memory_of_what_has_arrived() {
        let mut share = share(1 << 20);
        let mut bytes = Vec::new();
        append(&mut bytes, &[0; 1000], 64 << 20, &mut share).unwrap();
        assert_eq!(share.free.available_permits(), 1023);
        append(&mut bytes, &[0; 1000], 1 << 20, &mut share).unwrap();
        assert_eq!((bytes.capacity(), share.free.available_permits()), (2000, 1022));
    }

    #[test]
    fn a_body_has_to_bring_a_share_of_what_it_holds() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut pace = Pace::new(Duration::ZERO);
        let part = 1 << 20;
        let due = [0, 1023, 1024, 2047, 2048, part, part + part / 32, part + part / 16].map(|bytes| {
            let ended = runtime.block_on(pace.wait(bytes, std::future::pending::<()>()));
            assert!(matches!(ended, Err(ServeError::Stalled(Duration::ZERO))));
            pace.due_bytes
        });
        let next = part + part / 16;
        assert_eq!(due, [1024, 1024, 2048, 2048, 3072, next, next, next + next / 16]);
    }
}
