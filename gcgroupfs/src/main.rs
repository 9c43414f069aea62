//! The program. All of its code is in the library, where fuzz targets reach it.

fn main() -> std::process::ExitCode {
    gcgroupfs::main()
}
