//! Tests attacks of a tenant on the daemon and other tenants through kernel interfaces; none succeeds.

use support::{Governed, Mount};

use crate::driver::{Dir, DriverShell, driver_shell};

const TENANT: u32 = 1000;
const OTHER: u32 = 1001;
const MIB: u64 = 1 << 20;

/// Governed Python program that makes the attempts and prints those that succeeded. Arguments: the pid of
/// another tenant's process, that of the daemon, and the daemon's state directory.
const ATTEMPTS: &str = r#"
import ctypes, fcntl, mmap, os, sys
other, daemon, state = sys.argv[1], sys.argv[2], sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
F_ADD_SEALS, PROT_READ, PROT_WRITE = 1033, 1, 2

def attempt(what, body):
    try:
        result = body()
    except OSError:
        return
    if result is not False:
        print("worked:", what, flush=True)

def mappings(pid, name):
    for line in open(f"/proc/{pid}/maps"):
        if name in line:
            span, mode = line.split()[:2]
            begin, end = (int(part, 16) for part in span.split("-"))
            yield begin, end - begin, mode

found = list(mappings("self", "gcgroup-control"))
assert found, "not governed"
for begin, length, mode in found:
    assert "w" not in mode and mode.endswith("s"), mode
    call = lambda name, *args: getattr(libc, name)(*args) == 0
    attempt("mprotect", lambda: call("mprotect", ctypes.c_void_p(begin), ctypes.c_size_t(length), PROT_READ | PROT_WRITE))
    def memory():
        with open("/proc/self/mem", "r+b", buffering=0) as file:
            file.seek(begin + 24)
            file.write(b"\xff" * 8)
    attempt("/proc/self/mem", memory)
    name = f"/proc/self/map_files/{begin:x}-{begin + length:x}"
    attempt("the mapped file", lambda: open(name, "r+b").close())
    class Iovec(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
    buffer = ctypes.create_string_buffer(b"\xff" * 8)
    ours = Iovec(ctypes.addressof(buffer), 8)
    def vm_write(pid, address):
        theirs = Iovec(address, 8)
        return libc.process_vm_writev(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) == 8
    attempt("process_vm_writev", lambda: vm_write(os.getpid(), begin + 24))

# Whatever of its blocks is open: no writable mapping, no seal taken off, another size, or a hole.
nr_open = 0
for fd in os.listdir("/proc/self/fd"):
    try:
        target = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        continue
    if "gcgroup-" not in target:
        continue
    nr_open += 1
    fd = int(fd)
    attempt("another size", lambda: os.ftruncate(fd, 0))
    attempt("seals", lambda: fcntl.fcntl(fd, F_ADD_SEALS, 0))
    if "gcgroup-control" in target:
        attempt("a writable mapping", lambda: mmap.mmap(fd, 4096, mmap.MAP_SHARED, PROT_READ | PROT_WRITE))
        attempt("a file opened anew", lambda: mmap.mmap(os.open(f"/proc/self/fd/{fd}", os.O_RDWR), 4096))
        attempt("write", lambda: os.pwrite(fd, b"\xff", 24))
        attempt("a hole", lambda: libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(4096)) == 0)
assert nr_open > 0, "its usage block at least"

for pid in (other, daemon):
    attempt(f"maps of {pid}", lambda: open(f"/proc/{pid}/maps").read())
    attempt(f"memory of {pid}", lambda: open(f"/proc/{pid}/mem", "r+b").close())
    attempt(f"descriptors of {pid}", lambda: os.listdir(f"/proc/{pid}/fd"))
    attempt(f"process_vm_writev to {pid}", lambda: vm_write(int(pid), 4096))
    attempt(f"ptrace of {pid}", lambda: libc.ptrace(16, int(pid), None, None) == 0)
    pidfd = os.pidfd_open(int(pid))
    getfd = 438
    attempt(f"pidfd_getfd of {pid}", lambda: libc.syscall(getfd, pidfd, 3, 0) >= 0)
    attempt(f"a signal to {pid}", lambda: os.kill(int(pid), 0))
for name in os.listdir(state) if os.access(state, os.R_OK) else []:
    attempt(f"the daemon's {name}", lambda: open(os.path.join(state, name), "rb").close())
    attempt(f"removing {name}", lambda: os.remove(os.path.join(state, name)))
print("tried", flush=True)
sys.stdin.read()
"#;

#[test]
fn tenants_attempts_reach_no_limit_tenant_or_daemon() {
    let mount = Mount::new();
    let mut other = DriverShell::spawn(mount.command_of(OTHER, &driver_shell()));
    assert_eq!(other.ask("alloc linear 4096"), "ok 0");
    let other_dir = Dir::of(&mount, other.pid());
    other_dir.write("memory.limit", MIB);
    let mut command = mount.command_of(TENANT, "/usr/bin/python3".as_ref());
    command.args(["-c", ATTEMPTS]);
    command.arg(other.pid().to_string());
    command.arg(mount.daemon().expect("the daemon runs").to_string());
    command.arg(mount.state_dir());
    let mut tenant = Governed::spawn(command);
    let pid = tenant.pid();
    let mut worked = Vec::new();
    while let Some(line) = tenant.line() {
        if line == "tried" {
            break;
        }
        worked.push(line);
    }
    assert!(
        worked.is_empty() && tenant.is_running(),
        "{worked:?}: {}",
        tenant.stderr()
    );
    let dir = Dir::of(&mount, pid);
    assert_eq!(dir.read("memory.limit"), "max");
    assert_eq!(other_dir.number("memory.limit"), MIB);
    assert_eq!(other_dir.number("memory.current"), 4096);
    tenant.finish();
    other.quit();
}
