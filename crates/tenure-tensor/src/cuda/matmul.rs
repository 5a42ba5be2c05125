//! Matrix products: floats by cuBLASLt, and cases that it does not support by a kernel that works in tiles.

use smallvec::SmallVec;
use tenure_device::cuda::{
    Compute, CudaDriver, Epilogue, KernelName, LaunchConfig, Matrix, Operands, Product as Description, TUNING_WORKSPACE,
};

use super::elementwise::bits;
use super::queue::{self, Queue};
use super::{on_cpu, stored, summed};
use crate::cpu::gemm::{self, Product};
use crate::kernel::on_cuda;
use crate::{Access, DType, Entry, Result, Scalar, Tensor, precision};

pub(crate) const PRODUCT: &[Entry<Product>] = on_cuda!(numbers: product);

const TEMPLATE: &str = include_str!("source/matmul.cu");

/// The number of rows and columns that a block computes, and of its threads.
const TILE: usize = 64;
const THREADS: u32 = 256;

/// The number of operands of a product: the result, two factors, and the summand.
const OPERANDS: usize = 4;

/// The alignment in bytes for the library's fastest accesses.
const ALIGNMENT: usize = 16;

fn product(out: &Tensor, [a, b]: [&Tensor; 2], base: Option<(&Tensor, Scalar)>, alpha: Scalar) -> Result<()> {
    if out.numel() == 0 {
        return Ok(());
    }
    let dtype = out.dtype();
    let beta = base.map_or(Scalar::Int(0), |(_, beta)| beta);
    let expanded =
        |(base, _): (&Tensor, Scalar)| -> Result<Tensor> { Ok(base.alias(base.layout().expand(out.sizes())?)) };
    let base = base.map(expanded).transpose()?;
    // The tiled kernel takes any strides.
    let is_for_library = dtype.is_floating() && a.sizes()[a.rank() - 1] > 0;
    let taken = |tensor: &Tensor| match is_for_library && lie(tensor).is_none() {
        true => tensor.contiguous(),
        false => Ok(tensor.clone()),
    };
    let a = taken(a)?;
    let b = taken(b)?;
    // The library's epilogue does not support `f64`.
    let is_bias = dtype != DType::F64 && base.as_ref().is_some_and(|base| beta.to_f64() == 1.0 && is_row(base));
    let base = match base {
        Some(base) if is_for_library && !is_bias && lie(&base).is_none_or(|lies| lies.is_transposed) => {
            Some(base.contiguous()?)
        }
        base => base,
    };
    let reads: SmallVec<[&Tensor; 3]> = [&a, &b].into_iter().chain(&base).collect();
    let mut access = Access::new("matmul", &[out], &reads)?;
    let mut data = [access.write_ptr(0).addr(), access.read_ptr(0).addr(), access.read_ptr(1).addr(), 0];
    if base.is_some() {
        data[3] = access.read_ptr(2).addr();
    }
    let tensors = [out, &a, &b, base.as_ref().unwrap_or(out)];
    let work = MatmulCall { tensors, data, alpha, beta, is_bias };
    queue::submit(
        &access,
        |queue| {
            for (batch, offsets) in Batches::new(&tensors).split() {
                match queue.cuda().filter(|_| is_for_library) {
                    Some(driver) if work.multiply(queue, driver, batch, work.whole(offsets))? => {}
                    _ => work.multiply_tiles(queue, batch, offsets)?,
                }
            }
            Ok(())
        },
        move |writes, reads| {
            let base = reads.get(2).map(|base| (base, beta));
            let host = on_cpu("matmul", &[gemm::PRODUCT, gemm::PRODUCT_OF_HALVES], dtype)?;
            host(&writes[0], [&reads[0], &reads[1]], base, alpha)
        },
    )
}

/// A part of a product: rows, columns, length of the sums, and the first element of each matrix.
#[derive(Clone, Copy)]
struct ProductPart {
    sizes: [usize; 3],
    starts: [usize; OPERANDS],
    /// Whether the part is added to the output.
    is_added: bool,
}

struct MatmulCall<'a> {
    tensors: [&'a Tensor; OPERANDS],
    /// The first element of each operand; 0 if there is no summand.
    data: [usize; OPERANDS],
    alpha: Scalar,
    beta: Scalar,
    /// Whether the summand is a number for each column.
    is_bias: bool,
}

impl MatmulCall<'_> {
    /// Returns rows, columns, and the length of the sums.
    fn sizes(&self) -> [usize; 3] {
        let out = self.tensors[0].sizes();
        let left = self.tensors[1].sizes();
        [out[out.len() - 2], out[out.len() - 1], left[left.len() - 1]]
    }

    /// Returns the addresses of the operands' matrices.
    fn addresses(&self, offsets: [usize; OPERANDS]) -> [u64; OPERANDS] {
        let width = self.tensors[0].dtype().size();
        std::array::from_fn(|i| if self.data[i] == 0 { 0 } else { (self.data[i] + offsets[i] * width) as u64 })
    }

    /// Returns the whole product, of matrices that begin at `starts`.
    fn whole(&self, starts: [usize; OPERANDS]) -> ProductPart {
        ProductPart { sizes: self.sizes(), starts, is_added: false }
    }

    /// Computes by the library. Returns `false` if the library is missing or does not support the case.
    fn multiply(&self, queue: &mut Queue, driver: &CudaDriver, batch: BatchDim, part: ProductPart) -> Result<bool> {
        if let Some([first, second]) = self.split(part) {
            return Ok(self.multiply(queue, driver, batch, first)? && self.multiply(queue, driver, batch, second)?);
        }
        let ([m, n, k], [d, a, b, base]) = (part.sizes, self.addresses(part.starts));
        let matrix = |operand: usize, address: u64| {
            let lies = lie(self.tensors[operand])?;
            let alignment = 1 << address.trailing_zeros().min(ALIGNMENT.trailing_zeros());
            Some(Matrix { stride: batch.strides[operand], alignment, ..lies })
        };
        let dtype = self.tensors[0].dtype();
        let has_c = base != 0 && !self.is_bias;
        let is_bias = base != 0 && self.is_bias;
        let (Some(to), Some(left), Some(right)) = (matrix(0, d), matrix(1, a), matrix(2, b)) else { return Ok(false) };
        let description = Description {
            m,
            n,
            k,
            batch: batch.size,
            dtype,
            compute: if precision::tf32_in_products() { Compute::Tf32 } else { Compute::Full },
            a: left,
            b: right,
            c: if has_c { matrix(3, base) } else { None },
            d: to,
            epilogue: if is_bias { Epilogue::Bias } else { Epilogue::None },
        };
        let plan = match driver.product_plan(&description) {
            Err(error) if error.kind.is_unsupported() => {
                return Ok(false);
            }
            plan => queue.driver_result(plan)?,
        };
        // A trial run would overwrite the output that the part adds to.
        let candidates = if plan.is_tuned() || part.is_added { None } else { queue.candidates() };
        let tried = candidates.and_then(|count| Some((count, queue.workspace(TUNING_WORKSPACE).ok()?)));
        let workspace = match (tried, plan.workspace_bytes()) {
            (Some((_, workspace)), _) => workspace,
            (None, 0) => 0,
            (None, bytes) => queue.workspace(bytes)?,
        };
        let operands = Operands {
            a,
            b,
            c: if has_c { base } else { d },
            d,
            bias: if is_bias { base } else { 0 },
            alpha: self.alpha.to_f64(),
            beta: if has_c { self.beta.to_f64() } else { f64::from(u8::from(part.is_added)) },
            workspace,
        };
        let plan = match tried {
            None => plan,
            Some((count, _)) => {
                // SAFETY: as below; the product afterwards overwrites the results of the trials.
                let tuned = unsafe { driver.tune_product(&description, &operands, queue.stream(), count) };
                queue.driver_result(tuned)?
            }
        };
        // SAFETY: the operands are tensors of these layouts, which the caller has locked and the queue has recorded on
        // the stream; the workspace is as large as the plan requires.
        queue.driver_result(unsafe { driver.multiply(&plan, &operands, queue.stream()) })?;
        Ok(true)
    }

    /// Splits a product of 16-bit floats whose contiguous dimension is not a multiple of the elements that matrix units
    /// read at once, although rows begin aligned. The units would then run at an eighth of their speed; the rest after
    /// the split is tiny. A vocabulary's size is rarely a multiple of eight.
    fn split(&self, part: ProductPart) -> Option<[ProductPart; 2]> {
        /// The axes of the rows and columns of each operand.
        const AXES: [[usize; 2]; OPERANDS] = [[0, 1], [0, K], [K, 1], [0, 1]];
        const K: usize = 2;
        /// The smallest size that is worth another launch.
        const LEAST: usize = 512;
        let dtype = self.tensors[0].dtype();
        let width = ALIGNMENT / dtype.size();
        // A partial sum may be beyond the range of `f16` when rounded, though the whole sum is not.
        let splits_sums = dtype == DType::BF16 && self.data[3] == 0;
        if !matches!(dtype, DType::F16 | DType::BF16) {
            return None;
        }
        let mut uneven = (0..OPERANDS - 1).filter_map(|operand| {
            let lies = lie(self.tensors[operand])?;
            let axis = AXES[operand][usize::from(!lies.is_transposed)];
            let size = part.sizes[axis];
            let is_slow = size >= LEAST && !size.is_multiple_of(width) && lies.leading.is_multiple_of(width);
            (is_slow && (axis != K || splits_sums)).then_some(axis)
        });
        let axis = uneven.next()?;
        let even = part.sizes[axis] / width * width;
        let mut first = part;
        let mut second = part;
        (first.sizes[axis], second.sizes[axis]) = (even, part.sizes[axis] - even);
        for (operand, axes) in AXES.iter().enumerate() {
            if let Some(at) = axes.iter().position(|other| *other == axis) {
                second.starts[operand] += even * strides(self.tensors[operand])[at];
            }
        }
        if axis != K {
            return Some([first, second]);
        }
        // The first part has few terms, which are rounded before the others are added.
        first.is_added = true;
        Some([second, first])
    }

    /// Computes by the tiled kernel.
    fn multiply_tiles(&self, queue: &Queue, batch: BatchDim, offsets: [usize; OPERANDS]) -> Result<()> {
        let ([m, n, k], dtype) = (self.sizes(), self.tensors[0].dtype());
        let mut words: SmallVec<[u64; 24]> = [m, n, k, batch.size].into_iter().map(|size| size as u64).collect();
        for (operand, address) in self.addresses(offsets).into_iter().enumerate() {
            let [row, column] = strides(self.tensors[operand]);
            words.extend([address, batch.strides[operand] as u64, row as u64, column as u64]);
        }
        let compute = summed(dtype);
        words.extend([bits(self.alpha, compute), bits(self.beta, compute)]);
        let blocks = m.div_ceil(TILE) * n.div_ceil(TILE) * batch.size;
        let config = LaunchConfig {
            grid: [blocks.min(i32::MAX as usize) as u32, 1, 1],
            block: [THREADS, 1, 1],
            shared_bytes: 0,
        };
        queue.launch(
            KernelName { op: "matmul", variant: dtype as u64 },
            || format!("typedef {} Stored;\ntypedef {compute} T;\n{TEMPLATE}", stored(dtype)),
            config,
            &mut words,
        )
    }
}

/// Returns the distances of neighbours in a column and in a row.
fn strides(tensor: &Tensor) -> [usize; 2] {
    let strides = tensor.strides();
    [strides[strides.len() - 2], strides[strides.len() - 1]]
}

/// Returns the library's description of a tensor's matrices, if there is one: neighbours in rows, or in columns, must
/// be contiguous. The caller sets the batch's stride and checks the alignment.
fn lie(tensor: &Tensor) -> Option<Matrix> {
    let sizes = tensor.sizes();
    let (rows, columns, [row, column]) = (sizes[sizes.len() - 2], sizes[sizes.len() - 1], strides(tensor));
    let (leading, is_transposed) = match leading([rows, columns], [row, column]) {
        Some(leading) => (leading, false),
        None => (leading([columns, rows], [column, row])?, true),
    };
    Some(Matrix { leading, stride: 0, is_transposed, alignment: 1 })
}

/// Returns the distance of lines, if the elements of a line are contiguous and no lines overlap.
fn leading([outer, inner]: [usize; 2], [far, near]: [usize; 2]) -> Option<usize> {
    let fits = (inner <= 1 || near == 1) && (outer <= 1 || far >= inner);
    fits.then_some(if outer <= 1 { inner } else { far })
}

/// Returns whether all rows are the same memory, dense and aligned.
fn is_row(base: &Tensor) -> bool {
    let sizes = base.sizes();
    let strides = base.strides();
    let last = base.rank() - 1;
    let offset = base.layout().offset() * base.dtype().size();
    offset.is_multiple_of(ALIGNMENT)
        && (sizes[last] <= 1 || strides[last] == 1)
        && sizes[..last].iter().zip(strides).all(|(size, stride)| *size <= 1 || *stride == 0)
}

/// The leading dimensions of all operands; those that are contiguous are merged.
struct Batches(SmallVec<[BatchDim; 3]>);

#[derive(Clone, Copy)]
struct BatchDim {
    size: usize,
    strides: [usize; OPERANDS],
}

impl Batches {
    fn new(tensors: &[&Tensor; OPERANDS]) -> Self {
        let mut dims: SmallVec<[BatchDim; 3]> = SmallVec::new();
        for (dim, &size) in tensors[0].sizes()[..tensors[0].rank() - 2].iter().enumerate().rev() {
            let strides = tensors.map(|tensor| tensor.strides()[dim]);
            match dims.last_mut() {
                _ if size == 1 => {}
                Some(inner) if (0..OPERANDS).all(|i| strides[i] == inner.size * inner.strides[i]) => inner.size *= size,
                _ => dims.push(BatchDim { size, strides }),
            }
        }
        Self(dims)
    }

    /// Returns the largest dimension, with the starts for each index into the others.
    fn split(mut self) -> SmallVec<[(BatchDim, [usize; OPERANDS]); 1]> {
        let largest = (0..self.0.len()).max_by_key(|dim| self.0[*dim].size);
        let batch = largest.map_or(BatchDim { size: 1, strides: [0; OPERANDS] }, |dim| self.0.remove(dim));
        let mut starts: SmallVec<[(BatchDim, [usize; OPERANDS]); 1]> = SmallVec::from_elem((batch, [0; OPERANDS]), 1);
        for dim in self.0 {
            let mut all = SmallVec::with_capacity(starts.len() * dim.size);
            for (batch, start) in &starts {
                for at in 0..dim.size {
                    all.push((*batch, std::array::from_fn(|i| start[i] + at * dim.strides[i])));
                }
            }
            starts = all;
        }
        starts
    }
}
