//! The tree of modules, and the memory that each holds.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::{Serialize, Serializer};
use tenure_alloc::snapshot::SnapshotBlock;
use tenure_core::{KeyId, Tag};

/// The deepest level of nested modules; blocks of deeper modules count for the ancestor at this level.
const DEEPEST: usize = 64;

/// A module of the program, and the memory that it holds, including its child modules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ModuleUse {
    /// Its name in its parent module; empty for the whole program.
    pub name: String,
    /// Bytes held by tag: `tags[tag as usize]`.
    #[serde(serialize_with = "by_name")]
    pub tags: [u64; Tag::ALL.len()],
    /// The number of blocks that hold them.
    pub blocks: usize,
    /// Its child modules, ordered by the bytes they hold, the most first.
    pub children: Vec<ModuleUse>,
}

/// A module whose children are found by name.
#[derive(Default)]
struct Node {
    tags: [u64; Tag::ALL.len()],
    blocks: usize,
    children: BTreeMap<String, Node>,
}

impl ModuleUse {
    /// Divides blocks by the module paths of their keys. Blocks without one belong to the program itself.
    pub(super) fn of_blocks<'a>(blocks: impl Iterator<Item = &'a SnapshotBlock>) -> Self {
        let mut held: BTreeMap<KeyId, Node> = BTreeMap::new();
        for block in blocks {
            held.entry(block.key).or_default().add(block.tag, block.bytes, 1);
        }
        let mut root = Node::default();
        for (id, sums) in held {
            let key = id.key();
            let path = key.as_ref().map_or("", |key| key.module.as_str());
            root.add_all(&sums);
            let mut node = &mut root;
            for name in path.split('.').filter(|name| !name.is_empty()).take(DEEPEST) {
                node = match node.children.entry(name.to_owned()) {
                    Entry::Occupied(child) => child.into_mut(),
                    Entry::Vacant(place) => place.insert(Node::default()),
                };
                node.add_all(&sums);
            }
        }
        root.into_module(String::new())
    }

    /// Returns the bytes held, over all tags.
    pub fn bytes(&self) -> u64 {
        self.tags.iter().sum()
    }
}

impl Node {
    fn add(&mut self, tag: Tag, bytes: u64, blocks: usize) {
        self.tags[tag as usize] += bytes;
        self.blocks += blocks;
    }

    fn add_all(&mut self, other: &Self) {
        Tag::ALL.into_iter().for_each(|tag| self.add(tag, other.tags[tag as usize], 0));
        self.blocks += other.blocks;
    }

    fn into_module(self, name: String) -> ModuleUse {
        let Self { tags, blocks, children } = self;
        let mut children: Vec<ModuleUse> = children.into_iter().map(|(name, child)| child.into_module(name)).collect();
        // The sort is stable: modules with equal bytes stay in the order of their names.
        children.sort_by_key(|child| Reverse(child.bytes()));
        ModuleUse { name, tags, blocks, children }
    }
}

fn by_name<S: Serializer>(tags: &[u64; Tag::ALL.len()], serializer: S) -> Result<S::Ok, S::Error> {
    let held = Tag::ALL.into_iter().map(|tag| (tag.name(), tags[tag as usize]));
    serializer.collect_map(held.filter(|&(_, bytes)| bytes > 0))
}
