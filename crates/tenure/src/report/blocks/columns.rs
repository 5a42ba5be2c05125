//! The encoding of a page's data: postcard's, deflated, in base64; and columns of it that are written as differences.

use std::io::Write;

use base64::prelude::{BASE64_STANDARD, Engine};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde::Serialize;

/// Returns `data` deflated, in base64.
pub(super) fn deflated(data: &impl Serialize) -> String {
    let bytes = postcard::to_stdvec(data).expect("a vector takes every byte");
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    let written = encoder.write_all(&bytes).and_then(|()| encoder.finish());
    BASE64_STANDARD.encode(written.expect("a vector takes every byte"))
}

/// Numbers that do not descend, as the differences of neighbours.
pub(super) mod differences {
    use std::mem;

    use serde::Serializer;

    pub(in super::super) fn serialize<S: Serializer>(numbers: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
        let mut before = 0;
        serializer.collect_seq(numbers.iter().map(|&number| number - mem::replace(&mut before, number)))
    }

    #[cfg(test)]
    pub(in super::super) fn deserialize<'a, D: serde::Deserializer<'a>>(data: D) -> Result<Vec<u64>, D::Error> {
        let mut sum = 0;
        let differences: Vec<u64> = serde::Deserialize::deserialize(data)?;
        Ok(differences.into_iter().map(|number| (sum += number, sum).1).collect())
    }
}

/// Numbers below 2^52, as the signed differences of neighbours.
pub(super) mod signed_differences {
    use std::mem;

    use serde::Serializer;

    pub(in super::super) fn serialize<S: Serializer>(numbers: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
        let mut before = 0;
        serializer.collect_seq(numbers.iter().map(|&number| number as i64 - mem::replace(&mut before, number as i64)))
    }

    #[cfg(test)]
    pub(in super::super) fn deserialize<'a, D: serde::Deserializer<'a>>(data: D) -> Result<Vec<u64>, D::Error> {
        let mut sum = 0;
        let differences: Vec<i64> = serde::Deserialize::deserialize(data)?;
        Ok(differences.into_iter().map(|number| (sum += number, sum as u64).1).collect())
    }
}
