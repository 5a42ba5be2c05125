//! The client: asks, and believes no answer that it has not checked.

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
use super::{Address, Learned, Placed, Refusal, Request, ServeError};
use crate::Measured;

/// How long an answer may take beyond the time that was asked for.
const GRACE: Duration = Duration::from_secs(60);

/// The longest mapping, in bytes.
const LONGEST: u64 = MAX_BODY_BYTES as u64;

/// How long an agent may take to accept a connection.
const ACCEPTS: Duration = Duration::from_secs(10);

/// A connection is never told to stop here.
static GOES_ON: AtomicBool = AtomicBool::new(false);

/// A connection to an agent.
pub struct Client {
    address: Address,
    /// None after one on which something went wrong: a late answer would be taken for that of the next request.
    connection: Option<Connection<'static>>,
}

/// An agent's answer, read and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What the agent said.
    pub placed: Placed,
    /// Where tensors live, by key.
    pub mapping: Mapping,
    /// The share of accessed bytes that the first tier serves, 0 to 1, as the simulator has it here.
    pub score: f64,
    /// How long the program takes, in µs of the simulator here.
    pub makespan_us: f64,
    /// Keys of the problem that have no place, and live in the first tier.
    pub unplaced: Vec<String>,
    /// Keys of the mapping that no tensor of the problem has.
    pub unknown: Vec<String>,
}

impl Client {
    /// Connects to the agent at `address`.
    ///
    /// # Errors
    /// [`ServeError::Socket`] if nobody is there.
    pub fn connect(address: &Address) -> Result<Self, ServeError> {
        Ok(Self { address: address.clone(), connection: Some(connect(address)?) })
    }

    /// Asks, waits, reads the mapping and plays it. Keys that do not match are told; what they name lives in the first tier.
    /// Connects again if the connection has ended.
    ///
    /// # Errors
    /// The agent refused, or does not answer within the time of the request and a minute; its mapping cannot be read, has
    /// other tiers than the problem, or asks for more room than they have.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ServeError> {
        let asked = Frame { kind: Kind::Place, body: request.to_json()? };
        let body = self.exchange(&asked, Kind::Placed, request.time_limit() + GRACE)?;
        let placed = self.placed(&body)?;
        let mapping = self.read(&placed.mapping)?;
        let problem = request.problem();
        let outcome = simulate(problem, &plan_of(problem, &mapping)?)?;
        let keys: BTreeSet<&str> = problem.tensors().iter().map(|tensor| tensor.key.as_str()).collect();
        let unplaced = keys.iter().filter(|key| mapping.place(key).is_none()).map(ToString::to_string).collect();
        let unknown = mapping.places().filter(|(key, _)| !keys.contains(key)).map(|(key, _)| key.to_owned()).collect();
        let (score, makespan_us) = (outcome.score(), outcome.makespan_ns / 1e3);
        Ok(Answer { placed, mapping, score, makespan_us, unplaced, unknown })
    }

    /// Reports times of a step under a mapping that the agent gave, and returns what it does with them.
    ///
    /// # Errors
    /// The agent refused, as it remembers no such mapping or the times are not of its problem; it does not answer within a
    /// minute, or knows no reports.
    pub fn report(&mut self, measured: &Measured) -> Result<Learned, ServeError> {
        let body = measured.to_json()?;
        let body = self.exchange(&Frame { kind: Kind::Report, body }, Kind::Learned, GRACE)?;
        let learned: Learned = self.parse(&body)?;
        Ok(Learned { message: one_line(&learned.message), ..learned })
    }

    /// Sends a frame and returns the body of the answer, which must be of a kind.
    fn exchange(&mut self, asked: &Frame, expected: Kind, patience: Duration) -> Result<Vec<u8>, ServeError> {
        let mut frame = None;
        if let Some(connection) = self.connection.take().filter(|connection| !connection.is_gone()) {
            // It ends without an answer if the agent was about to close it, as after a refusal.
            frame = self.exchange_on(connection, asked, patience)?;
        }
        if frame.is_none() {
            frame = self.exchange_on(connect(&self.address)?, asked, patience)?;
        }
        let frame = frame.ok_or_else(|| self.nonsense("it ended the connection"))?;
        match frame.kind {
            kind if kind == expected => Ok(frame.body),
            Kind::Refused => {
                let Refusal { code, message } = self.parse(&frame.body)?;
                let refusal = Refusal { code: one_line(&code), message: one_line(&message) };
                Err(ServeError::Refused { address: self.address.clone(), refusal })
            }
            kind => Err(self.nonsense(&format!("it is a frame of kind {}", kind.number()))),
        }
    }

    /// Sends a frame on a connection, which is kept if an answer comes. Returns the answer; none if the connection ended
    /// before any of it came.
    fn exchange_on(
        &mut self,
        mut connection: Connection<'static>,
        asked: &Frame,
        patience: Duration,
    ) -> Result<Option<Frame>, ServeError> {
        let sent = connection.send_frame(asked);
        // An agent that has said why it does not listen is asked why.
        let received = match sent {
            Err(error @ FrameError::Length { .. }) => Err(error),
            Ok(()) => connection.receive(patience),
            Err(error) => connection.receive(Duration::from_secs(1)).map_err(|_| error),
        };
        let frame = received.map_err(|reason| ServeError::Frame { address: self.address.clone(), reason })?;
        self.connection = frame.is_some().then_some(connection);
        Ok(frame)
    }

    /// Its text is shown to people: nothing in it may steer a terminal.
    fn placed(&self, body: &[u8]) -> Result<Placed, ServeError> {
        let placed: Placed = self.parse(body)?;
        if placed.mapping.to_string_lossy().contains(char::is_control) {
            return Err(self.nonsense("the mapping's path has control characters"));
        }
        Ok(Placed { planner: one_line(&placed.planner), ..placed })
    }

    fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, ServeError> {
        serde_json::from_slice(body).map_err(|error| self.nonsense(&error.to_string()))
    }

    /// The mapping that the agent names, if that is a file, and no endless one.
    fn read(&self, path: &Path) -> Result<Mapping, ServeError> {
        let read = || -> io::Result<String> {
            // It is asked of what is open, not of what may be there by then; and a pipe is not waited for.
            let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
            let mut text = String::new();
            if !file.metadata()?.is_file() || file.take(LONGEST + 1).read_to_string(&mut text)? as u64 > LONGEST {
                return Err(io::Error::new(ErrorKind::InvalidData, "no mapping is there"));
            }
            Ok(text)
        };
        let told = |reason: String| self.nonsense(&format!("{}: {reason}", path.display()));
        let text = read().map_err(|error| told(error.to_string()))?;
        Mapping::from_json(&text).map_err(|error| told(error.to_string()))
    }

    fn nonsense(&self, reason: &str) -> ServeError {
        ServeError::Answer { address: self.address.clone(), reason: one_line(reason) }
    }
}

fn connect(address: &Address) -> Result<Connection<'static>, ServeError> {
    let connection =
        Stream::connect(address, ACCEPTS).and_then(|stream| Connection::new(stream, &GOES_ON, GRACE, Clock::default()));
    connection.map_err(|reason| ServeError::Socket {
        address: address.clone(),
        doing: "no agent answers here: start one with `tenure agent serve`",
        reason,
    })
}

/// Another's words, on one line.
fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Returns the plan of `mapping` for `problem`: tiers and tensors by their names. What has no place lives in the first tier.
///
/// # Errors
/// [`ServeError::Tiers`] if they have other tiers.
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
