//! Tests of searches, distinct elements, medians and quantiles: what they refuse, and what goldens do not show.

use tenure_tensor::{DType, Device, Result, Tensor};

fn numbers(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, &[values.len()]).unwrap()
}

fn refusal<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_search_names_what_it_cannot_search() {
    let sequence = numbers(&[0.0, 1.0]);
    let rows = sequence.view(&[1, 2]).unwrap();
    assert_eq!(
        refusal(rows.searchsorted(&sequence, false, None)),
        "searchsorted: values of sizes [2] cannot be searched for in a sequence of sizes [1, 2]: it needs one \
         dimension, or the same sizes but for the last"
    );
    assert!(refusal(sequence.sum_all().unwrap().searchsorted(1.0, false, None)).contains("a sequence of sizes []"));
    let wide = sequence.to_dtype(DType::F64).unwrap().add(0.5).unwrap();
    assert_eq!(sequence.searchsorted(&wide, false, None).unwrap().to_vec::<i64>().unwrap(), [1, 2]);
    assert!(refusal(sequence.bucketize(&rows, false)).contains("boundaries of one dimension are needed"));
}

#[test]
fn a_side_that_contradicts_right_is_refused() {
    let sequence = numbers(&[0.0, 1.0]);
    assert!(refusal(sequence.searchsorted(0.0, true, Some("left"))).contains("got \"left\""));
    assert!(refusal(sequence.searchsorted(0.0, false, Some("middle"))).contains("got \"middle\""));
    let place = sequence.searchsorted(0.0, true, Some("right")).unwrap();
    assert_eq!(place.item::<i64>().unwrap(), 1);
}

#[test]
fn a_number_is_searched_for_in_the_dtype_of_the_sequence() {
    let sequence = Tensor::from_slice(&[0.1_f64, 0.2], &[2]).unwrap();
    assert_eq!(sequence.searchsorted(0.1, true, None).unwrap().item::<i64>().unwrap(), 1);
    assert!(sequence.isin(0.2, false, false).unwrap().to_vec::<bool>().unwrap()[1]);
}

#[test]
fn long_sequences_are_searched_as_one_by_one() {
    for n in [1_i64, 2, 3, 7, 8, 100] {
        let sequence = Tensor::arange(0, 2 * n, 2, DType::I64, Device::CPU).unwrap();
        let values = Tensor::arange(-2, 2 * n + 2, 1, DType::I64, Device::CPU).unwrap();
        for right in [false, true] {
            let expected: Vec<i64> = (-2..2 * n + 2)
                .map(|value: i64| (0..n).filter(|at| 2 * at < value || right && 2 * at == value).count() as i64)
                .collect();
            assert_eq!(sequence.searchsorted(&values, right, None).unwrap().to_vec::<i64>().unwrap(), expected, "{n}");
        }
    }
}

#[test]
fn slices_without_elements_are_not_distinct() {
    let empty = Tensor::zeros(&[3, 0], DType::F32, Device::CPU).unwrap();
    let refused = refusal(empty.unique(true, true, true, Some(0)));
    assert_eq!(refused, "unique: the slices along dimension 0 of sizes [3, 0] have no elements");
    assert!(refusal(numbers(&[1.0]).unique(true, false, false, Some(1))).contains("dimension 1 is out of range"));
}

#[test]
fn distinct_slices_are_in_lexicographic_order() {
    // Seven places are numbered in pairs, with one left over twice.
    let rows: Vec<i64> = (0..50 * 7).map(|at| at * at % 11 / 6).collect();
    let x = Tensor::from_slice(&rows, &[50, 7]).unwrap();
    let (values, inverse, counts) = x.unique(true, true, true, Some(0)).unwrap();
    let mut expected: Vec<&[i64]> = rows.chunks(7).collect();
    expected.sort_unstable();
    expected.dedup();
    assert_eq!(values.to_vec::<i64>().unwrap(), expected.concat());
    let restored = values.index_select(0, &inverse).unwrap();
    assert_eq!(restored.to_vec::<i64>().unwrap(), rows);
    assert_eq!(counts.sum_all().unwrap().item::<i64>().unwrap(), 50);
}

#[test]
fn each_nan_is_distinct() {
    let (values, _, counts) = numbers(&[f32::NAN, 1.0, f32::NAN, 1.0]).unique(true, false, true, None).unwrap();
    assert_eq!(values.sizes(), [3]);
    assert_eq!(counts.to_vec::<i64>().unwrap(), [2, 1, 1]);
}

#[test]
fn a_median_of_nothing_is_refused_unless_it_can_be_nan() {
    let empty = numbers(&[]);
    assert!(empty.median_all().unwrap().item::<f32>().unwrap().is_nan());
    assert_eq!(refusal(empty.median(0, false)), "median: sizes [0] have no elements along dimension 0");
    assert_eq!(
        refusal(empty.to_dtype(DType::I64).unwrap().nanmedian_all()),
        "nanmedian: sizes [0] have no elements along dimension 0"
    );
}

#[test]
fn a_quantile_says_which_argument_is_wrong() {
    let x = numbers(&[1.0, 2.0]);
    assert_eq!(refusal(x.quantile(1.5, None, false, "linear")), "quantile: q must be from 0 to 1, got 1.5");
    assert!(refusal(x.quantile(f64::NAN, None, false, "linear")).contains("got NaN"));
    assert!(refusal(x.quantile(0.5, None, false, "cubic")).contains("or \"nearest\", got \"cubic\""));
    assert!(refusal(x.quantile(&x.view(&[1, 2]).unwrap(), None, false, "linear")).contains("got sizes [1, 2]"));
    assert!(refusal(x.to_dtype(DType::I64).unwrap().quantile(0.5, None, false, "linear")).contains("got int64"));
    assert_eq!(refusal(numbers(&[]).quantile(0.5, None, false, "linear")), "quantile: sizes [0] have no elements");
}
