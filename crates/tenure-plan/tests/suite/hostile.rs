//! Tests of malicious files and files that are not snapshots: each gives an error of one line, in bounded memory.

use std::io::{self, Read};

use crate::common::{read, refusal};
use tenure_plan::{ReadOptions, Trace, TraceError};

const DATA_ONLY: &str = "; a memory snapshot holds only dict, list, tuple, str, int, float, bool and None";

#[test]
fn an_import_is_refused_by_name() {
    let cases: [(&[u8], &str); 4] = [
        (b"cos\nsystem\n(Vls\ntR.", "would import os.system at byte 0"),
        (b"\x80\x02(ios\nsystem\n.", "would import os.system at byte 3"),
        (b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94.", "would import os.system at byte 16"),
        (b"\x80\x04\x8c\x06system\x8c\x02os\x94h\x00\x93.", "would import os.os at byte 17"),
    ];
    for (bytes, what) in cases {
        assert_eq!(refusal(bytes), format!("refused: the pickle {what}{DATA_ONLY}"));
    }
}

#[test]
fn names_that_are_refused_cannot_break_the_line_or_flood_it() {
    let message = refusal(&[b"c\x1b[2J\r", "x".repeat(1000).as_bytes(), b"\nsystem\n."].concat());
    assert!(message.starts_with("refused: the pickle would import \\u{1b}[2J\\rxxx"), "{message}");
    assert!(message.len() < 250, "{message}");
}

#[test]
fn every_other_way_out_is_refused() {
    let codes = b"RbPQoSTUBC\x81\x82\x83\x84\x8e\x8f\x90\x91\x92\x96\x97\x98";
    for &code in codes {
        let message = refusal(&[b"\x80\x04NN", &[code][..], &[0; 300]].concat());
        assert!(message.starts_with("refused: the pickle "), "{code:#x}: {message}");
        assert!(message.contains(" at byte 4;"), "{code:#x}: {message}");
    }
}

#[test]
fn known_names_make_data_and_nothing_else() {
    let cases: [(&[u8], &str); 6] = [
        (b"cnumpy.core.multiarray\nscalar\n(I1\nI2\ntR.", "would call a function (REDUCE) at byte "),
        (b"cnumpy\ndtype\n(Vi3\nI00\nI01\ntR.", "would call a function (REDUCE) at byte "),
        (b"cnumpy\ndtype\n(Vi8\nI00\nI01\ntR(I3\nV>\nNtb.", "holds a NumPy number that is not little-endian at byte "),
        (b"ccollections\ndefaultdict\n(ccollections\nOrderedDict\ntR.", "would call a function (REDUCE) at byte "),
        (b"cnumpy.core.multiarray\n_reconstruct\n.", "would import numpy.core.multiarray._reconstruct at byte 0"),
        (b"cbuiltins\nint\n(V5\ntR.", "would call a function (REDUCE) at byte "),
    ];
    for (bytes, what) in cases {
        let message = refusal(bytes);
        assert!(message.starts_with(&format!("refused: the pickle {what}")), "{message}");
    }
}

#[test]
fn a_file_that_is_not_a_pickle_is_refused() {
    let cases: [(&[u8], &str); 3] = [
        (b"\x80\x06.", "pickle protocol 6 is not known at byte 0"),
        (b"\x80\x04.", "the stack is empty at byte 2"),
        (b"\xff", "0xff is not a pickle operation at byte 0"),
    ];
    for (bytes, reason) in cases {
        assert_eq!(refusal(bytes), format!("not a PyTorch memory snapshot: {reason}"));
    }
    assert_eq!(refusal(b""), "truncated: it is empty (0 bytes): copy or save it again");
}

#[test]
fn a_file_of_another_kind_is_named() {
    let cases: [(&[u8], &str); 8] = [
        (b"[]\n", "an empty JSON list"),
        (
            b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\x12\0archive/data.pklFB",
            "a file of torch.save",
        ),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "a file of torch.save"),
        (b"PK\x03\x04\x14\0\0\0\x08\0notes.txt", "a zip archive (unpack it first)"),
        (b"SQLite format 3\0\x10\0", "an SQLite database"),
        (b"{\"json\": 1}", "JSON"),
        (b"\x7fELF", "a program"),
        (b"\x28\xb5\x2f\xfd\0", "a file compressed with zstd (decompress it first)"),
    ];
    for (bytes, what) in cases {
        let save = "save one with torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")";
        assert_eq!(refusal(bytes), format!("it is {what}, not a PyTorch memory snapshot: {save}"));
    }
}

#[test]
fn a_program_that_breaks_its_stack_is_an_error() {
    for (program, reason) in [
        (&b"N0a."[..], "the stack is empty"),
        (b"e.", "a mark is missing"),
        (b"(e.", "the stack is empty"),
        (b"](0aN.", "the stack is empty"),
        (b"Na.", "the stack is empty"),
        (b"NNa.", "something is appended to a value that is not a list"),
        (b"]NNs.", "an item is set in a value that is not a dict"),
        (b"}(Nu.", "a dict has a key without a value"),
        (b"h\x05.", "memo entry 5 was never stored"),
        (b"Nr\xff\xff\xff\xff.", "memo entry 4294967295 comes after only 0"),
        (b"\x8a\x11aaaaaaaaaaaaaaaaa.", "an integer of 17 bytes is larger than any address or size"),
        (b"\x8a\x09aaaaaaaaa.", "an integer is larger than 64 bits"),
        (b"X\x01\0\0\0\xff.", "a string is not UTF-8"),
        (b"V\\ud800\n.", "a string has a broken escape"),
        (b"I1x\n.", "\"1x\" is not an integer in range"),
    ] {
        let message = refusal(program);
        assert!(message.starts_with(&format!("not a PyTorch memory snapshot: {reason} at byte ")), "{message}");
    }
}

#[test]
fn a_list_in_itself_is_no_endless_loop() {
    assert_eq!(refusal(b"]q\x00h\x00a."), "not a PyTorch memory snapshot: it is not a dict");
    assert!(refusal(b"}Vdevice_traces\n]q\x00h\x00as.").starts_with("event 0: it is not a dict"));
}

#[test]
fn data_after_the_end_is_an_error() {
    assert_eq!(refusal(b"N.N"), "more data after the end, at byte 2");
}

#[test]
fn a_giant_string_is_refused_before_memory_is_taken() {
    assert_eq!(refusal(b"X\xff\xff\xff\x7f"), "too large: a string over the limit of 16777216 bytes at byte 0");
    assert_eq!(refusal(b"X\xff\xff\x7f\0abc"), "truncated: it ends at byte 8, in the middle: copy or save it again");
}

#[test]
fn doubling_through_the_memo_shares_and_stays_small() {
    // Each level is a list that holds the one before ten times: a reader that copies would make 10^50 items.
    let mut bomb = b"\x80\x04]\x94".to_vec();
    for level in 0u8..50 {
        bomb.extend(b"]\x94(");
        bomb.extend([b'h', level].repeat(10));
        bomb.push(b'e');
    }
    bomb.push(b'.');
    assert_eq!(refusal(&bomb), "not a PyTorch memory snapshot: it is not a dict");
}

#[test]
fn a_program_that_only_grows_ends_at_the_memory_limit() {
    for piece in [&b"]"[..], b"(", b"N", b"N\x94"] {
        let options = ReadOptions { memory_bytes: 1 << 20, ..ReadOptions::default() };
        let endless = Endless { piece, next: 0 };
        let message = Trace::read_from(endless, "test", &options).unwrap_err().to_string();
        assert!(message.starts_with("too large: decoded values over the limit of 1048576 bytes at byte "), "{message}");
    }
}

#[test]
fn a_program_that_does_nothing_for_ever_ends_at_the_size_limit() {
    let options = ReadOptions { decoded_bytes: 1 << 20, ..ReadOptions::default() };
    let error = Trace::read_from(Endless { piece: b"N0", next: 0 }, "test", &options).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("too large: decompressed content over the limit of 1048576 bytes"), "{message}");
}

#[test]
fn ten_gigabytes_of_zeros_end_at_the_first() {
    let zeros = io::repeat(0).take(10 << 30);
    let message = "not a PyTorch memory snapshot: 0x00 is not a pickle operation at byte 0";
    let read =
        |reader: Box<dyn Read>| Trace::read_from(reader, "test", &ReadOptions::default()).unwrap_err().to_string();
    assert_eq!(read(Box::new(liblzma::read::XzEncoder::new(zeros, 0))), message);
    let zeros = io::repeat(0).take(10 << 30);
    assert_eq!(read(Box::new(flate2::read::GzEncoder::new(zeros, flate2::Compression::fast()))), message);
}

#[test]
fn damaged_compression_names_the_compressed_byte() {
    let mut bytes = include_bytes!("../../../../tests/data/resnet50_step.pickle.xz").to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    let message = refusal(&bytes);
    assert!(message.starts_with("damaged xz data before compressed byte "), "{message}");
}

#[test]
fn truncated_compression_is_truncated() {
    let bytes = include_bytes!("../../../../tests/data/resnet50_step.pickle.xz");
    for end in [7, 20, 100, bytes.len() / 2, bytes.len() - 1] {
        let error = read(&bytes[..end]).unwrap_err();
        let TraceError::TruncatedCompression { format: "xz", compressed_bytes, .. } = error else { panic!("{error}") };
        assert_eq!(compressed_bytes, end as u64);
    }
}

#[test]
fn truncated_gzip_says_how_much_was_read() {
    let content = include_bytes!("../data/with_stack.pickle");
    let mut bytes = Vec::new();
    flate2::read::GzEncoder::new(&content[..], flate2::Compression::fast()).read_to_end(&mut bytes).unwrap();
    for end in [5, 12, bytes.len() / 2, bytes.len() - 4] {
        let error = read(&bytes[..end]).unwrap_err();
        let TraceError::TruncatedCompression { format: "gzip", compressed_bytes, offset } = error else {
            panic!("{end}: {error}")
        };
        assert_eq!(compressed_bytes, end as u64);
        assert!(offset <= content.len() as u64);
    }
}

#[test]
fn a_failing_reader_is_not_called_a_damaged_file() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, "no"))
        }
    }
    let reader = (&b"}N"[..]).chain(Broken);
    assert_eq!(Trace::read_from(reader, "test", &ReadOptions::default()).unwrap_err().to_string(), "no");
}

/// A reader that repeats the same bytes forever.
struct Endless {
    piece: &'static [u8],
    next: usize,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for byte in &mut *buffer {
            *byte = self.piece[self.next];
            self.next = (self.next + 1) % self.piece.len();
        }
        Ok(buffer.len())
    }
}
