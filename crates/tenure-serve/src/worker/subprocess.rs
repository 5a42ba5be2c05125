//! A subprocess that receives orders from this process through a socket, which is its standard input.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;

use parking_lot::Mutex;

use super::message::MessageError;
use super::socket::{Incoming, Outgoing};
use super::{IS_WORKER, WorkerCommand};

/// A running subprocess, and the socket to it.
pub(super) struct Subprocess {
    pid: u32,
    child: Mutex<Child>,
    stream: UnixStream,
    /// The channel to the sending thread, so that no other thread waits for a process that does not read. `None` once
    /// the process is gone.
    orders: Mutex<Option<mpsc::Sender<Outgoing>>>,
}

/// The end of a process.
pub(super) struct Ended {
    /// The error in its reports, if the process was killed because of one.
    pub(super) fault: Option<String>,
    status: io::Result<ExitStatus>,
}

impl Ended {
    /// Returns the system's exit status as text.
    pub(super) fn status(&self) -> String {
        self.status.as_ref().map_or_else(ToString::to_string, ToString::to_string)
    }

    /// Returns whether the program ended by itself: no signal and no fault ended it.
    pub(super) fn is_by_itself(&self) -> bool {
        self.fault.is_none() && self.status.as_ref().is_ok_and(|status| status.code().is_some())
    }
}

impl Subprocess {
    /// Starts a process. The calling thread must live as long as the process.
    pub(super) fn start(command: &WorkerCommand) -> io::Result<Self> {
        let (stream, theirs) = UnixStream::pair()?;
        let writing = stream.try_clone()?;
        let child = Command::new(&command.program)
            .args(&command.arguments)
            .env(IS_WORKER, "1")
            // Ctrl-C in a terminal interrupts the group of the server, which ends its workers itself.
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            // Output that a model prints must not mix with the server's output.
            .stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?))
            .spawn()?;
        let (orders, receiver) = mpsc::channel::<Outgoing>();
        let orders = Mutex::new(Some(orders));
        let process = Self { pid: child.id(), child: Mutex::new(child), stream, orders };
        let spawned = thread::Builder::new().name("serve: orders".into()).spawn(move || {
            if let Err(error) = receiver.iter().try_for_each(|order| order.send(&writing)) {
                tracing::debug!("an order cannot be sent: {error}");
                // A process that misses an order cannot go on, so it counts as dead.
                let _ = writing.shutdown(Shutdown::Both);
            }
        });
        spawned.inspect_err(|_| drop(process.reap()))?;
        Ok(process)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends an order. A process that is gone ignores it.
    pub(super) fn send(&self, order: Outgoing) {
        if let Some(orders) = &*self.orders.lock() {
            let _ = orders.send(order);
        }
    }

    /// Ends the sending thread: later orders are ignored.
    pub(super) fn forget(&self) {
        *self.orders.lock() = None;
    }

    /// Closes the socket, at which the process ends by itself.
    pub(super) fn close(&self) {
        // This fails only if the process has ended.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    pub(super) fn kill(&self) {
        if let Err(error) = self.child.lock().kill() {
            tracing::error!("process {} cannot be killed: {error}", self.pid);
        }
    }

    /// Handles reports until there are no more, or one is invalid. The process has ended when this returns.
    pub(super) fn listen<R>(
        &self,
        receive: fn(&UnixStream) -> io::Result<Option<Incoming<R>>>,
        take: impl Fn(Incoming<R>) -> Result<(), MessageError>,
    ) -> Ended {
        let fault = loop {
            match receive(&self.stream) {
                Ok(Some(incoming)) => {
                    if let Err(error) = take(incoming) {
                        break Some(error.to_string());
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(error.to_string()),
            }
        };
        Ended { fault, status: self.reap() }
    }

    /// Kills the process if it is still running, and returns its exit status.
    pub(super) fn reap(&self) -> io::Result<ExitStatus> {
        let mut child = self.child.lock();
        // Killing a process that has already exited does not change its status.
        let _ = child.kill();
        child.wait()
    }
}
