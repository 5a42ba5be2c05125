//! Views of any layout, for property tests.

use proptest::prelude::*;
use tenure_tensor::{Element, Layout, Tensor};

/// A view of some sizes: its broadcast dimensions, their order in memory, and the steps between elements.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) sizes: Vec<usize>,
    order: Vec<usize>,
    steps: Vec<usize>,
}

impl View {
    pub(crate) fn layout(&self) -> Layout {
        let mut strides = vec![0; self.sizes.len()];
        let mut stride = 1;
        for dim in &self.order {
            strides[*dim] = stride * self.steps[*dim];
            stride *= self.steps[*dim] * self.sizes[*dim].max(1);
        }
        Layout::strided(&self.sizes, &strides, 3).unwrap()
    }

    pub(crate) fn tensor<T: Element>(&self, value: impl Fn(usize) -> T) -> Tensor {
        let layout = self.layout();
        let elements: Vec<T> = (0..layout.extent().end).map(value).collect();
        let base = Tensor::from_slice(&elements, &[elements.len()]).unwrap();
        Tensor::from_storage(base.storage().clone(), layout, T::DTYPE).unwrap()
    }

    /// Returns the place of an element of `sizes`, to which the view is broadcast.
    pub(crate) fn place(&self, mut at: usize, sizes: &[usize]) -> usize {
        let layout = self.layout();
        let mut place = layout.offset();
        for (dim, size) in sizes.iter().enumerate().rev() {
            if let Some(own) = (dim + self.sizes.len()).checked_sub(sizes.len()) {
                place += if self.sizes[own] == 1 { 0 } else { at % size * layout.strides()[own] };
            }
            at /= size;
        }
        place
    }
}

/// Returns sizes, and views that broadcast to them.
pub(crate) fn views(count: usize) -> impl Strategy<Value = (Vec<usize>, Vec<View>)> {
    let size = prop_oneof![6 => 1..9_usize, 1 => Just(0), 2 => Just(1), 1 => 500..700_usize];
    prop::collection::vec(size, 0..5)
        .prop_filter("not too many elements", |sizes| sizes.iter().product::<usize>() < 200_000)
        .prop_flat_map(move |sizes| {
            let rank = sizes.len();
            let own = sizes.clone();
            let view = (
                0..=rank,
                prop::collection::vec(prop::bool::weighted(0.2), rank),
                prop::collection::vec(1..3_usize, rank),
            )
                .prop_flat_map(move |(missing, ones, steps)| {
                    let missing = if missing == rank { missing } else { missing / 3 };
                    let kept = missing..own.len();
                    let sizes: Vec<usize> = kept.clone().map(|dim| if ones[dim] { 1 } else { own[dim] }).collect();
                    let steps = steps[kept].to_vec();
                    let order = Just((0..sizes.len()).rev().collect::<Vec<usize>>());
                    let order = prop_oneof![order.clone(), order.prop_shuffle()];
                    order.prop_map(move |order| View { sizes: sizes.clone(), order, steps: steps.clone() })
                });
            // The first view has all the sizes.
            (Just(sizes), prop::collection::vec(view, count))
        })
}
