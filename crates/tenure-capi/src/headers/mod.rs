//! The headers for C and C++: those of `include`, and those with a function for each operation of the table.

mod c;
mod cpp;

use std::path::Path;
use std::{fs, io};

use tenure_tensor::operation::Operation;
use tenure_tensor::ops::OPERATIONS;

/// Writes all headers to a folder, which is made if it does not exist: `tenure.h` and `tenure.hpp` include the others.
///
/// # Errors
/// A file cannot be written.
pub fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, text) in all() {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// Returns the name and the text of each header.
pub fn all() -> Vec<(&'static str, String)> {
    vec![
        ("tenure.h", include_str!("../../include/tenure.h").to_owned()),
        ("tenure_tensor.h", include_str!("../../include/tenure_tensor.h").to_owned()),
        ("tenure.hpp", include_str!("../../include/tenure.hpp").to_owned()),
        ("tenure_cuda.h", include_str!("../../include/tenure_cuda.h").to_owned()),
        ("tenure_cuda.hpp", include_str!("../../include/tenure_cuda.hpp").to_owned()),
        ("tenure_extension.h", include_str!("../../include/tenure_extension.h").to_owned()),
        ("tenure_extension.hpp", include_str!("../../include/tenure_extension.hpp").to_owned()),
        ("tenure_operations.h", c::functions()),
        ("tenure_operations.hpp", cpp::functions()),
        ("tenure_methods.hpp", cpp::methods()),
    ]
}

fn operations() -> impl Iterator<Item = &'static Operation> {
    OPERATIONS.iter().copied().flatten()
}

/// Returns the first sentence of an operation's documentation, without the links of Rust's.
fn sentence(operation: &Operation) -> String {
    let paragraph = operation.doc.split("\n\n").next().unwrap_or_default();
    let text = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = text.split_inclusive(". ").next().unwrap_or_default().trim();
    let mut parts = first.split("](");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
    }
    plain.replace(['[', ']', '`'], "")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_operations_have_the_same_own_name() {
        let mut names = HashSet::new();
        for operation in operations() {
            assert!(names.insert(operation.own_name), "two operations are {} in C", operation.own_name);
        }
    }
}
