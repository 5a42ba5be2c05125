//! A process's connection to a memory daemon.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::SocketAddrUnix;
use tenure_ipc::credentials;

use super::socket::{Socket, SocketError};
use super::wire::{DESCRIPTORS, DaemonReply, DaemonRequest, DaemonStatus, DaemonTerms};
use super::{LeaseId, ShareError};
use crate::AccessMode;

/// The longest time that a daemon may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time that a request may wait for memory, whatever it asks for.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A connection to a memory daemon.
///
/// Leases belong to the connection. Leases that were not given back when the client is dropped stay with the process
/// until it exits.
pub struct DaemonClient {
    path: PathBuf,
    terms: DaemonTerms,
    /// `None` once an exchange has failed: the next message could be the late answer to an earlier request.
    socket: Mutex<Option<Socket>>,
}

impl DaemonClient {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// No daemon listens there, or one that runs neither as this user nor as root; the daemon refuses this process, or
    /// is of another release.
    pub fn connect(path: &Path) -> Result<Self, ShareError> {
        let (socket, terms) = open(path)?;
        Ok(Self { path: path.into(), terms, socket: Mutex::new(Some(socket)) })
    }

    /// Returns the daemon's device and pool.
    pub fn terms(&self) -> &DaemonTerms {
        &self.terms
    }

    /// Returns the path of the socket that the client is connected to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a report of all leases and their holders.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn status(&self) -> Result<DaemonStatus, ShareError> {
        match self.request(&DaemonRequest::Status, 0)? {
            (DaemonReply::Status(status), _) => Ok(status),
            _ => Err(ShareError::Unexpected),
        }
    }

    /// Calls `give_back` with a number of bytes whenever another process is short of that many, until the returned
    /// value is dropped. The callback should give back memory that it can spare, such as an allocator's cached memory;
    /// it is not forced to.
    ///
    /// The callback runs on a thread of its own, which holds no lock.
    ///
    /// # Errors
    /// The daemon is gone, or takes no more connections (this call opens one of its own).
    pub fn on_recall(&self, give_back: impl Fn(u64) + Send + 'static) -> Result<Recalls, ShareError> {
        let (socket, _) = open(&self.path)?;
        match exchange(&self.path, &socket, &DaemonRequest::Recalls, 0, ANSWER_TIMEOUT)? {
            (DaemonReply::Done, _) => {}
            _ => return Err(ShareError::Unexpected),
        }
        let failed = |doing| move |reason| ShareError::Socket { path: self.path.clone(), doing, reason };
        socket.set_timeout(None).map_err(|error| failed("its time limit cannot be lifted")(error.into()))?;
        let socket = Arc::new(socket);
        let receiving = Arc::clone(&socket);
        let thread = thread::Builder::new().name("tenure-recalls".into()).spawn(move || {
            while let Ok((DaemonReply::Recall(bytes), _)) = receiving.receive(0) {
                give_back(bytes);
            }
        });
        Ok(Recalls { socket, thread: Some(thread.map_err(failed("no thread can be started"))?) })
    }

    /// Returns a descriptor for each chunk of the pool.
    pub(super) fn attach(&self) -> Result<Vec<OwnedFd>, ShareError> {
        match self.request(&DaemonRequest::Attach, DESCRIPTORS)? {
            (DaemonReply::Attached, descriptors) if descriptors.len() == self.terms.pool.len() => Ok(descriptors),
            _ => Err(ShareError::Unexpected),
        }
    }

    /// Leases a range of the pool; see [`DaemonRequest::LeasePool`].
    pub(super) fn lease_pool(
        &self,
        offset: u64,
        bytes: u64,
        access: AccessMode,
        waits: bool,
    ) -> Result<LeaseId, ShareError> {
        match self.request(&DaemonRequest::LeasePool { offset, bytes, access, waits }, 0)? {
            (DaemonReply::Leased(lease), _) => Ok(lease),
            _ => Err(ShareError::Unexpected),
        }
    }

    /// Returns whether a process that is still connected may write a part of a range of the pool.
    pub(super) fn is_written(&self, offset: u64, bytes: u64) -> Result<bool, ShareError> {
        match self.request(&DaemonRequest::IsWritten { offset, bytes }, 0)? {
            (DaemonReply::Written(is_written), _) => Ok(is_written),
            _ => Err(ShareError::Unexpected),
        }
    }

    /// Leases a chunk of `bytes` bytes. If there is not enough memory, the daemon asks other processes to return some.
    pub(super) fn lease_chunk(&self, bytes: u64) -> Result<(LeaseId, OwnedFd), ShareError> {
        let (reply, mut descriptors) = self.request(&DaemonRequest::LeaseChunk { bytes }, 1)?;
        match (reply, descriptors.pop()) {
            (DaemonReply::Leased(lease), Some(descriptor)) => Ok((lease, descriptor)),
            _ => Err(ShareError::Unexpected),
        }
    }

    /// Waits up to `wait` until there is memory for chunks of `bytes` bytes. Uses a connection of its own, so that
    /// other threads of this process can give memory back meanwhile.
    pub(super) fn wait_for_room(&self, bytes: u64, wait: Duration) -> Result<(), ShareError> {
        let (socket, _) = open(&self.path)?;
        let wait = wait.min(LONGEST_WAIT);
        let request = DaemonRequest::Room { bytes, wait_ms: wait.as_millis() as u32 };
        match exchange(&self.path, &socket, &request, 0, ANSWER_TIMEOUT + wait)? {
            (DaemonReply::Done, _) => Ok(()),
            _ => Err(ShareError::Unexpected),
        }
    }

    /// Gives a lease back. All work with its memory must have completed.
    pub(super) fn release(&self, lease: LeaseId) -> Result<(), ShareError> {
        match self.request(&DaemonRequest::Release(lease), 0)? {
            (DaemonReply::Done, _) => Ok(()),
            _ => Err(ShareError::Unexpected),
        }
    }

    /// Turns a lease for writing into one for reading.
    pub(super) fn lower(&self, lease: LeaseId) -> Result<(), ShareError> {
        match self.request(&DaemonRequest::Lower(lease), 0)? {
            (DaemonReply::Done, _) => Ok(()),
            _ => Err(ShareError::Unexpected),
        }
    }

    /// Sends a request and waits for the answer, with at most `descriptors` descriptors. After any failure but a
    /// refusal, the connection is closed.
    fn request(&self, request: &DaemonRequest, descriptors: usize) -> Result<(DaemonReply, Vec<OwnedFd>), ShareError> {
        let mut connected = self.socket.lock();
        let Some(socket) = &*connected else { return Err(ShareError::DaemonGone { socket: self.path.clone() }) };
        let answer = exchange(&self.path, socket, request, descriptors, ANSWER_TIMEOUT);
        if !matches!(answer, Ok(_) | Err(ShareError::Refused(_))) {
            *connected = None;
        }
        answer
    }
}

/// A registration for recalls: while it lives, the process is told when others are short of memory.
pub struct Recalls {
    socket: Arc<Socket>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Recalls {
    fn drop(&mut self) {
        self.socket.shut_down();
        if let Some(thread) = self.thread.take()
            // If the callback itself drops this value, the thread ends after the callback returns.
            && thread.thread().id() != thread::current().id()
        {
            // A thread that panicked has printed its reason already.
            let _ = thread.join();
        }
    }
}

/// Opens a connection to the daemon at `path` and waits until it is accepted.
fn open(path: &Path) -> Result<(Socket, DaemonTerms), ShareError> {
    let no_daemon = |error: rustix::io::Errno| ShareError::NoDaemon { socket: path.into(), reason: error.into() };
    let socket = SocketAddrUnix::new(path).and_then(|address| Socket::connect(&address, ANSWER_TIMEOUT));
    let socket = socket.map_err(no_daemon)?;
    // Any user can write to a folder for temporary files, so another user's socket may be at this path.
    let daemon = credentials(socket.as_fd()).map_err(no_daemon)?.uid;
    let user = rustix::process::geteuid().as_raw();
    if daemon != user && daemon != 0 {
        return Err(ShareError::ForeignDaemon { socket: path.into(), uid: daemon, user });
    }
    match socket.receive(0).map_err(|error| connection_error(path, error, ANSWER_TIMEOUT))? {
        (DaemonReply::Welcome(terms), _) => Ok((socket, terms)),
        (DaemonReply::Refused(refusal), _) => Err(refusal.into()),
        _ => Err(ShareError::Unexpected),
    }
}

/// Sends a request, and waits up to `longest` for the answer.
fn exchange(
    path: &Path,
    socket: &Socket,
    request: &DaemonRequest,
    descriptors: usize,
    longest: Duration,
) -> Result<(DaemonReply, Vec<OwnedFd>), ShareError> {
    // If the time limit cannot be set, the call may wait for ever; nothing else is lost.
    let _ = socket.set_timeout(Some(longest));
    let failed = |error| connection_error(path, error, longest);
    socket.send(request, &[]).map_err(failed)?;
    match socket.receive(descriptors).map_err(failed)? {
        (DaemonReply::Refused(refusal), _) => Err(refusal.into()),
        answer => Ok(answer),
    }
}

/// Converts the error of a connection to the daemon at `path`.
fn connection_error(path: &Path, error: SocketError, waited: Duration) -> ShareError {
    let socket = path.into();
    match error {
        SocketError::Closed => ShareError::DaemonGone { socket },
        SocketError::Waiting => ShareError::NoAnswer { socket, waited },
        SocketError::Wire(error) => error.into(),
    }
}
