//! The report on a server's latencies, as a whole and over time.

use std::time::Duration;

use maud::{Markup, html};

use super::axis::{BINS, Span, Unit};
use super::chart::{Chart, DrawnAs, Series, column};
use super::html::{self, document, figure, section};

/// The most models that have a line of their own; the others share one.
const MODELS: usize = 7;

/// A report on a server's latencies: one HTML file, or its figures alone.
pub struct ServingReport<'a> {
    title: &'a str,
    facts: &'a [(&'static str, String)],
    models: &'a [ModelLatencies],
    switches: &'a [Duration],
}

/// The answers of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelLatencies {
    /// The model.
    pub model: String,
    /// Its answered requests.
    pub requests: Vec<SentRequest>,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentRequest {
    /// The time at which it was to be sent, from the beginning.
    pub sent: Duration,
    /// The time from then until it was answered.
    pub took: Duration,
}

impl<'a> ServingReport<'a> {
    /// Makes a report called `title`. `facts` describe the measurement, and `switches` are the times when models were
    /// brought to the device.
    pub fn new(
        title: &'a str,
        facts: &'a [(&'static str, String)],
        models: &'a [ModelLatencies],
        switches: &'a [Duration],
    ) -> Self {
        Self { title, facts, models, switches }
    }

    /// Returns the whole report: one HTML file.
    pub fn html(&self) -> String {
        let shares = "The share of the answers that took no longer than so long.";
        let over_time = "The longest that an answer took whose request was to be sent then. Grey: one or more models had \
                         come to the device since the server's count was last read.";
        let body = html! {
            (html::header("Serving report", self.title, &Markup::default(), self.facts))
            (section("Latency", shares, figure(&self.shares())))
            (section("Latency over time", over_time, figure(&self.over_time())))
        };
        document(self.title, &body, "Times are from when a request was to be sent.")
    }

    /// Returns the figures alone, one below the other: an SVG file.
    pub fn svg(&self) -> String {
        column(self.title, &[self.shares(), self.over_time()]).file()
    }

    /// Returns names with the requests of each: the models with most requests, and all others together.
    fn groups(&self) -> Vec<(String, Vec<SentRequest>)> {
        let mut models: Vec<&ModelLatencies> = self.models.iter().collect();
        models.sort_by_key(|model| std::cmp::Reverse(model.requests.len()));
        let (most, others) = models.split_at(models.len().min(MODELS));
        let mut groups: Vec<_> = most.iter().map(|model| (model.model.clone(), model.requests.clone())).collect();
        if !others.is_empty() {
            let requests = others.iter().flat_map(|model| model.requests.iter().copied()).collect();
            groups.push((format!("{} others", others.len()), requests));
        }
        groups
    }

    fn shares(&self) -> Chart {
        let all: Vec<SentRequest> = self.models.iter().flat_map(|model| model.requests.iter().copied()).collect();
        let longest_us = all.iter().map(|request| request.took.as_micros() as u64).max().unwrap_or(0).max(1);
        let share = |requests: &[SentRequest]| {
            let mut sorted: Vec<u64> = requests.iter().map(|request| request.took.as_micros() as u64).collect();
            sorted.sort_unstable();
            let of = |bin: usize| {
                let us = longest_us * (bin as u64 + 1) / BINS as u64;
                sorted.partition_point(|took| *took <= us) as f64 / sorted.len().max(1) as f64
            };
            (0..BINS).map(of).collect()
        };
        let mut series = lines(self.groups(), share);
        series.push(Series::of_numbers("all", "most", DrawnAs::Line, share(&all)));
        let description = "The share of answers that took no longer.";
        Chart::new("Latency", self.title, description, Span::Us(longest_us), Unit::Number, series)
    }

    fn over_time(&self) -> Chart {
        let sent = self.models.iter().flat_map(|model| &model.requests).map(|request| request.sent);
        let end_us =
            sent.chain(self.switches.iter().copied()).map(|at| at.as_micros() as u64).max().unwrap_or(0).max(1);
        let bin = |at: Duration| (at.as_micros() as u64 * BINS as u64 / (end_us + 1)) as usize;
        let longest = |requests: &[SentRequest]| {
            let mut values = vec![0.0; BINS];
            for request in requests {
                let value: &mut f64 = &mut values[bin(request.sent)];
                *value = value.max(request.took.as_secs_f64() * 1e3);
            }
            values
        };
        let mut series = lines(self.groups(), longest);
        let mut switches = vec![0.0; BINS];
        let highest = self.models.iter().flat_map(|model| &model.requests).map(|request| request.took).max();
        for at in self.switches {
            switches[bin(*at)] = highest.unwrap_or_default().as_secs_f64() * 1e3;
        }
        series.insert(0, Series::of_numbers("switches", "requested", DrawnAs::Area, switches));
        let description = "The longest latency at a time.";
        Chart::new("Latency over time", self.title, description, Span::Us(end_us), Unit::Ms, series)
    }
}

/// Returns a line for each group.
fn lines(groups: Vec<(String, Vec<SentRequest>)>, of: impl Fn(&[SentRequest]) -> Vec<f64>) -> Vec<Series> {
    groups
        .into_iter()
        .enumerate()
        .map(|(number, (name, requests))| {
            Series::of_numbers(name, format!("stream{number}"), DrawnAs::Line, of(&requests))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str, took_ms: &[u64]) -> ModelLatencies {
        ModelLatencies {
            model: name.into(),
            requests: took_ms
                .iter()
                .enumerate()
                .map(|(number, ms)| SentRequest {
                    sent: Duration::from_secs(number as u64),
                    took: Duration::from_millis(*ms),
                })
                .collect(),
        }
    }

    #[test]
    fn the_longest_answer_is_the_end_of_the_shares() {
        let models = [model("a <b>", &[10, 20, 40]), model("c", &[30])];
        let switches = [Duration::from_secs(1)];
        let report = ServingReport::new("Poisson", &[], &models, &switches);
        let svg = report.svg();
        assert!(svg.contains("a &lt;b&gt;: 1.000") && svg.contains("a &lt;b&gt;: 0.667"), "{svg}");
        assert!(svg.contains("switches: 40.0 ms") && svg.matches("<style>").count() == 1);
        assert!(report.html().contains("<svg"));
    }

    #[test]
    fn models_that_are_asked_least_are_one_line() {
        let models: Vec<_> = (1..=10).map(|count| model(&format!("m{count}"), &vec![1; count])).collect();
        let groups = ServingReport::new("Zipf", &[], &models, &[]).groups();
        let names: Vec<&str> = groups.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["m10", "m9", "m8", "m7", "m6", "m5", "m4", "3 others"]);
        assert_eq!(groups[7].1.len(), 1 + 2 + 3);
        assert!(ServingReport::new("nothing", &[], &[], &[]).svg().contains("</svg>"));
    }
}
