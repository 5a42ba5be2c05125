//! What was learned, as a file: JSON, with a version, written whole or not at all.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tenure_plan::{Problem, ProblemError};

use super::{Given, Observation, Program};

const FORMAT: &str = "tenure-learned";
const VERSION: u64 = 1;

/// Why what was learned cannot be taken up or kept. Always one line.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct LearnedError {
    /// The file.
    path: PathBuf,
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("nothing learned is here: {0}: name another file, or remove it to begin anew")]
    Json(#[from] serde_json::Error),
    #[error(
        "nothing learned is here: it is {format:?} of version {version}, not {FORMAT:?} of version {VERSION}: name another file, or remove it to begin anew"
    )]
    Version { format: String, version: u64 },
    #[error("a problem in it: {0}")]
    Problem(#[from] ProblemError),
    #[error("times or places in it are of another problem: remove it to begin anew")]
    Mismatch,
}

#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    format: String,
    version: u64,
    programs: Vec<WrittenProgram>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenProgram {
    problem: Box<RawValue>,
    given: VecDeque<Given>,
    observations: Vec<Observation>,
    reports: u64,
}

/// What was learned; nothing if there is no file.
pub(super) fn read(path: &Path) -> Result<VecDeque<Program>, LearnedError> {
    let read = || -> Result<VecDeque<Program>, Reason> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(VecDeque::new()),
            text => text?,
        };
        let Head { format, version } = serde_json::from_str(&text)?;
        if (&*format, version) != (FORMAT, VERSION) {
            return Err(Reason::Version { format, version });
        }
        let written: Written = serde_json::from_str(&text)?;
        written.programs.into_iter().map(program).collect()
    };
    read().map_err(|reason| LearnedError { path: path.to_owned(), reason })
}

/// Writes beside the file and takes its place when everything is there.
pub(super) fn write(path: &Path, programs: &VecDeque<Program>) -> Result<(), LearnedError> {
    let write = || -> Result<(), Reason> {
        let programs = programs.iter().map(written).collect::<Result<_, Reason>>()?;
        let text = serde_json::to_vec(&Written { format: FORMAT.into(), version: VERSION, programs })?;
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".new");
        let mut file = File::create(&unfinished)?;
        file.write_all(&text)?;
        file.sync_all()?;
        Ok(fs::rename(&unfinished, path)?)
    };
    write().map_err(|reason| LearnedError { path: path.to_owned(), reason })
}

fn written(program: &Program) -> Result<WrittenProgram, Reason> {
    let problem = RawValue::from_string(program.problem.to_json()?)?;
    let Program { given, observations, reports, .. } = program;
    Ok(WrittenProgram { problem, given: given.clone(), observations: observations.clone(), reports: *reports })
}

/// A file's program, if all its numbers are of its problem.
fn program(written: WrittenProgram) -> Result<Program, Reason> {
    let WrittenProgram { problem, given, observations, reports } = written;
    let problem = Problem::from_json(problem.get())?;
    let (tensors, tiers) = (problem.tensors().len(), problem.tiers().len());
    let mut places = given.iter().map(|given| &given.places).chain(observations.iter().map(|known| &known.places));
    let are_places = places.all(|places| places.len() == tensors && places.iter().all(|tier| *tier < tiers));
    let kernels = problem.kernels().len();
    let are_times = (observations.iter()).all(|known| {
        let is_time = |ns: &f64| (0.0..1e30).contains(ns);
        known.kernels_ns.len() == kernels && known.kernels_ns.iter().chain([&known.step_ns]).all(is_time)
    });
    if !are_places || !are_times {
        return Err(Reason::Mismatch);
    }
    Ok(Program { problem, given, observations, reports })
}
