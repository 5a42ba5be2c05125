//! Tests of trace files: formats are detected by content, errors name the file, and no file is half written.

use std::fs;

use crate::common::event;
use tenure_plan::packing::PackingProblem;
use tenure_plan::{Format, Mapping, Problem, Settings, Trace, TraceAction};

fn trace() -> Trace {
    Trace::new("model", 0, Settings::default(), vec![event(TraceAction::Alloc, 512, 8)]).unwrap()
}

#[test]
fn the_sample_of_the_repository_is_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/resnet50_step.pickle.xz");
    let trace = Trace::read(path).unwrap();
    let summary = trace.summary();
    assert_eq!(trace.source(), "resnet50_step");
    assert_eq!((summary.events, summary.allocations, summary.segments), (2914, 1259, 111));
    assert_eq!(summary.peak_requested_bytes, 5_954_812_784);
}

#[test]
fn every_format_is_told_by_its_content() {
    let folder = tempfile::tempdir().unwrap();
    for format in Format::ALL {
        let path = folder.path().join("model");
        trace().write(&path, format).unwrap();
        assert_eq!(Trace::read(&path).unwrap(), trace(), "{format:?}");
    }
}

#[test]
fn a_format_is_chosen_by_the_end_of_a_name() {
    for format in Format::ALL {
        assert_eq!(Format::from_path(format!("a.b/model{}", format.extension())), Some(format));
    }
    assert_eq!(Format::from_path("model.pkl"), None);
}

#[test]
fn a_snapshot_is_named_after_its_file() {
    let folder = tempfile::tempdir().unwrap();
    for (file, source) in [("a.pickle", "a"), ("b.pickle.xz", "b"), ("c.v1", "c.v1"), (".pickle", ".pickle")] {
        let path = folder.path().join(file);
        trace().write(&path, Format::Pickle).unwrap();
        assert_eq!(Trace::read(path).unwrap().source(), source);
    }
}

#[test]
fn an_error_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.pickle");
    fs::write(&path, "{}").unwrap();
    let expected = "it is JSON, not a PyTorch memory snapshot: save one with torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")";
    assert_eq!(Trace::read(&path).unwrap_err().to_string(), format!("{}: {expected}", path.display()));
    let missing = folder.path().join("missing");
    let message = Trace::read(&missing).unwrap_err().to_string();
    assert!(message.starts_with(&format!("{}: No such file", missing.display())), "{message}");
}

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

#[test]
fn a_write_that_fails_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    let message = trace().write(&taken, Format::Compact).unwrap_err().to_string();
    assert!(message.starts_with(&taken.display().to_string()), "{message}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[cfg(unix)]
#[test]
fn a_link_leads_to_the_file_that_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let link = folder.path().join("link");
    fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    trace().write(&link, Format::Compact).unwrap();
    assert_eq!(Trace::read(&file).unwrap(), trace());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[cfg(unix)]
#[test]
fn a_new_file_can_be_read_by_those_whom_the_umask_lets() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ours");
    let any = folder.path().join("any");
    trace().write(&ours, Format::Compact).unwrap();
    fs::write(&any, "").unwrap();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(ours), mode(any));
}
