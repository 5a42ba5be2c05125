//! Tests that reports are complete, safe and small.

use tenure::core::StreamId;
use tenure::plan::{Settings, Trace, TraceAction, TraceEvent};
use tenure::report::{PageOptions, Report};

use crate::common::assert_self_contained;
use tenure::Error;
use tenure::units::Bytes;

fn sample() -> Trace {
    Trace::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/resnet50_step.pickle.xz")).unwrap()
}

/// Makes a trace of `source` that allocates each block of `bytes` on a stream, and frees none.
fn small(source: &str, blocks: &[(u64, u64)]) -> Trace {
    let blocks = (1..).zip(blocks).map(|(index, &(bytes, stream))| TraceEvent {
        time_us: index,
        address: index << 32,
        bytes,
        stream: StreamId(stream),
        action: TraceAction::Alloc,
    });
    Trace::new(source, 0, Settings::default(), blocks.collect()).unwrap()
}

/// Returns the page without its scripts.
fn without_scripts(html: &str) -> String {
    let parts = html.split("<script").enumerate();
    parts.map(|(index, part)| if index == 0 { part } else { part.split_once("</script>").unwrap().1 }).collect()
}

#[test]
fn a_report_needs_no_network_and_its_charts_no_script() {
    let trace = sample();
    let report = Report::new(&trace).unwrap();
    let html = report.html();
    assert!(html.len() < 1_000_000, "{} bytes", html.len());
    assert_self_contained(&without_scripts(&html));
    for reference in ["http:", "https:", "import ", "fetch("] {
        assert!(!html.replace("http://www.w3.org/2000/svg", "").contains(reference), "{reference}");
    }
}

#[test]
fn a_report_names_every_allocator_and_the_peak() {
    let trace = sample();
    let report = Report::new(&trace).unwrap();
    let html = report.html();
    for outcome in report.outcomes() {
        assert!(html.contains(&format!("{}, peak {}", outcome.allocator, Bytes(outcome.peak_reserved_bytes))));
    }
    assert!(html.contains("peak 5.95 GB"));
    assert!(report.comparison_svg().contains("<style>"));
}

#[test]
fn a_page_says_what_the_recording_itself_reserved_and_calls_a_replay_a_model() {
    let event = |action, address: u64, bytes| TraceEvent { time_us: 0, address, bytes, stream: StreamId(0), action };
    let events = [
        event(TraceAction::SegmentAlloc, 1 << 32, 20 << 20),
        event(TraceAction::SegmentAlloc, 2 << 32, 50_000_000),
        event(TraceAction::Alloc, 1 << 32, 512),
        event(TraceAction::SegmentFree, 2 << 32, 50_000_000),
    ];
    let page = |events: &[TraceEvent]| {
        let trace = Trace::new("segments", 0, Settings::default(), events.to_vec()).unwrap();
        Report::new(&trace).unwrap().html()
    };
    let said = "The recording itself has 21.0 MB reserved by PyTorch at its end, and 71.0 MB at its peak.";
    let html = page(&events);
    assert!(html.contains(said), "{html}");
    assert!(html.contains("where a model of PyTorch's native allocator held 2.10 MB in the same replay"), "{html}");
    assert!(!page(&events[2..3]).contains("recording itself"));
}

/// Returns the text of each row in the section under `title`.
fn rows(html: &str, title: &str) -> Vec<String> {
    let Some((_, rest)) = html.split_once(&format!("<h2>{title}</h2>")) else { return Vec::new() };
    let (section, _) = rest.split_once("</section>").unwrap();
    let text = |row: &str| {
        let texts = row.split('<').filter_map(|part| part.split_once('>')).map(|(_, text)| text.trim());
        texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" | ")
    };
    section.split("<tr>").filter(|row| row.contains("<td>")).map(text).collect()
}

fn plan_sample(name: &str) -> Trace {
    Trace::read(format!("{}/../tenure-plan/tests/data/{name}.pickle", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn the_page_says_who_holds_the_peak_and_what_a_failed_allocation_lacked() {
    let trace = plan_sample("out_of_memory");
    let html = without_scripts(&Report::new(&trace).unwrap().html());
    let malloc = "CUDACachingAllocator::malloc | ??";
    let linear = "forward | /env/lib/python3.12/site-packages/torch/nn/modules/linear.py:125";
    let [first, second] =
        [12, 20].map(|line| format!("{malloc} | {linear} | forward | /app/model.py:{line} | step | /app/train.py:30"));
    let load = "load | /app/data.py:7";
    let native = "at::empty_cuda | ??";
    let failed = format!("event 9, after 9.00 µs | {second} | 8.39 MB | 1.05 MB | 21.0 MB | 13.6 MB | 4.19 MB");
    assert_eq!(rows(&html, "Out of memory"), [failed]);
    assert_eq!(
        rows(&html, "Who holds the peak"),
        [
            format!("forward | /app/model.py:12 | {first} | 8.39 MB | 2 | 47%"),
            format!("forward | /app/model.py:20 | {second} | 6.29 MB | 1 | 35%"),
            format!("{load} | {load} | 3.15 MB | 2 | 18%"),
            format!("{native} | {native} | 512 B | 1 | 0.0%"),
            format!("forward | /app/model.py | {first} | 14.7 MB | 3 | 82%"),
            format!("optimizer | {load} | 2.10 MB | 1 | 12%"),
            format!("load | /app/data.py | {load} | 1.05 MB | 1 | 5.9%"),
            format!("{native} | {native} | 512 B | 1 | 0.0%"),
            format!("4.19 MB | (4,194,304 bytes) | {first} | 8.39 MB | 2 | 47%"),
            format!("6.29 MB | (6,291,456 bytes) | {second} | 6.29 MB | 1 | 35%"),
            format!("2.10 MB | (2,097,152 bytes) | {load} | 2.10 MB | 1 | 12%"),
            format!("1.05 MB | (1,048,576 bytes) | {load} | 1.05 MB | 1 | 5.9%"),
            format!("512 B | (512 bytes) | {native} | 512 B | 1 | 0.0%"),
        ]
    );
}

#[test]
fn a_page_without_stacks_failures_and_times_says_so() {
    let html = Report::new(&plan_sample("late_start")).unwrap().html();
    assert!(html.contains("The recording has no stacks.") && rows(&html, "Out of memory").is_empty());
    let timeless = plan_sample("no_times");
    let report = Report::new(&timeless).unwrap();
    assert!(report.html().contains("<dt>Duration</dt><dd>not recorded</dd>"));
    assert_eq!(report.outcomes()[0].trace_duration_us, None);
    // A trace of one moment lasts for no time.
    let moment = small("moment", &[(512, 0)]);
    assert_eq!(Report::new(&moment).unwrap().outcomes()[0].trace_duration_us, Some(0));
}

#[test]
fn the_smaller_holders_are_in_one_row() {
    let sizes: Vec<_> = (1..=20).map(|index| (index * 512, 0)).collect();
    let html = Report::new(&small("sizes", &sizes)).unwrap().html();
    let rows = rows(&html, "Who holds the peak");
    assert_eq!((rows.len(), rows[15].as_str()), (16, "5 others | 7.68 kB | 5 | 7.1%"));
}

#[test]
fn names_from_a_trace_are_text() {
    let trace = small("<script>alert('&')</script>\u{7}", &[(512, 0)]);
    let report = Report::new(&trace).unwrap();
    for page in [without_scripts(&report.html()), report.comparison_svg()] {
        assert!(!page.contains("<script>") && !page.contains('\u{7}'));
        assert!(page.contains("&lt;script&gt;alert('&amp;')&lt;/script&gt;\\u{7}"));
    }
}

#[test]
fn a_block_counts_for_the_stream_that_it_was_allocated_on() {
    let actions = [
        (TraceAction::Alloc, 0),
        (TraceAction::Alloc, 1),
        (TraceAction::FreeRequested, 9),
        (TraceAction::FreeCompleted, 9),
    ];
    let events = actions.map(|(action, stream)| TraceEvent {
        time_us: stream,
        address: if stream == 1 { 2 << 32 } else { 1 << 32 },
        bytes: 512,
        stream: StreamId(stream),
        action,
    });
    let trace = Trace::new("a free on another stream", 0, Settings::default(), events.to_vec()).unwrap();
    assert_self_contained(&without_scripts(&Report::new(&trace).unwrap().html()));
}

#[test]
fn streams_are_told_apart_when_there_are_several() {
    let one = small("one", &[(512, 0), (512, 0)]);
    let many: Vec<_> = (0..20).map(|stream| (512 << stream, stream)).collect();
    let many = small("many", &many);
    assert!(!Report::new(&one).unwrap().html().contains("by stream"));
    let html = Report::new(&many).unwrap().html();
    assert!(html.contains("stream 0x6") && html.contains("other streams") && !html.contains("stream 0x7"));
}

#[test]
fn an_empty_trace_has_a_report() {
    let trace = small("empty", &[]);
    let html = without_scripts(&Report::new(&trace).unwrap().html());
    assert!(!html.contains("NaN") && !html.contains("inf"));
}

/// Makes a training loop of `events` events: blocks of many sizes and lifetimes.
fn long_history(events: usize) -> Trace {
    let mut random = 1_u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let mut history = Vec::with_capacity(events + 2);
    let mut live: Vec<TraceEvent> = Vec::new();
    let mut time_us = 0;
    while history.len() < events {
        time_us += 1 + next() % 20;
        if live.len() < 200 || (live.len() < 5000 && next() % 2 == 0) {
            let class = next() % 16;
            let bytes = (512 << class) + next() % 512;
            let event = TraceEvent {
                time_us,
                address: (history.len() as u64 + 1) << 26,
                bytes,
                stream: StreamId(0),
                action: TraceAction::Alloc,
            };
            live.push(event);
            history.push(event);
        } else {
            let block = live.swap_remove((next() % live.len() as u64) as usize);
            for action in [TraceAction::FreeRequested, TraceAction::FreeCompleted] {
                history.push(TraceEvent { time_us, action, ..block });
            }
        }
    }
    Trace::new("a long history", 0, Settings::default(), history).unwrap()
}

#[test]
fn a_page_stays_within_its_bytes_and_says_what_it_sums() {
    let trace = long_history(20_000);
    let report = Report::new(&trace).unwrap();
    let whole = report.html();
    assert!(!whole.contains("are summed in grey"));
    let small = report.html_with(&PageOptions { page_bytes: 430_000, ..PageOptions::default() }).unwrap();
    assert!(small.len() <= 430_000 && small.len() < whole.len(), "{} of {} bytes", small.len(), whole.len());
    assert!(small.contains("are summed in grey"));
    let part = report.html_with(&PageOptions { page_bytes: 430_000, from: 5000, to: 5500 }).unwrap();
    assert!(part.contains("Shown are events 5,000 to 5,499 of") && !part.contains("are summed in grey"));
}

#[test]
fn a_page_too_small_for_its_charts_is_refused_with_the_size_that_does() {
    let trace = long_history(2000);
    let report = Report::new(&trace).unwrap();
    let page = |page_bytes| report.html_with(&PageOptions { page_bytes, ..PageOptions::default() });
    let Err(Error::PageTooSmall { page_bytes: 1000, least_bytes }) = page(1000) else { panic!("it fits") };
    assert!(page(least_bytes - 1).is_err());
    assert_eq!(page(least_bytes).unwrap().len() as u64, least_bytes);
}
