//! Memory shared between processes: a daemon that owns it, and what it says.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use clap::Subcommand;

use tenure::units::{Bytes, Count, Micros, parse_bytes};
use tenure_device::Access;
use tenure_device::share::{
    Client, DaemonConfig, Holding, LeaseKind, LeaseState, MemoryDaemon, Status, default_socket,
};

use crate::args::DriverKind;
use crate::files;
use crate::platform::device;
use crate::progress;
use crate::table::table;

/// How often the line on a terminal is brought up to date.
const UPDATE: Duration = Duration::from_secs(1);

/// The smallest chunk that a pool may be asked to have, in bytes.
const LEAST_CHUNK: u64 = 1 << 20;

#[derive(Subcommand)]
pub(crate) enum MemoryCommand {
    Daemon(DaemonArgs),
    Status(StatusArgs),
}

/// Own memory of a device and lease it to other processes of this user, until interrupted
#[derive(clap::Args)]
#[command(after_help = "\
Processes map the pool as a whole and lease ranges of it, or lease chunks of their own beside it. \
When the daemon ends, what they have mapped stays valid.

Examples:
  tenure memory daemon --chunks 1GiB,11GiB  # parameters, computation
  tenure memory daemon --pool-bytes 16GiB
  tenure memory daemon --lease-bytes 64GiB --socket /run/user/1000/gpu.sock")]
pub(crate) struct DaemonArgs {
    /// The pool's size; a size is a number of bytes, or has a unit such as MiB or GB
    #[arg(long, default_value = "0", value_parser = parse_bytes, value_name = "SIZE")]
    pool_bytes: u64,
    /// The size of the pool's chunks: a process maps each as a whole for reading or writing, and few are mapped faster
    /// than many [default: the pool's]
    #[arg(long, value_parser = parse_chunk_bytes, value_name = "SIZE")]
    chunk_bytes: Option<u64>,
    /// The pool's chunks by their sizes, in order, such as a part for parameters and one for computation: a process
    /// that writes one can not write another by mistake
    #[arg(
        long, value_parser = parse_chunk_bytes, value_delimiter = ',', value_name = "SIZE,...",
        conflicts_with_all = ["pool_bytes", "chunk_bytes"]
    )]
    chunks: Vec<u64>,
    /// The most that chunks leased beside the pool may come to [default: what the device has]
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
    lease_bytes: Option<u64>,
    /// How long a process's work may outlast it, in ms, where the driver does not tell
    #[arg(long, default_value_t = 2000, value_name = "T")]
    grace_ms: u64,
    /// The most connections at once, the daemon's own included; one that holds nothing and is silent for a minute makes place for another
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..), value_name = "N")]
    clients: u32,
    /// The driver underneath
    #[arg(long, value_enum, default_value_t = DriverKind::Cuda, value_name = "NAME")]
    driver: DriverKind,
    #[command(flatten)]
    place: Place,
}

impl DaemonArgs {
    /// Sizes of the pool's chunks.
    fn pool(&self) -> Vec<u64> {
        if self.chunks.is_empty() {
            equal_chunks(self.pool_bytes, self.chunk_bytes.unwrap_or(self.pool_bytes))
        } else {
            self.chunks.clone()
        }
    }
}

/// Say what a memory daemon has leased, and to whom
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tenure memory status --json")]
pub(crate) struct StatusArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Which daemon.
#[derive(clap::Args)]
struct Place {
    /// The device
    #[arg(long, default_value_t = 0, value_name = "N")]
    device: u8,
    /// The daemon's socket [default: one for each user and device, under $XDG_RUNTIME_DIR or the system's temporary
    /// files]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Place {
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
    // From here on a signal ends the daemon, and nothing else.
    let (interrupted, interruption) = mpsc::channel();
    ctrlc::set_handler(move || {
        // Once is enough.
        let _ = interrupted.send(());
    })?;
    let config = DaemonConfig {
        socket: args.place.socket(),
        pool: args.pool(),
        chunk_limit_bytes: args.lease_bytes,
        grace: Duration::from_millis(args.grace_ms),
        clients: args.clients,
        ..DaemonConfig::default()
    };
    let daemon = MemoryDaemon::start(device(args.driver, args.place.device)?, config)?;
    let client = Client::connect(daemon.socket())?;
    // Whoever waits for this line can connect. Nobody has to read it.
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
    let status = Client::connect(&args.place.socket())?.status()?;
    Ok(if args.json { serde_json::to_string(&status)? + "\n" } else { describe(&status) })
}

/// Equal chunks, and what is left.
fn equal_chunks(pool_bytes: u64, chunk_bytes: u64) -> Vec<u64> {
    let whole = pool_bytes.checked_div(chunk_bytes).unwrap_or(0);
    let rest = Some(pool_bytes - whole * chunk_bytes).filter(|&bytes| bytes > 0);
    std::iter::repeat_n(chunk_bytes, whole as usize).chain(rest).collect()
}

/// What there is to have.
fn offer(status: &Status) -> String {
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

/// What is going on, in one line.
fn activity(status: &Status) -> String {
    let orphans = status.holdings.iter().filter(|holding| holding.state == LeaseState::Orphaned).count();
    let pool = status.holdings.iter().filter(|holding| holding.kind == LeaseKind::Pool);
    let mut line = format!(
        "{} connections, {} of the pool and {} in chunks leased",
        // The daemon's own is not interesting.
        status.connections.saturating_sub(1),
        Bytes(pool.map(|holding| holding.bytes).sum()),
        Bytes(status.chunk_bytes)
    );
    if orphans > 0 {
        line += &format!(", {orphans} holders gone");
    }
    line
}

fn describe(status: &Status) -> String {
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
            Access::Read => "reading".into(),
            Access::ReadWrite => "writing".into(),
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
