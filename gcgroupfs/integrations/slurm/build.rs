//! Links the plugin so that it stays loaded.

fn main() {
    // The plugin's threads run until slurmstepd ends.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-z,nodelete");
    // Unit tests have no Slurm, and call none of its functions.
    println!("cargo:rustc-link-arg=-Wl,--unresolved-symbols=ignore-all");
}
