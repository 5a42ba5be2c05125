//! The main loop of a worker process.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{self, ExitCode};
use std::sync::{Arc, mpsc};
use std::{fs, thread};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::process::{Signal, set_parent_process_death_signal};
use tenure_nn::networks::{self, Architectures};
use tenure_switch::{Arrived, Mapped};

use super::loans::{Borrow, Loans};
use super::message::{
    Description, Failure, Map, MessageError, OrderError, Sizes, WorkerAnswer, WorkerOrder, WorkerReport, unpack,
};
use super::socket::{Incoming, Outgoing, receive};
use crate::executor::{BorrowedWeights, BoundNetwork, Computed, ModelError, Placed};

/// The OOM score adjustment of a worker: when memory runs out, the system kills a worker before its server.
const OOM_SCORE: &str = "500";

/// Computes batches for the server that started this process, until the server is gone. The process should then exit.
///
/// The process is in a group of its own, so that Ctrl-C in a terminal does not interrupt it.
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
    stream.peer_addr().map_err(|error| {
        io::Error::other(format!("its standard input is not the socket of a server, which starts it: {error}"))
    })?;
    // This works even if the worker is stopped and does not see the closed socket.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If this is not allowed, the system chooses by itself.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    // A request that takes too much memory gets an error, and does not end the worker.
    tenure_tier::refuse_unavailable_memory();
    let (jobs, waiting) = mpsc::channel();
    let worker = Arc::new(Worker {
        architectures,
        stream: Mutex::new(stream.try_clone()?),
        images: Mutex::default(),
        networks: Mutex::default(),
        loans: Loans::default(),
        running: Mutex::default(),
    });
    let computing = Arc::clone(&worker);
    thread::Builder::new().name("worker: compute".into()).spawn(move || {
        waiting.into_iter().for_each(|job| computing.do_job(job));
    })?;
    while let Some(Incoming { message, payload, descriptor }) = receive(&stream)? {
        worker.carry_out(message, payload, descriptor, &jobs).map_err(io::Error::other)?;
    }
    Ok(())
}

/// This worker process: the weights and networks that it has, and its socket.
struct Worker {
    architectures: Architectures,
    stream: Mutex<UnixStream>,
    /// The images by number.
    images: Mutex<HashMap<u64, Image>>,
    /// The networks by model, once they were needed. A network is bound to an image only if `images` has that image.
    networks: Mutex<HashMap<u64, Network>>,
    /// The loans of weights on a device.
    loans: Loans,
    /// The batch that was ordered last, and its weights.
    running: Mutex<Option<(u64, BatchWeights)>>,
}

/// A network, bound to the image that it was computed on last, or to none.
type Network = Arc<Mutex<BoundNetwork<Arc<Mapped>>>>;

/// An image in the server's memory, mapped here, and its model.
#[derive(Clone)]
struct Image {
    mapped: Arc<Mapped>,
    model: u64,
    network: Description,
    placed: Arc<[Placed]>,
}

/// The weights of a batch.
#[derive(Clone)]
enum BatchWeights {
    Image(Image),
    Loan(Arc<BorrowedWeights>),
}

/// A job of the computing thread.
enum ComputeJob {
    Borrow(Box<Borrow>),
    Run(BatchRun),
}

/// A batch to be computed.
struct BatchRun {
    batch: u64,
    weights: BatchWeights,
    inputs: Vec<Sizes>,
    payload: Bytes,
}

impl Worker {
    /// Carries out an order, or passes it to the computing thread without waiting for it.
    fn carry_out(
        &self,
        order: WorkerOrder,
        payload: Bytes,
        descriptor: Option<OwnedFd>,
        jobs: &mpsc::Sender<ComputeJob>,
    ) -> Result<(), OrderError> {
        // Sending a job never fails: its receiver lives as long as the process.
        match order {
            WorkerOrder::Start { device } => {
                device.map_or(Ok(()), |device| self.loans.start(device))?;
                self.report(&WorkerReport::Ready, Vec::new());
            }
            WorkerOrder::Lend(lend) => {
                let borrow = self.loans.lend(*lend, descriptor);
                let _ = jobs.send(ComputeJob::Borrow(Box::new(borrow)));
            }
            WorkerOrder::Chunk { loan } => self.loans.take_chunk(loan, descriptor.ok_or(OrderError::NoDescriptor)?)?,
            WorkerOrder::Map(map) => self.map(map, descriptor.ok_or(OrderError::NoDescriptor)?)?,
            WorkerOrder::Arrived { image, groups } => {
                // Groups may still arrive for an image that was unmapped.
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
            WorkerOrder::Unmap { image } => {
                let gone = self.images.lock().remove(&image);
                let bound = gone.and_then(|image| self.networks.lock().get(&image.model).cloned());
                if let Some(bound) = bound {
                    bound.lock().unbind();
                }
                self.loans.give_back(image);
                self.report(&WorkerReport::Unmapped { image }, Vec::new());
            }
            WorkerOrder::Forget { model } => {
                let network = self.networks.lock().remove(&model);
                drop(network);
                self.loans.forget(model);
            }
            WorkerOrder::Run { batch, image, inputs } => {
                let weights = self.weights(image).ok_or(OrderError::NoImage(image))?;
                *self.running.lock() = Some((batch, weights.clone()));
                let _ = jobs.send(ComputeJob::Run(BatchRun { batch, weights, inputs, payload }));
            }
            WorkerOrder::Abandon { batch } => {
                if let Some((_, weights)) = self.running.lock().as_ref().filter(|(running, _)| *running == batch) {
                    weights.stop();
                }
            }
            WorkerOrder::Ask => self.report(&WorkerReport::Alive, Vec::new()),
        }
        Ok(())
    }

    /// Maps an image. Its groups may arrive later.
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

    /// Returns the image or loan with this number.
    fn weights(&self, number: u64) -> Option<BatchWeights> {
        let image = self.images.lock().get(&number).cloned().map(BatchWeights::Image);
        image.or_else(|| self.loans.get(number).map(BatchWeights::Loan))
    }

    fn do_job(&self, job: ComputeJob) {
        match job {
            ComputeJob::Run(run) => self.compute(run),
            ComputeJob::Borrow(borrow) => self.loans.borrow(*borrow, |network| self.build(network)),
        }
    }

    /// Computes a batch and reports the outcome.
    fn compute(&self, run: BatchRun) {
        let BatchRun { batch, weights, inputs, payload } = run;
        self.report(&WorkerReport::Begun { batch }, Vec::new());
        let computed = self.answer(&weights, inputs, payload);
        let mut running = self.running.lock();
        *running = None;
        weights.resume();
        drop(running);
        drop(weights);
        if let Err(error) = &computed
            && self.loans.has_lost_device()
        {
            // Nothing in this process can use the device again.
            self.report(&WorkerReport::Ends { reason: error.to_string() }, Vec::new());
            process::exit(1);
        }
        let (outcome, payload) = match &computed {
            Ok(computed) => {
                let (done, payload) = WorkerAnswer::pack(computed);
                (Ok(done), payload)
            }
            Err(error) => (Err(Failure::of(error)), Vec::new()),
        };
        self.report(&WorkerReport::Done { batch, outcome }, payload);
    }

    /// Computes the answers to a batch. Builds the network and binds it to the image if needed.
    fn answer(&self, weights: &BatchWeights, inputs: Vec<Sizes>, payload: Bytes) -> Result<Computed, ModelError> {
        let inputs = unpack(inputs, payload)?;
        let image = match weights {
            BatchWeights::Image(image) => image,
            BatchWeights::Loan(loan) => return self.loans.compute(loan, &inputs),
        };
        let built = self.networks.lock().get(&image.model).cloned();
        let network = match built {
            Some(network) => network,
            None => {
                let bound = BoundNetwork::new(self.build(&image.network)?);
                Arc::clone(self.networks.lock().entry(image.model).or_insert(Arc::new(Mutex::new(bound))))
            }
        };
        let mut network = network.lock();
        if !network.is_bound() {
            network.bind(Arc::clone(&image.mapped), &image.placed)?;
        }
        network.compute(&inputs)
    }

    /// Builds a network without weights.
    fn build(&self, network: &Description) -> Result<Box<dyn networks::Network>, ModelError> {
        let Description { architecture, options, .. } = network;
        let options = serde_json::from_str(options).map_err(|error| ModelError::Elsewhere(error.to_string()))?;
        Ok(self.architectures.build(architecture, options)?)
    }

    fn report(&self, report: &WorkerReport, payload: Vec<Bytes>) {
        let outgoing = Outgoing::new(report, payload, None).or_else(|error| too_long(report, &error));
        let sent = outgoing.map_err(io::Error::other).and_then(|outgoing| outgoing.send(&self.stream.lock()));
        // The worker ends anyway if its server is gone.
        if let Err(error) = sent {
            tracing::debug!("a worker cannot send a report: {error}");
        }
    }
}

impl BatchWeights {
    /// Stops the computation that uses these weights: it unwinds at the next weight.
    fn stop(&self) {
        match self {
            Self::Image(image) => image.mapped.stop(),
            Self::Loan(loan) => loan.stop(),
        }
    }

    /// Allows the weights to be used again.
    fn resume(&self) {
        match self {
            Self::Image(image) => image.mapped.go_on(),
            Self::Loan(loan) => loan.resume(),
        }
    }
}

/// Replaces an answer that is too long for a frame by an error.
fn too_long(report: &WorkerReport, error: &MessageError) -> Result<Outgoing, MessageError> {
    let WorkerReport::Done { batch, .. } = report else { return Outgoing::new(report, Vec::new(), None) };
    let outcome = Err(Failure::Request(error.to_string()));
    Outgoing::new(&WorkerReport::Done { batch: *batch, outcome }, Vec::new(), None)
}
