//! `tenure memory`: a daemon that owns device memory and shares it between processes, and its status.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use clap::Subcommand;

use tenure::units::{Bytes, Count, Micros, parse_bytes};
use tenure_device::AccessMode;
use tenure_device::share::{
    DaemonClient, DaemonConfig, DaemonStatus, Holding, LeaseKind, LeaseState, MemoryDaemon, default_socket,
};

use crate::figures::table;
use crate::files;
use crate::platform::device;
use crate::progress;
use crate::signals;
use crate::values::DriverKind;

/// The time between updates of the status line on a terminal.
const UPDATE: Duration = Duration::from_secs(1);

/// The smallest chunk size of a pool, in bytes.
const LEAST_CHUNK: u64 = 1 << 20;

#[derive(Subcommand)]
pub(crate) enum MemoryCommand {
    Daemon(DaemonArgs),
    Status(StatusArgs),
}

/// Own memory of a device and lease it to other processes of this user, until interrupted
#[derive(clap::Args)]
#[command(after_help = "\
Processes map the pool as a whole and lease ranges of it, or lease separate chunks in addition to it. When the daemon \
ends, memory that they have mapped stays valid.

Examples:
  tenure memory daemon --chunks 1GiB,11GiB  # parameters, computation
  tenure memory daemon --pool-bytes 16GiB
  tenure memory daemon --lease-bytes 64GiB --socket /run/user/1000/gpu.sock")]
pub(crate) struct DaemonArgs {
    /// The pool's size; sizes are numbers of bytes, or have a unit such as MiB or GB
    #[arg(long, default_value = "0", value_parser = parse_bytes, value_name = "SIZE")]
    pool_bytes: u64,
    /// The size of the pool's chunks. A process maps each chunk as a whole for reading or writing; few large chunks map
    /// faster than many small ones [default: the pool's size]
    #[arg(long, value_parser = parse_chunk_bytes, value_name = "SIZE")]
    chunk_bytes: Option<u64>,
    /// The sizes of the pool's chunks, in order, such as one for parameters and one for computation: a process that may
    /// write one of them cannot write another by mistake
    #[arg(
        long, value_parser = parse_chunk_bytes, value_delimiter = ',', value_name = "SIZE,...",
        conflicts_with_all = ["pool_bytes", "chunk_bytes"]
    )]
    chunks: Vec<u64>,
    /// The most bytes that may be leased in addition to the pool [default: the device's memory]
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
    lease_bytes: Option<u64>,
    /// The time that a process's work may outlast it, in ms, if the driver does not report its end
    #[arg(long, default_value_t = 2000, value_name = "T")]
    grace_ms: u64,
    /// The largest number of connections at once, including the daemon's own; one that holds nothing and is silent for
    /// a minute is closed to make room for another
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..), value_name = "N")]
    clients: u32,
    /// The driver to use
    #[arg(long, value_enum, default_value_t = DriverKind::Cuda, value_name = "NAME")]
    driver: DriverKind,
    #[command(flatten)]
    chosen: DaemonChoice,
}

impl DaemonArgs {
    /// Returns the sizes of the pool's chunks.
    fn pool(&self) -> Vec<u64> {
        if self.chunks.is_empty() {
            equal_chunks(self.pool_bytes, self.chunk_bytes.unwrap_or(self.pool_bytes))
        } else {
            self.chunks.clone()
        }
    }
}

/// Show which memory a daemon has leased, and to which processes
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tenure memory status --json")]
pub(crate) struct StatusArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    chosen: DaemonChoice,
}

/// The options that choose a daemon.
#[derive(clap::Args)]
struct DaemonChoice {
    /// The device
    #[arg(long, default_value_t = 0, value_name = "N")]
    device: u8,
    /// The daemon's socket [default: one for each user and device, under $XDG_RUNTIME_DIR or the folder for temporary
    /// files]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl DaemonChoice {
    fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| default_socket(self.device))
    }
}

pub(crate) fn run(command: &MemoryCommand) -> ExitCode {
    files::print(match command {
        MemoryCommand::Daemon(args) => serve(args).map(|()| String::new()),
        MemoryCommand::Status(args) => status(args),
    })
}

fn serve(args: &DaemonArgs) -> anyhow::Result<()> {
    let (interrupted, interruption) = mpsc::channel();
    signals::tell(move || {
        // Fails only if the daemon ends already.
        let _ = interrupted.send(());
    });
    let config = DaemonConfig {
        socket: args.chosen.socket(),
        pool: args.pool(),
        chunk_limit_bytes: args.lease_bytes,
        grace: Duration::from_millis(args.grace_ms),
        clients: args.clients,
        ..DaemonConfig::default()
    };
    let daemon = MemoryDaemon::start(device(args.driver, args.chosen.device)?, config)?;
    let client = DaemonClient::connect(daemon.socket())?;
    // A program that waits for this line can connect. If the line cannot be written, the daemon serves all the same.
    let _ = writeln!(io::stdout(), "serving {} at {}", offer(&client.status()?), daemon.socket().display());
    let line = progress::line();
    while interruption.recv_timeout(UPDATE) == Err(RecvTimeoutError::Timeout) {
        line.set_message(activity(&client.status()?));
    }
    line.finish_and_clear();
    daemon.stop();
    Ok(())
}

fn status(args: &StatusArgs) -> anyhow::Result<String> {
    let status = DaemonClient::connect(&args.chosen.socket())?.status()?;
    Ok(if args.json { serde_json::to_string(&status)? + "\n" } else { describe(&status) })
}

/// Returns equal chunks, and one for the remainder.
fn equal_chunks(pool_bytes: u64, chunk_bytes: u64) -> Vec<u64> {
    let whole = pool_bytes.checked_div(chunk_bytes).unwrap_or(0);
    let rest = Some(pool_bytes - whole * chunk_bytes).filter(|&bytes| bytes > 0);
    std::iter::repeat_n(chunk_bytes, whole as usize).chain(rest).collect()
}

/// Describes the memory that the daemon offers.
fn offer(status: &DaemonStatus) -> String {
    let pool = match status.terms.pool.len() {
        0 => "no pool".to_owned(),
        1 => format!("a pool of {}", Bytes(status.terms.pool[0])),
        count => format!("a pool of {} in {} chunks", Bytes(status.terms.pool_bytes()), Count(count as u64)),
    };
    let limit = status.chunk_limit_bytes.map_or_else(
        || "chunks as far as the device has memory".to_owned(),
        |bytes| format!("{} in chunks", Bytes(bytes)),
    );
    format!("{pool} and {limit}, of {},", status.terms.device)
}

/// Describes the current connections and leases in one line.
fn activity(status: &DaemonStatus) -> String {
    let orphans = status.holdings.iter().filter(|holding| holding.state == LeaseState::Orphaned).count();
    let pool = status.holdings.iter().filter(|holding| holding.kind == LeaseKind::Pool);
    let mut line = format!(
        "{} connections, {} of the pool and {} in chunks leased",
        // The daemon's own connection does not count.
        status.connections.saturating_sub(1),
        Bytes(pool.map(|holding| holding.bytes).sum()),
        Bytes(status.chunk_bytes)
    );
    if orphans > 0 {
        line += &format!(", {orphans} holders gone");
    }
    line
}

fn describe(status: &DaemonStatus) -> String {
    let uptime = Micros(status.uptime_ms as f64 * 1e3);
    let mut text = format!("process {}, for {uptime}, serves {}\n", status.pid, offer(status).trim_end_matches(','));
    text += &format!("{} leased in chunks\n", Bytes(status.chunk_bytes));
    if status.unreleased > 0 {
        text += &format!("{} chunks that the driver does not take back yet\n", status.unreleased);
    }
    if !status.attached.is_empty() {
        let pids: Vec<_> = status.attached.iter().map(u32::to_string).collect();
        text += &format!("pool mapped by processes {}\n", pids.join(", "));
    }
    if status.holdings.is_empty() {
        return text + "no leases\n";
    }
    let rows: Vec<_> = status.holdings.iter().map(row).collect();
    text += "\n";
    text += &table(&["process", "leases", "kind", "for", "bytes", "oldest", "state"], &rows);
    if status.left_out > 0 {
        text += &format!("and {} more\n", Count(status.left_out.into()));
    }
    text
}

fn row(holding: &Holding) -> [String; 7] {
    [
        holding.pid.map_or_else(|| "out of sight".into(), |pid| pid.to_string()),
        Count(holding.leases.into()).to_string(),
        match holding.kind {
            LeaseKind::Pool => "pool".into(),
            LeaseKind::Chunk => "chunk".into(),
        },
        match holding.access {
            AccessMode::Read => "reading".into(),
            AccessMode::ReadWrite => "writing".into(),
        },
        Bytes(holding.bytes).to_string(),
        Micros(holding.oldest_ms as f64 * 1e3).to_string(),
        match holding.state {
            LeaseState::Held => "held".into(),
            LeaseState::Orphaned => "orphaned".into(),
        },
    ]
}

fn parse_chunk_bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    if bytes >= LEAST_CHUNK { Ok(bytes) } else { Err("a chunk has at least 1 MiB".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_have_a_mebibyte() {
        assert!(parse_chunk_bytes("1").is_err());
        assert_eq!(parse_chunk_bytes("1MiB"), Ok(LEAST_CHUNK));
    }

    #[test]
    fn a_pool_is_cut_into_chunks() {
        assert_eq!(equal_chunks(0, 0), [0; 0]);
        assert_eq!(equal_chunks(16, 16), [16]);
        assert_eq!(equal_chunks(16, 6), [6, 6, 4]);
        assert_eq!(equal_chunks(4, 6), [4]);
    }
}
