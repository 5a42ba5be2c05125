//! Tests that compare every operation with PyTorch, and tests of properties that all operations share. See `README.md`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod algebra;
#[path = "../common/mod.rs"]
mod common;
mod coverage;
mod harness;
mod in_place;
mod index;
mod integers;
mod layers;
mod linalg;
mod norm;
mod pointwise;
mod promotion;
mod reduce;
mod search;
mod shape;
mod special;
mod threads;
mod waits;

macro_rules! families {
    ($($family:ident: $file:ident::$cases:ident,)*) => {
        const FAMILIES: &[harness::Cases] = &[$(harness::Cases {
            family: stringify!($family),
            cases: $file::$cases,
            list: stringify!($cases),
            source: include_str!(concat!(stringify!($file), ".rs")),
        }),*];

        mod families {
            $(#[test]
            fn $family() {
                crate::harness::check(stringify!($family), crate::$file::$cases, tenure_tensor::Device::CPU);
            })*
        }

        /// The same comparisons on a CUDA device, simulated or real.
        mod on_cuda {
            $(#[test]
            fn $family() {
                crate::harness::check(stringify!($family), crate::$file::$cases, crate::harness::cuda());
            })*
        }

        /// The same comparisons with kernels that count in 64 bits, as for large tensors.
        mod on_cuda_in_64_bits {
            $(#[test]
            fn $family() {
                crate::harness::check_in_64_bits(stringify!($family), crate::$file::$cases);
            })*
        }
    };
}

families! {
    accuracy: pointwise::ACCURACY,
    activations: pointwise::ACTIVATIONS,
    algebra: algebra::CASES,
    arithmetic: pointwise::ARITHMETIC,
    attention: layers::ATTENTION,
    compare: pointwise::COMPARE,
    conv: layers::CONV,
    create: shape::CREATE,
    functions: pointwise::FUNCTIONS,
    gather: index::GATHER,
    in_place: in_place::IN_PLACE,
    index: index::INDEX,
    integers: integers::CASES,
    join: shape::JOIN,
    linalg: linalg::CASES,
    loss: layers::LOSS,
    matmul: layers::MATMUL,
    norm: norm::CASES,
    pointwise: pointwise::POINTWISE,
    reduce: reduce::CASES,
    search: search::CASES,
    special: special::CASES,
    view: shape::VIEW,
    written: in_place::WRITTEN,
}
