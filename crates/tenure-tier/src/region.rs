//! Regions: memory of a tier, mapped into the process's address space once, in its full size.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::TierError;
use crate::medium::{Medium, Nature};
use crate::system::{self, Mapped};

/// A range of addresses that is mapped as a whole until it is dropped.
pub(crate) struct Region {
    start: NonNull<u8>,
    bytes: u64,
    nature: Nature,
    /// The mapped file, if it has a name: other processes can truncate such a file.
    named: Option<NamedFile>,
    /// The mapping as the system reported it when it was made.
    mapped: Option<Mapped>,
}

/// A file's identity. Its name alone is not enough, since another file may have it by now. No descriptor is kept: other
/// code might close it and reuse its number.
struct NamedFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl NamedFile {
    /// Returns whether the path still leads to this file.
    fn exists(&self) -> bool {
        self.path.metadata().is_ok_and(|now| (now.dev(), now.ino()) == (self.device, self.inode))
    }
}

// SAFETY: this is a range of addresses, which its owner hands out; nothing here reads or writes its contents.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps memory of a medium: `capacity` bytes in whole pages, or all that the medium has. A file needs a capacity.
    pub(crate) fn open(medium: &Medium, capacity: Option<u64>) -> Result<Self, TierError> {
        match medium {
            Medium::Dram => Self::anonymous(medium, Nature::Dram, capacity.unwrap_or_else(system::memory_bytes)),
            Medium::Node(node) => {
                let Some(all) = system::node_bytes(*node) else {
                    return Err(TierError::NoNode { node: *node, online: system::nodes() });
                };
                let region = Self::anonymous(medium, Nature::Node(*node), capacity.unwrap_or(all))?;
                // This must happen before the first page is touched.
                system::bind(&region.addresses(), *node).map_err(TierError::system(medium, "mbind"))?;
                Ok(region)
            }
            Medium::Path(path) => Self::at_path(medium, path, capacity),
        }
    }

    /// Returns the range of addresses.
    pub(crate) fn addresses(&self) -> Range<u64> {
        let start = self.start.as_ptr().addr() as u64;
        start..start + self.bytes
    }

    /// Returns a pointer to one of its addresses.
    pub(crate) fn pointer(&self, address: u64) -> *mut u8 {
        self.start.as_ptr().with_addr(address as usize)
    }

    pub(crate) fn nature(&self) -> &Nature {
        &self.nature
    }

    /// Returns whether a range is within the region and, for memory of a node, all its pages are on that node.
    pub(crate) fn contains(&self, range: &Range<u64>) -> io::Result<bool> {
        let all = self.addresses();
        if range.start < all.start || range.end > all.end {
            return Ok(false);
        }
        match self.nature {
            Nature::Node(node) => system::is_on_node(range, node),
            _ => Ok(true),
        }
    }

    /// Returns whether forked children would share this memory instead of getting a copy.
    pub(crate) fn is_shared(&self) -> bool {
        !matches!(self.nature, Nature::Dram | Nature::Node(_))
    }

    /// Gives the whole pages of an unused range back to the system. When they are touched again, they are zeroed.
    pub(crate) fn discard(&self, range: &Range<u64>) -> io::Result<()> {
        let page = system::page_bytes();
        let start = range.start.next_multiple_of(page);
        let end = range.end / page * page;
        if start >= end {
            return Ok(());
        }
        // SAFETY: the range is within the mapping, and nothing uses it.
        unsafe { madvise(self.pointer(start).cast(), (end - start) as usize, Advice::LinuxDontNeed) }
            .map_err(io::Error::from)
    }

    /// Returns the reason why the region cannot be relied on, if there is one: something else is mapped in its place,
    /// or its file was truncated.
    pub(crate) fn trouble(&self) -> Option<String> {
        match system::mapped(&self.addresses()) {
            Ok(now) if now.is_some() && now == self.mapped => {}
            Ok(_) => return Some("something else is mapped in its place".into()),
            Err(error) => return Some(format!("the system does not tell what is mapped: {error}")),
        }
        let named = self.named.as_ref()?;
        match named.path.metadata() {
            Ok(now) if (now.dev(), now.ino()) != (named.device, named.inode) => {
                Some("another file has its name: whether it was cut cannot be told".into())
            }
            Ok(now) if now.len() >= self.bytes => None,
            Ok(now) => Some(format!(
                "its file was cut to {} bytes: reading or writing beyond them ends the program",
                now.len()
            )),
            Err(error) => Some(format!("its file cannot be looked at, and may have been cut: {error}")),
        }
    }

    /// Removes the file, if it has a name and is still the one that was created.
    pub(crate) fn remove_file(&self) {
        if let Some(named) = self.named.as_ref().filter(|named| named.exists()) {
            // The caller already returns an error.
            let _ = fs::remove_file(&named.path);
        }
    }

    /// Maps memory that belongs to no file.
    fn anonymous(medium: &Medium, nature: Nature, capacity: u64) -> Result<Self, TierError> {
        let bytes = round_down(medium, capacity, system::page_bytes())?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the system chooses the address.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), bytes as usize, access, flags) };
        let mapped = mapped.map_err(TierError::system(medium, "mmap"))?;
        let region = Self::of_mapping(mapped.cast(), bytes, nature);
        // Fewer, larger pages are faulted in faster. A system may ignore this.
        // SAFETY: this is the mapping that was just made.
        let _ = unsafe { madvise(mapped, bytes as usize, Advice::LinuxHugepage) };
        Ok(region)
    }

    /// Maps memory at a path: a new file in a folder, a new file of that name, or a DAX device.
    fn at_path(medium: &Medium, path: &Path, capacity: Option<u64>) -> Result<Self, TierError> {
        let existing = match path.metadata() {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(TierError::system(medium, "stat")(error)),
        };
        let file_bytes = || capacity.ok_or_else(|| TierError::NoCapacity { path: path.into() });
        match existing.map(|metadata| (metadata.file_type(), metadata.rdev())) {
            None => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
                Self::file(medium, folder, Some(path), file_bytes()?)
            }
            Some((kind, _)) if kind.is_dir() => Self::file(medium, path, None, file_bytes()?),
            Some((kind, _)) if kind.is_file() => Err(TierError::Exists { path: path.into() }),
            Some((kind, number)) if kind.is_char_device() => Self::device(medium, path, number, capacity),
            Some(_) => Err(TierError::NotMemory { path: path.into() }),
        }
    }

    /// Maps a DAX device.
    fn device(medium: &Medium, path: &Path, number: u64, capacity: Option<u64>) -> Result<Self, TierError> {
        let major = rustix::fs::major(number);
        let minor = rustix::fs::minor(number);
        let device = system::find_dax_device(Path::new(system::CHARACTER_DEVICES), major, minor);
        let device = device.ok_or_else(|| TierError::NotMemory { path: path.into() })?;
        let capacity = capacity.unwrap_or(device.bytes);
        if capacity > device.bytes {
            return Err(TierError::TooLarge { what: medium.to_string(), capacity, available: device.bytes });
        }
        let bytes = round_down(medium, capacity, device.alignment)?;
        let file = File::options().read(true).write(true).open(path).map_err(TierError::system(medium, "open"))?;
        Self::map(medium, &file, bytes, MapFlags::SHARED, Nature::Device)
    }

    /// Creates a file in `folder`, allocates all of it now and maps it, so that a full disk is an error here and not a
    /// signal later. With a path `kept`, the file gets this name as the last step, and stays. Otherwise it has no name.
    fn file(medium: &Medium, folder: &Path, kept: Option<&Path>, capacity: u64) -> Result<Self, TierError> {
        let bytes = round_down(medium, capacity, system::page_bytes())?;
        let (file, name) = match kept {
            None => (tempfile::tempfile_in(folder).map_err(TierError::system(medium, "create"))?, None),
            Some(path) => {
                let named = tempfile::Builder::new()
                    .prefix(".tenure-")
                    .tempfile_in(folder)
                    .map_err(TierError::system(medium, "create"))?;
                let (file, name) = named.into_parts();
                (file, Some((name, path)))
            }
        };
        allocate_file(medium, folder, &file, bytes)?;
        // Only a file system that maps persistent memory directly (DAX) accepts `SYNC`.
        let direct = Self::map(medium, &file, bytes, MapFlags::SHARED_VALIDATE | MapFlags::SYNC, Nature::DaxFile);
        let mut region = direct.or_else(|_| {
            let file_system = file_system(folder);
            Self::map(medium, &file, bytes, MapFlags::SHARED, Nature::Emulated { file_system })
        })?;
        // The name comes last: if an earlier step fails, the file without a name is gone.
        if let Some((name, path)) = name {
            let metadata = file.metadata().map_err(TierError::system(medium, "stat"))?;
            let absolute = std::path::absolute(path).map_err(TierError::system(medium, "getcwd"))?;
            name.persist_noclobber(path).map_err(|error| match error.error.kind() {
                io::ErrorKind::AlreadyExists => TierError::Exists { path: path.into() },
                _ => TierError::system(medium, "link")(error.error),
            })?;
            region.named = Some(NamedFile { path: absolute, device: metadata.dev(), inode: metadata.ino() });
        }
        Ok(region)
    }

    /// Maps the first `bytes` bytes of a file.
    fn map(medium: &Medium, file: &File, bytes: u64, flags: MapFlags, nature: Nature) -> Result<Self, TierError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the address.
        let mapped = unsafe { mmap(ptr::null_mut(), bytes as usize, access, flags, file, 0) };
        let mapped = mapped.map_err(TierError::system(medium, "mmap"))?;
        Ok(Self::of_mapping(mapped.cast(), bytes, nature))
    }

    /// Returns the region of a mapping that was just made.
    fn of_mapping(start: *mut u8, bytes: u64, nature: Nature) -> Self {
        // The system maps nothing at address 0 unless it is asked to.
        let start = NonNull::new(start).unwrap_or(NonNull::dangling());
        start.as_ptr().expose_provenance();
        let mut region = Self { start, bytes, nature, named: None, mapped: None };
        region.mapped = system::mapped(&region.addresses()).ok().flatten();
        region
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that was made. No block is left in it, as each block keeps the tier.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes as usize) };
    }
}

/// Rounds `capacity` down to a multiple of `alignment`. Returns an error if nothing is left.
fn round_down(medium: &Medium, capacity: u64, alignment: u64) -> Result<u64, TierError> {
    let bytes = capacity / alignment * alignment;
    match usize::try_from(bytes) {
        Ok(1..) => Ok(bytes),
        _ => Err(TierError::TooSmall { what: medium.to_string(), capacity, alignment }),
    }
}

/// Allocates room for `bytes` bytes of a file in its file system.
fn allocate_file(medium: &Medium, folder: &Path, file: &File, bytes: u64) -> Result<(), TierError> {
    let free = || fstatvfs(file).map_or(0, |system| system.f_bavail.saturating_mul(system.f_frsize));
    let no_room = || TierError::NoRoom { path: PathBuf::from(folder), capacity: bytes, available: free() };
    // Avoids filling a file system that has too little room.
    if free() < bytes {
        return Err(no_room());
    }
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::FBIG | Errno::DQUOT) => Err(no_room()),
        Err(error) => Err(TierError::system(medium, "fallocate")(error)),
    }
}

/// Returns the name of a folder's file system.
fn file_system(folder: &Path) -> String {
    let kinds = [
        (system::TMPFS, "tmpfs"),
        (0xef53, "ext4"),
        (0x5846_5342, "xfs"),
        (0x9123_683e, "btrfs"),
        (0x794c_7630, "overlayfs"),
        (0x6969, "nfs"),
    ];
    let Ok(kind) = system::file_system(folder) else { return "an unknown file system".into() };
    kinds
        .iter()
        .find(|(number, _)| *number == kind)
        .map_or_else(|| format!("a file system of kind {kind:#x}"), |(_, name)| (*name).into())
}
