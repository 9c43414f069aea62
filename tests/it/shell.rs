//! Tests the mount as shells and their tools see it: its rules and errors, one test each.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::sys::signal::Signal;
use support::{Governed, Mount, artifacts, wait_until};

use crate::driver::{Dir, DriverShell};

/// Mounts with one idle governed process without memory.
fn node() -> (Mount, DriverShell, PathBuf) {
    let mount = Mount::new();
    let process = DriverShell::start(&mount);
    let dir = Dir::of(&mount, process.pid()).path();
    (mount, process, dir)
}

fn sh(dir: &Path, script: &str) -> Output {
    Command::new("sh")
        .arg("-c")
        .arg(script)
        .current_dir(dir)
        .output()
        .expect("sh runs")
}

/// Returns the output of a script that must succeed.
fn says(dir: &Path, script: &str) -> String {
    let out = sh(dir, script);
    assert!(
        out.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).expect("text")
}

/// Returns the errno of one write(2) of `text` to `file`.
fn write_error(file: &Path, text: &[u8]) -> Option<i32> {
    let mut file = OpenOptions::new()
        .write(true)
        .open(file)
        .expect("the file opens for writing");
    file.write(text)
        .err()
        .map(|error| error.raw_os_error().expect("an errno"))
}

#[test]
fn written_values_read_back() {
    let (_mount, _process, dir) = node();
    for (file, written, read) in [
        ("memory.limit", "6G", "6442450944"),
        ("memory.limit", "512KiB", "524288"),
        ("memory.limit", "7m", "7340032"),
        ("memory.limit", "010", "10"),
        ("memory.limit", "  4096  ", "4096"),
        ("memory.limit", "18446744073709551615", "max"),
        ("memory.limit", "max", "max"),
        ("compute.priority", "2", "2"),
        ("compute.priority", "15", "15"),
        ("compute.freeze", "1", "1"),
        ("compute.freeze", "0", "0"),
    ] {
        assert_eq!(
            says(&dir, &format!("echo '{written}' > {file} && cat {file}")),
            format!("{read}\n"),
            "{file}"
        );
    }
}

#[test]
fn refused_write_returns_reason_and_changes_nothing() {
    let (_mount, _process, dir) = node();
    says(&dir, "echo 5M > memory.limit; echo 3 > compute.priority");
    for (file, text, errno, stays) in [
        ("memory.limit", "", libc::EINVAL, "5242880"),
        ("memory.limit", "\n", libc::EINVAL, "5242880"),
        ("memory.limit", "junk", libc::EINVAL, "5242880"),
        ("memory.limit", "0x10", libc::EINVAL, "5242880"),
        ("memory.limit", "1 2", libc::EINVAL, "5242880"),
        ("memory.limit", "-1", libc::EINVAL, "5242880"),
        ("memory.limit", "6Q", libc::EINVAL, "5242880"),
        ("memory.limit", "18446744073709551616", libc::ERANGE, "5242880"),
        ("memory.limit", "16777216T", libc::ERANGE, "5242880"),
        ("compute.priority", "16", libc::ERANGE, "3"),
        ("compute.priority", "max", libc::EINVAL, "3"),
        ("compute.priority", "", libc::EINVAL, "3"),
        ("compute.freeze", "2", libc::ERANGE, "0"),
        ("compute.freeze", "yes", libc::EINVAL, "0"),
    ] {
        // The kernel may answer an empty write(2) without the daemon; a shell sends a newline.
        if !text.is_empty() {
            assert_eq!(
                write_error(&dir.join(file), text.as_bytes()),
                Some(errno),
                "{text:?} > {file}"
            );
        }
        assert_eq!(
            fs::read_to_string(dir.join(file)).expect("the file is readable"),
            format!("{stays}\n"),
            "{text:?} > {file}"
        );
    }
    let long = [b'1'; 4097];
    assert_eq!(write_error(&dir.join("memory.limit"), &long), Some(libc::E2BIG));
    assert_eq!(says(&dir, "cat memory.limit"), "5242880\n");
}

#[test]
fn file_modes_match_supported_operations() {
    let (mount, _process, dir) = node();
    for (file, mode) in [
        ("memory.limit", 0o644),
        ("memory.current", 0o444),
        ("memory.peak", 0o644),
        ("memory.swap.current", 0o444),
        ("memory.events", 0o444),
        ("memory.stat", 0o444),
        ("compute.priority", 0o644),
        ("compute.freeze", 0o644),
        ("compute.stat", 0o444),
        ("gcgroup.stat", 0o444),
        ("gcgroup.events", 0o444),
    ] {
        for dir in [dir.clone(), dir.join("0")] {
            let metadata = fs::metadata(dir.join(file)).expect("the file exists");
            assert_eq!(metadata.permissions().mode() & 0o7777, mode, "{file}");
            assert!(metadata.is_file(), "{file}");
            assert_eq!((metadata.len(), metadata.blksize()), (4096, 4096), "{file}");
        }
    }
    for file in ["devices", "gcgroup.procs", "exited"] {
        assert!(mount.path().join(file).is_file(), "{file}");
    }
}

#[test]
fn opening_in_the_wrong_direction_is_refused() {
    let (_mount, _process, dir) = node();
    // Root passes every mode check, so the daemon itself must refuse.
    let error = OpenOptions::new()
        .write(true)
        .open(dir.join("memory.current"))
        .err();
    assert_eq!(error.and_then(|e| e.raw_os_error()), Some(libc::EACCES));
}

#[test]
fn making_moving_or_removing_entries_is_refused() {
    let (mount, _process, dir) = node();
    let errno = |result: std::io::Result<()>| result.err().and_then(|error| error.raw_os_error());
    let file = dir.join("memory.limit");
    assert_eq!(errno(File::create(dir.join("new")).map(drop)), Some(libc::EACCES));
    assert_eq!(errno(fs::remove_file(&file)), Some(libc::EPERM));
    assert_eq!(errno(fs::rename(&file, dir.join("other"))), Some(libc::EPERM));
    assert_eq!(errno(fs::hard_link(&file, dir.join("other"))), Some(libc::EPERM));
    assert_eq!(
        errno(std::os::unix::fs::symlink("x", dir.join("other"))),
        Some(libc::EPERM)
    );
    assert_eq!(errno(nix_mkfifo(&dir.join("fifo"))), Some(libc::EPERM));
    assert_eq!(errno(fs::remove_dir(&dir)), Some(libc::EPERM));
    assert_eq!(errno(fs::remove_dir(dir.join("0"))), Some(libc::EPERM));
    assert!(errno(fs::create_dir(mount.path().join("12345"))).is_some());
    assert!(file.exists());
}

fn nix_mkfifo(path: &Path) -> std::io::Result<()> {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).map_err(std::io::Error::from)
}

#[test]
fn creating_an_existing_file_appending_and_truncating_all_work() {
    let (_mount, _process, dir) = node();
    assert_eq!(
        says(&dir, "echo 9 >> compute.priority; cat compute.priority"),
        "9\n"
    );
    assert_eq!(
        says(&dir, "echo 4 | tee -a compute.priority; cat compute.priority"),
        "4\n4\n"
    );
    assert_eq!(
        says(
            &dir,
            "printf 5 | dd of=compute.priority status=none; cat compute.priority"
        ),
        "5\n"
    );
    assert_eq!(
        says(
            &dir,
            "printf 6 | dd of=compute.priority conv=notrunc status=none; cat compute.priority"
        ),
        "6\n"
    );
    assert_eq!(
        says(&dir, "truncate -s 0 compute.priority; cat compute.priority"),
        "6\n"
    );
    assert_eq!(says(&dir, "touch compute.priority; cat compute.priority"), "6\n");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .custom_flags(libc::O_TRUNC)
        .open(dir.join("compute.priority"))
        .expect("opening an existing file with O_CREAT succeeds");
    assert_eq!(file.write(b"7\n").expect("the write succeeds"), 2);
    assert_eq!(file.write(b"8\n").expect("the offset is ignored"), 2);
    assert_eq!(says(&dir, "cat compute.priority"), "8\n");
}

#[test]
fn every_reader_sees_the_same_text() {
    let (_mount, _process, dir) = node();
    says(&dir, "echo 123456789 > memory.limit");
    let want = "123456789\n";
    let python = |code: &str| format!("python3 -c '{code}'");
    for script in [
        "cat memory.limit".to_owned(),
        "busybox cat memory.limit".to_owned(),
        "dd if=memory.limit status=none".to_owned(),
        "dd if=memory.limit bs=1 status=none".to_owned(),
        "head -c 100 memory.limit".to_owned(),
        "read value < memory.limit; echo $value".to_owned(),
        "while read value; do echo $value; done < memory.limit".to_owned(),
        "cp memory.limit \"$TMPDIR/copy.$$\"; cat \"$TMPDIR/copy.$$\"; rm \"$TMPDIR/copy.$$\"".to_owned(),
        python("print(open(\"memory.limit\").read(), end=\"\")"),
        python("import pathlib; print(pathlib.Path(\"memory.limit\").read_text(), end=\"\")"),
        python("import shutil,tempfile,os; t=tempfile.mktemp(); shutil.copyfile(\"memory.limit\", t); print(open(t).read(), end=\"\"); os.unlink(t)"),
        python("import os; s=os.open(\"memory.limit\",0); r,w=os.pipe(); n=os.splice(s,w,4096); print(os.read(r,n).decode(), end=\"\")").replace("os.splice", "getattr(os,\"splice\",lambda a,b,c:os.sendfile(b,a,None,c))"),
        python("import os,tempfile; s=os.open(\"memory.limit\",0); t=tempfile.TemporaryFile(); n=os.sendfile(t.fileno(),s,0,4096); t.seek(0); print(t.read().decode(), end=\"\")"),
        "node -e 'process.stdout.write(require(\"fs\").readFileSync(\"memory.limit\",\"utf8\"))'".to_owned(),
        "node -e 'require(\"fs\").createReadStream(\"memory.limit\").pipe(process.stdout)'".to_owned(),
    ] {
        let script = format!("TMPDIR=${{TMPDIR:-/tmp}}; {script}");
        assert_eq!(says(&dir, &script), want, "{script}");
    }
}

#[test]
fn every_writer_is_understood() {
    let (_mount, _process, dir) = node();
    let scripts = [
        "busybox sh -c 'echo 1 > compute.priority'",
        "printf 1 > compute.priority",
        "echo 1 | tee compute.priority >/dev/null",
        "python3 -c 'open(\"compute.priority\",\"w\").write(\"1\")'",
        "python3 -c 'print(1, file=open(\"compute.priority\",\"w\"))'",
        "node -e 'require(\"fs\").writeFileSync(\"compute.priority\",\"1\")'",
        "echo 1 | dd of=compute.priority oflag=append conv=notrunc status=none",
    ];
    for script in scripts {
        assert_eq!(
            says(
                &dir,
                &format!("echo 8 > compute.priority; {script}; cat compute.priority")
            ),
            "1\n",
            "{script}"
        );
    }
}

#[test]
fn libcgroups_crate_reads_and_writes_single_values() {
    use libcgroups::common::{read_cgroup_file, write_cgroup_file, write_cgroup_file_str};
    let (_mount, _process, dir) = node();
    let file = dir.join("memory.limit");
    write_cgroup_file(&file, 1_u64 << 30).expect("writes a number");
    assert_eq!(
        read_cgroup_file(&file).expect("the file is readable"),
        "1073741824\n"
    );
    write_cgroup_file_str(&file, "max").expect("writes a word");
    assert_eq!(read_cgroup_file(&file).expect("the file is readable"), "max\n");
    let error = write_cgroup_file_str(&file, "much").expect_err("the operation is refused");
    assert_eq!(error.inner().raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn open_file_keeps_its_text_until_read_from_the_start() {
    let (_mount, _process, dir) = node();
    says(&dir, "echo 111111 > memory.limit");
    let mut file = File::open(dir.join("memory.limit")).expect("the file opens");
    let mut head = [0; 3];
    file.read_exact(&mut head).expect("three bytes");
    says(&dir, "echo 222222 > memory.limit");
    let mut rest = String::new();
    file.read_to_string(&mut rest).expect("the rest");
    assert_eq!(
        (&head[..], rest.as_str()),
        (&b"111"[..], "111\n"),
        "a value was torn by a write between two reads"
    );
    file.rewind().expect("the file can be rewound");
    let mut again = String::new();
    file.read_to_string(&mut again)
        .expect("the file is readable again");
    assert_eq!(again, "222222\n");
}

#[test]
fn reading_past_the_end_returns_nothing() {
    let (_mount, _process, dir) = node();
    let file = File::open(dir.join("compute.priority")).expect("the file opens");
    let mut buffer = [0; 16];
    for offset in [2, 3, 4096, 1 << 40] {
        assert_eq!(
            nix::sys::uio::pread(&file, &mut buffer, offset).expect("the file is readable"),
            0,
            "{offset}"
        );
    }
}

#[test]
fn process_exit_removes_directory_and_gives_enodev() {
    let (mount, process, dir) = node();
    let open = File::open(dir.join("memory.current")).expect("the file opens");
    let limit = OpenOptions::new()
        .write(true)
        .open(dir.join("memory.limit"))
        .expect("the file opens");
    assert!(dir.join("0").is_dir());
    process.kill9();
    support::wait_until("the process's directory is removed", || !dir.exists());
    let mut buffer = [0; 16];
    assert_eq!(
        nix::sys::uio::pread(&open, &mut buffer, 0),
        Err(nix::errno::Errno::ENODEV)
    );
    assert_eq!(nix::unistd::write(&limit, b"1"), Err(nix::errno::Errno::ENODEV));
    assert!(!says(&mount.path(), "ls").contains(dir.file_name().and_then(|n| n.to_str()).expect("a pid")));
    assert!(open.as_raw_fd() >= 0);
}

#[test]
fn ungoverned_pid_has_no_directory() {
    let (mount, _process, _dir) = node();
    for name in ["1", "0", "999999999", "nothing"] {
        assert!(!mount.path().join(name).exists(), "{name}");
    }
}

#[test]
fn listing_is_complete_without_duplicates() {
    let (mount, process, dir) = node();
    let mut names: Vec<_> = fs::read_dir(mount.path())
        .expect("the directory is readable")
        .map(|e| e.expect("entry").file_name())
        .collect();
    let before = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), before);
    assert!(names.iter().any(|name| *name == *process.pid().to_string()));
    let files: Vec<_> = fs::read_dir(&dir)
        .expect("the directory is readable")
        .map(|e| e.expect("entry").file_name())
        .collect();
    for name in &files {
        assert!(
            dir.join(name).exists(),
            "{name:?} is listed but cannot be looked up"
        );
    }
    assert!(files.len() > 10);
}

#[test]
fn statistics_in_gvms_format_match_exactly() {
    let (_mount, _process, dir) = node();
    assert_eq!(
        says(&dir, "cat gcgroup.stat"),
        "nr_submitted_kernels: 0\nnr_ended_kernels: 0\nnr_pending_kernels: 0\n"
    );
}

#[test]
fn mount_survives_a_client_with_open_files() {
    let (mut mount, _process, dir) = node();
    let held = File::open(dir.join("memory.current")).expect("the file opens");
    let path = mount.path();
    mount.stop();
    assert!(!is_mounted(&path), "the mount is left while a file is open");
    drop(held);
}

#[test]
fn mount_point_may_be_a_link_and_is_unmounted() {
    let other = Mount::new();
    let [link, real, socket, state] = ["link", "real", "s", "state"].map(|name| other.root().join(name));
    std::os::unix::fs::symlink("real", &link).expect("the name is free");
    let start = || {
        let mut command = other.bare_command(artifacts().gcgroupfs());
        command.arg("mount").arg(&link).arg("--socket").arg(&socket);
        command.arg("--state-dir").arg(&state);
        let daemon = Governed::spawn(command);
        wait_until("the daemon serves the mount", || link.join("devices").exists());
        assert!(is_mounted(&real));
        daemon
    };
    let mut first = start();
    first.signal(Signal::SIGKILL);
    first.wait();
    let mut second = start();
    second.signal(Signal::SIGTERM);
    second.wait();
    assert!(!is_mounted(&real), "a mount is left");
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the file is readable");
    mounts
        .lines()
        .any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == path))
}
