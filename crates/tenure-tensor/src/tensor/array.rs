//! Tensors from Rust's nested arrays.

use half::{bf16, f16};

use super::Tensor;
use crate::{Element, Result};

/// An element, or an array of arrays of elements.
pub trait Nested: Copy {
    /// The type of the innermost elements.
    type Element: Element;

    /// Appends the lengths of the arrays, the outermost first.
    fn push_sizes(sizes: &mut Vec<usize>);

    /// Appends all elements.
    fn push_elements(&self, elements: &mut Vec<Self::Element>);
}

macro_rules! element {
    ($($type:ty)*) => {$(
        impl Nested for $type {
            type Element = Self;

            fn push_sizes(_: &mut Vec<usize>) {}

            fn push_elements(&self, elements: &mut Vec<Self>) {
                elements.push(*self);
            }
        }
    )*};
}
element!(bool u8 u16 u32 u64 i8 i16 i32 i64 f16 bf16 f32 f64);

impl<N: Nested, const LENGTH: usize> Nested for [N; LENGTH] {
    type Element = N::Element;

    fn push_sizes(sizes: &mut Vec<usize>) {
        sizes.push(LENGTH);
        N::push_sizes(sizes);
    }

    fn push_elements(&self, elements: &mut Vec<N::Element>) {
        self.iter().for_each(|part| part.push_elements(elements));
    }
}

impl Tensor {
    /// Returns a tensor on the CPU with the elements of an array, or with one number.
    ///
    /// ```
    /// use tenure_tensor::Tensor;
    ///
    /// assert_eq!(Tensor::from_array([[1, 2, 3], [4, 5, 6]])?.sizes(), [2, 3]);
    /// # Ok::<(), tenure_tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// No memory.
    pub fn from_array<N: Nested>(array: N) -> Result<Self> {
        let (mut sizes, mut elements) = (Vec::new(), Vec::new());
        N::push_sizes(&mut sizes);
        array.push_elements(&mut elements);
        Self::from_slice(&elements, &sizes)
    }
}
