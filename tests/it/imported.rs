//! Tests the functions that the hook imports, which a program, a sanitizer or another library may replace:
//! each has a row, and its failure leaves the process governed or is reported. `hook/IMPORTS.md` is
//! generated: `UPDATE=1 cargo test -p gcgroup-tests --test it imported`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use support::{Mount, artifacts, c_program, repository};

use crate::refused_calls::outcome;

/// Functions that the hook imports for one purpose.
struct Import {
    names: &'static [&'static str],
    purpose: &'static str,
    /// Result by which the functions fail; `None`: not tried.
    failure: Option<i64>,
    /// Outcome where a failure is not tried, and where the functions stand still or are not ready.
    otherwise: &'static str,
}

const fn import(
    names: &'static [&'static str],
    purpose: &'static str,
    failure: i64,
    otherwise: &'static str,
) -> Import {
    Import {
        names,
        purpose,
        failure: Some(failure),
        otherwise,
    }
}

const fn untried(names: &'static [&'static str], purpose: &'static str, otherwise: &'static str) -> Import {
    Import {
        names,
        purpose,
        failure: None,
        otherwise,
    }
}

const EINVAL: i64 = 22;

const READY: &str = "not called before the program looks up a driver function";

/// Every function of the C library that the hook imports. All system calls are its own.
#[rustfmt::skip]
const IMPORTS: &[Import] = &[
    untried(&["malloc", "calloc", "realloc", "free", "posix_memalign"], "memory", "the program ends, as Rust programs do without memory; a call of the driver from one of them is not governed"),
    untried(&["bcmp", "memcmp", "memcpy", "memmove", "memset", "strlen"], "memory contents", "cannot fail"),
    untried(&["__errno_location", "__tls_get_addr", "pthread_attr_init", "pthread_self", "environ"], "thread-local data, attributes of the helper thread, the environment", "cannot fail"),
    untried(&["abort"], "end after a panic within a panic", "cannot fail"),
    untried(&["dl_iterate_phdr", "getcwd", "lseek64", "readlink", "realpath", "statx"], "names of functions in reports of panics (RUST_BACKTRACE), unwinding", "called after a panic only"),
    untried(&["__cxa_finalize", "__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"], "start and end of the library", "the compiler's; not called while the program runs"),
    untried(&["pthread_mutex_lock", "pthread_mutex_unlock"], "unwinding", "the compiler's; called after a panic or a cancellation only"),
    import(&["__cxa_atexit"], "handler at exit", -1, READY),
    untried(&["__cxa_thread_atexit_impl"], "end of a thread", "cannot fail"),
    import(&["__register_atfork"], "handler in children", 12, READY),
    import(&["__pthread_key_create"], "end of a thread, where the C library has no other way", 11, READY),
    import(&["pthread_key_create"], "end of a thread, where the C library has no other way", 11, READY),
    import(&["pthread_key_delete"], "end of a thread, where the C library has no other way", EINVAL, READY),
    import(&["pthread_getspecific"], "end of a thread, where the C library has no other way", 0, READY),
    import(&["pthread_setspecific"], "end of a thread, where the C library has no other way", 12, READY),
    untried(&["pthread_once"], "unwinding", "the compiler's; called after a panic or a cancellation only"),
    import(&["pthread_create"], "helper thread", 11, "while it stands still, so does the first driver call"),
    import(&["pthread_attr_destroy"], "helper thread", EINVAL, READY),
    import(&["pthread_attr_setdetachstate"], "helper thread", EINVAL, READY),
    import(&["pthread_attr_setstacksize"], "helper thread", EINVAL, READY),
    import(&["pthread_getattr_np"], "stack of a thread", 12, "the helper thread makes the hook"),
    import(&["pthread_attr_getstack"], "stack of a thread", EINVAL, "the helper thread makes the hook"),
    import(&["pthread_setname_np"], "name of the helper thread", 34, READY),
    import(&["pthread_sigmask"], "signals of the helper thread", EINVAL, READY),
    import(&["sigfillset"], "signals of the helper thread", -1, READY),
    import(&["pthread_setcancelstate"], "cancellation", EINVAL, "a cancelled thread may end the program"),
    import(&["pthread_setcanceltype"], "cancellation", EINVAL, "a thread cancelled asynchronously may end the program"),
    import(&["dladdr"], "file of a library", 0, "a driver in a file of another name is not found"),
    import(&["dlerror"], "errors of the loader", 0, "the program may see an error of the hook's look-ups"),
    import(&["getauxval"], "elevated privileges, the first thread's stack", 0, "the helper thread makes the hook"),
    untried(&["getenv"], "settings", "the defaults hold"),
    import(&["sysconf"], "number of processors, page size", -1, READY),
    import(&["__xpg_strerror_r"], "texts of errors", EINVAL, READY),
];

/// Returns the undefined symbols of a library, without versions.
fn imports(library: &Path) -> BTreeSet<String> {
    let out = Command::new("nm")
        .args(["-D", "--undefined-only"])
        .arg(library)
        .output()
        .expect("nm runs");
    let text = String::from_utf8(out.stdout).expect("names are text");
    let names = text.lines().filter_map(|line| line.split_whitespace().last());
    names
        .map(|name| name.split('@').next().unwrap_or(name).to_owned())
        .collect()
}

/// Returns the table of imports, with the outcome of each failure.
fn table() -> String {
    let mount = Mount::new();
    let mut text = "# Imported functions\n\n\
        Functions of the C library that `libgcgroup_hook.so` calls through the dynamic linker, so that a program or\n\
        a preloaded library may replace them, and what happens if they fail in the hook alone, stand still or are\n\
        not ready yet. All system calls are the hook's own (`src/sys/imports.rs`), and time is that of the C\n\
        library's own `clock_gettime`, so deadlines hold where that of the program stands still.\n\
        `libgcgroup.so` imports no function. Generated by a test on the simulated driver:\n\
        `UPDATE=1 cargo test -p gcgroup-tests --test it imported`.\n\n\
        | function | for | if it fails | otherwise |\n| --- | --- | --- | --- |\n"
        .to_owned();
    for import in IMPORTS {
        let names = import.names.join(", ");
        let outcome = import.failure.map_or_else(
            || "not tried".to_owned(),
            |result| {
                let flags = [format!("-DFAILS={names}"), format!("-DRESULT={result}")];
                let mut all = vec!["-shared", "-fPIC", "-fno-builtin", "-ldl"];
                all.extend(flags.iter().map(String::as_str));
                let library = c_program("replacer.c", &all);
                let preload = format!("{}:{}", artifacts().preload().display(), library.display());
                let outcome = outcome(&mount, &names, |mut command| {
                    if command.get_envs().any(|(name, _)| name == "GCGROUP_SOCKET") {
                        command.env("LD_PRELOAD", &preload);
                    }
                    command
                });
                outcome.to_string()
            },
        );
        let (purpose, otherwise) = (import.purpose, import.otherwise);
        let _ = writeln!(text, "| {names} | {purpose} | {outcome} | {otherwise} |");
    }
    text
}

#[test]
fn every_imported_function_has_the_documented_outcome() {
    let rows: BTreeSet<String> = IMPORTS
        .iter()
        .flat_map(|import| import.names)
        .map(|name| (*name).to_owned())
        .collect();
    assert_eq!(
        imports(&artifacts().hook()),
        rows,
        "imports without a row, or rows without one"
    );
    let path = repository().join("hook/IMPORTS.md");
    let found = table();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &found).expect("the file can be written");
    }
    let kept = std::fs::read_to_string(&path).expect("the table is there");
    assert_eq!(found, kept, "run with UPDATE=1");
}
