//! Segments from a program's own allocator ([`PoolSource`]). It is called without the lock, because it may allocate
//! here itself.

use super::captures::marked_as_calling;
use super::engine::{Locked, Wanted};
use super::pool::Returned;
use crate::{Address, BackingError, PoolSource};

/// Allocates a segment of `bytes` bytes from the pool's source.
pub(super) fn allocate(
    locked: &mut impl Locked,
    source: &dyn PoolSource,
    bytes: u64,
    wanted: &Wanted,
) -> Result<Address, BackingError> {
    let stream = wanted.request.stream;
    locked.unlocked(|| marked_as_calling(|| source.allocate(bytes, stream)))
}

/// Gives sources back their released segments.
pub(crate) fn give_back(locked: &mut impl Locked) {
    let returned = std::mem::take(&mut locked.engine().0.returned);
    if !returned.is_empty() {
        locked.unlocked(|| {
            marked_as_calling(|| {
                for Returned { source, address, bytes, stream } in returned {
                    source.free(address, bytes, stream);
                }
            })
        });
    }
}
