//! Tests of the holders of a trace's peak, and of its failed allocations.

use tenure_plan::{Holder, HolderModule, Holders, OutOfMemory, StackFrame, Trace};

use crate::common::read;

const MIB: u64 = 1 << 20;

fn sample(name: &str) -> Trace {
    Trace::read(format!("{}/tests/data/{name}.pickle", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn holders(trace: &Trace) -> Holders {
    trace.holders(&trace.summary().live_at_peak)
}

/// Returns the key, blocks, bytes, and the outermost frame of each holder's stack.
fn figures<K: Clone>(trace: &Trace, holders: &[Holder<K>]) -> Vec<(K, usize, u64, Option<String>)> {
    let line = |holder: &Holder<K>| {
        let outermost = trace.stacks().frames(holder.stack).last().map(StackFrame::to_string);
        (holder.key.clone(), holder.blocks, holder.bytes, outermost)
    };
    holders.iter().map(line).collect()
}

#[test]
fn the_peak_is_divided_by_stack_module_and_size() {
    let trace = sample("out_of_memory");
    let Holders { by_stack, by_module, by_size } = holders(&trace);
    let step = || Some("step /app/train.py:30".to_owned());
    let load = || Some("load /app/data.py:7".to_owned());
    let native = || Some("at::empty_cuda ??".to_owned());
    let named = figures(&trace, &by_stack).into_iter().map(|(number, blocks, bytes, outermost)| {
        (trace.stacks().user_frame(number).unwrap().to_string(), blocks, bytes, outermost)
    });
    assert_eq!(
        named.collect::<Vec<_>>(),
        [
            ("forward /app/model.py:12".into(), 2, 8 * MIB, step()),
            ("forward /app/model.py:20".into(), 1, 6 * MIB, step()),
            ("load /app/data.py:7".into(), 2, 3 * MIB, load()),
            ("at::empty_cuda ??".into(), 1, 512, native()),
        ]
    );
    let function = |filename: &str, name: &str| HolderModule::Function { filename: filename.into(), name: name.into() };
    assert_eq!(
        figures(&trace, &by_module),
        [
            (function("/app/model.py", "forward"), 3, 14 * MIB, step()),
            (HolderModule::Tag("optimizer".into()), 1, 2 * MIB, load()),
            (function("/app/data.py", "load"), 1, MIB, load()),
            (function("??", "at::empty_cuda"), 1, 512, native()),
        ]
    );
    assert_eq!(
        figures(&trace, &by_size),
        [
            (4 * MIB, 2, 8 * MIB, step()),
            (6 * MIB, 1, 6 * MIB, step()),
            (2 * MIB, 1, 2 * MIB, load()),
            (MIB, 1, MIB, load()),
            (512, 1, 512, native()),
        ]
    );
    // A module of two stacks shows the one that holds more.
    assert_eq!(by_module[0].stack, by_stack[0].key);
}

#[test]
fn a_trace_without_stacks_is_divided_by_size_only() {
    let trace = sample("late_start");
    let Holders { by_stack, by_module, by_size } = holders(&trace);
    assert_eq!((by_stack, by_module), (Vec::new(), Vec::new()));
    let bytes: u64 = by_size.iter().map(|holder| holder.bytes).sum();
    assert_eq!(bytes, trace.summary().peak_requested_bytes);
}

#[test]
fn the_users_frame_is_the_innermost_one_outside_of_pytorch() {
    for (files, users) in [
        (
            &["??", "/env/site-packages/torch/nn/modules/linear.py", "/app/model.py", "/app/train.py"][..],
            "/app/model.py",
        ),
        (
            &["/usr/lib/python3/dist-packages/torch/a.py", "/env/site-packages/transformers/a.py"],
            "/env/site-packages/transformers/a.py",
        ),
        (&["/src/pytorch/torch/a.py", "<frozen runpy>", "<ipython-input-1>"], "<ipython-input-1>"),
        (
            &[
                "<eval_with_key>.5 from a.py:3",
                "torch/_dynamo/a.py",
                "C:\\env\\site-packages\\torch\\a.py",
                "C:\\app\\a.py",
            ],
            "C:\\app\\a.py",
        ),
        (&["/home/me/torch/train.py", "/app/main.py"], "/home/me/torch/train.py"),
        (&["??", "/env/site-packages/torch/a.py", "main.cpp"], "/env/site-packages/torch/a.py"),
        (&["libtorch.so", "main.cpp"], "libtorch.so"),
    ] {
        let frames = files
            .iter()
            .map(|file| format!("(dVname\nVf\nsVfilename\nV{}\nsVline\nI1\nsa", file.replace('\\', "\\u005c")));
        let event = format!(
            "(dVaction\nVuser_defined\nsVaddr\nI0\nsVsize\nI8\nsVstream\nI0\nsVframes\n(l{}s",
            frames.collect::<String>()
        );
        let trace = read(format!("(dVdevice_traces\n(l(l{event}aas.").as_bytes()).unwrap();
        let stacks = trace.stacks();
        assert_eq!(&*stacks.user_frame(stacks.number_of_event(0)).unwrap().filename, users, "{files:?}");
        assert_eq!(stacks.user_frame(0), None);
    }
}

#[test]
fn a_failed_allocation_has_the_memory_of_its_moment() {
    let failed = OutOfMemory {
        event: 9,
        requested_bytes: 8 * MIB,
        device_free_bytes: MIB,
        live_bytes: 13 * MIB + 512,
        reserved_bytes: Some(20 * MIB),
        largest_free_bytes: Some(4 * MIB),
    };
    assert_eq!(sample("out_of_memory").out_of_memory(), [failed]);
}

#[test]
fn without_segments_a_failed_allocation_has_unknown_ones_and_the_last_are_listed() {
    let event = |bytes: u32| format!("(dVaction\nVoom\nsVdevice_free\nI{bytes}\nsVsize\nI8\nsVstream\nI0\nsa");
    let events: String = (0..30).map(event).collect();
    let failed = read(format!("(dVdevice_traces\n(l(l{events}as.").as_bytes()).unwrap().out_of_memory();
    assert_eq!(failed.len(), OutOfMemory::LISTED);
    assert_eq!((failed[0].event, failed[0].device_free_bytes), (10, 10));
    assert!(failed.iter().all(|failed| failed.reserved_bytes.is_none() && failed.largest_free_bytes.is_none()));
}
