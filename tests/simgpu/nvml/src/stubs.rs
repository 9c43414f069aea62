//! Exported functions of NVML, listed by the build script, and a stub for each, which answers where nothing
//! implements it.

macro_rules! stubs {
    ($($name:ident,)*) => {
        $(
            // Accesses no arguments.
            #[allow(dead_code, reason = "may be implemented")]
            pub(crate) extern "C" fn $name() -> u32 {
                $crate::call::code($crate::users::machine().and(Err($crate::call::Error::NotSupported)))
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
