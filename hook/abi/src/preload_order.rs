//! Order of the libraries in `LD_PRELOAD`.

/// Runtimes of sanitizers, by the beginning of their file names: GCC's and Clang's. They expect to be first.
const RUNTIMES: [&[u8]; 7] = [
    b"libasan.so",
    b"libhwasan.so",
    b"liblsan.so",
    b"libmsan.so",
    b"libtsan.so",
    b"libubsan.so",
    b"libclang_rt.",
];

/// Returns the entries of an `LD_PRELOAD` with `library` among them: first, or behind runtimes of sanitizers
/// that are first. Another library that defines `dlsym` before it would hide the driver from it.
pub fn preload_order<'a>(present: &'a [u8], library: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    // ld.so splits at both and has no quoting.
    let others = present
        .split(|byte| matches!(byte, b':' | b' '))
        .filter(move |entry| !entry.is_empty() && *entry != library);
    let runtimes = others.clone().take_while(|entry| is_runtime(entry));
    runtimes
        .chain(core::iter::once(library))
        .chain(others.skip_while(|entry| is_runtime(entry)))
}

fn is_runtime(entry: &[u8]) -> bool {
    let name = entry.rsplit(|byte| *byte == b'/').next().unwrap_or(entry);
    RUNTIMES.iter().any(|runtime| name.starts_with(runtime))
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    #[test]
    fn library_comes_first_behind_runtimes_of_sanitizers() {
        for (present, want) in [
            ("", "/l.so"),
            ("a.so", "/l.so:a.so"),
            ("a.so /l.so", "/l.so:a.so"),
            ("a.so:/x/libasan.so.8", "/l.so:a.so:/x/libasan.so.8"),
            (
                "/x/libasan.so.8::libubsan.so.1 a.so:/l.so",
                "/x/libasan.so.8:libubsan.so.1:/l.so:a.so",
            ),
            ("libclang_rt.asan-x86_64.so", "libclang_rt.asan-x86_64.so:/l.so"),
        ] {
            let order: Vec<_> = preload_order(present.as_bytes(), b"/l.so").collect();
            assert_eq!(order.join(&b':'), want.as_bytes(), "{present}");
        }
    }
}
