//! The bytes of a simulated allocation, page by page.

use std::ops::Range;

use rustc_hash::FxHashMap;

const PAGE_BYTES: u64 = 64 << 10;

/// The bytes of one physical allocation, of which only written pages are held.
///
/// Bytes that were not written read as junk, so that a missing initialisation shows.
pub(super) struct Pages {
    /// The seed of the junk.
    seed: u64,
    /// The written pages, by their number.
    pages: FxHashMap<u64, Box<[u8]>>,
}

impl Pages {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, pages: FxHashMap::default() }
    }

    pub(super) fn read(&self, offset: u64, target: &mut [u8]) {
        for (page, within, piece) in pieces(offset, target.len()) {
            let target = &mut target[piece];
            match self.pages.get(&page) {
                Some(bytes) => target.copy_from_slice(&bytes[within..within + target.len()]),
                None => junk(self.seed, page * PAGE_BYTES + within as u64, target),
            }
        }
    }

    pub(super) fn write(&mut self, offset: u64, source: &[u8]) {
        for (page, within, piece) in pieces(offset, source.len()) {
            let source = &source[piece];
            let bytes = self.pages.entry(page).or_insert_with(|| {
                let mut bytes = vec![0; PAGE_BYTES as usize].into_boxed_slice();
                junk(self.seed, page * PAGE_BYTES, &mut bytes);
                bytes
            });
            bytes[within..within + source.len()].copy_from_slice(source);
        }
    }

    /// Returns the offset and bytes of each page that was written to, unwritten parts of the page included.
    pub(super) fn written(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().map(|(page, bytes)| (page * PAGE_BYTES, &**bytes))
    }
}

/// Fills `target` with the junk of an allocation at `offset`.
fn junk(seed: u64, offset: u64, target: &mut [u8]) {
    for (offset, byte) in (offset..).zip(target) {
        *byte = mix(seed ^ (offset / 8)).to_le_bytes()[(offset % 8) as usize];
    }
}

/// Returns the pages under `len` bytes from `offset`: the page, the first byte within it, and the range of the `len`
/// bytes that lies on it.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let page = (offset + done as u64) / PAGE_BYTES;
        let within = (offset + done as u64) % PAGE_BYTES;
        let start = done;
        done = len.min(start + (PAGE_BYTES - within) as usize);
        (start < done).then_some((page, within as usize, start..done))
    })
}

/// Returns a number that looks unrelated to `value`, and is always the same for the same value.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
