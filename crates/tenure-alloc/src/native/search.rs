//! The search for new memory, when a pool has no block for a request.

use super::engine::{Engine, Locked, Wanted};
use super::source;
use crate::{AllocError, Request};

impl Engine {
    /// Allocates a block for `request` in new memory, or in memory that can still be reclaimed; returns `None` if there
    /// is none.
    pub(crate) fn allocate_new(locked: &mut impl Locked, request: Request) -> Result<Option<crate::Block>, AllocError> {
        let wanted = locked.engine().0.resolve(request)?;
        with_pool_kept(locked, &wanted, |locked| Self::search(locked, wanted))
    }

    /// Allocates a block for `request` in a new segment; returns `None` if memory is out.
    pub(crate) fn allocate_segment(
        locked: &mut impl Locked,
        request: Request,
    ) -> Result<Option<crate::Block>, AllocError> {
        let wanted = locked.engine().0.resolve(request)?;
        with_pool_kept(locked, &wanted, |locked| {
            let added = Self::add_segment(locked, &wanted)?;
            let (engine, accounts) = locked.engine();
            Ok(added.map(|id| engine.hand_out(accounts, &wanted, id)))
        })
    }

    /// Gets new memory for a request, step by step: a new segment, a private pool that lends its free blocks, oversize
    /// segments and then all cached memory released first, and at last a segment of the request's own size.
    fn search(locked: &mut impl Locked, wanted: Wanted) -> Result<Option<crate::Block>, AllocError> {
        let (engine, accounts) = locked.engine();
        if engine.collects_garbage(accounts) {
            engine.collect_garbage(accounts)?;
        }
        let mut found = Self::add_segment(locked, &wanted)?;
        if found.is_none() {
            let (engine, accounts) = locked.engine();
            if let Some((wanted, id)) = engine.take_from_private_pools(accounts, &wanted) {
                return Ok(Some(engine.hand_out(accounts, &wanted, id)));
            }
            if engine.release_oversize(accounts, &wanted)? {
                found = Self::add_segment(locked, &wanted)?;
            }
        }
        let (engine, accounts) = locked.engine();
        if found.is_none() && !engine.captures.any() {
            engine.release_cached(accounts)?;
            accounts.statistics.num_alloc_retries += 1;
            found = Self::add_segment(locked, &wanted)?;
        }
        let (engine, accounts) = locked.engine();
        Ok(found.map(|id| engine.hand_out(accounts, &wanted, id)))
    }
}

/// Runs `search` for `wanted`, and keeps the pool from being removed meanwhile: the search may release the lock. Then
/// gives the segments that the search released back to their sources, whether or not it succeeded.
fn with_pool_kept<L: Locked, T>(locked: &mut L, wanted: &Wanted, search: impl FnOnce(&mut L) -> T) -> T {
    locked.engine().0.pools.pair_mut(wanted.pool.owner).searches += 1;
    let found = search(locked);
    source::give_back(locked);
    locked.engine().0.pools.pair_mut(wanted.pool.owner).searches -= 1;
    found
}
