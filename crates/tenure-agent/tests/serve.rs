//! Tests of an agent and its clients over real sockets.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Ends, example, until};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;
use tenure_agent::serve::frame::{Frame, Kind, MAX_BODY_BYTES};
use tenure_agent::serve::{
    Address, AgentClient, AgentOptions, AgentRefusal, AgentRequest, AgentServer, Answer, MAX_SECONDS, Placed,
    ServeError, ServerConfig,
};
use tenure_core::Clock;
use tenure_plan::planner::{Evolutionary, Planned, PlannerError, PlannerOptions, Watch};
use tenure_plan::{Mapping, Planner, Problem, Rule};

/// A problem with weights of 60 and 40 bytes and the activations of the first, in a fast tier of 100 bytes.
const PROBLEM: &str = r#"{
  "format": "tenure-problem", "version": 1, "name": "small",
  "tiers": [
    {"name": "DRAM", "capacity": 100, "read_bandwidth": 1000000000, "write_bandwidth": 1000000000},
    {"name": "PM", "read_bandwidth": 100000000, "write_bandwidth": 100000000}
  ],
  "tensors": [
    {"key": "a/parameter/weight#0", "bytes": 60, "tag": "weight"},
    {"key": "b/parameter/weight#0", "bytes": 40, "tag": "weight"},
    {"key": "a/linear/out#0", "bytes": 50, "tag": "activation"}
  ],
  "kernels": [
    {"name": "a", "time_ns": 100, "reads": [{"tensor": 0, "bytes": 60}], "writes": [{"tensor": 2, "bytes": 50}]},
    {"name": "b", "time_ns": 100, "reads": [{"tensor": 1, "bytes": 40}, {"tensor": 2, "bytes": 50}], "writes": []}
  ]
}"#;

/// A time longer than any test takes: a wait of this length is a hang.
const LONG: Duration = Duration::from_secs(300);

/// A planner that tries one plan after the other as long as it may, and counts them.
#[derive(Clone, Default)]
struct Restless {
    /// The number of plans that it has tried.
    tried: Arc<AtomicU64>,
    /// Ends the planner.
    is_enough: Arc<AtomicBool>,
}

impl Restless {
    /// Waits until it has tried a plan.
    fn wait(&self) {
        eventually(|| self.tried.load(Ordering::Relaxed) > 0);
    }
}

impl Planner for Restless {
    fn name(&self) -> &str {
        "restless"
    }

    fn plan(
        &self,
        problem: &Problem,
        options: &PlannerOptions,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlannerError> {
        Evolutionary { evaluations: u64::MAX }.plan(problem, options, &mut |progress| {
            self.tried.store(progress.evaluations, Ordering::Relaxed);
            if self.is_enough.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { watch(progress) }
        })
    }
}

/// A planner that panics.
struct Faulty;

impl Planner for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }

    fn plan(&self, _: &Problem, _: &PlannerOptions, _: &mut Watch<'_>) -> Result<Planned, PlannerError> {
        panic!("a planner's fault, for a test");
    }
}

/// Calls `client` while an agent serves.
fn serve<T>(client: impl FnOnce(&Agent) -> T) -> T {
    serve_as(|_| {}, client)
}

/// Calls `client` while an agent serves so many connections at most.
fn serve_few<T>(connections: usize, client: impl FnOnce(&Agent) -> T) -> T {
    serve_as(|config| config.connections = connections, client)
}

/// Calls `client` while an agent serves with a changed configuration.
fn serve_as<T>(change: impl FnOnce(&mut ServerConfig), client: impl FnOnce(&Agent) -> T) -> T {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let results = folder.path().join("results");
    fs::create_dir(&results).unwrap();
    let mut config = ServerConfig { patience: LONG, ..ServerConfig::new(&results) };
    change(&mut config);
    let restless = Restless::default();
    let planners: Vec<Box<dyn Planner + Send + Sync>> =
        vec![Box::new(Rule::Density), Box::new(Rule::Hotness), Box::new(restless.clone()), Box::new(Faulty)];
    let server = AgentServer::bind(&Address::Unix(socket.clone()), config, planners).unwrap();
    let agent = Agent { socket, results, restless, is_done: AtomicBool::new(false), _folder: folder };
    thread::scope(|scope| {
        scope.spawn(|| server.run(until(&agent.is_done)));
        // Ends the agent even if the client panics.
        let _ends = Ends(&agent.is_done);
        client(&agent)
    })
}

struct Agent {
    socket: PathBuf,
    results: PathBuf,
    restless: Restless,
    is_done: AtomicBool,
    _folder: TempDir,
}

impl Agent {
    fn client(&self) -> AgentClient {
        AgentClient::connect(&Address::Unix(self.socket.clone())).unwrap()
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    /// Returns the refusal that these bytes get. Checks that nothing follows and that the connection is closed.
    fn refusal(&self, bytes: &[u8]) -> AgentRefusal {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        let frame = Frame::read(&mut stream).unwrap().expect("an answer");
        assert_eq!(frame.kind, Kind::Refused);
        assert!(Frame::read(&mut stream).unwrap().is_none(), "it is closed");
        let refusal: AgentRefusal = serde_json::from_slice(&frame.body).unwrap();
        assert_eq!(refusal.message.lines().count(), 1);
        refusal
    }

    /// Returns the paths of the files in the folder for results.
    fn files(&self) -> BTreeSet<PathBuf> {
        fs::read_dir(&self.results).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

fn request(options: AgentOptions) -> AgentRequest {
    AgentRequest::new(Problem::from_json(PROBLEM).unwrap(), options).unwrap()
}

fn with_planner(planner: &str) -> AgentOptions {
    AgentOptions { planner: Some(planner.into()), ..AgentOptions::default() }
}

fn frame(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Frame { kind, body: body.to_vec() }.write(&mut bytes).unwrap();
    bytes
}

/// Returns options of a search that goes on until it is ended.
fn endless() -> AgentOptions {
    AgentOptions { seconds: MAX_SECONDS, fast_bytes: Some(60), ..with_planner("restless") }
}

/// Returns a proper frame in which some bytes are replaced.
fn changed(place: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = proper();
    frame[place..place + bytes.len()].copy_from_slice(bytes);
    frame
}

fn proper() -> Vec<u8> {
    frame(Kind::Place, &request(AgentOptions::default()).to_json().unwrap())
}

#[test]
fn a_request_is_answered_with_a_mapping_that_every_process_can_read() {
    serve(|agent| {
        let answer = agent.client().ask(&request(AgentOptions::default())).unwrap();
        assert_eq!(answer.placed.planner, "density", "the first is the default");
        assert_eq!((answer.placed.score, answer.placed.makespan_us), (answer.score, answer.makespan_us));
        assert_eq!(agent.files(), BTreeSet::from([answer.placed.mapping.clone()]));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(Mapping::read(&answer.placed.mapping).unwrap(), answer.mapping));
            }
        });
        let fast = Rule::Density.place(&Problem::from_json(PROBLEM).unwrap(), 100);
        let places = [0, 1, 2].map(|tensor| usize::from(!fast.is_fast(tensor)));
        let keys = ["a/parameter/weight#0", "b/parameter/weight#0", "a/linear/out#0"];
        assert_eq!(keys.map(|key| answer.mapping.place(key).unwrap()), places);
        assert!(answer.unplaced.is_empty() && answer.unknown.is_empty());
    });
}

#[test]
fn the_examples_of_the_documentation_are_what_is_spoken() {
    let asked = AgentRequest::from_json(example(0).as_bytes()).unwrap();
    let options = AgentOptions { evaluations: Some(4000), fast_bytes: Some(100_000_000), ..with_planner("density") };
    assert_eq!(*asked.options(), options);
    let placed: Placed = serde_json::from_str(example(1)).unwrap();
    let refusal: AgentRefusal = serde_json::from_str(example(4)).unwrap();
    assert_eq!(refusal.code, "planner");
    serve(|agent| {
        let found = agent.client().ask(&asked).unwrap().placed;
        let mapping = placed.mapping.clone();
        let seconds = placed.seconds;
        assert_eq!(Placed { mapping, seconds, ..found }, placed);
    });
}

#[test]
fn options_are_followed() {
    serve(|agent| {
        let mut client = agent.client();
        let all = AgentOptions { fast_bytes: Some(1000), ..with_planner("hotness") };
        let answer = client.ask(&request(all)).unwrap();
        assert_eq!((answer.placed.planner.as_str(), answer.score), ("hotness", 1.0));
        let some = AgentOptions { evaluations: Some(77), seconds: MAX_SECONDS, ..with_planner("restless") };
        assert_eq!(client.ask(&request(some)).unwrap().placed.evaluations, 77);
        // Without the limit it would go on until the client gives up.
        let answer = client.ask(&request(AgentOptions { seconds: 0.2, ..endless() })).unwrap();
        assert!(answer.placed.seconds >= 0.2, "{answer:?}");
    });
}

#[test]
fn a_request_that_cannot_be_planned_is_refused_and_the_connection_goes_on() {
    serve(|agent| {
        let mut client = agent.client();
        for (options, code, says) in [
            (with_planner("unknown"), "planner", "there are density, hotness"),
            (with_planner("faulty"), "plan", "the planner failed"),
        ] {
            match client.ask(&request(options)) {
                Err(ServeError::Refused { refusal, .. }) => {
                    assert_eq!(refusal.code, code);
                    assert!(refusal.message.contains(says), "{}", refusal.message);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(agent.files().is_empty());
        client.ask(&request(AgentOptions::default())).unwrap();
    });
}

#[test]
fn an_invalid_request_is_refused_and_the_connection_closed() {
    serve(|agent| {
        assert_eq!(agent.refusal(b"GET / HTTP/1.1\r\n\r\n").code, "magic");
        let refusal = agent.refusal(&changed(4, &[2, 0]));
        assert_eq!(refusal.code, "version");
        assert!(refusal.message.contains("version 2") && refusal.message.contains("version 1"));
        assert_eq!(agent.refusal(&changed(8, &(MAX_BODY_BYTES + 1).to_le_bytes())).code, "length");
        assert_eq!(agent.refusal(&changed(6, &[9, 0])).code, "kind");
        assert_eq!(agent.refusal(&frame(Kind::Placed, b"{}")).code, "kind");
        assert_eq!(agent.refusal(&frame(Kind::Place, b"\xff")).code, "body");
        assert_eq!(agent.refusal(&frame(Kind::Place, br#"{"problem": {}, "results": "/etc"}"#)).code, "body");
        agent.client().ask(&request(AgentOptions::default())).unwrap();
    });
}

#[test]
fn no_name_in_a_request_leads_out_of_the_folder() {
    serve(|agent| {
        let hostile = PROBLEM.replace("small", "../../escaped").replace("a/linear/out#0", "/etc/../escaped\\u0000");
        let problem = Problem::from_json(&hostile).unwrap();
        let answer = agent.client().ask(&AgentRequest::new(problem, AgentOptions::default()).unwrap()).unwrap();
        assert_eq!(answer.placed.mapping.parent().unwrap(), fs::canonicalize(&agent.results).unwrap());
        assert_eq!(answer.mapping.program(), "../../escaped");
        assert_eq!(agent.files().len(), 1);
    });
}

#[test]
fn two_clients_are_planned_for_at_once_and_silent_ones_block_no_other() {
    serve_few(5, |agent| {
        let _silent = [agent.connect(), agent.connect()];
        thread::scope(|scope| {
            // Ends the planner even if the other client is not answered.
            let ends = Ends(&agent.restless.is_enough);
            let slow = scope.spawn(|| agent.client().ask(&request(endless())));
            agent.restless.wait();
            agent.client().ask(&request(AgentOptions::default())).unwrap();
            assert!(!slow.is_finished());
            drop(ends);
            slow.join().unwrap().unwrap();
        });
        assert_eq!(agent.files().len(), 2);
    });
}

#[test]
fn a_client_that_is_silent_for_too_long_is_told_and_makes_place() {
    let clock = Clock::manual();
    let config = |config: &mut ServerConfig| {
        config.connections = 1;
        config.patience = Duration::from_secs(1);
        config.clock = clock.clone();
    };
    serve_as(config, |agent| {
        let mut slow = agent.connect();
        slow.write_all(&proper()[..30]).unwrap();
        let mut client = agent.connect();
        let busy = Frame::read(&mut client).unwrap().unwrap();
        assert_eq!(serde_json::from_slice::<AgentRefusal>(&busy.body).unwrap().code, "busy");
        // A connection's time may begin after the clock was first set forward, so it is set forward again.
        let told = thread::scope(|scope| {
            let told = scope.spawn(|| Frame::read(&mut slow));
            eventually(|| {
                clock.advance(Duration::from_secs(1));
                told.is_finished()
            });
            told.join().unwrap().unwrap().unwrap()
        });
        assert_eq!(serde_json::from_slice::<AgentRefusal>(&told.body).unwrap().code, "time");
        drop(slow);
        eventually(|| agent.client().ask(&request(AgentOptions::default())).is_ok());
    });
}

#[test]
fn a_client_that_goes_away_ends_its_planning_and_leaves_no_file() {
    serve_few(1, |agent| {
        let mut gone = agent.connect();
        gone.write_all(&frame(Kind::Place, &request(endless()).to_json().unwrap())).unwrap();
        agent.restless.wait();
        assert!(agent.client().ask(&request(AgentOptions::default())).is_err(), "it is planned");
        drop(gone);
        eventually(|| agent.client().ask(&request(AgentOptions::default())).is_ok());
        assert_eq!(agent.files().len(), 1);
    });
}

#[test]
fn an_agent_that_is_to_end_answers_with_the_best_so_far() {
    serve(|agent| {
        thread::scope(|scope| {
            // If the agent does not end the planner, this ends it after the test has failed.
            let _enough = Ends(&agent.restless.is_enough);
            let asked = scope.spawn(|| agent.client().ask(&request(endless())));
            agent.restless.wait();
            agent.is_done.store(true, Ordering::Relaxed);
            eventually(|| asked.is_finished());
            assert!(asked.join().unwrap().unwrap().placed.evaluations > 0);
        });
        eventually(|| !agent.socket.exists());
    });
}

fn eventually(mut happens: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happens() {
        assert!(begun.elapsed() < LONG, "it never happens");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Calls `client` with the address of an agent on the loopback, and with its folder of results.
fn serve_on_loopback(connections: usize, client: impl FnOnce(&Address, &Path)) {
    let results = tempfile::tempdir().unwrap();
    let address = Address::Tcp("127.0.0.1:0".parse().unwrap());
    let config = ServerConfig { connections, patience: LONG, ..ServerConfig::new(results.path()) };
    let server = AgentServer::bind(&address, config, vec![Box::new(Rule::Density)]).unwrap();
    let address = server.address().clone();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| server.run(until(&is_done)));
        let _ends = Ends(&is_done);
        client(&address, results.path());
    });
}

#[test]
fn an_agent_listens_on_the_loopback_too() {
    serve_on_loopback(16, |address, results| {
        let answer = AgentClient::connect(address).unwrap().ask(&request(AgentOptions::default())).unwrap();
        assert!(answer.placed.mapping.starts_with(fs::canonicalize(results).unwrap()));
    });
}

#[test]
fn a_client_beyond_the_limit_reads_why_whatever_was_sent() {
    let mut problem = Problem::from_json(PROBLEM).unwrap().into_parts();
    problem.source = "long ".repeat(200_000);
    let request = AgentRequest::new(Problem::new(problem).unwrap(), AgentOptions::default()).unwrap();
    serve_on_loopback(1, |address, _| {
        let _served = AgentClient::connect(address).unwrap();
        for _ in 0..20 {
            let refused = AgentClient::connect(address).unwrap().ask(&request);
            assert!(
                matches!(&refused, Err(ServeError::Refused { refusal, .. }) if refusal.code == "busy"),
                "{refused:?}"
            );
        }
    });
}

#[test]
fn a_server_needs_a_folder_and_a_planner() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("agent.sock"));
    let missing = ServerConfig::new(folder.path().join("missing"));
    let error = AgentServer::bind(&address, missing, vec![Box::new(Rule::Density)]).err().unwrap();
    assert!(matches!(error, ServeError::Results { .. }), "{error}");
    let error = AgentServer::bind(&address, ServerConfig::new(folder.path()), vec![]).err().unwrap();
    assert!(matches!(error, ServeError::NoPlanners), "{error}");
}

/// Generates hostile messages: arbitrary bytes, a frame with an arbitrary body, a request that is cut off, and one with
/// some bytes changed.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let body = request(AgentOptions::default()).to_json().unwrap();
    let length = body.len() + 12;
    let changes = prop::collection::vec((0..length, any::<u8>()), 1..4);
    let mutated = |(changes, body): (Vec<(usize, u8)>, Vec<u8>)| {
        let mut bytes = frame(Kind::Place, &body);
        changes.into_iter().for_each(|(place, byte)| bytes[place] = byte);
        bytes
    };
    // Changes within the body leave the header's length valid, so that the parser gets JSON, or nearly.
    let digits = prop::collection::vec((12..length, prop::sample::select(b"0123456789-\"[]{},:en".to_vec())), 1..3);
    let cut = (0..length).prop_map(|length| proper()[..length].to_vec());
    prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 0..200),
        2 => prop::collection::vec(any::<u8>(), 0..200).prop_map(|body| frame(Kind::Place, &body)),
        2 => cut,
        2 => (changes, Just(body.clone())).prop_map(mutated),
        3 => (digits, Just(body)).prop_map(mutated),
    ]
}

#[test]
fn ten_thousand_hostile_messages_leave_the_agent_as_it_was() {
    const MESSAGES: usize = 10_000;
    serve(|agent| {
        let strategy = hostile();
        let mut runner = TestRunner::new(Config::default());
        let mut answered = BTreeSet::new();
        let mut refused = 0;
        for _ in 0..MESSAGES {
            let message = strategy.new_tree(&mut runner).unwrap().current();
            let mut stream = agent.connect();
            // The agent may have closed the connection before all bytes are sent.
            let _ = stream.write_all(&message).and_then(|()| stream.shutdown(Shutdown::Write));
            // There may be no reply if the connection ends while it is sent.
            if let Ok(Some(reply)) = Frame::read(&mut stream) {
                match reply.kind {
                    Kind::Placed => {
                        let placed: Placed = serde_json::from_slice(&reply.body).unwrap();
                        answered.insert(placed.mapping);
                    }
                    _ => refused += 1,
                }
            }
        }
        assert!(refused > MESSAGES / 2, "{refused} were refused");
        let answer = agent.client().ask(&request(AgentOptions::default())).unwrap();
        answered.insert(answer.placed.mapping);
        assert_eq!(agent.files(), answered, "nothing else was written");
    });
}

/// The example agent in Python. Dropping it kills the process.
struct Example(Child);

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn another_programs_agent_takes_its_place() {
    if let Err(error) = Command::new("python3").arg("--version").output() {
        return eprintln!("skipped: python3 does not start: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let mut python = Command::new("python3");
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/agent.py"));
    python.arg(&socket).arg(folder.path()).stderr(Stdio::null());
    let _agent = Example(python.spawn().unwrap());
    eventually(|| UnixStream::connect(&socket).is_ok());
    assert!(!python.status().unwrap().success(), "another does not take its socket");
    let mut client = AgentClient::connect(&Address::Unix(socket.clone())).unwrap();
    let small = AgentOptions { fast_bytes: Some(60), ..AgentOptions::default() };
    for options in [AgentOptions::default(), small] {
        let request = request(options);
        let answer = client.ask(&request).unwrap();
        let capacity = request.problem().tiers()[0].capacity.unwrap();
        let ours = Rule::Density.place(request.problem(), capacity).score(request.problem());
        assert_eq!((answer.score, answer.placed.score), (ours, ours));
        assert!(answer.unplaced.is_empty() && answer.unknown.is_empty());
    }
    let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let (mappings, others): (Vec<_>, Vec<_>) = files.partition(|name| name.ends_with(".json"));
    assert_eq!((mappings.len(), others.len()), (2, 2), "{others:?}: the socket and its lock");
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"TNAG\x02\0\x01\0\0\0\0\0").unwrap();
    let refused = Frame::read(&mut stream).unwrap().unwrap();
    assert_eq!(serde_json::from_slice::<AgentRefusal>(&refused.body).unwrap().code, "version");
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it is closed");
}

/// Returns a client's results for an agent that sends `replies`, each on a connection of its own, to one request after
/// the other.
fn told(replies: &[Vec<u8>]) -> Vec<Result<Answer, ServeError>> {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            // The connections stay open until all replies are sent.
            replies
                .iter()
                .map(|bytes| {
                    let (mut stream, _) = listener.accept().unwrap();
                    Frame::read(&mut stream).unwrap();
                    stream.write_all(bytes).unwrap();
                    stream
                })
                .collect::<Vec<UnixStream>>()
        });
        let mut client = AgentClient::connect(&Address::Unix(socket.clone())).unwrap();
        replies.iter().map(|_| client.ask(&request(AgentOptions::default()))).collect()
    })
}

fn placed(mapping: &Path) -> Placed {
    Placed { mapping: mapping.into(), planner: "x".into(), score: 1.0, makespan_us: 0.0, evaluations: 1, seconds: 0.0 }
}

fn answer(placed: &Placed) -> Vec<u8> {
    frame(Kind::Placed, &serde_json::to_vec(placed).unwrap())
}

/// Returns a client's result for an agent that answers with this mapping.
fn stubborn(mapping: &str) -> Result<Answer, ServeError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mapping.json");
    fs::write(&path, mapping).unwrap();
    told(&[answer(&placed(&path))]).remove(0)
}

const MAPPING: &str = r#"{"format": "tenure-mapping", "version": 1, "tiers": ["DRAM", "PM"],
    "places": {"a/parameter/weight#0": 1, "b/parameter/weight#0": 1, "a/linear/out#0": 1}}"#;

#[test]
fn a_connection_on_which_something_went_wrong_is_not_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mapping.json");
    fs::write(&path, MAPPING).unwrap();
    let [late, right] = ["late", "right"].map(|planner| answer(&Placed { planner: planner.into(), ..placed(&path) }));
    // The rest of the bytes is an answer too, but to the previous request.
    let answers = told(&[[b"TNAG\x02\0\x02\0\0\0\0\0".to_vec(), late].concat(), right]);
    assert!(matches!(answers[0], Err(ServeError::Frame { .. })));
    assert_eq!(answers[1].as_ref().unwrap().placed.planner, "right");
}

#[test]
fn nothing_that_an_agent_says_steers_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mapping\u{1b}[2J.json");
    fs::write(&path, MAPPING).unwrap();
    let plain = folder.path().join("mapping.json");
    fs::write(&plain, r#"{"format": "tenure-mapping", "version": 1, "tiers": [], "places": {}, "\u009b2J": 1}"#)
        .unwrap();
    let refusal = frame(Kind::Refused, br#"{"code": "plan", "message": "\u001b[2J"}"#);
    for reply in [answer(&placed(&path)), answer(&placed(&plain)), refusal] {
        let error = told(&[reply]).remove(0).unwrap_err().to_string();
        assert!(!error.contains(char::is_control), "{error:?}");
    }
    fs::write(&plain, MAPPING).unwrap();
    let red = Placed { planner: "\u{1b}[31mred".into(), ..placed(&plain) };
    assert_eq!(told(&[answer(&red)]).remove(0).unwrap().placed.planner, " [31mred");
}

#[test]
fn only_a_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    for path in [&*pipe, folder.path(), Path::new("/dev/zero"), Path::new("/missing")] {
        let refused = told(&[answer(&placed(path))]).remove(0);
        assert!(matches!(refused, Err(ServeError::Answer { .. })), "{refused:?}");
    }
}

#[test]
fn a_mapping_of_a_changed_program_is_matched_by_key_and_what_does_not_match_is_told() {
    let answer = stubborn(
        r#"{"format": "tenure-mapping", "version": 1, "tiers": ["PM", "DRAM"],
            "places": {"a/parameter/weight#0": 1, "c/linear/out#0": 0, "a/linear/out#0": 0}}"#,
    );
    let answer = answer.unwrap();
    assert_eq!((answer.unplaced, answer.unknown), (vec!["b/parameter/weight#0".into()], vec!["c/linear/out#0".into()]));
    assert_eq!(answer.score, 60.0 / 200.0, "what the agent said is not believed");
}

#[test]
fn a_mapping_for_other_tiers_or_that_does_not_fit_is_refused() {
    let cases = [(r#"["DRAM", "CXL"]"#, 1), (r#"["DRAM"]"#, 0), (r#"["DRAM", "PM"]"#, 0), (r#"["DRAM", "PM"]"#, 1)];
    let answers = cases.map(|(tiers, place)| {
        let places = format!(r#"{{"a/parameter/weight#0": {place}, "b/parameter/weight#0": 0, "a/linear/out#0": 0}}"#);
        stubborn(&format!(r#"{{"format": "tenure-mapping", "version": 1, "tiers": {tiers}, "places": {places}}}"#))
    });
    assert!(matches!(answers[0], Err(ServeError::Tiers { .. })));
    assert!(matches!(answers[1], Err(ServeError::Tiers { .. })));
    assert!(matches!(answers[2], Err(ServeError::Plan(_))), "150 bytes in 100");
    assert!(answers[3].is_ok());
}
