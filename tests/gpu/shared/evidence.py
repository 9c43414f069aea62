"""Collects evidence of a failure from live processes, before anything is killed: native stacks, what the kernel
knows of each thread, control files and the daemon's log. Writes below $GPU_CHECK_OUT/evidence/PART; does nothing
where the variables are not set."""
import contextlib
import glob
import os
import re
import shutil
import subprocess

# Characters of output and log that are kept, and seconds for a debugger and for a command.
TAIL, DEBUGGER_PATIENCE, PATIENCE = 64 << 10, 12, 5
# Characters of the hooks' trace: 600 lines for each governed program of a part.
TRACE_TAIL = 1 << 20
# Files of a process, and of each of its threads, that say what it waits for.
OF_PROCESS = ("cmdline", "status", "limits", "cgroup", "maps")
OF_THREAD = ("comm", "wchan", "syscall", "stack")
# Files of evidence of one part's processes; more would be repetition.
MOST = 12


def folder():
    """Returns the directory for the evidence of this part, or None."""
    out, part = os.environ.get("GPU_CHECK_OUT"), os.environ.get("GPU_CHECK_PART")
    if not out or not part:
        return None
    path = os.path.join(out, "evidence", part)
    os.makedirs(path, exist_ok=True)
    return path


def write(name, content, most=MOST):
    """Stores evidence, unless the part has `most` files of it."""
    path = folder()
    if path and content and len(os.listdir(path)) < most:
        with open(os.path.join(path, name), "w", encoding="utf-8") as file:
            file.write(content)


def text(path, tail=TAIL):
    """Returns the end of a file, or the reason why it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()[-tail:].replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError as error:
        return f"({error.strerror})"


def command(*words, seconds=PATIENCE, **options):
    """Returns the output of a command and how it ended."""
    try:
        done = subprocess.run(words, stdin=options.pop("stdin", subprocess.DEVNULL), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=seconds, check=False, **options)
        said, end = done.stdout, f"exit status {done.returncode}"
    except OSError as error:
        return f"({words[0]}: {error.strerror})"
    except subprocess.TimeoutExpired as error:
        said, end = error.stdout or b"", f"no end within {seconds} s"
    return f"{said[-TAIL:].decode(errors='replace')}\n({end})"


def debugger():
    """Returns the path of cuda-gdb or gdb, or None."""
    return shutil.which("cuda-gdb") or shutil.which("gdb")


def stacks(pid):
    """Returns the native stacks of a process by a debugger, and the kernel's view of each thread."""
    parts = [f"--- /proc/{pid}/{name}\n{text(f'/proc/{pid}/{name}')}" for name in OF_PROCESS]
    for thread in sorted(glob.glob(f"/proc/{pid}/task/*")):
        parts += [f"--- {thread}: " + "; ".join(f"{name} {text(f'{thread}/{name}')}" for name in OF_THREAD)]
    if program := debugger():
        parts.append(f"--- {program}\n" + command(
            program, "-batch", "-p", str(pid), "-ex", "thread apply all backtrace", seconds=DEBUGGER_PATIENCE))
    return "\n".join(parts)


def descendants(pid):
    """Returns the pids below a process."""
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(path, encoding="utf-8", errors="replace") as file:
                parents.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(path.split("/")[2]))
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
    return found


def control_files():
    """Returns all control files, read through the socket, which answers where a mount might hang."""
    cli = os.path.join(os.environ.get("DIST", ""), "bin/gcgroupfs")
    names = [row[1].strip("` ") for row in (line.split("|") for line in command(cli, "files").splitlines()) if len(row) > 2]
    names = [name for name in names if re.fullmatch(r"[a-z.]+", name)]
    listed = command(cli, "ls")
    parts = [f"--- gcgroupfs ls\n{listed}"]
    for pid in ["", *sorted(set(re.findall(r"^ *(\d+)\b", listed, re.M)))[:8]]:
        for name in names:
            path = f"{pid}/{name}".lstrip("/")
            content = command(cli, "get", path)
            if content.endswith("(exit status 0)"):
                parts.append(f"--- {path}\n{content.removesuffix('(exit status 0)').rstrip()}")
    return "\n".join(parts)


def of_process(pid, why):
    """Stores the evidence of a live process that has failed or does not answer, once for each pid."""
    path = folder()
    if not path or os.path.exists(f"{path}/process-{pid}.txt"):
        return
    write(f"process-{pid}.txt", f"{why}\n" + "\n".join(stacks(number) for number in [pid, *descendants(pid)][:4]))
    if not os.path.exists(f"{path}/control-files.txt"):
        write("control-files.txt", control_files())
        write("daemon.log", text(os.path.join(os.environ.get("GPU_CHECK_WORK", ""), "daemon.log")))


def of_part(stem):
    """Stores the output of a part that has failed, and the trace that the hooks of its programs wrote."""
    said = "".join(f"--- std{kind}\n{text(f'{stem}.{kind}')}\n" for kind in ("out", "err"))
    write("output.txt", said, MOST + 1)
    if os.path.exists(f"{stem}.trace"):
        write("trace.txt", text(f"{stem}.trace", TRACE_TAIL), MOST + 2)


def of_crash(words, said, env):
    """Runs a program that died of SIGSEGV once more, under a debugger, with the same input."""
    program = debugger()
    if not folder() or not program:
        return
    with contextlib.suppress(OSError):
        read, fed = os.pipe()
        with os.fdopen(fed, "wb") as pipe:
            pipe.write(said[:4096])
        with os.fdopen(read, "rb") as stdin:
            write(f"crash-{os.path.basename(words[0])}.txt", command(
                program, "-batch", "-ex", "set follow-exec-mode same", "-ex", "run",
                "-ex", "thread apply all backtrace", "--args", *words,
                seconds=DEBUGGER_PATIENCE, stdin=stdin, env=env))
