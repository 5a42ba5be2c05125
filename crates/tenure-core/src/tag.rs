//! Tags and keys: the purpose of an allocation, and its name.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, RwLock};

use crate::forks;

/// The purpose of an allocation. Placement, offload and reports use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Tag {
    /// The purpose was not given.
    #[default]
    Unknown,
    /// Parameters and buffers of a model.
    Weight,
    /// Forward results, saved for backward or not.
    Activation,
    /// Gradients.
    Gradient,
    /// State an optimizer keeps between steps.
    OptimizerState,
    /// Data read from outside.
    Input,
    /// Scratch of a kernel.
    Workspace,
}

impl Tag {
    /// Every tag, in declaration order: `Tag::ALL[tag as usize] == tag`.
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::Weight,
        Self::Activation,
        Self::Gradient,
        Self::OptimizerState,
        Self::Input,
        Self::Workspace,
    ];

    /// Returns the tag's name in reports and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Weight => "weight",
            Self::Activation => "activation",
            Self::Gradient => "gradient",
            Self::OptimizerState => "optimizer_state",
            Self::Input => "input",
            Self::Workspace => "workspace",
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of an allocation, in words that stay the same when another allocation is added: never a bare ordinal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The path of the module, such as `encoder.layer.3.attention`.
    pub module: String,
    /// The operation that allocates, such as `matmul`.
    pub op: String,
    /// The role among the operation's operands and results, such as `out` or `saved:1`.
    pub role: String,
    /// The number of allocations of the same module, operation and role that came before in this step.
    pub occurrence: u32,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}#{}", self.module, self.op, self.role, self.occurrence)
    }
}

/// An interned [`Key`]: one word to carry along an allocation's path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(u32);

#[derive(Default)]
struct KeyInterner {
    ids: HashMap<Arc<Key>, u32>,
    keys: Vec<Arc<Key>>,
}

static INTERNER: LazyLock<RwLock<KeyInterner>> = LazyLock::new(RwLock::default);

impl KeyId {
    /// The id for allocations without a key.
    pub const NONE: Self = Self(0);

    /// Returns the id as a number, for callers in other languages.
    pub fn to_raw(self) -> u32 {
        self.0
    }

    /// Returns the id for a number from [`to_raw`](Self::to_raw). A number that no id has gives an id without a key.
    pub fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the id of `key`. Equal keys have the same id as long as the process runs.
    ///
    /// # Panics
    /// More than `u32::MAX - 1` distinct keys are interned.
    pub fn intern(key: Key) -> Self {
        let _section = forks::section();
        // A poisoned lock still guards a consistent table: only an allocation can panic between the two insertions.
        if let Some(&id) = INTERNER.read().unwrap_or_else(|e| e.into_inner()).ids.get(&key) {
            return Self(id);
        }
        let mut interner = INTERNER.write().unwrap_or_else(|e| e.into_inner());
        if let Some(&id) = interner.ids.get(&key) {
            return Self(id);
        }
        let id = u32::try_from(interner.keys.len() + 1).expect("fewer than 2^32 - 1 distinct keys");
        let key = Arc::new(key);
        interner.keys.push(Arc::clone(&key));
        interner.ids.insert(key, id);
        Self(id)
    }

    /// Returns the key of the id, or `None` for [`KeyId::NONE`] and for an id without a key.
    pub fn key(self) -> Option<Arc<Key>> {
        let index = self.0.checked_sub(1)?;
        let _section = forks::section();
        let interner = INTERNER.read().unwrap_or_else(|e| e.into_inner());
        interner.keys.get(index as usize).cloned()
    }
}
