//! The file of a learner: JSON with a version, replaced atomically.

use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tenure_core::atomic_files::write_privately;
use tenure_ipc::{ClaimError, Lock};
use tenure_plan::Problem;

use super::error::{FileProblem, LearnedError};
use super::program::{Given, Observation, Program};

const FORMAT: &str = "tenure-learned";
const VERSION: u64 = 1;

/// The fields by which the format is recognized.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    format: String,
    version: u64,
    programs: Vec<WrittenProgram>,
}

/// A [`Program`] in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenProgram {
    problem: Box<RawValue>,
    given: VecDeque<Given>,
    observations: Vec<Observation>,
    reports: u64,
}

/// An open learner's file. No other agent can use it meanwhile.
pub(super) struct LearnedFile {
    path: PathBuf,
    _lock: Lock,
}

impl LearnedFile {
    /// Opens the file and returns the programs in it, or none if there is no file. Writes the file at once, so that a
    /// file that cannot be written is found before anything is learned.
    pub(super) fn open(path: &Path) -> Result<(Self, VecDeque<Program>), LearnedError> {
        Self::open_and_read(path).map_err(|reason| LearnedError { path: path.to_owned(), reason })
    }

    fn open_and_read(path: &Path) -> Result<(Self, VecDeque<Program>), FileProblem> {
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(FileProblem::Other("it is a folder or a device".into()));
        }
        let lock = Lock::beside(path).map_err(|error| match error {
            ClaimError::Taken { .. } => FileProblem::Locked,
            ClaimError::Failed { reason, .. } => FileProblem::Write(reason),
        })?;
        let programs = read(path)?;
        write(path, &programs)?;
        Ok((Self { path: path.to_owned(), _lock: lock }, programs))
    }

    /// Replaces the file; only its user can read it.
    pub(super) fn write(&self, programs: &VecDeque<Program>) -> Result<(), LearnedError> {
        write(&self.path, programs).map_err(|reason| LearnedError { path: self.path.clone(), reason })
    }
}

/// Reads the programs in a file, or none if there is no file.
fn read(path: &Path) -> Result<VecDeque<Program>, FileProblem> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(VecDeque::new()),
        text => text.map_err(FileProblem::Read)?,
    };
    if text.is_empty() {
        return Err(FileProblem::Other("it is empty".into()));
    }
    let Head { format, version } = serde_json::from_slice(&text)?;
    if (&*format, version) != (FORMAT, VERSION) {
        let reason = format!("it is {format:?} of version {version}, not {FORMAT:?} of version {VERSION}");
        return Err(FileProblem::Other(reason));
    }
    let written: Written = serde_json::from_slice(&text)?;
    written.programs.into_iter().map(program).collect()
}

fn write(path: &Path, programs: &VecDeque<Program>) -> Result<(), FileProblem> {
    let programs = programs.iter().map(written).collect::<Result<_, FileProblem>>()?;
    let text = serde_json::to_vec(&Written { format: FORMAT.into(), version: VERSION, programs })?;
    Ok(write_privately(path, |out| out.write_all(&text))?)
}

/// Converts a program to its form in the file.
fn written(program: &Program) -> Result<WrittenProgram, FileProblem> {
    let problem = RawValue::from_string(program.problem.to_json()?)?;
    let Program { given, observations, reports, .. } = program;
    Ok(WrittenProgram { problem, given: given.clone(), observations: observations.clone(), reports: *reports })
}

/// Converts a program from a file, if all its numbers fit its problem.
fn program(written: WrittenProgram) -> Result<Program, FileProblem> {
    let WrittenProgram { problem, given, observations, reports } = written;
    let problem = Problem::from_json(problem.get())?;
    let tensors = problem.tensors().len();
    let tiers = problem.tiers().len();
    let mut places = given.iter().map(|given| &given.places).chain(observations.iter().map(|known| &known.places));
    let are_places = places.all(|places| places.len() == tensors && places.iter().all(|tier| *tier < tiers));
    let kernels = problem.kernels().len();
    let are_times = observations
        .iter()
        .all(|known| !known.times.is_empty() && known.times.iter().all(|times| times.check(kernels).is_ok()));
    if !are_places || !are_times {
        return Err(FileProblem::Other("times or places in it are of another problem".into()));
    }
    Ok(Program { problem, given, observations, reports })
}
