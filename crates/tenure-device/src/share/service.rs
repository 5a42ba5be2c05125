//! The loop that a daemon's thread runs: it accepts clients, answers their requests and ends the leases of dead
//! processes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tenure_ipc::{Listener, Peer, Unforked};

use super::client::LONGEST_WAIT;
use super::config::DaemonConfig;
use super::lease::{Extent, HolderId, Leases};
use super::socket::{Socket, SocketError};
use super::store::{Store, is_listed};
use super::wire::{DaemonReply, DaemonRequest, DaemonStatus, DaemonTerms};
use super::{DaemonRefusal, LeaseId};
use crate::AccessMode;

/// The interval at which to check conditions that no descriptor signals.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// How long the free memory must stay unchanged before a waiting client is answered, in ms: memory comes back chunk by
/// chunk, and the client may need more than it asked for.
const QUIET_MS: u64 = 20;

/// The limit on holdings, and on attached processes, in a status, so that it fits into a frame.
const MAX_HOLDINGS: usize = 1000;

/// The state of a daemon's thread. The thread answers one message at a time and alone has the leases, so there is no
/// lock. No client can make it wait.
pub(super) struct Service {
    config: DaemonConfig,
    /// Dropped before the listener, so that the next daemon finds the memory free.
    store: Store,
    listener: Listener,
    leases: Leases,
    clients: BTreeMap<HolderId, Connected>,
    /// The clients that wait for memory.
    waiting: Vec<WaitingClient>,
    /// The time when the daemon started, by the configured clock.
    started: Duration,
    /// Set if a connection could not be accepted for want of descriptors or memory: the next tick tries again.
    out_of_descriptors: bool,
}

/// A connection, or what is left of one while its leases are orphaned.
struct Connected {
    socket: Option<Socket<Unforked>>,
    peer: Peer,
    /// Whether it has registered for recalls: the daemon then asks it to give memory back when another client is short.
    recalls: bool,
    /// Whether it has the pool's descriptors.
    attached: bool,
    /// The time of its last message, in ms.
    last_message_ms: u64,
}

/// A client that waits for an answer until there is memory for its chunks.
struct WaitingClient {
    holder: HolderId,
    /// The bytes of chunks that it needs.
    bytes: u64,
    /// The time at which it is answered in any case.
    until_ms: u64,
    /// The bytes that were available at the last check.
    available: u64,
    /// The time since which `available` has not changed.
    since_ms: u64,
}

/// The reason for which the thread woke up.
#[derive(Clone, Copy)]
enum Wakeup {
    Stop,
    Connection,
    Message(HolderId),
    Exit(HolderId),
}

impl Service {
    pub(super) fn new(listener: Listener, store: Store, config: DaemonConfig) -> Self {
        let started = config.clock.now();
        let leases = Leases::new(config.grace.as_millis().try_into().unwrap_or(u64::MAX));
        Self {
            config,
            store,
            listener,
            leases,
            clients: BTreeMap::new(),
            waiting: Vec::new(),
            started,
            out_of_descriptors: false,
        }
    }

    /// Serves until the daemon is stopped.
    pub(super) fn run(mut self, stop: &OwnedFd) {
        loop {
            for event in self.wait(stop) {
                match event {
                    Wakeup::Stop => return,
                    Wakeup::Connection => self.accept(),
                    Wakeup::Message(holder) => self.serve(holder),
                    Wakeup::Exit(holder) => self.on_exit(holder),
                }
            }
            self.reclaim();
            self.store.retry_releases();
            self.serve_waiting();
        }
    }

    /// Waits until there is something to do, and returns it.
    fn wait(&mut self, stop: &OwnedFd) -> Vec<Wakeup> {
        let mut events = vec![Wakeup::Stop];
        let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
        if !self.out_of_descriptors {
            events.push(Wakeup::Connection);
            polled.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        for (&holder, client) in &self.clients {
            if let Some(socket) = &client.socket {
                events.push(Wakeup::Message(holder));
                polled.push(PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
            }
            if let Some(exit) = &client.peer.exit {
                events.push(Wakeup::Exit(holder));
                polled.push(PollFd::new(exit, PollFlags::IN));
            }
        }
        let ticks = self.out_of_descriptors
            || !self.waiting.is_empty()
            || self.store.unreleased() > 0
            || self.leases.needs_reclaim();
        self.out_of_descriptors = false;
        match poll(&mut polled, ticks.then_some(&TICK)) {
            Ok(_) | Err(Errno::INTR) => {}
            // The system is short of memory. Trying again loses nothing.
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
        let ready = events.into_iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        ready.map(|(event, _)| event).collect()
    }

    /// Accepts a connection and welcomes or refuses the client.
    fn accept(&mut self) {
        let socket = match Socket::accept(&self.listener) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(_) => {
                self.out_of_descriptors = true;
                return;
            }
        };
        match self.admit(&socket) {
            Err(refusal) => {
                // A client that does not take the refusal is gone; no error needs handling.
                let _ = socket.send(&DaemonReply::Refused(refusal), &[]);
            }
            Ok(peer) => {
                if socket.send(&DaemonReply::Welcome(self.terms()), &[]).is_ok() {
                    let holder = self.leases.connect(peer.pid);
                    let last_message_ms = self.now_ms();
                    let client =
                        Connected { socket: Some(socket), peer, recalls: false, attached: false, last_message_ms };
                    self.clients.insert(holder, client);
                }
            }
        }
    }

    /// Returns the process that opened a connection, or the reason to refuse it.
    fn admit(&mut self, socket: &Socket<Unforked>) -> Result<Peer, DaemonRefusal> {
        let peer = Peer::of(socket.as_fd());
        let peer = peer.map_err(|error| DaemonRefusal::Unwatched { reason: error.to_string() })?;
        let allowed = self.config.uid;
        let limit = self.config.clients;
        if peer.uid != allowed {
            return Err(DaemonRefusal::ForeignUser { uid: peer.uid, allowed });
        }
        // A client that has disconnected but has orphaned leases counts too.
        if self.clients.len() >= limit as usize && !self.disconnect_idle() {
            return Err(DaemonRefusal::TooManyClients { limit });
        }
        Ok(peer)
    }

    /// Closes the connection that has been idle for longest, if one has been idle long enough. Returns whether it
    /// closed one.
    fn disconnect_idle(&mut self) -> bool {
        let until_ms = u128::from(self.now_ms()).checked_sub(self.config.idle.as_millis());
        let Some(until_ms) = until_ms else { return false };
        let idle = self
            .clients
            .iter()
            .filter(|&(&holder, client)| {
                u128::from(client.last_message_ms) <= until_ms && self.may_disconnect(holder, client)
            })
            .min_by_key(|(_, client)| client.last_message_ms);
        let Some((&holder, _)) = idle else { return false };
        self.disconnect(holder);
        true
    }

    /// Returns whether a client loses nothing if its connection is closed: it has no leases, no pool, no registration
    /// for recalls, and waits for no answer.
    fn may_disconnect(&self, holder: HolderId, client: &Connected) -> bool {
        !client.recalls
            && !client.attached
            && !self.leases.holds_any(holder)
            && self.waiting.iter().all(|waiting| waiting.holder != holder)
    }

    /// Answers one message of a client.
    fn serve(&mut self, holder: HolderId) {
        let Some(socket) = self.clients.get(&holder).and_then(|client| client.socket.as_ref()) else { return };
        let request = match socket.receive::<DaemonRequest>(0) {
            Ok((request, _)) => request,
            Err(SocketError::Waiting) => return,
            Err(SocketError::Closed) => return self.disconnect(holder),
            Err(SocketError::Wire(error)) => {
                let refusal = DaemonReply::Refused(DaemonRefusal::Unreadable { reason: error.to_string() });
                // A client with another protocol gets one answer, if it takes it.
                let _ = socket.send(&refusal, &[]);
                return self.disconnect(holder);
            }
        };
        if self.waiting.iter().any(|waiting| waiting.holder == holder) {
            // Tenure's own clients send one request at a time only.
            return self.disconnect(holder);
        }
        let now_ms = self.now_ms();
        if let Some(client) = self.clients.get_mut(&holder) {
            client.last_message_ms = now_ms;
        }
        match request {
            DaemonRequest::Attach => self.answer_with_pool(holder),
            DaemonRequest::LeasePool { offset, bytes, access, waits } => {
                let reply = self.lease_pool(holder, offset, bytes, access, waits).map(DaemonReply::Leased);
                self.answer(holder, reply, None);
            }
            DaemonRequest::IsWritten { offset, bytes } => {
                let reply = DaemonReply::Written(self.leases.is_written(offset, bytes));
                self.answer(holder, Ok(reply), None);
            }
            DaemonRequest::LeaseChunk { bytes } => self.lease_chunk_or_recall(holder, bytes),
            DaemonRequest::Room { bytes, wait_ms } => self.wait_for_room(holder, bytes, wait_ms.into()),
            DaemonRequest::Release(lease) => {
                let reply = self.leases.release(holder, lease).map(|_| DaemonReply::Done);
                if reply.is_ok() {
                    self.store.end_lease(lease);
                }
                self.answer(holder, reply, None);
            }
            DaemonRequest::Lower(lease) => {
                let reply = self.leases.lower(holder, lease).map(|()| DaemonReply::Done);
                self.answer(holder, reply, None);
            }
            DaemonRequest::Recalls => {
                if let Some(client) = self.clients.get_mut(&holder) {
                    client.recalls = true;
                }
                self.answer(holder, Ok(DaemonReply::Done), None);
            }
            DaemonRequest::Status => {
                let reply = DaemonReply::Status(self.status());
                self.answer(holder, Ok(reply), None);
            }
        }
    }

    /// Sends the descriptors of the pool's chunks.
    fn answer_with_pool(&mut self, holder: HolderId) {
        let Some(socket) = self.clients.get(&holder).and_then(|client| client.socket.as_ref()) else { return };
        if socket.send(&DaemonReply::Attached, &self.store.pool_descriptors()).is_err() {
            self.disconnect(holder);
        } else if let Some(client) = self.clients.get_mut(&holder) {
            client.attached = true;
        }
    }

    /// Sends a reply, with the descriptor of a chunk if there is one. Disconnects a client that cannot take it.
    fn answer(&mut self, holder: HolderId, reply: Result<DaemonReply, DaemonRefusal>, descriptor: Option<OwnedFd>) {
        let Some(socket) = self.clients.get(&holder).and_then(|client| client.socket.as_ref()) else { return };
        let reply = reply.unwrap_or_else(DaemonReply::Refused);
        let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
        // A client that does not take its answers is disconnected, not waited for.
        if socket.send(&reply, &descriptors).is_err() {
            self.disconnect(holder);
        }
    }

    /// Leases a range of the pool. A client that is refused and `waits` keeps a place in the queue.
    fn lease_pool(
        &mut self,
        holder: HolderId,
        offset: u64,
        bytes: u64,
        access: AccessMode,
        waits: bool,
    ) -> Result<LeaseId, DaemonRefusal> {
        if !self.store.is_range(offset, bytes) {
            return Err(DaemonRefusal::OutsidePool { offset, bytes, pool_bytes: self.store.pool_bytes() });
        }
        let extent = Extent::Pool { offset, bytes };
        let now_ms = self.now_ms();
        let granted = self.leases.grant(holder, extent, access, now_ms);
        match granted {
            Err(DaemonRefusal::Leased { .. }) if waits => self.leases.queue(holder, extent, access, now_ms),
            _ => self.leases.leave_queue(holder, extent),
        }
        granted
    }

    /// Leases a chunk. If there is not enough memory, refuses, and asks other clients to give some back.
    fn lease_chunk_or_recall(&mut self, holder: HolderId, bytes: u64) {
        match self.lease_chunk(holder, bytes) {
            Ok((lease, descriptor)) => self.answer(holder, Ok(DaemonReply::Leased(lease)), Some(descriptor)),
            Err(refusal) => {
                if let DaemonRefusal::Full { available, .. } = refusal
                    && self.is_within_limit(bytes)
                {
                    self.recall(holder, bytes.saturating_sub(available));
                }
                self.answer(holder, Err(refusal), None);
            }
        }
    }

    /// Returns whether chunks of `bytes` bytes are within the limit, so that they can be leased once others are given
    /// back.
    fn is_within_limit(&self, bytes: u64) -> bool {
        self.config.chunk_limit_bytes.is_none_or(|limit| bytes <= limit)
    }

    /// Answers once there is memory for `bytes` bytes of chunks, or after `wait_ms`; see
    /// [`serve_waiting`](Self::serve_waiting).
    fn wait_for_room(&mut self, holder: HolderId, bytes: u64, wait_ms: u64) {
        let available = self.available();
        if !self.is_within_limit(bytes) {
            return self.answer(holder, Err(DaemonRefusal::Full { requested: bytes, available }), None);
        }
        let since_ms = self.now_ms();
        let until_ms = since_ms + wait_ms.min(LONGEST_WAIT.as_millis() as u64);
        self.waiting.push(WaitingClient { holder, bytes, until_ms, available, since_ms });
    }

    /// Returns how many bytes of chunks can be leased now.
    fn available(&self) -> u64 {
        let limit = self.config.chunk_limit_bytes.unwrap_or(u64::MAX);
        limit.saturating_sub(self.leases.chunk_bytes()).min(self.store.free())
    }

    /// Creates a chunk and leases it. Returns its descriptor too.
    fn lease_chunk(&mut self, holder: HolderId, bytes: u64) -> Result<(LeaseId, OwnedFd), DaemonRefusal> {
        if let Some(limit) = self.config.chunk_limit_bytes {
            let available = limit.saturating_sub(self.leases.chunk_bytes());
            if bytes > available {
                return Err(DaemonRefusal::Full { requested: bytes, available });
            }
        }
        let (chunk, descriptor) = self.store.create(bytes)?;
        match self.leases.grant(holder, Extent::Chunk { bytes }, AccessMode::ReadWrite, self.now_ms()) {
            Ok(lease) => {
                self.store.record_lease(lease, chunk);
                Ok((lease, descriptor))
            }
            Err(refusal) => {
                self.store.give_back(chunk);
                Err(refusal)
            }
        }
    }

    /// Asks the processes with a registration for recalls, except the one that is short of memory, to give back
    /// `bytes` bytes.
    fn recall(&self, holder: HolderId, bytes: u64) {
        let asking = self.clients.get(&holder).and_then(|client| client.peer.pid);
        for client in self.clients.values().filter(|client| client.recalls) {
            if let Some(socket) = &client.socket
                && (asking.is_none() || client.peer.pid != asking)
            {
                // A client that has not read the last recall yet needs no other.
                let _ = socket.send(&DaemonReply::Recall(bytes), &[]);
            }
        }
    }

    /// Answers the waiting clients for which there is memory now, or whose time is up.
    fn serve_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let now_ms = self.now_ms();
        let available = self.available();
        for mut waiting in std::mem::take(&mut self.waiting) {
            if waiting.available != available {
                (waiting.available, waiting.since_ms) = (available, now_ms);
            }
            let enough = available >= waiting.bytes;
            if now_ms >= waiting.until_ms || enough && now_ms - waiting.since_ms >= QUIET_MS {
                let refusal = DaemonRefusal::Full { requested: waiting.bytes, available };
                self.answer(waiting.holder, if enough { Ok(DaemonReply::Done) } else { Err(refusal) }, None);
            } else {
                self.waiting.push(waiting);
            }
        }
    }

    /// Closes a client's connection. The client is kept, without a socket, as long as it has leases.
    fn disconnect(&mut self, holder: HolderId) {
        self.waiting.retain(|waiting| waiting.holder != holder);
        if self.leases.disconnect(holder, self.now_ms()) {
            self.clients.remove(&holder);
        } else if let Some(client) = self.clients.get_mut(&holder) {
            client.socket = None;
        }
    }

    /// Handles the exit of a client's process.
    fn on_exit(&mut self, holder: HolderId) {
        if self.leases.exit(holder, self.now_ms()) {
            self.clients.remove(&holder);
        } else if let Some(client) = self.clients.get_mut(&holder) {
            // The socket and the pidfd have nothing more to report.
            (client.socket, client.peer.exit) = (None, None);
        }
        self.waiting.retain(|waiting| waiting.holder != holder);
    }

    /// Ends the leases whose holders' work cannot run any more.
    fn reclaim(&mut self) {
        if !self.leases.needs_reclaim() {
            return;
        }
        let now_ms = self.now_ms();
        let store = &self.store;
        let mut processes = None;
        let (reclaimed, forgotten) = self.leases.reclaim(now_ms, |pid| {
            let processes = processes.get_or_insert_with(|| store.processes());
            is_listed(processes.as_deref(), std::process::id(), pid)
        });
        for (lease, _) in reclaimed {
            self.store.end_lease(lease);
        }
        for holder in forgotten {
            self.clients.remove(&holder);
        }
    }

    fn terms(&self) -> DaemonTerms {
        DaemonTerms { device: self.store.device(), uuid: self.store.uuid(), pool: self.store.pool() }
    }

    fn status(&self) -> DaemonStatus {
        let now_ms = self.now_ms();
        let mut holdings = self.leases.holdings(now_ms);
        let left_out = holdings.len().saturating_sub(MAX_HOLDINGS) as u32;
        holdings.truncate(MAX_HOLDINGS);
        let attached = self.clients.values().filter(|client| client.attached && client.socket.is_some());
        let attached: BTreeSet<u32> = attached.filter_map(|client| client.peer.pid).collect();
        DaemonStatus {
            terms: self.terms(),
            pid: std::process::id(),
            uptime_ms: now_ms,
            connections: self.clients.values().filter(|client| client.socket.is_some()).count() as u32,
            chunk_bytes: self.leases.chunk_bytes(),
            chunk_limit_bytes: self.config.chunk_limit_bytes,
            unreleased: self.store.unreleased() as u32,
            waiting: self.waiting.len() as u32,
            attached: attached.into_iter().take(MAX_HOLDINGS).collect(),
            holdings,
            left_out,
        }
    }

    /// Returns the time since the daemon started, in ms.
    fn now_ms(&self) -> u64 {
        self.config.clock.now().saturating_sub(self.started).as_millis() as u64
    }
}
