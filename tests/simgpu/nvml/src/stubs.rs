//! The functions of NVML that no row implements; the build script lists them.

macro_rules! stubs {
    ($($name:ident,)*) => {
        $(
            // SAFETY: NVML's function of that name; whatever its arguments, they are left alone.
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> u32 {
                $crate::call::code($crate::library::machine().and(Err($crate::call::Error::NotSupported)))
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
