//! The memory and pace of requests' bodies, and their decompression.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::ServeError;
use super::work::{TURN_BYTES, aside};

/// A compressed body is expected to become this many times as long.
const UNPACKED_TIMES: usize = 8;

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

/// Appends data to bytes, whose memory doubles up to `most` bytes, and counts that memory against `share` before it is
/// taken. Bytes that were only announced take none.
pub(crate) fn append(bytes: &mut Vec<u8>, data: &[u8], most: usize, share: &mut BodyShare) -> Result<(), ServeError> {
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

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn share(bytes: usize) -> BodyShare {
        BodyShare::new(Arc::new(Semaphore::new(bytes / 1024)), 1 << 30)
    }

    #[test]
    fn decompression_stops_at_the_limit() {
        assert!(matches!(read(io::repeat(0), 1000, &mut share(1 << 20)), Err(ServeError::TooLarge(1000))));
        assert_eq!(read(io::repeat(0).take(1000), 1000, &mut share(1 << 20)).unwrap().len(), 1000);
    }

    #[test]
    fn decompression_stops_where_memory_ends() {
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
