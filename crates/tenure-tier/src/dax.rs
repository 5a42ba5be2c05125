//! The size and page size of DAX devices, read from the system.

use std::fs;
use std::path::Path;

/// The size in bytes of a DAX device, and of the pages that it is mapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DaxDevice {
    pub(crate) bytes: u64,
    pub(crate) alignment: u64,
}

/// The folder in which the system describes character devices.
pub(crate) const CHARACTER_DEVICES: &str = "/sys/dev/char";

/// Finds the DAX device with these numbers, described below `root`. Returns `None` if it is another kind of device.
pub(crate) fn find(root: &Path, major: u32, minor: u32) -> Option<DaxDevice> {
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

    #[test]
    fn a_device_is_described_by_its_numbers() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("252:3");
        fs::create_dir(&folder).unwrap();
        symlink("../../bus/dax", folder.join("subsystem")).unwrap();
        fs::write(folder.join("size"), "137438953472\n").unwrap();
        assert_eq!(find(root.path(), 252, 3), Some(DaxDevice { bytes: 128 << 30, alignment: 2 << 20 }));
        fs::write(folder.join("align"), "1073741824\n").unwrap();
        assert_eq!(find(root.path(), 252, 3), Some(DaxDevice { bytes: 128 << 30, alignment: 1 << 30 }));
        fs::write(folder.join("size"), "many\n").unwrap();
        assert_eq!(find(root.path(), 252, 3), None);
    }

    #[test]
    fn another_device_is_none() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(find(root.path(), 1, 3), None);
        fs::create_dir(root.path().join("1:3")).unwrap();
        symlink("../../class/mem", root.path().join("1:3").join("subsystem")).unwrap();
        assert_eq!(find(root.path(), 1, 3), None);
    }
}
