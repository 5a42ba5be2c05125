//! Matrix products, through cuBLASLt.
//!
//! A product is described once, and cuBLASLt is asked once for an algorithm; both are cached by the description.
//! cuBLASLt stores matrices by columns, so it is given the transpose of the product, `d' = b' a'`, in which no element
//! moves.

use std::panic::Location;
use std::ptr;
use std::sync::{Arc, LazyLock};

use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as ComputeType, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t as Algorithm,
    cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t as DescAttribute,
    cublasLtMatmulHeuristicResult_t as Heuristic, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cublasLtMatrixLayout_t,
    cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cublasLtReductionScheme_t as Reduction, cublasStatus_t,
    cudaDataType_t,
};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tenure_alloc::Address;
use tenure_core::{DType, StreamId};

use super::CudaDriver;
use crate::{Call, CallError, ErrorKind};

/// The limit on the workspace of any algorithm for a product, in bytes, as NVIDIA recommends for devices since Hopper.
pub const TUNING_WORKSPACE: usize = 32 << 20;

/// A matrix product `d = alpha * a * b + beta * c`, or a batch of them: `a` has `m` rows and `k` columns, `b` has `k`
/// rows and `n` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// The number of rows of the result.
    pub m: usize,
    /// The number of columns of the result.
    pub n: usize,
    /// The number of columns of `a` and rows of `b`, over which the product sums.
    pub k: usize,
    /// The number of products.
    pub batch: usize,
    /// The dtype of all matrices.
    pub dtype: DType,
    /// The precision of the computation.
    pub compute: Compute,
    /// The memory layout of the left factor.
    pub a: Matrix,
    /// The memory layout of the right factor.
    pub b: Matrix,
    /// The memory layout of the matrix that is added; `None` if it is stored in the result's place.
    pub c: Option<Matrix>,
    /// The memory layout of the result, which is not transposed.
    pub d: Matrix,
    /// The last step before the result is written.
    pub epilogue: Epilogue,
}

/// The layout of a matrix in memory, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// The distance from one row to the next, or from one column to the next if the matrix is transposed.
    pub leading: usize,
    /// The distance from one matrix of the batch to the next.
    pub stride: usize,
    /// Whether the elements of a column, instead of a row, lie side by side.
    pub is_transposed: bool,
    /// A power of two that divides the address of each matrix, in bytes, at most 16.
    pub alignment: usize,
}

/// The precision in which products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compute {
    /// `f32`, or `f64` for `f64` matrices.
    Full,
    /// TF32: only 10 bits of the mantissa of each `f32` factor.
    Tf32,
}

/// The last step before a result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// No further step.
    None,
    /// Adds one number for each column.
    Bias,
}

/// The addresses of a product's matrices, and its factors.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// The left factor.
    pub a: Address,
    /// The right factor.
    pub b: Address,
    /// The matrix that is added: the result itself, unless [`Product::c`] gives it a layout of its own. Not read if
    /// `beta` is 0.
    pub c: Address,
    /// The result.
    pub d: Address,
    /// One number for each column, if the epilogue is [`Epilogue::Bias`].
    pub bias: Address,
    /// The factor of the product.
    pub alpha: f64,
    /// The factor of the matrix that is added.
    pub beta: f64,
    /// The workspace: [`ProductPlan::workspace_bytes`] bytes, aligned to 256.
    pub workspace: Address,
}

/// A plan to compute a product on a device: its description and an algorithm. It never becomes invalid.
#[derive(Clone)]
pub struct ProductPlan(Arc<BlasPlan>);

impl ProductPlan {
    /// Returns how many bytes [`Operands::workspace`] must have.
    pub fn workspace_bytes(&self) -> usize {
        self.0.chosen.workspaceSize
    }

    /// Returns whether the algorithm was chosen by [measurement](CudaDriver::tune_product).
    pub fn is_tuned(&self) -> bool {
        self.0.is_tuned
    }
}

/// cuBLASLt on a device, and the products that were planned so far.
pub(super) struct Blas {
    handle: cublasLtHandle_t,
    /// Plans, and errors too: a product that the library cannot compute once, it never can.
    plans: RwLock<FxHashMap<Product, Result<ProductPlan, CallError>>>,
}

// SAFETY: cuBLASLt's handle may be used from any thread.
unsafe impl Send for Blas {}
// SAFETY: cuBLASLt's handle may be used by several threads at once.
unsafe impl Sync for Blas {}

/// A product as the library describes it, and the algorithm chosen for it.
struct BlasPlan {
    product: Product,
    a: Layout,
    b: Layout,
    c: Option<Layout>,
    d: Layout,
    /// Changed before each use: it holds the address of the bias.
    description: Mutex<Description>,
    chosen: Heuristic,
    is_tuned: bool,
}

impl CudaDriver {
    /// Returns the plan for a product: the algorithm that the library ranks first, and the same one every time.
    ///
    /// # Errors
    /// There is no cuBLASLt, or it cannot compute this product.
    pub fn product_plan(&self, product: &Product) -> Result<ProductPlan, CallError> {
        if let Some(plan) = self.blas.get().and_then(|blas| blas.plans.read().get(product).cloned()) {
            return plan;
        }
        let blas = self.in_context(Call::PlanProduct, || self.blas())?;
        let plan = self.in_context(Call::PlanProduct, || Ok(ProductPlan(Arc::new(BlasPlan::new(blas, product)?))));
        blas.plans.write().entry(*product).or_insert(plan).clone()
    }

    /// Submits a product to `stream`.
    ///
    /// # Errors
    /// The stream does not exist, or the library refuses.
    ///
    /// # Safety
    /// The operands match the plan's product, and stay valid until the stream has completed the product. Other work
    /// does not access written memory, or write read memory, without ordering.
    #[track_caller]
    pub unsafe fn multiply(&self, plan: &ProductPlan, operands: &Operands, stream: StreamId) -> Result<(), CallError> {
        let at = Location::caller();
        self.in_context(Call::Multiply, || {
            let number = self.launches.record("cublasLtMatmul", stream, [1; 3], [1; 3], at);
            // SAFETY: the caller's promise.
            let launched = unsafe { self.run_product(&plan.0, &plan.0.chosen, operands, stream) };
            launched.inspect_err(|_| self.launches.withdraw(number))
        })
    }

    /// Measures up to `candidates` algorithms for a product, and uses the fastest from now on. Waits for the device,
    /// and must not be called while a stream is captured. The workspace has [`TUNING_WORKSPACE`] bytes.
    ///
    /// # Errors
    /// The same as [`multiply`](Self::multiply).
    ///
    /// # Safety
    /// The same as for [`multiply`](Self::multiply). In addition, the matrix that is added is not the result itself.
    pub unsafe fn tune_product(
        &self,
        product: &Product,
        operands: &Operands,
        stream: StreamId,
        candidates: usize,
    ) -> Result<ProductPlan, CallError> {
        let plan = self.product_plan(product)?;
        let found = self.in_context(Call::PlanProduct, || plan.0.candidates(self.blas()?, candidates))?;
        let chosen = self.fastest(found, stream, |candidate| {
            // SAFETY: the caller's promise.
            self.in_context(Call::Multiply, || unsafe { self.run_product(&plan.0, candidate, operands, stream) })
        })?;
        let chosen = chosen.unwrap_or(plan.0.chosen);
        self.in_context(Call::PlanProduct, || {
            let plan = BlasPlan { chosen, is_tuned: true, ..BlasPlan::without_algorithm(product)? };
            let plan = ProductPlan(Arc::new(plan));
            self.blas()?.plans.write().insert(*product, Ok(plan.clone()));
            Ok(plan)
        })
    }

    /// Returns cuBLASLt on this device. The first call creates its handle.
    fn blas(&self) -> Result<&Blas, ErrorKind> {
        static IS_THERE: LazyLock<bool> = LazyLock::new(|| {
            // SAFETY: loading a library runs its initialisers; this one is NVIDIA's.
            let is_there = unsafe { sys::is_culib_present() };
            if !is_there {
                tracing::warn!("cuBLASLt was not found (libcublasLt.so.13): matrix products take much longer");
            }
            is_there
        });
        if let Some(blas) = self.blas.get() {
            return Ok(blas);
        }
        if !*IS_THERE {
            return Err(ErrorKind::NoLibrary { library: "libcublasLt.so" });
        }
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is writable, and the thread has the context.
        check(unsafe { sys::cublasLtCreate(&mut handle) })?;
        // If another thread was faster, its handle is used, and this one stays unused.
        Ok(self.blas.get_or_init(|| Blas { handle, plans: RwLock::default() }))
    }

    /// Submits a product with the algorithm `chosen`.
    ///
    /// # Safety
    /// The same as for [`multiply`](Self::multiply).
    unsafe fn run_product(
        &self,
        plan: &BlasPlan,
        chosen: &Heuristic,
        operands: &Operands,
        stream: StreamId,
    ) -> Result<(), ErrorKind> {
        let raw = self.stream(stream)?;
        let handle = self.blas()?.handle;
        let Operands { a, b, c, d, bias, alpha, beta, workspace } = *operands;
        let is_double = plan.product.dtype == DType::F64;
        let narrow = [alpha as f32, beta as f32];
        let wide = [alpha, beta];
        let factor = |index: usize| match is_double {
            true => ptr::from_ref(&wide[index]).cast(),
            false => ptr::from_ref(&narrow[index]).cast(),
        };
        let description = plan.description.lock();
        if plan.product.epilogue == Epilogue::Bias {
            description.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        let c_layout = plan.c.as_ref().unwrap_or(&plan.d);
        // SAFETY: descriptions, layouts and factors are alive, the factors have the scale's type, and the caller
        // guarantees the addresses.
        check(unsafe {
            sys::cublasLtMatmul(
                handle,
                description.0,
                factor(0),
                b as *const _,
                plan.b.0,
                a as *const _,
                plan.a.0,
                factor(1),
                c as *const _,
                c_layout.0,
                d as *mut _,
                plan.d.0,
                &chosen.algo,
                workspace as *mut _,
                chosen.workspaceSize,
                raw.cast(),
            )
        })
    }
}

impl BlasPlan {
    /// Plans a product with the algorithm that the library ranks first.
    fn new(blas: &Blas, product: &Product) -> Result<Self, ErrorKind> {
        let plan = Self::without_algorithm(product)?;
        let best = plan.candidates(blas, 1)?.into_iter().next();
        Ok(Self { chosen: best.ok_or_else(|| failure(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED))?, ..plan })
    }

    /// Describes a product, without choosing an algorithm.
    fn without_algorithm(product: &Product) -> Result<Self, ErrorKind> {
        let Product { m, n, k, batch, dtype, compute, a, b, c, d, epilogue } = *product;
        let data = data_type(dtype)?;
        let scale = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let compute = match (dtype, compute) {
            (DType::F64, _) => ComputeType::CUBLAS_COMPUTE_64F,
            (DType::F32, Compute::Tf32) => ComputeType::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => ComputeType::CUBLAS_COMPUTE_32F,
        };
        let description = Description::new(compute, data_type(scale)?)?;
        // The values of `CUBLAS_OP_N` and `CUBLAS_OP_T`.
        description.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, &i32::from(b.is_transposed))?;
        description.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, &i32::from(a.is_transposed))?;
        let epilogue = match epilogue {
            Epilogue::None => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
        };
        description.set(DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        let layout = |matrix: Matrix, rows: usize, columns: usize| Layout::new(data, matrix, rows, columns, batch);
        Ok(Self {
            product: *product,
            a: layout(a, m, k)?,
            b: layout(b, k, n)?,
            c: c.map(|c| layout(c, m, n)).transpose()?,
            d: layout(d, m, n)?,
            description: Mutex::new(description),
            chosen: no_algorithm(),
            is_tuned: false,
        })
    }

    /// Returns up to `count` algorithms, in the library's ranking from best to worst.
    fn candidates(&self, blas: &Blas, count: usize) -> Result<Vec<Heuristic>, ErrorKind> {
        let preference = Preference::new()?;
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &TUNING_WORKSPACE)?;
        // Partial sums are rounded once, and added in a fixed order.
        let reduction = Reduction::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction)?;
        let Product { a, b, c, d, .. } = self.product;
        for (attribute, matrix) in [
            (PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
            (PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
            (PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c.unwrap_or(d)),
            (PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d),
        ] {
            preference.set(attribute, &(matrix.alignment as u32))?;
        }
        let mut found = vec![no_algorithm(); count];
        let mut returned = 0;
        let description = self.description.lock();
        // SAFETY: all descriptors are alive, and `found` has room for `count` results.
        check(unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                blas.handle,
                description.0,
                self.b.0,
                self.a.0,
                self.c.as_ref().unwrap_or(&self.d).0,
                self.d.0,
                preference.0,
                count as i32,
                found.as_mut_ptr(),
                &mut returned,
            )
        })?;
        found.truncate(returned.max(0) as usize);
        found.retain(|candidate| candidate.state == cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(found)
    }
}

/// Returns the placeholder for an algorithm that is not chosen yet.
fn no_algorithm() -> Heuristic {
    Heuristic {
        algo: Algorithm { data: [0; 8] },
        workspaceSize: 0,
        state: cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED,
        wavesCount: 0.0,
        reserved: [0; 4],
    }
}

/// Defines a type that owns a descriptor of cuBLASLt.
macro_rules! descriptor {
    ($(#[$doc:meta])* $name:ident($raw:ty), $attribute:ty: $set:ident, $destroy:ident) => {
        $(#[$doc])*
        struct $name($raw);

        // SAFETY: a descriptor is memory that only its owner accesses.
        unsafe impl Send for $name {}
        // SAFETY: shared descriptors are only read.
        unsafe impl Sync for $name {}

        impl $name {
            fn set<T>(&self, attribute: $attribute, value: &T) -> Result<(), ErrorKind> {
                // SAFETY: the descriptor is alive, and the library reads only the bytes of the value.
                check(unsafe { sys::$set(self.0, attribute, ptr::from_ref(value).cast(), size_of::<T>()) })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the descriptor is alive, and is not used after this.
                let _ = unsafe { sys::$destroy(self.0) };
            }
        }
    };
}

descriptor! {
    Description(cublasLtMatmulDesc_t), DescAttribute: cublasLtMatmulDescSetAttribute, cublasLtMatmulDescDestroy
}
descriptor! {
    Layout(cublasLtMatrixLayout_t), LayoutAttribute: cublasLtMatrixLayoutSetAttribute, cublasLtMatrixLayoutDestroy
}
descriptor! {
    Preference(cublasLtMatmulPreference_t), PreferenceAttribute:
    cublasLtMatmulPreferenceSetAttribute, cublasLtMatmulPreferenceDestroy
}

impl Description {
    fn new(compute: ComputeType, scale: cudaDataType_t) -> Result<Self, ErrorKind> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is writable.
        check(unsafe { sys::cublasLtMatmulDescCreate(&mut raw, compute, scale) })?;
        Ok(Self(raw))
    }
}

impl Layout {
    /// Creates the layout of the transpose, whose columns are the matrix's rows.
    fn new(data: cudaDataType_t, matrix: Matrix, rows: usize, columns: usize, batch: usize) -> Result<Self, ErrorKind> {
        let (rows, columns) = if matrix.is_transposed { (columns, rows) } else { (rows, columns) };
        let mut raw = ptr::null_mut();
        let leading = matrix.leading as i64;
        // SAFETY: `raw` is writable.
        check(unsafe { sys::cublasLtMatrixLayoutCreate(&mut raw, data, columns as u64, rows as u64, leading) })?;
        let layout = Self(raw);
        layout.set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &(batch as i32))?;
        layout.set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &(matrix.stride as i64))?;
        Ok(layout)
    }
}

impl Preference {
    fn new() -> Result<Self, ErrorKind> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is writable.
        check(unsafe { sys::cublasLtMatmulPreferenceCreate(&mut raw) })?;
        Ok(Self(raw))
    }
}

fn data_type(dtype: DType) -> Result<cudaDataType_t, ErrorKind> {
    match dtype {
        DType::F16 => Ok(cudaDataType_t::CUDA_R_16F),
        DType::BF16 => Ok(cudaDataType_t::CUDA_R_16BF),
        DType::F32 => Ok(cudaDataType_t::CUDA_R_32F),
        DType::F64 => Ok(cudaDataType_t::CUDA_R_64F),
        _ => Err(failure(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)),
    }
}

fn check(status: cublasStatus_t) -> Result<(), ErrorKind> {
    status.result().map_err(|CublasError(status)| failure(status))
}

fn failure(status: cublasStatus_t) -> ErrorKind {
    ErrorKind::Library { code: status as u32, name: format!("{status:?}") }
}
