//! Tests of snapshots as Python and PyTorch's own tools read them. They are skipped where there is no Python or no
//! PyTorch.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{MIB, busy_backing};
use tenure_alloc::snapshot::pickle::PickleWriter;
use tenure_alloc::{
    CachingAllocator, History, NativeAllocator, NativeConfig, PagedAllocator, PagedConfig, Recording, Request,
};
use tenure_core::{Key, KeyId, StreamId, Tag};

/// Returns the output of `python3 -c code`, or `None` without Python.
fn python(code: &str, arguments: &[&Path]) -> Option<String> {
    let output = match Command::new("python3").arg("-c").arg(code).args(arguments).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: python3 does not start: {error}");
            return None;
        }
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// A pickle in a file of its own, which is removed when the test ends.
struct Pickle(PathBuf);

impl Pickle {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("tenure-{name}-{}.pickle", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Pickle {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn history() -> History {
    History::new(Box::new(|| 1_700_000_000_000_000))
}

fn native(config: NativeConfig) -> NativeAllocator {
    NativeAllocator::with_history(busy_backing(200 * MIB), config, history()).unwrap()
}

/// Makes a block of every state, and a history of almost every action.
fn use_everything(allocator: &dyn CachingAllocator) {
    allocator.history().start(Recording::events(100), true);
    let key = KeyId::intern(Key { module: "head".into(), op: "matmul".into(), role: "out".into(), occurrence: 2 });
    let request = |bytes, tag| Request::new(bytes, StreamId(3)).with_tag(tag);
    allocator.allocate(request(1000, Tag::Weight).with_key(key)).unwrap();
    let freed = allocator.allocate(request(50 * MIB, Tag::Unknown)).unwrap();
    let pending = allocator.allocate(request(4 * MIB, Tag::Activation)).unwrap();
    allocator.free(freed.address).unwrap();
    allocator.release_cached().unwrap();
    allocator.record_stream(pending.address, StreamId(4)).unwrap();
    allocator.free(pending.address).unwrap();
    // The last retry waits for the pending block, so another one is made.
    allocator.allocate(request(500 * MIB, Tag::Unknown)).unwrap_err();
    let pending = allocator.allocate(request(4 * MIB, Tag::Activation)).unwrap();
    allocator.record_stream(pending.address, StreamId(4)).unwrap();
    allocator.free(pending.address).unwrap();
    allocator.history().annotate(0, vec![("name".into(), "step".into()), ("stage".into(), "END".into())]);
    allocator.snapshot();
}

fn dump(allocator: &dyn CachingAllocator) -> Vec<u8> {
    let mut bytes = Vec::new();
    allocator.snapshot().write_pickle(&mut bytes).unwrap();
    bytes
}

#[test]
fn python_reads_back_every_kind_of_value() {
    let mut writer = PickleWriter::new(Vec::new()).unwrap();
    let integers = [0, 255, 256, -1, i128::from(i32::MIN), 1 << 31, i128::from(u64::MAX), i128::from(i64::MIN)];
    writer
        .dict(|writer| {
            writer.text("integers")?;
            writer.list(|writer| integers.iter().try_for_each(|&value| writer.integer(value)))?;
            writer.text("texts")?;
            writer.list(|writer| {
                ["", "ü", &"x".repeat(300)].iter().try_for_each(|text| writer.text(text))?;
                (0..300).chain(0..300).try_for_each(|number| writer.text(&number.to_string()))
            })?;
            writer.text("others")?;
            writer.pair(|writer| writer.float(0.1), |writer| writer.none())?;
            writer.text("flags")?;
            writer.pair(|writer| writer.flag(true), |writer| writer.flag(false))
        })
        .unwrap();
    let file = Pickle::new("values", &writer.finish().unwrap());
    let code = "import pickle, sys\n\
        numbers = [str(n) for n in range(300)]\n\
        print(pickle.load(open(sys.argv[1], 'rb')) == {\n\
            'integers': [0, 255, 256, -1, -2**31, 2**31, 2**64 - 1, -2**63],\n\
            'texts': ['', 'ü', 'x' * 300] + numbers + numbers,\n\
            'others': (0.1, None), 'flags': (True, False)})";
    if let Some(equal) = python(code, &[&file.0]) {
        assert_eq!(equal, "True");
    }
}

#[test]
fn a_snapshot_has_the_shape_of_pytorchs() {
    let allocator = native(NativeConfig::default());
    use_everything(&allocator);
    let file = Pickle::new("shape", &dump(&allocator));
    let code = "import pickle, sys\n\
        d = pickle.load(open(sys.argv[1], 'rb'))\n\
        print(*d)\n\
        print(*d['segments'][0])\n\
        print(*d['segments'][0]['blocks'][0])\n\
        print(*d['device_traces'][0][0])\n\
        for s in d['segments']: print(s['segment_type'], s['segment_pool_id'], s['stream'], s['total_size'], \
            s['allocated_size'], s['active_size'], s['requested_size'], *(b['state'] for b in s['blocks']))\n\
        print(*(e['action'] for e in d['device_traces'][0]))\n\
        print(d['device_traces'][0][1]['user_metadata'])\n\
        print(*d['allocator_settings'])\n\
        print(*d['external_annotations'])";
    let Some(printed) = python(code, &[&file.0]) else { return };
    let expected = "\
segments device_traces allocator_settings external_annotations
device address total_size allocated_size active_size requested_size stream segment_type segment_pool_id is_expandable \
frames blocks
address size requested_size state frames
action addr size stream time_us compile_context user_metadata frames
small (0, 0) 3 2097152 1024 1024 1000 active_allocated inactive
large (0, 0) 3 20971520 0 4194304 4194304 active_pending_free inactive
segment_alloc alloc segment_alloc alloc segment_alloc alloc free_requested free_completed segment_free free_requested \
free_completed segment_free oom segment_alloc alloc free_requested snapshot
weight head/matmul/out#2
PYTORCH_CUDA_ALLOC_CONF max_split_size garbage_collection_threshold expandable_segments pinned_num_register_threads \
release_lock_on_cudamalloc pinned_use_cuda_host_register graph_capture_record_stream_reuse roundup_power2_divisions
{'name': 'step', 'stage': 'END', 'device': 0, 'time_us': 1700000000000000}";
    assert_eq!(printed, expected);
}

#[test]
fn memory_viz_of_pytorch_opens_a_snapshot() {
    let Some(viz) = memory_viz() else {
        eprintln!("skipped: no _memory_viz.py: install PyTorch, or name the file in TENURE_MEMORY_VIZ");
        return;
    };
    // `str` replaces the flame graphs' script, which would be downloaded.
    let code = "import importlib.util, pickle, sys\n\
        spec = importlib.util.spec_from_file_location('viz', sys.argv[1])\n\
        viz = importlib.util.module_from_spec(spec)\n\
        spec.loader.exec_module(viz)\n\
        d = pickle.load(open(sys.argv[2], 'rb'))\n\
        pages = [viz.trace_plot(d), viz.segment_plot(d), viz.segments(d, str), viz.memory(d, str), viz.trace(d)]\n\
        assert all(pages), pages\n\
        print(viz.segsum(d))";
    let paged = PagedAllocator::with_history(busy_backing(200 * MIB), PagedConfig::default(), history()).unwrap();
    let allocators: [&dyn CachingAllocator; 3] =
        [&native(NativeConfig::default()), &native(NativeConfig::expandable()), &paged];
    for allocator in allocators {
        use_everything(allocator);
        let reserved = allocator.statistics().all.reserved_bytes.current / MIB;
        let segments = allocator.snapshot().segments.len();
        let file = Pickle::new("viz", &dump(allocator));
        let Some(summary) = python(code, &[&viz, &file.0]) else { return };
        assert!(summary.contains(&format!("segments: {segments}")), "{summary}");
        assert!(summary.contains(&format!("total_reserved: {reserved}.0MiB")), "{summary}");
        assert!(summary.contains("total_allocated: 1000.0B"), "{summary}");
    }
}

/// Returns the file of PyTorch's viewer: the one that `TENURE_MEMORY_VIZ` names, or that of the PyTorch that `python3`
/// finds.
fn memory_viz() -> Option<PathBuf> {
    let named = std::env::var_os("TENURE_MEMORY_VIZ").map(PathBuf::from);
    named
        .or_else(|| {
            let code = "import importlib.util\n\
            torch = importlib.util.find_spec('torch')\n\
            print(torch.submodule_search_locations[0] if torch else '')";
            let torch = python(code, &[])?;
            Some(Path::new(&torch).join("cuda/_memory_viz.py"))
        })
        .filter(|path| path.is_file())
}
