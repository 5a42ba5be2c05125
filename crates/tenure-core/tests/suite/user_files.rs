//! Files that other programs wrote: byte order marks, UTF-16, compression, pointers of git-lfs, and named pipes.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use tenure_core::user_files::{
    expect_fetched, expect_no_archive, expect_no_utf_16, expect_text, open_regular, open_unpacked, without_mark,
};

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

/// Compresses bytes in each format that is read.
fn compressed(bytes: &[u8]) -> [(&'static str, Vec<u8>); 4] {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 0);
    xz.write_all(bytes).unwrap();
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    bzip2.write_all(bytes).unwrap();
    let zstd = ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest);
    [("gzip", gzip.finish().unwrap()), ("xz", xz.finish().unwrap()), ("bzip2", bzip2.finish().unwrap()), ("zstd", zstd)]
}

fn unpacked(path: &Path, stored: &[u8]) -> io::Result<Vec<u8>> {
    fs::write(path, stored)?;
    let mut bytes = Vec::new();
    open_unpacked(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn compressed_files_are_decompressed_by_their_first_bytes_and_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    // More than one block of each format.
    let text: Vec<u8> = (0..300_000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 27) as u8 + b'a').collect();
    for (format, stored) in compressed(&text) {
        assert!(stored.len() < text.len());
        assert!(unpacked(&path, &stored).unwrap() == text, "{format}");
        // Parallel compressors and `cat a.gz b.gz` write one after the other.
        assert!(unpacked(&path, &[&stored[..], &stored].concat()).unwrap() == text.repeat(2), "{format}");
        let cut = unpacked(&path, &stored[..stored.len() / 2]).unwrap_err().to_string();
        assert!(cut.starts_with(&format!("its {format} data is damaged or cut off")), "{cut}");
    }
    for (format, stored) in compressed(b"") {
        assert_eq!(unpacked(&path, &stored).unwrap(), b"", "{format}");
    }
    for plain in [&b"BZh"[..], b"BZh alone does not mark bzip2", b"", b"\xfd7z", b"PK\x03\x04"] {
        assert_eq!(unpacked(&path, plain).unwrap(), plain);
    }
}

/// Compresses bytes as `lzma` does: with a mark at the end, and no size.
fn lzma(bytes: &[u8], preset: u32) -> Vec<u8> {
    let options = liblzma::stream::LzmaOptions::new_preset(preset).unwrap();
    let stream = liblzma::stream::Stream::new_lzma_encoder(&options).unwrap();
    let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn files_of_lzma_are_decompressed_though_they_have_no_mark() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let text = b"a cat on a mat, ".repeat(1000);
    for (text, preset) in [(&text[..], 0), (&text, 6), (&text, 9), (b"", 6)] {
        let stored = lzma(text, preset);
        assert!(unpacked(&path, &stored).unwrap() == text, "{preset}");
        assert!(unpacked(&path, &[&stored[..], b"more"].concat()).is_err());
        assert!(unpacked(&path, &stored[..stored.len() - 3]).is_err());
    }
    // Python's `lzma.compress(b"abc", lzma.FORMAT_ALONE)`, with the size that other programs write.
    let sized = [&[0x5d, 0, 0, 0x80, 0, 3, 0, 0, 0, 0, 0, 0, 0][..], &lzma(b"abc", 6)[13..]].concat();
    assert_eq!(unpacked(&path, &sized).unwrap(), b"abc");
    for plain in [&b"]\0\0"[..], b"]\0\0\x80\0abcdefgh\0", b"] a text with a bracket"] {
        assert_eq!(unpacked(&path, plain).unwrap(), plain);
    }
}

#[test]
fn a_file_that_was_compressed_up_to_three_times_is_decompressed_as_often() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let text = b"a cat on a mat, ".repeat(100);
    for (outer, _) in compressed(b"").iter().enumerate() {
        for (inner, (_, twice)) in
            compressed(&text).map(|(_, once)| compressed(&once)[outer].clone()).iter().enumerate()
        {
            assert!(unpacked(&path, twice).unwrap() == text, "{inner} in {outer}");
        }
    }
    let again = |stored: &[u8]| compressed(stored)[0].1.clone();
    let thrice = again(&again(&lzma(&text, 6)));
    assert!(unpacked(&path, &thrice).unwrap() == text);
    assert_eq!(unpacked(&path, &again(&thrice)).unwrap_err().kind(), io::ErrorKind::InvalidData);
    // The first part is shorter than a mark.
    let parts = [again(&thrice[..1]), again(&thrice[1..])].concat();
    assert_eq!(unpacked(&path, &parts).unwrap_err().kind(), io::ErrorKind::InvalidData);
    let parts = [again(&again(&text)[..1]), again(&again(&text)[1..])].concat();
    assert!(unpacked(&path, &parts).unwrap() == text);
}

#[test]
fn a_device_is_not_read_as_a_file_and_a_pipe_is() {
    assert_eq!(open_unpacked(Path::new("/dev/zero")).err().unwrap().kind(), io::ErrorKind::InvalidInput);
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(&compressed(b"abc")[0].1).unwrap();
    drop(writer);
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    assert_eq!(io::read_to_string(open_unpacked(Path::new(&path)).unwrap()).unwrap(), "abc");
}

#[test]
fn binary_data_is_told_from_a_text() {
    let pickle = b"\x80\x04\x95\x0b";
    for bytes in [&b"SQLite format 3\0"[..], pickle, b"%PDF-1.4\n", b"caf\xe9 au lait", b"a\xffb", b"\xc3a"] {
        assert_eq!(expect_text(bytes).unwrap_err().kind(), io::ErrorKind::InvalidData, "{bytes:?}");
    }
    // The last character may be cut off.
    for text in ["é".as_bytes(), &"aé".as_bytes()[..2], "\u{feff}a\r\n\t\x1b".as_bytes(), b""] {
        assert!(expect_text(text).is_ok(), "{text:?}");
    }
}

#[test]
fn a_zstd_file_has_frames_to_skip_and_a_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zst");
    let [.., (_, frame)] = compressed(b"abc");
    let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9][..], &frame].concat();
    assert_eq!(unpacked(&path, &[&frame[..], &skipped].concat()).unwrap(), b"abcabc");
    assert_eq!(unpacked(&path, &skipped).unwrap(), b"abc");
    let mut damaged = frame;
    *damaged.last_mut().unwrap() ^= 1;
    assert!(unpacked(&path, &damaged).unwrap_err().to_string().ends_with("its checksum differs"));
}

#[test]
fn archives_are_refused_with_a_program_that_unpacks_them() {
    let tar = [&[b'a'; 257][..], b"ustar\x0000"].concat();
    for (bytes, program) in [
        (&b"PK\x03\x04"[..], "unzip"),
        (&tar, "tar -xf"),
        (b"7z\xbc\xaf\x27\x1c", "7z x"),
        (b"Rar!\x1a\x07\x01", "unrar x"),
        (&[0x04, 0x22, 0x4d, 0x18], "lz4 -d"),
        (&[0x1f, 0x9d, 0x90], "gzip -d"),
    ] {
        let said = expect_no_archive(bytes).unwrap_err().to_string();
        assert!(said.contains(&format!("`{program}`")), "{said}");
    }
    for bytes in [&b""[..], b"PK", b"a text", &tar[..261]] {
        assert!(expect_no_archive(bytes).is_ok());
    }
}

#[test]
fn a_named_pipe_or_a_device_is_no_regular_file_and_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [&pipe, Path::new("/dev/zero"), folder.path()] {
        assert_eq!(open_regular(path).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    let file = folder.path().join("file");
    File::create(&file).unwrap().write_all(b"abc").unwrap();
    assert_eq!(io::read_to_string(open_regular(&file).unwrap()).unwrap(), "abc");
}
