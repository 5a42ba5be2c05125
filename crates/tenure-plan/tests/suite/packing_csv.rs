//! Tests of files of buffers: reading, writing, and an error of one line for each kind of malformed file.

use std::fs;
use std::ops::ControlFlow;

use tenure_plan::packing::{Buffer, PackingError, PackingOptions, PackingProblem};

fn read(text: &str) -> Result<Vec<Buffer>, PackingError> {
    Ok(PackingProblem::from_csv(text.as_bytes())?.buffers().to_vec())
}

fn refusal(bytes: &[u8]) -> String {
    let message = PackingProblem::from_csv(bytes).unwrap_err().to_string();
    assert!(!message.chars().any(char::is_control), "one line: {message}");
    message
}

fn buffer(id: &str, start: u64, end: u64, size_bytes: u64, alignment: u64) -> Buffer {
    Buffer { id: id.into(), start, end, size_bytes, alignment, offset: None }
}

#[test]
fn columns_have_any_order_and_their_older_names() {
    let expected = [buffer("a", 0, 3, 4, 1), buffer("b 2", 3, 9, 8, 1)];
    for text in [
        "id,lower,upper,size\na,0,3,4\nb 2,3,9,8\n",
        "\u{feff}size, upper ,id,lower\r\n4,3,a,0\r\n\r\n8, 9,b 2,3",
        "buffer_id,start,end,size\na,0,2,4\nb 2,3,8,8",
        "id,lower,upper,size,alignment,hint,gaps,offset\na,0,3,4,1,-1,,\nb 2,3,9,8,1,x,,\n",
    ] {
        assert_eq!(read(text).unwrap(), expected, "{text}");
    }
    assert_eq!(read("id,begin,upper,size,alignment\nc,0,1,5,96").unwrap(), [buffer("c", 0, 1, 5, 96)]);
    assert_eq!(read("id,lower,upper,size\n").unwrap(), []);
}

#[test]
fn an_answer_is_a_problem_again() {
    for (text, written) in [
        ("id,lower,upper,size\na,0,3,4\nb,3,9,8\n", "id,lower,upper,size,offset\na,0,3,4,0\nb,3,9,8,0\n"),
        ("id,lower,end,size,alignment\na,0,2,4,8\n", "id,lower,upper,size,alignment,offset\na,0,3,4,8,0\n"),
    ] {
        let problem = PackingProblem::from_csv(text.as_bytes()).unwrap();
        let outcome = problem.pack(&PackingOptions::default(), |_| ControlFlow::Continue(()));
        let mut out = Vec::new();
        outcome.packing.write_csv(&problem, &mut out).unwrap();
        assert_eq!(str::from_utf8(&out).unwrap(), written);
        let again = PackingProblem::from_csv(&out).unwrap();
        let placed = problem.buffers().iter().zip(outcome.packing.offsets());
        let fixed = placed.map(|(buffer, offset)| Buffer { offset: Some(*offset), ..buffer.clone() });
        assert_eq!(again.buffers(), fixed.collect::<Vec<_>>());
        assert_eq!(again.pack(&PackingOptions::default(), |_| ControlFlow::Continue(())).packing, outcome.packing);
    }
}

#[test]
fn fields_in_quotes_are_read_and_names_that_need_quotes_are_written_with_them() {
    let text = "\"id\",lower, \"upper\" ,size\r\n\"a,b\",0,\"3\",4\n\n\"c \"\"d\"\"\",3,9,8\ne\"f,0,1,2\n\"\n \",0,1,1";
    let expected = [("a,b", 0, 3, 4), ("c \"d\"", 3, 9, 8), ("e\"f", 0, 1, 2), ("\n ", 0, 1, 1)];
    let expected = expected.map(|(id, start, end, size)| buffer(id, start, end, size, 1));
    assert_eq!(read(text).unwrap(), expected);

    let problem = PackingProblem::new(expected.to_vec()).unwrap();
    let packed = problem.pack(&PackingOptions::default(), |_| ControlFlow::Continue(()));
    let mut out = Vec::new();
    packed.packing.write_csv(&problem, &mut out).unwrap();
    let ids: Vec<String> =
        PackingProblem::from_csv(&out).unwrap().buffers().iter().map(|buffer| buffer.id.clone()).collect();
    assert_eq!(ids, expected.map(|buffer| buffer.id));

    let refused = |line: &str| refusal(format!("id,lower,upper,size\n\"a\nb\",0,1,1\n{line}").as_bytes());
    assert_eq!(refused("\"c,0,1,1"), "line 4: a quoted field does not end: add a quote");
    assert!(refused("\"c\"d,0,1,1").starts_with("line 4: a field goes on after its closing quote"));
    assert!(refused("\"a\nb\",0,1,1").starts_with("line 4: line 2 has the same id, \"a\\nb\""));
    assert!(refused("\"c\",0,x,1").starts_with("line 4: upper is \"x\""));
}

#[test]
fn an_empty_alignment_or_offset_is_the_default() {
    let problem = PackingProblem::from_csv(b"id,lower,upper,size,alignment,offset\na,0,3,4,,\nb,0,3,4,8,16\n").unwrap();
    let read = problem.buffers().iter().map(|buffer| (buffer.alignment, buffer.offset));
    assert_eq!(read.collect::<Vec<_>>(), [(1, None), (8, Some(16))]);
}

#[test]
fn a_bad_line_is_named_with_what_is_wrong() {
    let columns = "the first line must name the columns id, lower, upper and size, and may name alignment and offset";
    let whole = "expected a whole number from 0 to 2^64 - 1";
    let cases = [
        ("", format!("line 1: there is nothing: {columns}")),
        ("id,lower,size", format!("line 1: column \"upper\" is missing: {columns}")),
        ("id,lower,upper,size,colour", format!("line 1: unknown column \"colour\": {columns}")),
        ("\n\nid,lower,upper,begin,size", "line 3: column \"begin\" stands there twice: leave one out".into()),
        ("a,0,3,4", format!("line 1: unknown column \"a\": {columns}")),
    ];
    for (text, expected) in cases {
        assert_eq!(refusal(text.as_bytes()), expected);
    }
    let cases = [
        (
            "a,0,3",
            "4: 3 fields, where the first line names 4: give each column one, and quote a field that has a comma"
                .into(),
        ),
        (
            "a,0,3,4,5",
            "4: 5 fields, where the first line names 4: give each column one, and quote a field that has a comma"
                .into(),
        ),
        ("a,-1,3,4", format!("4: lower is \"-1\": {whole}")),
        ("a,0,x\u{7},4", format!("4: upper is \"x\\u{{7}}\": {whole}")),
        ("a,0,3,1e6", format!("4: size is \"1e6\": {whole}")),
        ("a,0,3,18446744073709551616", format!("4: size is \"18446744073709551616\": {whole}")),
        ("a,3,3,4", "4: it begins at 3 and ends at 3: it must end later than it begins".into()),
        ("first,0,3,4", "4: line 2 has the same id, \"first\": each needs one of its own".into()),
        (
            "a,0,3,9223372036854775807",
            "4: with it, sizes and alignments come to 2^63 bytes or more, which is too much for one range".into(),
        ),
    ];
    for (line, expected) in cases {
        let text = format!("id,lower,upper,size\nfirst,0,1,1\n\n{line}\nlast,x,y,z");
        let text = if expected.contains("expected") || expected.contains("fields") {
            text
        } else {
            text.replace("last,x,y,z", "")
        };
        assert_eq!(refusal(text.as_bytes()), format!("line {expected}"));
    }
    assert_eq!(
        refusal(b"id,lower,upper,size,alignment\na,0,1,1,0"),
        "line 2: its alignment is 0: take 1 where any offset will do"
    );
    assert!(
        refusal(b"id,lower,upper,size,gaps\na,0,9,1,3-4").starts_with("line 2: gaps in a lifetime are not planned")
    );
    assert_eq!(
        refusal(b"id,lower,upper,size,alignment,offset\na,0,1,1,4,6"),
        "line 2: its fixed offset, 6, is not a multiple of its alignment, 4: change one of them"
    );
    assert_eq!(
        refusal(b"id,lower,upper,size,offset\na,0,5,4,0\nb,5,9,4,0\nc,4,6,9,3"),
        "line 4: at its fixed offset, 3, it shares bytes with the buffer of line 2: change one of their offsets, or leave \
         it empty"
    );
    assert!(refusal(b"id,lower,upper,size,offset\na,0,1,1,9223372036854775807").contains("2^63 bytes or more"));
    assert!(refusal(b"id,lower,upper,size,offset\na,0,1,1,-1").starts_with("line 2: offset is \"-1\": expected"));
    assert!(refusal(b"id,lower,end,size\na,0,18446744073709551615,1").starts_with("line 2: end is the last moment"));
    assert_eq!(refusal(b"id,lower,upper,size\n\xff,0,1,1"), "line 2: it is not UTF-8: save the file as text");
}

#[test]
fn a_long_field_is_not_repeated_whole() {
    let message = refusal(["id,lower,upper,size\na,0,1,", &"9".repeat(5000)].concat().as_bytes());
    assert!(message.len() < 150, "{message}");
}

#[test]
fn buffers_made_by_hand_are_checked_too() {
    let refused = |buffers: &[Buffer]| PackingProblem::new(buffers.to_vec()).unwrap_err().to_string();
    let good = buffer("a", 0, 1, 1, 1);
    assert_eq!(
        refused(&[good.clone(), good.clone()]),
        "buffer 1: buffer 0 has the same id, \"a\": each needs one of its own"
    );
    assert!(refused(&[buffer("a", 0, 1, 1, 0)]).starts_with("buffer 0: its alignment is 0"));
}

#[test]
fn an_error_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.csv");
    fs::write(&path, "id\n").unwrap();
    let message = PackingProblem::read(&path).unwrap_err().to_string();
    assert!(message.starts_with(&format!("{}: line 1: column \"lower\"", path.display())), "{message}");
    let message = PackingProblem::read(folder.path().join("missing")).unwrap_err().to_string();
    assert!(message.contains("missing: No such file"), "{message}");
}
