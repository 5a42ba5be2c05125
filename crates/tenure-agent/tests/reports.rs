//! Tests of clients that report times to an agent, and of its answers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;

use common::{Ends, example, until};
use tenure_agent::serve::frame::{Frame, Kind};
use tenure_agent::serve::{
    Address, AgentClient, AgentOptions, AgentRequest, AgentServer, Learned, ServeError, ServerConfig,
};
use tenure_agent::{Learner, Marl, Measured};
use tenure_plan::Rule;

fn request() -> AgentRequest {
    AgentRequest::from_json(example(0).as_bytes()).unwrap()
}

/// Calls `client` while an agent serves.
fn serve(learner: Option<Learner>, client: impl FnOnce(AgentClient)) {
    let results = tempfile::tempdir().unwrap();
    let address = Address::Tcp("127.0.0.1:0".parse().unwrap());
    let server = AgentServer::bind(&address, ServerConfig::new(results.path()), vec![Box::new(Rule::Density)]).unwrap();
    let server = match learner {
        Some(learner) => server.with_learner(learner),
        None => server,
    };
    let address = server.address().clone();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| server.run(until(&is_done)));
        let _ends = Ends(&is_done);
        client(AgentClient::connect(&address).unwrap());
    });
}

fn measured(mapping: &Path, step_ns: u64, kernels_ns: Vec<u64>) -> Measured {
    Measured { mapping: mapping.into(), step_ns, kernels_ns }
}

fn learner(path: &Path) -> Learner {
    Learner::open(Marl::trained().unwrap(), path).unwrap()
}

#[test]
fn a_report_is_answered_as_the_documentation_says() {
    let folder = tempfile::tempdir().unwrap();
    serve(Some(learner(&folder.path().join("learned.json"))), |mut client| {
        let mapping = client.ask(&request()).unwrap().placed.mapping;
        let measured = Measured { mapping, ..Measured::from_json(example(2).as_bytes()).unwrap() };
        assert_eq!(client.report(&measured).unwrap(), serde_json::from_str::<Learned>(example(3)).unwrap());
    });
}

#[test]
fn the_time_of_an_answer_follows_what_was_reported() {
    let folder = tempfile::tempdir().unwrap();
    serve(Some(learner(&folder.path().join("learned.json"))), |mut client| {
        let options = AgentOptions { planner: None, ..request().options().clone() };
        let request = AgentRequest::new(request().problem().clone(), options).unwrap();
        let first = client.ask(&request).unwrap().placed;
        assert_eq!(first.makespan_us, 400.0, "as it was told");
        client.report(&Measured { mapping: first.mapping, step_ns: 900_000, kernels_ns: vec![900_000] }).unwrap();
        let second = client.ask(&request).unwrap();
        assert_eq!(
            (second.placed.makespan_us, second.makespan_us),
            (900.0, 400.0),
            "as measured, and as simulated here"
        );
    });
}

#[test]
fn times_that_cannot_be_are_refused_and_the_connection_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    serve(Some(learner(&folder.path().join("learned.json"))), |mut client| {
        let mapping = client.ask(&request()).unwrap().placed.mapping;
        let hour_ns = 3_600_000_000_000;
        let wrong = [
            (measured(Path::new("/missing"), 1, vec![1]), "ask it again"),
            (measured(&mapping, 1, vec![]), "times of 0 kernels: the mapping's problem has 1: report a time for each"),
            (measured(&mapping, 0, vec![1]), "take 0 ns"),
            (measured(&mapping, 1, vec![0]), "all of its kernels, take 0 ns"),
            (measured(&mapping, 1, vec![9_000_000]), "a kernel takes 9000000 ns, longer than its step of 1 ns"),
            (measured(&mapping, hour_ns + 1, vec![1]), "longer than an hour"),
            (measured(&mapping, u64::MAX, vec![u64::MAX]), "longer than an hour"),
        ];
        for (report, says) in wrong {
            let error = client.report(&report).unwrap_err();
            assert!(matches!(&error, ServeError::Refused { refusal, .. } if refusal.code == "report"), "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
        assert_eq!(client.report(&measured(&mapping, 1, vec![1])).unwrap().reports, 1);
    });
}

#[test]
fn a_report_that_can_no_longer_be_kept_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("learned.json");
    serve(Some(learner(&path)), |mut client| {
        let mapping = client.ask(&request()).unwrap().placed.mapping;
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = client.report(&Measured { mapping, step_ns: 1, kernels_ns: vec![1] }).unwrap_err();
        assert!(matches!(&error, ServeError::Refused { refusal, .. } if refusal.code == "results"), "{error}");
    });
}

#[test]
fn an_agent_that_does_not_learn_says_so() {
    serve(None, |mut client| {
        let mapping = client.ask(&request()).unwrap().placed.mapping;
        let learned = client.report(&Measured { mapping, step_ns: 1, kernels_ns: vec![1] }).unwrap();
        assert!(!learned.learns && learned.message.contains("--learn"), "{learned:?}");
    });
}

fn answer(stream: &mut TcpStream, kind: Kind, body: &str) {
    Frame::read(&mut *stream).unwrap();
    Frame { kind, body: body.into() }.write(stream).unwrap();
}

/// Sends two reports to an agent that refuses the first, closes the connection after `read` bytes of the second, and
/// answers that on another connection.
fn refused_and_closed(report: &Measured, read: usize) -> [Result<Learned, ServeError>; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            answer(&mut stream, Kind::Refused, r#"{"code": "kind", "message": "no"}"#);
            stream.read_exact(&mut vec![0; read]).unwrap();
            drop(stream);
            answer(&mut listener.accept().unwrap().0, Kind::Learned, example(3));
        });
        let mut client = AgentClient::connect(&address).unwrap();
        [client.report(report), client.report(report)]
    })
}

#[test]
fn an_agent_that_closes_the_connection_after_a_refusal_is_asked_on_another() {
    let report = Measured::from_json(example(2).as_bytes()).unwrap();
    let mut whole = Vec::new();
    Frame { kind: Kind::Report, body: report.to_json().unwrap() }.write(&mut whole).unwrap();
    // Unread bytes reset the connection; without any, it ends normally.
    for read in [1, whole.len()] {
        let [first, second] = refused_and_closed(&report, read);
        assert!(matches!(first, Err(ServeError::Refused { .. })), "{first:?}");
        assert!(second.is_ok(), "{second:?}");
    }
}
