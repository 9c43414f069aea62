//! Symbols of loaded objects, read from the tables that the dynamic linker uses.
//!
//! Reads only what the loader has mapped and keeps mapped while the C library's `dl_iterate_phdr` runs. That
//! function is read from the C library's own symbol table, since programs and sanitizers may define one,
//! which may call `dlsym` or may not be ready yet.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::arch;

/// `Elf64_Phdr`.
#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: usize,
    physical: u64,
    file_size: u64,
    memory_size: usize,
    align: u64,
}

/// The beginning of `struct dl_phdr_info`.
#[repr(C)]
struct Info {
    base: usize,
    name: *const c_char,
    headers: *const ProgramHeader,
    nr_headers: u16,
}

/// `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: u64,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_VERSYM: i64 = 0x6fff_fff0;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const STT_TLS: u8 = 6;
const STT_GNU_IFUNC: u8 = 10;
/// Flag in a symbol's version: not found by unversioned look-ups.
const VERSYM_HIDDEN: u16 = 0x8000;

type Iterate = unsafe extern "C" fn(
    unsafe extern "C" fn(*const Info, usize, *mut c_void) -> c_int,
    *mut c_void,
) -> c_int;

/// A loaded object, valid while it is being visited.
pub(crate) struct Object {
    info: *const Info,
}

/// Visits the loaded objects in load order until `visit` returns `true`.
pub(crate) fn visit_objects<F: FnMut(&Object) -> bool>(mut visit: F) {
    unsafe extern "C" fn each<F: FnMut(&Object) -> bool>(
        info: *const Info,
        _: usize,
        visit: *mut c_void,
    ) -> c_int {
        // SAFETY: the closure passed below, which is not used elsewhere meanwhile.
        let visit = unsafe { &mut *visit.cast::<F>() };
        visit(&Object { info }).into()
    }
    if let Some(iterate) = iterate() {
        // SAFETY: it calls back while `visit` is borrowed here, and not later.
        unsafe { iterate(each::<F>, (&raw mut visit).cast()) };
    }
}

/// Returns the C library's `dl_iterate_phdr`; `None` if there is no C library.
fn iterate() -> Option<Iterate> {
    static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut address = KNOWN.load(Relaxed);
    if address.is_null() {
        address = bootstrap(c"dl_iterate_phdr".as_ptr())?;
        KNOWN.store(address, Relaxed);
    }
    // SAFETY: the C library's function of this name, not null.
    Some(unsafe { core::mem::transmute::<*mut c_void, Iterate>(address) })
}

/// Finds a function of the C library in the loader's list of objects, without its lock. The C library is
/// among the objects that are loaded at program start, which come first and stay.
fn bootstrap(name: *const c_char) -> Option<*mut c_void> {
    // SAFETY: static, and filled in by the loader.
    let links = unsafe { &*arch::links() };
    // SAFETY: null, or musl's pointer.
    let pointed = || unsafe { links.debug_pointer.as_ref().and_then(|debug| debug.as_ref()) };
    // SAFETY: null, or glibc's structure.
    let debug = unsafe { links.debug.as_ref() }.or_else(pointed)?;
    let mut map = debug.first;
    // SAFETY: null at the end of the list, or an object of it.
    while let Some(object) = unsafe { map.as_ref() } {
        if is_c_library(object.file)
            && let Some(found) = Tables::of(object.base, object.dynamic).and_then(|tables| tables.find(name))
        {
            return Some(found);
        }
        map = object.next;
    }
    None
}

/// Returns whether an object of this file name belongs to the C library: glibc (before 2.34 in two files) or
/// musl.
fn is_c_library(file: *const c_char) -> bool {
    !file.is_null()
        && [&b"libc."[..], b"libdl.", b"ld-musl-"]
            .iter()
            .any(|start| is_named(file, start))
}

/// Returns whether the file name in the path begins with `start`.
pub(crate) fn is_named(path: *const c_char, start: &[u8]) -> bool {
    let directory = bytes(path).enumerate().filter(|(_, byte)| *byte == b'/').last();
    let name = bytes(path).skip(directory.map_or(0, |(slash, _)| slash + 1));
    name.take(start.len()).eq(start.iter().copied())
}

impl Object {
    fn info(&self) -> &Info {
        // SAFETY: the C library's, valid during the visit.
        unsafe { &*self.info }
    }

    fn headers(&self) -> &[ProgramHeader] {
        let info = self.info();
        if info.headers.is_null() {
            return &[];
        }
        // SAFETY: as many headers as the C library says.
        unsafe { core::slice::from_raw_parts(info.headers, info.nr_headers.into()) }
    }

    /// Returns the file that the object was loaded from, as the loader names it.
    pub(crate) fn file(&self) -> *const c_char {
        self.info().name
    }

    /// Returns whether `address` is in memory of the object.
    pub(crate) fn contains(&self, address: usize) -> bool {
        let base = self.info().base;
        self.headers().iter().any(|header| {
            let from = base.wrapping_add(header.address);
            header.kind == PT_LOAD && address.wrapping_sub(from) < header.memory_size
        })
    }

    /// Returns whether the object belongs to the C library.
    pub(crate) fn is_c_library(&self) -> bool {
        is_c_library(self.file())
    }

    /// Returns the address of the object's definition of `name`.
    pub(crate) fn find(&self, name: *const c_char) -> Option<*mut c_void> {
        let base = self.info().base;
        let dynamic = self.headers().iter().find(|header| header.kind == PT_DYNAMIC)?;
        Tables::of(base, base.wrapping_add(dynamic.address))?.find(name)
    }
}

/// The parts of an object's dynamic section that a look-up needs.
struct Tables {
    base: usize,
    strings: *const c_char,
    symbols: *const Symbol,
    versions: *const u16,
    hash: *const u32,
    gnu_hash: *const u32,
}

impl Tables {
    /// Returns the tables of the object at `base` with the dynamic section at `dynamic`.
    fn of(base: usize, dynamic: usize) -> Option<Self> {
        let mut entry = at::<Dynamic>(dynamic);
        let (mut strings, mut symbols, mut versions, mut hash, mut gnu_hash) = (0, 0, 0, 0, 0);
        loop {
            // SAFETY: the dynamic section ends with an entry of tag zero.
            let Dynamic { tag, value } = unsafe { entry.read() };
            match tag {
                0 => break,
                DT_STRTAB => strings = value,
                DT_SYMTAB => symbols = value,
                DT_VERSYM => versions = value,
                DT_HASH => hash = value,
                DT_GNU_HASH => gnu_hash = value,
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        // Some C libraries (usually glibc) have made the addresses absolute, others (musl) have not.
        let place = |value: usize| match value {
            0 => 0,
            absolute if absolute >= base => absolute,
            relative => base.wrapping_add(relative),
        };
        (strings != 0 && symbols != 0).then(|| Self {
            base,
            strings: at(place(strings)),
            symbols: at(place(symbols)),
            versions: at(place(versions)),
            hash: at(place(hash)),
            gnu_hash: at(place(gnu_hash)),
        })
    }

    fn find(&self, name: *const c_char) -> Option<*mut c_void> {
        let index = if self.gnu_hash.is_null() {
            self.by_hash(name)?
        } else {
            self.by_gnu_hash(name)?
        };
        // SAFETY: the hash table gives indices into the symbol table.
        let symbol = unsafe { &*self.symbols.wrapping_add(index) };
        let address = at::<c_void>(self.base.wrapping_add(symbol.value)).cast_mut();
        if symbol.info & 15 != STT_GNU_IFUNC {
            return Some(address);
        }
        // SAFETY: an indirect function's value is a function that chooses the address.
        let choose = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(address) };
        Some(choose())
    }

    /// Returns whether symbol `index` defines `name` and can be found by look-ups without a version.
    fn is_definition(&self, index: usize, name: *const c_char) -> bool {
        // SAFETY: as in `find`.
        let symbol = unsafe { &*self.symbols.wrapping_add(index) };
        let is_hidden = !self.versions.is_null()
            // SAFETY: one version for each symbol.
            && unsafe { self.versions.wrapping_add(index).read() } & VERSYM_HIDDEN != 0;
        symbol.section != 0
            && symbol.info & 15 != STT_TLS
            && symbol.info >> 4 != 0
            && !is_hidden
            && is_same(self.strings.wrapping_add(symbol.name as usize), name)
    }

    fn by_gnu_hash(&self, name: *const c_char) -> Option<usize> {
        let word = |index: usize| {
            // SAFETY: inside the table, whose first words say how long its parts are.
            unsafe { self.gnu_hash.wrapping_add(index).read() }
        };
        let (nr_buckets, first, nr_bloom, shift) = (word(0), word(1), word(2) as usize, word(3));
        let wanted = gnu_hash(name);
        if nr_buckets == 0 || nr_bloom == 0 {
            return None;
        }
        let bloom = (wanted as usize / 64) & (nr_bloom - 1);
        let filter = u64::from(word(4 + 2 * bloom)) | u64::from(word(5 + 2 * bloom)) << 32;
        if filter >> (wanted & 63) & filter >> (wanted >> (shift & 31) & 63) & 1 == 0 {
            return None;
        }
        let buckets = 4 + 2 * nr_bloom;
        let mut index = word(buckets + (wanted % nr_buckets) as usize);
        if index < first {
            return None;
        }
        let chains = buckets + nr_buckets as usize;
        loop {
            let hash = word(chains + (index - first) as usize);
            if hash | 1 == wanted | 1 && self.is_definition(index as usize, name) {
                return Some(index as usize);
            }
            if hash & 1 != 0 {
                return None;
            }
            index += 1;
        }
    }

    fn by_hash(&self, name: *const c_char) -> Option<usize> {
        if self.hash.is_null() {
            return None;
        }
        let word = |index: usize| {
            // SAFETY: inside the table, whose first words say how long its parts are.
            unsafe { self.hash.wrapping_add(index).read() }
        };
        let nr_buckets = word(0);
        if nr_buckets == 0 {
            return None;
        }
        let mut index = word(2 + (sysv_hash(name) % nr_buckets) as usize) as usize;
        while index != 0 {
            if self.is_definition(index, name) {
                return Some(index);
            }
            index = word(2 + nr_buckets as usize + index) as usize;
        }
        None
    }
}

fn at<T>(address: usize) -> *const T {
    core::ptr::with_exposed_provenance(address)
}

/// Returns the bytes of a C string, without the terminator.
pub(crate) fn bytes(text: *const c_char) -> impl Iterator<Item = u8> {
    (0..)
        .map(move |index| {
            // SAFETY: reads no further than the zero.
            unsafe { text.wrapping_add(index).cast::<u8>().read() }
        })
        .take_while(|byte| *byte != 0)
}

pub(crate) fn is_same(one: *const c_char, other: *const c_char) -> bool {
    bytes(one).eq(bytes(other))
}

fn gnu_hash(name: *const c_char) -> u32 {
    bytes(name).fold(5381, |hash: u32, byte| {
        hash.wrapping_mul(33).wrapping_add(byte.into())
    })
}

fn sysv_hash(name: *const c_char) -> u32 {
    bytes(name).fold(0, |hash: u32, byte| {
        let hash = (hash << 4).wrapping_add(byte.into());
        let high = hash & 0xf000_0000;
        (hash ^ high >> 24) & !high
    })
}
