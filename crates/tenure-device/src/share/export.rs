//! Blocks of this process that other processes may map: the CUDA tensors that `torch.multiprocessing` sends.
//!
//! A handle names a block by the chunks it lies in. A process that has the handle connects to a socket of this process
//! and gets file descriptors of the chunks. A chunk that was released is forgotten, and its number is never given to
//! another chunk, so an old handle finds the old bytes or nothing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SocketType;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use tenure_alloc::{ChunkId, MappedChunk};
use tenure_ipc::{Unforked, credentials, listen};

use super::ShareError;
use super::handle::{BlockHandle, Sender, SharedChunk};
use super::server_thread::ServerThread;
use super::socket::{Socket, SocketError};
use crate::{CallError, Driver};

/// The limit on connections at one time. A later receiver waits until one of them is done, which takes a few messages.
const CONNECTIONS: usize = 64;

/// A receiver's request for the descriptors of these chunks, at most [`DESCRIPTORS`](super::wire::DESCRIPTORS).
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ChunkRequest(pub(super) Vec<u64>);

/// A reply to a receiver: one of the first two when it has connected, one of the others for each request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ChunkReply {
    /// The receiver may send requests.
    Welcome,
    /// The receiver belongs to another user.
    ForeignUser,
    /// The descriptors come with this, in order.
    Chunks,
    /// One of the chunks was released.
    Released,
    /// The driver failed; this is its error message.
    Failed(String),
}

/// The chunks of one device that this process shares.
pub(crate) struct Exports {
    shared: Arc<ExportsShared>,
    /// The thread that serves receivers; started when the first block is shared.
    server: Mutex<Option<ExportServer>>,
}

struct ExportsShared {
    driver: Arc<dyn Driver>,
    chunks: Mutex<ExportedChunks>,
}

/// The chunks that receivers may ask for, and their numbers in handles.
#[derive(Default)]
struct ExportedChunks {
    numbers: FxHashMap<ChunkId, u64>,
    chunks: FxHashMap<u64, ChunkId>,
    /// The last number given.
    next: u64,
}

impl Exports {
    /// Creates an empty set of shared chunks.
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Self {
        Self { shared: Arc::new(ExportsShared { driver, chunks: Mutex::default() }), server: Mutex::default() }
    }

    /// Makes the handle of a block in `chunks`, which lie side by side. The caller does not release them during the
    /// call.
    pub(crate) fn share(&self, chunks: &[MappedChunk]) -> Result<BlockHandle, ShareError> {
        let sender = self.sender()?;
        let mut exported = self.shared.chunks.lock();
        let chunks = chunks
            .iter()
            .map(|mapped| SharedChunk { number: exported.number(mapped.chunk), bytes: mapped.bytes })
            .collect();
        Ok(BlockHandle { sender, device: self.shared.driver.uuid(), chunks })
    }

    /// Stops handing out `chunk`, which is about to be released. Processes that have mapped it keep its memory.
    pub(crate) fn forget(&self, chunk: ChunkId) {
        self.shared.chunks.lock().forget(chunk);
    }

    /// Returns this process's name for receivers. Starts the server thread if it does not run yet.
    fn sender(&self) -> Result<Sender, ShareError> {
        let mut server = self.server.lock();
        let running = match &mut *server {
            Some(running) => running,
            none => none.insert(ExportServer::start(Arc::clone(&self.shared)).map_err(ShareError::NotServed)?),
        };
        if running.thread.pid != std::process::id() {
            return Err(ShareError::Forked { parent: running.thread.pid });
        }
        Ok(running.sender)
    }
}

impl ExportedChunks {
    /// Returns the number of a chunk, a new one if it has none yet.
    fn number(&mut self, chunk: ChunkId) -> u64 {
        *self.numbers.entry(chunk).or_insert_with(|| {
            self.next += 1;
            self.chunks.insert(self.next, chunk);
            self.next
        })
    }

    fn forget(&mut self, chunk: ChunkId) {
        if let Some(number) = self.numbers.remove(&chunk) {
            self.chunks.remove(&number);
        }
    }
}

impl ExportsShared {
    /// Exports descriptors of these chunks; `None` if one of them was released.
    fn export(&self, numbers: &[u64]) -> Option<Result<Vec<OwnedFd>, CallError>> {
        // The lock is held during the driver calls, so that no chunk is released and the driver cannot reuse its name.
        let exported = self.chunks.lock();
        let chunks: Option<Vec<ChunkId>> = numbers.iter().map(|number| exported.chunks.get(number).copied()).collect();
        Some(chunks?.into_iter().map(|chunk| self.driver.export(chunk)).collect())
    }
}

/// The thread that answers receivers. It stops when dropped.
struct ExportServer {
    sender: Sender,
    thread: ServerThread,
}

impl ExportServer {
    fn start(shared: Arc<ExportsShared>) -> std::io::Result<Self> {
        let mut token = [0; 16];
        getrandom(&mut token, GetRandomFlags::empty())?;
        let sender = Sender { token, pid: std::process::id() };
        let listener = listen(&sender.address()?, SocketType::SEQPACKET)?;
        let thread = ServerThread::start("tenure-blocks", move |stop| {
            ExportService { shared, listener, connections: Vec::new() }.run(stop);
        })?;
        Ok(Self { sender, thread })
    }
}

/// The loop that the server thread runs. It waits for no receiver: one that does not take its answer is disconnected.
struct ExportService {
    shared: Arc<ExportsShared>,
    listener: Unforked,
    connections: Vec<Socket<Unforked>>,
}

impl ExportService {
    fn run(mut self, stop: &OwnedFd) {
        loop {
            let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
            polled.extend(self.connections.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
            if self.connections.len() < CONNECTIONS {
                polled.push(PollFd::new(&self.listener, PollFlags::IN));
            }
            let waited = poll(&mut polled, None);
            let ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
            match waited {
                Ok(_) if ready[0] => return,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                // The system is short of memory. Trying again loses nothing.
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
            let connected = self.connections.len();
            let mut index = 0;
            self.connections.retain(|socket| {
                index += 1;
                !ready[index] || serve(&self.shared, socket)
            });
            if ready.get(connected + 1) == Some(&true) {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        match Socket::accept(&self.listener) {
            // A receiver that does not take its answer is gone; no error needs handling.
            Ok(socket) if is_trusted(socket.as_fd()) => {
                if socket.send(&ChunkReply::Welcome, &[]).is_ok() {
                    self.connections.push(socket);
                }
            }
            Ok(socket) => {
                let _ = socket.send(&ChunkReply::ForeignUser, &[]);
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            // The process is short of descriptors or memory, which may become available again.
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Returns whether the process at the other end belongs to this user or to root.
pub(super) fn is_trusted(connection: BorrowedFd<'_>) -> bool {
    let user = rustix::process::geteuid().as_raw();
    credentials(connection).is_ok_and(|peer| peer.uid == user || peer.uid == 0)
}

/// Answers one message. Returns whether the connection stays open.
fn serve(shared: &ExportsShared, socket: &Socket<Unforked>) -> bool {
    let numbers = match socket.receive(0) {
        Ok((ChunkRequest(numbers), _)) => numbers,
        Err(SocketError::Waiting) => return true,
        Err(SocketError::Closed | SocketError::Wire(_)) => return false,
    };
    let answered = match shared.export(&numbers) {
        Some(Ok(descriptors)) => {
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            socket.send(&ChunkReply::Chunks, &descriptors)
        }
        Some(Err(error)) => socket.send(&ChunkReply::Failed(error.to_string()), &[]),
        None => socket.send(&ChunkReply::Released, &[]),
    };
    answered.is_ok()
}
