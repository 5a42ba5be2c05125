//! Blocks of other processes, mapped in this one.
//!
//! Chunks with the same handle are mapped once, however many of their blocks are used. After the last use they stay
//! mapped until the device has completed all work that was submitted by then, because no caller says which streams used
//! them. While a stream may be captured, they stay mapped too: waiting for the device would break the capture.

use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tenure_alloc::{Address, ChunkId};

use super::ShareError;
use super::export::{ChunkReply, ChunkRequest, is_trusted};
use super::handle::{BlockHandle, Sender, SharedChunk};
use super::socket::{Socket, SocketError};
use super::wire::DESCRIPTORS;
use crate::check_warn;
use crate::{AccessMode, Driver};

/// The longest time that a sender may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The chunks of other processes that this process has mapped, on one device.
pub(crate) struct Imports {
    driver: Arc<dyn Driver>,
    state: Mutex<ImportsState>,
    /// Held while [`close_unused`](Self::close_unused) waits for the device: a second thread finds the chunks unmapped
    /// already.
    closing: Mutex<()>,
}

#[derive(Default)]
struct ImportsState {
    mapped: FxHashMap<BlockHandle, Mapped>,
    /// A logical clock: it advances each time chunks become unused.
    time: u64,
}

/// The mapped chunks of a handle, and the number of their uses.
struct Mapped {
    mapping: ImportMapping,
    uses: usize,
    /// The time of the last use, if it is not in use now.
    unused_since: u64,
}

impl Imports {
    /// Creates an empty set of imports.
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, state: Mutex::default(), closing: Mutex::default() }
    }

    /// Maps the chunks of `handle`, or finds them mapped, and counts one more use. Returns the address of the first
    /// chunk.
    pub(crate) fn open(&self, handle: &BlockHandle) -> Result<Address, ShareError> {
        if handle.device != self.driver.uuid() {
            let device = self.driver.device();
            return Err(ShareError::OtherDevice { device, uuid: self.driver.uuid(), lies_on: handle.device });
        }
        if let Some(mapped) = self.state.lock().mapped.get_mut(handle) {
            return Ok(mapped.add_use());
        }
        // Not under the lock: a silent sender then delays only its own receivers, not threads that open or close other
        // blocks.
        let mapping = ImportMapping::new(handle, Arc::clone(&self.driver))?;
        match self.state.lock().mapped.entry(handle.clone()) {
            Entry::Occupied(mut meanwhile) => {
                mapping.unmap();
                Ok(meanwhile.get_mut().add_use())
            }
            Entry::Vacant(new) => Ok(new.insert(Mapped { mapping, uses: 0, unused_since: 0 }).add_use()),
        }
    }

    /// Ends one use of the chunks of `handle`.
    pub(crate) fn end_use(&self, handle: &BlockHandle) {
        let state = &mut *self.state.lock();
        if let Some(mapped) = state.mapped.get_mut(handle) {
            mapped.uses -= 1;
            if mapped.uses == 0 {
                state.time += 1;
                mapped.unused_since = state.time;
            }
        }
    }

    /// Waits for the device, and unmaps the chunks that were already unused when this call began. If the context is
    /// lost, the chunks cannot be unmapped and stay.
    pub(crate) fn close_unused(&self) {
        let _closing = self.closing.lock();
        let now = {
            let state = self.state.lock();
            if state.mapped.values().all(|mapped| mapped.uses > 0) {
                return;
            }
            state.time
        };
        if self.driver.synchronize().is_err() {
            return;
        }
        let closed: Vec<_> =
            self.state.lock().mapped.extract_if(|_, mapped| mapped.uses == 0 && mapped.unused_since <= now).collect();
        closed.into_iter().for_each(|(_, mapped)| mapped.mapping.unmap());
    }
}

impl Mapped {
    /// Counts one more use. Returns the address.
    fn add_use(&mut self) -> Address {
        self.uses += 1;
        self.mapping.address
    }
}

impl Drop for Imports {
    fn drop(&mut self) {
        self.close_unused();
    }
}

/// Imported chunks, mapped side by side.
struct ImportMapping {
    driver: Arc<dyn Driver>,
    address: Address,
    /// The size of the reserved address space, in bytes.
    bytes: u64,
    chunks: Vec<ChunkId>,
    /// The bytes that are mapped, from the start: all of them, once the mapping is complete.
    mapped_bytes: u64,
}

impl ImportMapping {
    /// Asks the sender for the chunks of `handle` and maps them.
    fn new(handle: &BlockHandle, driver: Arc<dyn Driver>) -> Result<Self, ShareError> {
        let sender = Connection::open(handle.sender)?;
        let bytes = handle.chunks.iter().map(|chunk| chunk.bytes).sum();
        let address = driver.reserve(bytes)?;
        let mut mapping = Self { driver, address, bytes, chunks: Vec::new(), mapped_bytes: 0 };
        match mapping.fill(&sender, handle) {
            Ok(()) => Ok(mapping),
            Err(error) => {
                mapping.unmap();
                Err(error)
            }
        }
    }

    /// Imports and maps the chunks, one after the other.
    fn fill(&mut self, sender: &Connection, handle: &BlockHandle) -> Result<(), ShareError> {
        for wanted in handle.chunks.chunks(DESCRIPTORS) {
            let descriptors = sender.request(wanted)?;
            for (chunk, descriptor) in wanted.iter().zip(descriptors) {
                let imported = self.driver.import(descriptor.as_fd(), chunk.bytes)?;
                self.chunks.push(imported);
                self.driver.map(self.address + self.mapped_bytes, imported)?;
                self.mapped_bytes += chunk.bytes;
            }
        }
        Ok(self.driver.set_access(self.address, self.bytes, AccessMode::ReadWrite)?)
    }

    /// Unmaps and releases everything. No work may use the memory any more.
    fn unmap(self) {
        // Memory that the driver refuses to take back is freed when the process ends.
        if self.mapped_bytes == 0 || self.driver.unmap(self.address, self.mapped_bytes).is_ok() {
            for &chunk in &self.chunks {
                check_warn(self.driver.release(chunk));
            }
            check_warn(self.driver.unreserve(self.address, self.bytes));
        }
    }
}

/// A connection to a process that shares its chunks.
struct Connection {
    socket: Socket,
    sender: Sender,
}

impl Connection {
    /// Connects to `sender`, and waits until it accepts.
    fn open(sender: Sender) -> Result<Self, ShareError> {
        let socket = sender
            .address()
            .and_then(|address| Socket::connect(&address, ANSWER_TIMEOUT))
            .map_err(|_| ShareError::SenderGone { pid: sender.pid })?;
        if !is_trusted(socket.as_fd()) {
            return Err(ShareError::ForeignSender);
        }
        let connection = Self { socket, sender };
        match connection.receive(0)? {
            (ChunkReply::Welcome, _) => Ok(connection),
            (ChunkReply::ForeignUser, _) => Err(ShareError::ForeignSender),
            _ => Err(ShareError::Unexpected),
        }
    }

    /// Asks for the descriptors of these chunks, at most as many as a frame carries.
    fn request(&self, chunks: &[SharedChunk]) -> Result<Vec<OwnedFd>, ShareError> {
        let Sender { pid, .. } = self.sender;
        let request = ChunkRequest(chunks.iter().map(|chunk| chunk.number).collect());
        self.socket.send(&request, &[]).map_err(|error| self.connection_error(error))?;
        match self.receive(chunks.len())? {
            (ChunkReply::Chunks, descriptors) if descriptors.len() == chunks.len() => Ok(descriptors),
            (ChunkReply::Released, _) => Err(ShareError::BlockReleased { pid }),
            (ChunkReply::Failed(reason), _) => Err(ShareError::SenderFailed { pid, reason }),
            _ => Err(ShareError::Unexpected),
        }
    }

    fn receive(&self, descriptors: usize) -> Result<(ChunkReply, Vec<OwnedFd>), ShareError> {
        self.socket.receive(descriptors).map_err(|error| self.connection_error(error))
    }

    fn connection_error(&self, error: SocketError) -> ShareError {
        let Sender { pid, .. } = self.sender;
        match error {
            SocketError::Closed => ShareError::SenderGone { pid },
            SocketError::Waiting => ShareError::SenderSilent { pid, waited: ANSWER_TIMEOUT },
            SocketError::Wire(error) => error.into(),
        }
    }
}
