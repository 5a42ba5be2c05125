//! Messages: the JSON bodies of frames.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tenure_plan::planner::{Objective, PlannerOptions};
use tenure_plan::{Problem, ProblemError};

use super::frame::FrameError;
use crate::{Measured, ReportError};

/// The longest search that can be requested, in seconds.
pub const MAX_SECONDS: f64 = 3600.0;

/// The options of a request: the planner and its limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentOptions {
    /// The name of the planner, or `None` for the agent's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planner: Option<String>,
    /// The search time in seconds, up to [`MAX_SECONDS`].
    pub seconds: f64,
    /// The seed of random numbers.
    pub seed: u64,
    /// The most plans that may be tried, or `None` for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluations: Option<u64>,
    /// The bytes of the first tier, or `None` for the problem's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_bytes: Option<u64>,
}

impl Default for AgentOptions {
    /// The agent's default planner, for ten seconds.
    fn default() -> Self {
        Self { planner: None, seconds: 10.0, seed: 0, evaluations: None, fast_bytes: None }
    }
}

/// A problem, and how to plan it.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentRequest {
    problem: Problem,
    options: AgentOptions,
    time_limit: Duration,
}

/// The answer to a request: the mapping's file and the agent's results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// The absolute path of the mapping's file.
    pub mapping: PathBuf,
    /// The name of the planner.
    pub planner: String,
    /// The share of accessed bytes that the first tier serves, 0 to 1.
    pub score: f64,
    /// The makespan in µs, from the beginning of the first kernel to the end of the last: simulated, or learned from
    /// reports.
    pub makespan_us: f64,
    /// The number of plans tried.
    pub evaluations: u64,
    /// The time that planning took, in seconds.
    pub seconds: f64,
}

/// The answer to a report: how the agent uses measured times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learned {
    /// Whether its next answers for the program depend on them.
    pub learns: bool,
    /// The number of reports on the program that it has learned from.
    pub reports: u64,
    /// The same in one line for users.
    pub message: String,
}

/// The reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRefusal {
    /// The code for programs, one of those in `docs/reference/agent-protocol.md`.
    pub code: String,
    /// The message for users, in one line.
    pub message: String,
}

/// The reason why a body is not a valid request or report. Its message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The body is not JSON, or has another form.
    #[error("no request: {}", .0.to_string().replace('\n', " "))]
    Json(#[from] serde_json::Error),
    /// The problem is invalid.
    #[error("the request's problem: {}", .0.to_string().replace('\n', " "))]
    Problem(#[from] ProblemError),
    /// The time is out of range.
    #[error("{0} seconds are out of range: ask for 0 to {MAX_SECONDS}")]
    Seconds(f64),
}

/// The body of a request.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(default)]
    options: AgentOptions,
    #[serde(borrow)]
    problem: &'a RawValue,
}

impl AgentRequest {
    /// Creates a request to plan `problem`, with the first tier's size from the options.
    ///
    /// # Errors
    /// [`MessageError::Seconds`] if the search time is out of range.
    pub fn new(problem: Problem, options: AgentOptions) -> Result<Self, MessageError> {
        let is_valid = (0.0..=MAX_SECONDS).contains(&options.seconds);
        let time_limit = is_valid.then(|| Duration::from_secs_f64(options.seconds));
        let time_limit = time_limit.ok_or(MessageError::Seconds(options.seconds))?;
        let problem = match options.fast_bytes {
            Some(bytes) => problem.with_fast_bytes(bytes),
            None => problem,
        };
        Ok(Self { problem, options, time_limit })
    }

    /// Parses a request from a frame's body.
    ///
    /// # Errors
    /// [`MessageError`], with a message of one line.
    pub fn from_json(body: &[u8]) -> Result<Self, MessageError> {
        let Body { options, problem } = serde_json::from_slice(body)?;
        Self::new(Problem::from_json(problem.get())?, options)
    }

    /// Returns the frame's body.
    ///
    /// # Errors
    /// None that is known: problems contain only what JSON can represent.
    pub fn to_json(&self) -> Result<Vec<u8>, MessageError> {
        let problem = RawValue::from_string(self.problem.to_json()?)?;
        Ok(serde_json::to_vec(&Body { options: self.options.clone(), problem: &problem })?)
    }

    /// Returns the problem to plan.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Returns the options.
    pub fn options(&self) -> &AgentOptions {
        &self.options
    }

    /// Returns the search time.
    pub fn time_limit(&self) -> Duration {
        self.time_limit
    }

    /// Returns options for a planner. Tensors stay where they are, as in a mapping.
    pub fn planner_options(&self) -> PlannerOptions {
        let AgentOptions { seed, evaluations, .. } = self.options;
        PlannerOptions { objective: Objective::Score, time_limit: self.time_limit, evaluations, seed }
    }
}

impl Measured {
    /// Parses a report from a frame's body.
    ///
    /// # Errors
    /// [`MessageError`], with a message of one line.
    pub fn from_json(body: &[u8]) -> Result<Self, MessageError> {
        Ok(serde_json::from_slice(body)?)
    }

    /// Returns the frame's body.
    ///
    /// # Errors
    /// The path is not UTF-8.
    pub fn to_json(&self) -> Result<Vec<u8>, MessageError> {
        Ok(serde_json::to_vec(self)?)
    }
}

impl AgentRefusal {
    pub(super) fn new(code: &str, reason: impl ToString) -> Self {
        Self { code: code.into(), message: reason.to_string().replace(['\n', '\r'], " ") }
    }
}

impl From<FrameError> for AgentRefusal {
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

impl From<ReportError> for AgentRefusal {
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

    fn request(options: &str) -> Result<AgentRequest, MessageError> {
        AgentRequest::from_json(format!(r#"{{"options": {options}, "problem": {TRACE}}}"#).as_bytes())
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let options = AgentOptions { planner: Some("density".into()), fast_bytes: Some(10), ..AgentOptions::default() };
        let request = AgentRequest::new(Problem::from_json(TRACE).unwrap(), options).unwrap();
        assert_eq!(AgentRequest::from_json(&request.to_json().unwrap()).unwrap(), request);
    }

    #[test]
    fn options_may_be_left_out_and_may_not_be_misspelt() {
        let without = AgentRequest::from_json(format!(r#"{{"problem": {TRACE}}}"#).as_bytes()).unwrap();
        assert_eq!(without, request("{}").unwrap());
        assert_eq!(*without.options(), AgentOptions::default());
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
    fn messages_about_hostile_names_are_one_line() {
        let of_options = request(r#"{"a\nb": 1}"#).unwrap_err();
        let problem = TRACE.replace("\"bytes\"", r#""a\nb""#);
        let of_problem = AgentRequest::from_json(format!(r#"{{"problem": {problem}}}"#).as_bytes()).unwrap_err();
        for error in [of_options, of_problem] {
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn a_bad_problem_is_named() {
        let error = AgentRequest::from_json(br#"{"problem": {"name": 1}}"#).unwrap_err().to_string();
        assert!(error.starts_with("the request's problem: "), "{error}");
    }
}
