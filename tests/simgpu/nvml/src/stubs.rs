//! NVML functions that no row implements; listed by the build script.

macro_rules! stubs {
    ($($name:ident,)*) => {
        $(
            // SAFETY: NVML's function of this name; the arguments are not accessed.
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> u32 {
                $crate::call::code($crate::library::machine().and(Err($crate::call::Error::NotSupported)))
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
