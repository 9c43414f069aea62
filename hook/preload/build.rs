//! Generates the list of exported names from the hook's table, so that there is only one list of hooked
//! functions.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

#[path = "../names.rs"]
mod hooked;

fn main() {
    // Cargo compiles this script anew when the table changes; it reads no other file.
    println!("cargo::rerun-if-changed=build.rs");
    // The library loads beside any C library, so it is linked with none.
    println!("cargo::rustc-link-arg-cdylib=-nostdlib");
    println!("cargo::rustc-link-arg-cdylib=-nostartfiles");
    println!("cargo::rustc-link-arg-cdylib=-Wl,-soname,libgcgroup.so");
    // As few mappings as possible, since every exec on the machine pays for each: no separate segment for
    // constants, and none to protect after relocation (it would hold only the stubs' pointers, which change).
    // One hash table suffices.
    let no_segment = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        // Rust links with lld.
        Ok("x86_64") => "--no-rosegment",
        _ => "-z,noseparate-code",
    };
    println!("cargo::rustc-link-arg-cdylib=-Wl,{no_segment},-z,norelro,-z,now,-z,noexecstack");
    println!("cargo::rustc-link-arg-cdylib=-Wl,--hash-style=gnu,--build-id=none");

    let mut names = hooked::NAMES.to_vec();
    names.sort_unstable();

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("names.rs"), source(&names)).expect("OUT_DIR can be written");
}

/// Returns source text: all names concatenated, the offset of each, and a stub for each.
fn source(names: &[&str]) -> String {
    let mut text = String::from("/// Sorted, each ended by a zero.\nstatic NAMES: &[u8] = b\"");
    let mut starts = Vec::new();
    let mut at = 0;
    for name in names {
        starts.push(at);
        at += name.len() + 1;
        let _ = write!(text, "{name}\\0");
    }
    let _ = writeln!(text, "\";\n\n/// Where in `NAMES` each name begins.");
    let _ = writeln!(text, "static STARTS: [u16; {}] = {starts:?};\n", names.len());
    let _ = writeln!(text, "mod stubs {{");
    for (index, name) in names.iter().enumerate() {
        let _ = writeln!(text, "    crate::arch::stub!({name}, {index});");
    }
    text + "}\n"
}
