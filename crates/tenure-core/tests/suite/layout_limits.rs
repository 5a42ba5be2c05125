//! Tests that no arithmetic on a layout wraps, whatever the numbers are.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tenure_core::{DType, Layout, LayoutError, MemoryFormat, Reshape};

const LIMIT: u128 = isize::MAX as u128;

/// Numbers near every limit that arithmetic could wrap at.
fn numbers() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..4_usize,
        1 => prop::sample::select(vec![
            1 << 31,
            1 << 32,
            (1 << 32) + 1,
            1 << 62,
            isize::MAX as usize - 1,
            isize::MAX as usize,
            isize::MAX as usize + 1,
            usize::MAX,
        ]),
    ]
}

fn shapes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    (0..6_usize).prop_flat_map(|rank| (prop::collection::vec(numbers(), rank), prop::collection::vec(numbers(), rank)))
}

/// Returns whether the promise of [`Layout`] holds, in arithmetic that is wide enough. It saturates, but only past the
/// limit.
fn is_within_limits(sizes: &[usize], strides: &[usize], offset: usize) -> bool {
    let empty = sizes.contains(&0);
    let numel = sizes.iter().fold(1_u128, |product, &size| product.saturating_mul(size as u128));
    let end = sizes.iter().zip(strides).fold(offset as u128 + 1, |end, (&size, &stride)| {
        end.saturating_add((size as u128).saturating_sub(1).saturating_mul(stride as u128))
    });
    let numbers = sizes.iter().chain(strides).chain([&offset]).all(|&number| number as u128 <= LIMIT);
    numbers && (empty || (numel <= LIMIT && end <= LIMIT))
}

fn assert_keeps_promise(layout: &Layout) {
    assert!(is_within_limits(layout.sizes(), layout.strides(), layout.offset()), "{layout:?}");
    let numel = layout.sizes().iter().fold(1_u128, |product, &size| product.saturating_mul(size as u128));
    assert_eq!(layout.numel() as u128, numel.min(if layout.is_empty() { 0 } else { LIMIT }), "{layout:?}");
}

/// Calls every method of a layout that computes a property. Arithmetic that wraps panics here.
fn ask_all(layout: &Layout) {
    assert_keeps_promise(layout);
    layout.overlap();
    layout.memory_format();
    layout.extent();
    for format in [MemoryFormat::Contiguous, MemoryFormat::ChannelsLast2d, MemoryFormat::ChannelsLast3d] {
        layout.is_contiguous_in(format);
    }
    if !layout.is_empty() {
        let last: Vec<usize> = layout.sizes().iter().map(|size| size - 1).collect();
        assert_eq!(layout.element(&last), Ok(layout.extent().end - 1));
    }
    if let Ok(bytes) = layout.required_bytes(DType::F64) {
        let end = if layout.is_empty() { 0 } else { layout.extent().end };
        assert_eq!(bytes as u128, end as u128 * 8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_layout_is_made_exactly_if_it_is_within_limits((sizes, strides) in shapes(), offset in numbers()) {
        match Layout::strided(&sizes, &strides, offset) {
            Ok(layout) => ask_all(&layout),
            Err(error) => {
                prop_assert!(!is_within_limits(&sizes, &strides, offset));
                prop_assert_eq!(error, LayoutError::TooLarge { sizes });
            }
        }
    }

    #[test]
    fn fresh_layouts_are_within_limits((sizes, _) in shapes()) {
        for format in [MemoryFormat::Contiguous, MemoryFormat::ChannelsLast2d, MemoryFormat::ChannelsLast3d] {
            if let Ok(layout) = Layout::with_format(&sizes, format) {
                ask_all(&layout);
            }
        }
    }

    #[test]
    fn views_are_within_limits(
        (sizes, strides) in shapes(),
        offset in numbers(),
        (target, _) in shapes(),
        (dim, a, b, c) in (0..6_usize, numbers(), numbers(), numbers()),
    ) {
        let Ok(layout) = Layout::strided(&sizes, &strides, offset) else { return Ok(()) };
        let views = [
            layout.select(dim, a),
            layout.slice(dim, a, b, c),
            layout.narrow(dim, a, b),
            layout.transpose(dim, 0),
            layout.permute(&[1, 0]),
            layout.expand(&target),
            layout.squeeze(dim),
            layout.unsqueeze(dim),
            layout.view(&target),
            Ok(layout.squeeze_all()),
        ];
        for view in views.into_iter().flatten() {
            ask_all(&view);
        }
        if let Ok(Reshape::Copy(fresh)) = layout.reshape(&target) {
            ask_all(&fresh);
        }
    }
}

#[test]
fn a_count_of_bytes_past_the_limit_is_an_error_though_the_elements_are_not() {
    let layout = Layout::contiguous(&[1 << 61]).unwrap();
    assert_eq!(layout.required_bytes(DType::U8), Ok(1 << 61));
    assert_eq!(layout.required_bytes(DType::F32), Err(LayoutError::TooLarge { sizes: vec![1 << 61] }));
    assert_eq!(layout.check_bounds(DType::F32, usize::MAX), Err(LayoutError::TooLarge { sizes: vec![1 << 61] }));
}

#[test]
fn an_empty_dimension_does_not_hide_a_number_that_wraps() {
    assert!(Layout::contiguous(&[0, 1 << 40, 1 << 40]).is_err());
    assert_eq!(Layout::contiguous(&[1 << 40, 0]).unwrap().numel(), 0);
}
