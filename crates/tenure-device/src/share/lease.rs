//! All leases of a daemon, their holders, and the rules that end a lease when its holder can no longer give it back.
//! Nothing here does any I/O.

use std::collections::BTreeMap;

use super::wire::{DaemonRefusal, Holding, LeaseId, LeaseKind, LeaseState};
use crate::AccessMode;

/// The most leases that a daemon gives at once.
const MAX_LEASES: usize = 1 << 16;

/// How long a holder that does not ask again keeps its place in the queue, in ms.
const QUEUE_TIMEOUT_MS: u64 = 100;

/// The number of a connection. It stays in use after the connection has closed, while leases remain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HolderId(pub(super) u64);

/// The memory that is leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// A range of the pool, which other holders may lease after this one.
    Pool { offset: u64, bytes: u64 },
    /// A chunk, which is never leased to another holder: the driver keeps its memory as long as a process maps it.
    Chunk { bytes: u64 },
}

impl Extent {
    fn chunk_bytes(self) -> u64 {
        match self {
            Self::Chunk { bytes } => bytes,
            Self::Pool { .. } => 0,
        }
    }

    /// Returns whether two ranges of the pool have bytes in common.
    fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::Pool { offset, bytes }, Self::Pool { offset: start, bytes: length }) => {
                offset < start.saturating_add(length) && start < offset.saturating_add(bytes)
            }
            _ => false,
        }
    }
}

/// Returns whether two uses of the pool cannot be granted at the same time.
fn excludes((one, use_of_one): (Extent, AccessMode), (other, use_of_other): (Extent, AccessMode)) -> bool {
    one.overlaps(other) && (use_of_one == AccessMode::ReadWrite || use_of_other == AccessMode::ReadWrite)
}

/// All leases of a daemon.
///
/// A lease is *held* until its holder gives it back. If the holder ends before, it is *orphaned*: a closed connection
/// does not prove that the holder's work on the device has ended. It is *reclaimed* on proof:
///
/// | the holder | a chunk | a range of the pool |
/// | --- | --- | --- |
/// | has exited | at once | when the driver does not list its process; after the grace period, if it lists none |
/// | is out of sight, its connection closed | after the grace period | after the grace period; it only reads |
/// | runs, its connection closed | not yet | not yet |
///
/// A process is *out of sight* if the daemon cannot watch for its exit, as in another container.
///
/// Ranges of the pool are leased to any number of readers or to one writer. A process out of sight may not write them:
/// it could still write after the grace period, when another holder has the range. Times are in ms and do not decrease.
pub(super) struct Leases {
    grace_ms: u64,
    holders: BTreeMap<HolderId, Holder>,
    leases: BTreeMap<LeaseId, Lease>,
    /// The holders that wait for a range of the pool, in the order in which they began to wait.
    queue: Vec<Queued>,
    /// The size of all leased chunks together, in bytes.
    chunk_bytes: u64,
    next_holder: u64,
    next_lease: u64,
}

struct Holder {
    /// The holder's process, whose exit the daemon learns of. `None`: the process is out of sight.
    pid: Option<u32>,
    state: HolderState,
    leases: usize,
}

enum HolderState {
    Connected,
    Disconnected { since_ms: u64 },
    Exited { since_ms: u64 },
}

#[derive(Clone, Copy)]
struct Lease {
    holder: HolderId,
    extent: Extent,
    access: AccessMode,
    since_ms: u64,
}

/// A holder that was refused a range and keeps asking for it.
struct Queued {
    holder: HolderId,
    extent: Extent,
    access: AccessMode,
    /// The time when it asked last.
    asked_ms: u64,
}

impl Leases {
    /// Creates an empty set of leases.
    pub(super) fn new(grace_ms: u64) -> Self {
        Self {
            grace_ms,
            holders: BTreeMap::new(),
            leases: BTreeMap::new(),
            queue: Vec::new(),
            chunk_bytes: 0,
            next_holder: 0,
            next_lease: 0,
        }
    }

    /// Adds a connection. `pid` is its process, or `None` if the daemon cannot learn of its exit.
    pub(super) fn connect(&mut self, pid: Option<u32>) -> HolderId {
        let id = HolderId(self.next_holder);
        self.next_holder += 1;
        self.holders.insert(id, Holder { pid, state: HolderState::Connected, leases: 0 });
        id
    }

    /// Leases `extent` to a connected holder.
    pub(super) fn grant(
        &mut self,
        holder: HolderId,
        extent: Extent,
        access: AccessMode,
        now_ms: u64,
    ) -> Result<LeaseId, DaemonRefusal> {
        if self.leases.len() >= MAX_LEASES {
            return Err(DaemonRefusal::TooManyLeases { limit: MAX_LEASES as u32 });
        }
        let out_of_sight = self.holders.get(&holder).is_none_or(|holder| holder.pid.is_none());
        if out_of_sight && matches!(extent, Extent::Pool { .. }) && access == AccessMode::ReadWrite {
            return Err(DaemonRefusal::OutOfSight);
        }
        self.queue.retain(|queued| now_ms < queued.asked_ms + QUEUE_TIMEOUT_MS);
        if let Some(refusal) = self.conflict(extent, access).or_else(|| self.conflict_in_queue(holder, extent, access))
        {
            return Err(refusal);
        }
        self.leave_queue(holder, extent);
        let id = LeaseId(self.next_lease);
        self.next_lease += 1;
        self.leases.insert(id, Lease { holder, extent, access, since_ms: now_ms });
        self.chunk_bytes += extent.chunk_bytes();
        if let Some(holder) = self.holders.get_mut(&holder) {
            holder.leases += 1;
        }
        Ok(id)
    }

    /// Adds a holder that was refused `extent` and will ask again soon to the queue, or renews its place there. Holders
    /// that ask later are refused until it has had its turn.
    pub(super) fn queue(&mut self, holder: HolderId, extent: Extent, access: AccessMode, now_ms: u64) {
        match self.queue.iter_mut().find(|queued| queued.holder == holder && queued.extent == extent) {
            Some(queued) => queued.asked_ms = now_ms,
            None => self.queue.push(Queued { holder, extent, access, asked_ms: now_ms }),
        }
    }

    /// Removes a holder's request for `extent` from the queue.
    pub(super) fn leave_queue(&mut self, holder: HolderId, extent: Extent) {
        self.queue.retain(|queued| queued.holder != holder || queued.extent != extent);
    }

    /// Returns whether a holder that is still connected may write a part of a range of the pool.
    pub(super) fn is_written(&self, offset: u64, bytes: u64) -> bool {
        let range = Extent::Pool { offset, bytes };
        self.leases.values().any(|lease| {
            lease.access == AccessMode::ReadWrite && range.overlaps(lease.extent) && !self.is_orphaned(lease)
        })
    }

    /// Ends a lease of `holder`. Returns the memory that was leased.
    pub(super) fn release(&mut self, holder: HolderId, id: LeaseId) -> Result<Extent, DaemonRefusal> {
        if self.leases.get(&id).is_none_or(|lease| lease.holder != holder) {
            return Err(DaemonRefusal::UnknownLease(id));
        }
        self.remove_lease(id).ok_or(DaemonRefusal::UnknownLease(id))
    }

    /// Turns a lease of `holder` into one for reading.
    pub(super) fn lower(&mut self, holder: HolderId, id: LeaseId) -> Result<(), DaemonRefusal> {
        let lease = self.leases.get_mut(&id).filter(|lease| lease.holder == holder);
        lease.ok_or(DaemonRefusal::UnknownLease(id))?.access = AccessMode::Read;
        Ok(())
    }

    /// Records that a holder's connection has closed. Returns whether the holder had no leases and was removed.
    pub(super) fn disconnect(&mut self, holder: HolderId, now_ms: u64) -> bool {
        self.end_holder(holder, HolderState::Disconnected { since_ms: now_ms })
    }

    /// Records that a holder's process has exited. Returns whether the holder had no leases and was removed.
    pub(super) fn exit(&mut self, holder: HolderId, now_ms: u64) -> bool {
        self.end_holder(holder, HolderState::Exited { since_ms: now_ms })
    }

    /// Records how a holder ended. Removes it if it has no leases, and returns whether it is gone.
    fn end_holder(&mut self, id: HolderId, state: HolderState) -> bool {
        self.queue.retain(|queued| queued.holder != id);
        let Some(holder) = self.holders.get_mut(&id) else { return true };
        // An exit is final: a connection that closes after it changes nothing.
        if !matches!((&holder.state, &state), (HolderState::Exited { .. }, _)) {
            holder.state = state;
        }
        holder.leases == 0 && self.holders.remove(&id).is_some()
    }

    /// Ends the orphaned leases whose holders' work cannot run any more. `listed` returns whether the driver lists a
    /// process, or `None` if that is unknown. Returns the leases that ended, and the holders that were removed because
    /// they have no leases left.
    pub(super) fn reclaim(
        &mut self,
        now_ms: u64,
        mut listed: impl FnMut(u32) -> Option<bool>,
    ) -> (Vec<(LeaseId, Extent)>, Vec<HolderId>) {
        let (mut reclaimed, mut forgotten) = (Vec::new(), Vec::new());
        let orphaned: Vec<_> =
            self.leases.iter().filter(|(_, lease)| self.is_orphaned(lease)).map(|(&id, &lease)| (id, lease)).collect();
        for (id, lease) in orphaned {
            let Some(holder) = self.holders.get(&lease.holder) else { continue };
            if holder.can_end_lease(lease.extent, now_ms, self.grace_ms, &mut listed)
                && let Some(extent) = self.remove_lease(id)
            {
                reclaimed.push((id, extent));
                if self.holders.get(&lease.holder).is_some_and(|holder| holder.leases == 0) {
                    self.holders.remove(&lease.holder);
                    forgotten.push(lease.holder);
                }
            }
        }
        (reclaimed, forgotten)
    }

    /// Returns whether a lease may end without a message, as time passes or the driver's list changes, so that
    /// [`reclaim`](Self::reclaim) must be called again.
    pub(super) fn needs_reclaim(&self) -> bool {
        self.holders.values().any(|holder| match holder.state {
            HolderState::Connected => false,
            HolderState::Disconnected { .. } => holder.pid.is_none(),
            HolderState::Exited { .. } => true,
        })
    }

    /// Returns whether a holder has any lease.
    pub(super) fn holds_any(&self, holder: HolderId) -> bool {
        self.holders.get(&holder).is_some_and(|holder| holder.leases > 0)
    }

    /// Returns the size of all leased chunks together, in bytes.
    pub(super) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Returns all leases, one entry for each holder, kind and access.
    pub(super) fn holdings(&self, now_ms: u64) -> Vec<Holding> {
        let mut holdings = BTreeMap::new();
        for lease in self.leases.values() {
            let (kind, bytes) = match lease.extent {
                Extent::Pool { bytes, .. } => (LeaseKind::Pool, bytes),
                Extent::Chunk { bytes } => (LeaseKind::Chunk, bytes),
            };
            let state = if self.is_orphaned(lease) { LeaseState::Orphaned } else { LeaseState::Held };
            let pid = self.pid(lease.holder);
            let access = lease.access;
            let key = (lease.holder, kind, access == AccessMode::ReadWrite);
            let holding =
                holdings.entry(key).or_insert(Holding { pid, kind, access, state, leases: 0, bytes: 0, oldest_ms: 0 });
            holding.leases += 1;
            holding.bytes += bytes;
            holding.oldest_ms = holding.oldest_ms.max(now_ms.saturating_sub(lease.since_ms));
        }
        holdings.into_values().collect()
    }

    /// Returns the refusal of `extent`, if a lease excludes it.
    fn conflict(&self, extent: Extent, access: AccessMode) -> Option<DaemonRefusal> {
        self.leases.values().find_map(|lease| {
            let Extent::Pool { offset, bytes } = lease.extent else { return None };
            excludes((extent, access), (lease.extent, lease.access)).then(|| DaemonRefusal::Leased {
                offset,
                bytes,
                pid: self.pid(lease.holder),
                access: lease.access,
            })
        })
    }

    /// Returns the refusal of `extent`, if another holder queued before `holder` for memory that excludes it.
    fn conflict_in_queue(&self, holder: HolderId, extent: Extent, access: AccessMode) -> Option<DaemonRefusal> {
        let before = self.queue.iter().take_while(|queued| queued.holder != holder || queued.extent != extent);
        let mut before = before.filter(|queued| queued.holder != holder);
        before.find_map(|queued| {
            let Extent::Pool { offset, bytes } = queued.extent else { return None };
            excludes((extent, access), (queued.extent, queued.access)).then(|| DaemonRefusal::Leased {
                offset,
                bytes,
                pid: self.pid(queued.holder),
                access: queued.access,
            })
        })
    }

    fn is_orphaned(&self, lease: &Lease) -> bool {
        self.holders.get(&lease.holder).is_none_or(|holder| !matches!(holder.state, HolderState::Connected))
    }

    fn pid(&self, holder: HolderId) -> Option<u32> {
        self.holders.get(&holder).and_then(|holder| holder.pid)
    }

    /// Removes a lease. Returns its memory.
    fn remove_lease(&mut self, id: LeaseId) -> Option<Extent> {
        let lease = self.leases.remove(&id)?;
        self.chunk_bytes -= lease.extent.chunk_bytes();
        if let Some(holder) = self.holders.get_mut(&lease.holder) {
            holder.leases -= 1;
        }
        Some(lease.extent)
    }
}

impl Holder {
    /// Returns whether this holder's lease of `extent` may end because none of its work can touch the memory any more;
    /// see the table at [`Leases`].
    fn can_end_lease(
        &self,
        extent: Extent,
        now_ms: u64,
        grace_ms: u64,
        listed: &mut impl FnMut(u32) -> Option<bool>,
    ) -> bool {
        match (&self.state, self.pid) {
            (HolderState::Connected, _) | (HolderState::Disconnected { .. }, Some(_)) => false,
            (HolderState::Disconnected { since_ms } | HolderState::Exited { since_ms }, None) => {
                now_ms >= since_ms.saturating_add(grace_ms)
            }
            (HolderState::Exited { since_ms }, Some(pid)) => match extent {
                Extent::Chunk { .. } => true,
                Extent::Pool { .. } => {
                    listed(pid).map_or(now_ms >= since_ms.saturating_add(grace_ms), |listed| !listed)
                }
            },
        }
    }
}

#[cfg(test)]
mod tests;
