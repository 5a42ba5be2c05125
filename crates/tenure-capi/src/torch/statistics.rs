//! Statistics of the allocators, in the order of `tenure_torch.h`.

use std::ffi::{c_int, c_void};

use tenure_alloc::{PoolStatistics, Stat, Statistics};

use super::devices::device;
use super::pools::CPool;
use crate::failure::{Status, guarded};

pub(super) unsafe extern "C" fn statistics(number: c_int, statistics: *mut CStatistics) -> Status {
    guarded(|| {
        let figures = CStatistics::from(&device(number)?.memory.allocator().statistics());
        // SAFETY: by the header, a place to write to.
        unsafe { statistics.write(figures) };
        Ok(())
    })
}

pub(super) type PoolVisit = unsafe extern "C" fn(*mut c_void, CPool, *const CStat);

pub(super) unsafe extern "C" fn private_pools(number: c_int, visit: PoolVisit, user: *mut c_void) -> Status {
    guarded(|| {
        for (pool, reserved) in device(number)?.memory.allocator().statistics().reserved_in_private_pools {
            let reserved = reserved.each_ref().map(CStat::from);
            // SAFETY: by the header, a function to call with this.
            unsafe { visit(user, pool.into(), reserved.as_ptr()) };
        }
        Ok(())
    })
}

pub(super) extern "C" fn reset_peak_statistics(number: c_int) -> Status {
    guarded(|| {
        device(number)?.memory.allocator().reset_peak_statistics();
        Ok(())
    })
}

pub(super) extern "C" fn reset_accumulated_statistics(number: c_int) -> Status {
    guarded(|| {
        device(number)?.memory.allocator().reset_accumulated_statistics();
        Ok(())
    })
}

/// `tenure_stat`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct CStat {
    current: i64,
    peak: i64,
    allocated: i64,
    freed: i64,
}

/// `tenure_statistics`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CStatistics {
    allocation: [CStat; 3],
    segment: [CStat; 3],
    active: [CStat; 3],
    inactive_split: [CStat; 3],
    allocated_bytes: [CStat; 3],
    reserved_bytes: [CStat; 3],
    active_bytes: [CStat; 3],
    inactive_split_bytes: [CStat; 3],
    requested_bytes: [CStat; 3],
    oversize_allocations: CStat,
    oversize_segments: CStat,
    num_alloc_retries: i64,
    num_ooms: i64,
    num_sync_all_streams: i64,
    num_device_alloc: i64,
    num_device_free: i64,
    max_split_size: i64,
    num_oom_rejections: i64,
}

impl From<&Stat> for CStat {
    fn from(stat: &Stat) -> Self {
        Self {
            current: signed(stat.current),
            peak: signed(stat.peak),
            allocated: signed(stat.allocated),
            freed: signed(stat.freed),
        }
    }
}

impl From<&Statistics> for CStatistics {
    fn from(statistics: &Statistics) -> Self {
        let pools = [&statistics.all, &statistics.small_pool, &statistics.large_pool];
        let array = |stat: fn(&PoolStatistics) -> &Stat| pools.map(|pool| CStat::from(stat(pool)));
        Self {
            allocation: array(|pool| &pool.allocation),
            segment: array(|pool| &pool.segment),
            active: array(|pool| &pool.active),
            inactive_split: array(|pool| &pool.inactive_split),
            allocated_bytes: array(|pool| &pool.allocated_bytes),
            reserved_bytes: array(|pool| &pool.reserved_bytes),
            active_bytes: array(|pool| &pool.active_bytes),
            inactive_split_bytes: array(|pool| &pool.inactive_split_bytes),
            requested_bytes: array(|pool| &pool.requested_bytes),
            oversize_allocations: (&statistics.oversize_allocations).into(),
            oversize_segments: (&statistics.oversize_segments).into(),
            num_alloc_retries: signed(statistics.num_alloc_retries),
            num_ooms: signed(statistics.num_ooms),
            num_sync_all_streams: signed(statistics.num_sync_all_streams),
            num_device_alloc: signed(statistics.num_device_alloc),
            num_device_free: signed(statistics.num_device_free),
            max_split_size: statistics.max_split_size.map_or(-1, signed),
            num_oom_rejections: signed(statistics.num_oom_rejections),
        }
    }
}

/// Converts a counter to PyTorch's signed type.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use tenure_alloc::PoolKind;
    use tenure_core::Tag;

    use super::*;

    #[test]
    fn figures_keep_their_pool() {
        let mut statistics = Statistics::default();
        statistics.block_allocated(PoolKind::Large, Tag::Unknown, 5 << 20, 6 << 20);
        let flat = CStatistics::from(&statistics);
        assert_eq!(flat.requested_bytes.map(|stat| stat.current), [5 << 20, 0, 5 << 20]);
        assert_eq!(flat.active_bytes.map(|stat| stat.peak), [6 << 20, 0, 6 << 20]);
        assert_eq!(flat.max_split_size, -1);
    }
}
