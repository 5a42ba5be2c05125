//! Tests that event files have the format that TensorBoard reads.

use std::fs;

use tenure::tensorboard::EventWriter;

/// Returns the records of a file, after checking their checksums.
fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(bytes[8..12], masked(&bytes[..8]));
        let (record, rest) = bytes[12..].split_at(length);
        assert_eq!(rest[..4], masked(record));
        records.push(record);
        bytes = &rest[4..];
    }
    records
}

/// Returns the CRC-32C, computed bit by bit (Castagnoli's polynomial, reflected) and masked as in TFRecord.
fn masked(bytes: &[u8]) -> [u8; 4] {
    let step = |crc: u32| crc >> 1 ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
    let crc = !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)));
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Returns the fields of a message: the number of each, and its bytes, or those of a number.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                fields.push((key >> 3, varint(&mut bytes).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (field, rest) = bytes.split_at(length);
        fields.push((key >> 3, field.to_vec()));
        bytes = rest;
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let (number, rest) = bytes.split_at(length);
    *bytes = rest;
    number.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
}

#[test]
fn a_file_has_its_version_and_the_scalars_of_each_step() {
    assert_eq!(masked(b"123456789"), (0xe306_9283_u32.rotate_right(15).wrapping_add(0xa282_ead8)).to_le_bytes());
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("runs/first");
    let mut events = EventWriter::create(&folder).unwrap();
    events.scalars(1, &[("loss", 2.5), ("memory/peak", 3e9)]).unwrap();
    events.scalars(300, &[("loss", 0.5)]).unwrap();

    let bytes = fs::read(events.path()).unwrap();
    let records = records(&bytes);
    let version = fields(records[0]);
    assert_eq!(version[1], (3, b"brain.Event:2".to_vec()));
    let seconds = f64::from_le_bytes(version[0].1[..].try_into().unwrap());
    assert!((1.6e9..1e11).contains(&seconds));

    let scalars = |record: &[u8]| {
        let event = fields(record);
        assert_eq!((event[0].0, event[1].0, event[2].0), (1, 2, 5));
        let step = u64::from_le_bytes(event[1].1[..].try_into().unwrap());
        let values = fields(&event[2].1).into_iter().map(|(number, value)| {
            let value = fields(&value);
            assert_eq!((number, value[0].0, value[1].0), (1, 1, 2));
            let figure = f32::from_le_bytes(value[1].1[..].try_into().unwrap());
            (String::from_utf8(value[0].1.clone()).unwrap(), figure)
        });
        (step, values.collect::<Vec<_>>())
    };
    let expected = vec![("loss".to_owned(), 2.5), ("memory/peak".to_owned(), 3e9)];
    assert_eq!(scalars(records[1]), (1, expected));
    assert_eq!(scalars(records[2]), (300, vec![("loss".to_owned(), 0.5)]));
    assert_eq!(records.len(), 3);
}

#[test]
fn two_writers_have_two_files() {
    let folder = tempfile::tempdir().unwrap();
    let first = EventWriter::create(folder.path()).unwrap();
    let second = EventWriter::create(folder.path()).unwrap();
    assert_ne!(first.path(), second.path());
    assert!([first, second].iter().all(|writer| writer.path().to_string_lossy().contains("tfevents")));
}
