//! What can be wrong with a request to the tree, and which errno says so.

use std::borrow::Cow;

/// One variant for each reason that a caller could act on. The text goes into the log and to clients of the
/// socket; clients of the mount see the errno.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no such file or directory")]
    NotFound,
    #[error("the process or the group is gone")]
    Gone,
    #[error("what the path led to is gone: it may lead to another now")]
    Stale,
    #[error("no such process is governed")]
    NoProcess,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("the tree's shape cannot be changed this way")]
    FixedShape,
    #[error("there is one already")]
    Exists,
    #[error("there are processes or groups in it")]
    NotEmpty,
    #[error("too many groups, or too deep")]
    TooMany,
    #[error("too many open files")]
    TooManyOpen,
    #[error("no name for a group: {0}")]
    BadName(&'static str),
    #[error("the name is too long")]
    LongName,
    #[error("not allowed: {0}")]
    NotYours(&'static str),
    #[error("files cannot be created here")]
    NoCreate,
    #[error("the file is not open to this")]
    WrongAccess,
    #[error("would go beyond what root has set: {0}")]
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
    /// A value that is not of the file's format. Of an overlong one the beginning is kept.
    pub fn bad(expected: &'static str, got: &str) -> Self {
        Self::BadValue {
            expected,
            got: abridged(got).into_owned(),
        }
    }

    /// A number of the right format that the file cannot hold.
    pub fn range(expected: &'static str, got: &str) -> Self {
        Self::OutOfRange {
            expected,
            got: abridged(got).into_owned(),
        }
    }

    /// No catch-all arm: a new variant does not compile until it has an errno.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound => libc::ENOENT,
            // As a removed cgroup's files answer.
            Self::Gone => libc::ENODEV,
            // Who walks a path for a program then walks it anew, without what is remembered (path_lookup, fs/namei.c).
            Self::Stale => libc::ESTALE,
            Self::NoProcess => libc::ESRCH,
            Self::Exists => libc::EEXIST,
            Self::NotEmpty => libc::EBUSY,
            // As cgroup.max.depth and cgroup.max.descendants answer.
            Self::TooMany => libc::EAGAIN,
            Self::TooManyOpen => libc::EMFILE,
            Self::BadName(_) => libc::EINVAL,
            Self::LongName => libc::ENAMETOOLONG,
            Self::NotYours(_) => libc::EPERM,
            Self::NotDirectory => libc::ENOTDIR,
            Self::IsDirectory => libc::EISDIR,
            // As cgroup v2 answers unlink, rename, link and the like.
            Self::FixedShape => libc::EPERM,
            // kernfs has no create operation, for which the kernel says EACCES.
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
    fn a_long_value_is_quoted_in_part() {
        let error = Error::bad("a number", &"x".repeat(4000)).to_string();
        assert!(error.len() < 200, "{error}");
    }
}
