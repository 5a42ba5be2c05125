//! The byte ranges that a layout covers.

use std::ops::Range;

/// The number of runs up to which they are listed; more are declared as one range.
const MANY_RUNS: usize = 4096;

/// Returns the byte ranges that contain elements.
pub(super) fn runs(sizes: &[usize], strides: &[usize], width: usize) -> Vec<Range<u64>> {
    if sizes.contains(&0) {
        return Vec::new();
    }
    let mut dims: Vec<(usize, usize)> =
        sizes.iter().copied().zip(strides.iter().copied()).filter(|(size, stride)| *size > 1 && *stride > 0).collect();
    dims.sort_by_key(|(_, stride)| *stride);
    let extent = dims.iter().map(|(size, stride)| (size - 1) * stride).sum::<usize>() + width;
    let mut length = width;
    let mut outer = &dims[..];
    while let [(size, stride), rest @ ..] = outer
        && *stride <= length
    {
        length += (size - 1) * stride;
        outer = rest;
    }
    if outer.iter().map(|(size, _)| *size).product::<usize>() > MANY_RUNS {
        return std::iter::once(0..extent as u64).collect();
    }
    let mut starts = vec![0];
    for (size, stride) in outer.iter().rev() {
        starts = starts.iter().flat_map(|start| (0..*size).map(move |at| start + at * stride)).collect();
    }
    starts.sort_unstable();
    starts.dedup();
    starts.into_iter().map(|start| start as u64..(start + length) as u64).collect()
}
