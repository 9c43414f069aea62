//! Errors of requests to the tree, and their errnos.

use std::borrow::Cow;

/// Error of a request; one variant for each reason that a caller could act on. The text goes into the log and
/// to clients of the socket; clients of the mount see the errno.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no such file or directory")]
    NotFound,
    #[error("the process or the group is gone")]
    Gone,
    #[error("the path's target is gone; resolve the path again")]
    Stale,
    #[error("no such process is governed")]
    NoProcess,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("the tree cannot be changed this way")]
    FixedShape,
    #[error("it exists already")]
    Exists,
    #[error("it has processes or groups in it")]
    NotEmpty,
    #[error("too many groups, or too deep")]
    TooMany,
    #[error("too many open files")]
    TooManyOpen,
    #[error("invalid group name: {0}")]
    BadName(&'static str),
    #[error("the name is too long")]
    LongName,
    #[error("not allowed: {0}")]
    NotYours(&'static str),
    #[error("files cannot be created here")]
    NoCreate,
    #[error("the file does not permit this access")]
    WrongAccess,
    #[error("beyond the bound that root has set: {0}")]
    BeyondRoot(&'static str),
    #[error("expected {expected}, got {got:?}")]
    BadValue { expected: &'static str, got: String },
    #[error("out of range: expected {expected}, got {got:?}")]
    OutOfRange { expected: &'static str, got: String },
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    #[error("longer than {0} bytes")]
    TooLong(usize),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns the error for a value in the wrong format; a long value is abridged.
    pub fn bad(expected: &'static str, got: &str) -> Self {
        Self::BadValue {
            expected,
            got: abridged(got).into_owned(),
        }
    }

    /// Returns the error for a number that the file does not accept.
    pub fn range(expected: &'static str, got: &str) -> Self {
        Self::OutOfRange {
            expected,
            got: abridged(got).into_owned(),
        }
    }

    /// Returns the errno. There is no catch-all arm, so a new variant does not compile without one.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound => libc::ENOENT,
            // As files of a removed cgroup.
            Self::Gone => libc::ENODEV,
            // The kernel then resolves the path again without its cache (path_lookup, fs/namei.c).
            Self::Stale => libc::ESTALE,
            Self::NoProcess => libc::ESRCH,
            Self::Exists => libc::EEXIST,
            Self::NotEmpty => libc::EBUSY,
            // As with cgroup.max.depth and cgroup.max.descendants.
            Self::TooMany => libc::EAGAIN,
            Self::TooManyOpen => libc::EMFILE,
            Self::BadName(_) => libc::EINVAL,
            Self::LongName => libc::ENAMETOOLONG,
            Self::NotYours(_) => libc::EPERM,
            Self::NotDirectory => libc::ENOTDIR,
            Self::IsDirectory => libc::EISDIR,
            // As cgroup v2 for unlink, rename, link and the like.
            Self::FixedShape => libc::EPERM,
            // kernfs has no create operation, for which the kernel returns EACCES.
            Self::NoCreate => libc::EACCES,
            Self::WrongAccess => libc::EACCES,
            Self::BeyondRoot(_) => libc::EPERM,
            Self::BadValue { .. } => libc::EINVAL,
            Self::OutOfRange { .. } => libc::ERANGE,
            Self::NotSupported(_) => libc::EOPNOTSUPP,
            Self::TooLong(_) => libc::E2BIG,
        }
    }
}

fn abridged(text: &str) -> Cow<'_, str> {
    const LONGEST: usize = 64;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_long_value_is_abridged() {
        let error = Error::bad("a number", &"x".repeat(4000)).to_string();
        assert!(error.len() < 200, "{error}");
    }
}
