//! Operations: what they take, their kernels, and their gradients. All are methods of [`Tensor`](crate::Tensor).

mod activation;
mod arithmetic;
mod attention;
mod compare;
mod conv;
mod copy;
mod einsum;
mod gather;
mod in_place;
mod index;
mod join;
mod loss;
mod matmul;
mod norm;
mod pad;
pub(crate) mod pointwise;
mod pool;
mod power;
mod random;
mod reduce;
mod scan;
mod select;
mod softmax;
mod sort;
mod unary;
mod view;

pub use attention::Attention;
pub(crate) use attention::Weighting;
pub use conv::Conv;
pub(crate) use conv::Geometry;
pub use einsum::einsum;
pub use pool::Pool;
pub(crate) use pool::{Taps, Windows};
