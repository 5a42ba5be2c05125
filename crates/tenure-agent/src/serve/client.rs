//! The client of an agent. It checks every answer.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use tenure_core::Clock;
use tenure_plan::{Mapping, Plan, Problem, simulate};

use super::address::Stream;
use super::connection::Connection;
use super::frame::{Frame, FrameError, Kind, MAX_BODY_BYTES};
use super::{Address, AgentRefusal, AgentRequest, Learned, Placed, ServeError};
use crate::Measured;

/// The time that an answer may take beyond the requested search time.
const EXTRA_TIME: Duration = Duration::from_secs(60);

/// The longest mapping in bytes.
const MAX_MAPPING_BYTES: u64 = MAX_BODY_BYTES as u64;

/// The time that an agent may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The stop flag of a client's connections, which is never set.
static NEVER_STOPPED: AtomicBool = AtomicBool::new(false);

/// A connection to an agent.
pub struct AgentClient {
    address: Address,
    /// `None` after an error on the connection: a late answer would be taken for that of the next request.
    connection: Option<Connection<'static>>,
}

/// An agent's answer, read and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The agent's message.
    pub placed: Placed,
    /// The tier of each tensor, by key.
    pub mapping: Mapping,
    /// The share of accessed bytes that the first tier serves, 0 to 1, by the simulator here.
    pub score: f64,
    /// The makespan of the program in µs, by the simulator here.
    pub makespan_us: f64,
    /// Keys of the problem that have no place in the mapping; these tensors are in the first tier.
    pub unplaced: Vec<String>,
    /// Keys of the mapping that no tensor of the problem has.
    pub unknown: Vec<String>,
}

impl AgentClient {
    /// Connects to the agent at `address`.
    ///
    /// # Errors
    /// [`ServeError::Socket`] if no agent listens there.
    pub fn connect(address: &Address) -> Result<Self, ServeError> {
        Ok(Self { address: address.clone(), connection: Some(connect(address)?) })
    }

    /// Sends a request, waits for the answer, reads the mapping and simulates it. Keys that do not match are reported;
    /// their tensors are in the first tier. Connects again if the connection has ended.
    ///
    /// # Errors
    /// The agent refused, or does not answer within a minute beyond the request's time. Its mapping cannot be read, has
    /// other tiers than the problem, or needs more room than they have.
    pub fn ask(&mut self, request: &AgentRequest) -> Result<Answer, ServeError> {
        let asked = Frame { kind: Kind::Place, body: request.to_json()? };
        let body = self.exchange(&asked, Kind::Placed, request.time_limit() + EXTRA_TIME)?;
        let placed = self.parse_placed(&body)?;
        let mapping = self.read_mapping(&placed.mapping)?;
        let problem = request.problem();
        let outcome = simulate(problem, &plan_of(problem, &mapping)?)?;
        let keys: BTreeSet<&str> = problem.tensors().iter().map(|tensor| tensor.key.as_str()).collect();
        let unplaced = keys.iter().filter(|key| mapping.place(key).is_none()).map(ToString::to_string).collect();
        let unknown = mapping.places().filter(|(key, _)| !keys.contains(key)).map(|(key, _)| key.to_owned()).collect();
        let score = outcome.score();
        let makespan_us = outcome.makespan_ns / 1e3;
        Ok(Answer { placed, mapping, score, makespan_us, unplaced, unknown })
    }

    /// Reports times of a step under a mapping that the agent gave. Returns how the agent uses them.
    ///
    /// # Errors
    /// The agent refused because it remembers no such mapping or the times do not fit its problem. It does not answer
    /// within a minute, or does not support reports.
    pub fn report(&mut self, measured: &Measured) -> Result<Learned, ServeError> {
        let body = measured.to_json()?;
        let body = self.exchange(&Frame { kind: Kind::Report, body }, Kind::Learned, EXTRA_TIME)?;
        let learned: Learned = self.parse(&body)?;
        Ok(Learned { message: one_line(&learned.message), ..learned })
    }

    /// Sends a frame and returns the body of the answer, which must be of the kind `expected`.
    fn exchange(&mut self, asked: &Frame, expected: Kind, patience: Duration) -> Result<Vec<u8>, ServeError> {
        let mut frame = None;
        if let Some(connection) = self.connection.take().filter(|connection| !connection.has_peer_closed()) {
            // The connection ends without an answer if the agent was about to close it, as after a refusal.
            frame = self.exchange_on(connection, asked, patience)?;
        }
        if frame.is_none() {
            frame = self.exchange_on(connect(&self.address)?, asked, patience)?;
        }
        let frame = frame.ok_or_else(|| self.invalid_answer("it ended the connection"))?;
        match frame.kind {
            kind if kind == expected => Ok(frame.body),
            Kind::Refused => {
                let AgentRefusal { code, message } = self.parse(&frame.body)?;
                let refusal = AgentRefusal { code: one_line(&code), message: one_line(&message) };
                Err(ServeError::Refused { address: self.address.clone(), refusal })
            }
            kind => Err(self.invalid_answer(&format!("it is a frame of kind {}", kind.number()))),
        }
    }

    /// Sends a frame on a connection, which is kept if an answer comes. Returns the answer, or `None` if the connection
    /// ended before any of it came.
    fn exchange_on(
        &mut self,
        mut connection: Connection<'static>,
        asked: &Frame,
        patience: Duration,
    ) -> Result<Option<Frame>, ServeError> {
        let sent = connection.send_frame(asked);
        // If sending failed, the agent may have sent its reason before it closed the connection.
        let received = match sent {
            Err(error @ FrameError::Length { .. }) => Err(error),
            Ok(()) => connection.receive(patience),
            Err(error) => connection.receive(Duration::from_secs(1)).map_err(|_| error),
        };
        let frame = received.map_err(|reason| ServeError::Frame { address: self.address.clone(), reason })?;
        self.connection = frame.is_some().then_some(connection);
        Ok(frame)
    }

    /// Parses an answer and removes control characters from its text, which is shown to users: they could control a
    /// terminal.
    fn parse_placed(&self, body: &[u8]) -> Result<Placed, ServeError> {
        let placed: Placed = self.parse(body)?;
        if placed.mapping.to_string_lossy().contains(char::is_control) {
            return Err(self.invalid_answer("the mapping's path has control characters"));
        }
        Ok(Placed { planner: one_line(&placed.planner), ..placed })
    }

    /// Parses the body of an answer.
    fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, ServeError> {
        serde_json::from_slice(body).map_err(|error| self.invalid_answer(&error.to_string()))
    }

    /// Reads the mapping that the agent names, if it is a file of limited length.
    fn read_mapping(&self, path: &Path) -> Result<Mapping, ServeError> {
        let read = || -> io::Result<String> {
            // The checks are on the open file, not on the path, which may change. The open does not wait for a pipe.
            let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
            let mut text = String::new();
            if !file.metadata()?.is_file()
                || file.take(MAX_MAPPING_BYTES + 1).read_to_string(&mut text)? as u64 > MAX_MAPPING_BYTES
            {
                return Err(io::Error::new(ErrorKind::InvalidData, "no mapping is there"));
            }
            Ok(text)
        };
        let unreadable = |reason: String| self.invalid_answer(&format!("{}: {reason}", path.display()));
        let text = read().map_err(|error| unreadable(error.to_string()))?;
        Mapping::from_json(&text).map_err(|error| unreadable(error.to_string()))
    }

    /// Makes the error for an answer that is not valid.
    fn invalid_answer(&self, reason: &str) -> ServeError {
        ServeError::Answer { address: self.address.clone(), reason: one_line(reason) }
    }
}

/// Connects to an agent.
fn connect(address: &Address) -> Result<Connection<'static>, ServeError> {
    let connection = Stream::connect(address, CONNECT_TIMEOUT)
        .and_then(|stream| Connection::new(stream, &NEVER_STOPPED, EXTRA_TIME, Clock::default()));
    connection.map_err(|reason| ServeError::Socket {
        address: address.clone(),
        doing: "no agent answers here: start one with `tenure agent serve`",
        reason,
    })
}

/// Replaces control characters in received text, so that it is one line.
fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Returns the plan of `mapping` for `problem`, with tiers and tensors matched by name. Tensors without a place are in
/// the first tier.
///
/// # Errors
/// [`ServeError::Tiers`] if the mapping has other tiers than the problem.
pub fn plan_of(problem: &Problem, mapping: &Mapping) -> Result<Plan, ServeError> {
    let tier = |name: &String| problem.tiers().iter().position(|tier| tier.name == *name);
    let tiers: Option<Vec<usize>> = mapping.tiers().iter().map(tier).collect();
    let tiers = tiers.filter(|tiers| tiers.len() == problem.tiers().len()).ok_or_else(|| ServeError::Tiers {
        found: mapping.tiers().to_vec(),
        asked: problem.tiers().iter().map(|tier| tier.name.clone()).collect(),
    })?;
    let place = |key: &str| tiers[mapping.place(key).unwrap_or(0)];
    Ok(Plan { places: problem.tensors().iter().map(|tensor| place(&tensor.key)).collect(), steps: Vec::new() })
}
