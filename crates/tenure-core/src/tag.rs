use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, RwLock};

use crate::forks;

/// What an allocation is for. Placement, offload and reports read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Tag {
    /// Nobody said.
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

    /// The tag's name in reports and files.
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

/// Which allocation this is, in words that stay the same when another allocation is added: never a bare ordinal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Path of the module, such as `encoder.layer.3.attention`.
    pub module: String,
    /// Operation that asked, such as `matmul`.
    pub op: String,
    /// Role among the operation's operands and results, such as `out` or `saved:1`.
    pub role: String,
    /// How many allocations of the same module, operation and role came before in this step.
    pub occurrence: u32,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}#{}", self.module, self.op, self.role, self.occurrence)
    }
}

/// An interned [`Key`]: one word to carry on an allocation's path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(u32);

#[derive(Default)]
struct Interner {
    ids: HashMap<Arc<Key>, u32>,
    keys: Vec<Arc<Key>>,
}

static INTERNER: LazyLock<RwLock<Interner>> = LazyLock::new(RwLock::default);

impl KeyId {
    /// No key was given.
    pub const NONE: Self = Self(0);

    /// The id as a number, for callers in other languages.
    pub fn to_raw(self) -> u32 {
        self.0
    }

    /// The id that [`to_raw`](Self::to_raw) told. A number that no id has is an id without a key.
    pub fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The id of `key`: the same id for an equal key, for the life of the process.
    ///
    /// # Panics
    /// If more than `u32::MAX - 1` distinct keys are interned.
    pub fn intern(key: Key) -> Self {
        let _section = forks::section();
        // A poisoned lock is still a consistent table: nothing between the two pushes can panic but allocation.
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

    /// The key behind the id, or `None` for [`KeyId::NONE`].
    pub fn key(self) -> Option<Arc<Key>> {
        let index = self.0.checked_sub(1)?;
        let _section = forks::section();
        let interner = INTERNER.read().unwrap_or_else(|e| e.into_inner());
        interner.keys.get(index as usize).cloned()
    }
}
