//! The shared objects that are loaded in this process, and the slots through which they call functions of others.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{ptr, slice};

use rustix::param::page_size;

/// The types of relocations whose slot holds the address of a function of another object.
const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;

const WORD: usize = size_of::<usize>();

const PT_GNU_RELRO: u32 = 0x6474_e552;

/// Tags of the dynamic section.
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_RELACOUNT: i64 = 0x6fff_fff9;

/// The largest segment whose variables are searched, in bytes. Larger ones hold the code of kernels.
const LARGEST_VARIABLES: u64 = 16 << 20;

/// Objects that are left alone: the system's own, which never call a driver, and the driver.
const LEFT_ALONE: [&str; 5] = ["libc.so", "libdl.so", "ld-linux", "linux-vdso", "libcuda.so"];

#[repr(C)]
struct Dyn {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Rela {
    offset: usize,
    info: u64,
    addend: i64,
}

/// How many further calls check the slots of an object once more: see Note [Objects that are being loaded]. Then they are
/// left as they are, for example if the loader never protects them.
const CHECKS: usize = 1000;

/// The objects that were looked at.
///
/// Note [Objects that are being loaded]. While one thread loads an object, others already see it. A slot is left alone
/// until the loader has relocated it and protected its page. After that, the loader may still bind it, at a first call.
/// The loading thread looks up the object's functions next. So the slots of new objects are looked at again with the
/// look-ups that follow.
pub(super) struct Objects {
    own: u64,
    seen: HashSet<Identity>,
    /// How many objects had been loaded and unloaded when they were last looked at.
    changes: (u64, u64),
    /// The slots of objects that may still be loading.
    young: HashMap<Identity, Vec<Slot>>,
    checks_left: usize,
}

/// The load address and the program headers of an object. One that is unloaded may give both to another.
type Identity = (u64, usize);

/// A slot, and the address that it is to hold.
struct Slot {
    address: usize,
    function: *const c_void,
    /// Whether the loader protects its page once it has relocated the object.
    is_protected: bool,
    /// Values below this are those of the file: the loader has not relocated the slot yet.
    relocated: usize,
}

// SAFETY: addresses of code and of variables, which any thread may use.
unsafe impl Send for Slot {}

/// A search of the objects that are new.
struct Search<'a> {
    objects: &'a mut Objects,
    is_at_first: bool,
    /// The read-only ranges of the process's addresses, once they are needed.
    protected: OnceCell<Vec<Range<usize>>>,
    replacement: &'a dyn Fn(&CStr) -> Option<*const c_void>,
}

impl Objects {
    pub(super) fn new() -> Self {
        let (seen, changes, young, checks_left) = Default::default();
        Self { own: own_base(), seen, changes, young, checks_left }
    }

    /// Makes every object that was loaded since the last call reach functions through their replacements, but for the
    /// object of this code.
    ///
    /// # Safety
    /// Each replacement takes the arguments of the function of that name, and does its work.
    pub(super) unsafe fn redirect_new(&mut self, replacement: &dyn Fn(&CStr) -> Option<*const c_void>) {
        let mut search = Search { objects: self, is_at_first: true, protected: OnceCell::new(), replacement };
        // SAFETY: the callback gets the search, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), ptr::from_mut(&mut search).cast()) };
        self.checks_left = self.checks_left.saturating_sub(1);
        if self.checks_left == 0 {
            self.young.clear();
        }
    }
}

/// A loaded object.
pub(super) struct LoadedObject {
    pub(super) base: u64,
    /// The path of its file, as it was loaded.
    pub(super) path: &'static CStr,
}

/// Returns the object that an address lies in.
pub(super) fn object_of(address: *const c_void) -> Option<LoadedObject> {
    // SAFETY: all zeros is a value of the type, which has pointers only.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is writable; any address may be asked for.
    let is_found = unsafe { libc::dladdr(address, &mut found) } != 0;
    if !is_found || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's text, which lives as long as the object; callers ask for objects that are being executed.
    let path = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(LoadedObject { base: found.dli_fbase as u64, path })
}

/// Looks at one object. Returns 1 to end the search.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's object, and the search of `redirect_new`.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    let Search { objects, is_at_first, protected, replacement } = search;
    if std::mem::take(is_at_first) {
        let before = std::mem::replace(&mut objects.changes, (info.dlpi_adds, info.dlpi_subs));
        if before == objects.changes && objects.young.is_empty() {
            return 1;
        }
        if before.1 != objects.changes.1 {
            objects.seen.clear();
            objects.young.clear();
        }
    }
    let identity = (info.dlpi_addr, info.dlpi_phdr as usize);
    if objects.seen.insert(identity) && info.dlpi_addr != objects.own && !is_left_alone(info) {
        // SAFETY: the loader keeps the object while it calls this.
        let slots = unsafe { slots(info, replacement) };
        if !slots.is_empty() {
            objects.young.insert(identity, slots);
            objects.checks_left = CHECKS;
        }
    }
    let is_protected = |address| protected.get_or_init(read_only_ranges).iter().any(|range| range.contains(&address));
    for slot in objects.young.get(&identity).into_iter().flatten() {
        // SAFETY: a slot of this object.
        unsafe { slot.write(is_protected) };
    }
    0
}

fn is_left_alone(info: &libc::dl_phdr_info) -> bool {
    if info.dlpi_name.is_null() {
        return false;
    }
    // SAFETY: the loader's text.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy();
    let file = path.rsplit('/').next().unwrap_or_default();
    LEFT_ALONE.iter().any(|name| file.starts_with(name))
}

/// Returns the slots of the functions that one object imports and for which there are replacements.
///
/// # Safety
/// The object stays loaded meanwhile.
unsafe fn slots(info: &libc::dl_phdr_info, replacement: &dyn Fn(&CStr) -> Option<*const c_void>) -> Vec<Slot> {
    let mut slots = Vec::new();
    let base = info.dlpi_addr as usize;
    let Some(dynamic) = headers(info).iter().find(|header| header.p_type == libc::PT_DYNAMIC) else { return slots };
    let protected = protected_range(info);
    let end = headers(info).iter().map(|header| header.p_vaddr + header.p_memsz).max().unwrap_or(0) as usize;
    let relocated = if base == 0 { 0 } else { end };
    let mut entry = (base + dynamic.p_vaddr as usize) as *const Dyn;
    let (mut symbols, mut strings, mut hashes, mut plt, mut rela) = (0, 0, 0, (0, 0), (0, 0));
    let mut relative = 0;
    loop {
        // SAFETY: the dynamic section ends with a tag of 0.
        let &Dyn { tag, value } = unsafe { &*entry };
        // glibc has made the addresses absolute; other loaders leave them relative.
        let address = if value < base { base + value } else { value };
        match tag {
            0 => break,
            DT_SYMTAB => symbols = address,
            DT_STRTAB => strings = address,
            DT_JMPREL => plt.0 = address,
            DT_PLTRELSZ => plt.1 = value / size_of::<Rela>(),
            DT_RELA => rela.0 = address,
            DT_RELASZ => rela.1 = value / size_of::<Rela>(),
            DT_RELACOUNT => relative = value,
            DT_GNU_HASH => hashes = address,
            _ => {}
        }
        // SAFETY: as above: this is not the last entry.
        entry = unsafe { entry.add(1) };
    }
    if symbols == 0 || strings == 0 {
        return slots;
    }
    let function_of = |symbol: usize| {
        // SAFETY: callers give the number of a symbol, which has a name.
        let (symbol, name) = unsafe {
            let symbol = &*(symbols as *const libc::Elf64_Sym).add(symbol);
            (symbol, CStr::from_ptr((strings + symbol.st_name as usize) as *const _))
        };
        let is_imported = symbol.st_shndx == 0;
        is_imported.then(|| replacement(name)).flatten()
    };
    // Imports come before the symbols that are in the table of hashes, whose second word is the number of the first of
    // these. If there is none, the word may be anything.
    let imports = match hashes as *const [u32; 4] {
        none if none.is_null() => 0,
        // SAFETY: the table begins with four words.
        table => unsafe { (*table)[1] },
    };
    if imports > 1 && !(1..imports as usize).any(|symbol| function_of(symbol).is_some()) {
        return slots;
    }
    // The first relocations, of which there may be a million, name no symbol.
    let skipped = relative.min(rela.1);
    for (table, skip, count) in [(plt.0, 0, plt.1), (rela.0, skipped, rela.1)] {
        if table == 0 {
            continue;
        }
        // SAFETY: the dynamic section describes a table of so many relocations.
        let relocations = unsafe { slice::from_raw_parts(table as *const Rela, count) };
        for relocation in &relocations[skip..] {
            let (kind, symbol) = (relocation.info as u32, (relocation.info >> 32) as usize);
            if kind != R_X86_64_JUMP_SLOT && kind != R_X86_64_GLOB_DAT {
                continue;
            }
            if let Some(function) = function_of(symbol) {
                let address = base + relocation.offset;
                slots.push(Slot { address, function, is_protected: protected.contains(&address), relocated });
            }
        }
    }
    slots
}

impl Slot {
    /// Writes the address, unless the slot has it or the loader has not finished with the slot.
    ///
    /// # Safety
    /// The object of the slot is loaded.
    unsafe fn write(&self, is_read_only: impl Fn(usize) -> bool) {
        // SAFETY: the slot of an address, which other threads may call through meanwhile.
        let slot = unsafe { AtomicPtr::from_ptr(self.address as *mut *mut c_void) };
        let value = slot.load(Ordering::Relaxed);
        let is_written = value == self.function.cast_mut();
        if is_written || value.addr() < self.relocated || (self.is_protected && !is_read_only(self.address)) {
            return;
        }
        let protect = |protection| {
            // SAFETY: one page of the object's variables, in which the whole slot lies. The loader is done with it.
            unsafe { libc::mprotect(page_of(self.address) as *mut c_void, page_size(), protection) == 0 }
        };
        if !self.is_protected || protect(libc::PROT_READ | libc::PROT_WRITE) {
            slot.store(self.function.cast_mut(), Ordering::Release);
        }
        if self.is_protected {
            protect(libc::PROT_READ);
        }
    }
}

/// Returns the ranges of this process's addresses that are mapped and cannot be written.
fn read_only_ranges() -> Vec<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let ranges = maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let parse = |text| usize::from_str_radix(text, 16).ok();
        rest.starts_with("r-").then_some(parse(start)?..parse(end)?)
    });
    ranges.collect()
}

/// Replaces the addresses of functions that objects have in their variables, such as the tables of a CUDA runtime that has
/// started already. Memory of the heap, and of very large segments, is not searched.
///
/// # Safety
/// Each replacement takes the arguments of its function, and does its work.
pub(super) unsafe fn replace_in_variables(replacements: &[Replacement]) {
    let mut search = VariableSearch { own: own_base(), replacements };
    // SAFETY: the callback gets the search, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit_variables), ptr::from_mut(&mut search).cast()) };
}

/// The address of a function, and of another one for its place.
pub(super) struct Replacement {
    pub(super) function: *const c_void,
    pub(super) by: *const c_void,
}

struct VariableSearch<'a> {
    own: u64,
    replacements: &'a [Replacement],
}

unsafe extern "C" fn visit_variables(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's object, and the search of `replace_in_variables`.
    let (info, search) = unsafe { (&*info, &*search.cast::<VariableSearch<'_>>()) };
    if info.dlpi_addr == search.own || is_left_alone(info) {
        return 0;
    }
    let protected = protected_range(info);
    // The functions lie close together, in the driver: most words are none of them at the first look.
    let functions = search.replacements.iter().map(|it| it.function.cast_mut());
    let (Some(first), Some(last)) = (functions.clone().min(), functions.max()) else { return 0 };
    let writable = headers(info).iter().filter(|it| it.p_type == libc::PT_LOAD && it.p_flags & libc::PF_W != 0);
    for segment in writable.filter(|it| it.p_memsz <= LARGEST_VARIABLES) {
        let start = (info.dlpi_addr + segment.p_vaddr) as usize;
        let words = start.next_multiple_of(WORD)..(start + segment.p_memsz as usize) & !(WORD - 1);
        for word in words.step_by(WORD).filter(|word| !protected.contains(word)) {
            // SAFETY: a word of the object's variables, which other threads may write meanwhile.
            let word = unsafe { AtomicPtr::from_ptr(word as *mut *mut c_void) };
            let value = word.load(Ordering::Relaxed);
            if value < first || value > last {
                continue;
            }
            if let Some(found) = search.replacements.iter().find(|it| it.function == value) {
                // Another thread that has written meanwhile has written another address.
                let _ = word.compare_exchange(value, found.by.cast_mut(), Ordering::Release, Ordering::Relaxed);
            }
        }
    }
    0
}

/// Returns the load address of this object.
fn own_base() -> u64 {
    object_of(own_base as *const c_void).map_or(0, |object| object.base)
}

fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the object's program headers.
    unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

/// Returns the addresses that the loader has made read-only: whole pages, so not the last one if it has variables too.
fn protected_range(info: &libc::dl_phdr_info) -> Range<usize> {
    let base = info.dlpi_addr as usize;
    let relro = headers(info).iter().find(|header| header.p_type == PT_GNU_RELRO);
    relro.map_or(0..0, |it| page_of(base + it.p_vaddr as usize)..page_of(base + (it.p_vaddr + it.p_memsz) as usize))
}

/// Returns the start of the page that an address lies in.
fn page_of(address: usize) -> usize {
    address & !(page_size() - 1)
}
