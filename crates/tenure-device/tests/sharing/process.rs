//! Other processes: this test program again, in a role.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// The environment variable that says what a process does.
pub(crate) const ROLE: &str = "TENURE_SHARING_ROLE";

/// The environment variable that says which driver is tested.
pub(crate) const DRIVER: &str = "TENURE_TEST_DRIVER";

/// Stands before what a process says to its parent; the rest is the test harness's.
const MARK: char = '@';

/// A process in a role. Dropped, it is killed.
pub(crate) struct Process {
    child: Child,
    /// Closed to let it end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a role with its arguments, separated by spaces, on the driver that is tested.
    pub(crate) fn start(role: &str) -> Self {
        Self::spawn(Self::command(role))
    }

    /// The same on the simulated driver, whatever is tested.
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
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input: Some(input), output }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next thing that it says.
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

    /// Stops it: none of its threads runs any more when this returns, which a signal alone does not promise.
    pub(crate) fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap().unwrap();
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(self) {}

    /// Waits for it to end well, after what it said was heard.
    pub(crate) fn finish(mut self) {
        self.input = None;
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says something to the parent.
pub(crate) fn tell(what: impl std::fmt::Display) {
    println!("{MARK}{what}");
}

/// What the parent says next; `None` when it has closed the pipe.
pub(crate) fn listen() -> Option<String> {
    std::io::stdin().lines().next().map(Result::unwrap)
}
