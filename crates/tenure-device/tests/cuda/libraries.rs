//! Tests that CUDA's libraries compute what they are asked for. `tenure-tensor` tests the results.

use tenure_core::{DType, StreamId};
use tenure_device::cuda::{
    Compute, ConvolutionPass, DnnAttention, DnnConvolution, Epilogue, Matrix, Operands, Product, TUNING_WORKSPACE,
};
use tenure_device::{Driver, MemoryCalls};

use crate::common::device;

/// The size of the memory for each tensor, in bytes.
const BYTES: u64 = 16 << 20;

fn product(dtype: DType, batch: usize, is_transposed: [bool; 2], epilogue: Epilogue) -> Product {
    let (m, n, k) = (96, 64, 128);
    let matrix = |rows: usize, columns: usize, is_transposed: bool| Matrix {
        leading: if is_transposed { rows } else { columns },
        stride: rows * columns,
        is_transposed,
        alignment: 16,
    };
    Product {
        m,
        n,
        k,
        batch,
        dtype,
        compute: Compute::Full,
        a: matrix(m, k, is_transposed[0]),
        b: matrix(k, n, is_transposed[1]),
        c: None,
        d: matrix(m, n, false),
        epilogue,
    }
}

#[test]
fn products_of_every_dtype_and_order_are_computed() {
    let Some(driver) = device() else { return };
    let tensors = [(); 6].map(|()| driver.malloc(BYTES.max(TUNING_WORKSPACE as u64)).unwrap());
    let [a, b, c, d, bias, workspace] = tensors;
    let operands = Operands { a, b, c, d, bias, alpha: 1.0, beta: 0.0, workspace };
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for batch in [1, 5] {
            for is_transposed in [[false, false], [false, true], [true, false], [true, true]] {
                // cuBLASLt has no bias for `f64`.
                for epilogue in [Epilogue::None, Epilogue::Bias]
                    .into_iter()
                    .filter(|epilogue| dtype != DType::F64 || *epilogue == Epilogue::None)
                {
                    let product = product(dtype, batch, is_transposed, epilogue);
                    let plan = driver.product_plan(&product).unwrap_or_else(|error| panic!("{product:?}: {error}"));
                    assert!(plan.workspace_bytes() <= TUNING_WORKSPACE);
                    // SAFETY: there is more memory than the product needs, and nothing else uses it.
                    unsafe { driver.multiply(&plan, &operands, StreamId::NULL) }.unwrap();
                }
            }
        }
    }
    let product = product(DType::BF16, 1, [false, true], Epilogue::None);
    // SAFETY: see `multiply`.
    let tuned = unsafe { driver.tune_product(&product, &operands, StreamId::NULL, 4) }.unwrap();
    assert!(tuned.is_tuned() && driver.product_plan(&product).unwrap().is_tuned());
    driver.synchronize().unwrap();
    tensors.into_iter().for_each(|tensor| driver.free(tensor).unwrap());
}

#[test]
fn an_unsupported_computation_is_an_error_every_time() {
    let Some(driver) = device() else { return };
    let product = product(DType::I64, 1, [false; 2], Epilogue::None);
    for _ in 0..2 {
        let error = driver.product_plan(&product).err().unwrap();
        assert!(error.kind.is_unsupported(), "{error}");
    }
}

#[test]
fn convolutions_are_computed() {
    let Some(driver) = device() else { return };
    let tensors = [(); 3].map(|()| driver.malloc(BYTES).unwrap());
    for (dtype, pass) in [
        (DType::BF16, ConvolutionPass::Forward),
        (DType::BF16, ConvolutionPass::DataGradient),
        (DType::BF16, ConvolutionPass::WeightGradient),
        (DType::F32, ConvolutionPass::Forward),
        (DType::F64, ConvolutionPass::WeightGradient),
    ] {
        let convolution = DnnConvolution {
            pass,
            dtype,
            compute: Compute::Full,
            spatial: 2,
            input: [4, 16, 20, 20, 1],
            weight: [32, 16, 3, 3, 1],
            output: [4, 32, 20, 20, 1],
            is_channels_last: true,
            stride: [1; 3],
            padding: [0, 1, 1],
            dilation: [1; 3],
            alignment: 16,
        };
        let plan = driver.convolution_plan(&convolution).unwrap_or_else(|error| panic!("{convolution:?}: {error}"));
        let workspace = driver.malloc(plan.workspace_bytes().max(1) as u64).unwrap();
        // SAFETY: there is more memory than the convolution needs, and nothing else uses it.
        unsafe { driver.convolve(&plan, tensors, workspace, StreamId::NULL) }.unwrap();
        driver.synchronize().unwrap();
        driver.free(workspace).unwrap();
        let mut room = 0;
        // SAFETY: see `convolve`.
        let tuned = unsafe {
            driver.tune_convolution(&convolution, tensors, StreamId::NULL, 4, |bytes| {
                room = driver.malloc(bytes.max(1) as u64).unwrap();
                Some(room)
            })
        }
        .unwrap();
        assert!(tuned.is_tuned() && driver.convolution_plan(&convolution).unwrap().is_tuned());
        driver.free(room).unwrap();
    }
    tensors.into_iter().for_each(|tensor| driver.free(tensor).unwrap());
}

#[test]
fn attention_and_its_gradients_are_computed() {
    let Some(driver) = device() else { return };
    let tensors = [(); 8].map(|()| driver.malloc(BYTES).unwrap());
    let sums = driver.malloc(BYTES).unwrap();
    for (is_backward, is_in_any_order, kv_heads) in
        [(false, false, 4), (true, false, 4), (true, true, 4), (false, false, 2), (true, false, 2), (true, true, 2)]
    {
        let (heads, length, width) = (4, 256, 64);
        let of = |heads: usize| [length * heads * width, width, heads * width];
        let query = of(heads);
        let key = of(kv_heads);
        let attention = DnnAttention {
            is_backward,
            is_in_any_order,
            dtype: DType::BF16,
            batch: 2,
            heads,
            kv_heads,
            queries: length,
            keys: length,
            width,
            value_width: width,
            scale: 0.125_f32.to_bits(),
            is_causal: true,
            strides: [query, key, key, query, query, query, key, key],
            alignment: 16,
        };
        let plan = driver.attention_plan(&attention).unwrap_or_else(|error| panic!("{attention:?}: {error}"));
        let workspace = driver.malloc(plan.workspace_bytes().max(1) as u64).unwrap();
        let tensors = if is_backward { &tensors[..] } else { &tensors[..4] };
        // SAFETY: there is more memory than the attention needs, and nothing else uses it.
        unsafe { driver.attend(&plan, tensors, sums, workspace, StreamId::NULL) }.unwrap();
        driver.synchronize().unwrap();
        driver.free(workspace).unwrap();
    }
    tensors.into_iter().chain([sums]).for_each(|tensor| driver.free(tensor).unwrap());
}
