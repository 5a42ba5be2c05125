//! Checks the commands of the documents: the program knows every command and option that they show.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;

use crate::args::Args;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// README and all documents under `docs`.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    let mut folders = vec![root.join("docs")];
    let mut documents = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension() == Some(OsStr::new("md")) {
                documents.push(path);
            }
        }
    }
    documents
}

/// The lines of a document's blocks of shell, where a line that ends with `\` goes on.
fn shell_lines(document: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut is_shell = false;
    let mut continued = String::new();
    for line in document.lines() {
        if line.starts_with("```") {
            is_shell = line == "```sh";
        } else if is_shell {
            match line.strip_suffix('\\') {
                Some(begin) => continued += begin,
                None => lines.push(std::mem::take(&mut continued) + line),
            }
        }
    }
    lines
}

#[test]
fn the_program_knows_every_command_that_the_documents_show() {
    let mut count = 0;
    for path in documents() {
        for line in shell_lines(&fs::read_to_string(&path).unwrap()) {
            // `tenure x && tenure y`, with variables and `cargo run --release --` in place of the name.
            let line = line.replace("cargo run --release -- ", "tenure ");
            for command in line.split("&&").filter(|command| command.contains("tenure ")) {
                let words = shlex::split(command).unwrap_or_else(|| panic!("{}: {command}", path.display()));
                let words = words.into_iter().skip_while(|word| word.contains('='));
                let words: Vec<String> =
                    words.take_while(|word| !matches!(word.as_str(), "|" | ">" | "&" | "<")).collect();
                if words.first().is_none_or(|word| word != "tenure") {
                    continue;
                }
                count += 1;
                if let Err(error) = Args::try_parse_from(&words)
                    && error.use_stderr()
                {
                    panic!("{}: {command}\n{error}", path.display());
                }
            }
        }
    }
    assert!(count > 30, "only {count} commands were found");
}
