//! `tenure serve` and `tenure models`, run as their users run them.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A BERT of a few numbers.
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tenure-nn/tests/goldens/tiny_bert");

fn tenure(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn init(folder: &Path, more: &[&str]) -> Output {
    tenure(&[&["models", "init", folder.to_str().unwrap()], more].concat()).output().unwrap()
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A server, and what it said when it was there.
fn serve(args: &[&str]) -> (Child, String) {
    let mut server = tenure(&[&["serve"], args].concat()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (server, line)
}

fn get(line: &str, path: &str, headers: &str) -> String {
    ask(line, "GET", path, headers, "")
}

fn ask(line: &str, method: &str, path: &str, headers: &str, body: &str) -> String {
    let address = line.rsplit("http://").next().unwrap().trim();
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n")
        .unwrap();
    write!(stream, "{headers}\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_server_with_a_certificate_says_https() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    fs::create_dir(&models).unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name).display().to_string());
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let args = [models.to_str().unwrap(), "--listen", "127.0.0.1:0", "--tls-cert", &certificate];
    let (mut server, line) = serve(&[&args[..], &["--tls-key", &key, "--json"]].concat());
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(line.contains("\"url\":\"https://127.0.0.1:"), "{line}");
    let (mut server, line) = serve(&[&args[..], &["--tls-key", &key, "--grpc-port", "0"]].concat());
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(line.contains(" at grpcs://127.0.0.1:") && line.contains(" and https://127.0.0.1:"), "{line}");

    let refused = |more: &[&str]| {
        let output = tenure(&[&["serve"], &args[..], more].concat()).output().unwrap();
        (output.status.code(), said(&output.stderr))
    };
    let (code, error) = refused(&[]);
    assert!(code == Some(2) && error.contains("--tls-key"), "{error}");
    let (code, error) = refused(&["--tls-key", &certificate]);
    assert!(code == Some(2) && error.contains("cert.pem: there is no private key in it"), "{error}");
}

#[test]
fn requests_are_logged_if_they_are_to_be() {
    let folder = tempfile::tempdir().unwrap();
    for (format, expected) in [
        ("off", None),
        ("text", Some("id=\"mine\" protocol=\"http\" method=\"GET\" path=\"/v2\" status=200 outcome=\"answered\"")),
        ("json", Some("\"id\":\"mine\",\"protocol\":\"http\",\"method\":\"GET\",\"path\":\"/v2\",\"status\":200")),
    ] {
        let models = folder.path().to_str().unwrap();
        let (mut server, line) = serve(&[models, "--listen", "127.0.0.1:0", "--log", format]);
        let answer = get(&line, "/v2", "X-Request-Id: mine\r\n");
        assert!(answer.to_lowercase().contains("x-request-id: mine\r\n"), "{answer}");
        server.kill().unwrap();
        let logged = said(&server.wait_with_output().unwrap().stderr);
        assert_eq!(logged.lines().count(), usize::from(expected.is_some()), "{logged}");
        assert!(expected.is_none_or(|expected| logged.contains(expected)), "{logged}");
    }
}

#[test]
fn a_log_that_cannot_be_written_keeps_no_answer_back() {
    let folder = tempfile::tempdir().unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = tenure(&["serve", folder.path().to_str().unwrap(), "--listen", "127.0.0.1:0", "--log", "json"]);
    let mut server = command.stderr(full).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let answer = get(&line, "/v2", "");
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

#[test]
fn a_server_whose_ready_line_cannot_be_written_says_it_on_standard_error_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let args = ["serve", folder.path().to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let mut server = tenure(&args).stdout(full()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("tenure: standard output: No space left on device"), "{line}");
    assert!(get(&line, "/v2", "").starts_with("HTTP/1.1 200 OK"));
    Command::new("kill").arg(server.id().to_string()).status().unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
    // A program waits for this line.
    let output = tenure(&[&args[..], &["--json"]].concat()).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output.stderr));
    assert!(said(&output.stderr).contains("standard output: No space left on device"));
}

#[test]
fn models_are_written_once_and_served_until_somebody_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    let output = init(&models, &["--encoder", TINY]);
    assert!(output.status.success(), "{}", said(&output.stderr));
    assert!(said(&output.stdout).starts_with("digits, next-byte, tiny_bert: written to "), "{}", said(&output.stdout));
    let again = init(&models, &[]);
    assert!(again.status.code() == Some(2) && said(&again.stderr).contains("digits: it exists already"));

    let tokens = folder.path().join("tokens");
    fs::write(&tokens, "one\n\n# a comment\ntwo\n").unwrap();
    let [models, tokens] = [&models, &tokens].map(|path| path.to_str().unwrap());
    let (mut server, line) =
        serve(&[models, "--listen", "127.0.0.1:0", "--grpc-port", "0", "--device-bytes", "8MiB", "--tokens", tokens]);
    assert!(line.starts_with("serving 3 of 3 models with 8.39 MB of cpu for weights at grpc://127.0.0.1:"), "{line}");
    assert!(line.contains(" and http://127.0.0.1:"), "{line}");
    for wrong in ["", "Authorization: Bearer # a comment\r\n"] {
        assert!(get(&line, "/v2/models/tiny_bert", wrong).starts_with("HTTP/1.1 401"));
    }
    let metadata = get(&line, "/v2/models/tiny_bert", "Authorization: Bearer two\r\n");
    assert!(metadata.starts_with("HTTP/1.1 200") && metadata.contains("sentence_embedding"), "{metadata}");
    assert!(Command::new("kill").args(["-INT", &server.id().to_string()]).status().unwrap().success());
    assert!(server.wait().unwrap().success());
}

/// The parent and the process group of a process; `None` if it is gone.
fn parent_and_group(process: u32) -> Option<(u32, u32)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // They stand behind the name, which may have spaces, and the state.
    let mut numbers = stat.rsplit(") ").next()?.split(' ').skip(1).map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next())
}

/// Processes that a process has started, and that are not reaped yet.
fn children(process: u32) -> Vec<u32> {
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_child = |child: &u32| parent_and_group(*child).is_some_and(|(parent, _)| parent == process);
    let mut children: Vec<u32> = processes.filter(is_child).collect();
    children.sort_unstable();
    children
}

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap().success());
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(300), "never: {what}");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn workers_compute_are_replaced_and_end_with_their_server() {
    const ASKED: &str =
        r#"{"inputs": [{"name": "tokens", "datatype": "INT64", "shape": [1, 3], "data": [72, 101, 108]}]}"#;
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    assert!(init(&models, &["--encoder", TINY]).status.success());
    for end in ["INT", "KILL"] {
        let (mut server, line) =
            serve(&[models.to_str().unwrap(), "--listen", "127.0.0.1:0", "--device-bytes", "8MiB"]);
        let asked = || ask(&line, "POST", "/v2/models/next-byte/infer", "", ASKED);
        let first = asked();
        assert!(first.starts_with("HTTP/1.1 200"), "{first}");
        until("two workers", || children(server.id()).len() == 2);
        let workers = children(server.id());
        workers.iter().for_each(|worker| signal("KILL", *worker));
        // A terminal interrupts a whole process group: no worker is in the server's.
        let is_apart = |worker: &u32| parent_and_group(*worker) == Some((server.id(), *worker));
        until("two others, each in a group of its own", || {
            let now = children(server.id());
            now.len() == 2 && now.iter().all(|worker| !workers.contains(worker) && is_apart(worker))
        });
        let answer = |answer: &str| answer.rsplit_once("\r\n\r\n").unwrap().1.to_owned();
        assert_eq!(answer(&asked()), answer(&first));
        let workers = children(server.id());
        signal(end, server.id());
        assert_eq!(server.wait().unwrap().success(), end == "INT");
        until("no worker is left", || workers.iter().all(|worker| !Path::new(&format!("/proc/{worker}")).exists()));
    }
}

#[test]
fn the_first_line_says_for_machines_where_which_models_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    assert!(init(&models, &["--encoder", TINY]).status.success());
    fs::write(models.join("digits/config.toml"), "architecture = 1").unwrap();
    let (mut server, line) = serve(&[models.to_str().unwrap(), "--listen", "127.0.0.1:0", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(said["url"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{said}");
    assert_eq!(
        (&said["grpc"], &said["models"]),
        (&serde_json::Value::Null, &serde_json::json!(["next-byte", "tiny_bert"]))
    );
    signal("INT", server.id());
    assert!(server.wait().unwrap().success());
}

#[test]
fn an_unusable_option_of_a_server_gets_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let empty = folder.path().join("tokens");
    fs::write(&empty, "\n").unwrap();
    for (args, expected) in [
        (&["nowhere"][..], "tenure: nowhere: No such file"),
        (&[models, "--listen", &address], "cannot listen here"),
        (&[models, "--tokens", empty.to_str().unwrap()], "no token: write one a line"),
        (&[models, "--allow-host", "http://models"], "a host is a name without a scheme or port"),
        (&[models, "--allow-origin", "app.example"], "an origin is such as https://app.example.com"),
        (&[models, "--device-bytes", "some"], "expected a whole number of bytes"),
    ] {
        let output = tenure(&[&["serve"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output.stderr).contains(expected), "{}", said(&output.stderr));
    }
}
