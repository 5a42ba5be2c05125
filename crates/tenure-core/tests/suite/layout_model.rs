//! Tests of every operation on layouts against a model that lists the place of each element.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tenure_core::{DType, Layout, LayoutError, MemoryFormat, Overlap, Reshape};

/// The elements of a tensor in row-major order, each named by its place in the storage.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    sizes: Vec<usize>,
    places: Vec<usize>,
}

impl Model {
    fn of(layout: &Layout) -> Self {
        Self::new(layout.sizes(), |index| {
            layout.offset() + index.iter().zip(layout.strides()).map(|(i, s)| i * s).sum::<usize>()
        })
    }

    fn new(sizes: &[usize], place: impl Fn(&[usize]) -> usize) -> Self {
        let places = indices(sizes).iter().map(|index| place(index)).collect();
        Self { sizes: sizes.to_vec(), places }
    }

    fn at(&self, index: &[usize]) -> usize {
        self.places[index.iter().zip(&self.sizes).fold(0, |row_major, (i, size)| row_major * size + i)]
    }

    /// Returns whether some strides list these places under `target`. Each stride can only be the distance of its first
    /// two elements.
    fn has_strides_for(&self, target: &[usize]) -> bool {
        let Some(&first) = self.places.first() else { return true };
        let mut row_major = 1;
        let mut strides = vec![0; target.len()];
        for dim in (0..target.len()).rev() {
            if target[dim] > 1 {
                strides[dim] = self.places[row_major] as isize - first as isize;
            }
            row_major *= target[dim];
        }
        let expected = indices(target).into_iter().map(|index| {
            first as isize + index.iter().zip(&strides).map(|(&i, &stride)| i as isize * stride).sum::<isize>()
        });
        expected.eq(self.places.iter().map(|&place| place as isize))
    }
}

/// Returns every index of a tensor of `sizes`, in row-major order.
fn indices(sizes: &[usize]) -> Vec<Vec<usize>> {
    sizes.iter().fold(vec![vec![]], |prefixes, &size| {
        prefixes.iter().flat_map(|prefix| (0..size).map(|i| [&prefix[..], &[i]].concat())).collect()
    })
}

fn without(index: &[usize], dim: usize) -> Vec<usize> {
    [&index[..dim], &index[dim + 1..]].concat()
}

fn with(index: &[usize], dim: usize, i: usize) -> Vec<usize> {
    [&index[..dim], &[i], &index[dim..]].concat()
}

fn sizes(rank: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1 => Just(0_usize), 3 => Just(1), 12 => 2..5_usize], rank)
}

/// Generates layouts with any strides, or with those of a permuted dense tensor: most layouts that arise in practice,
/// and most that do not.
fn layouts_of(sizes: Vec<usize>) -> impl Strategy<Value = Layout> {
    let rank = sizes.len();
    let any_strides = (Just(sizes.clone()), prop::collection::vec(0..20_usize, rank), 0..50_usize)
        .prop_map(|(sizes, strides, offset)| Layout::strided(&sizes, &strides, offset).unwrap());
    let dense = (Just(sizes), Just((0..rank).collect::<Vec<_>>()).prop_shuffle(), any::<bool>()).prop_map(
        |(sizes, order, shuffle)| {
            let fresh = Layout::contiguous(&sizes).unwrap();
            if shuffle { fresh.permute(&order).unwrap() } else { fresh }
        },
    );
    prop_oneof![any_strides, dense]
}

fn layouts() -> impl Strategy<Value = Layout> {
    sizes(0..5).prop_flat_map(layouts_of)
}

/// Generates a layout of at least one dimension, and one of its dimensions.
fn layouts_and_dim() -> impl Strategy<Value = (Layout, usize)> {
    sizes(1..5).prop_flat_map(layouts_of).prop_flat_map(|layout| (Just(layout.clone()), 0..layout.rank()))
}

/// Generates a layout, and other sizes with as many elements: its own sizes are split into prime factors and regrouped,
/// with ones put between them.
fn layouts_and_target() -> impl Strategy<Value = (Layout, Vec<usize>)> {
    (layouts(), prop::collection::vec(0..4_u8, 12)).prop_map(|(layout, choices)| {
        let factors = layout.sizes().iter().flat_map(|&size| if size == 4 { vec![2, 2] } else { vec![size] });
        let mut target = vec![];
        for (factor, choice) in factors.zip(choices) {
            match (choice, target.last_mut()) {
                (0 | 1, Some(last)) => *last *= factor,
                (2, _) => target.extend([1, factor]),
                _ => target.push(factor),
            }
        }
        (layout, target)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn an_element_is_at_offset_plus_index_times_strides(layout in layouts()) {
        let model = Model::of(&layout);
        prop_assert_eq!(layout.numel(), model.places.len());
        for index in indices(layout.sizes()) {
            prop_assert_eq!(layout.element(&index), Ok(model.at(&index)));
        }
    }

    #[test]
    fn the_extent_is_from_the_first_place_to_the_last(layout in layouts()) {
        let places = Model::of(&layout).places;
        let expected = match (places.iter().min(), places.iter().max()) {
            (Some(&first), Some(&last)) => first..last + 1,
            _ => layout.offset()..layout.offset(),
        };
        prop_assert_eq!(layout.extent(), expected.clone());
        let bytes = if layout.is_empty() { 0 } else { expected.end * 4 };
        prop_assert_eq!(layout.required_bytes(DType::F32), Ok(bytes));
        prop_assert!(layout.check_bounds(DType::F32, bytes).is_ok());
        if let Some(less) = bytes.checked_sub(1) {
            prop_assert!(layout.check_bounds(DType::F32, less).is_err());
        }
    }

    #[test]
    fn contiguous_is_one_place_after_the_other(layout in layouts()) {
        let places = Model::of(&layout).places;
        prop_assert_eq!(layout.is_contiguous(), places.into_iter().eq((0..layout.numel()).map(|i| layout.offset() + i)));
    }

    #[test]
    fn channels_last_is_contiguous_with_the_channels_moved_last(layout in sizes(4..6).prop_flat_map(layouts_of)) {
        let (format, order) = match layout.rank() {
            4 => (MemoryFormat::ChannelsLast2d, &[0, 2, 3, 1][..]),
            _ => (MemoryFormat::ChannelsLast3d, &[0, 2, 3, 4, 1][..]),
        };
        let fresh = Layout::with_format(layout.sizes(), format).unwrap();
        prop_assert!(fresh.is_contiguous_in(format));
        prop_assert!(fresh.permute(order).unwrap().is_contiguous());
        if !layout.is_empty() {
            prop_assert_eq!(layout.is_contiguous_in(format), layout.permute(order).unwrap().is_contiguous());
        }
    }

    #[test]
    fn overlap_is_never_wrong((layout, dim) in layouts_and_dim(), step in 1..3_usize) {
        for layout in [layout.slice(dim, 0, usize::MAX, step).unwrap(), layout] {
            let mut places = Model::of(&layout).places;
            places.sort_unstable();
            let shared = places.windows(2).any(|pair| pair[0] == pair[1]);
            match layout.overlap() {
                Overlap::No => prop_assert!(!shared),
                Overlap::Yes => prop_assert!(shared),
                Overlap::TooHard => {}
            }
        }
    }

    #[test]
    fn slices_of_dense_layouts_are_known_not_to_overlap(
        sizes in sizes(1..5),
        (start, step) in (0..3_usize, 1..3_usize),
    ) {
        let mut layout = Layout::contiguous(&sizes).unwrap();
        for dim in 0..layout.rank() {
            layout = layout.slice(dim, start, usize::MAX, step).unwrap().transpose(0, dim).unwrap();
        }
        prop_assert_eq!(layout.overlap(), Overlap::No);
    }

    #[test]
    fn select_keeps_one_index((layout, dim) in layouts_and_dim()) {
        let model = Model::of(&layout);
        for i in 0..layout.sizes()[dim] {
            let expected = Model::new(&without(&model.sizes, dim), |index| model.at(&with(index, dim, i)));
            prop_assert_eq!(Model::of(&layout.select(dim, i).unwrap()), expected);
        }
        prop_assert!(layout.select(dim, layout.sizes()[dim]).is_err());
    }

    #[test]
    fn slice_keeps_what_pythons_range_names(
        (layout, dim) in layouts_and_dim(),
        (start, end, step) in (0..6_usize, 0..6_usize, 1..4_usize),
    ) {
        let model = Model::of(&layout);
        let kept: Vec<usize> = (start..end.min(model.sizes[dim])).step_by(step).collect();
        let mut sizes = model.sizes.clone();
        sizes[dim] = kept.len();
        let expected = Model::new(&sizes, |index| model.at(&with(&without(index, dim), dim, kept[index[dim]])));
        prop_assert_eq!(Model::of(&layout.slice(dim, start, end, step).unwrap()), expected);
    }

    #[test]
    fn narrow_is_a_slice_that_may_not_be_cut(
        (layout, dim) in layouts_and_dim(),
        (start, length) in (0..6_usize, 0..6_usize),
    ) {
        match layout.narrow(dim, start, length) {
            Ok(view) => prop_assert_eq!(view, layout.slice(dim, start, start + length, 1).unwrap()),
            Err(_) => prop_assert!(start + length > layout.sizes()[dim]),
        }
    }

    #[test]
    fn transpose_and_permute_reorder_indices(
        (layout, order) in layouts()
            .prop_flat_map(|layout| (Just(layout.clone()), Just((0..layout.rank()).collect::<Vec<_>>()).prop_shuffle())),
    ) {
        let model = Model::of(&layout);
        let sizes: Vec<usize> = order.iter().map(|&dim| model.sizes[dim]).collect();
        let expected = Model::new(&sizes, |index| {
            let mut old = vec![0; order.len()];
            for (new_dim, &old_dim) in order.iter().enumerate() {
                old[old_dim] = index[new_dim];
            }
            model.at(&old)
        });
        prop_assert_eq!(Model::of(&layout.permute(&order).unwrap()), expected);
        if let [first, .., last] = order[..] {
            let mut swapped: Vec<usize> = (0..order.len()).collect();
            swapped.swap(first, last);
            prop_assert_eq!(layout.transpose(first, last), layout.permute(&swapped));
        }
    }

    #[test]
    fn expand_repeats_dimensions_of_size_one(layout in layouts(), new in sizes(0..3), repeats in 0..4_usize) {
        let model = Model::of(&layout);
        let own = model.sizes.iter().map(|&size| if size == 1 { repeats } else { size });
        let target: Vec<usize> = new.iter().copied().chain(own).collect();
        let expected = Model::new(&target, |index| {
            let old: Vec<usize> =
                index[new.len()..].iter().zip(&model.sizes).map(|(&i, &size)| if size == 1 { 0 } else { i }).collect();
            model.at(&old)
        });
        prop_assert_eq!(Model::of(&layout.expand(&target).unwrap()), expected);
    }

    #[test]
    fn squeeze_and_unsqueeze_change_no_element((layout, dim) in layouts_and_dim()) {
        let model = Model::of(&layout);
        let unsqueezed = layout.unsqueeze(dim).unwrap();
        prop_assert_eq!(unsqueezed.sizes(), with(layout.sizes(), dim, 1));
        prop_assert_eq!(&Model::of(&unsqueezed).places, &model.places);
        prop_assert_eq!(unsqueezed.squeeze(dim), Ok(layout.clone()));

        let squeezed = layout.squeeze_all();
        prop_assert!(!squeezed.sizes().contains(&1));
        prop_assert_eq!(squeezed.numel(), layout.numel());
        prop_assert_eq!(&Model::of(&squeezed).places, &model.places);
    }

    #[test]
    fn a_view_exists_exactly_if_strides_do((layout, target) in layouts_and_target()) {
        let model = Model::of(&layout);
        let legal = model.has_strides_for(&target);
        match layout.reshape(&target).unwrap() {
            Reshape::View(view) => {
                prop_assert!(legal);
                prop_assert_eq!(Model::of(&view), Model { sizes: target.clone(), places: model.places });
                prop_assert_eq!(layout.view(&target), Ok(view));
            }
            Reshape::Copy(fresh) => {
                prop_assert!(!legal);
                prop_assert_eq!(fresh, Layout::contiguous(&target).unwrap());
                let refused = matches!(layout.view(&target), Err(LayoutError::NotViewable { .. }));
                prop_assert!(refused);
            }
        }
    }
}
