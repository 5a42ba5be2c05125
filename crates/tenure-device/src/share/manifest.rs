//! What lies where in a range of parameters, written behind them by who wrote them.
//!
//! It lies in the same memory, so that it lives as long as they do, whichever process dies. A footer ends the range; before
//! it stands the body, whose length and checksum the footer has. Who begins to write parameters wipes the footer out first.

use serde::{Deserialize, Serialize};
use tenure_alloc::Address;
use tenure_alloc::adaptor::Placed;
use tenure_core::StreamId;

use super::ShareError;
use crate::Driver;

const MAGIC: [u8; 16] = *b"tenure published";

/// The version of the body.
const VERSION: u32 = 1;

/// Magic, version, checksum, and the length of the body.
const FOOTER: u64 = 32;

/// The blocks of a range, in the order in which they were allocated.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// (offset, bytes requested).
    layout: Vec<(u64, u64)>,
    /// What the one who wrote them says of them.
    pub(super) about: Vec<u8>,
}

impl Manifest {
    pub(super) fn new(layout: &[Placed], about: &[u8]) -> Self {
        Self { layout: layout.iter().map(|placed| (placed.offset, placed.bytes)).collect(), about: about.to_vec() }
    }

    pub(super) fn layout(&self) -> Vec<Placed> {
        self.layout.iter().map(|&(offset, bytes)| Placed { offset, bytes }).collect()
    }

    /// What is written to the end of a range of `bytes` bytes, if there is room for it behind the blocks.
    pub(super) fn encode(&self, bytes: u64) -> Result<Vec<u8>, ShareError> {
        let mut encoded = postcard::to_stdvec(self).map_err(|_| ShareError::PublishedUnreadable("it has no form"))?;
        let (length, checksum) = (encoded.len() as u64, checksum(&encoded));
        let footer = [&MAGIC[..], &VERSION.to_le_bytes(), &checksum.to_le_bytes(), &length.to_le_bytes()].concat();
        encoded.extend(footer);
        let used = self.layout.iter().map(|(offset, bytes)| offset.saturating_add(*bytes)).max().unwrap_or(0);
        let needed = used.saturating_add(encoded.len() as u64);
        if needed > bytes { Err(ShareError::ParametersTooLarge { needed, bytes }) } else { Ok(encoded) }
    }

    /// Writes it to the end of a range, behind its blocks, after all work that was put on the device.
    pub(super) fn write(&self, driver: &dyn Driver, address: Address, bytes: u64) -> Result<(), ShareError> {
        let encoded = self.encode(bytes)?;
        driver.synchronize()?;
        Ok(driver.copy_to_device(address + bytes - encoded.len() as u64, &encoded, StreamId::NULL)?)
    }

    /// Reads it from the end of a range.
    pub(super) fn read(driver: &dyn Driver, address: Address, bytes: u64) -> Result<Self, ShareError> {
        let read = |target: &mut [u8], behind: u64| {
            let from = address + bytes - behind - target.len() as u64;
            driver.copy_from_device(target, from, StreamId::NULL)
        };
        let mut footer = [0; FOOTER as usize];
        read(&mut footer, 0)?;
        let (length, sum) = parse(&footer)?;
        if length > bytes - FOOTER {
            return Err(ShareError::PublishedUnreadable("it is longer than its range"));
        }
        let mut body = vec![0; length as usize];
        read(&mut body, FOOTER)?;
        if checksum(&body) != sum {
            return Err(ShareError::PublishedUnreadable("its checksum is wrong"));
        }
        postcard::from_bytes(&body).map_err(|_| ShareError::PublishedUnreadable("it has another form"))
    }

    /// Makes a range one in which nothing is published.
    pub(super) fn wipe(driver: &dyn Driver, address: Address, bytes: u64) -> Result<(), ShareError> {
        Ok(driver.copy_to_device(address + bytes - FOOTER, &[0; FOOTER as usize], StreamId::NULL)?)
    }
}

/// Length and checksum of the body.
fn parse(footer: &[u8; FOOTER as usize]) -> Result<(u64, u32), ShareError> {
    let (magic, rest) = footer.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(ShareError::NothingPublished);
    }
    let number = |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
    if number(0) != VERSION {
        return Err(ShareError::PublishedUnreadable("another release of Tenure wrote it"));
    }
    Ok((u64::from(number(8)) | u64::from(number(12)) << 32, number(4)))
}

/// FNV-1a: enough to find a body that was overwritten.
fn checksum(body: &[u8]) -> u32 {
    body.iter().fold(0x811c_9dc5, |sum: u32, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimConfig, SimDriver};

    const BYTES: u64 = 2 << 20;

    fn range() -> (SimDriver, Address) {
        let driver = SimDriver::new(SimConfig::default());
        let address = driver.malloc(BYTES).unwrap();
        (driver, address)
    }

    #[test]
    fn what_was_written_is_read_until_it_is_wiped_out() {
        let (driver, address) = range();
        assert!(matches!(Manifest::read(&driver, address, BYTES), Err(ShareError::NothingPublished)));
        let manifest = Manifest::new(&[Placed { offset: 512, bytes: 4 }], b"weights");
        manifest.write(&driver, address, BYTES).unwrap();
        assert_eq!(Manifest::read(&driver, address, BYTES).unwrap(), manifest);
        Manifest::wipe(&driver, address, BYTES).unwrap();
        assert!(matches!(Manifest::read(&driver, address, BYTES), Err(ShareError::NothingPublished)));
    }

    #[test]
    fn what_was_overwritten_in_part_is_not_believed() {
        let (driver, address) = range();
        let manifest = Manifest::new(&[Placed { offset: 0, bytes: 4 }; 20], b"weights");
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
        let manifest = Manifest::new(&[Placed { offset: 0, bytes: BYTES - 16 }], b"");
        let error = manifest.write(&driver, address, BYTES).unwrap_err();
        assert!(matches!(error, ShareError::ParametersTooLarge { bytes: BYTES, .. }), "{error}");
    }
}
