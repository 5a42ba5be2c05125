//! Operations: the checks of their arguments, their kernels, and their gradients. Most are methods of
//! [`Tensor`](crate::Tensor).

mod activation;
mod adaptive_max_pool;
mod algebra;
mod arithmetic;
mod attention;
mod batch_norm;
mod cdist;
mod compare;
mod composed;
mod conv;
mod conv_padding;
mod copy;
mod determinant;
mod einsum;
mod extreme;
mod factorization;
mod gather;
mod in_place;
mod index;
mod interpolate;
mod join;
mod linalg;
mod loss;
mod matmul;
mod matrix_power;
mod norm;
mod overloads;
mod pad;
pub(crate) mod pointwise;
mod pool;
mod power;
mod pseudoinverse;
mod random;
mod reduce;
mod reinterpret;
mod rotary;
mod scan;
mod scatter;
mod scatter_reduce;
mod search;
mod select;
mod softmax;
mod solve;
pub(crate) mod sort;
mod spectrum;
mod split;
mod unary;
mod unbiased;
mod unique;
mod view;

use crate::operation::Operation;

pub(crate) use crate::scopes::entered;
pub use attention::Attention;
pub use batch_norm::BatchNormParameters;
pub use conv::Conv;
pub use einsum::einsum;
pub use index::{ELLIPSIS, Index, Indices, NEW};
pub use join::{cat, meshgrid, stack};
pub use loss::CrossEntropy;
pub use pad::PadMode;
pub use pool::Pool;

pub use crate::operation::LossReduction;

/// All operations, by the files that declare them.
pub static OPERATIONS: &[&[Operation]] = &[
    activation::FUNCTIONS,
    activation::OPERATIONS,
    adaptive_max_pool::OPERATIONS,
    algebra::OPERATIONS,
    arithmetic::OPERATIONS,
    attention::OPERATIONS,
    batch_norm::OPERATIONS,
    cdist::OPERATIONS,
    compare::COMPARISONS,
    compare::BITS,
    compare::PROPERTIES,
    compare::OPERATIONS,
    composed::OPERATIONS,
    conv::OPERATIONS,
    conv_padding::OPERATIONS,
    copy::OPERATIONS,
    determinant::OPERATIONS,
    einsum::OPERATIONS,
    extreme::OPERATIONS,
    factorization::OPERATIONS,
    overloads::OPERATIONS,
    gather::OPERATIONS,
    in_place::OPERATIONS,
    index::OPERATIONS,
    interpolate::OPERATIONS,
    join::OPERATIONS,
    loss::OPERATIONS,
    matmul::OPERATIONS,
    matrix_power::OPERATIONS,
    norm::OPERATIONS,
    pad::OPERATIONS,
    pool::OPERATIONS,
    pool::POOLS,
    power::OPERATIONS,
    pseudoinverse::OPERATIONS,
    random::OPERATIONS,
    reduce::OPERATIONS,
    rotary::OPERATIONS,
    scan::OPERATIONS,
    scatter::OPERATIONS,
    scatter_reduce::OPERATIONS,
    search::OPERATIONS,
    select::OPERATIONS,
    softmax::OPERATIONS,
    solve::OPERATIONS,
    sort::OPERATIONS,
    spectrum::OPERATIONS,
    split::OPERATIONS,
    unary::FUNCTIONS,
    unary::OPERATIONS,
    unbiased::OPERATIONS,
    unique::OPERATIONS,
    view::OPERATIONS,
    reinterpret::OPERATIONS,
    crate::tensor::create::OPERATIONS,
    crate::tensor::ranges::OPERATIONS,
];
