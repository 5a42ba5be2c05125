//! `tenure bench switch` and `tenure bench serve`, run as their users run them.

use std::fs;
use std::process::Command;

use serde_json::Value;

fn switch(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_tenure")).args(["bench", "switch", "--repeats", "7"]).args(args).output().unwrap()
}

#[test]
fn each_model_is_a_line_whose_answers_are_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let figure = folder.path().join("switch.svg");
    let report = folder.path().join("switch.html");
    let figure = figure.to_str().unwrap();
    let report = report.to_str().unwrap();
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

fn serve(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_tenure")).args(["bench", "serve"]).args(args).output().unwrap()
}

#[test]
fn each_request_of_a_load_is_answered_as_its_model_answers() {
    let folder = tempfile::tempdir().unwrap();
    let figure = folder.path().join("serve.svg");
    let report = folder.path().join("serve.html");
    let weights = folder.path().join("weights");
    fs::create_dir_all(&weights).unwrap();
    for load in ["cycles", "poisson", "zipf"] {
        let [figure, report, weights] = [&figure, &report, &weights].map(|path| path.to_str().unwrap());
        let files = ["--folder", weights, "--figure", figure, "--report", report];
        let load_args = [
            "--load",
            load,
            "--model",
            "linear",
            "--models",
            "3",
            "--rate",
            "40",
            "--seconds",
            "0.5",
            "--cycle",
            "0.1",
        ];
        let output = serve(&[&load_args[..], &files, &["--deadline-ms", "1e8", "--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        let count = |name: &str| row[name].as_u64().unwrap();
        assert!(count("requests") > 0 && count("answered") == count("requests"), "{row}");
        assert_eq!(["refused", "failed", "wrong", "late"].map(count), [0; 4], "{row}");
        let computed = |weights: &str| row[weights]["requests"].as_u64().unwrap();
        assert_eq!(computed("resident") + computed("switched"), count("answered"), "{row}");
        assert!(
            computed("switched") > 0 && count("switches") > 0,
            "the first request of each model waits for it: {row}"
        );
        assert!(row["p50_ms"].as_f64() <= row["max_ms"].as_f64(), "{row}");
    }
    assert!(fs::read_dir(&weights).unwrap().next().is_none(), "nothing is left of the models");
    assert!(fs::read_to_string(figure).unwrap().contains("linear-0"));
    assert!(fs::read_to_string(report).unwrap().contains("<svg"));
}

#[test]
fn a_closed_load_is_measured_beside_a_bare_server() {
    let output = serve(&["--load", "closed", "--connections", "4", "--seconds", "1", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> =
        str::from_utf8(&output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["encoding"].as_str().unwrap()).collect::<Vec<_>>(), ["json", "binary"]);
    for row in &rows {
        assert!(row["requests"].as_u64().unwrap() > 0, "{row}");
        assert_eq!((row["wrong"].as_u64(), row["unanswered"].as_u64()), (Some(0), Some(0)), "{row}");
    }
}

#[test]
fn a_load_that_cannot_be_is_refused() {
    for (args, said) in [
        (&["--url", "localhost:8000"][..], "tenure: --url localhost:8000: expected http://HOST:PORT"),
        (&["--load", "closed", "--url", "http://localhost:1"], "tenure: --load closed serves a model of its own"),
        (&["--load", "closed", "--figure", "f.svg"], "tenure: --load closed has no latencies over time"),
        (&["--folder", "/nowhere"], "tenure: /nowhere"),
        (&["--rate", "0"], "error: invalid value '0'"),
    ] {
        let output = serve(args);
        assert_eq!(output.status.code(), Some(2));
        assert!(str::from_utf8(&output.stderr).unwrap().starts_with(said), "{output:?}");
    }
}
