//! Figures of several measurements: medians, and tables of text.

use std::fmt::Write;

/// Formats rows under headings, each column as wide as needed: the first aligned left, the others right.
pub(crate) fn table(heads: &[&str], rows: &[impl AsRef<[String]>]) -> String {
    let rows = rows.iter().map(|row| row.as_ref().iter().map(String::as_str).collect::<Vec<_>>());
    let rows: Vec<_> = std::iter::once(heads.to_vec()).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let written = match column {
                0 => write!(text, "{cell:<width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
            written.expect("a string takes every character");
        }
        text.push('\n');
    }
    text
}

/// Returns the middle of the values, or the mean of the two in the middle; 0 without values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
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
    fn columns_line_up() {
        let rows = [["native", "5.04 ms"], ["x", "9 µs"]].map(|row| row.map(String::from));
        assert_eq!(table(&["who", "time"], &rows), "who        time\nnative  5.04 ms\nx          9 µs\n");
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!([vec![], vec![3.0], vec![4.0, 1.0], vec![9.0, 1.0, 2.0]].map(median), [0.0, 3.0, 2.5, 2.0]);
    }
}
