//! Tests of tensors in the memory of clients' CUDA devices: each client has its own simulated driver, as another
//! process would.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{env, thread};

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use parking_lot::MutexGuard;
use serde_json::json;
use tenure_core::StreamId;
use tenure_device::memory::DeviceMemory;
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_device::{Call, CopyCalls, Executor, MemoryCalls, SharingCalls};
use tenure_serve::grpc::messages::{
    CudaRegion, CudaRegisterRequest, CudaSharedMemoryStatusResponse, ModelInferResponse, RegionRequest, RegionResponse,
    ServerMetadataRequest, ServerMetadataResponse,
};
use tenure_serve::server::InferenceServerConfig;
use tenure_tensor::Device;

use crate::fake::Fake;
use crate::grpc::{Client, INVALID_ARGUMENT, NOT_FOUND};
use crate::grpc_extensions::{ALREADY_EXISTS, asking, place};
use crate::loopback::{Answer, Served, wait_until};
use crate::served::cuda::all_alone;
use crate::shared_memory::{Object, span};

const REGION: &str = "/v2/cudasharedmemory/region";

/// A server that says it computes on two devices.
struct OnCuda {
    _alone: MutexGuard<'static, ()>,
    devices: &'static [&'static DeviceMemory],
    served: Served,
}

/// Starts the server; `None` on real devices, whose memory a process cannot share with itself. `python/tests/serve`
/// tests those.
fn on_cuda() -> Option<OnCuda> {
    if env::var("TENURE_TEST_DRIVER").is_ok_and(|driver| driver == "cuda") {
        eprintln!("skipped: a client needs a process of its own");
        return None;
    }
    let (_alone, devices) = all_alone();
    let fake = Fake::on(vec![Device::cuda(0), Device::cuda(1)]);
    let config = InferenceServerConfig { grpc: Some(([127, 0, 0, 1], 0).into()), ..InferenceServerConfig::default() };
    Some(OnCuda { _alone, devices, served: Served::of(config, fake) })
}

impl OnCuda {
    /// Returns how often memory of a device was closed.
    fn closed(&self, device: usize) -> u64 {
        let Executor::Sim(driver) = self.devices[device].driver().executor() else { panic!("a simulated one") };
        driver.calls(Some(Call::CloseMemory))
    }

    fn register(&self, region: &str, handle: &[u8], device_id: i64, byte_size: u64) -> Answer {
        // C++ clients insert line breaks.
        let digits = BASE64_STANDARD.encode(handle) + "\n";
        let body = json!({"raw_handle": {"b64": digits}, "device_id": device_id, "byte_size": byte_size});
        self.served.post(&format!("{REGION}/{region}/register"), &body.to_string())
    }

    /// Registers a whole allocation on the first device.
    fn share(&self, region: &str, allocation: &Allocation) {
        let registered = self.register(region, &allocation.handle(), 0, allocation.bytes);
        assert_eq!((registered.status, &*registered.text()), (200, ""));
    }

    fn unregister(&self, path: &str) {
        assert_eq!(self.served.post(&format!("/v2/cudasharedmemory{path}/unregister"), "").status, 200);
    }

    fn status(&self, path: &str) -> Answer {
        self.served.ask("GET", &format!("/v2/cudasharedmemory{path}/status"), &[], &[])
    }
}

/// Memory of a client.
struct Allocation {
    driver: Arc<SimDriver>,
    address: u64,
    bytes: u64,
}

impl Allocation {
    fn new(bytes: &[u8]) -> Self {
        let driver = Arc::new(SimDriver::new(SimConfig::default()));
        let address = driver.malloc(bytes.len() as u64).unwrap();
        driver.copy_to_device(address, bytes, StreamId::NULL).unwrap();
        Self { driver, address, bytes: bytes.len() as u64 }
    }

    fn handle(&self) -> [u8; 64] {
        self.driver.export_memory(self.address).unwrap().0
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes as usize];
        self.driver.copy_from_device(&mut bytes, self.address, StreamId::NULL).unwrap();
        bytes
    }
}

#[test]
fn inputs_are_read_and_outputs_are_written_where_they_are_said_to_be() {
    let Some(on_cuda) = on_cuda() else { return };
    let inputs = Allocation::new(&[0, 1, 2, 3, 4, 0]);
    let outputs = Allocation::new(&[9; 8]);
    on_cuda.share("inputs", &inputs);
    assert_eq!(on_cuda.register("outputs", &outputs.handle(), 1, 7).status, 200, "of the other device");
    let answer = on_cuda.served.echo(4, &span("inputs", 1, 4), &span("outputs", 2, 5));
    let said =
        r#"{"model_name":"echo_int8","model_version":"1","outputs":[{"name":"y","datatype":"INT8","shape":[1,4]}]}"#;
    assert_eq!((answer.status, &*answer.text()), (200, said));
    assert_eq!(outputs.bytes(), [9, 9, 1, 2, 3, 4, 9, 9]);
    let sent = on_cuda.served.echo(4, &span("inputs", 1, 4), "{}");
    assert!(sent.text().contains(r#""data":[1,2,3,4]"#), "{}", sent.text());
}

#[test]
fn a_tensor_may_go_from_memory_of_one_kind_to_memory_of_the_other() {
    let Some(on_cuda) = on_cuda() else { return };
    let device = Allocation::new(&[1, 2, 3, 4]);
    let object = Object::new(&[0; 4]);
    on_cuda.share("device", &device);
    assert_eq!(on_cuda.served.register("system", &object.name, 0, 4).status, 200);
    assert_eq!(on_cuda.served.echo(2, &span("device", 2, 2), &span("system", 0, 2)).status, 200);
    assert_eq!(object.bytes(), [3, 4, 0, 0]);
    assert_eq!(on_cuda.served.echo(4, &span("system", 0, 4), &span("device", 0, 4)).status, 200);
    assert_eq!(device.bytes(), [3, 4, 0, 0]);
}

#[test]
fn regions_of_both_kinds_share_names_and_are_listed_and_unregistered_apart() {
    let Some(on_cuda) = on_cuda() else { return };
    let device = Allocation::new(&[0; 8]);
    let object = Object::new(&[0; 8]);
    let served = &on_cuda.served;
    assert_eq!(on_cuda.status("").text(), "[]");
    on_cuda.share("device", &device);
    assert_eq!(served.register("system", &object.name, 0, 8).status, 200);
    let said = r#"[{"name":"device","device_id":0,"byte_size":8}]"#;
    assert_eq!((on_cuda.status("").text(), on_cuda.status("/region/device").text()), (said.into(), said.into()));
    assert!(!served.status("").contains("device_id"), "{}", served.status(""));
    for answer in [on_cuda.status("/region/system"), on_cuda.status("/region/none")] {
        let (status, error) = answer.error();
        assert!(status == 404 && error.contains("v2/cudasharedmemory/status"), "{status} {error}");
    }
    for answer in [served.register("device", &object.name, 0, 8), on_cuda.register("system", &device.handle(), 0, 8)] {
        let (status, error) = answer.error();
        assert!(status == 409 && error.starts_with("there is a region"), "{status} {error}");
    }
    on_cuda.unregister("/region/system");
    assert_eq!(served.post("/v2/systemsharedmemory/unregister", "").status, 200);
    assert_eq!((on_cuda.status("").text(), &*served.status("")), (said.into(), "[]"));
    assert_eq!(served.register("system", &object.name, 0, 8).status, 200);
    let closed = on_cuda.closed(0);
    on_cuda.unregister("");
    assert_eq!((&*on_cuda.status("").text(), on_cuda.closed(0)), ("[]", closed + 1));
    assert!(served.status("").contains("system"));
}

#[test]
fn a_handle_may_have_two_names() {
    let Some(on_cuda) = on_cuda() else { return };
    let device = Allocation::new(&[1, 2, 0, 0]);
    on_cuda.share("a", &device);
    on_cuda.share("b", &device);
    on_cuda.unregister("/region/a");
    assert_eq!(on_cuda.served.echo(2, &span("b", 0, 2), &span("b", 2, 2)).status, 200);
    assert_eq!(device.bytes(), [1, 2, 1, 2]);
    assert_eq!(on_cuda.served.echo(2, &span("a", 0, 2), "{}").error().0, 404);
}

#[test]
fn a_region_stays_while_a_request_uses_it() {
    let Some(on_cuda) = on_cuda() else { return };
    let device = Allocation::new(&[1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    on_cuda.share("r", &device);
    let fake = &on_cuda.served.fake;
    let closed = on_cuda.closed(0);
    let tensor = |name: &str, offset| {
        let spec = format!(r#""parameters": {}"#, span("r", offset, 8));
        format!(r#"{{"name": "{name}", "shape": [1, 2], "datatype": "FP32", {spec}}}"#)
    };
    let body = format!(r#"{{"inputs": [{}], "outputs": [{}]}}"#, tensor("x", 0), tensor("y", 8));
    thread::scope(|scope| {
        let asked = scope.spawn(|| on_cuda.served.post("/v2/models/slow/infer", &body));
        wait_until("a request", || fake.waiting.load(Ordering::SeqCst) == 1);
        on_cuda.unregister("/region/r");
        assert_eq!((&*on_cuda.status("").text(), on_cuda.closed(0)), ("[]", closed));
        fake.permits.add_permits(1);
        assert_eq!(asked.join().unwrap().status, 200);
    });
    assert_eq!(device.bytes(), [1, 2, 3, 4, 5, 6, 7, 8].repeat(2));
    assert_eq!(on_cuda.closed(0), closed + 1);
}

#[test]
fn a_region_is_inside_its_allocation_and_a_tensor_inside_its_region() {
    let Some(on_cuda) = on_cuda() else { return };
    let device = Allocation::new(&[5; 8]);
    let closed = on_cuda.closed(0);
    for (byte_size, expected) in
        [(9, "shared memory \"r\" has 8 bytes, and the region would end at 9"), (0, "no region begins at 0")]
    {
        let (status, error) = on_cuda.register("r", &device.handle(), 0, byte_size).error();
        assert!(status == 400 && error.starts_with(expected), "{status} {error}");
    }
    assert_eq!((&*on_cuda.status("").text(), on_cuda.closed(0)), ("[]", closed + 1));
    assert_eq!(on_cuda.register("r", &device.handle(), 0, 6).status, 200);
    let good = span("r", 0, 4);
    for (input, output, expected) in [
        (span("r", 3, 4), &good, "region \"r\" has 6 bytes, and has no 4 from 3 on"),
        (span("r", u64::MAX, 4), &good, "from 18446744073709551615 on"),
        (good.clone(), &span("r", 4, 4), "region \"r\" has 6 bytes, and has no 4 from 4 on"),
        (good.clone(), &span("r", 0, 3), "output \"y\" has 4 bytes, and its shared_memory_byte_size is 3"),
    ] {
        let (status, error) = on_cuda.served.echo(4, &input, output).error();
        assert!(status == 400 && error.contains(expected), "{input} {output}: {status} {error}");
    }
    assert_eq!(device.bytes(), [5; 8]);
}

#[test]
fn a_handle_is_one_of_another_process_on_a_device_that_is_served() {
    let Some(on_cuda) = on_cuda() else { return };
    let device = Allocation::new(&[0; 8]);
    let gone = Allocation::new(&[0; 8]);
    let freed = gone.handle();
    gone.driver.free(gone.address).unwrap();
    let driver = on_cuda.devices[0].driver();
    let own = driver.malloc(8).unwrap();
    let what_to_do = "make it by cudaIpcGetMemHandle, of memory of cudaMalloc on cuda:0, in another process";
    for (handle, device_id, expected) in [
        (&[0; 64][..], 0, what_to_do),
        (&freed, 0, what_to_do),
        (&driver.export_memory(own).unwrap().0, 0, what_to_do),
        (&device.handle()[..63], 0, "raw_handle must be the 64 bytes of a cudaIpcMemHandle_t"),
        (&[], 0, "raw_handle must be the 64 bytes"),
        (&device.handle(), 2, "memory of CUDA device 2 cannot be registered: the server computes on cuda:0, cuda:1"),
        (&device.handle(), -1, "memory of CUDA device -1 cannot be registered"),
    ] {
        let (status, error) = on_cuda.register("r", handle, device_id, 8).error();
        assert!(status == 400 && error.contains(expected), "{status} {error}");
    }
    driver.free(own).unwrap();
    for (body, expected) in [
        ("{}", "the body is not a region of shared memory"),
        (r#"{"raw_handle": "AA==", "device_id": 0, "byte_size": 8}"#, "the body is not a region of shared memory"),
        (r#"{"raw_handle": {"b64": "?"}, "device_id": 0, "byte_size": 8}"#, "raw_handle must be the 64 bytes"),
    ] {
        let (status, error) = on_cuda.served.post(&format!("{REGION}/r/register"), body).error();
        assert!(status == 400 && error.starts_with(expected), "{status} {error}");
    }
    assert_eq!(on_cuda.status("").text(), "[]");
}

#[test]
fn regions_of_both_kinds_are_not_without_number() {
    let Some(on_cuda) = on_cuda() else { return };
    let device = Allocation::new(&[1; 8]);
    let object = Object::new(&[1; 8]);
    for number in 0..128 {
        on_cuda.share(&format!("d{number}"), &device);
        assert_eq!(on_cuda.served.register(&format!("s{number}"), &object.name, 0, 8).status, 200);
    }
    let (status, error) = on_cuda.register("one-more", &device.handle(), 0, 8).error();
    assert!(status == 409 && error.starts_with("there are 256 regions"), "{error}");
}

#[test]
fn the_extension_is_listed_where_there_is_a_device() {
    let Some(on_cuda) = on_cuda() else { return };
    let on_cpu = Served::with(InferenceServerConfig {
        grpc: Some(([127, 0, 0, 1], 0).into()),
        ..InferenceServerConfig::default()
    });
    for (served, is_listed) in [(&on_cuda.served, true), (&on_cpu, false)] {
        let over_http = served.ask("GET", "/v2", &[], &[]).text();
        assert_eq!(over_http.contains(r#""cuda_shared_memory""#), is_listed, "{over_http}");
        let over_grpc: ServerMetadataResponse = Client::new(served).ask("ServerMetadata", &ServerMetadataRequest {});
        assert_eq!(over_grpc.extensions.contains(&"cuda_shared_memory".into()), is_listed, "{over_grpc:?}");
    }
}

#[test]
fn regions_are_the_same_over_grpc() {
    let Some(on_cuda) = on_cuda() else { return };
    let client = Client::new(&on_cuda.served);
    let device = Allocation::new(&[1, 2, 3, 4, 9, 9, 9, 9]);
    let registration = CudaRegisterRequest {
        name: "r".into(),
        raw_handle: Bytes::copy_from_slice(&device.handle()),
        device_id: 0,
        byte_size: 8,
    };
    client.ask::<RegionResponse>("CudaSharedMemoryRegister", &registration);
    assert!(on_cuda.status("").text().contains(r#""name":"r""#));
    let answer: ModelInferResponse = client.ask("ModelInfer", &asking(place("r", 0, 4), Some(place("r", 4, 4))));
    assert_eq!((device.bytes(), answer.raw_output_contents), ([1, 2, 3, 4].repeat(2), vec![Bytes::new()]));
    let beyond = client.infer(&asking(place("r", 5, 4), None));
    assert_eq!(beyond.error(), (INVALID_ARGUMENT, "region \"r\" has 8 bytes, and has no 4 from 5 on"));

    let named = |name: &str| RegionRequest { name: name.into() };
    for name in ["", "r"] {
        let status: CudaSharedMemoryStatusResponse = client.ask("CudaSharedMemoryStatus", &named(name));
        let region = CudaRegion { name: "r".into(), device_id: 0, byte_size: 8 };
        assert_eq!(status.regions, [("r".into(), region)].into());
    }
    assert_eq!(client.call("CudaSharedMemoryRegister", &registration).error().0, ALREADY_EXISTS);
    assert_eq!(client.call("SystemSharedMemoryStatus", &named("r")).error().0, NOT_FOUND);
    client.ask::<RegionResponse>("SystemSharedMemoryUnregister", &RegionRequest::default());
    for name in ["r", ""] {
        client.ask::<RegionResponse>("CudaSharedMemoryUnregister", &named(name));
        assert_eq!(client.call("CudaSharedMemoryStatus", &named("r")).error().0, NOT_FOUND);
        client.ask::<RegionResponse>("CudaSharedMemoryRegister", &registration);
    }
    for (wrong, expected) in [
        (
            CudaRegisterRequest { raw_handle: Bytes::from_static(&[0; 64]), ..registration.clone() },
            "the handle names no",
        ),
        (CudaRegisterRequest { raw_handle: Bytes::new(), ..registration.clone() }, "raw_handle must be the 64 bytes"),
        (CudaRegisterRequest { device_id: 7, ..registration.clone() }, "memory of CUDA device 7"),
        (CudaRegisterRequest { byte_size: 9, ..registration.clone() }, "shared memory \"s\" has 8 bytes"),
    ] {
        let reply = client.call("CudaSharedMemoryRegister", &CudaRegisterRequest { name: "s".into(), ..wrong });
        let (code, message) = reply.error();
        assert!(code == INVALID_ARGUMENT && message.starts_with(expected), "{code} {message}");
    }
}
