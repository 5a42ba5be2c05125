//! Files that keep the orders in which models use their tensors: a process that finds a model's order need not measure
//! it.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tenure_device::cache;

/// A folder of orders. If the folder cannot be read or written, no order is found or kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders {
    folder: PathBuf,
}

/// The order in which a model uses its tensors, which are numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownOrder {
    /// The tensors that are copied, in the order of their use.
    pub tensors: Vec<usize>,
    /// The index after each group's last tensor.
    pub ends: Vec<usize>,
    /// The tensors of which only some rows are used, such as embeddings. They are not copied as a whole.
    pub tables: Vec<usize>,
}

/// The file of a model's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderKey {
    file: String,
    tensors: usize,
}

impl OrderKey {
    /// Returns the key of a model's order on a device. `tensors` has, for each tensor, everything that its order may
    /// depend on, such as its name and its size. `settings` has the same for the device and for the division of the
    /// order into groups.
    pub fn new(settings: &[&str], tensors: &[String]) -> Self {
        let parts = settings.iter().copied().chain(["tensors"]).chain(tensors.iter().map(String::as_str));
        Self { file: cache::digest(parts) + ".json", tensors: tensors.len() }
    }
}

impl Orders {
    /// Opens the orders of a folder, which need not exist yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Opens the orders in the user's [cache], if there is one.
    pub fn of_user() -> Option<Self> {
        cache::folder("orders").map(Self::new)
    }

    /// Returns a model's order, or `None` if none was kept, or the file does not fit the model's tensors.
    pub fn find(&self, key: &OrderKey) -> Option<KnownOrder> {
        let path = self.folder.join(&key.file);
        // Reading anything but a file may never end.
        fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let order: KnownOrder = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        order.is_of(key.tensors).then_some(order)
    }

    /// Keeps a model's order, in place of an earlier one.
    pub fn keep(&self, key: &OrderKey, order: &KnownOrder) {
        // An order that is not kept is measured again.
        if let Ok(bytes) = serde_json::to_vec(order) {
            let _ = cache::replace(&self.folder.join(&key.file), &bytes);
        }
    }
}

impl KnownOrder {
    /// Returns whether it has each of `count` tensors once, and groups that end within them.
    fn is_of(&self, count: usize) -> bool {
        let mut seen: Vec<usize> = self.tensors.iter().chain(&self.tables).copied().collect();
        seen.sort_unstable();
        let has_groups = self.ends.is_sorted() && self.ends.last().copied().unwrap_or(0) == self.tensors.len();
        has_groups && seen.into_iter().eq(0..count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: u64) -> OrderKey {
        OrderKey::new(&["device", "searched"], &["a: 4".into(), format!("b: {bytes}"), "c: 8".into()])
    }

    #[test]
    fn an_order_is_found_under_its_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let orders = Orders::new(folder.path().join("new"));
        let order = KnownOrder { tensors: vec![2, 0], ends: vec![1, 2], tables: vec![1] };
        assert_eq!(orders.find(&key(8)), None);
        orders.keep(&key(8), &order);
        assert_eq!(orders.find(&key(8)), Some(order));
        assert_eq!(orders.find(&key(9)), None);
        assert_ne!(key(8), OrderKey::new(&["device"], &["searched".into(), "a: 4".into()]));
    }

    #[test]
    fn an_order_of_another_model_is_not_found() {
        let folder = tempfile::tempdir().unwrap();
        let orders = Orders::new(folder.path());
        for (tensors, ends, tables) in [
            (vec![0, 1], vec![2], vec![]),
            (vec![0, 1, 1], vec![3], vec![]),
            (vec![0, 1, 3], vec![3], vec![]),
            (vec![0, 1, 2], vec![2], vec![]),
            (vec![0, 1, 2], vec![2, 1, 3], vec![]),
            (vec![0, 1, 2], vec![3], vec![2]),
        ] {
            orders.keep(&key(8), &KnownOrder { tensors, ends, tables });
            assert_eq!(orders.find(&key(8)), None);
        }
        for bytes in [&b""[..], b"{", b"[]", b"\xff", br#"{"tensors": [-1], "ends": [1], "tables": []}"#] {
            fs::write(folder.path().join(&key(8).file), bytes).unwrap();
            assert_eq!(orders.find(&key(8)), None);
        }
    }
}
