//! Programs that run in the background of a server: each yields the device while the server has work to do.
//!
//! A program connects to the server's socket (`tenure serve --background SOCKET`), and runs until the server sends the
//! line `yield`. The program answers `yielded`, once for each `yield`, when it has stopped using the device. At the
//! line `run` it goes on. It also goes on when the server is gone.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::memory::Preemption;

/// The time between two attempts to reconnect to a server that is gone.
const RECONNECT: Duration = Duration::from_secs(1);

/// A program that can be stopped, and then goes on from where it stopped.
pub trait Background: Sync {
    /// Stops the program, and returns when it no longer uses the device.
    fn stop(&self);

    /// Lets the program go on.
    fn go_on(&self);
}

impl Background for Arc<Preemption> {
    fn stop(&self) {
        if !self.yield_now() {
            tracing::warn!("this program's work still runs on a device after a second: the program yields late");
        }
    }

    fn go_on(&self) {
        self.resume();
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct BackgroundServer {
    stream: UnixStream,
    socket: PathBuf,
}

/// Connects to the server that listens on a socket.
///
/// # Errors
/// No server is there.
pub fn connect(socket: &Path) -> io::Result<BackgroundServer> {
    let connected = UnixStream::connect(socket).map_err(|error| {
        let advice = "start `tenure serve --background` with this path first";
        io::Error::new(error.kind(), format!("{}: {error}: {advice}", socket.display()))
    });
    Ok(BackgroundServer { stream: connected?, socket: socket.into() })
}

impl BackgroundServer {
    /// Makes `program` yield to the server, for the rest of the process, on a thread of its own. When the server is
    /// gone, the thread looks for another one at the same path.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub fn attend(self, program: impl Background + Send + 'static) -> io::Result<()> {
        let thread = thread::Builder::new().name("background".into());
        thread.spawn(move || self.attend_for_ever(&program)).map(drop)
    }

    /// Follows one server after another.
    fn attend_for_ever(mut self, program: &dyn Background) {
        loop {
            follow(&self.stream, program);
            tracing::info!("the server at {} is gone: this program goes on", self.socket.display());
            self.stream = loop {
                thread::sleep(RECONNECT);
                if let Ok(stream) = UnixStream::connect(&self.socket) {
                    break stream;
                }
            };
        }
    }
}

/// Stops `program` and lets it go on as the server asks, until the server is gone. Then lets it go on.
pub fn follow(mut server: &UnixStream, program: &dyn Background) {
    let mut lines = BufReader::new(server).lines();
    while let Some(Ok(line)) = lines.next() {
        match line.as_str() {
            "yield" => {
                program.stop();
                if server.write_all(b"yielded\n").is_err() {
                    break;
                }
            }
            "run" => program.go_on(),
            // A newer server may send other lines.
            _ => {}
        }
    }
    program.go_on();
}
