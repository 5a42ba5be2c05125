//! Signals that ask the program to end: SIGINT (Ctrl-C), SIGTERM and SIGHUP.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use tenure::nn::checkpoint;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a program that a signal ended is this plus the signal's number, as in shells.
const SIGNALLED: u8 = 128;

/// The number of the first signal that a program [noted](note), or 0.
static FIRST: AtomicU8 = AtomicU8::new(0);

/// The effect of the first signal.
static EFFECT: Mutex<Effect> = Mutex::new(Effect::End);

/// The effect of the first signal. The next one always ends the program.
enum Effect {
    /// The program ends, and leaves no temporary files.
    End,
    /// The signal is only noted. The text says what follows.
    Note(&'static str),
    /// The signal is noted, and the function is called.
    Tell(Box<dyn Fn() + Send>),
}

/// Starts to handle signals: until [`note`] or [`tell`] is called, each ends the program at once.
///
/// # Errors
/// The system refuses a handler or a thread.
pub(crate) fn watch() -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(entered);
    thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            loop {
                let received = tokio::select! {
                    _ = interrupt.recv() => SignalKind::interrupt(),
                    _ = terminate.recv() => SignalKind::terminate(),
                    _ = hangup.recv() => SignalKind::hangup(),
                };
                receive(received);
            }
        });
    })?;
    Ok(())
}

/// Makes the first signal from now on only set [a flag](was_received) and print `then`, which says what follows. Call
/// it when the program looks at the flag often: until then a signal ends the program at once.
pub(crate) fn note(then: &'static str) {
    set_effect(Effect::Note(then));
}

/// Makes the first signal from now on only set [a flag](was_received) and call a function.
pub(crate) fn tell(function: impl Fn() + Send + 'static) {
    set_effect(Effect::Tell(Box::new(function)));
}

/// Returns whether a signal was noted.
pub(crate) fn was_received() -> bool {
    FIRST.load(Ordering::Relaxed) != 0
}

/// Returns whether a search goes on, which a signal interrupts.
pub(crate) fn going_on() -> ControlFlow<()> {
    if was_received() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Returns the exit code of the signal that was noted, or `code` if there was none.
pub(crate) fn exit_code_or(code: ExitCode) -> ExitCode {
    match FIRST.load(Ordering::Relaxed) {
        0 => code,
        number => ExitCode::from(SIGNALLED + number),
    }
}

fn set_effect(effect: Effect) {
    *EFFECT.lock().unwrap_or_else(PoisonError::into_inner) = effect;
}

fn receive(kind: SignalKind) {
    // The numbers of these signals are 1, 2 and 15 on all systems.
    let number = kind.as_raw_value() as u8;
    let effect = EFFECT.lock().unwrap_or_else(PoisonError::into_inner);
    if matches!(*effect, Effect::End) || FIRST.swap(number, Ordering::Relaxed) != 0 {
        let _abandoned = checkpoint::abandon_writes();
        process::exit((SIGNALLED + number).into());
    }
    match &*effect {
        Effect::End => {}
        Effect::Note(then) if io::stderr().is_terminal() => {
            let _ = writeln!(io::stderr(), "\ntenure: {then}; Ctrl-C again ends at once");
        }
        Effect::Note(_) => {}
        Effect::Tell(function) => function(),
    }
}
