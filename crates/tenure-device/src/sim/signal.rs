//! Events of the simulated device that several processes see.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

use super::shared::identity;
use crate::{ErrorKind, EventHandle};

/// The first bytes of every event handle, so that other bytes are not taken for one.
const MAGIC: [u8; 16] = *b"tenure sim event";

/// The number of records of one event that may be unfinished at once; with more, an unfinished record also counts as
/// passed once a later record in its slot has passed.
const SLOTS: u64 = 512;

const WORD: u64 = size_of::<u64>() as u64;

/// The state of an interprocess event that all processes see: the number of its records, and which of them were passed.
///
/// The state is a file in memory. It has the number of records, and for each slot the last record in it that was
/// passed. A handle only names a process that has the file open, and its descriptor there. The file is gone once no
/// process holds it.
pub(super) struct Signal {
    file: File,
    identity: (u64, u64),
}

impl Signal {
    pub(super) fn new() -> Result<Self, ErrorKind> {
        let file = File::from(memfd_create("tenure-sim-event", MemfdFlags::CLOEXEC)?);
        file.set_len((1 + SLOTS) * WORD)?;
        Ok(Self { identity: identity(&file)?, file })
    }

    /// Opens the signal of a handle, whose process must still hold it.
    pub(super) fn open(handle: &EventHandle) -> Result<Self, ErrorKind> {
        let [process, descriptor, device, inode] =
            [16, 24, 32, 40].map(|at| u64::from_le_bytes(std::array::from_fn(|i| handle.0[at + i])));
        let unknown = ErrorKind::UnknownHandle { what: "event of another process", handle: inode };
        if handle.0[..MAGIC.len()] != MAGIC {
            return Err(unknown);
        }
        let path = format!("/proc/{process}/fd/{descriptor}");
        let Ok(file) = File::options().read(true).write(true).open(path) else { return Err(unknown) };
        let identity = identity(&file)?;
        if identity == (device, inode) { Ok(Self { file, identity }) } else { Err(unknown) }
    }

    /// Returns a handle for [`open`](Self::open).
    pub(super) fn handle(&self) -> EventHandle {
        let mut handle = [0; 64];
        handle[..MAGIC.len()].copy_from_slice(&MAGIC);
        let words = [u64::from(std::process::id()), self.file.as_raw_fd() as u64, self.identity.0, self.identity.1];
        for (bytes, word) in handle[MAGIC.len()..].chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        EventHandle(handle)
    }

    /// Returns whether both are the same event.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// Returns the number of the last record, or 0.
    pub(super) fn records(&self) -> u64 {
        self.word(0)
    }

    /// Records the event. Returns the record's number.
    pub(super) fn record(&self) -> Result<u64, ErrorKind> {
        self.file.lock()?;
        let record = self.records() + 1;
        self.set_word(0, record);
        self.file.unlock()?;
        Ok(record)
    }

    /// Records that the device has passed `record`.
    pub(super) fn pass(&self, record: u64) {
        let slot = 1 + record % SLOTS;
        self.set_word(slot, record.max(self.word(slot)));
    }

    pub(super) fn has_passed(&self, record: u64) -> bool {
        self.word(1 + record % SLOTS) >= record
    }

    /// Reads word `index` of the file: 0 is the number of records, and the slots follow.
    fn word(&self, index: u64) -> u64 {
        let mut word = [0; WORD as usize];
        self.file.read_exact_at(&mut word, index * WORD).expect("a file in memory can be read");
        u64::from_ne_bytes(word)
    }

    fn set_word(&self, index: u64, value: u64) {
        self.file.write_all_at(&value.to_ne_bytes(), index * WORD).expect("a file in memory can be written");
    }
}
