//! Tests of plans for an H200, which the library can make on a machine without one.

use std::ffi::c_char;

use cudarc::cudnn::sys::{cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Kind};
use tenure_core::DType;

use super::descriptor::Descriptor;
use super::graph::PlanTarget;
use super::{ConvolutionPass, DnnAttention, DnnConvolution, is_there};
use crate::cuda::Compute;

const H200: &str = r#"{"deviceName": "NVIDIA H200", "totalGlobalMem": 150754820096, "regsPerBlock": 65536,
"multiProcessorCount": 132, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "l2CacheSize": 62914560,
"cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000, "maxGridSize": [2147483647, 65535, 65535],
"maxBlockSize": [1024, 1024, 64], "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
"maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
"maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
"supportCoopLaunch": 1}"#;

/// Describes an H200 to the library. Returns `None` on a machine without the library.
fn h200() -> Option<PlanTarget> {
    if !is_there() {
        eprintln!("skipped: cuDNN was not found");
        return None;
    }
    let json: Vec<c_char> = H200.bytes().map(|byte| byte as c_char).collect();
    let properties = Descriptor::new(Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR).unwrap();
    let properties = properties.set(Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, &json).unwrap();
    Some(PlanTarget::Described(properties.finish().unwrap()))
}

fn convolution(dtype: DType, compute: Compute, pass: ConvolutionPass, is_channels_last: bool) -> DnnConvolution {
    DnnConvolution {
        pass,
        dtype,
        compute,
        spatial: 2,
        input: [32, 64, 56, 56, 0],
        weight: [128, 64, 3, 3, 0],
        output: [32, 128, 28, 28, 0],
        is_channels_last,
        stride: [1, 2, 2],
        padding: [0, 1, 1],
        dilation: [1; 3],
        alignment: 16,
    }
}

#[test]
fn every_pass_has_a_plan_in_every_dtype_and_order() {
    let Some(h200) = h200() else { return };
    let dtypes = [
        (DType::F16, Compute::Full),
        (DType::BF16, Compute::Full),
        (DType::F32, Compute::Full),
        (DType::F32, Compute::Tf32),
        (DType::F64, Compute::Full),
    ];
    for (dtype, compute) in dtypes {
        for pass in [ConvolutionPass::Forward, ConvolutionPass::DataGradient, ConvolutionPass::WeightGradient] {
            for is_channels_last in [false, true] {
                let plain = convolution(dtype, compute, pass, is_channels_last);
                let grouped = DnnConvolution { weight: [128, 16, 3, 3, 0], ..plain };
                let deep = DnnConvolution {
                    spatial: 3,
                    input: [4, 16, 9, 20, 20],
                    weight: [32, 16, 3, 3, 3],
                    output: [4, 32, 7, 18, 18],
                    stride: [1; 3],
                    padding: [0; 3],
                    ..plain
                };
                for (name, convolution) in [("plain", plain), ("grouped", grouped), ("deep", deep)] {
                    let plans = convolution.plans(&h200, 8);
                    let named = || format!("{name}: {convolution:?}");
                    let found = plans.unwrap_or_else(|error| panic!("{}: {error}", named()));
                    assert!(!found.is_empty() && found.len() <= 8, "{}", named());
                }
            }
        }
    }
}

fn attention(is_backward: bool) -> DnnAttention {
    let (heads, length, width) = (16, 1024, 64);
    DnnAttention {
        is_backward,
        is_in_any_order: false,
        dtype: DType::BF16,
        batch: 8,
        heads,
        kv_heads: heads,
        queries: length,
        keys: length,
        width,
        value_width: width,
        scale: 0.125_f32.to_bits(),
        is_causal: true,
        strides: [[length * heads * width, width, heads * width]; 8],
        alignment: 16,
    }
}

#[test]
fn attention_and_its_gradients_have_plans() {
    let Some(h200) = h200() else { return };
    // SAFETY: loading a library runs its initialisers; this one is NVIDIA's.
    let has_driver = unsafe { cudarc::driver::sys::is_culib_present() };
    for is_backward in [false, true] {
        let plain = attention(is_backward);
        let grouped = DnnAttention { kv_heads: 4, ..plain };
        let wide = DnnAttention {
            width: 128,
            value_width: 128,
            heads: 32,
            kv_heads: 4,
            batch: 1,
            queries: 2048,
            keys: 2048,
            strides: [[2048 * 32 * 128, 128, 32 * 128]; 8],
            ..plain
        };
        let odd = DnnAttention { queries: 1000, keys: 777, is_causal: false, ..plain };
        let wider = DnnAttention {
            heads: 2,
            kv_heads: 2,
            width: 256,
            value_width: 256,
            strides: [[1024 * 512, 256, 512]; 8],
            ..plain
        };
        let halves = DnnAttention { dtype: DType::F16, ..plain };
        let unordered = DnnAttention { is_in_any_order: true, ..grouped };
        for (name, attention) in [
            ("plain", plain),
            ("grouped", grouped),
            ("wide", wide),
            ("odd", odd),
            ("wider", wider),
            ("halves", halves),
            ("unordered", unordered),
        ] {
            match attention.plan(&h200) {
                Ok(plan) if is_backward && !attention.is_in_any_order => {
                    assert!(plan.workspace_bytes >= attention.queries * attention.keys * 2)
                }
                Ok(plan) => {
                    let sums = if is_backward {
                        8 * attention.queries * attention.heads * (attention.width + 1) * 4
                    } else {
                        0
                    };
                    assert!(plan.workspace_bytes < sums + (1 << 20), "{name} has a quadratic buffer");
                }
                // The library compiles the kernels of this graph, which needs a driver.
                Err(_) if !has_driver => eprintln!("skipped: no CUDA driver was found"),
                Err(error) => panic!("{name}, backward {is_backward}: {error}"),
            }
        }
    }
}
