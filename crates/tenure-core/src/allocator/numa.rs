//! Moves of host memory to NUMA nodes.

use crate::AllocatorError;

/// The result of a request to move memory to a NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum NumaMove {
    /// The pages are on the node, or will be when they are first touched.
    Moved,
    /// Nothing was done, because the system cannot move memory, or does not let this process do it. The text is the
    /// reason.
    Unavailable(String),
}

/// Moves the whole pages inside `data..data + bytes` to a NUMA node. Pages that were not touched yet will come from
/// that node. The bytes keep their values. c10's `NUMAMove`.
///
/// The node is preferred, not required: once it is full, pages come from another one. Pages at the ends that are shared
/// with other data stay where they are.
///
/// # Errors
/// [`AllocatorError::BadNumaNode`] if the system has NUMA but not this node, or if the range is not this process's
/// memory.
pub fn move_to_numa_node(data: *mut u8, bytes: usize, node: u32) -> Result<NumaMove, AllocatorError> {
    system::prefer_node(data.addr(), bytes, node)
}

#[cfg(target_os = "linux")]
mod system {
    use std::io;

    use super::NumaMove;
    use crate::AllocatorError;

    /// The flag that moves pages which are on another node (`MPOL_MF_MOVE` in `linux/mempolicy.h`, which libc does not
    /// have).
    const MPOL_MF_MOVE: libc::c_long = 1 << 1;
    /// The size of the node mask: no kernel is built for more nodes (`CONFIG_NODES_SHIFT` is at most 10).
    const MAX_NODES: usize = 1024;
    const WORD_BITS: usize = libc::c_ulong::BITS as usize;

    pub(super) fn prefer_node(address: usize, bytes: usize, node: u32) -> Result<NumaMove, AllocatorError> {
        let bad_node = |reason: String| AllocatorError::BadNumaNode { node, reason };
        let mut nodes = [0 as libc::c_ulong; MAX_NODES / WORD_BITS];
        let word = nodes.get_mut(node as usize / WORD_BITS).ok_or_else(|| bad_node("no system has so many".into()))?;
        *word = 1 << (node as usize % WORD_BITS);

        // SAFETY: the call only returns a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("there is a page size");
        let start = address.next_multiple_of(page);
        let end = address.saturating_add(bytes) / page * page;
        let length = end.saturating_sub(start);
        // SAFETY: the call changes the physical pages of the range, which a program cannot observe. The mask is as long
        // as the call says (the kernel subtracts one).
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                start,
                length,
                libc::c_long::from(libc::MPOL_PREFERRED),
                nodes.as_ptr(),
                MAX_NODES + 1,
                MPOL_MF_MOVE,
            )
        };
        if result == 0 {
            return Ok(NumaMove::Moved);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // The kernel has no NUMA, or a sandbox forbids placing memory.
            Some(libc::ENOSYS | libc::EPERM) => Ok(NumaMove::Unavailable(format!("mbind: {error}"))),
            _ => Err(bad_node(format!("mbind: {error}"))),
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::NumaMove;
    use crate::AllocatorError;

    pub(super) fn prefer_node(_address: usize, _bytes: usize, _node: u32) -> Result<NumaMove, AllocatorError> {
        Ok(NumaMove::Unavailable("only Linux moves memory between NUMA nodes here".into()))
    }
}
