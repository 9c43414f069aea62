//! Names the library as the driver's is named, and lists NVML's functions: their export, and a stub for each.

use std::path::PathBuf;
use std::{env, fs, io};

/// Every function of the library.
const SYMBOLS: &str = "../../data/libnvidia-ml-12.9.symbols";

fn main() -> io::Result<()> {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo::rerun-if-changed={SYMBOLS}");

    let symbols = fs::read_to_string(SYMBOLS)?;
    let listed = |row: fn(&str) -> String| symbols.lines().map(row).collect::<String>();
    let stubs = listed(|name| format!("    {name},\n"));
    let exports = listed(|name| format!("    {name:?} {name},\n"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(
        out.join("stubs.rs"),
        format!("stubs! {{\n{stubs}}}\nsimgpu::exports! {{\n{exports}}}\n"),
    )
}
