//! `tenure train`, run as its users run it.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Text enough for an epoch of several steps.
const TEXT: &[&str] = &["train", "--model", "gpt2-mini", "--data", "text:text", "--batch-size", "1", "--threads", "2"];

/// A folder with a text, and what the others of these tests need.
pub(super) fn here() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..600).map(|number| format!("{number}, ")).collect();
    fs::write(folder.path().join("text"), &text[..128 * 12 + 1]).unwrap();
    folder
}

fn program(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.current_dir(folder).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(super) fn tenure(folder: &Path, args: &[&str]) -> Output {
    program(folder, args).output().unwrap()
}

/// The JSON that a run prints, which must succeed.
fn train(folder: &Path, args: &[&str]) -> Value {
    json(&tenure(folder, &[TEXT, args, &["--json"]].concat()))
}

fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "", "nothing moves in a pipe");
    last_line(output)
}

pub(super) fn last_line(output: &Output) -> Value {
    serde_json::from_str(str::from_utf8(&output.stdout).unwrap().lines().last().unwrap()).unwrap()
}

/// The JSON and the complaints of a run that ends early.
pub(super) fn partly(output: &Output) -> (Value, Vec<String>) {
    assert_eq!(output.status.code(), Some(2));
    let said = str::from_utf8(&output.stderr).unwrap();
    (last_line(output), said.lines().map(str::to_owned).collect())
}

/// Waits until a run with `--tensorboard events` has made its first step, which makes the file larger than its version
/// does, or has ended.
fn wait_for_first_step(folder: &Path, run: &mut Child) {
    let events = folder.join("events");
    let size = || files(&events).first().map_or(0, |file| fs::metadata(file).unwrap().len());
    eventually("a first step", || events.exists() && size() >= 100 || run.try_wait().unwrap().is_some());
}

/// Waits for a condition; the limit is for what hangs.
fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happens() {
        assert!(begun.elapsed() < Duration::from_secs(300), "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Replaces the folder's text by a pipe, for which a run waits after it has looked at its options. Returns the text.
#[cfg(unix)]
fn replace_text_by_pipe(folder: &Path) -> Vec<u8> {
    let path = folder.join("text");
    let text = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    text
}

/// Waits until a run reads its text, which is a pipe. Returns the end to write to: until then, the run goes no further.
#[cfg(unix)]
fn wait_for_reader(folder: &Path, run: &mut Child) -> File {
    let path = folder.join("text");
    let opened = thread::spawn(move || File::options().write(true).open(path));
    eventually("it reads its text", || {
        assert!(opened.is_finished() || run.try_wait().unwrap().is_none(), "it ended before");
        opened.is_finished()
    });
    opened.join().unwrap().unwrap()
}

fn send(signal: &str, run: &Child) {
    assert!(Command::new("kill").args([signal, &run.id().to_string()]).status().unwrap().success());
}

/// The one line of complaint about bad usage.
pub(super) fn complaint(folder: &Path, args: &[&str]) -> String {
    let output = tenure(folder, args);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Images of 28 pixels and their labels, in the four files of Fashion-MNIST.
fn write_fashion_mnist(folder: &Path, count: u8) {
    for part in ["train", "t10k"] {
        let pixels = (0..usize::from(count) * 784).map(|index| (index * 7 % 251) as u8);
        let images = [0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28].into_iter().chain(pixels);
        let labels = [0, 0, 8, 1, 0, 0, 0, count].into_iter().chain((0..count).map(|index| index % 10));
        fs::write(folder.join(format!("{part}-images-idx3-ubyte")), images.collect::<Vec<_>>()).unwrap();
        fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), labels.collect::<Vec<_>>()).unwrap();
    }
}

#[test]
fn the_same_seed_gives_the_same_losses_for_any_number_of_threads() {
    let folder = here();
    let losses = |threads: &str, seed: &str| {
        let args = ["train", "--model", "llama-mini", "--data", "text:text", "--batch-size", "2", "--steps", "2"];
        let how = ["--threads", threads, "--seed", seed, "--json"];
        json(&tenure(folder.path(), &[&args[..], &how].concat()))["losses"].clone()
    };
    let first = losses("1", "5");
    assert_eq!([losses("2", "5"), losses("3", "5")], [first.clone(), first.clone()]);
    assert_ne!(losses("2", "6"), first);
}

#[test]
fn json_has_what_machines_read_and_the_files_are_written() {
    let folder = here();
    let args = ["--steps", "3", "--report", "run.html", "--tensorboard", "events", "--checkpoint", "run.safetensors"];
    let outcome = train(folder.path(), &args);
    let fields: Vec<&str> = outcome.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = ["model", "device", "devices", "steps", "losses", "step_ms_median", "peak_bytes", "accuracy"];
    expected.sort();
    assert_eq!(fields, expected);
    assert_eq!((&outcome["model"], &outcome["device"]), (&"gpt2-mini".into(), &"cpu".into()));
    assert_eq!((&outcome["steps"], outcome["losses"].as_array().unwrap().len()), (&3.into(), 3));
    assert!(outcome["step_ms_median"].as_f64().unwrap() > 0.0);
    // Parameters, their gradients, and Adam's two averages.
    assert!(outcome["peak_bytes"].as_u64().unwrap() > 16 * 800_000);
    assert!((0.0..=1.0).contains(&outcome["accuracy"].as_f64().unwrap()));

    let page = fs::read_to_string(folder.path().join("run.html")).unwrap();
    let parts = ["<h2>Loss</h2>", "<h2>Memory over the run</h2>", "<h2>Step time</h2>", "optimizer state"];
    let facts = ["text:text", "Median step", "most at any moment, peak", "Memory during step 3"];
    for expected in parts.iter().chain(&facts) {
        assert!(page.contains(expected), "{expected} is missing");
    }
    assert!(!page.contains("<script") && !page.contains("NaN") && page.len() < 1_000_000);
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    let [events] = &files(&folder.path().join("events"))[..] else { panic!("one file") };
    let events = fs::read(events).unwrap();
    for tag in ["loss", "learning_rate", "examples_per_second", "memory/peak", "memory/activation", "accuracy"] {
        assert!(events.windows(tag.len()).any(|bytes| bytes == tag.as_bytes()), "{tag} is missing");
    }

    // A run that is over goes on to more steps, but not back, and is no run of another kind.
    let resume = ["--resume", "run.safetensors", "--steps"];
    let back = TEXT.iter().map(|arg| if *arg == "text:text" { "text:./text" } else { arg });
    let output = tenure(folder.path(), &back.chain(resume).chain(["2"]).collect::<Vec<_>>());
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "tenure: the checkpoint is of step 3, of 2 to make: none is made\n");
    assert_eq!(train(folder.path(), &[&resume[..], &["4"]].concat())["steps"], 4);
    let others = [
        (["--seed", "1"], "run.safetensors: the checkpoint is of a run with --seed 0, not 1"),
        (
            ["--model", "llama-mini"],
            "run.safetensors: the checkpoint is of a run with --model gpt2-mini, not llama-mini",
        ),
        (["--batch-size", "3"], "run.safetensors: the checkpoint is of a run with --batch-size 1, not 3"),
        (["--data", "text:run.html"], "run.safetensors: the contents of --data are not those that"),
    ];
    for ([option, value], expected) in others {
        let mut args = [TEXT, &resume, &["4"]].concat();
        match args.iter().position(|arg| *arg == option) {
            Some(place) => args[place + 1] = value,
            None => args.extend([option, value]),
        }
        let said = complaint(folder.path(), &args);
        assert!(said.contains(expected), "{said}");
    }
    fs::write(folder.path().join("damaged"), b"no checkpoint").unwrap();
    let said = complaint(folder.path(), &[TEXT, &["--resume", "damaged"]].concat());
    assert!(said.starts_with("tenure: damaged: ") && said.lines().count() == 1, "{said}");
}

#[cfg(unix)]
#[test]
fn a_profile_has_the_steps_after_the_first_and_their_operations() {
    let folder = here();
    let outcome = train(folder.path(), &["--steps", "3", "--profile", "trace.json"]);
    let rows = outcome["profile"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    assert_eq!(row("training step")["calls"], 2);
    assert!(row("linear")["own_us"].as_f64().unwrap() > 0.0);
    assert!(row("training step")["total_us"].as_f64() >= row("linear")["total_us"].as_f64());
    let trace: Value = serde_json::from_slice(&fs::read(folder.path().join("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let count =
        |name: &str, phase: &str| events.iter().filter(|event| event["name"] == name && event["ph"] == phase).count();
    assert_eq!(count("training step", "X"), 2);
    assert!(count("memory in use", "C") > 10 && count("fwdbwd", "s") > 10);

    let args = [TEXT, &["--steps", "1", "--profile", "trace.json"]].concat();
    let output = tenure(folder.path(), &args);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("own CPU memory") && said.contains("training step"), "{said}");
}

#[test]
fn a_run_is_recorded_planned_and_placed_and_learns_the_same() {
    let folder = here();
    let plain = train(folder.path(), &["--steps", "3", "--problem", "problem.json"]);
    let plan = ["plan", "problem.json", "--fast-bytes", "50%", "--objective", "score", "--planner", "density"];
    json(&tenure(folder.path(), &[&plan[..], &["-o", "mapping.json", "--json"]].concat()));
    let tiers = ["--mapping", "mapping.json", "--tier", "device=dram@64MiB", "--tier", "host=./@64MiB"];
    let placed = train(folder.path(), &[&["--steps", "3"], &tiers[..]].concat());
    assert_eq!(placed["losses"], plain["losses"]);
    let placement = &placed["placement"];
    assert_eq!((&placement["verified_share"], &placement["outside"]), (&Value::from(1.0), &serde_json::json!({})));
    let keys = &placement["keys"];
    assert_eq!((&keys["never_came"], &keys["unmapped"]), (&serde_json::json!([]), &serde_json::json!([])));
    // Neither holds everything.
    for (tier, tag) in [(0, "activation"), (1, "weight")] {
        assert!(placement["tiers"][tier]["tags"][tag]["verified"].as_u64() > Some(0), "{placement}");
    }
    assert_eq!(files(folder.path()).len(), 3, "the tier's file is gone");
}

#[test]
fn a_budget_is_kept_with_the_same_losses_and_one_that_is_too_small_refused() {
    let folder = here();
    let run = ["train", "--model", "gpt2-mini", "--data", "text:text", "--batch-size", "8", "--steps", "3", "--json"];
    let plain = json(&tenure(folder.path(), &run));
    let spill = ["--spill", ".", "--spill-bytes", "67108864", "--codec", "none"];
    let output = tenure(folder.path(), &[&run[..], &spill[..], &["--budget", "85%"]].concat());
    assert!(String::from_utf8_lossy(&output.stderr).contains("a plain step takes "), "{output:?}");
    assert!(output.status.success(), "{output:?}");
    let within: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(within["losses"], plain["losses"]);
    let bytes = |field: &str| within[field].as_u64().unwrap();
    let most = bytes("budget_bytes").min(plain["peak_bytes"].as_u64().unwrap() - 1);
    assert!(bytes("peak_bytes") <= most, "{within}");
    // The second batch is smaller.
    assert!(bytes("spilled_bytes") > 0 && bytes("written_bytes") >= 2 * bytes("spilled_bytes"), "{within}");
    assert!(within["tiers"]["disk"]["out_bandwidth"].as_u64() > Some(0), "{within}");
    assert_eq!(files(folder.path()).len(), 1, "what was spilled has no name");
    let of_budget = [
        "budget_bytes",
        "resident_bytes",
        "uncounted_bytes",
        "spilled_bytes",
        "recomputed_us",
        "stall_us",
        "unplanned",
        "read_bytes",
        "written_bytes",
        "written_bytes_per_day",
        "codec",
        "is_lossy",
        "compression",
        "disk",
        "tiers",
    ];
    assert!(of_budget.iter().all(|field| !within[field].is_null() && plain[field].is_null()), "{within}");
    assert!(
        (&within["codec"], &within["is_lossy"], &within["compression"]) == (&"none".into(), &false.into(), &1.0.into())
    );

    // What is said to do does, however far from it a budget is; with an optimizer's state on disk, too.
    let run = [TEXT, &["--steps", "2", "--spill-bytes", "67108864", "--budget"]].concat();
    for too_small in ["1", "12000000"] {
        let said = complaint(folder.path(), &[&run[..], &[too_small]].concat());
        let (_, least) = said.split_once("a budget of about ").unwrap();
        let (least, how) = least.split_once(": ").unwrap();
        assert!(how.contains("this is an estimate"), "{said}");
        assert!(said.contains(&format!("a budget of {too_small} bytes is too small")), "{said}");
        let within = tenure(folder.path(), &[&run[..], &[least]].concat());
        assert!(within.status.success(), "{said}, and then {}", String::from_utf8_lossy(&within.stderr));
    }

    let said = complaint(folder.path(), &[TEXT, &["--budget", "50%", "--spill", "nowhere"]].concat());
    assert!(said.contains("nowhere"), "{said}");

    let worn = ["--steps", "3", "--budget", "85%", "--spill-bytes", "67108864", "--spill-daily-bytes", "1048576"];
    let said = complaint(folder.path(), &[TEXT, &worn].concat());
    assert!(said.contains("may be written in a day"), "{said}");
}

#[test]
fn a_codec_makes_what_is_spilled_smaller_and_a_lossy_one_is_named() {
    let folder = here();
    let run = ["train", "--model", "gpt2-mini", "--data", "text:text", "--batch-size", "4"];
    let two = ["--steps", "2", "--json"];
    let plain = json(&tenure(folder.path(), &[&run[..], &two].concat()));
    let within = |codec| [&run[..], &["--spill-bytes", "67108864", "--budget", "85%", "--codec", codec]].concat();
    let losses = |run: &Value| run["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
    let plain: Vec<f64> = losses(&plain);
    // Where the optimizer's state leaves too, nothing of that is lost.
    for (codec, is_lossy, least) in [("planes", false, 1.05), ("fp16", true, 1.2)] {
        let output = tenure(folder.path(), &[&within(codec)[..], &two].concat());
        let made = last_line(&output);
        assert_eq!((&made["codec"], &made["is_lossy"]), (&codec.into(), &is_lossy.into()));
        assert!(made["compression"].as_f64() > Some(least), "{made}");
        let made: Vec<f64> = losses(&made);
        assert_eq!(made == plain, !is_lossy, "{codec}: {made:?} {plain:?}");
        assert!(
            made.iter().zip(&plain).all(|(made, plain)| (made - plain).abs() < 0.01),
            "{codec}: {made:?} {plain:?}"
        );
    }
    // So little that the optimizer's state alone is not enough to leave.
    let tight = ["--spill-bytes", "67108864", "--budget", "55%", "--codec", "csr-fp16"];
    let reported = ["--steps", "3", "--report", "run.html"];
    let output = tenure(folder.path(), &[&run[..], &tight, &reported].concat());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("csr-fp16, which is lossy"), "{said}");
    let page = fs::read_to_string(folder.path().join("run.html")).unwrap();
    // Whether that step's saved tensors go to disk or are computed again is up to the speeds that were measured.
    for said in [
        "csr-fp16, which is lossy",
        "Memory by tier during step 3",
        "Links during step 3",
        "What was saved in step 3",
        "limit, peak ",
    ] {
        assert!(page.contains(said), "{said}");
    }
    let said = complaint(folder.path(), &[TEXT, &["--budget", "85%", "--codec", "zip"]].concat());
    assert!(said.contains("there is no codec \"zip\"") && said.contains("auto"), "{said}");
}

#[test]
fn a_killed_run_leaves_nothing_where_it_spilled() {
    let folder = here();
    let spill = folder.path().join("spill");
    fs::create_dir(&spill).unwrap();
    let budget = ["--budget", "85%", "--spill", "spill", "--spill-bytes", "67108864", "--tensorboard", "events"];
    let run = ["train", "--model", "gpt2-mini", "--data", "text:text", "--batch-size", "8", "--steps", "1000000"];
    let mut child = program(folder.path(), &[&run[..], &budget[..]].concat()).spawn().unwrap();
    wait_for_first_step(folder.path(), &mut child);
    let opened = files(Path::new(&format!("/proc/{}/fd", child.id())));
    let spilled = opened.iter().filter(|link| fs::read_link(link).is_ok_and(|file| file.starts_with(&spill)));
    assert_eq!(spilled.count(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(files(&spill), Vec::<PathBuf>::new());

    // Nor does one that asks for more than there is.
    let too_many = ["--budget", "85%", "--spill", "spill", "--spill-bytes", "1152921504606846976"];
    let said = complaint(folder.path(), &[TEXT, &too_many].concat());
    assert!(said.contains("spill") && said.contains("are asked for"), "{said}");
    assert_eq!(files(&spill), Vec::<PathBuf>::new());
}

#[test]
fn an_interrupted_run_leaves_a_checkpoint_and_goes_on_bit_for_bit() {
    let folder = here();
    let steps = ["--steps", "5"];
    let whole = train(folder.path(), &steps);

    let args = [TEXT, &steps, &["--json", "--tensorboard", "events", "--report", "run.html"]].concat();
    let interrupted = || {
        let mut child = program(folder.path(), &args).spawn().unwrap();
        wait_for_first_step(folder.path(), &mut child);
        send("-TERM", &child);
        let output = child.wait_with_output().unwrap();
        fs::remove_dir_all(folder.path().join("events")).unwrap();
        output
    };
    // A run that made all its steps before the signal came is made again.
    let caught = (0..50).map(|_| interrupted()).find(|output| last_line(output)["steps"].as_u64().unwrap() < 5);
    let output = caught.expect("it is never caught in the middle");
    assert_eq!(output.status.code(), Some(143));
    let partly: Value = serde_json::from_slice(&output.stdout).unwrap();
    let done = partly["steps"].as_u64().unwrap();
    assert!(done >= 1 && partly["accuracy"].is_null(), "{partly}");
    let page = || fs::read_to_string(folder.path().join("run.html")).unwrap();
    let sentence = format!("Interrupted after {done} of 5 steps.");
    assert!(page().contains(&sentence), "{}", page());

    let said = String::from_utf8(output.stderr).unwrap();
    let checkpoint = format!("gpt2-mini-step{done}.safetensors");
    let command = format!("tenure {} --resume {checkpoint}", args.join(" "));
    assert_eq!(said, format!("tenure: interrupted after step {done}; to go on:\n  {command}\n"));
    let command: Vec<&str> = command.split(' ').skip(1).collect();
    let resumed = json(&tenure(folder.path(), &command));
    assert_eq!((&resumed["losses"], &resumed["accuracy"]), (&whole["losses"], &whole["accuracy"]));
    assert!(!page().contains("Interrupted"), "the whole run's page");
}

#[cfg(unix)]
#[test]
fn a_signal_ends_a_run_that_waits_for_its_text_with_the_status_of_the_signal() {
    let folder = here();
    replace_text_by_pipe(folder.path());
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let mut child = program(folder.path(), TEXT).spawn().unwrap();
        // Without its text it does not come to its first step.
        let _text = wait_for_reader(folder.path(), &mut child);
        send(signal, &child);
        eventually("it ends", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
        assert_eq!(files(folder.path()).len(), 1, "the text");
    }
}

#[test]
fn a_problem_is_refused_to_a_run_too_short_to_record_it() {
    let folder = here();
    for steps in ["1", "2"] {
        let said = complaint(folder.path(), &[TEXT, &["--steps", steps, "--problem", "p.json"]].concat());
        assert!(said.contains("--problem") && said.contains("--steps 3 or more"), "{said}");
    }
    assert_eq!(files(folder.path()).len(), 1, "the text");
}

#[test]
fn an_interrupted_run_does_not_write_a_problem_that_it_did_not_record() {
    let folder = here();
    let args = ["--steps", "1000000", "--problem", "p.json", "--tensorboard", "events", "--json"];
    let interrupted = || {
        let mut child = program(folder.path(), &[TEXT, &args].concat()).spawn().unwrap();
        wait_for_first_step(folder.path(), &mut child);
        send("-INT", &child);
        let output = child.wait_with_output().unwrap();
        fs::remove_dir_all(folder.path().join("events")).unwrap();
        let is_written = folder.path().join("p.json").exists();
        let _ = fs::remove_file(folder.path().join("p.json"));
        (output, is_written)
    };
    for _ in 0..50 {
        let (output, is_written) = interrupted();
        let steps = last_line(&output)["steps"].as_u64().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), is_written), (Some(130), steps >= 3), "{said}");
        if steps < 3 {
            assert!(said.contains("p.json: no problem was written"), "{said}");
            return;
        }
    }
    panic!("it is never caught before its third step");
}

#[test]
fn a_run_goes_on_with_the_same_data_by_another_path_and_not_with_other_data() {
    let folder = here();
    let path = folder.path();
    let run = |data: &str, args: &[&str]| {
        let run = ["train", "--model", "gpt2-mini", "--data", data, "--batch-size", "1", "--steps"];
        tenure(path, &[&run[..], args].concat())
    };
    assert!(run("text:text", &["1", "--checkpoint", "run.safetensors"]).status.success());
    fs::copy(path.join("text"), path.join("copy")).unwrap();
    let resume = ["2", "--resume", "run.safetensors"];
    assert!(run("text:copy", &resume).status.success());

    let mut bytes = fs::read(path.join("text")).unwrap();
    bytes[0] ^= 1;
    fs::write(path.join("text"), bytes).unwrap();
    let refused = run("text:text", &resume);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--changed-data"));
    assert!(run("text:text", &[&resume[..], &["--changed-data"]].concat()).status.success());
}

#[test]
fn a_folder_in_which_nothing_can_be_spilled_is_refused_by_the_option_that_names_it() {
    let folder = here();
    let said = complaint(folder.path(), &[TEXT, &["--budget", "85%", "--spill", "/proc"]].concat());
    assert!(said.contains("--spill /proc: no file can be made there"), "{said}");
    let run = program(folder.path(), &[TEXT, &["--budget", "85%"]].concat()).env("TMPDIR", "/no/where").output();
    let said = String::from_utf8(run.unwrap().stderr).unwrap();
    assert!(said.contains("/no/where, the folder for temporary files") && said.contains("--spill DIR"), "{said}");
}

#[test]
fn images_have_their_own_channels_and_classes() {
    let folder = here();
    write_fashion_mnist(folder.path(), 4);
    let args = ["train", "--model", "resnet18", "--data", "fashion-mnist:.", "--batch-size", "3", "--epochs", "1"];
    let output = tenure(folder.path(), &args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    // torchvision's 11,689,512, with one channel and ten classes.
    assert!(text.contains("11,175,370") && text.contains("accuracy") && text.contains("peak memory"), "{text}");
    // Over the fourth image alone nothing could be normalised.
    assert!(text.contains("1, of 3 examples each"), "{text}");
    let args = ["train", "--model", "resnet18", "--data", "fashion-mnist:.", "--batch-size", "2", "--steps", "1"];
    let output = tenure(folder.path(), &[&args[..], &["--threads", "1"]].concat());
    assert!(String::from_utf8(output.stdout).unwrap().contains("cpu, 1 thread, seed 0"));
}

#[test]
fn a_run_that_diverges_shows_what_it_did_and_keeps_the_checkpoint_before() {
    let folder = here();
    let path = folder.path();
    let before = ["--steps", "2", "--checkpoint", "run.safetensors"];
    train(path, &before);
    let checkpoint = fs::read(path.join("run.safetensors")).unwrap();
    let files = ["--resume", "run.safetensors", "--checkpoint", "run.safetensors", "--report", "run.html"];
    let output = tenure(path, &[TEXT, &files, &["--steps", "9", "--lr", "1e30", "--json"]].concat());
    let (outcome, said) = partly(&output);
    assert_eq!((&outcome["steps"], &outcome["accuracy"]), (&3.into(), &Value::Null));
    assert_eq!(said[0], "tenure: goes on with --lr 1e30; it was 0.003 before");
    assert!(said[1].contains("in step 4: a smaller learning rate") && said[1].contains("--lr is 1e30"), "{said:?}");
    assert_eq!(said.len(), 2, "{said:?}");
    let page = fs::read_to_string(path.join("run.html")).unwrap();
    assert!(page.contains("<h2>Loss</h2>") && page.contains("Stopped by an error after 3 of 9 steps"), "{page}");
    assert!(page.contains("--lr is 1e30."), "{page}");
    assert!(fs::read(path.join("run.safetensors")).unwrap() == checkpoint);
    // It goes on from there, with the learning rate that it had.
    assert_eq!(train(path, &["--resume", "run.safetensors", "--steps", "3"])["steps"], 3);
}

#[test]
fn data_that_cannot_be_trained_on_is_refused_with_the_cause() {
    let folder = here();
    write_fashion_mnist(folder.path(), 4);
    let labels = folder.path().join("train-labels-idx1-ubyte");
    let mut bytes = fs::read(&labels).unwrap();
    bytes[10] = 77;
    fs::write(labels, bytes).unwrap();
    let said = complaint(folder.path(), &["train", "--model", "resnet18", "--data", "fashion-mnist:."]);
    assert!(said.contains("train-labels-idx1-ubyte: example 2 is of class 77, but the classes are 0 to 9"), "{said}");
    fs::write(folder.path().join("short"), "too short").unwrap();
    let said = complaint(folder.path(), &["train", "--model", "gpt2-mini", "--data", "text:short"]);
    assert!(said.contains("short: the text is too short: there are 9 tokens") && said.contains("take 129"), "{said}");
}

#[cfg(unix)]
#[test]
fn results_are_printed_though_files_cannot_be_written() {
    let folder = here();
    fs::create_dir(folder.path().join("gone")).unwrap();
    let text = replace_text_by_pipe(folder.path());
    let files = ["--steps", "4", "--checkpoint", "gone/run.safetensors"];
    let report = if cfg!(target_os = "linux") { "/dev/full" } else { "gone/run.html" };
    let args = [TEXT, &files, &["--report", report, "--json"]].concat();
    let mut child = program(folder.path(), &args).spawn().unwrap();
    let mut pipe = wait_for_reader(folder.path(), &mut child);
    fs::remove_dir(folder.path().join("gone")).unwrap();
    pipe.write_all(&text).unwrap();
    drop(pipe);
    let (outcome, said) = partly(&child.wait_with_output().unwrap());
    assert!(outcome["steps"] == 4 && outcome["accuracy"].is_number(), "{outcome}");
    assert!(said[0].starts_with("tenure: gone/run.safetensors: there is no folder"), "{said:?}");
    assert!(said[1].starts_with(&format!("tenure: {report}: ")) && said.len() == 2, "{said:?}");
}

#[test]
fn no_file_is_written_over_another_that_is_needed() {
    let folder = here();
    write_fashion_mnist(folder.path(), 4);
    fs::create_dir_all(folder.path().join("photos/cats")).unwrap();
    fs::write(folder.path().join("photos/cats/a.png"), "not looked into").unwrap();
    fs::write(folder.path().join("run.st"), "not looked into").unwrap();
    let text = ["--model", "gpt2-mini", "--data", "text:text"];
    let photos = ["--model", "resnet18", "--data", "images:photos"];
    let fashion = ["--model", "resnet18", "--data", "fashion-mnist:."];
    let over_data = "is of --data, and would be written over";
    let cases: [(&[&str], &[&str], &str); 11] = [
        (&text, &["--report", "x", "--checkpoint", "./x"], "--report x: it is the file of --checkpoint too"),
        (&text, &["--resume", "run.st", "--report", "run.st"], "--report run.st: it is the file of --resume too"),
        (&text, &["--problem", "x", "--report", "x"], "--report x: it is the file of --problem too"),
        (&text, &["--profile", "x", "--report", "x"], "--report x: it is the file of --profile too"),
        (&text, &["--problem", "text"], over_data),
        (&text, &["--report", "photos/../text"], over_data),
        (&text, &["--checkpoint", "text"], over_data),
        (&photos, &["--report", "photos/cats/a.png"], over_data),
        (&photos, &["--checkpoint", "photos/cats/new.JPG"], over_data),
        (&fashion, &["--checkpoint", "t10k-labels-idx1-ubyte"], over_data),
        (&fashion, &["--report", "train-images-idx3-ubyte.gz"], over_data),
    ];
    let before = fs::read(folder.path().join("text")).unwrap();
    for (data, files, expected) in cases {
        let said = complaint(folder.path(), &[&["train"], data, files].concat());
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(fs::read(folder.path().join("text")).unwrap(), before);
}

#[test]
fn options_that_exclude_each_other_name_others() {
    let folder = here();
    fs::create_dir_all(folder.path().join("photos/cats")).unwrap();
    fs::create_dir(folder.path().join("empty")).unwrap();
    fs::write(folder.path().join("photos/cats/a.png"), "not looked into").unwrap();
    fs::create_dir_all(folder.path().join("half/train/cats")).unwrap();
    fs::write(folder.path().join("pickle"), b"\x80\x04\x95\x0b\0\0\0").unwrap();
    let cases: [(&[&str], &[&str]); 23] = [
        (&["--model", "resnet18", "--data", "text:text"], &["resnet18 takes images", "gpt2-mini"]),
        (&["--model", "gpt2", "--data", "fashion-mnist:."], &["gpt2 takes text", "resnet18"]),
        (&["--model", "inception_v3", "--data", "fashion-mnist:."], &["299 pixels", "images:DIR"]),
        (&["--model", "bert", "--data", "text:text"], &["tenure embed", "gpt2-mini"]),
        (&["--model", "gpt2", "--data", "text:missing"], &["--data text:missing: "]),
        (&["--model", "gpt2", "--data", "text:pickle"], &["--data text:pickle: ", "not a text"]),
        (&["--model", "gpt2", "--data", "text:/dev/zero"], &["--data text:/dev/zero: ", "a pipe"]),
        (&["--model", "resnet18", "--data", "images:empty"], &["a folder for each class"]),
        (&["--model", "resnet18", "--data", "images:."], &["./empty: no image is in this folder"]),
        (&["--model", "resnet18", "--data", "images:half"], &["half: there is a folder train", "name half/train"]),
        (&["--model", "resnet18", "--data", "images:photos"], &["photos: cats is the only class", "train and val"]),
        (
            &["--model", "resnet18", "--data", "fashion-mnist:empty"],
            &["empty: train-images-idx3-ubyte is missing", "four files", "Debian"],
        ),
        (&["--model", "resnet18", "--data", "fashion-mnist:missing"], &["apt-get install dataset-fashion-mnist"]),
        (&["--model", "gpt2", "--data", "text:text", "--device", "cuda:200"], &["--device cuda:200"]),
        (&["--model", "gpt2", "--data", "text:text", "--captured"], &["--captured", "--device cuda"]),
        (
            &["--model", "gpt2", "--data", "text:text", "--device", "cuda", "--captured", "--devices", "2"],
            &["--captured", "leave out --devices"],
        ),
        (
            &["--model", "gpt2", "--data", "text:text", "--device", "cuda", "--problem", "a.json"],
            &["--problem", "leave out --device cuda"],
        ),
        (&["--model", "gpt2", "--data", "text:text", "--problem", "missing/a.json"], &["missing/a.json", "folder"]),
        (
            &["--model", "gpt2", "--data", "text:text", "--mapping", "missing", "--tier", "a=dram"],
            &["missing: No such file"],
        ),
        (&["--model", "gpt2", "--data", "text:text", "--report", "missing/a.html"], &["missing/a.html", "folder"]),
        (&["--model", "gpt2", "--data", "text:text", "--checkpoint", "."], &[".: it is not a regular file"]),
        (&["--model", "gpt2-mini", "--data", "text:text", "--tensorboard", "text"], &["text: "]),
        (&["--model", "gpt2-mini", "--data", "text:text", "--resume", "missing"], &["missing: No such file"]),
    ];
    for (args, expected) in cases {
        let said = complaint(folder.path(), &[&["train"], args].concat());
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(expected.iter().all(|part| said.contains(part)), "{said}");
    }
    let cases: [(&[&str], &str); 9] = [
        (&["--model", "gpt2", "--data", "video:x"], "images:DIR"),
        (&["--model", "vgg", "--data", "text:text"], "resnet18"),
        (&["--model", "gpt2", "--data", "text:text", "--mapping", "m.json"], "--tier <NAME=MEDIUM>"),
        (&["--model", "gpt2", "--data", "text:text", "--tier", "dram"], "expected NAME=MEDIUM, as in DRAM=dram@8GiB"),
        (&["--model", "gpt2", "--data", "text:text", "--tier", "DRAM=ram"], "is not a tier"),
        (&["--model", "gpt2", "--data", "text:text", "--lr", "-1"], "a number above 0"),
        (
            &["--model", "gpt2", "--data", "text:text", "--batch-size", "0"],
            "'--batch-size <N>': expected a whole number",
        ),
        (
            &["--model", "gpt2", "--data", "text:text", "--steps", "-1"],
            "'--steps <N>': expected a whole number above 0",
        ),
        (&["--model", "gpt2", "--data", "text:text", "--seed", "-1"], "a whole number from 0 to 18446744073709551615"),
    ];
    for (args, expected) in cases {
        let said = complaint(folder.path(), &[&["train"], args].concat());
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_batch_of_one_image_says_which_option_to_change_or_that_there_are_too_few() {
    let folder = here();
    let run = |batch_size| {
        let args =
            ["train", "--model", "resnet18", "--data", "fashion-mnist:.", "--steps", "1", "--batch-size", batch_size];
        complaint(folder.path(), &args)
    };
    write_fashion_mnist(folder.path(), 2);
    let said = run("1");
    assert!(
        said.contains("more than one value") && said.contains("a larger --batch-size than 1 is needed, 2"),
        "{said}"
    );
    write_fashion_mnist(folder.path(), 1);
    let said = run("8");
    assert!(said.contains("add images to train on, of which there are 1") && !said.contains("--batch-size"), "{said}");
}

#[test]
fn several_devices_learn_what_one_does() {
    let folder = here();
    let run = |args: &[&str]| {
        let common = ["train", "--model", "gpt2-mini", "--data", "text:text", "--threads", "2", "--json"];
        let options = ["--batch-size", "3", "--device", "cuda", "--driver", "sim"];
        tenure(folder.path(), &[&common[..], &options, args].concat())
    };
    let one = json(&run(&["--steps", "2"]));
    let two = json(&run(&["--steps", "2", "--devices", "2", "--checkpoint", "run.safetensors"]));
    assert_eq!((&one["devices"], &two["devices"]), (&1.into(), &2.into()));
    let losses = |outcome: &Value| -> Vec<f64> {
        outcome["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
    };
    for (one, two) in losses(&one).iter().zip(losses(&two)) {
        assert!((one - two).abs() < 1e-4, "{two}, and on one device {one}");
    }
    let resumed = json(&run(&["--steps", "3", "--resume", "run.safetensors"]));
    assert_eq!(losses(&resumed)[..2], losses(&two)[..]);

    let refused = |output: Output, expected: &str| {
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(expected), "{said}");
    };
    refused(run(&["--devices", "4"]), "by --batch-size 4 or more, or take fewer --devices");
    refused(run(&["--devices", "0"]), "expected a whole number above 0");
    let on_cpu = tenure(folder.path(), &[TEXT, &["--devices", "2"]].concat());
    refused(on_cpu, "--devices 2: the CPU is one device");
}
