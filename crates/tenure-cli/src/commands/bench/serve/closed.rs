//! A closed load: each connection sends the next request when the last is answered, to Tenure's server and to a bare
//! one.

use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use serde::Serialize;
use tenure::units::{Bytes, Percent};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::bare::BareServer;
use super::client::{HttpClient, PATIENCE};
use super::own::OwnServer;
use super::target::{Asked, RequestOutcome};
use crate::figures::{median, table};
use crate::signals;

/// The number of turns of each server, and the share of a turn that warms up.
const TURNS: u32 = 10;
const WARM_UP: f64 = 0.1;

/// The turns of both servers, in both encodings.
pub(super) const STEPS: u64 = TURNS as u64 * 4;

/// The load.
pub(super) struct Closed {
    pub(super) connections: usize,
    /// The time of all turns together.
    pub(super) time: Duration,
}

/// Requests per second in one encoding, by Tenure's server and by a bare one, each the median of the turns.
#[derive(Debug, Serialize)]
pub(super) struct Rates {
    encoding: &'static str,
    per_second: f64,
    bare_per_second: f64,
    /// `per_second` divided by `bare_per_second`.
    ratio: f64,
    /// The processor time for a request, including the client's.
    cpu_us: f64,
    bare_cpu_us: f64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    requests: usize,
    unanswered: usize,
    wrong: usize,
    /// The memory of the server's processes and of this process: at the start, in the middle, and at the end.
    resident_bytes: [u64; 3],
}

/// The requests of one turn, by outcome.
#[derive(Default)]
struct Turn {
    per_second: f64,
    cpu_us: f64,
    answered: usize,
    unanswered: usize,
    wrong: usize,
}

/// Latencies in µs, to three digits. Their memory does not grow with their number, because the process's memory is
/// measured.
#[derive(Clone)]
struct Latencies(Arc<Mutex<Histogram<u64>>>);

/// Measures each of the requests in its encoding. An interrupted measurement is left out.
pub(super) fn measure(
    runtime: &Runtime,
    server: &OwnServer,
    requests: [(&'static str, Asked); 2],
    load: &Closed,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Rates>> {
    let mut rates = Vec::new();
    for (encoding, asked) in requests {
        let client = Arc::new(HttpClient::new(&server.url)?);
        let answer = runtime.block_on(asked.ask(&client))?;
        let text = String::from_utf8_lossy(&answer.body);
        anyhow::ensure!(answer.status.is_success(), "the model does not answer: {text}");
        let bare = BareServer::start(answer)?;
        let bare_client = Arc::new(HttpClient::new(&bare.url)?);
        let asked = Arc::new(asked);
        let turn_time = load.time / (TURNS * 4);
        let [warm_up, latencies, bare_latencies] = [Latencies::new()?, Latencies::new()?, Latencies::new()?];
        let turn = |client: &Arc<HttpClient>, latencies: &Latencies| {
            runtime.block_on(turn(client, &asked, load.connections, turn_time.mul_f64(WARM_UP), &warm_up));
            let before = cpu_us(server);
            let turn = runtime.block_on(turn(client, &asked, load.connections, turn_time, latencies));
            Turn { cpu_us: (cpu_us(server) - before) / turn.answered as f64, ..turn }
        };
        let mut ours = Vec::new();
        let mut bares = Vec::new();
        let mut resident = Vec::new();
        for _ in 0..TURNS {
            bar.set_message(format!("{encoding}, Tenure"));
            ours.push(turn(&client, &latencies));
            resident.push(resident_bytes(server));
            bar.inc(1);
            bar.set_message(format!("{encoding}, a bare server"));
            bares.push(turn(&bare_client, &bare_latencies));
            bar.inc(1);
            if signals::was_received() {
                return Ok(rates);
            }
        }
        rates.push(Rates::of(encoding, &ours, &bares, &latencies, &resident));
    }
    Ok(rates)
}

impl Rates {
    fn of(encoding: &'static str, ours: &[Turn], bares: &[Turn], latencies: &Latencies, resident: &[u64]) -> Self {
        let sum = |of: fn(&Turn) -> usize| ours.iter().map(of).sum();
        let at = |turn: usize| resident.get(turn).copied().unwrap_or(0);
        let per_second = median(ours.iter().map(|turn| turn.per_second));
        let bare_per_second = median(bares.iter().map(|turn| turn.per_second));
        Self {
            encoding,
            per_second,
            bare_per_second,
            ratio: per_second / bare_per_second.max(f64::MIN_POSITIVE),
            cpu_us: median(ours.iter().map(|turn| turn.cpu_us)),
            bare_cpu_us: median(bares.iter().map(|turn| turn.cpu_us)),
            p50_ms: latencies.quantile_ms(0.5),
            p99_ms: latencies.quantile_ms(0.99),
            requests: sum(|turn| turn.answered),
            unanswered: sum(|turn| turn.unanswered),
            wrong: sum(|turn| turn.wrong),
            resident_bytes: [at(0), at(resident.len() / 2), at(resident.len().saturating_sub(1))],
        }
    }

    /// Returns a table of the rates.
    pub(super) fn describe(all: &[Self]) -> String {
        let heads =
            ["as", "a second", "bare", "ratio", "CPU µs", "bare", "p50 ms", "p99 ms", "unanswered", "wrong", "memory"];
        table(
            &heads,
            &all.iter()
                .map(|rates| {
                    let time = |ms: Option<f64>| ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms:.2}"));
                    let [begin, middle, end] = rates.resident_bytes.map(|bytes| Bytes(bytes).to_string());
                    [
                        rates.encoding.to_owned(),
                        format!("{:.0}", rates.per_second),
                        format!("{:.0}", rates.bare_per_second),
                        Percent(rates.ratio).to_string(),
                        format!("{:.0}", rates.cpu_us),
                        format!("{:.0}", rates.bare_cpu_us),
                        time(rates.p50_ms),
                        time(rates.p99_ms),
                        rates.unanswered.to_string(),
                        rates.wrong.to_string(),
                        format!("{begin}, {middle}, {end}"),
                    ]
                })
                .collect::<Vec<_>>(),
        )
    }
}

impl Latencies {
    fn new() -> anyhow::Result<Self> {
        let longest_us = PATIENCE.as_micros().try_into()?;
        Ok(Self(Arc::new(Mutex::new(Histogram::new_with_max(longest_us, 3)?))))
    }

    fn record(&self, took: Duration) {
        let took_us = took.as_micros().try_into().unwrap_or(u64::MAX);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(took_us);
    }

    /// Returns the smallest latency that at least this share of all requests does not exceed; `None` without requests.
    fn quantile_ms(&self, share: f64) -> Option<f64> {
        let latencies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!latencies.is_empty()).then(|| latencies.value_at_quantile(share) as f64 / 1e3)
    }
}

/// Sends over this many connections for this time.
async fn turn(
    client: &Arc<HttpClient>,
    asked: &Arc<Asked>,
    connections: usize,
    time: Duration,
    latencies: &Latencies,
) -> Turn {
    let begun = Instant::now();
    let mut senders = JoinSet::new();
    for _ in 0..connections {
        let client = Arc::clone(client);
        let asked = Arc::clone(asked);
        let latencies = latencies.clone();
        senders.spawn(async move {
            let mut turn = Turn::default();
            let mut sent = Instant::now();
            while sent - begun < time && !signals::was_received() {
                let answer = asked.ask(&client).await;
                let answered = Instant::now();
                match answer.map(|answer| asked.outcome(answer)) {
                    Ok(RequestOutcome::Answered) => {
                        turn.answered += 1;
                        latencies.record(answered - sent);
                    }
                    Ok(RequestOutcome::Wrong) => turn.wrong += 1,
                    _ => turn.unanswered += 1,
                }
                sent = answered;
            }
            turn
        });
    }
    let mut all = Turn::default();
    for Turn { answered, unanswered, wrong, .. } in senders.join_all().await {
        all.answered += answered;
        all.unanswered += unanswered;
        all.wrong += wrong;
    }
    all.per_second = all.answered as f64 / begun.elapsed().as_secs_f64();
    all
}

/// Returns the memory of this process and of the server's workers; 0 if the system does not report it.
fn resident_bytes(server: &OwnServer) -> u64 {
    let of = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    };
    all(server, "status").into_iter().filter_map(of).sum()
}

/// Returns the processor time of this process and the server's workers, to 10 ms; 0 if the system does not report it.
fn cpu_us(server: &OwnServer) -> f64 {
    let of = |stat: String| {
        // The program's name may contain spaces; it ends with the last parenthesis.
        let mut times = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let mut ticks = || times.next()?.parse::<f64>().ok();
        Some((ticks()? + ticks()?) * 1e4)
    };
    all(server, "stat").into_iter().filter_map(of).sum()
}

/// Reads a /proc file of this process and of each of the server's workers.
fn all(server: &OwnServer, file: &str) -> Vec<String> {
    let workers = server.workers().into_iter().map(|process| process.to_string());
    let processes = workers.chain(["self".to_owned()]);
    processes.filter_map(|process| fs::read_to_string(format!("/proc/{process}/{file}")).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_that_of_the_two_rates() -> anyhow::Result<()> {
        let turns = |rates: [f64; 3]| rates.map(|per_second| Turn { per_second, ..Turn::default() });
        let rates =
            Rates::of("json", &turns([100.0, 200.0, 300.0]), &turns([100.0, 250.0, 900.0]), &Latencies::new()?, &[]);
        assert_eq!((rates.per_second, rates.bare_per_second, rates.ratio), (200.0, 250.0, 0.8));
        Ok(())
    }

    #[test]
    fn quantiles_of_latencies_are_right_to_a_thousandth() -> anyhow::Result<()> {
        let latencies = Latencies::new()?;
        assert_eq!(latencies.quantile_ms(0.5), None);
        (1..=10_000).for_each(|us| latencies.record(Duration::from_micros(us)));
        latencies.record(Duration::MAX);
        for (share, expected) in [(0.0001, 0.001), (0.5, 5.0), (0.99, 9.9)] {
            let found = latencies.quantile_ms(share).unwrap_or_default();
            assert!((found - expected).abs() <= expected / 1000.0 + 0.001, "{share}: {found}");
        }
        Ok(())
    }
}
