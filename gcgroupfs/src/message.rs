//! Messages on standard error. They may contain what users and processes chose, which must not control a
//! terminal.

use std::fmt;
use std::io::{self, Write as _};

use gcgroupfs_model::text::printable;

/// Prints a message as `eprintln!` does, with control characters escaped.
macro_rules! complain {
    ($($text:tt)*) => {
        $crate::message::print(format_args!($($text)*))
    };
}

pub(crate) use complain;

pub(crate) fn print(text: fmt::Arguments<'_>) {
    let text = text.to_string() + "\n";
    // There is nobody to tell that this has failed.
    let _ = io::stderr().lock().write_all(printable(&text).as_bytes());
}

/// Prints an error of the command line's syntax, or help, and exits.
pub(crate) fn exit(error: &clap::Error) -> ! {
    let plain = error.render().to_string();
    let shown = printable(&plain);
    if !error.use_stderr() || shown == plain {
        error.exit()
    }
    let _ = io::stderr().lock().write_all(shown.as_bytes());
    std::process::exit(error.exit_code())
}

#[cfg(test)]
mod tests {
    /// Compares with the sources, since a message that is printed otherwise is not escaped.
    #[test]
    fn nothing_else_prints_messages() {
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let mut directories = vec![std::path::PathBuf::from(sources)];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    assert!(!text.contains(concat!("eprint", "ln!(")), "{}", path.display());
                }
            }
        }
    }
}
