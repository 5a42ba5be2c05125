//! `tenure bench switch`, run as its users run it.

use std::fs;
use std::process::Command;

use serde_json::Value;

fn switch(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_tenure")).args(["bench", "switch", "--repeats", "7"]).args(args).output().unwrap()
}

#[test]
fn each_model_is_a_line_whose_answers_are_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (figure, report) = (folder.path().join("switch.svg"), folder.path().join("switch.html"));
    let (figure, report) = (figure.to_str().unwrap(), report.to_str().unwrap());
    for device in [&["--device", "cpu"][..], &["--device", "cuda", "--driver", "sim"]] {
        let weights = folder.path().join("weights");
        fs::create_dir_all(&weights).unwrap();
        let files = ["--folder", weights.to_str().unwrap(), "--figure", figure, "--report", report];
        let output = switch(&[&["--model", "tiny", "--json"], device, &files].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines: Vec<&str> = str::from_utf8(&output.stdout).unwrap().lines().collect();
        let [line] = lines[..] else { panic!("{lines:?}") };
        let row: Value = serde_json::from_str(line).unwrap();
        assert_eq!((row["model"].as_str(), row["equal"].as_bool()), (Some("tiny"), Some(true)), "{row}");
        for name in ["ready_ms", "cold_ms", "resident_ms", "compute_ms", "whole_ms", "per_layer_ms", "per_block_ms"] {
            assert!(row[name].as_f64().is_some_and(|ms| ms >= 0.0), "{name}: {row}");
        }
        for name in ["bytes", "groups", "peak_bytes"] {
            assert!(row[name].as_u64().is_some_and(|count| count > 0), "{name}: {row}");
        }
        assert!(row["peak_bytes"].as_u64() >= row["bytes"].as_u64(), "{row}");
        assert_eq!(row["no_pool_ms"].is_null(), device[1] == "cpu", "{row}");
        assert!(fs::read_dir(&weights).unwrap().next().is_none(), "nothing is left of the weights");
        assert!(fs::read_to_string(figure).unwrap().contains("tiny"));
        assert!(fs::read_to_string(report).unwrap().contains("<svg"));
    }
    let output = switch(&["--model", "tiny", "--folder", "/nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(str::from_utf8(&output.stderr).unwrap().starts_with("tenure: /nowhere"), "{output:?}");
}
