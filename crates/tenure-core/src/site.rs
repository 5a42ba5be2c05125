//! Sites: the module and operation that a thread is in, from which allocations get their keys.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::sync::LazyLock;

use crate::{Key, KeyId, Unforked};

/// The most allocations of one operation of one module in one pass that get keys of their own. Further ones get none,
/// so that an endless loop does not fill memory with keys.
const MAX_OCCURRENCES: u32 = 1 << 16;

/// A string that is stored once and kept until the process ends, such as the path of a module or the name of an
/// operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Name(&'static str);

impl Name {
    /// Returns the name for a word. Equal words share one copy.
    pub fn new(word: &str) -> Self {
        static WORDS: LazyLock<Unforked<HashSet<&'static str>>> = LazyLock::new(Unforked::default);
        let mut words = WORDS.lock();
        Self(words.get(word).copied().unwrap_or_else(|| {
            let kept: &'static str = Box::leak(word.into());
            words.insert(kept);
            kept
        }))
    }

    /// Returns the name for a word that is part of the program's text.
    pub const fn of(word: &'static str) -> Self {
        Self(word)
    }

    /// Returns the word.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

/// The role of an allocation in the operation that makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Role {
    /// A result.
    #[default]
    Out,
    /// A gradient, or an intermediate result on the way to one.
    Grad,
    /// Scratch memory to compute in.
    Scratch,
    /// An allocation by one of the threads among which an operation is divided. They run in any order, so all have one
    /// key.
    Part,
}

/// The place of a thread in a program: its module and its operation. An allocation for which no [`Key`] was given gets
/// one from the site and from the number of allocations before it at the same site in the same pass
/// ([`Purpose::identify`](crate::Purpose::identify)). So the key is the same in every pass and every process, and
/// allocations at other sites do not change it.
///
/// ```
/// use tenure_core::{Name, Purpose, Site};
///
/// let key = || Purpose::identify().1.key().map(|key| key.to_string()).unwrap_or_default();
/// for _ in 0..2 {
///     let _pass = Site::begin_pass();
///     {
///         let _module = Site::enter_module(Name::new("encoder.0"));
///         let _op = Site::enter_operation(Name::of("linear"));
///         assert_eq!((&*key(), &*key()), ("encoder.0/linear/out#0", "encoder.0/linear/out#1"));
///     }
///     let _op = Site::enter_operation(Name::of("relu"));
///     assert_eq!(key(), "after encoder.0/relu/out#0"); // the path of the module around it is unknown
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Site {
    module: Name,
    /// Whether the module was left, and no other has been entered.
    is_after: bool,
    op: Name,
    role: Role,
}

/// The site of a thread, and the number of scopes that it is in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadSite {
    site: Site,
    depth: u32,
}

/// The keys that were given out at a site.
#[derive(Default)]
struct SiteKeys {
    /// The pass in which keys were counted last.
    pass: u64,
    /// The number of keys that were given out in that pass.
    count: u32,
    /// The key of each occurrence, by its number in a pass. They are the same in every pass.
    keys: Vec<KeyId>,
}

thread_local! {
    static THREAD_SITE: Cell<ThreadSite> = const { Cell::new(ThreadSite { site: Site::NOWHERE, depth: 0 }) };
    /// The number of the current pass. Counting begins anew with each pass.
    static PASS: Cell<u64> = const { Cell::new(1) };
    static SITE_KEYS: RefCell<HashMap<Site, SiteKeys>> = RefCell::default();
}

/// A guard that keeps a thread at a site. When it is dropped, the thread is back where it was.
#[must_use = "it holds for as long as it lives"]
#[derive(Debug)]
pub struct SiteGuard {
    previous: ThreadSite,
    /// The module that is left when the guard is dropped, if no other module is around it.
    left: Option<Name>,
    /// Makes the guard belong to the thread that entered the site.
    thread: PhantomData<*const ()>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = if self.is_after { "after " } else { "" };
        write!(f, "{after}{}/{}", self.module.as_str(), self.op.as_str())
    }
}

impl Site {
    const NOWHERE: Self = Self { module: Name::of(""), is_after: false, op: Name::of(""), role: Role::Out };

    /// Returns the calling thread's site.
    #[inline]
    pub fn current() -> Self {
        THREAD_SITE.get().site
    }

    /// Returns the module's path, which is empty outside all modules.
    pub fn module(self) -> Name {
        self.module
    }

    /// Returns the operation, which is empty outside all operations.
    pub fn operation(self) -> Name {
        self.op
    }

    /// Begins a pass, such as the forward pass of a step: occurrences are counted from 0. Inside another pass or a
    /// module, it is a part of that.
    pub fn begin_pass() -> SiteGuard {
        let here = THREAD_SITE.get();
        let site = if here.depth == 0 { Self::NOWHERE } else { here.site };
        ThreadSite::enter(site, None)
    }

    /// Enters the module with this path. Outside all passes and modules, this also begins a pass.
    pub fn enter_module(path: Name) -> SiteGuard {
        let is_inside = THREAD_SITE.get().site.is_inside_module();
        let left = (!is_inside && !path.0.is_empty()).then_some(path);
        ThreadSite::enter(Self { module: path, ..Self::NOWHERE }, left)
    }

    /// Enters an operation. Operations that it consists of are part of it.
    #[inline]
    pub fn enter_operation(op: Name) -> SiteGuard {
        let previous = THREAD_SITE.get();
        if previous.site.op.0.is_empty() {
            THREAD_SITE.set(ThreadSite { site: Self { op, ..previous.site }, ..previous });
        }
        SiteGuard { previous, left: None, thread: PhantomData }
    }

    /// Marks the thread's allocations as scratch memory to compute in.
    #[inline]
    pub fn enter_scratch() -> SiteGuard {
        let previous = THREAD_SITE.get();
        if previous.site.role != Role::Part {
            THREAD_SITE.set(ThreadSite { site: Self { role: Role::Scratch, ..previous.site }, ..previous });
        }
        SiteGuard { previous, left: None, thread: PhantomData }
    }

    /// Enters the backward pass of the operation `op`, whose forward pass ran at this site.
    pub fn enter_backward(self, op: Name) -> SiteGuard {
        ThreadSite::enter(Self { op, role: Role::Grad, ..self }, None)
    }

    fn is_inside_module(self) -> bool {
        !self.module.0.is_empty() && !self.is_after
    }

    /// Returns the key of the next allocation here, or [`KeyId::NONE`] outside all passes and modules.
    pub(crate) fn next_key() -> KeyId {
        let ThreadSite { site, depth } = THREAD_SITE.get();
        if depth == 0 {
            return KeyId::NONE;
        }
        // A thread that is ending has no keys any more.
        SITE_KEYS.try_with(|keys| keys.borrow_mut().entry(site).or_default().next(site)).unwrap_or(KeyId::NONE)
    }

    /// Returns the key of an allocation at this site, which has `occurrence` allocations before it in its pass.
    fn key(self, occurrence: u32) -> Key {
        let Self { module: Name(module), is_after, op: Name(op), role } = self;
        let module = if is_after { format!("after {module}") } else { module.to_owned() };
        let op = if op.is_empty() { "empty" } else { op };
        let role = match role {
            Role::Out => "out",
            Role::Grad => "grad",
            Role::Scratch => "scratch",
            Role::Part => "part",
        };
        Key { module, op: op.to_owned(), role: role.to_owned(), occurrence }
    }
}

impl SiteKeys {
    /// Returns the key of the site's next allocation in the current pass.
    fn next(&mut self, site: Site) -> KeyId {
        let pass = PASS.get();
        if self.pass != pass {
            self.pass = pass;
            self.count = 0;
        }
        let occurrence = if site.role == Role::Part { 0 } else { self.count };
        self.count = (self.count + 1).min(MAX_OCCURRENCES);
        if occurrence == MAX_OCCURRENCES {
            return KeyId::NONE;
        }
        while self.keys.len() <= occurrence as usize {
            self.keys.push(KeyId::intern(site.key(self.keys.len() as u32)));
        }
        self.keys[occurrence as usize]
    }
}

impl ThreadSite {
    #[inline]
    pub(crate) fn current() -> Self {
        THREAD_SITE.get()
    }

    /// Returns the site for one of the threads among which an operation is divided.
    pub(crate) fn part(self) -> Self {
        Self { site: Site { role: Role::Part, ..self.site }, ..self }
    }

    /// Puts the calling thread at this site until the guard is dropped.
    #[inline]
    pub(crate) fn resume(self) -> SiteGuard {
        SiteGuard { previous: THREAD_SITE.replace(self), left: None, thread: PhantomData }
    }

    /// Puts the calling thread at a site, one scope deeper. Begins a pass if the thread is in no scope.
    fn enter(site: Site, left: Option<Name>) -> SiteGuard {
        let previous = THREAD_SITE.get();
        if previous.depth == 0 && site.role == Role::Out {
            PASS.set(PASS.get() + 1);
        }
        THREAD_SITE.set(Self { site, depth: previous.depth + 1 });
        SiteGuard { previous, left, thread: PhantomData }
    }
}

impl Drop for SiteGuard {
    #[inline]
    fn drop(&mut self) {
        let mut here = self.previous;
        if let Some(module) = self.left {
            here.site = Site { module, is_after: true, ..here.site };
        }
        THREAD_SITE.set(here);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> String {
        Site::next_key().key().map(|key| key.to_string()).unwrap_or_default()
    }

    fn op(name: &'static str) -> String {
        let _op = Site::enter_operation(Name::of(name));
        key()
    }

    #[test]
    fn keys_are_the_same_in_every_pass_and_do_not_depend_on_what_else_is_allocated() {
        let pass = |with_another: bool| {
            let _pass = Site::begin_pass();
            let mut keys = Vec::new();
            for layer in ["layers.0", "layers.1"] {
                let _module = Site::enter_module(Name::new(layer));
                keys.push(op("linear"));
                if with_another {
                    op("dropout");
                }
                keys.push(op("relu"));
            }
            keys.push(op("cross_entropy"));
            keys
        };
        let keys = pass(false);
        assert_eq!(keys[3..], ["layers.1/relu/out#0", "after layers.1/cross_entropy/out#0"]);
        assert_eq!(keys, pass(false));
        assert_eq!(keys, pass(true));
        assert_eq!(keys, std::thread::spawn(move || pass(true)).join().unwrap());
    }

    #[test]
    fn a_module_that_runs_twice_in_a_pass_has_keys_for_each_time() {
        let call = || {
            let _module = Site::enter_module(Name::new("shared"));
            op("linear")
        };
        let pass = Site::begin_pass();
        assert_eq!([call(), call()], ["shared/linear/out#0", "shared/linear/out#1"]);
        drop(pass);
        // Outside a pass, each call is a pass of its own.
        assert_eq!([call(), call()], ["shared/linear/out#0", "shared/linear/out#0"]);
    }

    #[test]
    fn the_outermost_operation_and_the_innermost_module_name_a_key() {
        let _pass = Site::begin_pass();
        let _outer = Site::enter_module(Name::new("attention"));
        let _op = Site::enter_operation(Name::of("attention"));
        assert_eq!(op("softmax"), "attention/attention/out#0");
        {
            let _inner = Site::enter_module(Name::new("attention.out_proj"));
            assert_eq!(op("linear"), "attention.out_proj/linear/out#0");
        }
        // The module around it continues.
        assert_eq!(key(), "attention/attention/out#1");
        let _scratch = Site::enter_scratch();
        assert_eq!(key(), "attention/attention/scratch#0");
    }

    #[test]
    fn the_way_back_has_keys_of_the_module_that_was_gone_through() {
        let pass = || {
            let forward = Site::begin_pass();
            let site = {
                let _module = Site::enter_module(Name::new("fc"));
                Site::current()
            };
            drop(forward);
            let _backward = site.enter_backward(Name::of("linear"));
            [op("matmul"), op("matmul")]
        };
        assert_eq!(pass(), ["fc/linear/grad#0", "fc/linear/grad#1"]);
        assert_eq!(pass(), ["fc/linear/grad#0", "fc/linear/grad#1"]);
    }

    #[test]
    fn nothing_has_a_key_outside_of_passes_and_modules() {
        assert_eq!(op("linear"), "");
        drop(Site::enter_module(Name::new("fc")));
        assert_eq!(op("linear"), "");
    }

    #[test]
    fn an_endless_program_makes_a_bounded_number_of_keys() {
        let _pass = Site::begin_pass();
        (0..MAX_OCCURRENCES).for_each(|_| assert_ne!(Site::next_key(), KeyId::NONE));
        assert_eq!([Site::next_key(), Site::next_key()], [KeyId::NONE; 2]);
    }

    #[test]
    fn parts_of_an_operation_share_a_key() {
        let _pass = Site::begin_pass();
        let _op = Site::enter_operation(Name::of("conv"));
        let _part = ThreadSite::current().part().resume();
        let _scratch = Site::enter_scratch();
        assert_eq!([key(), key()], ["/conv/part#0", "/conv/part#0"]);
    }
}
