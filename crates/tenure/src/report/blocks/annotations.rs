//! The program's annotations along the axis of events.

use std::ops::Range;

use rustc_hash::FxHashSet;
use tenure_plan::{Annotation, Trace};

use super::tables::MOST_CHARACTERS;

/// The most annotations that are shown; a browser draws each of them.
const MOST_SPANS: usize = 20_000;
/// The approximate bytes of an annotation in the page, without its name.
const SPAN_BYTES: usize = 6;

/// An annotation: the range of its events, and its name.
pub(super) struct AnnotationSpan<'a> {
    pub(super) events: Range<usize>,
    pub(super) name: &'a str,
}

/// The annotations that a page shows, in the order of their beginnings, outer ones first.
#[derive(Default)]
pub(super) struct AnnotationSpans<'a> {
    pub(super) kept: Vec<AnnotationSpan<'a>>,
    /// The number of annotations in the shown part.
    pub(super) count: usize,
}

impl<'a> AnnotationSpans<'a> {
    /// Returns the longest annotations that touch `span`, as many as fit into about `bytes` of the page.
    pub(super) fn within(trace: &'a Trace, span: &Range<usize>, bytes: usize) -> Self {
        let spans = trace.annotations().iter().map(|annotation| AnnotationSpan::of(trace, annotation));
        let mut kept: Vec<_> = spans.filter(|annotation| annotation.touches(span)).collect();
        let count = kept.len();
        kept.sort_by_key(|annotation| std::cmp::Reverse(annotation.events.len()));
        let mut names = FxHashSet::default();
        let mut taken = 0;
        let fitting = kept.iter().take(MOST_SPANS).take_while(|annotation| {
            taken +=
                SPAN_BYTES + if names.insert(annotation.name) { annotation.name.len().min(MOST_CHARACTERS) } else { 0 };
            taken <= bytes
        });
        let fitting = fitting.count();
        kept.truncate(fitting);
        kept.sort_by_key(|annotation| (annotation.events.start, std::cmp::Reverse(annotation.events.end)));
        Self { kept, count }
    }
}

impl<'a> AnnotationSpan<'a> {
    /// Makes the span of an annotation. An event in the same microsecond as its beginning or end counts as inside.
    fn of(trace: &Trace, annotation: &'a Annotation) -> Self {
        let events = trace.events();
        let earlier = trace.earlier_events();
        let first = annotation.begin_us.map_or(0, |begin| events.partition_point(|event| event.time_us < begin));
        let first = first.max(earlier);
        let end = annotation.end_us.map_or(events.len(), |end| events.partition_point(|event| event.time_us <= end));
        Self { events: first..end.max(first), name: &annotation.name }
    }

    fn touches(&self, span: &Range<usize>) -> bool {
        self.events.start < span.end && (self.events.end > span.start || self.events.start >= span.start)
    }
}
