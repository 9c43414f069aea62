//! Tests the preload library in `/etc/ld.so.preload`: every program of the machine behaves as before.

use std::fs;
use std::process::Command;

use support::artifacts;

/// Commands that do more than print `--version`. The output of each is the same in every run.
const AT_WORK: &[&str] = &[
    "bash -c 'for i in 1 2 3; do echo $i; done; exit 3'",
    "sh -c 'echo $((6*7)); kill -TERM $$'",
    "busybox sh -c 'echo busybox; busybox md5sum /etc/passwd'",
    "ls -la --time-style=+%s /usr/bin",
    "find /usr/share/doc/bash -type f",
    "sort -u /etc/passwd",
    "awk -F: '{ n += $3 } END { print n }' /etc/passwd",
    "sed -n 's/root/ROOT/p' /etc/passwd",
    "grep -c . /etc/passwd",
    "grep no-such-line /etc/passwd",
    "cat /no/such/file",
    "tar cf - -C /etc passwd group --mtime=@0 | sha256sum",
    "gzip -cn /etc/passwd | gunzip | cksum",
    "xargs -n1 echo < /etc/hostname",
    "timeout 5 true",
    "env -i /usr/bin/env",
    "id -u",
    "perl -e 'print join(\",\", map { $_*2 } 1..5), \"\\n\"'",
    "perl -MPOSIX -e 'print POSIX::floor(3.7), \"\\n\"; exit 4'",
    "python3 -c 'import ctypes, ssl, sqlite3, json; print(json.dumps({\"a\": 1}))'",
    "python3 -c 'import ctypes; print(ctypes.CDLL(None).dlsym is not None, ctypes.CDLL(\"libm.so.6\").abs(-3))'",
    "python3 -c 'import subprocess; print(subprocess.run([\"echo\", \"child\"], capture_output=True).stdout)'",
    "python3 -c 'import multiprocessing as m; p = m.get_context(\"fork\").Pool(2); print(p.map(abs, [-1, -2]))'",
    "python3 -c 'import ctypes; ctypes.CDLL(\"libcuda.so.1\")'",
    "git --no-pager --version",
    "git init -q \"$T/repository\" && git -C \"$T/repository\" status --short --branch",
    "printf 'int main(void) { return 7; }' > $T/a.c && gcc -o $T/a $T/a.c && $T/a",
    "printf 'int main(void) { return 8; }' > $T/b.c && gcc -static -o $T/b $T/b.c && $T/b",
    "printf 'int main(void) { return 9; }' > $T/m.c && musl-gcc -o $T/m $T/m.c && $T/m",
    "printf 'int main(void) { return 10; }' > $T/s.c && musl-gcc -static -o $T/s $T/s.c && $T/s",
    "cargo --version",
    "rustc --version",
    "node -e 'console.log([1,2,3].map(x => x * 2)); process.exitCode = 5'",
    "node -e 'require(\"child_process\").execSync(\"echo hi\", {stdio: \"inherit\"})'",
    "java -version",
    "make --version",
    "ldd /bin/true | wc -l | xargs test 1 -lt",
    "LD_BIND_NOW=1 ls /",
    "nice -n 5 nice",
    "su nobody -s /bin/sh -c 'id -un'",
];

/// Runs every command in one mount namespace and prints output and status of each.
const RUNNER: &str = r#"
set -e
T=$(mktemp -d); export T
if [ -n "$LIBRARY" ]; then
    cp -a /etc "$T/etc"
    echo "$LIBRARY" > "$T/etc/ld.so.preload"
    mount --bind "$T/etc" /etc
fi
set +e
while IFS= read -r command; do
    echo "=== $command"
    timeout 120 sh -c "$command" </dev/null 2>&1 | sed "s#$T#TMP#g; s#^sh: [0-9]*: #sh: #; s#^sh: line [0-9]*: #sh: #"
    timeout 120 sh -c "$command" </dev/null >/dev/null 2>&1
    echo "--- $?"
done
[ -z "$LIBRARY" ] || umount /etc
rm -rf "$T"
"#;

fn run(commands: &str, library: &str) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let list = dir.path().join("commands");
    fs::write(&list, commands).expect("the file is writable");
    let out = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", RUNNER])
        .env("LIBRARY", library)
        .stdin(fs::File::open(&list).expect("the file opens"))
        .output()
        .expect("unshare runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn over_hundred_programs_behave_unchanged() {
    let list = Command::new("dpkg")
        .args(["-L", "coreutils"])
        .output()
        .expect("dpkg runs");
    let mut commands: Vec<String> = String::from_utf8_lossy(&list.stdout)
        .lines()
        .filter(|path| path.contains("bin/") && fs::metadata(path).is_ok_and(|m| m.is_file()))
        .map(|path| format!("{path} --version"))
        .collect();
    commands.extend(AT_WORK.iter().map(|command| (*command).to_owned()));
    assert!(commands.len() > 100, "only {} programs", commands.len());
    let list = commands.join("\n") + "\n";

    let bare = run(&list, "");
    let library = artifacts().preload();
    let preloaded = run(&list, library.to_str().expect("a path"));
    for (bare, preloaded) in bare.split("=== ").zip(preloaded.split("=== ")) {
        assert_eq!(bare, preloaded);
    }
    assert_eq!(bare.len(), preloaded.len());
    assert_eq!(bare.matches("=== ").count(), commands.len());
}
