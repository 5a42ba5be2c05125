//! The loading progress of an image: the groups that have arrived, and the threads that wait for them.

use std::mem;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tenure_core::Arrival;

use crate::SwitchError;

/// The first time that a group of an image was used on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstUse {
    /// The time of the use.
    pub at: Instant,
    /// The time that the use waited until the group was loaded.
    pub waited: Duration,
}

/// The end of a group's loading, with or without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The group.
    pub group: usize,
    /// Whether the group is loaded. Otherwise loading failed.
    pub is_there: bool,
}

/// The payload with which a thread unwinds that uses [stopped](crate::Mapped::stop) weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// The groups of an image that were loaded so far.
pub(crate) struct Progress {
    begun: Instant,
    state: Mutex<ProgressState>,
    changed: Condvar,
    is_stopped: AtomicBool,
}

/// A callback that receives how long it took until all groups were loaded, or why one could not be.
type Done = Box<dyn FnOnce(Result<Duration, SwitchError>) + Send>;

/// A callback that receives the groups whose loading is over. It is called under the lock.
type Watch = Box<dyn FnMut(&[Arrived]) + Send>;

struct ProgressState {
    groups: Vec<GroupProgress>,
    /// The callbacks to call when loading is over.
    done: Vec<Done>,
    /// The callbacks to call for each group until then.
    watches: Vec<Watch>,
    /// The time it took until all groups were there, or the first error of a group that will not arrive. `None` while
    /// all of them may.
    result: Option<Result<Duration, SwitchError>>,
}

#[derive(Clone, Copy, Default)]
struct GroupProgress {
    loading: Loading,
    used: Option<FirstUse>,
}

/// The loading of a group.
#[derive(Clone, Copy, Default, PartialEq)]
enum Loading {
    #[default]
    Pending,
    Done,
    Failed,
}

/// A group of an image: the storage of its bytes waits for it before they are used.
pub(crate) struct ImageGroup {
    progress: Arc<Progress>,
    group: usize,
    /// Set after the first wait: later uses need no lock.
    is_over: AtomicBool,
}

impl Progress {
    pub(crate) fn new(groups: usize) -> Self {
        let result = (groups == 0).then_some(Ok(Duration::ZERO));
        let groups = vec![GroupProgress::default(); groups];
        let done = Vec::new();
        let watches = Vec::new();
        let state = Mutex::new(ProgressState { groups, done, watches, result });
        Self { begun: Instant::now(), state, changed: Condvar::new(), is_stopped: AtomicBool::new(false) }
    }

    /// Records that a group was loaded, or that loading failed.
    pub(crate) fn arrived(&self, group: usize, result: Result<(), SwitchError>) {
        let mut state = self.state.lock();
        let is_there = result.is_ok();
        state.groups[group].loading = if is_there { Loading::Done } else { Loading::Failed };
        if let Err(error) = result {
            state.result.get_or_insert(Err(error));
        }
        if state.groups.iter().all(|group| group.loading == Loading::Done) {
            state.result = Some(Ok(self.begun.elapsed()));
        }
        state.watches.iter_mut().for_each(|watch| watch(&[Arrived { group, is_there }]));
        let outcome = state.outcome();
        let done = if outcome.is_some() { mem::take(&mut state.done) } else { Vec::new() };
        let watches = if outcome.is_some() { mem::take(&mut state.watches) } else { Vec::new() };
        drop(state);
        drop(watches);
        self.changed.notify_all();
        if let Some(outcome) = outcome {
            done.into_iter().for_each(|done| done(outcome.clone()));
        }
    }

    /// Waits until a group has arrived.
    pub(crate) fn wait(&self, group: usize) -> Result<(), SwitchError> {
        let mut state = self.state.lock();
        while state.groups[group].loading != Loading::Done {
            if let Some(Err(error)) = &state.result {
                return Err(error.clone());
            }
            self.changed.wait(&mut state);
        }
        Ok(())
    }

    /// Calls `done` when loading is over: at once, or on the thread that reports the last group.
    pub(crate) fn when_over(&self, done: impl FnOnce(Result<Duration, SwitchError>) + Send + 'static) {
        let mut state = self.state.lock();
        let Some(outcome) = state.outcome() else { return state.done.push(Box::new(done)) };
        drop(state);
        done(outcome);
    }

    /// Calls `watch` for the groups whose loading is over, and later for each other one.
    pub(crate) fn watch(&self, mut watch: impl FnMut(&[Arrived]) + Send + 'static) {
        let mut state = self.state.lock();
        let over = state.groups.iter().enumerate().filter(|(_, group)| group.loading != Loading::Pending);
        let over: Vec<_> = over.map(|(group, of)| Arrived { group, is_there: of.loading == Loading::Done }).collect();
        if !over.is_empty() {
            watch(&over);
        }
        if state.outcome().is_none() {
            state.watches.push(Box::new(watch));
        }
    }

    pub(crate) fn first_uses(&self) -> Vec<Option<FirstUse>> {
        self.state.lock().groups.iter().map(|group| group.used).collect()
    }

    pub(crate) fn took(&self) -> Option<Duration> {
        self.state.lock().result.as_ref()?.as_ref().ok().copied()
    }

    pub(crate) fn error(&self) -> Option<SwitchError> {
        self.state.lock().result.clone()?.err()
    }

    /// Sets whether threads that use a group, loaded or not, unwind with [`Stopped`].
    pub(crate) fn set_stopped(&self, is_stopped: bool) {
        // Under the lock, so that no thread is between its check and its wait.
        let _state = self.state.lock();
        self.is_stopped.store(is_stopped, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn unwind_if_stopped(&self) {
        if self.is_stopped.load(Ordering::Relaxed) {
            resume_unwind(Box::new(Stopped));
        }
    }
}

impl ProgressState {
    /// Returns the outcome of the loading, once it is over.
    fn outcome(&self) -> Option<Result<Duration, SwitchError>> {
        let is_over = self.groups.iter().all(|group| group.loading != Loading::Pending);
        self.result.clone().filter(|_| is_over)
    }
}

impl ImageGroup {
    pub(crate) fn new(progress: &Arc<Progress>, group: usize) -> Self {
        Self { progress: Arc::clone(progress), group, is_over: AtomicBool::new(false) }
    }
}

impl Arrival for ImageGroup {
    fn wait(&self) {
        self.progress.unwind_if_stopped();
        if self.is_over.load(Ordering::Acquire) {
            return;
        }
        let at = Instant::now();
        let mut state = self.progress.state.lock();
        while state.groups[self.group].loading == Loading::Pending {
            self.progress.changed.wait(&mut state);
            self.progress.unwind_if_stopped();
        }
        state.groups[self.group].used.get_or_insert(FirstUse { at, waited: at.elapsed() });
        self.is_over.store(true, Ordering::Release);
    }
}
