"""Tries each system call that hook or daemon need, each in a child process, because a filter may kill the
process that makes the call. Adding one is one row in CALLS."""
import ctypes
import errno
import fcntl
import mmap
import os
import signal
import socket

LIBC = ctypes.CDLL(None, use_errno=True)
# x86-64 and aarch64 use the same numbers for these, those of asm-generic.
PIDFD_OPEN, PIDFD_GETFD, CLOSE_RANGE = 434, 438, 436
MEMBARRIER = {"x86_64": 324, "aarch64": 283}.get(os.uname().machine)
FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, FUTEX_WAKE = 1 << 4, 1
MADV_DONTFORK, MADV_WIPEONFORK = 10, 18
MFD_CLOEXEC, MFD_ALLOW_SEALING = 1, 2
ADD_SEALS, SEAL_SHRINK, SEAL_GROW = 1033, 2, 4
CLONE_NEWNS, CLONE_NEWUSER, MS_NOSUID, MS_NODEV = 0x20000, 0x10000000, 2, 4
SO_PEERPIDFD = 77
PR_SET_CHILD_SUBREAPER = 36
WORD = ctypes.c_uint32()
# Seconds until a child that hangs is killed.
PATIENCE = 5


def checked(result):
    """Returns the result of a C function. Raises OSError if it is -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def call(number, *arguments):
    """Makes a system call by number. Raises OSError."""
    if number is None:
        raise OSError(errno.ENOSYS, "no number known on this architecture")
    return checked(LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(word) for word in arguments)))


def advise(advice):
    """Returns a function that applies an advice to a page of anonymous private memory."""
    def body():
        with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
            page.madvise(advice)
    return body


def sealed():
    """Makes a memory file, seals its size and maps it shared, as the daemon does for each block."""
    file = os.memfd_create("preflight", MFD_CLOEXEC | MFD_ALLOW_SEALING)
    os.ftruncate(file, mmap.PAGESIZE)
    fcntl.fcntl(file, ADD_SEALS, SEAL_SHRINK | SEAL_GROW)
    mmap.mmap(file, mmap.PAGESIZE).close()


def passed():
    """Passes a descriptor and credentials over a socket, as a registration does."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    there.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    socket.send_fds(here, [b"x"], [0])
    _, ancillary, _, _ = there.recvmsg(16, 256)
    if not {socket.SCM_RIGHTS, socket.SCM_CREDENTIALS} <= {kind for _, kind, _ in ancillary}:
        raise OSError(errno.EPROTO, "descriptor or credentials are missing")


def peer_pidfd():
    """Asks the kernel for a pidfd of a socket's peer (Linux 6.5)."""
    here, _there = socket.socketpair()
    here.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)


def own_pidfd():
    """Opens a pidfd."""
    return call(PIDFD_OPEN, os.getpid(), 0)


def other_descriptor():
    """Takes a descriptor of a process by its pidfd."""
    call(PIDFD_GETFD, own_pidfd(), 0, 0)


def limits():
    """Raises the soft limit of open files by prlimit(2)."""
    import resource
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (hard, hard))


def mount_namespace():
    """Makes a mount namespace."""
    checked(LIBC.unshare(CLONE_NEWNS))


def user_namespace():
    """Makes a user namespace, in which an unprivileged user may mount FUSE."""
    checked(LIBC.unshare(CLONE_NEWUSER))


def fuse():
    """Opens /dev/fuse and mounts a file system with it, in a mount namespace of its own."""
    device = os.open("/dev/fuse", os.O_RDWR)
    mount_namespace()
    checked(LIBC.mount(b"none", b"/", None, 0x4000 | 0x40000, None))  # MS_REC | MS_PRIVATE
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    checked(LIBC.mount(b"preflight", b"/tmp", b"fuse", MS_NOSUID | MS_NODEV, options))


# Name; program that needs it (hook or daemon; "optional": there is a fallback); function that tries it.
CALLS = [
    ("membarrier", "hook", lambda: call(MEMBARRIER, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, 0, 0)),
    ("futex", "hook and daemon", lambda: call(FUTEX, ctypes.addressof(WORD), FUTEX_WAKE, 1, 0, 0, 0)),
    ("madvise(MADV_WIPEONFORK)", "hook", advise(MADV_WIPEONFORK)),
    ("madvise(MADV_DONTFORK)", "hook", advise(MADV_DONTFORK)),
    ("memfd_create and seals", "hook and daemon", sealed),
    ("descriptors and credentials over a socket", "hook and daemon", passed),
    ("SO_PEERPIDFD", "daemon, optional", peer_pidfd),
    ("pidfd_open", "daemon", own_pidfd),
    ("pidfd_getfd", "daemon, optional", other_descriptor),
    ("close_range", "daemon, optional", lambda: call(CLOSE_RANGE, 1000, 1001, 0)),
    ("prctl(PR_SET_CHILD_SUBREAPER)", "daemon, optional",
     lambda: checked(LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))),
    ("prlimit(RLIMIT_NOFILE)", "hook, optional", limits),
    ("unshare(CLONE_NEWNS)", "daemon, optional", mount_namespace),
    ("unshare(CLONE_NEWUSER)", "daemon, optional", user_namespace),
    ("FUSE mount", "daemon, optional", fuse),
]


def outcome(body):
    """Returns "ok", the name of the errno, the signal that killed the child, or "hangs"."""
    ends, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(PATIENCE)
            body()
            os.write(writes, b"ok")
        except OSError as error:
            os.write(writes, errno.errorcode.get(error.errno, str(error)).encode())
        except BaseException as error:  # The child must end here in any case.
            os.write(writes, f"{type(error).__name__}: {error}".encode()[:200])
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(ends, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "hangs" if number == signal.SIGALRM else f"killed by {signal.Signals(number).name}"
    return said or "no answer"


def outcomes():
    """Returns the outcome of each system call by name, with the program that needs it."""
    return {name: {"needed_by": needed, "outcome": outcome(body)} for name, needed, body in CALLS}


def missing(found):
    """Returns the calls that do not work and have no other way."""
    return [name for name, row in found.items() if row["outcome"] != "ok" and "optional" not in row["needed_by"]]
