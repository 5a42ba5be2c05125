//! The section on offloading: how a training step kept to its memory budget.

use maud::{Markup, html};
use tenure_offload::{Fate, SavedRecord, StepRecord, TierMoment};
use tenure_tier::Destination;
use tenure_tier::codec::{Codec, Encoded};

use super::axis::{BINS, Span, Unit};
use super::chart::{Chart, DrawnAs, Series};
use super::html::{breakable, figure, keyed, section, table};
use crate::units::{Bytes, Count, Micros, Percent};

/// The number of saved tensors that are listed one by one; if there are more, the largest.
const LISTED: usize = 300;
/// The number of bins over which bytes on a link are averaged: they are counted in pieces.
const MEAN: usize = 10;

/// The fates of saved tensors, in the order of the report, with their names and the colour of the tier where they were
/// meanwhile.
const FATES: [(Fate, &str, &str); 4] = [
    (Fate::Kept, "kept", MEMORY),
    (Fate::Spilled(Destination::Host), "spilled to pinned memory", HOST),
    (Fate::Spilled(Destination::Disk), "spilled to disk", DISK),
    (Fate::Recomputed, "recomputed", "awaited"),
];

const MEMORY: &str = "tag-activation";
const HOST: &str = "stream1";
const DISK: &str = "stream4";

type TierBytes = fn(&TierMoment) -> u64;

/// Returns the sections of a report on a step.
pub(super) fn sections(title: &str, number: u64, record: &StepRecord) -> Markup {
    let Some(last) = record.moments.last() else { return Markup::default() };
    let span = Span::Us(last.at_us.max(1));
    html! {
        (section(
            &format!("Memory by tier during step {number}"),
            "Area: what was allocated of the memory that the budget is of. Lines: what had left it, where that was, and the \
             limit, which is the budget without the memory that bytes pass through. A disk keeps room for a tensor as it \
             was, whatever a codec made of it.",
            figure(&tiers(title, number, span, record)),
        ))
        (section(
            &format!("Links during step {number}"),
            "Bytes a second, as disks finished them, and as copies between the device and the host were asked for.",
            figure(&links(title, number, span, &record.moments)),
        ))
        (section(
            &format!("What was saved in step {number}"),
            "Tensors saved for the backward pass, and what happened to each. Parameters and tensors too small to be worth \
             moving stay in memory and are not listed. Bars show where a tensor was from when it was saved until it was \
             needed; times count from the begin of the step.",
            html! { (fates(&record.saved)) (each(record)) },
        ))
    }
}

fn tiers(title: &str, number: u64, span: Span, record: &StepRecord) -> Chart {
    let binned = |bytes: TierBytes| binned(&record.moments, bytes);
    let mut series = vec![Series::new("in memory", MEMORY, DrawnAs::Area, binned(|moment| moment.memory_bytes))];
    let tiers: [(_, _, TierBytes); 2] =
        [("pinned memory", HOST, |moment| moment.host_bytes), ("disk", DISK, |moment| moment.disk_bytes)];
    for (name, class, bytes) in tiers {
        let values = binned(bytes);
        if values.iter().any(|bytes| *bytes > 0) {
            series.push(Series::new(name, class, DrawnAs::Line, values));
        }
    }
    series.extend(record.budget_bytes.map(|bytes| Series::new("limit", "most", DrawnAs::Line, vec![bytes; BINS])));
    let subject = format!("Memory by tier during step {number}");
    Chart::new(&subject, title, "Bytes in each tier over one step.", span, Unit::Bytes, series)
}

fn links(title: &str, number: u64, span: Span, moments: &[TierMoment]) -> Chart {
    let links: [(_, _, TierBytes); 4] = [
        ("device to host", HOST, |moment| moment.device_to_host),
        ("host to device", "stream0", |moment| moment.host_to_device),
        ("written to disk", DISK, |moment| moment.disk_write),
        ("read from disk", "stream2", |moment| moment.disk_read),
    ];
    let bin_us = moments.last().map_or(1, |last| last.at_us.max(1)) as f64 / BINS as f64;
    let mut series = Vec::new();
    for (name, class, bytes) in links {
        let passed = binned(moments, bytes);
        let first = moments.first().map_or(0, bytes);
        if passed.last().is_some_and(|last| *last > first) {
            let speeds = (0..BINS).map(|bin| {
                let before = bin.checked_sub(MEAN).map_or(first, |before| passed[before]);
                (passed[bin] - before) as f64 / (bin_us * MEAN.min(bin + 1) as f64) * 1e6
            });
            series.push(Series::of_numbers(name, class, DrawnAs::Line, speeds.collect()));
        }
    }
    let subject = format!("Links during step {number}");
    Chart::new(&subject, title, "Bytes a second over each link during one step.", span, Unit::Bandwidth, series)
}

/// Returns a figure for each bin: the last one seen before its end.
fn binned(moments: &[TierMoment], figure: impl Fn(&TierMoment) -> u64) -> Vec<u64> {
    let end_us = moments.last().map_or(0, |last| last.at_us).max(1);
    (0..BINS)
        .map(|bin| {
            let us = end_us * (bin as u64 + 1) / BINS as u64;
            let next = moments.partition_point(|moment| moment.at_us <= us);
            moments.get(next.saturating_sub(1)).map_or(0, &figure)
        })
        .collect()
}

/// Returns the table of saved tensors by fate: their number, bytes, share and waits.
fn fates(saved: &[SavedRecord]) -> Markup {
    let all: u64 = saved.iter().map(|saved| saved.bytes).sum();
    let rows = html! {
        @for (fate, name, class) in FATES {
            @let saved: Vec<&SavedRecord> = saved.iter().filter(|saved| saved.fate() == fate).collect();
            @let bytes: u64 = saved.iter().map(|saved| saved.bytes).sum();
            @let stalled_us: u64 = saved.iter().map(|saved| saved.stalled_us).sum();
            @if !saved.is_empty() {
                tr {
                    th scope="row" { (keyed(class, name)) }
                    td { (Count(saved.len() as u64)) }
                    td { (Bytes(bytes)) }
                    td { (Percent(bytes as f64 / all.max(1) as f64)) }
                    td { (Micros(stalled_us as f64)) }
                }
            }
        }
    };
    table(&["", "Tensors", "Bytes", "Share", "Waited for"], &rows)
}

/// Returns the table of saved tensors, or of the largest.
fn each(record: &StepRecord) -> Markup {
    let mut saved: Vec<&SavedRecord> = record.saved.iter().collect();
    saved.sort_by_key(|saved| saved.saved_us);
    // Several tensors may have the same name, so each has a number too.
    let mut listed: Vec<(usize, &SavedRecord)> = (1..).zip(saved).collect();
    listed.sort_by_key(|(_, saved)| std::cmp::Reverse(saved.bytes));
    let others = listed.split_off(listed.len().min(LISTED));
    listed.sort_by_key(|(number, _)| *number);
    let rows = html! {
        @for (number, saved) in listed { (line(number, saved, record.elapsed_us)) }
        @if !others.is_empty() {
            tr {
                td {}
                th scope="row" { (Count(others.len() as u64)) " smaller ones" }
                td {}
                td { (Bytes(others.iter().map(|(_, saved)| saved.bytes).sum())) }
            }
        }
    };
    let heads = [
        "No.",
        "Tensor",
        "Over the step",
        "Bytes",
        "Fate",
        "On disk",
        "Saved",
        "Left",
        "Called back",
        "Needed",
        "Waited for",
    ];
    html! { div.tall.saved { (table(&heads, &rows)) } }
}

/// Returns a row of [`each`]. The bar comes before the figures, so that it is visible when the table is wider than the
/// page.
fn line(number: usize, saved: &SavedRecord, elapsed_us: u64) -> Markup {
    let (_, fate, class) = FATES.into_iter().find(|(fate, ..)| *fate == saved.fate()).unwrap_or(FATES[0]);
    let times = [
        Some(saved.saved_us),
        saved.spilled.map(|(us, _)| us).or(saved.dropped_us),
        saved.fetched_us.or(saved.recomputed_us),
        saved.needed_us,
        Some(saved.stalled_us).filter(|us| *us > 0),
    ];
    html! {
        tr {
            td { (number) }
            th scope="row" { (breakable(&saved.name)) }
            td.bar { (life(saved, class, elapsed_us)) }
            td { (Bytes(saved.bytes)) }
            td { (keyed(class, fate)) }
            td { (on_disk(saved)) }
            @for us in times {
                td { (us.map_or("–".to_owned(), |us| Micros(us as f64).to_string())) }
            }
        }
    }
}

/// Returns the bytes that a tensor took on a disk, and its codec.
fn on_disk(saved: &SavedRecord) -> String {
    saved.encoded.map_or("–".to_owned(), |Encoded { codec, bytes, .. }| match codec {
        Codec::None => Bytes(bytes as u64).to_string(),
        codec => format!("{}, {codec}", Bytes(bytes as u64)),
    })
}

/// Draws where a tensor was from when it was saved until it was needed. The optimizer's state is away when a step
/// begins: it comes back first and leaves afterwards.
fn life(saved: &SavedRecord, away: &str, elapsed_us: u64) -> Markup {
    let needed = saved.needed_us.unwrap_or(elapsed_us);
    let left = saved.spilled.map(|(us, _)| us).or(saved.dropped_us).unwrap_or(needed);
    let back = saved.fetched_us.or(saved.recomputed_us).unwrap_or(needed);
    let parts = if back < left {
        [(away, back), (MEMORY, left), (away, needed)]
    } else {
        [(MEMORY, left), (away, back), (MEMORY, needed)]
    };
    let mut at = 0;
    html! {
        div.stack {
            @for (class, until) in [("", saved.saved_us)].into_iter().chain(parts) {
                @let until = until.clamp(at, needed.max(at));
                @let share = 100.0 * (until - std::mem::replace(&mut at, until)) as f64 / elapsed_us.max(1) as f64;
                i class=(class) style=(format!("width:{share:.1}%")) {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::axis::WIDE;

    fn record() -> StepRecord {
        let moment = |at_us: u64, memory_bytes, disk_bytes| TierMoment {
            at_us,
            memory_bytes,
            disk_bytes,
            disk_write: 5_000_000 + at_us.min(500) * 2000,
            ..TierMoment::default()
        };
        let saved =
            |name: &str, bytes, saved_us| SavedRecord { name: name.into(), bytes, saved_us, ..Default::default() };
        StepRecord {
            saved: vec![
                SavedRecord {
                    spilled: Some((200, Destination::Disk)),
                    fetched_us: Some(600),
                    needed_us: Some(800),
                    stalled_us: 40,
                    encoded: Some(Encoded { codec: Codec::Zeros, raw_bytes: 3_000_000, bytes: 1_100_000 }),
                    ..saved("a<b f32 [3]", 3_000_000, 100)
                },
                SavedRecord { needed_us: Some(700), ..saved("kept", 1_000_000, 150) },
                SavedRecord { dropped_us: Some(300), recomputed_us: Some(650), ..saved("again", 4_000_000, 160) },
            ],
            moments: vec![moment(0, 100, 0), moment(500, 9_000_000, 3_000_000), moment(1000, 200, 0)],
            budget_bytes: Some(12_000_000),
            elapsed_us: 1000,
        }
    }

    #[test]
    fn it_says_what_became_of_each_and_of_how_much() {
        let html = sections("a model", 3, &record()).0;
        for said in [
            "a&lt;b f32 [3]",
            "spilled to disk",
            "recomputed",
            "1.10 MB, zeros",
            "3.00 MB",
            "40.0 µs",
            "800 µs",
            "<td>38%</td>",
            "<td>50%</td>",
            "limit, peak 12.0 MB",
            "disk, peak 3.00 MB",
            "in memory, peak 9.00 MB",
        ] {
            assert!(html.contains(said), "{said}: {html}");
        }
        // No memory was pinned, and no byte was read.
        assert!(!html.contains("pinned memory, peak") && !html.contains("read from disk"));
    }

    #[test]
    fn a_link_is_as_fast_as_bytes_passed_it() {
        let chart = links("", 1, Span::Us(1000), &record().moments);
        let svg = chart.drawing(WIDE).inline().0;
        // A megabyte was seen at once, and is shown as a mean over ten of the 400 bins.
        assert!(svg.contains("written to disk, peak 40.0 GB/s"), "{svg}");
    }

    #[test]
    fn a_bar_is_as_long_as_it_took() {
        let bar = life(&record().saved[0], DISK, 1000).0;
        let widths: Vec<&str> = bar.split("width:").skip(1).map(|rest| &rest[..rest.find('%').unwrap()]).collect();
        assert_eq!(widths, ["10.0", "10.0", "40.0", "20.0"]);
        let bar = life(&record().saved[1], MEMORY, 1000).0;
        assert!(bar.contains("width:15.0%") && bar.contains("width:55.0%"), "{bar}");
    }

    #[test]
    fn a_bar_of_what_came_back_before_it_left_begins_and_ends_away() {
        let state =
            SavedRecord { spilled: Some((700, Destination::Disk)), fetched_us: Some(400), ..SavedRecord::default() };
        let bar = life(&state, DISK, 1000).0;
        let parts = [(DISK, 40), (MEMORY, 30), (DISK, 30)]
            .map(|(class, share)| format!("<i class=\"{class}\" style=\"width:{share}.0%\"></i>"));
        assert!(bar.contains(&parts.concat()), "{bar}");
    }

    #[test]
    fn equal_names_are_told_apart_by_the_order_in_which_they_were_saved() {
        let mut record = record();
        let times = [30, 10, 20];
        record.saved = times.map(|saved_us| SavedRecord { saved_us, ..record.saved[1].clone() }).into();
        let html = each(&record).0;
        let saved: Vec<String> =
            html.split("<tr><td>").skip(1).map(|row| row.split("</td>").next().unwrap().to_owned()).collect();
        assert_eq!(saved, ["1", "2", "3"]);
        let first = html.find("<td>10.0 µs</td>").unwrap();
        let last = html.find("<td>30.0 µs</td>").unwrap();
        assert!(html.find("<tr><td>1<").unwrap() < first && first < html.find("<tr><td>2<").unwrap() && first < last);
        assert!(html.find("class=\"bar\"").unwrap() < html.find("<td>1.00 MB</td>").unwrap());
    }

    #[test]
    fn of_many_the_largest_are_listed() {
        let mut record = record();
        record.saved = (0..LISTED as u64 + 7).map(|bytes| SavedRecord { bytes, ..record.saved[1].clone() }).collect();
        let html = each(&record).0;
        assert!(html.contains("7 smaller ones") && html.matches("<tr>").count() == LISTED + 2);
    }
}
