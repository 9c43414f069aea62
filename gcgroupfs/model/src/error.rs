//! Errors of requests to the tree, and their errnos.

use std::borrow::Cow;

/// Linux's error numbers (errno(3)), the same on x86-64 and ARM64.
mod errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const ESRCH: i32 = 3;
    pub(super) const E2BIG: i32 = 7;
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const ENODEV: i32 = 19;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EISDIR: i32 = 21;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EMFILE: i32 = 24;
    pub(super) const EMLINK: i32 = 31;
    pub(super) const ERANGE: i32 = 34;
    pub(super) const ENAMETOOLONG: i32 = 36;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const ESTALE: i32 = 116;
}

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
    #[error("too many groups")]
    TooMany,
    #[error("groups nest eight deep at most")]
    TooDeep,
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
    #[error("the open file has a trigger already")]
    HasTrigger,
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
            Self::NotFound => errno::ENOENT,
            // As files of a removed cgroup.
            Self::Gone => errno::ENODEV,
            // The kernel then resolves the path again without its cache (path_lookup, fs/namei.c).
            Self::Stale => errno::ESTALE,
            Self::NoProcess => errno::ESRCH,
            Self::Exists => errno::EEXIST,
            Self::NotEmpty | Self::HasTrigger => errno::EBUSY,
            // As with cgroup.max.descendants.
            Self::TooMany => errno::EAGAIN,
            // Not EAGAIN, as with cgroup.max.depth: shells would say that it is temporary.
            Self::TooDeep => errno::EMLINK,
            Self::TooManyOpen => errno::EMFILE,
            Self::BadName(_) => errno::EINVAL,
            Self::LongName => errno::ENAMETOOLONG,
            Self::NotYours(_) => errno::EPERM,
            Self::NotDirectory => errno::ENOTDIR,
            Self::IsDirectory => errno::EISDIR,
            // As cgroup v2 for unlink, rename, link and the like.
            Self::FixedShape => errno::EPERM,
            // kernfs has no create operation, for which the kernel returns EACCES.
            Self::NoCreate => errno::EACCES,
            Self::WrongAccess => errno::EACCES,
            Self::BeyondRoot(_) => errno::EPERM,
            Self::BadValue { .. } => errno::EINVAL,
            Self::OutOfRange { .. } => errno::ERANGE,
            Self::NotSupported(_) => errno::EOPNOTSUPP,
            Self::TooLong(_) => errno::E2BIG,
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
    fn error_numbers_are_those_of_libc() {
        assert_eq!(errno::EPERM, libc::EPERM);
        assert_eq!(errno::ENOENT, libc::ENOENT);
        assert_eq!(errno::ESRCH, libc::ESRCH);
        assert_eq!(errno::E2BIG, libc::E2BIG);
        assert_eq!(errno::EAGAIN, libc::EAGAIN);
        assert_eq!(errno::EACCES, libc::EACCES);
        assert_eq!(errno::EBUSY, libc::EBUSY);
        assert_eq!(errno::EEXIST, libc::EEXIST);
        assert_eq!(errno::ENODEV, libc::ENODEV);
        assert_eq!(errno::ENOTDIR, libc::ENOTDIR);
        assert_eq!(errno::EISDIR, libc::EISDIR);
        assert_eq!(errno::EINVAL, libc::EINVAL);
        assert_eq!(errno::EMFILE, libc::EMFILE);
        assert_eq!(errno::EMLINK, libc::EMLINK);
        assert_eq!(errno::ERANGE, libc::ERANGE);
        assert_eq!(errno::ENAMETOOLONG, libc::ENAMETOOLONG);
        assert_eq!(errno::EOPNOTSUPP, libc::EOPNOTSUPP);
        assert_eq!(errno::ESTALE, libc::ESTALE);
    }

    #[test]
    fn bad_long_value_is_abridged() {
        let error = Error::bad("a number", &"x".repeat(4000)).to_string();
        assert!(error.len() < 200, "{error}");
    }
}
