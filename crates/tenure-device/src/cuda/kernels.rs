//! Kernels by name: compiled when first needed, cached on disk, loaded once for each device.

use std::path::Path;
use std::{fs, io};

use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use sha2::{Digest, Sha256};

use super::CudaDriver;
use super::kernel::Function;
use super::nvrtc::{self, CompileError, KernelImage};
use crate::{CallError, cache};

/// The name of the kernel in its source: the only one there, and `extern "C"`. The compiled kernel has the operation's
/// name, which profilers show.
const ENTRY: &str = "kernel";

/// The subfolder of the cache that holds kernels.
const KIND: &str = "kernels";

/// The size in bytes of the digest at the end of a file in the cache.
const DIGEST: usize = 32;

/// The name of a kernel, unique in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelName {
    /// The operation, which errors name.
    pub op: &'static str,
    /// A number that tells the operation's kernels apart: dtypes, vector widths and the like.
    pub variant: u64,
}

/// The reason why there is no kernel.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The kernel could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The kernel could not be loaded or launched.
    #[error(transparent)]
    Driver(#[from] CallError),
}

/// The kernels that a device has loaded.
#[derive(Default)]
pub(super) struct Kernels(RwLock<FxHashMap<KernelName, Function>>);

impl CudaDriver {
    /// Returns the kernel called `name`: the function `extern "C" __global__ void kernel(...)` in `source()`. Each
    /// `name` stands for one source, and `source` is called only if the kernel is not loaded yet. The compiled kernel
    /// is kept in the user's cache (`$TENURE_CACHE`, or `$XDG_CACHE_HOME/tenure`) under a digest of the source, the
    /// architecture and the compiler's version. If the cache cannot be read or written, the kernel is compiled anyway.
    ///
    /// # Errors
    /// There is no NVRTC, the source is wrong, or the driver refuses the kernel.
    pub fn kernel(&self, name: KernelName, source: impl FnOnce() -> String) -> Result<Function, KernelError> {
        if let Some(function) = self.kernels.0.read().get(&name) {
            return Ok(*function);
        }
        // No lock is held here: two threads may compile the same kernel at once, and one result is then discarded.
        let image = compile_cached(name, &source(), self.properties().compute_capability)?;
        let function = self.function_called(self.load_module(&image)?, &symbol(name), name.op)?;
        Ok(*self.kernels.0.write().entry(name).or_insert(function))
    }
}

/// Compiles a kernel for devices of a compute capability, or finds it in the cache.
///
/// # Errors
/// There is no NVRTC, or the source is wrong: the error shows the compiler's log.
pub fn compile_cached(
    name: KernelName,
    source: &str,
    compute_capability: (u32, u32),
) -> Result<KernelImage, CompileError> {
    let source = &format!("#define {ENTRY} {}\n{source}", symbol(name));
    let Some(path) = cache::folder(KIND).map(|folder| folder.join(file_name(source, compute_capability))) else {
        return nvrtc::compile(source, compute_capability, OPTIONS);
    };
    if let Some(image) = read_whole(&path) {
        return Ok(KernelImage::from_bytes(image));
    }
    let image = nvrtc::compile(source, compute_capability, OPTIONS)?;
    // An image that could not be written is compiled again the next time.
    let _ = write_whole(&path, image.as_bytes());
    Ok(image)
}

/// Checks a kernel's source with the compiler's front end, which takes a seventh of the time of compiling it. It does
/// not detect a lack of registers or shared memory, or assembler that the device does not have. A source that passed is
/// recorded in the cache.
///
/// # Errors
/// There is no NVRTC, or the source is wrong: the error shows the compiler's log.
pub fn check_cached(name: KernelName, source: &str, compute_capability: (u32, u32)) -> Result<(), CompileError> {
    let source = &format!("#define {ENTRY} {}\n{source}", symbol(name));
    let record =
        cache::folder(KIND).map(|folder| folder.join(file_name(source, compute_capability)).with_extension("checked"));
    if record.as_ref().is_some_and(|record| record.exists()) {
        return Ok(());
    }
    nvrtc::check(source, compute_capability, OPTIONS)?;
    // Without this record, the source is checked again the next time.
    let _ = record.map(|record| cache::replace(&record, &[]));
    Ok(())
}

/// Returns the operation's name as a valid name of a C++ function.
fn symbol(name: KernelName) -> String {
    name.op.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_")
}

/// The compiler's options.
const OPTIONS: &[&str] = &["--std=c++17", "--device-as-default-execution-space"];

/// Returns a file name that depends on everything that the machine code depends on.
fn file_name(source: &str, (major, minor): (u32, u32)) -> String {
    let architecture = format!("sm_{major}{minor}");
    let version = nvrtc::version();
    let options = OPTIONS.join(" ");
    cache::digest([source, &architecture, &version, &options]) + ".cubin"
}

/// Reads a cached image; `None` if it is missing or damaged.
pub(super) fn read_whole(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    let digest = bytes.split_off(bytes.len().checked_sub(DIGEST)?);
    (Sha256::digest(&bytes)[..] == digest).then_some(bytes)
}

/// Writes an image and its digest to the cache.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    cache::replace(path, &[bytes, &Sha256::digest(bytes)].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_file_is_not_taken_from_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels/some.cubin");
        assert!(read_whole(&path).is_none());
        write_whole(&path, &[1, 2, 3]).unwrap();
        assert_eq!(read_whole(&path).unwrap(), [1, 2, 3]);
        let whole = fs::read(&path).unwrap();
        for cut in [&whole[..0], &whole[..2], &whole[..whole.len() - 1], &[&[9], &whole[1..]].concat()] {
            fs::write(&path, cut).unwrap();
            assert!(read_whole(&path).is_none());
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "a draft was left");
    }

    #[test]
    fn another_source_or_device_is_another_file() {
        let names = [file_name("a", (9, 0)), file_name("b", (9, 0)), file_name("a", (10, 0))];
        assert!(names[0] != names[1] && names[0] != names[2]);
        assert_eq!(names[0], file_name("a", (9, 0)));
    }
}
