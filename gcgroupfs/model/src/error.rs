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

/// Error of a request; one variant for each reason that a caller could act on. The text says what is wrong
/// and what is allowed. It goes into the log and to clients of the socket; those of the mount see the errno.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no process, group or file has this path; gcgroupfs ls lists the governed processes")]
    NotFound,
    #[error("the process has ended, or the group was removed")]
    Gone,
    #[error("the path's target is gone; resolve the path again")]
    Stale,
    #[error("no governed process has this pid; gcgroupfs ls lists them")]
    NoProcess,
    #[error("a part of the path before the last is a file; only directories contain something")]
    NotDirectory,
    #[error("it is a directory; name one of the files in it")]
    IsDirectory,
    #[error(
        "only groups can be made and removed, in the root and in groups; all else follows from the processes"
    )]
    FixedShape,
    #[error("it exists already; choose another name")]
    Exists,
    #[error("it has processes or groups in it; move or end them first")]
    NotEmpty,
    #[error("too deep: groups are nested at most {0} deep")]
    TooDeep(usize),
    #[error("too many groups: at most {per_user} of one user and {all} in all; remove some")]
    TooMany { per_user: usize, all: usize },
    #[error(
        "too many holds: at most {per_user} processes of one user and {all} in all hold settings, each of at \
         most {targets} processes and groups, and at most {values} values are held on one of these"
    )]
    TooManyHolds {
        per_user: usize,
        all: usize,
        targets: usize,
        values: usize,
    },
    #[error("too many open files; close some")]
    TooManyOpen,
    #[error("invalid group name: {0}")]
    BadName(&'static str),
    #[error("the name is too long: at most {0} bytes")]
    LongName(usize),
    #[error("{0}")]
    NotYours(&'static str),
    #[error("files cannot be created here, only groups (mkdir)")]
    NoCreate,
    #[error("the file is read-only")]
    ReadOnly,
    #[error("the file can only be written")]
    WriteOnly,
    #[error("only its owner (uid {owner}) and root can write it")]
    NotOwner { owner: u32 },
    #[error("the file or a directory of its path is closed to you; its owner can open it with chmod")]
    Closed,
    #[error(
        "groups can be made and removed here by its owner, root, and those whom the mode allows to write"
    )]
    NotWritable,
    #[error("a program in a container can read, not write; write it outside of the container")]
    Contained,
    #[error("only the group's owner and root can put processes into it")]
    NotAdmitted,
    #[error("root has set {bound}: {rule}, except by root")]
    BeyondRoot { rule: &'static str, bound: String },
    #[error("the job has {bound}, which bounds its processes; write {file} of the job's group")]
    BeyondJob { file: &'static str, bound: String },
    #[error("root has set it; only root can unset it")]
    SetByRoot,
    #[error("root froze or suspended the group that the process is in; only root can move it out")]
    StoppedByRoot,
    #[error("expected {expected}, got {got:?}")]
    BadValue { expected: &'static str, got: String },
    #[error("out of range: expected {expected}, got {got:?}")]
    OutOfRange { expected: &'static str, got: String },
    #[error("a percentage has no meaning here, where the GPUs are not known; write bytes, as 8G")]
    NoMemorySize,
    #[error("{0}")]
    NotSupported(&'static str),
    #[error("the value is too long: at most {0} bytes")]
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
            // The kernel then resolves the path again (path_lookup, fs/namei.c).
            Self::Stale => errno::ESTALE,
            Self::NoProcess => errno::ESRCH,
            Self::Exists => errno::EEXIST,
            Self::NotEmpty => errno::EBUSY,
            // As with cgroup.max.descendants.
            Self::TooMany { .. } | Self::TooManyHolds { .. } => errno::EAGAIN,
            // Not EAGAIN, as with cgroup.max.depth: shells would say that it is temporary.
            Self::TooDeep(_) => errno::EMLINK,
            Self::TooManyOpen => errno::EMFILE,
            Self::BadName(_) => errno::EINVAL,
            Self::LongName(_) => errno::ENAMETOOLONG,
            Self::NotYours(_) => errno::EPERM,
            Self::NotDirectory => errno::ENOTDIR,
            Self::IsDirectory => errno::EISDIR,
            // As cgroup v2 for unlink, rename, link and the like.
            Self::FixedShape => errno::EPERM,
            // kernfs has no create operation, for which the kernel returns EACCES.
            Self::NoCreate => errno::EACCES,
            Self::ReadOnly | Self::WriteOnly | Self::NotOwner { .. } => errno::EACCES,
            Self::Closed | Self::NotWritable | Self::Contained | Self::NotAdmitted => errno::EACCES,
            Self::BeyondRoot { .. } | Self::SetByRoot | Self::StoppedByRoot => errno::EPERM,
            Self::BadValue { .. } => errno::EINVAL,
            Self::OutOfRange { .. } | Self::BeyondJob { .. } => errno::ERANGE,
            Self::NoMemorySize | Self::NotSupported(_) => errno::EOPNOTSUPP,
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
