//! What a worker does.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::{fs, thread};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::process::{Signal, set_parent_process_death_signal};
use tenure_nn::networks::Architectures;
use tenure_switch::{Arrived, Mapped, SwitchError};

use super::message::{Description, Done, Failure, Map, MessageError, Order, Report, Sizes, unpack};
use super::socket::{Incoming, Outgoing, receive};
use crate::executor::{Bound, Computed, ModelError, Placed};

/// What the system takes first when there is no memory: a worker, before its server.
const OOM_SCORE: &str = "500";

/// Computes what a server asks for, which has started this process, until it is gone. The process is to end then.
///
/// Interrupts are the server's to follow: they do nothing here.
pub fn run(architectures: Architectures) -> ExitCode {
    match serve(architectures) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("a worker ends: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(architectures: Architectures) -> io::Result<()> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let nobody = |error| io::Error::other(format!("its standard input is no server, which starts it: {error}"));
    stream.peer_addr().map_err(nobody)?;
    // A program may have handlers of its own, which then are to ignore interrupts.
    let _ = ctrlc::set_handler(|| {});
    // Also if the worker is stopped, and sees nothing of the closed socket.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Where that is not allowed, the system chooses.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let (runs, waiting) = mpsc::channel();
    let worker = Arc::new(Worker {
        architectures,
        stream: Mutex::new(stream.try_clone()?),
        images: Mutex::default(),
        networks: Mutex::default(),
        running: Mutex::default(),
    });
    let computing = Arc::clone(&worker);
    thread::Builder::new().name("worker: compute".into()).spawn(move || {
        waiting.into_iter().for_each(|run| computing.compute(run));
    })?;
    worker.report(&Report::Ready, Vec::new());
    while let Some(Incoming { message, payload, descriptor }) = receive(&stream)? {
        worker.follow(message, payload, descriptor, &runs).map_err(io::Error::other)?;
    }
    Ok(())
}

struct Worker {
    architectures: Architectures,
    stream: Mutex<UnixStream>,
    /// By number.
    images: Mutex<HashMap<u64, Image>>,
    /// By model, those that were asked for. One of them has an image only if `images` has it too.
    networks: Mutex<HashMap<u64, Network>>,
    /// The batch that was ordered last, and its weights.
    running: Mutex<Option<(u64, Arc<Mapped>)>>,
}

type Network = Arc<Mutex<Bound<Arc<Mapped>>>>;

#[derive(Clone)]
struct Image {
    mapped: Arc<Mapped>,
    model: u64,
    network: Description,
    placed: Arc<[Placed]>,
}

/// A batch to be computed.
struct Run {
    batch: u64,
    image: Image,
    inputs: Vec<Sizes>,
    payload: Bytes,
}

/// Why an order cannot be followed: the server is not what it should be.
#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error("an image without a descriptor")]
    NoDescriptor,
    #[error("there is no image {0}")]
    NoImage(u64),
    #[error("the image has no group {0}")]
    NoGroup(usize),
    #[error(transparent)]
    Switch(#[from] SwitchError),
}

impl Worker {
    /// Does what an order says, or has it done. What is computed meanwhile is not waited for.
    fn follow(
        &self,
        order: Order,
        payload: Bytes,
        descriptor: Option<OwnedFd>,
        runs: &mpsc::Sender<Run>,
    ) -> Result<(), OrderError> {
        match order {
            Order::Map(map) => self.map(map, descriptor.ok_or(OrderError::NoDescriptor)?)?,
            Order::Arrived { image, groups } => {
                // What is read for an image that was let go of still arrives.
                let Some(mapped) = self.images.lock().get(&image).map(|image| Arc::clone(&image.mapped)) else {
                    return Ok(());
                };
                for (group, is_there) in groups {
                    let group = group as usize;
                    if group >= mapped.groups() {
                        return Err(OrderError::NoGroup(group));
                    }
                    mapped.arrived(Arrived { group, is_there });
                }
            }
            Order::Unmap { image } => {
                let gone = self.images.lock().remove(&image);
                let bound = gone.and_then(|image| self.networks.lock().get(&image.model).cloned());
                if let Some(bound) = bound {
                    bound.lock().unbind();
                }
                self.report(&Report::Unmapped { image }, Vec::new());
            }
            Order::Forget { model } => drop(self.networks.lock().remove(&model)),
            Order::Run { batch, image, inputs } => {
                let image = self.images.lock().get(&image).cloned().ok_or(OrderError::NoImage(image))?;
                *self.running.lock() = Some((batch, Arc::clone(&image.mapped)));
                // The other end is there as long as the process.
                let _ = runs.send(Run { batch, image, inputs, payload });
            }
            Order::Abandon { batch } => {
                if let Some((_, mapped)) = self.running.lock().as_ref().filter(|(running, _)| *running == batch) {
                    mapped.stop();
                }
            }
        }
        Ok(())
    }

    fn map(&self, map: Map, memory: OwnedFd) -> Result<(), OrderError> {
        let Map { image, model, network, groups, tensors } = map;
        let groups = groups.into_iter().map(|(start, end)| start..end).collect::<Vec<_>>();
        if let Some(placed) = tensors.iter().find(|placed| placed.group >= groups.len()) {
            return Err(OrderError::NoGroup(placed.group));
        }
        let mapped = Arc::new(Mapped::receive(&network.name, memory, groups)?);
        self.images.lock().insert(image, Image { mapped, model, network, placed: tensors.into() });
        Ok(())
    }

    fn compute(&self, run: Run) {
        let Run { batch, image, inputs, payload } = run;
        self.report(&Report::Begun { batch }, Vec::new());
        let computed = self.answer(&image, inputs, payload);
        let mut running = self.running.lock();
        *running = None;
        image.mapped.go_on();
        drop((running, image));
        let (outcome, payload) = match &computed {
            Ok(computed) => {
                let (done, payload) = Done::pack(computed);
                (Ok(done), payload)
            }
            Err(error) => (Err(Failure { reason: error.to_string(), is_asked: error.is_asked() }), Vec::new()),
        };
        self.report(&Report::Done { batch, outcome }, payload);
    }

    fn answer(&self, image: &Image, inputs: Vec<Sizes>, payload: Bytes) -> Result<Computed, ModelError> {
        let elsewhere = |error: &dyn std::error::Error| ModelError::Elsewhere(error.to_string());
        let inputs = unpack(inputs, payload).map_err(|error| elsewhere(&error))?;
        let known = self.networks.lock().get(&image.model).cloned();
        let network = match known {
            Some(network) => network,
            None => {
                let Description { architecture, options, .. } = &image.network;
                let options = serde_json::from_str(options).map_err(|error| elsewhere(&error))?;
                let bound = Bound::new(self.architectures.build(architecture, options)?);
                Arc::clone(self.networks.lock().entry(image.model).or_insert(Arc::new(Mutex::new(bound))))
            }
        };
        let mut network = network.lock();
        if !network.is_bound() {
            network.bind(Arc::clone(&image.mapped), &image.placed)?;
        }
        network.compute(&inputs)
    }

    fn report(&self, report: &Report, payload: Vec<Bytes>) {
        let outgoing = Outgoing::new(report, payload, None).or_else(|error| too_long(report, &error));
        let sent = outgoing.map_err(io::Error::other).and_then(|outgoing| outgoing.send(&self.stream.lock()));
        // A server that is gone ends the worker.
        if let Err(error) = sent {
            tracing::debug!("a worker says nothing: {error}");
        }
    }
}

/// What is reported in the place of an answer that no frame has room for.
fn too_long(report: &Report, error: &MessageError) -> Result<Outgoing, MessageError> {
    let Report::Done { batch, .. } = report else { return Outgoing::new(report, Vec::new(), None) };
    let outcome = Err(Failure { reason: error.to_string(), is_asked: true });
    Outgoing::new(&Report::Done { batch: *batch, outcome }, Vec::new(), None)
}
