//! Tags and keys: the purpose of an allocation, and its name.
#![allow(clippy::unwrap_used)]

use std::thread;

use tenure_core::{Key, KeyId, Tag};

fn key(module: &str, occurrence: u32) -> Key {
    Key { module: module.into(), op: "matmul".into(), role: "out".into(), occurrence }
}

#[test]
fn tags_are_indexed_by_declaration_order_and_named_apart() {
    for (position, tag) in Tag::ALL.into_iter().enumerate() {
        assert_eq!(tag as usize, position);
        assert_eq!(Tag::ALL.iter().filter(|other| other.name() == tag.to_string()).count(), 1);
    }
    assert_eq!(Tag::default(), Tag::Unknown);
}

#[test]
fn a_key_reads_as_a_path() {
    assert_eq!(key("encoder.layer.3", 2).to_string(), "encoder.layer.3/matmul/out#2");
}

#[test]
fn equal_keys_have_one_id_and_others_have_others() {
    let id = KeyId::intern(key("tag.equal", 0));
    assert_eq!(id, KeyId::intern(key("tag.equal", 0)));
    assert_ne!(id, KeyId::intern(key("tag.equal", 1)));
    assert_eq!(*id.key().unwrap(), key("tag.equal", 0));
}

#[test]
fn an_id_survives_its_number() {
    let id = KeyId::intern(key("tag.raw", 0));
    assert_eq!(KeyId::from_raw(id.to_raw()), id);
    assert_eq!(KeyId::NONE.to_raw(), 0);
    assert!(KeyId::from_raw(u32::MAX).key().is_none(), "no such id");
}

#[test]
fn no_key_is_the_default() {
    assert_eq!(KeyId::default(), KeyId::NONE);
    assert!(KeyId::NONE.key().is_none());
    assert_ne!(KeyId::intern(key("tag.none", 0)), KeyId::NONE);
}

#[test]
fn threads_agree_on_ids() {
    let intern_all = || (0..200).map(|i| KeyId::intern(key("tag.threads", i))).collect::<Vec<_>>();
    let threads: Vec<_> = (0..4).map(|_| thread::spawn(intern_all)).collect();
    let expected = intern_all();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), expected);
    }
}
