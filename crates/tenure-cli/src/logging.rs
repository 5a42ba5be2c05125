//! Logs warnings, and a server's requests, on standard error.

use std::io::Write;
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
    let lines = lines.with_env_filter(filter).with_writer(|| OneLine(io::stderr())).with_target(false);
    match requests {
        LogFormat::Off => lines.without_time().init(),
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
    }
}

/// Writes each message on one line: the name of a folder may contain line breaks, and would else look like a message of
/// its own.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    /// Writes one message with its line break, escaping other control characters.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(message.strip_suffix(b"\n").unwrap_or(message));
        let mut line = String::with_capacity(text.len() + 1);
        for character in text.chars() {
            if character.is_control() { line.extend(character.escape_default()) } else { line.push(character) }
        }
        line.push('\n');
        self.0.write_all(line.as_bytes())?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line() -> io::Result<()> {
        let mut line = OneLine(Vec::new());
        line.write_all("WARN a\nINFO b\r\u{1b}[31m é cannot be served\n".as_bytes())?;
        assert_eq!(String::from_utf8_lossy(&line.0), "WARN a\\nINFO b\\r\\u{1b}[31m é cannot be served\n");
        Ok(())
    }
}
