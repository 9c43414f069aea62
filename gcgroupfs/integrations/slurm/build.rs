//! Finds the version of Slurm that the plugin is built for, and links it so that it stays loaded.

use std::env;
use std::fs;

/// Slurm's header with the version.
const HEADER: &str = "/usr/include/slurm/slurm_version.h";

/// Version where the header is not installed: 22.05.8, in Slurm's format.
const DEFAULT: u32 = 0x0016_0508;

fn main() {
    println!("cargo:rerun-if-changed={HEADER}");
    println!("cargo:rerun-if-env-changed=SLURM_VERSION_NUMBER");
    let given = env::var("SLURM_VERSION_NUMBER").ok();
    let header = fs::read_to_string(HEADER).ok();
    let word = given.or_else(|| defined(&header?));
    let version = word.and_then(|word| parse(&word)).unwrap_or(DEFAULT);
    println!("cargo:rustc-env=SLURM_VERSION={version}");
    // The plugin's threads run until slurmstepd ends.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-z,nodelete");
    // Unit tests have no Slurm, and call none of its functions.
    println!("cargo:rustc-link-arg=-Wl,--unresolved-symbols=ignore-all");
}

/// Returns the value of `SLURM_VERSION_NUMBER` in the header's text.
fn defined(header: &str) -> Option<String> {
    let lines = header.lines();
    let mut values = lines.filter_map(|line| line.strip_prefix("#define SLURM_VERSION_NUMBER "));
    values.next().map(str::to_owned)
}

fn parse(word: &str) -> Option<u32> {
    let word = word.trim();
    match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}
