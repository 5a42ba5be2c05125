//! Tables of text.

use std::fmt::Write;

/// Rows under heads, each column as wide as it must be: the first to the left, the others to the right.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].as_str()).chain([heads[column]]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in std::iter::once(heads).chain(rows.iter().map(|row| row.each_ref().map(String::as_str))) {
        for (column, (cell, width)) in row.into_iter().zip(widths).enumerate() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["native".into(), "5.04 ms".into()], ["x".into(), "9 µs".into()]];
        assert_eq!(table(["who", "time"], &rows), "who        time\nnative  5.04 ms\nx          9 µs\n");
    }
}
