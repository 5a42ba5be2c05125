//! Any bytes, as an IDX file, packed or not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_nn::data::{DataError, Idx};

fuzz_target!(|bytes: &[u8]| {
    // Most arrays are of bytes.
    for file in [bytes.to_vec(), [&[0, 0, 8], bytes].concat()] {
        match Idx::parse(&file[..]) {
            Ok(idx) => assert_eq!(idx.sizes.iter().product::<usize>(), idx.data.len()),
            Err(error) => assert!(matches!(error, DataError::Bytes(_))),
        }
    }
});
