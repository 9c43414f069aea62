//! A file of metrics for node_exporter's textfile collector.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use tempfile::NamedTempFile;

use crate::metrics::{open_metrics, prometheus_text};
use crate::sampler::{FRESH, Sampler};

/// Maximum number of further reads, a second apart, until the GPUs are sampled.
const MAX_READS: usize = 5;

/// Replaces the file by the present metrics with one rename, so that a reader never sees a part. Without a
/// daemon, the file tells just that. Takes up to five
/// seconds.
///
/// # Errors
/// The file cannot be written; the old one is unchanged.
pub(crate) fn write(path: &Path, sampler: &Sampler) -> anyhow::Result<()> {
    let mut snapshot = sampler.with(|state| state.snapshot.clone());
    for _ in 0..MAX_READS {
        // The first read makes the daemon sample the GPUs.
        if snapshot.as_ref().is_none_or(|snapshot| snapshot.is_sampled()) {
            break;
        }
        std::thread::sleep(FRESH);
        snapshot = sampler.with(|state| state.snapshot.clone());
    }
    let text = prometheus_text(&open_metrics(snapshot.as_deref())?);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let written = || {
        let mut file = NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
        file.write_all(text.as_bytes())?;
        file.as_file().set_permissions(Permissions::from_mode(0o644))?;
        file.persist(path)?;
        Ok::<_, std::io::Error>(())
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}
