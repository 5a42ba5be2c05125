//! Kernels that read elements by index.

use smallvec::SmallVec;
use tenure_device::cuda::KernelName;

use super::iteration_space::{IterationSpace, RANKS, padded, unit_type};
use super::queue::{self, Queue, Sealed, TensorMemory, Touched};
use super::{async_errors, on_cpu};
use crate::access::Held;
use crate::cpu;
use crate::cpu::gather::Gather;
use crate::elementwise::Dims;
use crate::kernel::on_cuda;
use crate::{Device, Elementwise, Entry, Layout, Result, Tensor};

pub(crate) const GATHER: &[Entry<Gather>] = on_cuda!(all: gather);

const TEMPLATE: &str = include_str!("source/gather.cu");

fn gather(iter: &Elementwise<'_>, source: &Tensor, dims: &[usize]) -> Result<()> {
    source.layout().check_bounds(source.dtype(), source.storage().bytes())?;
    if iter.numel() == 0 {
        return Ok(());
    }
    let width = source.dtype().size();
    let places = IndexedPlaces::new(source.layout(), dims, width);
    let [out, index, base] = iter.operands() else { unreachable!("one output, an index and what is read") };
    let mut space = IterationSpace::new(iter.sizes(), &[&out.strides, &base.strides, &index.strides]);
    let starts = [out.data.addr(), base.data.addr()].into_iter().chain(places.strides.iter().copied());
    let unit = space.widen(width, 0..2, starts);
    let is_large = space.is_large(places.extent());
    let op = iter.op();
    let strides = base.strides.clone();
    let dims = Dims::from_slice(dims);
    let strides: Dims = strides.iter().map(|stride| stride / width).collect();
    queue::submit(
        &Gathered { iter, source },
        |queue: &mut Queue| {
            let mut words: SmallVec<[u64; 64]> =
                space.words().chain(places.words(queue.fault(async_errors::INDEX)?)).collect();
            words.extend([out.data, base.data, index.data].map(|data| data.addr() as u64));
            let variant = space.variant(is_large) << 16 | places.variant() << 8 | unit as u64;
            queue.launch(
                KernelName { op: "gather", variant },
                || {
                    let unit = unit_type(unit);
                    [&format!("typedef {unit} Unit;\n"), &space.source(is_large), &places.source(), TEMPLATE].concat()
                },
                space.config(),
                &mut words,
            )
        },
        move |writes, reads| {
            let [index, source] = reads else { unreachable!("an index and what is read") };
            let base = source.alias(Layout::strided(index.sizes(), &strides, source.layout().offset())?);
            let iter = Elementwise::new(op, &[&writes[0]], &[index, &base])?;
            on_cpu(op, &[cpu::gather::GATHER], source.dtype())?(&iter, source, &dims)
        },
    )
}

/// The output and the index of an iterator, and all of the source, since any of it may be read.
struct Gathered<'a, 'b> {
    iter: &'a Elementwise<'b>,
    source: &'a Tensor,
}

impl Touched for Gathered<'_, '_> {}

impl Sealed for Gathered<'_, '_> {
    fn op(&self) -> &'static str {
        self.iter.op()
    }

    fn device(&self) -> Device {
        self.iter.device()
    }

    fn for_each(&self, each: &mut dyn FnMut(TensorMemory<'_>)) {
        // The iterator's last operand begins where the source does, so it is left out.
        let mut count = 0;
        self.iter.for_each(&mut |place| {
            count += 1;
            if count < 3 {
                each(place);
                return;
            }
            let width = place.dtype.size();
            let strides = self.source.strides().iter().map(|stride| stride * width).collect();
            each(TensorMemory { sizes: self.source.sizes(), strides, ..place });
        });
    }

    fn storages(&self) -> impl Iterator<Item = Held<'_>> {
        self.iter.storages()
    }
}

/// The places of the elements of some dimensions, counted by one index, the last dimension fastest: see
/// `source/places.cu`.
pub(super) struct IndexedPlaces {
    pub(super) count: usize,
    /// The number of the first of the dimensions.
    first: usize,
    /// The sizes, the last dimension first; dimensions that can be walked as one are merged.
    sizes: Dims,
    /// The strides in bytes.
    pub(super) strides: Dims,
}

impl IndexedPlaces {
    pub(super) fn new(layout: &Layout, dims: &[usize], width: usize) -> Self {
        let mut sizes = Dims::new();
        let mut strides = Dims::new();
        for dim in dims.iter().rev() {
            let size = layout.sizes()[*dim];
            let stride = layout.strides()[*dim] * width;
            match (sizes.last_mut(), strides.last()) {
                (Some(inner), Some(apart)) if stride == *inner * apart => *inner *= size,
                _ => {
                    sizes.push(size);
                    strides.push(stride);
                }
            }
        }
        Self { count: sizes.iter().product(), first: dims.first().copied().unwrap_or(0), sizes, strides }
    }

    /// Returns the distance in bytes of the last element from the first, about.
    pub(super) fn extent(&self) -> usize {
        self.sizes.iter().zip(&self.strides).map(|(size, stride)| size * stride).sum()
    }

    fn dims(&self) -> usize {
        RANKS.into_iter().find(|rank| *rank >= self.sizes.len()).unwrap_or(self.sizes.len())
    }

    /// Returns a number of 5 bits for all that the source depends on.
    pub(super) fn variant(&self) -> u64 {
        self.dims() as u64
    }

    pub(super) fn source(&self) -> String {
        format!("#define PLACES {}\n{}", self.dims(), include_str!("source/places.cu"))
    }

    /// Returns the words of an `IndexedPlaces` that reports an index out of range to `fault`.
    pub(super) fn words(&self, fault: [u64; 2]) -> impl Iterator<Item = u64> {
        let [fault, code] = fault;
        [self.count as u64, self.first as u64, fault, code]
            .into_iter()
            .chain(padded(&self.sizes, self.dims(), 1))
            .chain(padded(&self.strides, self.dims(), 0))
    }
}
