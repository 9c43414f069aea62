//! Threads of the simulated devices.

/// Starts a thread with all signals blocked.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    // SAFETY: both sets are valid and the calls cannot fail with these arguments.
    let before = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let started = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(256 << 10)
        .spawn(body);
    // SAFETY: `before` was filled in above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    if let Err(error) = started {
        eprintln!("simgpu: no thread for the device: {error}");
    }
}
