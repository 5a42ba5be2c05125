//! Tests of operations composed of others: edge cases, and the messages of mistakes.

use tenure_tensor::{DType, Device, Result, Tensor};

fn ones(sizes: &[usize]) -> Tensor {
    Tensor::ones(sizes, DType::F32, Device::CPU).unwrap()
}

#[track_caller]
fn says<T>(result: Result<T>, expected: &str) {
    assert_eq!(result.err().expect("a mistake").to_string(), expected);
}

#[test]
fn contractions_of_sizes_that_differ_are_refused() {
    let x = ones(&[2, 3]);
    says(
        x.tensordot_over(&x, &[0], &[1]),
        "tensordot: dimension 0 of sizes [2, 3] has 2 elements, but dimension 1 of sizes [2, 3] has 3",
    );
    says(x.tensordot_over(&x, &[0, 0], &[0, 1]), "tensordot: dimension 0 is twice in [0, 0]");
    says(x.tensordot_over(&x, &[0], &[]), "tensordot: dimensions [0] and [] do not pair up");
    says(x.tensordot(&x, 3), "tensordot: 3 dimensions are more than those of sizes [2, 3] or [2, 3]");
}

#[test]
fn diagonals_and_products_of_other_ranks_are_refused() {
    says(ones(&[1, 2, 3]).diag(0), "diag: a vector or a matrix is needed, got sizes [1, 2, 3]");
    says(ones(&[2]).diag_embed(0, 1, -1), "diag_embed: two dimensions are needed, got 1 and -1");
    says(ones(&[2]).trace(), "trace: a matrix is needed, got sizes [2]");
    says(
        ones(&[2, 3]).cross(&ones(&[3]), -1),
        "cross: as many dimensions are needed, of which dimension 1 has 3 elements, got sizes [2, 3] and [3]",
    );
}

#[test]
fn distances_of_vectors_of_different_lengths_are_refused() {
    let x = ones(&[2, 3]);
    says(x.cdist(&ones(&[2, 4]), 2.0), "cdist: vectors of one length are needed, got sizes [2, 3] and [2, 4]");
    says(x.cdist(&x, -1.0), "cdist: p must not be negative, got -1");
}

#[test]
fn vectors_without_elements_have_no_distance() {
    let distances = ones(&[2, 0]).cdist(&ones(&[3, 0]), f64::INFINITY).unwrap();
    assert_eq!((distances.sizes(), distances.to_vec::<f32>().unwrap()), (&[2, 3][..], vec![0.0; 6]));
}

#[test]
fn an_unknown_reduction_is_refused() {
    let index = Tensor::from_slice(&[0_i64], &[1]).unwrap();
    says(
        ones(&[1]).scatter_reduce(0, &index, &ones(&[1]), "max", true),
        "scatter_reduce: reduce must be sum, prod, mean, amax or amin, got \"max\"",
    );
}

#[test]
fn an_extreme_of_nan_is_nan() {
    let index = Tensor::from_slice(&[0_i64, 0, 1], &[3]).unwrap();
    let values = Tensor::from_slice(&[f32::NAN, 1.0, 2.0], &[3]).unwrap();
    for reduce in ["amax", "amin"] {
        let found = ones(&[2]).scatter_reduce(0, &index, &values, reduce, false).unwrap().to_vec::<f32>().unwrap();
        assert!(found[0].is_nan() && found[1] == 2.0, "{reduce}: {found:?}");
    }
}

#[test]
fn an_image_needs_one_size_and_a_mode_of_its_rank() {
    let image = ones(&[1, 1, 2, 2]);
    let both = "interpolate: one of size and scale_factor is needed, and not both";
    says(image.interpolate(&[], None, "nearest", false), both);
    says(image.interpolate(&[2], Some(2.0), "nearest", false), both);
    says(image.interpolate(&[4], None, "nearest", true), "interpolate: align_corners is not for mode \"nearest\"");
    says(
        image.interpolate(&[4, 0], None, "bilinear", false),
        "interpolate: images need pixels, got spatial sizes [2, 2], resized to [4, 0]",
    );
    says(
        image.interpolate(&[4, 4, 4], None, "bilinear", false),
        "interpolate: size [4, 4, 4] is not a number for each of the spatial sizes [2, 2]",
    );
    assert!(image.interpolate(&[4], None, "linear", false).unwrap_err().to_string().contains("got \"linear\""));
}

#[test]
fn a_weight_has_a_number_for_each_channel() {
    says(
        ones(&[1, 2]).prelu(&ones(&[3])),
        "prelu: a weight of one number or of one for each of 2 channels is needed, got sizes [3]",
    );
}
