//! Tests of files that git-lfs did not fetch.

use std::fs;

use tenure_plan::packing::PackingProblem;
use tenure_plan::{Mapping, Problem, Trace};

#[test]
fn a_pointer_of_git_lfs_is_refused_by_name_by_every_reader() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pointer");
    fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n").unwrap();
    let said = [
        Problem::read(&path).unwrap_err().to_string(),
        Mapping::read(&path).unwrap_err().to_string(),
        PackingProblem::read(&path).unwrap_err().to_string(),
        Trace::read(&path).unwrap_err().to_string(),
    ];
    for message in said {
        assert!(
            message.contains("pointer: this is a git-lfs pointer") && message.contains("git lfs pull"),
            "{message}"
        );
    }
}
