//! Text within HTML and XML.

use std::fmt::Write;

/// Escapes `text` for HTML or XML.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML does not allow other control characters.
            character if character.is_control() && character != '\n' => {
                write!(escaped, "\\u{{{:x}}}", character as u32).expect("a string takes every character");
            }
            character => escaped.push(character),
        }
    }
    escaped
}
