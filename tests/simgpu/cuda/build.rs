//! Names the library as the driver's is named, and writes what follows from the lists of the driver's
//! symbols: their export, a stub for each, and the table that `cuGetProcAddress` answers from.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{env, fs, io};

/// Every symbol of the driver.
const SYMBOLS: &str = "../../data/libcuda-13.5.symbols";
/// Names that `cuGetProcAddress` answers; the driver exports these symbols too.
const NAMES: &str = "../data/cuda-names.tsv";

fn main() -> io::Result<()> {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its threads outlive a dlclose(3), as the real driver does.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The table must hold our own functions, also where a preloaded library exports the same names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    for input in [SYMBOLS, NAMES] {
        println!("cargo::rerun-if-changed={input}");
    }

    let rows = fs::read_to_string(NAMES)?;
    let rows: Vec<[&str; 4]> = rows
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut fields = line.split('\t');
            std::array::from_fn(|_| {
                fields
                    .next()
                    .unwrap_or_else(|| panic!("{NAMES}: short row: {line}"))
            })
        })
        .collect();
    let symbols = fs::read_to_string(SYMBOLS)?;
    let symbols: BTreeSet<&str> = symbols
        .lines()
        .chain(rows.iter().map(|[.., symbol]| *symbol))
        .collect();

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let listed = |row: fn(&str) -> String| symbols.iter().map(|name| row(name)).collect::<String>();
    let stubs = listed(|name| format!("    {name},\n"));
    let exports = listed(|name| format!("    {name:?} {name},\n"));
    fs::write(
        out.join("stubs.rs"),
        format!("stubs! {{\n{stubs}}}\nsimgpu::exports! {{\n{exports}}}\n"),
    )?;
    let table: String = rows
        .iter()
        .map(|[name, version, flavour, symbol]| {
            let per_thread = *flavour != "legacy";
            format!("    {name:?}, {version}, {per_thread}, {symbol};\n")
        })
        .collect();
    let symbols: String = rows
        .iter()
        .map(|[.., symbol]| format!("    {symbol},\n"))
        .collect();
    fs::write(
        out.join("names.rs"),
        format!("symbols! {{\n{symbols}}}\nnames! {{\n{table}}}\n"),
    )
}
