//! Other processes of the tests: this test program again, in a role.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// The environment variable that holds a process's role.
pub(crate) const ROLE: &str = "TENURE_SHARING_ROLE";

/// The environment variable that selects the driver under test.
pub(crate) const DRIVER: &str = "TENURE_TEST_DRIVER";

/// The mark before a message to the parent; all other output is the test harness's.
const MARK: char = '@';

/// A process in a role. It is killed on drop.
pub(crate) struct Process {
    child: Child,
    /// Closed to let the process end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a role with its arguments, separated by spaces, on the driver under test.
    pub(crate) fn start(role: &str) -> Self {
        Self::spawn(Self::command(role))
    }

    /// Starts a role on the simulated driver, whichever driver is under test.
    pub(crate) fn simulated(role: &str) -> Self {
        let mut command = Self::command(role);
        command.env(DRIVER, "sim");
        Self::spawn(command)
    }

    fn command(role: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["worker", "--exact", "--nocapture"]).env(ROLE, role);
        command
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input: Some(input), output }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next message of the process.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the process ended before it said anything");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim().to_owned();
            }
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Stops the process. When this returns, none of its threads runs any more, which sending a signal alone does not
    /// ensure.
    pub(crate) fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap().unwrap();
    }

    /// Ends the process as a crash would.
    pub(crate) fn kill(self) {}

    /// Waits for the process to succeed. The caller has received all its messages.
    pub(crate) fn finish(mut self) {
        self.input = None;
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a message to the parent.
pub(crate) fn tell(what: impl std::fmt::Display) {
    println!("{MARK}{what}");
}

/// Returns the next message of the parent; `None` when it has closed the pipe.
pub(crate) fn listen() -> Option<String> {
    std::io::stdin().lines().next().map(Result::unwrap)
}
