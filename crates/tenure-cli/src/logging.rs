//! Logs warnings, and a server's requests, on standard error.

use std::{env, io};

use tenure_serve::request_log;
use tracing_subscriber::EnvFilter;

/// The format in which a server's requests are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Not at all
    Off,
    /// As `name=value`
    Text,
    /// As a JSON object
    Json,
}

/// Starts logging of warnings, such as of a missing library, and of requests. `RUST_LOG` selects other messages.
pub(crate) fn begin(requests: LogFormat) {
    let others = env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| "warn".into());
    let level = if requests == LogFormat::Off { "off" } else { "info" };
    let filter = EnvFilter::new(format!("{others},{}={level}", request_log::TARGET));
    // Otherwise a line that cannot be written, as on a full disk, would be reported on standard error too, and panic.
    let lines = tracing_subscriber::fmt().log_internal_errors(false);
    let lines = lines.with_env_filter(filter).with_writer(io::stderr).with_target(false);
    match requests {
        LogFormat::Off => lines.without_time().init(),
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
    }
}
