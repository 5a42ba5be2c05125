//! Tests of a learner's file: which files are accepted, and by how many agents.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use tenure_agent::{Learner, Marl};

fn open(path: &Path) -> Result<Learner, String> {
    Learner::open(Marl::trained().unwrap(), path).map_err(|error| error.to_string())
}

/// Returns the one-line message that says why the file is not accepted.
fn complaint(path: &Path) -> String {
    let complaint = open(path).err().unwrap();
    assert!(complaint.starts_with(&format!("{}: ", path.display())), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    complaint
}

#[test]
fn a_file_that_another_agent_learns_into_is_refused_until_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("learned.json");
    let first = open(&path).unwrap();
    assert!(complaint(&path).ends_with("another agent writes this file: name another one"));
    drop(first);
    assert!(open(&path).is_ok());
}

#[test]
fn the_file_is_there_from_the_start_for_its_user_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("learned.json");
    for _ in 0..2 {
        drop(open(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }
}

#[test]
fn a_link_leads_to_the_file_that_is_learned_into() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("learned.json");
    let link = folder.path().join("link.json");
    drop(open(&file).unwrap());
    symlink(&file, &link).unwrap();
    drop(open(&link).unwrap());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn a_file_that_cannot_be_written_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let complaint = complaint(&folder.path().join("missing/learned.json"));
    assert!(complaint.contains("it cannot be written: "), "{complaint}");
    assert!(complaint.ends_with("name a file in a folder that you may write to"), "{complaint}");
}

#[test]
fn another_file_is_refused_and_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("learned.json");
    let others: [(&[u8], &str); 7] = [
        (br#"{"format": "tenure-learned", "version": 2, "programs": []}"#, "version 2"),
        (br#"{"format": "tenure-mapping", "version": 1}"#, "tenure-mapping"),
        (br#"{"format": "tenure-learned", "version": 1, "a\nb": 1, "programs": []}"#, "unknown field"),
        (b"{}", "missing field `format`"),
        (b"learned", "expected value"),
        (b"\x7fELF\xff\0", "expected value"),
        (b"", "it is empty"),
    ];
    for (bytes, says) in others {
        fs::write(&path, bytes).unwrap();
        let complaint = complaint(&path);
        assert!(
            complaint.contains(": the file does not hold learned costs: ") && complaint.contains(says),
            "{complaint}"
        );
        assert!(complaint.ends_with("name another file, or remove this one to begin anew"), "{complaint}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
    assert!(complaint(folder.path()).contains("the file does not hold learned costs: it is a folder or a device"));
}
