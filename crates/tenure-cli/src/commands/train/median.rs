//! The median of figures of steps.

/// Returns the middle of the values, or the mean of the two in the middle; 0 without values.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        count if count % 2 == 0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!([vec![], vec![3.0], vec![4.0, 1.0], vec![9.0, 1.0, 2.0]].map(median), [0.0, 3.0, 2.5, 2.0]);
    }
}
