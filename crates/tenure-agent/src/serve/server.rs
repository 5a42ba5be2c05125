//! The server: one thread per connection, and a planner for each request.

use std::cell::Cell;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tenure_core::Clock;
use tenure_plan::planner::{Planned, PlannerProgress};
use tenure_plan::{Mapping, Planner, simulate};

use super::connection::{Connection, TICK};
use super::frame::{Frame, Kind};
use super::listener::Listener;
use super::{Address, AgentRefusal, AgentRequest, Learned, Placed, ServeError};
use crate::learning::plural;
use crate::{Learner, Measured, ReportError};

/// How often planning checks whether the client is still connected.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The time that a client has to read why its connection is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The most connections beyond the limit that stay open until their clients have read the refusal.
const MAX_TURNED_AWAY: usize = 64;

/// Settings of an [`AgentServer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The folder for mappings, in files that the server names. It must exist, and the server removes nothing from it.
    pub results: PathBuf,
    /// The most connections at once. Each may hold a request of 256 MiB.
    pub connections: usize,
    /// The time that a connection may be silent, or that a request may take to arrive.
    pub patience: Duration,
    /// The clock that measures `patience`.
    pub clock: Clock,
}

impl ServerConfig {
    /// Settings for a folder of results, 16 connections, and 30 s by the system's clock.
    pub fn new(results: impl Into<PathBuf>) -> Self {
        Self { results: results.into(), connections: 16, patience: Duration::from_secs(30), clock: Clock::default() }
    }
}

/// The state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serving {
    /// The number of open connections.
    pub connections: usize,
    /// The number of requests answered with a mapping.
    pub answered: u64,
}

/// An agent that plans requests of clients.
pub struct AgentServer {
    listener: Listener,
    config: ServerConfig,
    planners: Vec<Box<dyn Planner + Send + Sync>>,
    learner: Option<Learner>,
    connections: AtomicUsize,
    answered: AtomicU64,
    /// A random number in the names of its files, so that they differ from another server's.
    run: u64,
    files: AtomicU64,
}

impl AgentServer {
    /// Starts to listen. Requests that name no planner use the first of `planners`.
    ///
    /// # Errors
    /// There is no planner, or no folder for results; or `address` can be reached from other hosts, is in use by
    /// another agent, or cannot be listened on.
    pub fn bind(
        address: &Address,
        mut config: ServerConfig,
        planners: Vec<Box<dyn Planner + Send + Sync>>,
    ) -> Result<Self, ServeError> {
        if planners.is_empty() {
            return Err(ServeError::NoPlanners);
        }
        // Clients may have other working directories.
        config.results = fs::canonicalize(&config.results)
            .and_then(|folder| fs::read_dir(&folder).map(|_| folder))
            .map_err(|reason| ServeError::Results { path: config.results.clone(), reason })?;
        Ok(Self {
            listener: Listener::bind(address)?,
            config,
            planners,
            learner: None,
            connections: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            run: RandomState::new().hash_one(()),
            files: AtomicU64::new(0),
        })
    }

    /// Makes `learner` plan for requests that name no planner, or its name, and learn from clients' reports.
    #[must_use]
    pub fn with_learner(mut self, learner: Learner) -> Self {
        self.learner = Some(learner);
        self
    }

    /// Returns its address, with the actual port if port 0 was requested.
    pub fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Returns the folder for mappings.
    pub fn results(&self) -> &Path {
        &self.config.results
    }

    /// Serves until `watch` says to stop. `watch` is called at least every 50 ms. At the end, requests being planned
    /// are answered with the best plan so far, all connections are closed, and the socket is removed.
    pub fn run(self, mut watch: impl FnMut(&Serving) -> ControlFlow<()>) {
        let server = &self;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            // Connections beyond the limit, kept until their other ends have read the refusal.
            let mut turned_away: Vec<Connection> = Vec::new();
            while watch(&server.serving()).is_continue() {
                turned_away.retain_mut(Connection::discard_received);
                let Ok(accepted) = server.listener.accept(TICK) else {
                    // This may be a lack of descriptors, which may become free.
                    thread::sleep(TICK);
                    continue;
                };
                let Some(stream) = accepted else { continue };
                let ServerConfig { patience, clock, .. } = &server.config;
                let Ok(mut connection) = Connection::new(stream, &stop, *patience, clock.clone()) else { continue };
                let Some(slot) = ConnectionSlot::take(&server.connections, server.config.connections) else {
                    let message =
                        format!("{} connections are served, and no more: try again", server.config.connections);
                    let is_sent = connection.send(Kind::Refused, &AgentRefusal::new("busy", message)).is_ok();
                    if is_sent && turned_away.len() < MAX_TURNED_AWAY && connection.begin_to_close(*patience) {
                        turned_away.push(connection);
                    }
                    continue;
                };
                // If no thread can be started, the connection is closed, which its client sees.
                let _ = thread::Builder::new().name("tenure-agent".into()).spawn_scoped(scope, move || {
                    let _slot = slot;
                    server.serve(connection);
                });
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    /// Returns the current state of the server.
    fn serving(&self) -> Serving {
        let connections = self.connections.load(Ordering::Relaxed);
        Serving { connections, answered: self.answered.load(Ordering::Relaxed) }
    }

    /// Answers the requests of a connection, one after the other. After an invalid request it closes the connection:
    /// the start of the next one is not known.
    fn serve(&self, mut connection: Connection<'_>) {
        loop {
            let (refusal, goes_on) = match connection.receive(self.config.patience) {
                Ok(None) => return,
                Err(error) => (error.into(), false),
                Ok(Some(Frame { kind: Kind::Place, body })) => match AgentRequest::from_json(&body) {
                    Err(error) => (AgentRefusal::new("body", error), false),
                    Ok(request) => match self.answer(&request, &connection) {
                        Err(refusal) => (refusal, true),
                        Ok(None) => return,
                        Ok(Some(placed)) => {
                            self.answered.fetch_add(1, Ordering::Relaxed);
                            if connection.send(Kind::Placed, &placed).is_err() {
                                return;
                            }
                            continue;
                        }
                    },
                },
                Ok(Some(Frame { kind: Kind::Report, body })) => match Measured::from_json(&body) {
                    Err(error) => (AgentRefusal::new("body", error), false),
                    Ok(measured) => match self.learn(&measured) {
                        Err(error) => (error.into(), true),
                        Ok(learned) => {
                            if connection.send(Kind::Learned, &learned).is_err() {
                                return;
                            }
                            continue;
                        }
                    },
                },
                Ok(Some(frame)) => {
                    (AgentRefusal::new("kind", format!("an agent is not told of kind {}", frame.kind.number())), false)
                }
            };
            if connection.send(Kind::Refused, &refusal).is_err() {
                return;
            }
            if !goes_on {
                return connection.close(CLOSE_TIMEOUT);
            }
        }
    }

    /// Plans a request and writes the mapping. Returns `None` if the client has disconnected.
    fn answer(&self, request: &AgentRequest, connection: &Connection<'_>) -> Result<Option<Placed>, AgentRefusal> {
        let planner = self.planner(request.options().planner.as_deref())?;
        let begun = Instant::now();
        // A panic of a planner fails one request only, not the agent.
        let planned = catch_unwind(AssertUnwindSafe(|| plan(planner, request, connection)));
        let (planned, step_ns) = planned
            .map_err(|_| AgentRefusal::new("plan", "the planner failed: tell who made it of this problem"))??;
        if connection.has_peer_closed() {
            return Ok(None);
        }
        let outcome = simulate(request.problem(), &planned.plan).map_err(|error| AgentRefusal::new("plan", error))?;
        let mapping =
            Mapping::of_plan(request.problem(), &planned.plan).map_err(|error| AgentRefusal::new("plan", error))?;
        let name = format!("mapping-{:016x}-{}.json", self.run, self.files.fetch_add(1, Ordering::Relaxed));
        let path = self.config.results.join(name);
        mapping.write(&path).map_err(|error| AgentRefusal::new("results", error))?;
        if let Some(learner) = &self.learner {
            learner.remember(request.problem(), &path, &planned.plan);
        }
        Ok(Some(Placed {
            mapping: path,
            planner: planner.name().to_owned(),
            score: outcome.score(),
            makespan_us: step_ns.unwrap_or(outcome.makespan_ns) / 1e3,
            evaluations: planned.evaluations,
            seconds: begun.elapsed().as_secs_f64(),
        }))
    }

    /// Passes a report to the learner, if there is one.
    fn learn(&self, measured: &Measured) -> Result<Learned, ReportError> {
        let Some(learner) = &self.learner else {
            let message = "this agent does not learn: start it with `tenure agent serve --learn`".into();
            return Ok(Learned { learns: false, reports: 0, message });
        };
        let reports = learner.report(measured)?;
        let ending = plural(reports);
        let message = format!("learned from {reports} report{ending} on the program: ask again for a mapping");
        Ok(Learned { learns: true, reports, message })
    }

    /// Returns the planner with a name, or the default planner.
    fn planner(&self, name: Option<&str>) -> Result<ChosenPlanner<'_>, AgentRefusal> {
        let is_named = |planner: &str| name.is_none_or(|name| name == planner);
        if let Some(learner) = self.learner.as_ref().filter(|learner| is_named(learner.name())) {
            return Ok(ChosenPlanner::Learner(learner));
        }
        let planner = self.planners.iter().find(|planner| is_named(planner.name()));
        planner.map(|planner| ChosenPlanner::Planner(&**planner)).ok_or_else(|| {
            let names: Vec<&str> = self.planners.iter().map(|planner| planner.name()).collect();
            let name = name.unwrap_or_default();
            AgentRefusal::new("planner", format!("unknown planner {name:?}: there are {}", names.join(", ")))
        })
    }
}

/// The planner of a request.
#[derive(Clone, Copy)]
enum ChosenPlanner<'a> {
    Learner(&'a Learner),
    Planner(&'a (dyn Planner + Send + Sync)),
}

impl ChosenPlanner<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Learner(learner) => learner.name(),
            Self::Planner(planner) => planner.name(),
        }
    }
}

/// Plans until the planner is done, the server is to stop, or the client has disconnected. Also returns the time of a
/// step in ns, if it was learned.
fn plan(
    planner: ChosenPlanner<'_>,
    request: &AgentRequest,
    connection: &Connection<'_>,
) -> Result<(Planned, Option<f64>), AgentRefusal> {
    let last_check = Cell::new(Instant::now());
    let mut watch = |_: &PlannerProgress| {
        if last_check.get().elapsed() < CHECK_INTERVAL {
            return ControlFlow::Continue(());
        }
        last_check.set(Instant::now());
        if connection.is_stopped() || connection.has_peer_closed() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let problem = request.problem();
    let options = request.planner_options();
    let planned = match planner {
        ChosenPlanner::Learner(learner) => learner.plan_by_times(problem, &options, &mut watch),
        ChosenPlanner::Planner(planner) => planner.plan(problem, &options, &mut watch).map(|planned| (planned, None)),
    };
    planned.map_err(|error| AgentRefusal::new("plan", error))
}

/// One of the limited connections. Dropping it makes room for another.
struct ConnectionSlot<'a>(&'a AtomicUsize);

impl<'a> ConnectionSlot<'a> {
    /// Takes a slot, if fewer than `most` are taken.
    fn take(taken: &'a AtomicUsize, most: usize) -> Option<Self> {
        taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| (taken < most).then_some(taken + 1))
            .ok()
            .map(|_| Self(taken))
    }
}

impl Drop for ConnectionSlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
