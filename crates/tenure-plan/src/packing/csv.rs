//! MiniMalloc's CSV format: <https://github.com/google/minimalloc>. A field may be quoted, as in RFC 4180.
//!
//! It is parsed by hand, since the crate `csv` takes a quoted field that does not end, and text after a closing quote,
//! for data.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::path::Path;

use tenure_core::user_files::{expect_no_utf_16, open_unpacked, without_mark};

use super::{Buffer, BufferError, PackingError, PackingProblem, error};

/// The largest file that is read: some millions of buffers.
const LIMIT_BYTES: u64 = 64 << 20;
/// The most characters of a field that an error message shows.
const SHOWN_CHARS: usize = 40;

const NEEDED: &str =
    "the first line must name the columns id, lower, upper and size, and may name alignment and offset";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Id,
    Start,
    End,
    Size,
    Alignment,
    Offset,
    Gaps,
    Ignored,
}

/// The columns that the first line names.
struct CsvHeader {
    columns: Vec<Column>,
    /// Whether the end column holds the last moment of a lifetime, not the first after it.
    ends_are_inclusive: bool,
}

pub(super) fn read(path: &Path) -> Result<PackingProblem, PackingError> {
    let mut content = Vec::new();
    open_unpacked(path)?.take(LIMIT_BYTES + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LIMIT_BYTES {
        return Err(PackingError::TooLarge { limit_bytes: LIMIT_BYTES });
    }
    expect_no_utf_16(&content)?;
    parse(&content)
}

pub(super) fn parse(content: &[u8]) -> Result<PackingProblem, PackingError> {
    let content = without_mark(content);
    let mut records = Records { rest: content, line: 1 };
    let Some((number, first)) = records.next() else {
        return Err(PackingError::Line { line: 1, reason: format!("there is nothing: {NEEDED}") });
    };
    let header = first.and_then(|names| CsvHeader::parse(&names));
    let header = header.map_err(|reason| PackingError::Line { line: number, reason })?;
    let mut buffers = Vec::new();
    let mut numbers = Vec::new();
    for (number, fields) in records {
        let buffer = fields.and_then(|fields| header.buffer(&fields));
        buffers.push(buffer.map_err(|reason| PackingError::Line { line: number, reason })?);
        numbers.push(number);
    }
    match error::check(&buffers) {
        Ok(()) => Ok(PackingProblem::of_checked(buffers)),
        Err((index, reason)) => {
            let reason = match reason {
                BufferError::SameId { id, other } => {
                    format!("line {} has the same id, {}: each needs one of its own", numbers[other], shown(&id))
                }
                BufferError::Overlap { offset, other } => format!(
                    "at its fixed offset, {offset}, it shares bytes with the buffer of line {}: change one of their \
                     offsets, or leave it empty",
                    numbers[other]
                ),
                other => other.to_string(),
            };
            Err(PackingError::Line { line: numbers[index], reason })
        }
    }
}

pub(super) fn write(buffers: &[Buffer], offsets: &[u64], mut out: impl Write) -> io::Result<()> {
    let has_alignment = buffers.iter().any(|buffer| buffer.alignment != 1);
    writeln!(out, "id,lower,upper,size{},offset", if has_alignment { ",alignment" } else { "" })?;
    for (Buffer { id, start, end, size_bytes, alignment, .. }, offset) in buffers.iter().zip(offsets) {
        write!(out, "{},{start},{end},{size_bytes}", quoted(id))?;
        if has_alignment {
            write!(out, ",{alignment}")?;
        }
        writeln!(out, ",{offset}")?;
    }
    out.flush()
}

impl CsvHeader {
    fn parse(names: &[Cow<'_, str>]) -> Result<Self, String> {
        let mut header = Self { columns: Vec::new(), ends_are_inclusive: false };
        for name in names {
            let column = match &**name {
                "id" | "buffer" | "buffer_id" => Column::Id,
                "lower" | "start" | "begin" => Column::Start,
                "upper" | "end" => Column::End,
                "size" => Column::Size,
                "alignment" => Column::Alignment,
                "gaps" => Column::Gaps,
                "offset" => Column::Offset,
                "hint" => Column::Ignored,
                _ => return Err(format!("unknown column {}: {NEEDED}", shown(name))),
            };
            if column != Column::Ignored && header.columns.contains(&column) {
                return Err(format!("column {} stands there twice: leave one out", shown(name)));
            }
            header.ends_are_inclusive |= name == "end";
            header.columns.push(column);
        }
        for (column, name) in
            [(Column::Id, "id"), (Column::Start, "lower"), (Column::End, "upper"), (Column::Size, "size")]
        {
            if !header.columns.contains(&column) {
                return Err(format!("column \"{name}\" is missing: {NEEDED}"));
            }
        }
        Ok(header)
    }

    fn buffer(&self, fields: &[Cow<'_, str>]) -> Result<Buffer, String> {
        if fields.len() != self.columns.len() {
            return Err(format!(
                "{} fields, where the first line names {}: give each column one, and quote a field that has a comma",
                fields.len(),
                self.columns.len()
            ));
        }
        let mut buffer = Buffer { id: String::new(), start: 0, end: 0, size_bytes: 0, alignment: 1, offset: None };
        for (column, field) in self.columns.iter().zip(fields) {
            match column {
                Column::Id => buffer.id = field.clone().into_owned(),
                Column::Start => buffer.start = number("lower", field)?,
                Column::End if self.ends_are_inclusive => {
                    let end = number("end", field)?.checked_add(1);
                    buffer.end = end.ok_or("end is the last moment that there is: choose a coarser unit of time")?;
                }
                Column::End => buffer.end = number("upper", field)?,
                Column::Size => buffer.size_bytes = number("size", field)?,
                Column::Alignment if !field.is_empty() => buffer.alignment = number("alignment", field)?,
                Column::Offset if !field.is_empty() => buffer.offset = Some(number("offset", field)?),
                Column::Gaps if !field.is_empty() => {
                    return Err("gaps in a lifetime are not planned for: without the gaps, the packing is valid too, \
                                but may be higher"
                        .into());
                }
                Column::Alignment | Column::Offset | Column::Gaps | Column::Ignored => {}
            }
        }
        Ok(buffer)
    }
}

/// The records of a file: the number of the first line of each, and its fields. Blank lines are left out.
struct Records<'a> {
    rest: &'a [u8],
    /// The line at which `rest` begins, from 1.
    line: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = (usize, Result<Vec<Cow<'a, str>>, String>);

    fn next(&mut self) -> Option<Self::Item> {
        self.skip_blanks();
        while self.rest.first() == Some(&b'\n') {
            self.end_line();
            self.skip_blanks();
        }
        if self.rest.is_empty() {
            return None;
        }
        Some((self.line, self.record()))
    }
}

impl<'a> Records<'a> {
    fn record(&mut self) -> Result<Vec<Cow<'a, str>>, String> {
        let mut fields = Vec::new();
        loop {
            self.skip_blanks();
            fields.push(match self.rest.strip_prefix(b"\"") {
                Some(rest) => self.quoted_field(rest)?.into(),
                None => self.plain_field()?.into(),
            });
            match self.rest.split_first() {
                Some((b',', rest)) => self.rest = rest,
                Some((b'\n', _)) => {
                    self.end_line();
                    return Ok(fields);
                }
                Some(_) => return Err("a field goes on after its closing quote: write a quote inside as \"\"".into()),
                None => return Ok(fields),
            }
        }
    }

    fn plain_field(&mut self) -> Result<&'a str, String> {
        let end = self.rest.iter().position(|byte| matches!(byte, b',' | b'\n')).unwrap_or(self.rest.len());
        let (field, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(text(field)?.trim())
    }

    /// Reads a field whose opening quote `rest` follows, and the blanks after it.
    fn quoted_field(&mut self, mut rest: &'a [u8]) -> Result<String, String> {
        let mut field = Vec::new();
        loop {
            let end = rest.iter().position(|&byte| byte == b'"').ok_or("a quoted field does not end: add a quote")?;
            field.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            match rest.strip_prefix(b"\"") {
                Some(after) => {
                    field.push(b'"');
                    rest = after;
                }
                None => break,
            }
        }
        self.rest = rest;
        self.line += field.iter().filter(|&&byte| byte == b'\n').count();
        self.skip_blanks();
        Ok(text(&field)?.to_owned())
    }

    fn skip_blanks(&mut self) {
        let end = self.rest.iter().position(|byte| !byte.is_ascii_whitespace() || *byte == b'\n');
        self.rest = &self.rest[end.unwrap_or(self.rest.len())..];
    }

    fn end_line(&mut self) {
        self.rest = &self.rest[1..];
        self.line += 1;
    }
}

/// Returns a field with quotes around it, if it needs them.
fn quoted(field: &str) -> Cow<'_, str> {
    match field.contains([',', '"', '\n', '\r']) || field.trim() != field {
        true => format!("\"{}\"", field.replace('"', "\"\"")).into(),
        false => field.into(),
    }
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    str::from_utf8(bytes).map_err(|_| "it is not UTF-8: save the file as text".into())
}

fn number(column: &str, field: &str) -> Result<u64, String> {
    field.parse().map_err(|_| format!("{column} is {}: expected a whole number from 0 to 2^64 - 1", shown(field)))
}

/// Returns a field as an error message of one line can show it.
fn shown(field: &str) -> String {
    let quoted = format!("{:?}", field.chars().take(SHOWN_CHARS).collect::<String>());
    if field.chars().count() > SHOWN_CHARS { quoted + "..." } else { quoted }
}
