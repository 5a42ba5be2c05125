//! Tests of a server whose models are computed on a CUDA device that has no room for all of them: a simulated device
//! unless `TENURE_TEST_DRIVER` is `cuda`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod served;

use std::fs;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::json;
use served::cuda::{
    CHUNK, MODELS, all_alone, alone, ask, ask_at_the_same_time, expect_peace, input, models, options,
    unload_all_and_load_one,
};
use served::{Served, images, request, until};
use tempfile::TempDir;
use tenure_core::StreamId;
use tenure_device::memory::DeviceMemory;
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_device::{CopyCalls, Executor, MemoryCalls, SharingCalls};
use tenure_nn::networks::Architectures;
use tenure_serve::service::Service as _;
use tenure_serve::serving::{Serving, ServingOptions};
use tenure_tensor::Device;

fn serve(folder: TempDir, device_bytes: u64) -> Served {
    let options = options(&folder, device_bytes);
    Served::start(folder, options, Architectures::default())
}

#[test]
fn models_that_do_not_all_fit_answer_as_those_that_do() {
    let (_alone, memory) = alone();
    let expected: Vec<Vec<u8>> = {
        let served = serve(models(), 8 * CHUNK);
        MODELS.map(|model| ask(&served, model)).to_vec()
    };
    let served = serve(models(), 2 * CHUNK);
    for turn in 0..6 {
        for (model, expected) in MODELS.iter().zip(&expected) {
            assert!(ask(&served, model) == *expected, "{model} in turn {turn}");
        }
        let snapshot = served.serving.snapshot();
        let [device, host] = &snapshot.tiers[..] else { panic!("two tiers") };
        assert!((1..=2 * CHUNK).contains(&device.used_bytes) && device.capacity_bytes == 2 * CHUNK, "{device:?}");
        assert!(host.used_bytes > 0, "{host:?}");
    }
    assert!(served.get("/metrics").1.contains("switches"));
    expect_peace(memory);
}

#[test]
fn clients_that_ask_at_the_same_time_get_their_answers_and_unloading_frees_all() {
    let (_alone, memory) = alone();
    let before = memory.backing().held_bytes();
    {
        let served = serve(models(), 2 * CHUNK);
        let expected = MODELS.map(|model| ask(&served, model));
        ask_at_the_same_time(&served, &expected);
        unload_all_and_load_one(&served, &expected);
    }
    memory.allocator().release_cached().unwrap();
    assert!(memory.backing().held_bytes() <= before, "{} of {before}", memory.backing().held_bytes());
    expect_peace(memory);
}

#[test]
fn a_model_that_is_larger_than_the_device_and_one_that_was_cut_are_told() {
    let (_alone, memory) = alone();
    let folder = models();
    fs::write(folder.path().join("digits-2/model.safetensors"), b"cut").unwrap();
    let served = serve(folder, CHUNK / 2);
    let index = served.serving.index();
    let reason = |model: &str| index.iter().find(|entry| entry.name == model).unwrap().reason.clone();
    assert!(reason("next-byte").contains("room") || reason("next-byte").contains("bytes"), "{}", reason("next-byte"));
    assert!(reason("digits-2").contains("safetensors"), "{}", reason("digits-2"));
    assert_eq!(served.infer(&request("next-byte", vec![input("next-byte")])).unwrap_err().0, 503);
    expect_peace(memory);
}

/// On a real device, a client needs its own process, as in `bench/gpu/cuda_shared_memory.py`.
#[test]
fn a_model_reads_and_writes_memory_of_a_client_on_its_device() {
    let (_alone, memory) = alone();
    let Executor::Sim(_) = memory.driver().executor() else { return };
    let served = serve(models(), 8 * CHUNK);
    let image = input("digits");
    let expected = ask(&served, "digits");
    let client = SimDriver::new(SimConfig::default());
    let size = (image.bytes().len() + expected.len()) as u64;
    let address = client.malloc(size).unwrap();
    client.copy_to_device(address, image.bytes(), StreamId::NULL).unwrap();
    let handle = BASE64_STANDARD.encode(client.export_memory(address).unwrap().0);
    let body = json!({"raw_handle": {"b64": handle}, "device_id": 0, "byte_size": size}).to_string();
    let registered = served.ask("POST", "/v2/cudasharedmemory/region/r/register", "", body.as_bytes());
    assert_eq!(registered.0, 200, "{registered:?}");
    assert!(served.get("/v2").1.contains("cuda_shared_memory"));
    let place = |offset: usize, bytes: usize| json!({"shared_memory_region": "r", "shared_memory_offset": offset, "shared_memory_byte_size": bytes});
    let from = place(0, image.bytes().len());
    let to = place(image.bytes().len(), expected.len());
    let body = json!({
        "inputs": [{"name": "image", "shape": [1, 1, 28, 28], "datatype": "FP32", "parameters": from}],
        "outputs": [{"name": "scores", "parameters": to}],
    });
    let answer = served.ask("POST", "/v2/models/digits/infer", "", body.to_string().as_bytes());
    assert_eq!(answer.0, 200, "{:?}", String::from_utf8(answer.2));
    let mut found = vec![0; expected.len()];
    client.copy_from_device(&mut found, address + image.bytes().len() as u64, StreamId::NULL).unwrap();
    assert!(found == expected);
    drop(served);
    expect_peace(memory);
}

/// Starts a server on two devices, each with room for two of the four models.
fn serve_on_two(devices: &[&DeviceMemory]) -> Option<Served> {
    if devices.len() < 2 {
        eprintln!("skipped: there is one device");
        return None;
    }
    let folder = models();
    let options = ServingOptions { devices: vec![Device::cuda(0), Device::cuda(1)], ..options(&folder, 2 * CHUNK) };
    Some(Served::start(folder, options, Architectures::default()))
}

#[test]
fn models_that_fit_on_two_devices_together_are_placed_on_both_and_stay() {
    let (_alone, devices) = all_alone();
    let expected = {
        let served = serve(models(), 8 * CHUNK);
        MODELS.map(|model| ask(&served, model))
    };
    let Some(served) = serve_on_two(devices) else { return };
    for turn in 0..6 {
        for (model, expected) in MODELS.iter().zip(&expected) {
            assert!(ask(&served, model) == *expected, "{model} in turn {turn}");
        }
    }
    let snapshot = served.serving.snapshot();
    let names: Vec<&str> = snapshot.tiers.iter().map(|tier| &*tier.name).collect();
    assert_eq!(names, ["cuda:0", "cuda:1", "pinned"]);
    assert_eq!(snapshot.tiers[2].capacity_bytes, 256 << 20);
    let asked: Vec<_> = snapshot.models.iter().filter(|model| MODELS.contains(&&*model.name)).collect();
    for model in &asked {
        assert_eq!((model.resident.len(), model.switches), (1, 1), "{model:?}");
    }
    for device in ["cuda:0", "cuda:1"] {
        let there = asked.iter().filter(|model| model.resident[0].tier == device).count();
        assert_eq!(there, 2, "{device}");
        assert!(served.get("/metrics").1.contains(&format!("tier=\"{device}\"")));
    }
    devices.iter().for_each(|memory| expect_peace(memory));
}

#[test]
fn two_devices_answer_clients_at_the_same_time_and_unloading_frees_both() {
    let (_alone, devices) = all_alone();
    let held = |devices: &[&DeviceMemory]| {
        devices.iter().for_each(|memory| memory.allocator().release_cached().unwrap());
        devices.iter().map(|memory| memory.backing().held_bytes()).collect::<Vec<_>>()
    };
    let before = held(devices);
    {
        let Some(served) = serve_on_two(devices) else { return };
        let expected = MODELS.map(|model| ask(&served, model));
        ask_at_the_same_time(&served, &expected);
        unload_all_and_load_one(&served, &expected);
    }
    let after = held(devices);
    assert!(after.iter().zip(&before).all(|(after, before)| after <= before), "{before:?} {after:?}");
    devices.iter().for_each(|memory| expect_peace(memory));
}

/// Returns the size of the largest weight file in bytes.
fn largest_file(folder: &TempDir) -> u64 {
    MODELS
        .map(|model| fs::metadata(folder.path().join(model).join("model.safetensors")).unwrap().len())
        .into_iter()
        .max()
        .unwrap()
}

#[test]
fn memory_for_one_image_serves_two_devices_which_share_it() {
    let (_alone, devices) = all_alone();
    let expected = {
        let served = serve(models(), 8 * CHUNK);
        MODELS.map(|model| ask(&served, model))
    };
    if devices.len() < 2 {
        eprintln!("skipped: there is one device");
        return;
    }
    let folder = models();
    // Tensors begin at multiples of 256 bytes.
    let host_bytes = largest_file(&folder) + (64 << 10);
    let devices_of_all = vec![Device::cuda(0), Device::cuda(1)];
    let options = ServingOptions { devices: devices_of_all, host_bytes, ..options(&folder, CHUNK) };
    let served = Served::start(folder, options, Architectures::default());
    for turn in 0..6 {
        for (model, expected) in MODELS.iter().zip(&expected) {
            assert!(ask(&served, model) == *expected, "{model} in turn {turn}");
            let tiers = served.serving.snapshot().tiers;
            let [_, _, pinned] = &tiers[..] else { panic!("{tiers:?}") };
            assert!((1..=host_bytes).contains(&pinned.used_bytes) && pinned.capacity_bytes == host_bytes, "{pinned:?}");
        }
    }
    devices.iter().for_each(|memory| expect_peace(memory));
}

#[test]
fn a_model_has_one_image_on_whichever_devices_it_was_and_none_of_files_that_were_written_again() {
    let (_alone, devices) = all_alone();
    if devices.len() < 2 {
        eprintln!("skipped: there is one device");
        return;
    }
    let folder = models();
    let options = ServingOptions { devices: vec![Device::cuda(0), Device::cuda(1)], ..options(&folder, CHUNK) };
    let served = Served::start(folder, options, Architectures::default());
    // There is room for two of the four models, so that they are loaded on both devices.
    let ask_all = || {
        for _ in 0..4 {
            MODELS.iter().for_each(|model| drop(ask(&served, model)));
        }
        ["digits#", "digits-2#"].map(images)
    };
    assert_eq!(ask_all(), [1, 1]);
    let before = ask(&served, "digits-2");
    let path = served.folder.path().join("digits-2/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4096..].chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&9_f32.to_le_bytes()));
    let aside = TempDir::new().unwrap();
    fs::write(aside.path().join("new"), bytes).unwrap();
    fs::rename(aside.path().join("new"), &path).unwrap();
    until("the new weights are served", || {
        let answer = served.infer(&request("digits-2", vec![input("digits-2")]));
        answer.is_ok_and(|answer| answer.outputs[0].bytes() != &before[..])
    });
    until("nothing is left of the old ones", || ask_all() == [1, 1]);
    devices.iter().for_each(|memory| expect_peace(memory));
}

#[test]
fn devices_that_serve_nothing_together_are_refused() {
    let folder = models();
    for devices in [vec![], vec![Device::CPU, Device::cuda(0)], vec![Device::cuda(0); 2]] {
        let options = ServingOptions { devices, ..options(&folder, CHUNK) };
        let refused = Serving::start(options, Architectures::default()).map(drop).unwrap_err();
        assert!(refused.to_string().contains("each named once"), "{refused}");
        assert!(!refused.to_string().contains("Device"), "{refused}");
    }
}
