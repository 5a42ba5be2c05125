use crate::AllocatorError;

/// What became of a request to move memory to a NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum NumaMove {
    /// The pages are there, or will be when they are first touched.
    Moved,
    /// Nothing was done, because the system cannot, or does not let this process.
    Unavailable(String),
}

/// Moves the whole pages inside `data..data + bytes` to a NUMA node, and lets those not yet touched come from there.
/// The bytes keep their values. c10's `NUMAMove`.
///
/// The node is preferred, not demanded: once it is full, pages come from another. Pages at the ends, shared with other
/// data, stay where they are.
///
/// # Errors
/// [`AllocatorError::BadNumaNode`] if the system has NUMA and no such node, or if the range is not this process's
/// memory.
pub fn move_to_numa_node(data: *mut u8, bytes: usize, node: u32) -> Result<NumaMove, AllocatorError> {
    system::prefer_node(data.addr(), bytes, node)
}

#[cfg(target_os = "linux")]
mod system {
    use std::io;

    use super::NumaMove;
    use crate::AllocatorError;

    /// Move pages that are elsewhere already (`MPOL_MF_MOVE` in `linux/mempolicy.h`, which libc does not have).
    const MPOL_MF_MOVE: libc::c_long = 1 << 1;
    /// More nodes than any kernel is built for (`CONFIG_NODES_SHIFT` is at most 10).
    const MAX_NODES: usize = 1024;
    const WORD_BITS: usize = libc::c_ulong::BITS as usize;

    pub(super) fn prefer_node(address: usize, bytes: usize, node: u32) -> Result<NumaMove, AllocatorError> {
        let bad_node = |reason: String| AllocatorError::BadNumaNode { node, reason };
        let mut nodes = [0 as libc::c_ulong; MAX_NODES / WORD_BITS];
        let word = nodes.get_mut(node as usize / WORD_BITS).ok_or_else(|| bad_node("no system has so many".into()))?;
        *word = 1 << (node as usize % WORD_BITS);

        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("there is a page size");
        let start = address.next_multiple_of(page);
        let end = address.saturating_add(bytes) / page * page;
        let length = end.saturating_sub(start);
        // SAFETY: changes which physical pages are under the range, and nothing that a program can see there. The mask
        // is as long as is said (the kernel takes one off).
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
            // A kernel without NUMA; a sandbox that does not let memory be placed.
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
