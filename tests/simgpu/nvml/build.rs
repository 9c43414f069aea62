//! Names the library as the driver's is named, and writes a stub for every NVML function that no source file
//! implements.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{env, fs, io};

/// Every function of the library.
const SYMBOLS: &str = "../../data/libnvidia-ml-12.9.symbols";

fn main() -> io::Result<()> {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo::rerun-if-changed={SYMBOLS}");
    println!("cargo::rerun-if-changed=src");

    let mut implemented = BTreeSet::new();
    for entry in fs::read_dir("src")? {
        exported(&fs::read_to_string(entry?.path())?, &mut implemented);
    }
    let symbols = fs::read_to_string(SYMBOLS)?;
    let symbols: BTreeSet<&str> = symbols.lines().collect();
    if let Some(unknown) = implemented.iter().find(|name| !symbols.contains(name.as_str())) {
        panic!("{unknown} is implemented, but NVML has no such function");
    }
    let stubs: String = symbols
        .iter()
        .filter(|name| !implemented.contains(**name))
        .map(|name| format!("    {name},\n"))
        .collect();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("stubs.rs"), format!("stubs! {{\n{stubs}}}\n"))
}

/// The functions that a source file implements: `fn nvmlName`, and `| nvmlName` for a row's further names.
fn exported(source: &str, into: &mut BTreeSet<String>) {
    for line in source.lines() {
        let code = line.split("//").next().unwrap_or_default();
        for marker in ["fn nvml", "| nvml"] {
            for (at, _) in code.match_indices(marker) {
                let rest = &code[at + 2..];
                let rest = rest.trim_start();
                let end = rest
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(rest.len());
                into.insert(rest[..end].to_owned());
            }
        }
    }
}
