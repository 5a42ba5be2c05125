//! A pickle reader for plain data, in bounded memory.
//!
//! [`op`] cuts the bytes into operations and refuses those that could import, call or construct; [`machine`] runs
//! them. Neither recurses. [`call`] lists the few calls that only make data, and decodes them. Python's
//! `pickletools.py` documents every operation. [`objects`] keeps the lists and dicts, and [`memo`] the values that later
//! operations may fetch.

mod call;
mod machine;
mod memo;
mod objects;
mod op;
mod value;

pub(crate) use machine::Machine;
pub(crate) use objects::{Dict, Fold};
pub(crate) use value::{Interner, StringId, Strings, Value};

/// Returns the beginning of `text`, shortened for one line of an error.
pub(crate) fn excerpt(text: &str) -> String {
    const CHARACTERS: usize = 60;
    let mut start: String = text.chars().take(CHARACTERS).flat_map(char::escape_debug).collect();
    if text.chars().nth(CHARACTERS).is_some() {
        start.push_str("...");
    }
    start
}
