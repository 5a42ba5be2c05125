//! The server's metrics, in Prometheus's text format.

use std::collections::BTreeMap;

use super::client::HttpClient;

/// The phases of a request's time, with the server's names.
pub(super) const PHASES: [&str; 4] = ["queue", "copy", "wait", "compute"];

/// The counters of a server since it started.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counted {
    /// The number of times that models were brought to the device.
    pub(super) switches: u64,
    /// Seconds and requests, by `resident` or `switched` weights and by phase.
    phases: BTreeMap<(String, String), (f64, u64)>,
}

/// The phases of the time of some requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Split {
    pub(super) requests: u64,
    /// The mean time in ms of each of [`PHASES`].
    pub(super) phases_ms: [f64; 4],
}

impl Counted {
    /// Reads the server's current counters; zeros if it does not report them.
    pub(super) async fn ask(client: &HttpClient) -> Self {
        match client.get("/metrics").await {
            Ok(answer) if answer.status.is_success() => Self::parse(&String::from_utf8_lossy(&answer.body)),
            _ => Self::default(),
        }
    }

    fn parse(text: &str) -> Self {
        let mut counted = Self::default();
        for line in text.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = name.split_once('{').unwrap_or((name, ""));
            let Ok(value) = value.parse::<f64>() else { continue };
            let phase = || Some((label(labels, "weights")?, label(labels, "phase")?));
            match (name, phase()) {
                ("tenure_switches_total", _) => counted.switches += value as u64,
                ("tenure_request_phase_seconds_sum", Some(of)) => counted.phases.entry(of).or_default().0 += value,
                ("tenure_request_phase_seconds_count", Some(of)) => {
                    counted.phases.entry(of).or_default().1 += value as u64;
                }
                _ => {}
            }
        }
        counted
    }

    /// Returns the phases of the requests since `before` whose weights were `resident` or `switched`.
    pub(super) fn since(&self, before: &Self, weights: &str) -> Split {
        let mut split = Split::default();
        for (phase, mean_ms) in PHASES.iter().zip(&mut split.phases_ms) {
            let of = (weights.to_owned(), (*phase).to_owned());
            let [(now_s, now), (then_s, then)] =
                [self, before].map(|counted| counted.phases.get(&of).copied().unwrap_or_default());
            let requests = now.saturating_sub(then);
            split.requests = split.requests.max(requests);
            *mean_ms = (now_s - then_s) * 1e3 / requests.max(1) as f64;
        }
        split
    }
}

/// Returns a label's value. The labels used here contain no quotation marks.
fn label(labels: &str, name: &str) -> Option<String> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    Some(rest.split_once('"')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_of_all_models_are_added() {
        let line = |what: &str, model: &str, weights: &str, value: f64| {
            format!(
                "tenure_request_phase_seconds_{what}{{model=\"{model}\",phase=\"copy\",weights=\"{weights}\"}} {value}\n"
            )
        };
        let before = Counted::parse(&(line("sum", "a", "switched", 1.0) + &line("count", "a", "switched", 2.0)));
        let after = [
            line("sum", "a", "switched", 1.5),
            line("count", "a", "switched", 3.0),
            line("sum", "b", "switched", 0.5),
            line("count", "b", "switched", 1.0),
            line("count", "b", "resident", 7.0),
            "# TYPE tenure_switches counter\ntenure_switches_total{model=\"a\"} 4\n".into(),
        ];
        let after = Counted::parse(&after.concat());
        assert_eq!(after.since(&before, "switched"), Split { requests: 2, phases_ms: [0.0, 500.0, 0.0, 0.0] });
        assert_eq!(after.switches, 4);
    }
}
