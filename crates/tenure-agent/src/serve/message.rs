//! Messages: what frames say, as JSON.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tenure_plan::planner::{Objective, PlannerOptions};
use tenure_plan::{Problem, ProblemError};

use super::frame::FrameError;
use crate::{Measured, ReportError};

/// The longest search that can be asked for, in seconds.
pub const MAX_SECONDS: f64 = 3600.0;

/// How a problem is to be planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Who plans, by name; if nobody is named, whom the agent prefers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planner: Option<String>,
    /// How long to search, in seconds, up to [`MAX_SECONDS`].
    pub seconds: f64,
    /// Where random numbers begin.
    pub seed: u64,
    /// Plans that may be tried, if they are limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluations: Option<u64>,
    /// Bytes of the first tier, if not what the problem says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_bytes: Option<u64>,
}

impl Default for Options {
    /// Whoever the agent prefers, for ten seconds.
    fn default() -> Self {
        Self { planner: None, seconds: 10.0, seed: 0, evaluations: None, fast_bytes: None }
    }
}

/// A problem, and how it is to be planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    problem: Problem,
    options: Options,
    time_limit: Duration,
}

/// Where an answer is, and what the agent says of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// The mapping's file, by its whole path.
    pub mapping: PathBuf,
    /// Who planned.
    pub planner: String,
    /// The share of accessed bytes that the first tier serves, 0 to 1.
    pub score: f64,
    /// From the beginning of the first kernel to the end of the last, in µs of the simulator.
    pub makespan_us: f64,
    /// Plans tried.
    pub evaluations: u64,
    /// How long it took.
    pub seconds: f64,
}

/// How an agent uses measured times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learned {
    /// Whether its next answers for the program follow from them.
    pub learns: bool,
    /// Reports on the program that it has learned from.
    pub reports: u64,
    /// The same for people, in one line.
    pub message: String,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs: one of those of `docs/agent-protocol.md`.
    pub code: String,
    /// For people, in one line.
    pub message: String,
}

/// Why a body is no request. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Not JSON, or of another form.
    #[error("no request: {}", .0.to_string().replace('\n', " "))]
    Json(#[from] serde_json::Error),
    /// No problem.
    #[error("the request's problem: {}", .0.to_string().replace('\n', " "))]
    Problem(#[from] ProblemError),
    /// A time that cannot be.
    #[error("{0} seconds cannot be asked for: from 0 to {MAX_SECONDS} can")]
    Seconds(f64),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(default)]
    options: Options,
    #[serde(borrow)]
    problem: &'a RawValue,
}

impl Request {
    /// A request to plan `problem`, with as many bytes in the first tier as the options say.
    ///
    /// # Errors
    /// [`MessageError::Seconds`].
    pub fn new(problem: Problem, options: Options) -> Result<Self, MessageError> {
        let known = (0.0..=MAX_SECONDS).contains(&options.seconds);
        let time_limit = known.then(|| Duration::from_secs_f64(options.seconds));
        let time_limit = time_limit.ok_or(MessageError::Seconds(options.seconds))?;
        let problem = match options.fast_bytes {
            Some(bytes) => problem.with_fast_bytes(bytes),
            None => problem,
        };
        Ok(Self { problem, options, time_limit })
    }

    /// The request that a frame's body says.
    ///
    /// # Errors
    /// One line that says what is wrong with it.
    pub fn from_json(body: &[u8]) -> Result<Self, MessageError> {
        let Body { options, problem } = serde_json::from_slice(body)?;
        Self::new(Problem::from_json(problem.get())?, options)
    }

    /// A frame's body.
    ///
    /// # Errors
    /// None that is known of: what JSON cannot say, problems do not.
    pub fn to_json(&self) -> Result<Vec<u8>, MessageError> {
        let problem = RawValue::from_string(self.problem.to_json()?)?;
        Ok(serde_json::to_vec(&Body { options: self.options.clone(), problem: &problem })?)
    }

    /// What is planned.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// How it is planned.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// How long to search.
    pub fn time_limit(&self) -> Duration {
        self.time_limit
    }

    /// For a planner: tensors stay where they are, as a mapping has it.
    pub fn planner_options(&self) -> PlannerOptions {
        let Options { seed, evaluations, .. } = self.options;
        PlannerOptions { objective: Objective::Score, time_limit: self.time_limit, evaluations, seed }
    }
}

impl Measured {
    /// The report that a frame's body says.
    ///
    /// # Errors
    /// One line that says what is wrong with it.
    pub fn from_json(body: &[u8]) -> Result<Self, MessageError> {
        Ok(serde_json::from_slice(body)?)
    }

    /// A frame's body.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub fn to_json(&self) -> Result<Vec<u8>, MessageError> {
        Ok(serde_json::to_vec(self)?)
    }
}

impl Refusal {
    pub(super) fn new(code: &str, reason: impl ToString) -> Self {
        Self { code: code.into(), message: reason.to_string().replace(['\n', '\r'], " ") }
    }
}

impl From<FrameError> for Refusal {
    fn from(error: FrameError) -> Self {
        let code = match error {
            FrameError::Magic { .. } => "magic",
            FrameError::Version { .. } => "version",
            FrameError::Kind { .. } => "kind",
            FrameError::Length { .. } => "length",
            FrameError::Cut => "cut",
            FrameError::Io(_) => "time",
        };
        Self::new(code, error)
    }
}

impl From<ReportError> for Refusal {
    fn from(error: ReportError) -> Self {
        let code = match error {
            ReportError::File(_) => "results",
            _ => "report",
        };
        Self::new(code, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"name": "small", "source": "", "tensors": [{"id": 7, "bytes": 10, "role": "weight"}],
        "kernels": [{"name": "k", "time_ns": 1, "inputs": [7], "outputs": []}]}"#;

    fn request(options: &str) -> Result<Request, MessageError> {
        Request::from_json(format!(r#"{{"options": {options}, "problem": {TRACE}}}"#).as_bytes())
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let options = Options { planner: Some("density".into()), fast_bytes: Some(10), ..Options::default() };
        let request = Request::new(Problem::from_json(TRACE).unwrap(), options).unwrap();
        assert_eq!(Request::from_json(&request.to_json().unwrap()).unwrap(), request);
    }

    #[test]
    fn options_may_be_left_out_and_may_not_be_misspelt() {
        let without = Request::from_json(format!(r#"{{"problem": {TRACE}}}"#).as_bytes()).unwrap();
        assert_eq!(without, request("{}").unwrap());
        assert_eq!(*without.options(), Options::default());
        assert!(request(r#"{"sed": 1}"#).unwrap_err().to_string().contains("unknown field `sed`"));
    }

    #[test]
    fn a_time_that_cannot_be_is_refused() {
        for seconds in ["-1", "3601", "1e300"] {
            let error = request(&format!(r#"{{"seconds": {seconds}}}"#)).unwrap_err();
            assert!(matches!(error, MessageError::Seconds(_)), "{seconds}: {error}");
        }
    }

    #[test]
    fn what_is_said_of_hostile_names_is_one_line() {
        let of_options = request(r#"{"a\nb": 1}"#).unwrap_err();
        let problem = TRACE.replace("\"bytes\"", r#""a\nb""#);
        let of_problem = Request::from_json(format!(r#"{{"problem": {problem}}}"#).as_bytes()).unwrap_err();
        for error in [of_options, of_problem] {
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn a_bad_problem_is_named() {
        let error = Request::from_json(br#"{"problem": {"name": 1}}"#).unwrap_err().to_string();
        assert!(error.starts_with("the request's problem: "), "{error}");
    }
}
