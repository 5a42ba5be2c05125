//! Layouts as PyTorch has them, and the errors for those that cannot exist.
#![allow(clippy::unwrap_used)]

use tenure_core::{DType, Layout, LayoutError, MemoryFormat, Overlap, Reshape};

fn contiguous(sizes: &[usize]) -> Layout {
    Layout::contiguous(sizes).unwrap()
}

fn strided(sizes: &[usize], strides: &[usize]) -> Layout {
    Layout::strided(sizes, strides, 0).unwrap()
}

fn message<T: std::fmt::Debug>(result: Result<T, LayoutError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_fresh_tensor_has_the_last_dimension_densest() {
    let (d, h, w) = (2, 3, 4);
    let layout = contiguous(&[d, h, w]);
    assert_eq!(layout.strides(), [h * w, w, 1]);
    assert_eq!((layout.offset(), layout.numel(), layout.rank()), (0, 24, 3));
    assert_eq!(layout.element(&[1, 2, 3]), Ok(h * w + 2 * w + 3));
}

#[test]
fn a_scalar_has_one_element_and_no_dimension() {
    let scalar = contiguous(&[]);
    assert_eq!((scalar.numel(), scalar.extent(), scalar.is_contiguous()), (1, 0..1, true));
    assert_eq!(scalar.element(&[]), Ok(0));
    assert_eq!(scalar.view(&[1, 1]).unwrap().strides(), [1, 1]);
}

#[test]
fn an_empty_tensor_counts_empty_dimensions_as_one_in_its_strides() {
    let empty = contiguous(&[2, 0, 3]);
    assert_eq!((empty.strides(), empty.numel()), (&[3, 3, 1][..], 0));
    assert_eq!(empty.required_bytes(DType::F64), Ok(0));
    assert!(strided(&[2, 0, 3], &[7, 7, 7]).is_contiguous());
    let channels_last = Layout::with_format(&[2, 0, 3, 4], MemoryFormat::ChannelsLast2d).unwrap();
    assert_eq!(channels_last.strides(), [0, 1, 0, 0]);
}

#[test]
fn channels_last_puts_channels_densest() {
    let image = Layout::with_format(&[8, 3, 5, 7], MemoryFormat::ChannelsLast2d).unwrap();
    assert_eq!(image.strides(), [105, 1, 21, 3]);
    assert!(image.is_contiguous_in(MemoryFormat::ChannelsLast2d) && !image.is_contiguous());

    let volume = Layout::with_format(&[2, 3, 4, 5, 6], MemoryFormat::ChannelsLast3d).unwrap();
    assert_eq!(volume.strides(), [360, 1, 90, 18, 3]);
    assert!(volume.is_contiguous_in(MemoryFormat::ChannelsLast3d) && !volume.is_contiguous());
    assert!(!volume.is_contiguous_in(MemoryFormat::ChannelsLast2d));
}

#[test]
fn strides_of_dimensions_of_size_one_do_not_make_a_layout_discontiguous() {
    assert!(strided(&[2, 1, 3], &[3, 99, 1]).is_contiguous());
    assert!(!strided(&[2, 1, 3], &[4, 3, 1]).is_contiguous());
    // An image with one channel has both formats at once.
    let grey = contiguous(&[8, 1, 5, 7]);
    assert!(grey.is_contiguous() && grey.is_contiguous_in(MemoryFormat::ChannelsLast2d));
}

/// Checks the cases that `c10/core/MemoryFormat.h` discusses.
#[test]
fn the_memory_format_of_an_ambiguous_layout_is_pytorchs() {
    use MemoryFormat::{ChannelsLast2d, ChannelsLast3d, Contiguous};
    let (n, c, h, w) = (8, 3, 5, 7);
    let cases: [(&[usize], &[usize], MemoryFormat); 9] = [
        (&[n, c, h, w], &[h * w * c, 1, w * c, c], ChannelsLast2d),
        (&[n, c, h, w], &[h * w * c, h * w, w, 1], Contiguous),
        // N111 fits both formats, from whichever it came.
        (&[n, 1, 1, 1], &[1, 1, 1, 1], Contiguous),
        (&[n, 1, 1, 1], &[w, w, w, w], Contiguous),
        // N1H1: only the strides of dimensions of size 1 tell the format.
        (&[n, 1, h, 1], &[h, 1, 1, 1], ChannelsLast2d),
        (&[n, 1, h, 1], &[h, h, 1, 1], Contiguous),
        // A 1C1W tensor, transposed.
        (&[1, h, 1, c], &[h * c, 1, h, h], Contiguous),
        // Expanded channels.
        (&[n, c, h, w], &[h * w, 0, w, 1], Contiguous),
        (&[2, 3, 4, 5, 6], &[360, 1, 90, 18, 3], ChannelsLast3d),
    ];
    for (sizes, strides, expected) in cases {
        assert_eq!(strided(sizes, strides).memory_format(), expected, "{sizes:?} at {strides:?}");
    }
    assert_eq!(contiguous(&[c, h, w]).memory_format(), Contiguous);
}

#[test]
fn a_slice_of_channels_last_is_still_channels_last() {
    let image = Layout::with_format(&[8, 3, 6, 8], MemoryFormat::ChannelsLast2d).unwrap();
    let crop = image.narrow(2, 1, 4).unwrap().narrow(3, 2, 4).unwrap();
    assert_eq!(crop.memory_format(), MemoryFormat::ChannelsLast2d);
    assert!(!crop.is_contiguous_in(MemoryFormat::ChannelsLast2d));
}

/// Checks strides against those of `torch.Tensor.view`, including the strides of dimensions of size 1.
#[test]
fn views_have_pytorchs_strides() {
    let cases: [(Layout, &[usize], &[usize]); 7] = [
        (contiguous(&[2, 3, 4]), &[6, 4], &[4, 1]),
        (contiguous(&[2, 3, 4]), &[2, 1, 12, 1], &[12, 12, 1, 1]),
        (strided(&[2, 3, 4], &[100, 4, 1]), &[2, 12], &[100, 1]),
        (strided(&[2, 3, 4], &[100, 4, 1]), &[1, 2, 2, 6], &[200, 100, 6, 1]),
        (strided(&[4, 1], &[1, 77]), &[4, 1], &[1, 77]),
        (strided(&[3, 1], &[0, 1]), &[1, 3], &[0, 0]),
        (strided(&[2, 0], &[5, 9]), &[2, 0], &[5, 9]),
    ];
    for (layout, target, strides) in cases {
        let view = layout.view(target).unwrap();
        assert_eq!((view.sizes(), view.strides()), (target, strides), "{layout:?}");
    }
}

#[test]
fn a_reshape_that_strides_cannot_do_is_a_contiguous_copy() {
    let transposed = contiguous(&[3, 4]).transpose(0, 1).unwrap();
    assert_eq!(transposed.reshape(&[12]), Ok(Reshape::Copy(contiguous(&[12]))));
    assert_eq!(transposed.reshape(&[2, 2, 3]), Ok(Reshape::View(strided(&[2, 2, 3], &[2, 1, 4]))));
}

#[test]
fn expanded_dimensions_have_stride_zero_and_overlap() {
    let row = contiguous(&[3]).expand(&[4, 3]).unwrap();
    assert_eq!((row.strides(), row.numel(), row.extent()), (&[0, 1][..], 12, 0..3));
    assert_eq!(row.overlap(), Overlap::Yes);
    // A new dimension of size 1 repeats nothing.
    assert_eq!(contiguous(&[3]).expand(&[1, 3]).unwrap().strides(), [3, 1]);
    // An empty layout repeats no element.
    assert_eq!(contiguous(&[1, 3]).expand(&[0, 3]).unwrap().overlap(), Overlap::No);
}

#[test]
fn overlap_is_too_hard_where_strides_interleave() {
    assert_eq!(strided(&[2, 2], &[1, 1]).overlap(), Overlap::Yes);
    assert_eq!(strided(&[2, 3], &[3, 2]).overlap(), Overlap::TooHard); // places 0 2 4 3 5 7: none twice
    assert_eq!(strided(&[3, 4], &[3, 2]).overlap(), Overlap::TooHard); // place 6 twice
    assert_eq!(strided(&[3, 2], &[5, 2]).overlap(), Overlap::No);
}

#[test]
fn unsqueeze_strides_are_as_if_contiguous() {
    let layout = contiguous(&[2, 3]);
    assert_eq!(layout.unsqueeze(0).unwrap().strides(), [6, 3, 1]);
    assert_eq!(layout.unsqueeze(1).unwrap().strides(), [3, 3, 1]);
    assert_eq!(layout.unsqueeze(2).unwrap().strides(), [3, 1, 1]);
}

#[test]
fn as_strided_may_reach_the_last_byte_and_no_further() {
    let windows = Layout::as_strided(&[3, 2], &[1, 1], 1, DType::F32, 20).unwrap();
    assert_eq!(windows.extent(), 1..5);
    assert_eq!(
        message(Layout::as_strided(&[3, 2], &[1, 1], 2, DType::F32, 20)),
        "sizes [3, 2] with strides [1, 1] at offset 2 need 24 bytes of float32, and the storage has 20"
    );
    // An empty layout has no element past the storage's end.
    assert!(Layout::as_strided(&[3, 0], &[1, 1], 1000, DType::F32, 0).is_ok());
}

#[test]
fn errors_name_the_invalid_value() {
    let layout = contiguous(&[2, 3]);
    let cases = [
        (message(layout.select(2, 0)), "dimension 2 is out of range for a layout of 2 dimensions"),
        (message(layout.select(1, 3)), "index 3 is out of range for dimension 1 of size 3"),
        (message(layout.element(&[1])), "indices: got 1, need 2, one for each dimension"),
        (message(layout.element(&[1, 3])), "index 3 is out of range for dimension 1 of size 3"),
        (message(layout.narrow(1, 2, 2)), "start 2 and length 2 exceed dimension 1 of size 3"),
        (
            message(layout.narrow(1, usize::MAX, 2)),
            "start 18446744073709551615 and length 2 exceed dimension 1 of size 3",
        ),
        (message(layout.slice(0, 0, 1, 0)), "a slice's step must be at least 1, got 0"),
        (message(layout.transpose(0, 2)), "dimension 2 is out of range for a layout of 2 dimensions"),
        (message(layout.permute(&[0, 0])), "[0, 0] is not a permutation of 0..2"),
        (message(layout.permute(&[0])), "[0] is not a permutation of 0..2"),
        (message(layout.unsqueeze(3)), "dimension 3 is out of range for a layout of 3 dimensions"),
        (
            message(layout.expand(&[2, 4])),
            "sizes [2, 3] do not expand to [2, 4]: aligned at the last dimension, each size must equal its target or be 1",
        ),
        (
            message(layout.expand(&[3])),
            "sizes [2, 3] do not expand to [3]: aligned at the last dimension, each size must equal its target or be 1",
        ),
        (message(layout.view(&[4])), "sizes [4] do not hold the 6 elements of sizes [2, 3]"),
        (
            message(layout.transpose(0, 1).and_then(|layout| layout.view(&[6]))),
            "sizes [3, 2] with strides [1, 3] cannot be viewed as [6]: a dimension would span two that are not \
             contiguous with each other; reshape, which copies, or copy first",
        ),
        (message(Layout::strided(&[2, 3], &[1], 0)), "strides: got 1, need 2, one for each dimension"),
        (
            message(Layout::with_format(&[2, 3], MemoryFormat::ChannelsLast2d)),
            "memory format channels_last needs 4 dimensions, got sizes [2, 3]",
        ),
        (
            message(Layout::contiguous(&[1 << 40, 1 << 40])),
            "a layout of sizes [1099511627776, 1099511627776] is larger than any memory: check how the shape was computed",
        ),
    ];
    for (message, expected) in cases {
        assert_eq!(message, expected);
    }
}
