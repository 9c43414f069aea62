//! Names the library as the driver's is named, and writes what follows from the lists of the driver's
//! symbols: a stub for every symbol that no source file implements, and the table that `cuGetProcAddress`
//! answers from.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
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
    for input in [SYMBOLS, NAMES, "src"] {
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

    let mut sources = Vec::new();
    collect(Path::new("src"), &mut sources)?;
    let mut implemented = BTreeSet::new();
    for source in sources {
        exported(&fs::read_to_string(source)?, &mut implemented);
    }
    if let Some(unknown) = implemented.iter().find(|name| !symbols.contains(name.as_str())) {
        panic!("{unknown} is implemented, but the driver has no such symbol");
    }

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let stubs: String = symbols
        .iter()
        .filter(|name| !implemented.contains(**name))
        .map(|name| format!("    {name},\n"))
        .collect();
    fs::write(out.join("stubs.rs"), format!("stubs! {{\n{stubs}}}\n"))?;
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

fn collect(directory: &Path, into: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
    Ok(())
}

/// The driver's symbols that a source file implements: `fn cuName(`, and `twin cuName` for a row's second
/// symbol.
fn exported(source: &str, into: &mut BTreeSet<String>) {
    for line in source.lines() {
        let code = line.split("//").next().unwrap_or_default();
        for (marker, ends) in [("fn ", "(<"), ("twin ", "")] {
            for (at, _) in code.match_indices(marker) {
                let begins = code[..at]
                    .chars()
                    .next_back()
                    .is_none_or(|c| !c.is_alphanumeric() && c != '_');
                let rest = &code[at + marker.len()..];
                let end = rest
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(rest.len());
                let (name, after) = rest.split_at(end);
                let is_driver =
                    name.starts_with("cu") && name[2..].starts_with(|c: char| c.is_ascii_uppercase());
                if begins && is_driver && (ends.is_empty() || after.starts_with(|c| ends.contains(c))) {
                    into.insert(name.to_owned());
                }
            }
        }
    }
}
