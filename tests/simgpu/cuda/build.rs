//! Names the library as the driver's is named, so that programs linked with it find it by its soname.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
