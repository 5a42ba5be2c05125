//! `tenure models export`, run as its users run it.

use std::process::{Command, Output};

fn tenure(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure")).args(args).output().unwrap()
}

#[test]
fn the_starter_models_are_written_as_onnx_models() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    let models = models.to_str().unwrap();
    // Without a `PATH`, no installed encoder is found.
    let made = Command::new(env!("CARGO_BIN_EXE_tenure")).args(["models", "init", models]).env_remove("PATH").output();
    assert!(made.unwrap().status.success());
    for (model, weight) in [
        ("digits", "layer1.0.conv1.weight"),
        ("next-byte", "embed_tokens.weight"),
        ("tiny-sentences", "word_embeddings"),
    ] {
        let file = folder.path().join(format!("{model}.onnx"));
        let output = tenure(&["models", "export", models, model, "--onnx", file.to_str().unwrap()]);
        assert!(output.status.success(), "{model}: {}", String::from_utf8_lossy(&output.stderr));
        let bytes = std::fs::read(&file).unwrap();
        let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(has("batch") && has(weight), "{model}");
    }
    let output = tenure(&["models", "export", models, "nothing", "--onnx", "nothing.onnx"]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.ends_with("no model is called \"nothing\"\n"), "{complaint}");
}
