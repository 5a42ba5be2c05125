//! The digest of training data, by which a checkpoint tells it from other data.

use std::fs;
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};
use tenure_core::user_files::{open_regular, open_unpacked};

/// The most images whose contents are part of a digest. Names and sizes of all images are.
const READ_IMAGES: usize = 1024;

/// Returns the digest of a text.
pub(super) fn of_text(bytes: &[u8]) -> String {
    in_hex(Sha256::new_with_prefix(bytes))
}

/// Returns the digest of files, each decompressed if it is compressed.
pub(super) fn of_unpacked<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> io::Result<String> {
    let mut all = Sha256::new();
    for file in files {
        let mut one = Sha256::new();
        io::copy(&mut open_unpacked(file.as_ref())?, &mut one)?;
        all.update(one.finalize());
    }
    Ok(in_hex(all))
}

/// Returns the digest of images: the names in `folder` and the sizes of all, and the contents of up to 1024, evenly
/// spread. An image that cannot be read counts by its name, as the step that needs it reports the error.
pub(super) fn of_images(folder: &Path, images: &[&Path]) -> String {
    let stride = images.len().div_ceil(READ_IMAGES).max(1);
    let mut all = Sha256::new();
    for (index, image) in images.iter().enumerate() {
        let name = image.strip_prefix(folder).unwrap_or(image).as_os_str().as_encoded_bytes();
        all.update((name.len() as u64).to_le_bytes());
        all.update(name);
        let Ok(found) = fs::metadata(image) else { continue };
        all.update(found.len().to_le_bytes());
        if index % stride == 0 {
            let mut one = Sha256::new();
            let read = open_regular(image).and_then(|mut file| io::copy(&mut file, &mut one));
            all.update(read.map(|_| one.finalize()).unwrap_or_default());
        }
    }
    in_hex(all)
}

fn in_hex(digest: Sha256) -> String {
    format!("{:x}", digest.finalize())
}
