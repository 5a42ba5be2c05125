//! Tests of models that the server computes, from its clients' side.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::served::probe::{self, BAD, Control, PANIC, ask, numbers};
use crate::served::{Served, example_models, floats, images, integers, own, request, until};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tenure_nn::checkpoint::Weights;
use tenure_nn::layers::Layer;
use tenure_nn::models::{Bert, BertConfig, Llama, LlamaConfig, ResNet, ResNetConfig};
use tenure_nn::sentence;
use tenure_nn::{Module, Scope, Source, checkpoint};
use tenure_serve::protocol::{Encoding, InferRequest, ModelState};
use tenure_serve::service::Service;
use tenure_serve::serving::ServingOptions;
use tenure_tensor::random::Generator;
use tenure_tensor::{Tensor, autograd};

fn pixels(rows: usize, seed: usize) -> Vec<f32> {
    (0..rows * 28 * 28).map(|index| ((index * 31 + seed * 7919) % 255) as f32 / 255.0).collect()
}

#[test]
fn each_example_answers_what_its_model_does_bit_for_bit() {
    let served = Served::examples();
    let at = |name: &str| served.folder.path().join(name);

    let image = pixels(2, 1);
    let answer = served.infer(&request("digits", vec![floats("image", &[2, 1, 28, 28], &image)])).unwrap();
    let config = ResNetConfig { channels: 1, classes: 10, width: 8, ..ResNetConfig::RESNET18 };
    let model = own(&at("digits"), |scope| ResNet::new(scope, config).unwrap());
    let expected = autograd::no_grad(|| model.forward(&Tensor::from_slice(&image, &[2, 1, 28, 28]).unwrap())).unwrap();
    assert_eq!((answer.outputs[0].name(), answer.outputs[0].shape()), ("scores", &[2, 10][..]));
    assert_eq!(answer.outputs[0].bytes()[..], expected.to_bytes().unwrap());

    let tokens = [72, 101, 108, 108, 111];
    let answer = served.infer(&request("next-byte", vec![integers("tokens", &[1, 5], &tokens)])).unwrap();
    let config = LlamaConfig {
        vocab_size: 256,
        hidden_size: 64,
        intermediate_size: 176,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        rms_norm_eps: 1e-6,
        ..LlamaConfig::default()
    };
    let model = own(&at("next-byte"), |scope| Llama::new(scope, &config).unwrap());
    let tokens = Tensor::from_slice(&tokens, &[1, 5]).unwrap();
    let expected = autograd::no_grad(|| model.forward(&tokens)).unwrap();
    assert_eq!(answer.outputs[0].bytes()[..], expected.to_bytes().unwrap());

    let ids = [5, 9, 3, 7, 1, 0];
    let mask = [1, 1, 1, 1, 1, 0];
    let inputs = vec![integers("attention_mask", &[2, 3], &mask), integers("input_ids", &[2, 3], &ids)];
    let answer = served.infer(&request("tiny-sentences", inputs)).unwrap();
    let config: BertConfig =
        serde_json::from_slice(&std::fs::read(at("tiny-sentences").join("config.json")).unwrap()).unwrap();
    let model = own(&at("tiny-sentences"), |scope| Bert::new(scope, &config).unwrap());
    let [ids, mask] = [ids, mask].map(|values| Tensor::from_slice(&values, &[2, 3]).unwrap());
    let expected = autograd::no_grad(|| sentence::vectors(&model, &ids, &mask)).unwrap();
    assert_eq!((answer.outputs[0].name(), answer.outputs[0].shape()), ("sentence_embedding", &[2, 32][..]));
    assert_eq!(answer.outputs[0].bytes()[..], expected.to_bytes().unwrap());
}

/// Tests five ResNets with different weights, and memory for two of them.
#[test]
fn five_models_with_memory_for_two_answer_random_requests_of_two_clients() {
    let folder = tempfile::tempdir().unwrap();
    let config = ResNetConfig { channels: 1, classes: 10, width: 8, ..ResNetConfig::RESNET18 };
    let names: Vec<String> = (0..5).map(|number| format!("crowded-{number}")).collect();
    for (seed, name) in names.iter().enumerate() {
        let model = ResNet::new(&Scope::new(&Generator::new(seed as u64)), config).unwrap();
        let state = model.state().into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
        fs::create_dir(folder.path().join(name)).unwrap();
        checkpoint::save(&folder.path().join(name).join("model.safetensors"), state, ("of", "a test")).unwrap();
        fs::write(folder.path().join(name).join("config.toml"), DIGITS).unwrap();
    }
    let image = pixels(1, 3);
    let pixels = Tensor::from_slice(&image, &[1, 1, 28, 28]).unwrap();
    let expected: Vec<Vec<u8>> = names
        .iter()
        .map(|name| {
            let model = own(&folder.path().join(name), |scope| ResNet::new(scope, config).unwrap());
            autograd::no_grad(|| model.forward(&pixels)).unwrap().to_bytes().unwrap()
        })
        .collect();
    assert!(expected.iter().enumerate().all(|(number, answer)| !expected[..number].contains(answer)));
    let file = fs::metadata(folder.path().join("crowded-0/model.safetensors")).unwrap().len();
    let memory = 5 * file / 2;
    let served = Served::new(folder, memory);
    thread::scope(|scope| {
        for client in 0..2 {
            let served = &served;
            let names = &names;
            let expected = &expected;
            let image = &image;
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(client);
                for _ in 0..60 {
                    let number = random.random_range(0..5);
                    let asked = request(&names[number], vec![floats("image", &[1, 1, 28, 28], image)]);
                    let answer = served.infer(&asked).unwrap();
                    assert_eq!(answer.outputs[0].bytes()[..], expected[number]);
                    assert!(served.memory() <= memory, "{} of {memory}", served.memory());
                }
            });
        }
    });
    let snapshot = served.serving.snapshot();
    let (switches, answered): (Vec<u64>, Vec<u64>) =
        snapshot.models.iter().map(|model| (model.switches, model.answered)).unzip();
    assert!(switches.iter().sum::<u64>() > 10 && answered.iter().sum::<u64>() == 120, "{switches:?}, {answered:?}");
    assert!((1..=2).contains(&snapshot.models.iter().filter(|model| !model.resident.is_empty()).count()));
    let (_, metrics) = served.get("/metrics");
    let copied = metrics.lines().find(|line| line.starts_with("tenure_copied_bytes_total{from=\"disk\",to=\"dram\"}"));
    let copied: u64 = copied.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(copied > 10 * (file - file / 10), "{copied}");
    assert!(served.get("/").1.contains("kB on dram"));
    for name in &names {
        assert_eq!(served.post(&format!("/v2/repository/models/{name}/unload")).0, 200);
    }
    assert_eq!((served.memory(), images("crowded-")), (0, 0));
}

const DIGITS: &str = r#"
architecture = "resnet18"
inputs = [{ name = "image", datatype = "FP32", shape = [-1, 1, 28, 28] }]
outputs = [{ name = "scores", datatype = "FP32", shape = [-1, 10] }]
options = { channels = 1, classes = 10, width = 8 }
"#;

/// Starts a server whose probe `name` computes one number for as long as it is held.
fn busy(name: &str, config: &str) -> (Served, Arc<Control>) {
    let (served, control) = Served::probes(&[name], config, 1 << 20);
    control.hold();
    (served, control)
}

#[test]
fn requests_that_wait_are_computed_together_and_a_bad_one_spoils_no_other() {
    let (served, control) = busy("together", "batching = { max_rows = 8 }");
    let answers = thread::scope(|scope| {
        let served = &served;
        let asked = |number| {
            let answer = move || served.infer(&ask("together", number));
            scope.spawn(move || answer().map(|answer| numbers(&answer.outputs[0])[0]))
        };
        let first = asked(1.0);
        until("it computes", || control.calls().len() == 1);
        let others = [2.0, BAD, 4.0].map(asked);
        until("three wait", || queued(served) == 3);
        control.release();
        [first].into_iter().chain(others).map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!((&answers[0], &answers[1], &answers[3]), (&Ok(3.0), &Ok(6.0), &Ok(12.0)));
    let (status, reason) = answers[2].clone().unwrap_err();
    assert!(status == 400 && reason.contains("a number that it does not like"), "{reason}");
    let mut sizes: Vec<usize> = control.calls().iter().map(Vec::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 1, 1, 1, 3], "together, and then each by itself");
}

fn queued(served: &Served) -> u64 {
    served.serving.snapshot().models.iter().map(|model| model.queued).sum()
}

#[test]
fn weights_that_are_wanted_next_come_while_others_are_computed_with() {
    let names = ["ahead-0", "ahead-1", "ahead-2"];
    let (served, control) = Served::probes(&names, "", 1 << 20);
    control.hold();
    let resident = || served.serving.snapshot().models.iter().filter(|model| !model.resident.is_empty()).count();
    thread::scope(|scope| {
        let asked = |name: &'static str| {
            let served = &served;
            scope.spawn(move || served.infer(&ask(name, 2.0)).unwrap())
        };
        let first = asked(names[0]);
        until("it computes", || control.calls().len() == 1);
        let others = [asked(names[1]), asked(names[2])];
        until("two wait, and one comes", || queued(&served) == 2 && resident() > 1);
        control.release_one();
        until("the next computes", || control.calls().len() == 2);
        until("the last comes", || resident() == 3);
        assert_eq!(queued(&served), 1);
        control.release();
        for answer in [first].into_iter().chain(others) {
            assert_eq!(numbers(&answer.join().unwrap().outputs[0]), [6.0]);
        }
    });
    // A reading thread counts them, perhaps after the answers.
    let switches = || served.serving.snapshot().models.iter().map(|model| model.switches).collect::<Vec<u64>>();
    until("each has come once", || switches() == [1, 1, 1]);
}

#[test]
fn a_request_whose_client_goes_away_is_not_computed() {
    let (served, control) = busy("cancelled", "");
    thread::scope(|scope| {
        let first = scope.spawn(|| served.infer(&ask("cancelled", 1.0)));
        until("it computes", || control.calls().len() == 1);
        let encoded = ask("cancelled", 2.0).encode(Encoding::Json).unwrap();
        let mut leaving = TcpStream::connect(served.address).unwrap();
        leaving.write_all(&served.request("POST", "/v2/models/cancelled/infer", "", &encoded.body)).unwrap();
        until("it waits", || queued(&served) == 1);
        drop(leaving);
        until("it is gone", || queued(&served) == 0);
        control.release();
        assert!(first.join().unwrap().is_ok());
    });
    let answer = served.infer(&ask("cancelled", 5.0)).unwrap();
    assert_eq!((numbers(&answer.outputs[0]), control.calls().len()), (vec![15.0], 2));
}

#[test]
fn a_model_that_is_unloaded_while_it_computes_answers_first_and_is_gone_then() {
    let (served, control) = busy("unloaded", "");
    thread::scope(|scope| {
        let running = scope.spawn(|| served.infer(&ask("unloaded", 1.0)));
        until("it computes", || control.calls().len() == 1);
        let waiting = scope.spawn(|| served.infer(&ask("unloaded", 2.0)));
        until("one waits", || queued(&served) == 1);
        let unload = scope.spawn(|| served.post("/v2/repository/models/unloaded/unload"));
        let (status, reason) = waiting.join().unwrap().unwrap_err();
        assert!(status == 503 && reason.contains("was removed while the request waited"), "{reason}");
        assert!(images("unloaded") > 0 && !unload.is_finished());
        control.release();
        assert_eq!(numbers(&running.join().unwrap().unwrap().outputs[0]), [3.0]);
        assert_eq!(unload.join().unwrap().0, 200);
    });
    assert_eq!((served.memory(), images("unloaded")), (0, 0));
    let (status, reason) = served.infer(&ask("unloaded", 1.0)).unwrap_err();
    assert!(status == 503 && reason.contains("it was unloaded"), "{reason}");
    assert_eq!(served.get("/v2/models/unloaded/ready").0, 503);
    assert_eq!(served.post("/v2/repository/models/unloaded/load").0, 200);
    assert!(served.infer(&ask("unloaded", 1.0)).is_ok());
}

#[test]
fn urgent_requests_go_first_and_those_that_wait_too_long_are_told() {
    let (served, control) = busy("hurry", "");
    thread::scope(|scope| {
        let asked = |number, priority| {
            let timeout = Some(Duration::from_secs(60 * 60));
            let served = &served;
            let request = InferRequest { priority, timeout, ..ask("hurry", number) };
            scope.spawn(move || served.infer(&request))
        };
        let first = asked(1.0, 0);
        until("it computes", || control.calls().len() == 1);
        let patient = asked(2.0, 21);
        until("one waits", || queued(&served) == 1);
        let hurried = asked(3.0, 1);
        until("two wait", || queued(&served) == 2);
        let timeout = Some(Duration::from_millis(300));
        let (status, reason) = served.infer(&InferRequest { timeout, ..ask("hurry", 4.0) }).unwrap_err();
        assert!(status == 504 && reason.contains("300ms"), "{reason}");
        control.release();
        assert!([first, patient, hurried].into_iter().all(|thread| thread.join().unwrap().is_ok()));
    });
    assert_eq!(control.calls(), [[1.0], [3.0], [2.0]]);
}

#[test]
fn a_request_gets_no_more_time_than_its_model_gives() {
    let (served, control) = busy("hurry", "timeout_ms = 300");
    for timeout in [None, Some(Duration::from_secs(60 * 60))] {
        let (status, reason) = served.infer(&InferRequest { timeout, ..ask("hurry", 1.0) }).unwrap_err();
        assert!(status == 504 && reason.contains("300ms"), "{reason}");
    }
    control.release();
}

#[test]
fn a_network_that_panics_fails_one_request() {
    let (served, _) = Served::probes(&["panics"], "", 1 << 20);
    let (status, reason) = served.infer(&ask("panics", PANIC)).unwrap_err();
    assert!(status == 500 && reason.contains("the network panicked: as it should"), "{reason}");
    assert_eq!(numbers(&served.infer(&ask("panics", 2.0)).unwrap().outputs[0]), [6.0]);
    assert!(served.serving.is_live());
}

#[test]
fn a_broken_model_says_why_and_hinders_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        probe::write(folder.path(), name, "");
        folder.path().join(name).join("model.safetensors")
    };
    write("good");
    fs::write(write("corrupt"), [0xff; 5000]).unwrap();
    File::options().write(true).open(write("truncated")).unwrap().set_len(50_000).unwrap();
    fs::remove_file(write("missing")).unwrap();
    write("unknown");
    let config = folder.path().join("unknown/config.toml");
    fs::write(&config, fs::read_to_string(&config).unwrap().replace("probe", "prober")).unwrap();
    let control = Arc::new(Control::default());
    let served = Served::with(folder, 1 << 20, probe::architectures(&control));
    for (name, expected) in [
        ("corrupt", "no safetensors"),
        ("truncated", "are missing at its end; copy or download it again"),
        ("missing", "No such file"),
        ("unknown", "unknown architecture \"prober\": there are probe"),
    ] {
        let (status, reason) = served.infer(&ask(name, 1.0)).unwrap_err();
        assert!(status == 503 && reason.contains(expected), "{name}: {reason}");
        assert_eq!(served.post(&format!("/v2/repository/models/{name}/load")).0, 503);
        assert_eq!(numbers(&served.infer(&ask("good", 1.0)).unwrap().outputs[0]), [3.0]);
    }
    assert_eq!(served.infer(&ask("absent", 1.0)).unwrap_err().0, 404);
    // A repaired model is served again.
    probe::write(served.folder.path(), "truncated", "");
    until("it is served", || served.infer(&ask("truncated", 1.0)).is_ok());
}

#[test]
fn a_model_that_is_larger_than_the_memory_says_so() {
    let (served, _) = Served::probes(&["large"], "", 90_000);
    let (status, reason) = served.infer(&ask("large", 1.0)).unwrap_err();
    assert!(status == 503 && reason.contains("the model's weights are 102400 bytes, and the most"), "{reason}");
    // 90,000 bytes have room for 88,064 bytes in whole pages.
    assert!(
        reason.ends_with("or give weights at least 102400 bytes (tenure serve: --device-bytes 102400)"),
        "{reason}"
    );
    assert_eq!((served.memory(), images("large")), (0, 0));
}

#[test]
fn weights_that_are_written_again_are_unavailable_and_looked_at_at_once() {
    let folder = tempfile::tempdir().unwrap();
    ["stays", "changes"].iter().for_each(|name| probe::write(folder.path(), name, ""));
    let mut options = ServingOptions::new(folder.path(), 110_000);
    // Only requests cause folders to be read again.
    options.rescan = Duration::from_secs(1 << 20);
    let served = Served::start(folder, options, probe::architectures(&Arc::default()));
    let is_evicted = || served.infer(&ask("changes", 1.0)).and_then(|_| served.infer(&ask("stays", 1.0))).is_ok();
    assert!(is_evicted());
    let file = served.folder.path().join("changes/model.safetensors");
    let whole = fs::read(&file).unwrap();
    let once_more = || {
        let encoded = ask("changes", 1.0).encode(Encoding::Binary).unwrap();
        let length = format!("Inference-Header-Content-Length: {}\r\n", encoded.json_bytes.unwrap());
        let (status, head, body) = served.ask("POST", "/v2/models/changes/infer", &length, &encoded.body);
        (status, head.contains("retry-after: 1"), String::from_utf8_lossy(&body).into_owned())
    };
    let of_fives = [&whole[..whole.len() - 100_000], &5.0_f32.to_le_bytes().repeat(25_000)].concat();
    fs::write(&file, of_fives).unwrap();
    let (status, has_retry_after, reason) = once_more();
    assert!(status == 503 && has_retry_after && reason.contains("was written again"), "{status}: {reason}");
    until("the new file is served", || {
        served.infer(&ask("changes", 1.0)).is_ok_and(|answer| numbers(&answer.outputs[0]) == [5.0])
    });
    assert!(is_evicted());
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let (status, has_retry_after, reason) = once_more();
    assert!(status == 503 && has_retry_after && reason.contains("was written again"), "{status}: {reason}");
    let reason = || {
        let entry = served.serving.index().into_iter().find(|entry| entry.name == "changes").unwrap();
        (entry.state == ModelState::Unavailable).then_some(entry.reason)
    };
    until("it is not ready", || reason().is_some());
    assert!(reason().unwrap().contains("model.safetensors"), "{:?}", reason());
    let (status, again) = served.infer(&ask("changes", 1.0)).unwrap_err();
    assert!(status == 503 && again.contains(&reason().unwrap()), "{again}");
}

#[test]
fn weights_that_could_not_be_read_ahead_leave_before_their_room_is_promised() {
    let (served, control) = Served::probes(&["first", "second", "unread"], "", 2 * 102_400);
    // The server has opened a file that is then truncated, while a complete file takes its name.
    let path = served.folder.path().join("unread/model.safetensors");
    let opened = File::options().write(true).open(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    let other = served.folder.path().join("unread/other");
    fs::write(&other, whole).unwrap();
    File::options()
        .write(true)
        .open(&other)
        .unwrap()
        .set_modified(opened.metadata().unwrap().modified().unwrap())
        .unwrap();
    fs::rename(&other, &path).unwrap();
    opened.set_len(1000).unwrap();
    control.hold();
    thread::scope(|scope| {
        let served = &served;
        let first = scope.spawn(|| served.infer(&ask("first", 2.0)));
        until("it computes", || control.calls().len() == 1);
        let unread = scope.spawn(|| served.infer(&ask("unread", 2.0)));
        until("it waits", || queued(served) == 1);
        // This request goes before the other.
        let second = scope.spawn(|| served.infer(&InferRequest { priority: 1, ..ask("second", 2.0) }));
        until("two wait", || queued(served) == 2);
        control.release();
        for answer in [first, second] {
            assert_eq!(numbers(&answer.join().unwrap().unwrap().outputs[0]), [6.0]);
        }
        let (_, reason) = unread.join().unwrap().unwrap_err();
        assert!(reason.contains("it was cut"), "{reason}");
    });
}

#[test]
fn files_that_change_under_the_server_are_an_error_and_then_served() {
    let (served, _) = Served::probes(&["stays", "changes"], "", 110_000);
    assert!(served.infer(&ask("changes", 1.0)).is_ok());
    // There is no memory for both.
    assert!(served.infer(&ask("stays", 1.0)).is_ok());
    let file = served.folder.path().join("changes/model.safetensors");
    let whole = fs::read(&file).unwrap();
    let moved = served.folder.path().join("changes/moved");
    fs::rename(&file, &moved).unwrap();
    let (status, reason) = served.infer(&ask("changes", 1.0)).unwrap_err();
    assert!(status == 503 && (reason.contains("it is gone") || reason.contains("No such file")), "{reason}");
    assert!(served.infer(&ask("stays", 1.0)).is_ok());
    fs::write(&file, whole).unwrap();
    until("it is served again", || served.infer(&ask("changes", 1.0)).is_ok());
    fs::remove_dir_all(served.folder.path().join("changes")).unwrap();
    until("it is gone", || served.infer(&ask("changes", 1.0)).is_err_and(|(status, _)| status == 404));
    probe::write(served.folder.path(), "comes", "");
    until("it comes", || served.infer(&ask("comes", 1.0)).is_ok());
    assert_eq!((images("changes"), images("stays"), served.memory() > 0), (0, 0, true));
}

#[test]
fn a_configuration_that_is_not_the_networks_says_what_is() {
    let folder = example_models();
    let changed = |name: &str, from: &str, to: &str| {
        let model = folder.path().join(name);
        fs::create_dir(&model).unwrap();
        fs::copy(folder.path().join("digits/model.safetensors"), model.join("model.safetensors")).unwrap();
        let config = fs::read_to_string(folder.path().join("digits/config.toml")).unwrap();
        assert!(config.contains(from));
        fs::write(model.join("config.toml"), config.replacen(from, to, 1)).unwrap();
    };
    changed("options", "width = 8", "widths = 8");
    changed("sizes", "classes = 10", "classes = 11");
    changed("names", "architecture = \"resnet18\"", "architecture = \"resnet34\"");
    changed("converted", "timeout_ms = 10000", "dtype = \"float16\"");
    changed("datatype", "datatype = \"FP32\"", "datatype = \"BYTES\"");
    changed("arity", "[[inputs]]", "[[inputs]]\nname = \"mask\"\ndatatype = \"BOOL\"\nshape = [-1]\n\n[[inputs]]");
    changed("answers", "shape = [-1, 10]", "shape = [-1, 11]");
    let served = Served::new(folder, 1 << 30);
    let answers = request("answers", vec![floats("image", &[1, 1, 28, 28], &pixels(1, 0))]);
    let (status, reason) = served.infer(&answers).unwrap_err();
    assert!(
        status == 500 && reason.contains("[1, 10] to 1 rows, and the configuration says FP32 of [-1, 11]"),
        "{reason}"
    );
    let index = served.serving.index();
    for (name, expected) in [
        ("options", "resnet18 cannot be built of these options: unknown field `widths`"),
        ("sizes", "fc.weight: the model has sizes [11, 64], got [10, 64]"),
        ("names", "the names are not the model's; missing: layer1.2.conv1.weight"),
        ("converted", "is stored in float32, and weights are served as they are stored"),
        ("datatype", "tensor \"image\" cannot be of BYTES"),
        ("arity", "resnet18 has 1 inputs, and the configuration 2"),
    ] {
        let entry = index.iter().find(|entry| entry.name == name).unwrap();
        assert!(entry.reason.contains(expected), "{name}: {}", entry.reason);
    }
}

#[test]
fn inputs_of_different_rows_are_refused_and_so_are_more_than_a_batch_has() {
    let served = Served::examples();
    let ids = |rows: usize| integers("input_ids", &[rows, 1], &vec![1; rows]);
    let mask = |rows: usize| integers("attention_mask", &[rows, 1], &vec![1; rows]);
    for (inputs, expected) in [
        (vec![ids(2), mask(3)], "have [2, 3] rows"),
        (vec![ids(33), mask(33)], "a request of 33 rows is larger than a batch of 32"),
        (vec![ids(0), mask(0)], "a request of 0 rows asks for nothing"),
    ] {
        let (status, reason) = served.infer(&request("tiny-sentences", inputs)).unwrap_err();
        assert!(status == 400 && reason.contains(expected), "{reason}");
    }
    assert!(served.infer(&request("tiny-sentences", vec![ids(32), mask(32)])).is_ok());
}

#[test]
fn a_model_says_how_its_requests_are_batched() {
    let (served, _) = Served::probes(&["m"], "batching = { max_rows = 4, max_delay_ms = 3 }", 1 << 20);
    let (_, config) = served.get("/v2/models/m/config");
    let config: Value = serde_json::from_str(&config).unwrap();
    let said = ["platform", "max_batch_size", "input"].map(|key| config[key].clone());
    assert_eq!(said, [json!("tenure_probe"), json!(4), json!([{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}])]);
    let batching = json!({"preferred_batch_size": [4], "max_queue_delay_microseconds": 3000});
    assert_eq!(config["dynamic_batching"], batching);
}

#[test]
fn statistics_count_batches_and_the_requests_in_them() {
    let (served, control) = busy("m", "batching = { max_rows = 4 }");
    thread::scope(|scope| {
        let served = &served;
        let asked = |number| scope.spawn(move || served.infer(&ask("m", number)));
        let first = asked(1.0);
        until("it is computed", || control.calls().len() == 1);
        let others = [2.0, 3.0, 4.0].map(asked);
        until("three wait", || queued(served) == 3);
        control.release();
        assert!(first.join().unwrap().is_ok());
        others.into_iter().for_each(|other| assert!(other.join().unwrap().is_ok()));
    });
    assert_eq!(served.infer(&ask("m", BAD)).unwrap_err().0, 400);
    let said: Value = serde_json::from_str(&served.get("/v2/models/m/stats").1).unwrap();
    let model = &said["model_stats"][0];
    assert_eq!((&model["inference_count"], &model["execution_count"]), (&json!(4), &json!(2)));
    let counts = ["success", "fail", "queue", "compute_infer"].map(|of| model["inference_stats"][of]["count"].clone());
    assert_eq!(counts, [json!(4), json!(1), json!(4), json!(4)]);
    let batches = model["batch_stats"].as_array().unwrap().iter();
    let batches: Vec<_> = batches.map(|batch| (&batch["batch_size"], &batch["compute_infer"]["count"])).collect();
    assert_eq!(batches, [(&json!(1), &json!(1)), (&json!(3), &json!(1))]);
}

#[test]
fn names_of_a_file_may_have_a_prefix() {
    let folder = example_models();
    let files = folder.path().join("tiny-sentences");
    let weights = Weights::open(&files).unwrap();
    let tensors: Vec<_> = weights.names().into_iter().map(|name| (weights.tensor(&name).unwrap(), name)).collect();
    let within = tensors.iter().map(|(tensor, name)| (format!("model.bert.{name}"), tensor));
    checkpoint::save(&files.join("model.safetensors"), within, ("of", "a test")).unwrap();
    let served = Served::new(folder, 1 << 30);
    let inputs = vec![integers("input_ids", &[1, 2], &[1, 2]), integers("attention_mask", &[1, 2], &[1, 1])];
    assert!(served.infer(&request("tiny-sentences", inputs)).is_ok());
}

#[test]
fn a_request_of_many_rows_is_computed_in_parts_that_others_may_go_between() {
    let folder = tempfile::tempdir().unwrap();
    probe::write(folder.path(), "m", "batching = { max_rows = 8 }");
    let control = Arc::new(Control::default());
    let mut options = ServingOptions::new(folder.path(), 1 << 20);
    options.longest_batch = Duration::ZERO;
    let served = Served::start(folder, options, probe::architectures(&control));
    // The first batch waits for weights, and the second one's time is measured.
    for _ in 0..2 {
        assert_eq!(numbers(&served.infer(&ask("m", 1.0)).unwrap().outputs[0]), [3.0]);
    }
    let rows = request("m", vec![floats("x", &[3, 1], &[1.0, 2.0, 4.0])]);
    let answer = served.infer(&rows).unwrap();
    assert_eq!((answer.outputs[0].shape(), numbers(&answer.outputs[0])), (&[3, 1][..], vec![3.0, 6.0, 12.0]));
    assert_eq!(control.calls()[2..], [[1.0], [2.0], [4.0]]);
    // The client's request counts once.
    assert_eq!(served.serving.snapshot().models[0].answered, 3);
}

#[test]
fn rows_of_more_tokens_than_the_model_has_positions_are_refused_with_the_limit() {
    let served = Served::examples();
    let ask = |tokens: usize| {
        let ones = vec![1; tokens];
        let inputs = ["input_ids", "attention_mask"].map(|name| integers(name, &[1, tokens], &ones));
        served.infer(&request("tiny-sentences", inputs.to_vec()))
    };
    assert!(ask(128).is_ok());
    let (status, reason) = ask(129).unwrap_err();
    assert!(status == 400 && reason.contains("129 tokens") && reason.contains("128"), "{reason}");
}
