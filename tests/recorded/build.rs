//! Tells the tests whether the recorded programs are beside the repository: without them, the tests are ignored.

use std::path::Path;

fn main() {
    let shared = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared"));
    println!("cargo::rerun-if-changed={}", shared.display());
    println!("cargo::rustc-check-cfg=cfg(has_programs)");
    if ["traces", "instances"].iter().all(|folder| shared.join(folder).is_dir()) {
        println!("cargo::rustc-cfg=has_programs");
    }
}
