//! What a worker does.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{self, ExitCode};
use std::sync::{Arc, OnceLock, mpsc};
use std::{fs, thread};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::process::{Signal, set_parent_process_death_signal};
use tenure_nn::networks::{self, Architectures};
use tenure_nn::switched::{Borrower, LentTerms};
use tenure_switch::{Arrived, Mapped, SwitchError};
use tenure_tensor::Device;

use super::message::{Borrows, Description, Done, Failure, Lend, Map, MessageError, Order, Report, Sizes, unpack};
use super::socket::{Incoming, Outgoing, receive};
use crate::executor::{Bound, Computed, LentNetwork, Loan, ModelError, Placed};

/// What the system takes first when there is no memory: a worker, before its server.
const OOM_SCORE: &str = "500";

/// Descriptors of chunks that may be open before they are mapped.
const OPEN_CHUNKS: usize = 16;

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
    let (jobs, waiting) = mpsc::channel();
    let worker = Arc::new(Worker {
        architectures,
        stream: Mutex::new(stream.try_clone()?),
        device: OnceLock::new(),
        images: Mutex::default(),
        loans: Mutex::default(),
        networks: Mutex::default(),
        lent: Mutex::default(),
        running: Mutex::default(),
    });
    let computing = Arc::clone(&worker);
    thread::Builder::new().name("worker: compute".into()).spawn(move || {
        waiting.into_iter().for_each(|job| computing.work(job));
    })?;
    while let Some(Incoming { message, payload, descriptor }) = receive(&stream)? {
        worker.follow(message, payload, descriptor, &jobs).map_err(io::Error::other)?;
    }
    Ok(())
}

struct Worker {
    architectures: Architectures,
    stream: Mutex<UnixStream>,
    /// The device that weights are lent on, if they are.
    device: OnceLock<Borrower>,
    /// By number.
    images: Mutex<HashMap<u64, Image>>,
    loans: Mutex<HashMap<u64, Lent>>,
    /// By model, those that were asked for. One of them has an image only if `images` has it too.
    networks: Mutex<HashMap<u64, Network>>,
    /// The same of models that are lent.
    lent: Mutex<HashMap<u64, LentNetwork>>,
    /// The batch that was ordered last, and its weights.
    running: Mutex<Option<(u64, Weights)>>,
}

type Network = Arc<Mutex<Bound<Arc<Mapped>>>>;

#[derive(Clone)]
struct Image {
    mapped: Arc<Mapped>,
    model: u64,
    network: Description,
    placed: Arc<[Placed]>,
}

/// A loan, and where its chunks go that are still to come.
struct Lent {
    loan: Arc<Loan>,
    chunks: Option<mpsc::SyncSender<OwnedFd>>,
    missing: u64,
}

/// What a batch is computed with.
#[derive(Clone)]
enum Weights {
    Image(Image),
    Loan(Arc<Loan>),
}

/// Work of the thread that computes.
enum Job {
    Borrow(Box<Borrow>),
    Run(Run),
}

/// A loan to be mapped.
struct Borrow {
    loan: Arc<Loan>,
    network: Description,
    terms: LentTerms,
    tables: Option<OwnedFd>,
    chunks: mpsc::Receiver<OwnedFd>,
}

/// A batch to be computed.
struct Run {
    batch: u64,
    weights: Weights,
    inputs: Vec<Sizes>,
    payload: Bytes,
}

/// Why an order cannot be followed: the server is not what it should be.
#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error("an image or a chunk without a descriptor")]
    NoDescriptor,
    #[error("weights are lent on a device that was not named")]
    NoDevice,
    #[error("the device cannot be used: {0}")]
    Device(#[from] tenure_nn::Error),
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
        jobs: &mpsc::Sender<Job>,
    ) -> Result<(), OrderError> {
        // The other end of jobs is there as long as the process.
        match order {
            Order::Start { device } => {
                if let Some(Borrows { index, chunk_bytes }) = device {
                    // There is one start.
                    let _ = self.device.set(Borrower::new(Device::cuda(index), chunk_bytes)?);
                }
                self.report(&Report::Ready, Vec::new());
            }
            Order::Lend(lend) => drop(jobs.send(Job::Borrow(Box::new(self.lend(*lend, descriptor)?)))),
            Order::Chunk { loan } => self.take_chunk(loan, descriptor.ok_or(OrderError::NoDescriptor)?)?,
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
                let lent = self.loans.lock().remove(&image);
                if let Some(Lent { loan, .. }) = lent {
                    loan.give_back();
                }
                self.report(&Report::Unmapped { image }, Vec::new());
            }
            Order::Forget { model } => {
                let network = self.networks.lock().remove(&model);
                let lent = self.lent.lock().remove(&model);
                drop((network, lent));
            }
            Order::Run { batch, image, inputs } => {
                let weights = self.weights(image).ok_or(OrderError::NoImage(image))?;
                *self.running.lock() = Some((batch, weights.clone()));
                let _ = jobs.send(Job::Run(Run { batch, weights, inputs, payload }));
            }
            Order::Abandon { batch } => {
                if let Some((_, weights)) = self.running.lock().as_ref().filter(|(running, _)| *running == batch) {
                    weights.stop();
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

    /// Takes note of a loan, whose chunks are to come.
    fn lend(&self, lend: Lend, tables: Option<OwnedFd>) -> Result<Borrow, OrderError> {
        self.device.get().ok_or(OrderError::NoDevice)?;
        let Lend { loan: number, model, network, terms, chunks: missing } = lend;
        let loan = Arc::new(Loan::new(Arc::clone(self.lent.lock().entry(model).or_default())));
        let (sender, chunks) = mpsc::sync_channel(OPEN_CHUNKS);
        let sender = (missing > 0).then_some(sender);
        self.loans.lock().insert(number, Lent { loan: Arc::clone(&loan), chunks: sender, missing });
        Ok(Borrow { loan, network, terms, tables, chunks })
    }

    /// Hands a chunk to the thread that maps it, and waits while that has enough of them.
    fn take_chunk(&self, number: u64, chunk: OwnedFd) -> Result<(), OrderError> {
        let sender = {
            let mut loans = self.loans.lock();
            let lent = loans.get_mut(&number).ok_or(OrderError::NoImage(number))?;
            lent.missing = lent.missing.saturating_sub(1);
            if lent.missing > 0 { lent.chunks.clone() } else { lent.chunks.take() }
        };
        // A loan that failed takes no more.
        drop(sender.map(|sender| sender.send(chunk)));
        Ok(())
    }

    fn weights(&self, number: u64) -> Option<Weights> {
        let image = self.images.lock().get(&number).cloned().map(Weights::Image);
        image.or_else(|| self.loans.lock().get(&number).map(|lent| Weights::Loan(Arc::clone(&lent.loan))))
    }

    fn work(&self, job: Job) {
        match (job, self.device.get()) {
            (Job::Run(run), _) => self.compute(run),
            (Job::Borrow(borrow), Some(device)) => {
                let Borrow { loan, network, terms, tables, chunks } = *borrow;
                loan.borrow(device, || self.build(&network), &terms, tables, chunks);
            }
            (Job::Borrow(_), None) => {}
        }
    }

    fn compute(&self, run: Run) {
        let Run { batch, weights, inputs, payload } = run;
        self.report(&Report::Begun { batch }, Vec::new());
        let computed = self.answer(&weights, inputs, payload);
        let mut running = self.running.lock();
        *running = None;
        weights.go_on();
        drop((running, weights));
        if let Err(error) = &computed
            && self.device.get().is_some_and(Borrower::is_lost)
        {
            // Nothing in this process can use it again.
            self.report(&Report::Ends { reason: error.to_string() }, Vec::new());
            process::exit(1);
        }
        let (outcome, payload) = match &computed {
            Ok(computed) => {
                let (done, payload) = Done::pack(computed);
                (Ok(done), payload)
            }
            Err(error) => (Err(Failure { reason: error.to_string(), is_asked: error.is_asked() }), Vec::new()),
        };
        self.report(&Report::Done { batch, outcome }, payload);
    }

    fn answer(&self, weights: &Weights, inputs: Vec<Sizes>, payload: Bytes) -> Result<Computed, ModelError> {
        let inputs = unpack(inputs, payload)?;
        let image = match (weights, self.device.get()) {
            (Weights::Image(image), _) => image,
            (Weights::Loan(loan), Some(device)) => return loan.compute(device, &inputs),
            (Weights::Loan(_), None) => return Err(ModelError::NoWeights),
        };
        let known = self.networks.lock().get(&image.model).cloned();
        let network = match known {
            Some(network) => network,
            None => {
                let bound = Bound::new(self.build(&image.network)?);
                Arc::clone(self.networks.lock().entry(image.model).or_insert(Arc::new(Mutex::new(bound))))
            }
        };
        let mut network = network.lock();
        if !network.is_bound() {
            network.bind(Arc::clone(&image.mapped), &image.placed)?;
        }
        network.compute(&inputs)
    }

    fn build(&self, network: &Description) -> Result<Box<dyn networks::Network>, ModelError> {
        let Description { architecture, options, .. } = network;
        let options = serde_json::from_str(options).map_err(|error| ModelError::Elsewhere(error.to_string()))?;
        Ok(self.architectures.build(architecture, options)?)
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

impl Weights {
    /// What computes with them unwinds at the next one.
    fn stop(&self) {
        match self {
            Self::Image(image) => image.mapped.stop(),
            Self::Loan(loan) => loan.stop(),
        }
    }

    fn go_on(&self) {
        match self {
            Self::Image(image) => image.mapped.go_on(),
            Self::Loan(loan) => loan.go_on(),
        }
    }
}

/// What is reported in the place of an answer that no frame has room for.
fn too_long(report: &Report, error: &MessageError) -> Result<Outgoing, MessageError> {
    let Report::Done { batch, .. } = report else { return Outgoing::new(report, Vec::new(), None) };
    let outcome = Err(Failure { reason: error.to_string(), is_asked: true });
    Outgoing::new(&Report::Done { batch: *batch, outcome }, Vec::new(), None)
}
