//! Annotations: named intervals of a program's time, such as those that `record_function` makes.

use std::sync::Arc;

use rustc_hash::FxHashMap;

/// A named interval of the program's time, or a moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Annotation {
    /// The name that the program gives it.
    pub name: Arc<str>,
    /// The time at which it began, in microseconds of the events' clock; `None` if that was before the recorded
    /// history.
    pub begin_us: Option<u64>,
    /// The time at which it ended; `None` if that was after the recorded history.
    pub end_us: Option<u64>,
}

/// The kind of an annotation's record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Start,
    End,
    /// A single moment.
    Moment,
}

impl Stage {
    pub(super) fn from_name(name: &str) -> Self {
        match name {
            "START" => Self::Start,
            "END" => Self::End,
            _ => Self::Moment,
        }
    }
}

/// Pairs `records` to annotations, in the order of their beginnings. An end belongs to the last open beginning of its
/// name.
pub(super) fn pair(mut records: Vec<(u64, Stage, Arc<str>)>) -> Vec<Annotation> {
    records.sort_by_key(|record| record.0);
    let mut annotations: Vec<Annotation> = Vec::new();
    let mut open: FxHashMap<Arc<str>, Vec<usize>> = FxHashMap::default();
    for (time_us, stage, name) in records {
        let (begin_us, end_us) = match stage {
            Stage::Start => {
                open.entry(Arc::clone(&name)).or_default().push(annotations.len());
                (Some(time_us), None)
            }
            Stage::End => {
                if let Some(begun) = open.get_mut(&name).and_then(Vec::pop) {
                    annotations[begun].end_us = Some(time_us);
                    continue;
                }
                (None, Some(time_us))
            }
            Stage::Moment => (Some(time_us), Some(time_us)),
        };
        annotations.push(Annotation { name, begin_us, end_us });
    }
    // Annotations that began before the history come first.
    annotations.sort_by_key(|annotation| annotation.begin_us);
    annotations
}
