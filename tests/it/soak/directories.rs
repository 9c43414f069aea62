//! The directories of a mount.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Every group below a directory, parents first.
pub(super) fn groups(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for name in names(path)? {
        // Processes and GPUs have numbers.
        if name.to_string_lossy().starts_with("group") {
            let group = path.join(name);
            // It may have gone since.
            let below = groups(&group).unwrap_or_default();
            found.push(group);
            found.extend(below);
        }
    }
    Ok(found)
}

pub(super) fn names(path: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
}
