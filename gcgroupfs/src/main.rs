//! The program: all of it is in the library, where fuzz targets reach it.

fn main() -> std::process::ExitCode {
    gcgroupfs::main()
}
