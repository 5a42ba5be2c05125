//! Takes any bytes as an IDX file and as a text: plain, packed by gzip, and after the header of a gzip file.
#![no_main]

use std::io::Write;
use std::path::Path;
use std::{env, fs, process};

use flate2::Compression;
use flate2::write::GzEncoder;
use libfuzzer_sys::fuzz_target;
use tenure_nn::data::{Dataset, Idx, TextWindows};

/// The header of a gzip file without a name. RFC 1952.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];

fuzz_target!(|bytes: &[u8]| {
    let file = env::temp_dir().join(format!("tenure-fuzz-idx-{}", process::id()));
    // Most arrays are of bytes.
    for content in [bytes.to_vec(), [&[0, 0, 8], bytes].concat()] {
        let plain = read(&file, &content);
        // The reader unpacks only once, so packed content is not packed again.
        if !content.starts_with(&GZIP_HEADER[..2]) {
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(&content).expect("memory takes it");
            let unpacked = read(&file, &packed.finish().expect("memory takes it"));
            // The reader looks for git-lfs pointers before it unpacks.
            assert!(plain == unpacked || content.starts_with(b"version https://git-lfs"));
        }
    }
    read(&file, &[&GZIP_HEADER, bytes].concat());
});

/// Returns the array and the number of windows in a file of these bytes, if they can be read.
fn read(file: &Path, content: &[u8]) -> (Option<(Vec<usize>, Vec<u8>)>, Option<usize>) {
    fs::write(file, content).expect("a temporary file");
    let array = Idx::open(file).ok().map(|idx| {
        assert_eq!(idx.sizes.iter().product::<usize>(), idx.data.len());
        (idx.sizes, idx.data)
    });
    (array, TextWindows::open_bytes(file, 4).ok().map(|windows| windows.len()))
}
