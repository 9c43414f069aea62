//! The file beside the socket that says that programs must be governed, also while no daemon runs: hooks look
//! for it when no daemon answers.

use std::fs;
use std::path::Path;

use super::paths::is_preloaded_everywhere;
use gcgroup_abi::REQUIRED_FILE;
use gcgroupfs_model::rules::Rules;
use tracing::warn;

/// Text of the file, which tells it from those of cluster engines.
const TEXT: &str = "gcgroupfs: rules of the configuration bound programs, so while no daemon answers, CUDA is \
                    refused to new ones.\n";

/// Makes the file if a rule is `required`, or if there are rules and every program loads the library;
/// otherwise removes it, unless an engine has made it.
pub(super) fn keep(socket: &Path, rules: &Rules) {
    let file = socket.with_file_name(REQUIRED_FILE);
    let done = if rules.any_requires() || !rules.is_empty() && is_preloaded_everywhere() {
        fs::write(&file, TEXT)
    } else {
        match fs::read_to_string(&file) {
            Ok(text) if text == TEXT => fs::remove_file(&file),
            _ => Ok(()),
        }
    };
    if let Err(error) = done {
        warn!(
            "{}: {error}: programs that start without a daemon are not bounded",
            file.display()
        );
    }
}
