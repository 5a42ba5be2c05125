//! Streams of a device, and guards that make one current.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use tenure_alloc::Address;
use tenure_core::{Device, StreamId};

use crate::functions::DeviceGuard;
use crate::stream_pools::{Pools, StreamInfo, StreamKind};
use crate::{Call, Driver, DriverError, ErrorKind, Event, EventKind, Executor, sim};

/// A stream of a device, from [`Streams`](crate::Streams): work put on it runs in order. c10's `CUDAStream`.
///
/// This is a handle: a clone stands for the same stream, and a drop destroys no stream.
#[derive(Clone)]
pub struct Stream {
    pools: Arc<Pools>,
    info: StreamInfo,
}

impl Stream {
    pub(crate) fn new(pools: &Arc<Pools>, info: StreamInfo) -> Self {
        Self { pools: Arc::clone(pools), info }
    }

    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Returns the device of the stream.
    pub fn device(&self) -> Device {
        self.driver().device()
    }

    /// Returns the driver of that device.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        self.pools.driver()
    }

    /// Returns the driver's id of the stream.
    pub fn id(&self) -> StreamId {
        self.info.id
    }

    /// Returns the stream's origin.
    pub fn kind(&self) -> StreamKind {
        self.info.kind
    }

    /// Makes the stream the calling thread's current one on its device.
    pub fn make_current(&self) {
        self.pools.exchange_current(self.info);
    }

    /// Returns whether everything put on the stream has completed. Never waits.
    ///
    /// # Errors
    /// A driver call failed, or work of the stream did.
    #[track_caller]
    pub fn query(&self) -> Result<bool, DriverError> {
        Ok(self.driver().query_stream(self.id())?)
    }

    /// Blocks the host until everything put on the stream has completed.
    ///
    /// # Errors
    /// The errors of [`query`](Self::query).
    #[track_caller]
    pub fn synchronize(&self) -> Result<(), DriverError> {
        Ok(self.driver().synchronize_stream(self.id())?)
    }

    /// Makes later work of the stream wait, on the device, until `event` is passed.
    ///
    /// # Errors
    /// The errors of [`Event::wait`].
    #[track_caller]
    pub fn wait(&self, event: &Event) -> Result<(), DriverError> {
        event.wait(self)
    }

    /// Puts a copy to another device's memory on this stream. `peer` is a stream of that device: the copy runs after
    /// what is on `peer` now, and before later work there. It goes straight from device to device where the hardware
    /// allows it.
    ///
    /// # Errors
    /// A driver call failed; one of the devices is simulated, and the other is not.
    #[track_caller]
    pub fn copy_to_peer(&self, source: Address, peer: &Stream, target: Address, bytes: u64) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        match (self.driver().executor(), peer.driver().executor()) {
            (Executor::Cuda(driver), Executor::Cuda(other)) => {
                peer.lead_to(self)?;
                driver.copy_to_peer(target, other, source, bytes, self.id())?;
                self.lead_to(peer)
            }
            (Executor::Sim(_), Executor::Sim(sim)) => {
                let source = sim::PeerSource { driver: Arc::clone(self.driver()), address: source, stream: self.id() };
                Ok(sim.copy_from_peer(target, source, bytes, peer.id())?)
            }
            _ => {
                let device = peer.device().index();
                let peer = self.device().index();
                Err(DriverError::new(Call::CopyToPeer, ErrorKind::NoPeerAccess { device, peer }))
            }
        }
    }

    /// Makes later work of `other` wait, on the device, until the work that is on this stream now has completed.
    ///
    /// # Errors
    /// The errors of [`Event::record`] and [`Event::wait`].
    #[track_caller]
    pub fn lead_to(&self, other: &Stream) -> Result<(), DriverError> {
        let mut event = Event::new(Arc::clone(self.driver()), EventKind::Order);
        event.record(self)?;
        event.wait(other)
    }

    /// Puts a function of the host on the stream. It must not call the driver.
    ///
    /// # Errors
    /// A driver call failed; the function then never runs.
    #[track_caller]
    pub fn host_function(&self, function: impl FnOnce() + Send + 'static) -> Result<(), DriverError> {
        Ok(self.driver().host_function(self.id(), Box::new(function))?)
    }
}

/// The calls of events that take a stream.
impl Event {
    /// Records the event on `stream`: it is passed once the work that is on the stream now has completed. Waits for an
    /// earlier record that are already on streams do not change.
    ///
    /// # Errors
    /// The stream is of another device ([`ErrorKind::OtherDevice`]), or a driver call failed; the event then stays
    /// where it was.
    #[track_caller]
    pub fn record(&mut self, stream: &Stream) -> Result<(), DriverError> {
        let event = self.device();
        let stream_device = stream.device();
        if event != stream_device {
            return Err(DriverError::new(Call::RecordEvent, ErrorKind::OtherDevice { event, stream: stream_device }));
        }
        let id = self.create()?;
        Ok(self.driver.record_event(id, stream.id())?)
    }

    /// Makes later work of `stream` wait, on the device, until the event is passed. The stream may be of another CUDA
    /// device.
    ///
    /// # Errors
    /// A driver call failed, or the stream is of another device and they are simulated ([`ErrorKind::OtherDevice`]).
    #[track_caller]
    pub fn wait(&self, stream: &Stream) -> Result<(), DriverError> {
        self.id().map_or(Ok(()), |id| stream.driver().wait_event(stream.id(), id))?;
        Ok(())
    }
}

/// Compares whether two handles name one stream.
impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pools, &other.pools) && self.id() == other.id()
    }
}

impl Eq for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({}, {}, {:?})", self.device(), self.id(), self.kind())
    }
}

/// Makes a stream, and its device, the calling thread's current ones for as long as the guard lives, through a panic
/// too. c10's `CUDAStreamGuard`.
///
/// The guard restores what was current before it. So guards must end in the reverse of the order in which they began,
/// as scopes do.
#[derive(Debug)]
#[must_use = "the stream before is current again as soon as the guard is dropped"]
pub struct StreamGuard {
    /// The stream of the same device that was current before.
    before: Stream,
    _device: DeviceGuard,
    /// A guard must end on the thread that it began on.
    not_send: PhantomData<*const ()>,
}

impl StreamGuard {
    /// Makes `stream` and its device current.
    pub fn new(stream: &Stream) -> Self {
        let before = Stream::new(&stream.pools, stream.pools.exchange_current(stream.info));
        Self { before, _device: DeviceGuard::new(stream.device().index()), not_send: PhantomData }
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.before.make_current();
    }
}
