//! Files that other programs wrote: byte order marks, UTF-16, and pointers of git-lfs.

use tenure_core::user_files::{expect_fetched, expect_no_utf_16, without_mark};

#[test]
fn utf_16_is_told_from_utf_8_by_its_mark_or_its_zeros() {
    let little = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let big = |text: &str| text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>();
    for bytes in [little("\u{feff}é"), big("\u{feff}é"), little("id,lower"), big("{\"a\": 1}")] {
        assert!(expect_no_utf_16(&bytes).unwrap_err().to_string().contains("UTF-16"), "{bytes:?}");
    }
    for bytes in [&b""[..], b"id", b"i\0", b"\0\0\0\0", "\u{feff}id".as_bytes(), &[1, 0, 2, 0]] {
        assert!(expect_no_utf_16(bytes).is_ok(), "{bytes:?}");
    }
}

#[test]
fn a_byte_order_mark_is_left_out_and_a_pointer_of_git_lfs_refused() {
    assert_eq!((without_mark(b"\xef\xbb\xbf{}"), without_mark(b"{}")), (&b"{}"[..], &b"{}"[..]));
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    assert!(expect_fetched(pointer).unwrap_err().to_string().contains("git lfs pull"));
    assert!(expect_fetched(b"version https://git-lfs").is_ok());
}
