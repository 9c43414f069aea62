//! Test that each shared atomic documents its orderings.

extern crate std;

use std::path::{Path, PathBuf};
use std::string::String;
use std::vec::Vec;
use std::{fs, println, vec};

/// Returns the name and the documentation of each atomic field in a source text, without reserved ones.
fn atomic_fields(source: &str) -> Vec<(&str, String)> {
    let mut doc = String::new();
    let mut fields = Vec::new();
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("    /// ") {
            doc.push_str(text);
            doc.push(' ');
            continue;
        }
        if line.trim() == "///" {
            continue;
        }
        let doc = std::mem::take(&mut doc);
        let Some(field) = line
            .strip_prefix("    ")
            .filter(|field| !field.starts_with(' ') && field.ends_with(','))
        else {
            continue;
        };
        let field = field.strip_prefix("pub ").unwrap_or(field);
        if let Some((name, ty)) = field.split_once(": ")
            && ty.contains("Atomic")
            && !ty.starts_with('&')
            && !name.starts_with("reserved")
        {
            fields.push((name, doc));
        }
    }
    fields
}

fn is_documented(doc: &str) -> bool {
    let ordering = doc.split_once("Ordering: ").map_or("", |(_, ordering)| ordering);
    let orderings = ["`Relaxed`", "`Acquire`", "`Release`", "`SeqCst`"];
    // Or by reference to another field.
    orderings.iter().any(|one| ordering.contains(one)) || ordering.starts_with("as ")
}

/// Returns the source files below a directory, without this one.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| match path.is_dir() {
        true => files_below(&path),
        false => vec![path],
    });
    files.filter(|path| !path.ends_with("orderings.rs")).collect()
}

#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn every_atomic_field_documents_its_orderings() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut nr_fields = 0;
    let mut missing = 0;
    for path in files_below(&source) {
        for (name, doc) in atomic_fields(&fs::read_to_string(&path).unwrap()) {
            nr_fields += 1;
            if !is_documented(&doc) {
                println!("{}: {name} does not document its orderings", path.display());
                missing += 1;
            }
        }
    }
    assert_eq!(missing, 0);
    assert!(nr_fields > 90, "{nr_fields}: fields are not recognised");
}

#[test]
fn field_without_ordering_is_found() {
    let source = "\
pub struct Block {
    /// Counts things.
    pub first: AtomicU32,
    /// Counts things.
    ///
    /// Ordering: `Relaxed`, a count.
    pub second: [AtomicU64; 2],
    third: AtomicU64,
    reserved: AtomicU64,
}
fn charge(
    current: &AtomicU64,
";
    let fields = atomic_fields(source);
    let documented = fields.iter().map(|(name, doc)| (*name, is_documented(doc)));
    assert_eq!(
        documented.collect::<Vec<_>>(),
        [("first", false), ("second", true), ("third", false)]
    );
}
