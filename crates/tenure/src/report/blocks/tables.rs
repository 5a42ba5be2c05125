//! The tables of a page: texts, frames, stacks and streams.

use rustc_hash::FxHashMap;
use serde::Serialize;
use tenure_plan::{StackFrame, Trace};

/// The most characters in a frame's text.
pub(super) const MOST_CHARACTERS: usize = 400;

/// Texts, frames, stacks and streams, each distinct one stored once.
#[derive(Default, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct Tables {
    pub(super) strings: Vec<String>,
    #[serde(skip)]
    string_numbers: FxHashMap<String, u64>,
    /// Function, file and line.
    pub(super) frames: Vec<[u64; 3]>,
    #[serde(skip)]
    frame_numbers: FxHashMap<StackFrame, u64>,
    pub(super) stacks: Vec<Vec<u64>>,
    /// For each stack number of the trace, its number here plus one.
    #[serde(skip)]
    stack_numbers: FxHashMap<u32, u64>,
    pub(super) streams: Vec<u64>,
    #[serde(skip)]
    stream_numbers: FxHashMap<u64, u64>,
}

impl Tables {
    pub(super) fn string(&mut self, text: &str) -> u64 {
        let text: String = text.chars().take(MOST_CHARACTERS).collect();
        let Self { strings, string_numbers, .. } = self;
        *string_numbers.entry(text).or_insert_with_key(|text| {
            strings.push(text.clone());
            strings.len() as u64 - 1
        })
    }

    /// Returns the number of an event's stack plus one, or 0.
    pub(super) fn stack(&mut self, trace: &Trace, event: usize) -> u64 {
        let stack = trace.stacks().number_of_event(event);
        if stack == 0 {
            return 0;
        }
        if let Some(&number) = self.stack_numbers.get(&stack) {
            return number;
        }
        let frames = trace.stacks().frames(stack).map(|frame| self.frame(frame)).collect();
        self.stacks.push(frames);
        self.stack_numbers.insert(stack, self.stacks.len() as u64);
        self.stacks.len() as u64
    }

    fn frame(&mut self, frame: &StackFrame) -> u64 {
        if let Some(&known) = self.frame_numbers.get(frame) {
            return known;
        }
        let packed = [self.string(&frame.name), self.string(&frame.filename), frame.line.into()];
        self.frames.push(packed);
        self.frame_numbers.insert(frame.clone(), self.frames.len() as u64 - 1);
        self.frames.len() as u64 - 1
    }

    pub(super) fn stream(&mut self, stream: u64) -> u64 {
        if let Some(&number) = self.stream_numbers.get(&stream) {
            return number;
        }
        let text = self.string(&format!("{stream:#x}"));
        self.streams.push(text);
        self.stream_numbers.insert(stream, self.streams.len() as u64 - 1);
        self.streams.len() as u64 - 1
    }
}
