//! Directories of a mount.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Returns every group below a directory, parents first.
pub(super) fn groups(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for name in names(path)? {
        // The directories of processes and GPUs have numeric names.
        if name.to_string_lossy().starts_with("group") {
            let group = path.join(name);
            // The group may have been removed meanwhile.
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
