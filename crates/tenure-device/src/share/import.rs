//! Blocks of other processes, mapped in this one.
//!
//! Chunks that are named alike are mapped once, however many blocks of them are used. After the last use they stay
//! mapped until the device has passed all work that was put on it by then: who used them, on which streams, nobody
//! says. While a stream may be captured, which a wait for the device would break, they stay mapped for that long too.

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
use crate::{Access, Driver};

/// How long a sender may take for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// What this process has mapped of others, on one device.
pub(crate) struct Imports {
    driver: Arc<dyn Driver>,
    state: Mutex<State>,
    /// Held while the device is waited for, so that one wait serves all.
    closing: Mutex<()>,
}

#[derive(Default)]
struct State {
    mapped: FxHashMap<BlockHandle, Mapped>,
    /// Grows with every last use.
    time: u64,
}

/// Chunks side by side, and their use.
struct Mapped {
    mapping: Mapping,
    uses: usize,
    /// When it was used last, if it is not used now.
    unused_since: u64,
}

impl Imports {
    /// None yet.
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, state: Mutex::default(), closing: Mutex::default() }
    }

    /// Maps the chunks of `handle`, or finds them mapped; one use more. Returns the address of the first.
    pub(crate) fn open(&self, handle: &BlockHandle) -> Result<Address, ShareError> {
        if handle.device != self.driver.uuid() {
            let device = self.driver.device();
            return Err(ShareError::OtherDevice { device, uuid: self.driver.uuid(), lies_on: handle.device });
        }
        if let Some(mapped) = self.state.lock().mapped.get_mut(handle) {
            return Ok(mapped.used());
        }
        // Without the lock: a silent sender holds up whoever asks it, and nobody who opens or closes another's blocks.
        let mapping = Mapping::of(handle, Arc::clone(&self.driver))?;
        match self.state.lock().mapped.entry(handle.clone()) {
            Entry::Occupied(mut meanwhile) => {
                mapping.unmap();
                Ok(meanwhile.get_mut().used())
            }
            Entry::Vacant(new) => Ok(new.insert(Mapped { mapping, uses: 0, unused_since: 0 }).used()),
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

    /// Waits for the device, and unmaps what was not used when this began. What can not be unmapped, because the
    /// context is lost, stays.
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
        let unused = |_: &BlockHandle, mapped: &mut Mapped| mapped.uses == 0 && mapped.unused_since <= now;
        let closed: Vec<_> = self.state.lock().mapped.extract_if(unused).collect();
        closed.into_iter().for_each(|(_, mapped)| mapped.mapping.unmap());
    }
}

impl Mapped {
    /// Notes one use more. Returns the address.
    fn used(&mut self) -> Address {
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
struct Mapping {
    driver: Arc<dyn Driver>,
    address: Address,
    /// Of address space.
    bytes: u64,
    chunks: Vec<ChunkId>,
    /// From the start. All of them, once it is made.
    mapped_bytes: u64,
}

impl Mapping {
    fn of(handle: &BlockHandle, driver: Arc<dyn Driver>) -> Result<Self, ShareError> {
        let sender = Connection::to(handle.sender)?;
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
        Ok(self.driver.set_access(self.address, self.bytes, Access::ReadWrite)?)
    }

    /// Gives everything back. No work may use it any more.
    fn unmap(self) {
        // What the driver refuses to take back ends with the process.
        if self.mapped_bytes == 0 || self.driver.unmap(self.address, self.mapped_bytes).is_ok() {
            self.chunks.iter().for_each(|&chunk| drop(self.driver.release(chunk)));
            let _ = self.driver.unreserve(self.address, self.bytes);
        }
    }
}

/// A connection to a process that shares its chunks.
struct Connection {
    socket: Socket,
    sender: Sender,
}

impl Connection {
    fn to(sender: Sender) -> Result<Self, ShareError> {
        let gone = |_| ShareError::SenderGone { pid: sender.pid };
        let socket = sender.address().and_then(|address| Socket::connect_to(&address, ANSWER)).map_err(gone)?;
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

    /// Descriptors of so many chunks as a frame carries.
    fn request(&self, chunks: &[SharedChunk]) -> Result<Vec<OwnedFd>, ShareError> {
        let Sender { pid, .. } = self.sender;
        let request = ChunkRequest(chunks.iter().map(|chunk| chunk.number).collect());
        self.socket.send(&request, &[]).map_err(|error| self.lost(error))?;
        match self.receive(chunks.len())? {
            (ChunkReply::Chunks, descriptors) if descriptors.len() == chunks.len() => Ok(descriptors),
            (ChunkReply::Released, _) => Err(ShareError::BlockReleased { pid }),
            (ChunkReply::Failed(reason), _) => Err(ShareError::SenderFailed { pid, reason }),
            _ => Err(ShareError::Unexpected),
        }
    }

    fn receive(&self, descriptors: usize) -> Result<(ChunkReply, Vec<OwnedFd>), ShareError> {
        self.socket.receive(descriptors).map_err(|error| self.lost(error))
    }

    fn lost(&self, error: SocketError) -> ShareError {
        let Sender { pid, .. } = self.sender;
        match error {
            SocketError::Closed => ShareError::SenderGone { pid },
            SocketError::Waiting => ShareError::SenderSilent { pid, waited: ANSWER },
            SocketError::Wire(error) => error.into(),
        }
    }
}
