//! Tests of call stacks: each is stored once, however the snapshot writes it, and no dict is kept longer than needed.

use crate::common::{read, refusal};
use tenure_plan::{ReadOptions, Trace, TraceAction, TraceEvent};

/// The number of events that share a stack.
const EVENTS_OF_A_STACK: usize = 50;
const FRAMES: usize = 40;

/// The form in which a pickler meets the frames of a stack that an earlier event has too.
#[derive(Clone, Copy, PartialEq)]
enum Frames {
    /// The same dicts in another list, as PyTorch makes them.
    Shared,
    /// Other dicts with strings of their own, as a JSON reader makes them.
    Written,
}

/// Writes the bytes of Python's pickler in protocol 4: everything is memoized, items come in batches.
#[derive(Default)]
struct Pickler {
    bytes: Vec<u8>,
    memoized: u32,
}

impl Pickler {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn memoize(&mut self) -> u32 {
        self.put(b"\x94");
        self.memoized += 1;
        self.memoized - 1
    }

    fn fetch(&mut self, memoized: u32) {
        self.put(b"j");
        self.put(&memoized.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.put(&[0x8c, text.len() as u8]);
        self.put(text.as_bytes());
        self.memoize();
    }

    fn number(&mut self, number: usize) {
        self.put(b"J");
        self.put(&(number as u32).to_le_bytes());
    }

    fn container(&mut self, empty: &[u8]) -> u32 {
        self.put(empty);
        let memoized = self.memoize();
        self.put(b"(");
        memoized
    }
}

/// Makes a snapshot whose `count` events have, in turn, one of `stacks` stacks.
fn snapshot(count: usize, stacks: usize, frames: Frames) -> Vec<u8> {
    let mut pickler = Pickler::default();
    let mut shared = vec![None; stacks * FRAMES];
    pickler.put(b"\x80\x04");
    pickler.container(b"}");
    pickler.text("device_traces");
    pickler.container(b"]");
    pickler.container(b"]");
    for index in 0..count {
        if index > 0 && index.is_multiple_of(1000) {
            pickler.put(b"e(");
        }
        pickler.container(b"}");
        for (key, text) in [("action", "user_defined"), ("compile_context", "N/A")] {
            pickler.text(key);
            pickler.text(text);
        }
        for (key, number) in [("addr", 0), ("size", index), ("stream", 0), ("time_us", index)] {
            pickler.text(key);
            pickler.number(number);
        }
        pickler.text("frames");
        pickler.container(b"]");
        let first = (index % stacks) * FRAMES;
        for (frame, memoized) in (first..).zip(&mut shared[first..first + FRAMES]) {
            match memoized.filter(|_| frames == Frames::Shared) {
                Some(dict) => pickler.fetch(dict),
                None => {
                    *memoized = Some(pickler.container(b"}"));
                    pickler.text("name");
                    pickler.text(&format!("function_{frame}"));
                    pickler.text("filename");
                    pickler.text("model.py");
                    pickler.text("line");
                    pickler.number(frame + 1);
                    pickler.put(b"u");
                }
            }
        }
        pickler.put(b"eu");
    }
    pickler.put(b"eeu.");
    pickler.bytes
}

#[test]
fn every_event_has_its_stack_from_the_innermost_frame_on() {
    let trace = read(&snapshot(6, 2, Frames::Shared)).unwrap();
    for index in 0..6 {
        let stack: Vec<_> = trace.stacks().of_event(index).collect();
        assert_eq!(stack.len(), FRAMES);
        for (place, frame) in stack.into_iter().enumerate() {
            let number = (index % 2) * FRAMES + place;
            assert_eq!((&*frame.name, &*frame.filename), (&*format!("function_{number}"), "model.py"));
            assert_eq!(frame.line as usize, number + 1);
        }
    }
}

#[test]
fn stacks_are_the_same_whether_frames_are_shared_or_written_again() {
    let [shared, written] = [Frames::Shared, Frames::Written].map(|frames| read(&snapshot(500, 10, frames)).unwrap());
    assert!(shared == written);
    // Ten stacks and the empty one.
    assert_eq!(shared.stacks().len(), 11);
}

#[test]
fn an_event_takes_few_bytes_and_its_stack_none_that_another_has() {
    assert!(size_of::<TraceEvent>() <= 40);
    // Memory that does not grow with the events: a batch of open dicts and its stack of values.
    let fixed_bytes = 2 << 20;
    for (frames, bytes_of_event) in [(Frames::Shared, 150), (Frames::Written, 150 + FRAMES * 36)] {
        let stacks = 20;
        let count = 20 * EVENTS_OF_A_STACK * stacks;
        let options = ReadOptions { memory_bytes: (fixed_bytes + count * bytes_of_event) as u64, ..Default::default() };
        let trace = Trace::read_from(snapshot(count, stacks, frames).as_slice(), "test", &options).unwrap();
        assert_eq!((trace.events().len(), trace.stacks().len()), (count, stacks + 1));
    }
}

#[test]
fn events_without_stacks_have_no_numbers_of_stacks() {
    let trace =
        read(b"(dVdevice_traces\n(l(l(dVaction\nVoom\nsVdevice_free\nI1\nsVsize\nI8\nsVstream\nI0\nsaas.").unwrap();
    assert!(trace.stacks().is_empty());
    assert_eq!(trace.stacks().of_event(0).len(), 0);
}

/// Returns an event that is stored as `memo`, with `frames`.
fn event(memo: u32, time_us: u32, frames: &str) -> String {
    format!(
        "(dp{memo}\nVaction\nVuser_defined\nsVaddr\nI0\nsVsize\nI8\nsVstream\nI0\nsVtime_us\nI{time_us}\nsVframes\n{frames}s"
    )
}

#[test]
fn a_stack_that_changes_after_its_event_is_an_error() {
    let late = format!("(dVdevice_traces\n(l(l{}ag2\nNas.", event(1, 5, "(lp2\n"));
    let message = "not a PyTorch memory snapshot: a list changes after its dict was put into another list";
    assert!(refusal(late.as_bytes()).starts_with(message));
    let in_itself = format!("(dVdevice_traces\n(l(lp2\n{}as.", event(1, 5, "g2\n"));
    assert!(refusal(in_itself.as_bytes()).starts_with(message));
}

#[test]
fn devices_that_share_an_event_each_have_it() {
    let [first, second, third] = [1, 2, 3].map(|number| event(number, number, "(l"));
    let traces = format!("(dVdevice_traces\n(l(l{first}a{second}aa(lg1\na{third}aas.");
    let times_of = |device| {
        let options = ReadOptions { device: Some(device), ..ReadOptions::default() };
        let trace = Trace::read_from(traces.as_bytes(), "test", &options).unwrap();
        trace.events().iter().map(|event| event.time_us).collect::<Vec<_>>()
    };
    assert_eq!(times_of(0), [1, 2]);
    assert_eq!(times_of(1), [1, 3]);
}

#[test]
fn a_block_that_was_there_before_the_history_has_the_stack_that_its_segment_gives() {
    let frames = "(l(dVname\nVload\nsVfilename\nVmodel.py\nsVline\nI3\nsa";
    let block =
        |address: u32| format!("(dVaddress\nI{address}\nsVsize\nI8\nsVstate\nVactive_allocated\nsVframes\n{frames}sa");
    let segment =
        format!("(dVdevice\nI0\nsVaddress\nI4096\nsVtotal_size\nI32\nsVblocks\n(l{}{}sa", block(4096), block(4104));
    // The block at 4104 takes the place of one that the history frees.
    let freed = "(dVaction\nVfree_completed\nsVaddr\nI4104\nsVsize\nI8\nsVstream\nI0\nsVframes\n(lsa";
    let bytes = format!("(dVsegments\n(l{segment}sVdevice_traces\n(l(l{freed}as.");
    let trace = read(bytes.as_bytes()).unwrap();
    let blocks = trace.events().iter().enumerate().filter(|(_, event)| event.action == TraceAction::Alloc);
    let stacks = blocks.map(|(index, event)| (event.address, trace.stacks().of_event(index).len()));
    assert_eq!(stacks.collect::<Vec<_>>(), [(4096, 1), (4104, 0)]);
}

#[test]
fn a_frame_without_a_line_keeps_its_function_and_file() {
    let frame = |line: &str| format!("(dVname\nVload\nsVfilename\nVmodel.py\ns{line}a");
    let frames = ["", "Vline\nI-5\ns", "Vline\nF3.0\ns", "Vline\nNs", "Vline\nI7\ns"].map(frame).concat();
    let trace = read(format!("(dVdevice_traces\n(l(l{}aas.", event(1, 5, &format!("(l{frames}"))).as_bytes()).unwrap();
    let lines: Vec<_> = trace.stacks().of_event(0).map(|frame| (&*frame.filename, frame.line)).collect();
    assert_eq!(lines, [("model.py", 0), ("model.py", 0), ("model.py", 0), ("model.py", 0), ("model.py", 7)]);
}
