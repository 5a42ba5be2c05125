use crate::Divisions;

/// Every block is a multiple of this.
pub(crate) const GRANULE: u64 = 512;

/// Beyond this, sizes are not rounded without overflow.
pub(crate) const MAX_REQUEST: u64 = 1 << 62;

/// Bytes of the block for a request of at most [`MAX_REQUEST`] bytes (PyTorch's `round_size`): a multiple of 512, or the next of
/// equal steps between two powers of two.
pub(crate) fn round(requested: u64, divisions: &Divisions) -> u64 {
    if requested < GRANULE {
        return GRANULE;
    }
    let divisions = divisions[size_class(requested)];
    // Divided rather than multiplied, so that no number of divisions overflows.
    if divisions > 1 && requested.div_ceil(divisions) > GRANULE {
        requested.next_multiple_of((1_u64 << requested.ilog2()) / divisions)
    } else {
        requested.next_multiple_of(GRANULE)
    }
}

/// Whether divisions are numbers that sizes can be rounded by.
pub(crate) fn is_valid(divisions: &Divisions) -> bool {
    divisions.iter().all(|&division| division == 0 || division.is_power_of_two())
}

/// Index into the divisions: 0 below 2 MiB, then one for every power of two, up to 15.
fn size_class(requested: u64) -> usize {
    (requested.ilog2().saturating_sub(20) as usize).min(15)
}
