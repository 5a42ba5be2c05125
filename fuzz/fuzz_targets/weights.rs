//! Takes any bytes as a safetensors file, with the header's length corrected, and as an index of such files.
#![no_main]

use std::path::Path;
use std::{env, fs, process};

use libfuzzer_sys::fuzz_target;
use tenure_nn::Source;
use tenure_nn::checkpoint::{Checkpoint, Weights};

fuzz_target!(|bytes: &[u8]| {
    let folder = env::temp_dir().join(format!("tenure-fuzz-weights-{}", process::id()));
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    let file = folder.join("model.safetensors");
    // The header ends where its object does.
    let header = bytes.iter().rposition(|byte| *byte == b'}').map_or(0, |last| last + 1) as u64;
    for content in [bytes, &[&header.to_le_bytes(), bytes].concat()] {
        fs::write(&file, content).expect("a temporary file");
        read(&file);
        // It fails, or reports the run's progress.
        let _ = Checkpoint::open(&file).map(|checkpoint| checkpoint.progress().step);
    }
    let index = folder.join("model.safetensors.index.json");
    fs::write(&index, bytes).expect("a temporary file");
    read(&index);
});

fn read(path: &Path) {
    let Ok(weights) = Weights::open(path) else { return };
    for name in weights.names() {
        let sizes = weights.sizes(&name).expect("what it names, it has");
        // Its dtype may be unknown.
        if let Ok(tensor) = weights.tensor(&name) {
            assert_eq!(tensor.sizes(), sizes);
            assert_eq!(tensor.to_bytes().expect("no more than the file").len(), tensor.numel() * tensor.dtype().size());
        }
    }
}
