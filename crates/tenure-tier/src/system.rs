//! Queries of the system about memory, pages, nodes, DAX devices and mappings.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::{fs, ptr};

use tenure_device::host::HostMemory;

/// Returns the size in bytes of a page, the smallest unit that the system maps.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// The magic number of a file system in memory.
pub(crate) const TMPFS: u64 = 0x0102_1994;

/// Returns the magic number of a folder's file system.
pub(crate) fn file_system(folder: &Path) -> io::Result<u64> {
    #[allow(clippy::unnecessary_cast, reason = "the kernel's type differs between architectures")]
    Ok(rustix::fs::statfs(folder)?.f_type as u64 & 0xffff_ffff)
}

/// Returns the bytes of memory that this process may use: the machine's, or the limit of its control groups.
pub fn memory_bytes() -> u64 {
    // SAFETY: this only asks for a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    let machine = u64::try_from(pages).unwrap_or(0) * page_bytes();
    control_groups().map(|group| group.limit).fold(machine, u64::min)
}

/// Returns the bytes of memory that are free or could be freed by writing to a disk.
pub fn available_bytes() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| number_after(&text, "MemAvailable:"));
    let machine = machine.map_or_else(memory_bytes, |kib| kib << 10);
    control_groups().map(|group| group.limit.saturating_sub(group.used)).fold(machine, u64::min)
}

/// Makes the host memory of tensors refuse large blocks that need more than nine tenths of the
/// [available bytes](available_bytes), so that an error says what the system would say by killing a process.
pub fn refuse_unavailable_memory() {
    HostMemory::install();
    if let Some(memory) = HostMemory::installed() {
        memory.refuse_unavailable(|| available_bytes() / 10 * 9);
    }
}

/// The memory limit in bytes of a control group, and the bytes that it uses and that cannot be written to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ControlGroup {
    limit: u64,
    used: u64,
}

/// Returns the process's control groups that limit memory, from the innermost: of version 2, or of version 1's memory
/// controller.
fn control_groups() -> impl Iterator<Item = ControlGroup> {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups: Vec<_> = text.lines().flat_map(|line| control_groups_of(Path::new("/sys/fs/cgroup"), line)).collect();
    groups.into_iter()
}

/// Returns the groups that a line of `/proc/self/cgroup` names, mounted at `root`.
fn control_groups_of(root: &Path, line: &str) -> Vec<ControlGroup> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return Vec::new() };
    let (root, limit, used) = if controllers.is_empty() {
        (root.to_owned(), "memory.max", ["anon ", "shmem "])
    } else if controllers.split(',').any(|name| name == "memory") {
        (root.join("memory"), "memory.limit_in_bytes", ["total_rss ", "total_shmem "])
    } else {
        return Vec::new();
    };
    let group = |path: &Path| {
        let folder = root.join(path);
        let limit = fs::read_to_string(folder.join(limit)).ok()?.trim().parse().ok()?;
        let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let used = used.iter().filter_map(|name| number_after(&statistics, name)).sum();
        Some(ControlGroup { limit, used })
    };
    // A container may see its own group as the root, or the path of a group that it cannot see.
    Path::new(path.trim_start_matches('/')).ancestors().filter_map(group).collect()
}

/// Returns the number after a name at the start of a line.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the online nodes as the system writes them: `0-1`.
pub(crate) fn nodes() -> String {
    fs::read_to_string("/sys/devices/system/node/online").map_or_else(|_| "none".into(), |text| text.trim().into())
}

/// Returns the bytes of memory of a node, or `None` if there is no such node.
pub(crate) fn node_bytes(node: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).ok()?;
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    line.split_whitespace().rev().nth(1)?.parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// Makes the system take the pages of a range from one node only.
pub(crate) fn bind(range: &Range<u64>, node: u32) -> io::Result<()> {
    const WORD_BITS: usize = libc::c_ulong::BITS as usize;
    let mut nodes = vec![0 as libc::c_ulong; node as usize / WORD_BITS + 1];
    nodes[node as usize / WORD_BITS] = 1 << (node as usize % WORD_BITS);
    // SAFETY: this changes the physical pages below the range, which no program can observe. The mask is as long as
    // given (the kernel subtracts one).
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            range.start,
            range.end - range.start,
            libc::c_long::from(libc::MPOL_BIND),
            nodes.as_ptr(),
            nodes.len() * WORD_BITS + 1,
            0,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns whether all pages of a range that exist are on `node`. The system takes later ones from the node that the
/// range is [bound](bind) to.
pub(crate) fn is_on_node(range: &Range<u64>, node: u32) -> io::Result<bool> {
    /// The number of pages in one system call.
    const AT_ONCE: usize = 1 << 12;
    let pages: Vec<u64> = pages(range).collect();
    for pages in pages.chunks(AT_ONCE) {
        let mut found = [0 as libc::c_int; AT_ONCE];
        // SAFETY: this asks where pages are. `found` has room for each answer, and the addresses are not read.
        let result = unsafe {
            let nodes = ptr::null::<libc::c_int>();
            libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), nodes, found.as_mut_ptr(), 0)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        if found[..pages.len()].iter().any(|found| *found >= 0 && found.cast_unsigned() != node) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the bytes of a range's pages that are resident.
pub(crate) fn resident_bytes(range: &Range<u64>) -> io::Result<u64> {
    let page = page_bytes();
    let start = range.start / page * page;
    let mut found = vec![0_u8; pages(range).count()];
    // SAFETY: this asks which pages are resident, and `found` has room for each answer.
    let result = unsafe {
        libc::mincore(ptr::without_provenance_mut(start as usize), (range.end - start) as usize, found.as_mut_ptr())
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(found.iter().filter(|found| **found & 1 == 1).count() as u64 * page)
}

/// Returns the start addresses of the pages that a range touches.
fn pages(range: &Range<u64>) -> impl Iterator<Item = u64> {
    let page = page_bytes();
    (range.start / page..range.end.div_ceil(page)).map(move |number| number * page)
}

/// The mapping that the system reports at an address: a device and an inode, or `0` for anonymous memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    device: String,
    inode: String,
}

/// Returns the mapping of a range, if all of it is mapped and belongs to one file or to anonymous memory.
pub(crate) fn mapped(range: &Range<u64>) -> io::Result<Option<Mapped>> {
    Ok(mapped_in(&fs::read_to_string("/proc/self/maps")?, range))
}

/// Finds the mapping of a range in a list in the form of `/proc/self/maps`.
fn mapped_in(list: &str, range: &Range<u64>) -> Option<Mapped> {
    let mut checked_to = range.start;
    let mut found = None;
    for line in list.lines() {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).ok());
        let start = start?;
        let end = end?;
        if end <= checked_to || checked_to >= range.end {
            continue;
        }
        if start > checked_to {
            return None;
        }
        let mut fields = fields.skip(2).map(str::to_owned);
        let mapping = Mapped { device: fields.next()?, inode: fields.next()? };
        if found.get_or_insert_with(|| mapping.clone()) != &mapping {
            return None;
        }
        checked_to = end;
    }
    found.filter(|_| checked_to >= range.end)
}

/// The size in bytes of a DAX device, and of the pages that it is mapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DaxDevice {
    pub(crate) bytes: u64,
    pub(crate) alignment: u64,
}

/// The folder in which the system describes character devices.
pub(crate) const CHARACTER_DEVICES: &str = "/sys/dev/char";

/// Finds the DAX device with these numbers, described below `root`. Returns `None` if it is another kind of device.
pub(crate) fn find_dax_device(root: &Path, major: u32, minor: u32) -> Option<DaxDevice> {
    let folder = root.join(format!("{major}:{minor}"));
    let subsystem = fs::read_link(folder.join("subsystem")).ok()?;
    if subsystem.file_name()? != "dax" {
        return None;
    }
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // Kernels before 5.11 do not report the alignment. It is that of huge pages unless the device was created
    // otherwise.
    let alignment = number("align").filter(|bytes| bytes.is_power_of_two()).unwrap_or(2 << 20);
    Some(DaxDevice { bytes: number("size")?, alignment })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const LIST: &str = "\
1000-3000 rw-s 00000000 00:1b 77 /mnt/a file (deleted)
3000-4000 rw-s 00002000 00:1b 77 /mnt/a file (deleted)
4000-5000 rw-p 00000000 00:00 0
6000-7000 rw-p 00000000 00:00 0";

    #[test]
    fn a_range_is_one_thing_without_a_gap_or_is_nothing() {
        let file = Some(Mapped { device: "00:1b".into(), inode: "77".into() });
        assert_eq!(mapped_in(LIST, &(0x1000..0x4000)), file);
        assert_eq!(mapped_in(LIST, &(0x2fff..0x3001)), file);
        for range in [0x0..0x2000, 0x3000..0x5000, 0x4000..0x7000, 0x6000..0x8000, 0x9000..0xa000] {
            assert_eq!(mapped_in(LIST, &range), None, "{range:x?}");
        }
    }

    #[test]
    fn the_limit_of_each_control_group_is_found() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("memory.max", "max\n");
        write("jobs/memory.max", "4096\n");
        write("jobs/one/memory.max", "max\n");
        write("jobs/memory.stat", "anon 1000\nfile 500\nshmem 24\nanon_thp 9\n");
        let found = control_groups_of(root.path(), "0::/jobs/one");
        assert_eq!(found, [ControlGroup { limit: 4096, used: 1024 }]);
        write("memory/a/memory.limit_in_bytes", "8192\n");
        let found = control_groups_of(root.path(), "5:cpu,memory:/a");
        assert_eq!(found, [ControlGroup { limit: 8192, used: 0 }]);
        for none in ["5:cpu:/a", "0::/", "0::/elsewhere", "", "0"] {
            assert_eq!(control_groups_of(root.path(), none), [], "{none}");
        }
    }

    #[test]
    fn pages_that_were_touched_are_resident() {
        let page = page_bytes();
        let bytes = vec![1_u8; 8 * page as usize];
        let start = (bytes.as_ptr().addr() as u64).next_multiple_of(page);
        assert_eq!(resident_bytes(&(start..start + 4 * page)).unwrap(), 4 * page);
        assert_eq!(mapped(&(start..start + page)).unwrap().unwrap().inode, "0");
    }

    #[test]
    fn a_dax_device_is_described_by_its_numbers() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("252:3");
        fs::create_dir(&folder).unwrap();
        symlink("../../bus/dax", folder.join("subsystem")).unwrap();
        fs::write(folder.join("size"), "137438953472\n").unwrap();
        assert_eq!(find_dax_device(root.path(), 252, 3), Some(DaxDevice { bytes: 128 << 30, alignment: 2 << 20 }));
        fs::write(folder.join("align"), "1073741824\n").unwrap();
        assert_eq!(find_dax_device(root.path(), 252, 3), Some(DaxDevice { bytes: 128 << 30, alignment: 1 << 30 }));
        fs::write(folder.join("size"), "many\n").unwrap();
        assert_eq!(find_dax_device(root.path(), 252, 3), None);
    }

    #[test]
    fn another_device_is_not_a_dax_device() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(find_dax_device(root.path(), 1, 3), None);
        fs::create_dir(root.path().join("1:3")).unwrap();
        symlink("../../class/mem", root.path().join("1:3").join("subsystem")).unwrap();
        assert_eq!(find_dax_device(root.path(), 1, 3), None);
    }
}
