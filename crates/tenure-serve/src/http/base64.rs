//! Base64, for bytes in JSON.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes as base64.
pub(super) fn encode(bytes: &[u8]) -> String {
    bytes
        .chunks(3)
        .flat_map(|chunk| {
            let length = chunk.len();
            let bytes = [0, 1, 2].map(|place| chunk.get(place).copied().unwrap_or(0));
            let word = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
            [0, 1, 2, 3].map(|place| match place > length {
                true => '=',
                false => char::from(DIGITS[(word >> (18 - 6 * place) & 63) as usize]),
            })
        })
        .collect()
}

/// Decodes base64; returns `None` if the text is invalid. C++ clients insert line breaks, which are skipped.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let padding = text.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    let digits = &text[..text.len() - padding];
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in digits.chunks(4) {
        let mut word = 0;
        for place in 0..4 {
            let value = chunk.get(place).map_or(Some(0), |byte| DIGITS.iter().position(|digit| digit == byte));
            word = word << 6 | value? as u32;
        }
        // Four digits make three bytes, three make two, and two make one.
        bytes.extend_from_slice(&word.to_be_bytes()[1..chunk.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_and_read() {
        let expected = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (length, expected) in expected.into_iter().enumerate() {
            assert_eq!(encode(&b"foobar"[..length]), expected);
            assert_eq!(decode(expected).unwrap(), b"foobar"[..length]);
        }
        assert_eq!(encode(&[0xff, 0xfe, 0x3e]), "//4+");
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in ["Z", "Zg", "Zg=", "Zg===", "====", "Z===", "Zm8!", "=m8v", "Zm9v="] {
            assert_eq!(decode(text), None, "{text}");
        }
        assert_eq!(decode("Zm9v\nYg==\n").unwrap(), b"foob");
    }
}
