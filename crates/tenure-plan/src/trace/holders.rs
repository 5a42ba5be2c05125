//! The holders of a trace's peak: stacks, modules and block sizes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use super::{LiveBlock, StackFrame, Stacks, Trace};

/// The blocks that were live at a moment, divided in three ways. Each list is ordered by bytes, the most first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// By the stack that allocated them, the key: its number in [`Stacks`]. Empty if the trace has no stacks.
    pub by_stack: Vec<Holder<u32>>,
    /// By the part of the program that allocated them. Empty if the trace has neither stacks nor tags.
    pub by_module: Vec<Holder<HolderModule>>,
    /// By size; the key is the bytes of one block.
    pub by_size: Vec<Holder<u64>>,
}

/// Live blocks that have something in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder<K> {
    /// The common property.
    pub key: K,
    /// The number of blocks.
    pub blocks: usize,
    /// Their bytes together.
    pub bytes: u64,
    /// The number of the stack that allocated most of these bytes.
    pub stack: u32,
}

/// A part of a program, as far as a recording names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HolderModule {
    /// The program's tag of a block: PyTorch's `user_metadata`, or a tag and key of Tenure.
    Tag(String),
    /// The function of the stack's [`user_frame`](Stacks::user_frame).
    Function {
        /// Its file.
        filename: String,
        /// Its name.
        name: String,
    },
    /// The block has neither a tag nor a stack.
    Unknown,
}

impl Holders {
    /// The number of holders that reports list one by one; they sum the others.
    pub const LISTED: usize = 15;

    /// Divides `live` blocks of `trace`.
    pub(super) fn of(trace: &Trace, live: &[LiveBlock]) -> Self {
        let stack = |block: &LiveBlock| trace.stacks().number_of_event(block.event);
        let mut holders = Self {
            by_size: divided(live.iter().map(|block| (block.bytes, stack(block), block.bytes))),
            ..Self::default()
        };
        if !trace.stacks().is_empty() {
            holders.by_stack = divided(live.iter().map(|block| (stack(block), stack(block), block.bytes)));
        }
        if !(trace.stacks().is_empty() && trace.labels().is_empty()) {
            holders.by_module =
                divided(live.iter().map(|block| (HolderModule::of(trace, block.event), stack(block), block.bytes)));
        }
        holders
    }
}

fn divided<K: Ord>(blocks: impl Iterator<Item = (K, u32, u64)>) -> Vec<Holder<K>> {
    let mut groups: BTreeMap<K, BTreeMap<u32, (usize, u64)>> = BTreeMap::new();
    for (key, stack, bytes) in blocks {
        let held = groups.entry(key).or_default().entry(stack).or_default();
        held.0 += 1;
        held.1 += bytes;
    }
    let holders = groups.into_iter().map(|(key, stacks)| Holder {
        key,
        blocks: stacks.values().map(|held| held.0).sum(),
        bytes: stacks.values().map(|held| held.1).sum(),
        stack: stacks.iter().max_by_key(|(number, held)| (held.1, Reverse(**number))).map_or(0, |(&number, _)| number),
    });
    let mut holders: Vec<_> = holders.collect();
    // The sort is stable: holders of equal bytes stay in the order of their keys.
    holders.sort_by_key(|holder| Reverse(holder.bytes));
    holders
}

impl HolderModule {
    /// Returns the module that allocated the block of an event.
    fn of(trace: &Trace, event: usize) -> Self {
        if let Some(tag) = trace.labels().of_event(event).and_then(|label| label.tag.as_deref()) {
            return Self::Tag(tag.into());
        }
        let stacks = trace.stacks();
        match stacks.user_frame(stacks.number_of_event(event)) {
            Some(frame) => Self::Function { filename: (&*frame.filename).into(), name: (&*frame.name).into() },
            None => Self::Unknown,
        }
    }
}

impl fmt::Display for HolderModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Function { filename, name } => write!(f, "{filename}/{name}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl Stacks {
    /// Returns the frame of the stack with this number that a user looks for first: the innermost of the program's own
    /// Python code. A stack without one gives its innermost Python frame, or its innermost frame; an empty stack none.
    pub fn user_frame(&self, number: u32) -> Option<&StackFrame> {
        self.frames(number)
            .find(|frame| frame.is_python() && !frame.is_internal())
            .or_else(|| self.frames(number).find(|frame| frame.is_python()))
            .or_else(|| self.frames(number).next())
    }
}

impl StackFrame {
    /// Returns whether the frame is of Python code. The others are C++ functions.
    pub fn is_python(&self) -> bool {
        self.filename.ends_with(".py") || self.filename.starts_with('<')
    }

    /// Returns whether the file belongs to PyTorch or Python rather than to a program that uses them.
    fn is_internal(&self) -> bool {
        if ["<frozen ", "<eval_with_key>"].iter().any(|prefix| self.filename.starts_with(prefix)) {
            return true;
        }
        let mut parent = "";
        self.filename.split(['/', '\\']).any(|folder| {
            let is_torch = folder == "torch" && matches!(parent, "" | "site-packages" | "dist-packages" | "pytorch");
            parent = folder;
            is_torch
        })
    }
}
