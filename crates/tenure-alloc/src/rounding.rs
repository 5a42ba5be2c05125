//! Rounding of requests, as in PyTorch.

use crate::Divisions;

/// The granule in bytes: every block is a multiple of it.
pub(crate) const GRANULE: u64 = 512;

/// The largest request in bytes that is sure to be rounded without overflow.
pub(crate) const MAX_REQUEST: u64 = 1 << 62;

/// Returns the bytes of the block for a request of at most [`MAX_REQUEST`] bytes (PyTorch's `round_size`): a multiple
/// of 512, or the next of equal steps between two powers of two.
pub(crate) fn round(requested: u64, divisions: &Divisions) -> u64 {
    if requested < GRANULE {
        return GRANULE;
    }
    let divisions = divisions[size_class(requested)];
    // Dividing the request, rather than multiplying 512, keeps large numbers of divisions from overflowing.
    if divisions > 1 && requested.div_ceil(divisions) > GRANULE {
        requested.next_multiple_of((1_u64 << requested.ilog2()) / divisions)
    } else {
        requested.next_multiple_of(GRANULE)
    }
}

/// Returns whether sizes can be rounded by these divisions.
pub(crate) fn is_valid(divisions: &Divisions) -> bool {
    divisions.iter().all(|&division| division == 0 || division.is_power_of_two())
}

/// Returns the index into the divisions: 0 below 2 MiB, then one for every power of two, up to 15.
fn size_class(requested: u64) -> usize {
    (requested.ilog2().saturating_sub(20) as usize).min(15)
}
