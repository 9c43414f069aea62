//! The unwinder: that of libgcc_s.so.1 where the system has it, otherwise a copy in this library.
//!
//! A thread is unwound by one unwinder only, whose contexts no other one understands: pthread_cancel(3) and
//! most programs use libgcc_s. But there are images of containers without it, and a library that needs it
//! cannot be loaded there. `scripts/build.sh` links the copy, and links calls of `_Unwind_NAME`, those of
//! Rust's standard library too, to `__wrap__Unwind_NAME`, which is defined here (`--wrap` of ld(1), options
//! in `../../imports.options`). In any other build libgcc_s is linked, and these definitions are unused.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use super::library;
use crate::arch;
use crate::sys::imports::wrap_text;

macro_rules! unwinder {
    ($($name:ident)*) => {
        /// Functions of the unwinder.
        const NAMES: &[&CStr] = &[$( library::c_name!($name) ),*];

        // The addresses of the functions, at first those of the copy. Without a copy they are 0.
        core::arch::global_asm!(
            ".data",
            ".balign 8",
            ".hidden gcgroup_unwinder",
            ".globl gcgroup_unwinder",
            "gcgroup_unwinder:",
            $(
                concat!(".weak __real_", stringify!($name)),
                concat!("gcgroup", stringify!($name), ": .quad __real_", stringify!($name)),
            )*
            ".text",
            $( wrap_text!($name), arch::jump_text!($name), )*
        );
    };
}

unwinder! {
    _Unwind_Backtrace _Unwind_DeleteException _Unwind_GetDataRelBase _Unwind_GetIP _Unwind_GetIPInfo
    _Unwind_GetLanguageSpecificData _Unwind_GetRegionStart _Unwind_GetTextRelBase _Unwind_RaiseException
    _Unwind_Resume _Unwind_SetGR _Unwind_SetIP
}

unsafe extern "C" {
    static gcgroup_unwinder: [AtomicPtr<c_void>; NAMES.len()];
}

/// Takes the functions of libgcc_s, if all are there.
pub(crate) fn prepare() {
    let Some(found) = library::functions(c"libgcc_s.so.1", NAMES) else {
        return;
    };
    // SAFETY: the table above, of as many words.
    let table = unsafe { &gcgroup_unwinder };
    for (place, address) in table.iter().zip(found) {
        place.store(address, Relaxed);
    }
}

/// `struct dl_find_object` of glibc 2.35.
#[repr(C)]
struct Found {
    flags: u64,
    start: u64,
    end: u64,
    link_map: u64,
    /// Address of the segment `PT_GNU_EH_FRAME`.
    eh_frame: u64,
    reserved: [u64; 7],
}

struct Search {
    address: u64,
    found: *mut Found,
}

core::arch::global_asm!(
    ".text",
    ".hidden __wrap__dl_find_object",
    ".globl __wrap__dl_find_object",
    "__wrap__dl_find_object:",
    arch::go_text!(),
    sym find_object
);

/// Does what `_dl_find_object` of glibc 2.35 does, which the copy calls: finds the library that contains
/// `address`, and where its table of frames is. Returns 0, or -1 if there is none.
unsafe extern "C" fn find_object(address: u64, found: *mut Found) -> c_int {
    let mut search = Search { address, found };
    // SAFETY: the function and the argument that it expects, which outlives the call.
    let answer = unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    if answer == 1 { 0 } else { -1 }
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the C library's own description, and the argument above.
    let (info, search) = unsafe { (&*info, &*search.cast::<Search>()) };
    // SAFETY: the library's program headers, as many as are said.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let range = |header: &libc::Elf64_Phdr| {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
        start..start.wrapping_add(header.p_memsz)
    };
    let code = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD)
        .map(range)
        .find(|range| range.contains(&search.address));
    let frames = headers
        .iter()
        .find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
    let (Some(code), Some(frames)) = (code, frames) else {
        return 0;
    };
    // SAFETY: the caller of `find_object` gives room for a result.
    unsafe {
        search.found.write(Found {
            flags: 0,
            start: code.start,
            end: code.end,
            link_map: 0,
            eh_frame: range(frames).start,
            reserved: [0; 7],
        });
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_frames_of_a_function_is_found() {
        let mut found = std::mem::MaybeUninit::<Found>::uninit();
        let here = table_of_frames_of_a_function_is_found as *const () as u64;
        // SAFETY: room for a result.
        assert_eq!(unsafe { find_object(here, found.as_mut_ptr()) }, 0);
        // SAFETY: written, since the call succeeded.
        let found = unsafe { found.assume_init() };
        assert!((found.start..found.end).contains(&here));
        let table = std::ptr::with_exposed_provenance::<u8>(usize::try_from(found.eh_frame).unwrap());
        // SAFETY: the first byte of the segment, which is mapped: its version.
        assert_eq!(unsafe { *table }, 1);
        // SAFETY: nothing is written.
        assert_eq!(unsafe { find_object(8, std::ptr::null_mut()) }, -1);
    }
}
