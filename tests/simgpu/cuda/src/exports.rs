//! Hides functions that a driver of the selected version would not export.
//!
//! One library serves all versions. When it is loaded, before any lookup in it, it removes the functions
//! newer than `SIMGPU_DRIVER` from its own dynamic symbol table: `dlsym` never finds an entry without section
//! and value. References of a program linked with the driver are bound before that.

use std::ffi::{CStr, c_char, c_int, c_void};

use simgpu::Driver;

use crate::names;

#[used]
// SAFETY: the loader calls the functions in this section once; the function reads no argument.
#[unsafe(link_section = ".init_array")]
static BEFORE_ANYTHING: extern "C" fn() = hide_newer;

/// A dynamic symbol, `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// Addresses of tables, from the dynamic section.
#[derive(Default)]
struct Tables {
    symbols: u64,
    strings: u64,
    gnu_hash: u64,
}

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const PAGE: u64 = 4096;

extern "C" fn hide_newer() {
    let version = Driver::of_process().cuda_version;
    let mut newer: Vec<&str> = names::newer_than(version).collect();
    if newer.is_empty() {
        return;
    }
    newer.sort_unstable();
    let mut tables = Tables::default();
    // SAFETY: the callback has the required type and its argument outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(find_tables), (&raw mut tables).cast()) };
    if tables.symbols == 0 || tables.strings == 0 || tables.gnu_hash == 0 {
        eprintln!("simgpu: SIMGPU_DRIVER: the library has no tables");
        return;
    }
    // SAFETY: the tables belong to this library, which stays loaded.
    unsafe { hide(&tables, |name| newer.binary_search(&name).is_ok()) }
}

/// Fills in the tables of the library that contains this function.
extern "C" fn find_tables(info: *mut libc::dl_phdr_info, _size: usize, tables: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid structure with the stated number of headers.
    let (base, headers) = unsafe {
        let info = &*info;
        (
            info.dlpi_addr,
            std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)),
        )
    };
    let here = hide_newer as *const c_void as u64;
    let ours = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD
            && (base + header.p_vaddr..base + header.p_vaddr + header.p_memsz).contains(&here)
    };
    if !headers.iter().any(|header| ours(&header)) {
        return 0;
    }
    let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else {
        return 1;
    };
    // SAFETY: the pointer that was passed to `dl_iterate_phdr`.
    let tables = unsafe { &mut *tables.cast::<Tables>() };
    let mut entry = (base + dynamic.p_vaddr) as *const [i64; 2];
    loop {
        // SAFETY: the dynamic section ends with an entry of zero.
        let [tag, value] = unsafe { entry.read() };
        // Some loaders relocate the offsets of the file to addresses, others do not.
        let value = value.cast_unsigned();
        let address = if value < base { base + value } else { value };
        match tag {
            0 => return 1,
            DT_STRTAB => tables.strings = address,
            DT_SYMTAB => tables.symbols = address,
            DT_GNU_HASH => tables.gnu_hash = address,
            _ => (),
        }
        entry = entry.wrapping_add(1);
    }
}

/// Removes the symbols that `wanted` accepts.
///
/// # Safety
/// The tables must be those of a library that stays loaded.
unsafe fn hide(tables: &Tables, wanted: impl Fn(&str) -> bool) {
    // SAFETY: guaranteed by the caller.
    let count = unsafe { count(tables.gnu_hash) };
    let first = tables.symbols / PAGE * PAGE;
    let end = (tables.symbols + count * size_of::<Symbol>() as u64).next_multiple_of(PAGE);
    let length = usize::try_from(end - first).unwrap_or(0);
    let protect = |protection| {
        // SAFETY: pages of this library's table, which are private to the process.
        unsafe { libc::mprotect(first as *mut c_void, length, protection) == 0 }
    };
    if !protect(libc::PROT_READ | libc::PROT_WRITE) {
        eprintln!("simgpu: SIMGPU_DRIVER: the table of symbols cannot be changed");
        return;
    }
    for index in 0..count {
        let symbol = (tables.symbols as *mut Symbol).wrapping_add(usize::try_from(index).unwrap_or(0));
        // SAFETY: within the table, which is writable now and has no reader while the library is being
        // loaded.
        let symbol = unsafe { &mut *symbol };
        // SAFETY: names are strings in the string table.
        let name = unsafe { CStr::from_ptr((tables.strings + u64::from(symbol.name)) as *const c_char) };
        if symbol.value != 0 && name.to_str().is_ok_and(&wanted) {
            (symbol.section, symbol.value) = (0, 0);
        }
    }
    protect(libc::PROT_READ);
}

/// Returns the number of dynamic symbols: one more than the last of the last chain of the hash table.
///
/// # Safety
/// The address must be that of a GNU hash table.
unsafe fn count(table: u64) -> u64 {
    // SAFETY: guaranteed by the caller; only words of the table are read.
    let word = |at: u64| unsafe { ((table + at) as *const u32).read() };
    let [buckets, first, bloom] = [0, 4, 8].map(|at| u64::from(word(at)));
    let bucket = 16 + bloom * 8;
    let chain = bucket + buckets * 4;
    let last = (0..buckets)
        .map(|index| u64::from(word(bucket + index * 4)))
        .max();
    let Some(mut last) = last.filter(|&last| last >= first) else {
        return first;
    };
    while word(chain + (last - first) * 4) & 1 == 0 {
        last += 1;
    }
    last + 1
}
