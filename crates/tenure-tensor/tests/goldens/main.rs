//! Tests that compare every operation with PyTorch, and tests of properties that all operations share. See `README.md`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod accuracy;
mod activations;
mod algebra;
mod arithmetic;
mod attention;
#[path = "../common/mod.rs"]
mod common;
mod compare;
mod conv;
mod coverage;
mod create;
mod functions;
mod gather;
mod harness;
mod in_place;
mod index;
mod integers;
mod join;
mod linalg;
mod loss;
mod matmul;
mod norm;
mod pointwise;
mod promotion;
mod reduce;
mod search;
mod special;
mod threads;
mod view;
mod waits;
mod written;

macro_rules! families {
    ($($family:ident)*) => {
        /// The names and cases of all families.
        const FAMILIES: &[(&str, &[harness::Case])] = &[$((stringify!($family), $family::CASES)),*];

        mod families {
            $(#[test]
            fn $family() {
                crate::harness::check(stringify!($family), crate::$family::CASES, tenure_tensor::Device::CPU);
            })*
        }

        /// The same comparisons on a CUDA device, simulated or real.
        mod on_cuda {
            $(#[test]
            fn $family() {
                crate::harness::check(stringify!($family), crate::$family::CASES, crate::harness::cuda());
            })*
        }

        /// The same comparisons with kernels that count in 64 bits, as for large tensors.
        mod on_cuda_in_64_bits {
            $(#[test]
            fn $family() {
                crate::harness::check_in_64_bits(stringify!($family), crate::$family::CASES);
            })*
        }
    };
}

families! {
    accuracy
    activations
    algebra
    arithmetic
    attention
    compare
    conv
    create
    functions
    gather
    in_place
    index
    integers
    join
    linalg
    loss
    matmul
    norm
    pointwise
    reduce
    search
    special
    view
    written
}
