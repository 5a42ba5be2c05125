//! Files as other programs leave them, whatever their format is.

const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Returns the bytes of a text in UTF-8 without the byte order mark that some editors begin files with.
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK.as_bytes()).unwrap_or(bytes)
}

/// Returns a text without the byte order mark that some editors begin files with.
pub fn text_without_mark(text: &str) -> &str {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}
