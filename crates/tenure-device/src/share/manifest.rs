//! The list of the blocks in a range of parameters, which the writer puts after them in the same range.
//!
//! It lies in the same memory as the parameters, so it lives as long as they do, whichever process dies. The range ends
//! with a footer; the body stands before it, and the footer holds the body's length and checksum. A writer marks the
//! footer as unfinished before it writes parameters.

use serde::{Deserialize, Serialize};
use tenure_alloc::Address;
use tenure_alloc::adaptor::PlacedBlock;
use tenure_core::StreamId;

use super::ShareError;
use crate::Driver;

const MAGIC: [u8; 16] = *b"tenure published";

/// The start of the footer while parameters are being written.
const UNFINISHED: [u8; 16] = *b"tenure unwritten";

/// Blocks begin at multiples of this.
const GRANULE: u64 = 512;

/// The version of the body.
const VERSION: u32 = 1;

/// The size of the footer in bytes: magic, version, checksum, and the length of the body.
const FOOTER: u64 = 32;

/// The blocks of a range, in the order in which they were allocated.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// The offset and the requested bytes of each block.
    layout: Vec<(u64, u64)>,
    /// The publisher's description of the parameters; `None` if they were transferred.
    about: Option<Vec<u8>>,
}

/// The content of a range of parameters.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// No parameters: none were written, or their writer [wiped](Manifest::wipe) them.
    Nothing,
    /// Parameters that are being written, or whose writer died before it finished.
    Unfinished,
    /// Parameters that are complete, and their list.
    Parameters(Manifest),
}

impl Manifest {
    pub(super) fn new(layout: &[PlacedBlock], about: Option<&[u8]>) -> Self {
        Self {
            layout: layout.iter().map(|placed| (placed.offset, placed.bytes)).collect(),
            about: about.map(<[u8]>::to_vec),
        }
    }

    /// Returns the first difference between these tensors and what was written, or `None` if they match.
    ///
    /// PipeSwitch writes many tensors at once, as one block in which each is padded to 512 bytes, so tensors may divide
    /// a block.
    pub(super) fn difference(&self, placed: &[PlacedBlock]) -> Option<ShareError> {
        let mut blocks = self.layout.iter();
        // The part of the current block that no tensor has taken yet.
        let mut rest = 0..0;
        for (index, tensor) in placed.iter().enumerate() {
            if rest.is_empty() {
                rest = blocks.next().map_or(0..0, |&(offset, bytes)| offset..offset + bytes);
            }
            let end = tensor.offset + tensor.bytes;
            let next = end.next_multiple_of(GRANULE);
            let is_filled = if rest.end.is_multiple_of(GRANULE) { next <= rest.end } else { end == rest.end };
            if tensor.offset != rest.start || !is_filled {
                let written = (!rest.is_empty()).then_some(rest.end - rest.start);
                return Some(ShareError::PlacedOtherwise { index, placed: Some(tensor.bytes), written });
            }
            rest.start = next.min(rest.end);
        }
        let left = if rest.is_empty() { blocks.next().map(|&(_, bytes)| bytes) } else { Some(rest.end - rest.start) };
        left.map(|bytes| ShareError::PlacedOtherwise { index: placed.len(), placed: None, written: Some(bytes) })
    }

    /// Encodes the list for the end of a range of `bytes` bytes. Fails if there is no room for it after the blocks.
    pub(super) fn encode(&self, bytes: u64) -> Result<Vec<u8>, ShareError> {
        let mut encoded = postcard::to_stdvec(self).map_err(|_| ShareError::PublishedUnreadable("it has no form"))?;
        let length = encoded.len() as u64;
        let checksum = checksum(&encoded);
        let footer = [&MAGIC[..], &VERSION.to_le_bytes(), &checksum.to_le_bytes(), &length.to_le_bytes()].concat();
        encoded.extend(footer);
        let used = self.layout.iter().map(|(offset, bytes)| offset.saturating_add(*bytes)).max().unwrap_or(0);
        let needed = used.saturating_add(encoded.len() as u64);
        if needed > bytes { Err(ShareError::ParametersTooLarge { needed, bytes }) } else { Ok(encoded) }
    }

    /// Waits for all work on the device, then writes the list to the end of a range, after its blocks.
    pub(super) fn write(&self, driver: &dyn Driver, address: Address, bytes: u64) -> Result<(), ShareError> {
        let encoded = self.encode(bytes)?;
        driver.synchronize()?;
        Ok(driver.copy_to_device(address + bytes - encoded.len() as u64, &encoded, StreamId::NULL)?)
    }

    /// Reads the blocks that were published in a range, and their description.
    pub(super) fn read(
        driver: &dyn Driver,
        address: Address,
        bytes: u64,
    ) -> Result<(Vec<PlacedBlock>, Vec<u8>), ShareError> {
        match Self::read_content(driver, address, bytes)? {
            Content::Parameters(Self { layout, about: Some(about) }) => {
                Ok((layout.into_iter().map(|(offset, bytes)| PlacedBlock { offset, bytes }).collect(), about))
            }
            _ => Err(ShareError::NothingPublished),
        }
    }

    /// Reads the footer of a range and, if the parameters are finished, their list.
    pub(super) fn read_content(driver: &dyn Driver, address: Address, bytes: u64) -> Result<Content, ShareError> {
        let read = |target: &mut [u8], bytes_after: u64| {
            let from = address + bytes - bytes_after - target.len() as u64;
            driver.copy_from_device(target, from, StreamId::NULL)
        };
        let mut footer = [0; FOOTER as usize];
        read(&mut footer, 0)?;
        let (magic, rest) = footer.split_at(MAGIC.len());
        if magic != MAGIC {
            return Ok(if magic == UNFINISHED { Content::Unfinished } else { Content::Nothing });
        }
        let (length, sum) = parse(rest)?;
        if length > bytes - FOOTER {
            return Err(ShareError::PublishedUnreadable("it is longer than its range"));
        }
        let mut body = vec![0; length as usize];
        read(&mut body, FOOTER)?;
        if checksum(&body) != sum {
            return Err(ShareError::PublishedUnreadable("its checksum is wrong"));
        }
        let parsed = postcard::from_bytes(&body).map(Content::Parameters);
        parsed.map_err(|_| ShareError::PublishedUnreadable("it has another form"))
    }

    /// Marks a range as one in which parameters are being written.
    pub(super) fn mark_unfinished(driver: &dyn Driver, address: Address, bytes: u64) -> Result<(), ShareError> {
        Self::write_footer(driver, address, bytes, UNFINISHED)
    }

    /// Marks a range as one without parameters.
    pub(super) fn wipe(driver: &dyn Driver, address: Address, bytes: u64) -> Result<(), ShareError> {
        Self::write_footer(driver, address, bytes, [0; 16])
    }

    /// Overwrites the footer with these magic bytes and no list.
    fn write_footer(driver: &dyn Driver, address: Address, bytes: u64, magic: [u8; 16]) -> Result<(), ShareError> {
        let mut footer = [0; FOOTER as usize];
        footer[..magic.len()].copy_from_slice(&magic);
        Ok(driver.copy_to_device(address + bytes - FOOTER, &footer, StreamId::NULL)?)
    }
}

/// Parses the length and checksum of the body from the footer after the magic.
fn parse(footer: &[u8]) -> Result<(u64, u32), ShareError> {
    if number_at(footer, 0) != VERSION {
        return Err(ShareError::PublishedUnreadable("another release of Tenure wrote it"));
    }
    Ok((u64::from(number_at(footer, 8)) | u64::from(number_at(footer, 12)) << 32, number_at(footer, 4)))
}

fn number_at(footer: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([footer[at], footer[at + 1], footer[at + 2], footer[at + 3]])
}

/// Computes FNV-1a, which is enough to detect a body that was overwritten.
fn checksum(body: &[u8]) -> u32 {
    body.iter().fold(0x811c_9dc5, |sum: u32, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimConfig, SimDriver};
    use crate::{CopyCalls, MemoryCalls};

    const BYTES: u64 = 2 << 20;

    fn range() -> (SimDriver, Address) {
        let driver = SimDriver::new(SimConfig::default());
        let address = driver.malloc(BYTES).unwrap();
        (driver, address)
    }

    #[test]
    fn a_manifest_is_read_until_it_is_wiped_out() {
        let (driver, address) = range();
        let holds = || Manifest::read_content(&driver, address, BYTES).unwrap();
        assert_eq!(holds(), Content::Nothing);
        Manifest::mark_unfinished(&driver, address, BYTES).unwrap();
        assert_eq!(holds(), Content::Unfinished);
        for about in [Some(&b"weights"[..]), None] {
            let manifest = || Manifest::new(&[PlacedBlock { offset: 512, bytes: 4 }], about);
            manifest().write(&driver, address, BYTES).unwrap();
            assert_eq!(holds(), Content::Parameters(manifest()));
            let read = Manifest::read(&driver, address, BYTES).ok();
            assert_eq!(read, about.map(|about| (vec![PlacedBlock { offset: 512, bytes: 4 }], about.to_vec())));
        }
        Manifest::wipe(&driver, address, BYTES).unwrap();
        assert_eq!(holds(), Content::Nothing);
    }

    #[test]
    fn a_partly_overwritten_manifest_is_not_believed() {
        let (driver, address) = range();
        let manifest = Manifest::new(&[PlacedBlock { offset: 0, bytes: 4 }; 20], Some(b"weights"));
        manifest.write(&driver, address, BYTES).unwrap();
        let mut whole = vec![0; 256];
        driver.copy_from_device(&mut whole, address + BYTES - 256, StreamId::NULL).unwrap();
        let length = postcard::to_stdvec(&manifest).unwrap().len() + FOOTER as usize;
        for at in 256 - length..256 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            driver.copy_to_device(address + BYTES - 256, &damaged, StreamId::NULL).unwrap();
            assert!(Manifest::read(&driver, address, BYTES).is_err(), "byte {at}");
        }
    }

    #[test]
    fn blocks_are_not_written_over() {
        let (driver, address) = range();
        let manifest = Manifest::new(&[PlacedBlock { offset: 0, bytes: BYTES - 16 }], None);
        let error = manifest.write(&driver, address, BYTES).unwrap_err();
        assert!(matches!(error, ShareError::ParametersTooLarge { bytes: BYTES, .. }), "{error}");
    }

    #[test]
    fn tensors_that_divide_what_was_written_are_the_same_and_others_are_not() {
        let placed = |tensors: &[u64]| PlacedBlock::in_order(tensors);
        let differs = |written: &[u64], tensors: &[u64]| match Manifest::new(&placed(written), None)
            .difference(&placed(tensors))
        {
            Some(ShareError::PlacedOtherwise { index, .. }) => Some(index),
            None => None,
            Some(error) => panic!("{error}"),
        };
        for (written, tensors) in [
            (&[3000, 4, 512][..], &[3000, 4, 512][..]),
            // Padded to 512 bytes each, and written at once.
            (&[3072 + 512 + 512, 1024], &[3000, 4, 512, 700]),
            (&[], &[]),
        ] {
            assert_eq!(differs(written, tensors), None, "{written:?}, {tensors:?}");
        }
        for (written, tensors, index) in [
            (&[3000, 4, 512][..], &[3000, 8, 512][..], 1),
            (&[3000, 4, 512], &[2000, 4, 512], 0),
            (&[3000, 4, 512], &[3000, 4], 2),
            (&[3000, 4], &[3000, 4, 512], 2),
            (&[4096], &[3000, 500], 2),
            (&[4096, 512], &[3000, 1600], 1),
            (&[], &[1], 0),
        ] {
            assert_eq!(differs(written, tensors), Some(index), "{written:?}, {tensors:?}");
        }
    }
}
