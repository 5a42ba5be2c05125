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
mod scatter;
mod select;
mod softmax;
mod sort;
mod triangle;
mod unary;
mod view;

pub use conv::Conv;
pub(crate) use conv::Geometry;
pub use index::{ELLIPSIS, Index, Indices, NEW};
pub use join::{cat, meshgrid, stack};
pub use pad::PadMode;
pub use pool::Pool;
pub(crate) use pool::{Taps, Windows};
