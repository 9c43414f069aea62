//! Exported symbols of the simulated libraries.

/// Exports each symbol: a jump to the function of this name in the caller's `crate::implemented`, otherwise
/// to the one in `crate::stubs`.
///
/// The compiler decides which: an inner block's imports hide those of the block around it. So no list of what
/// is implemented exists, and no source is searched for it. The compiler reports an implemented function that
/// is no symbol as dead code.
#[macro_export]
#[allow(clippy::crate_in_macro_def, reason = "the modules are the caller's")]
macro_rules! exports {
    ($($name:literal $symbol:ident,)*) => {
        $(
            const _: () = {
                #[allow(unused_imports, reason = "may be implemented")]
                use crate::stubs::*;
                const _: () = {
                    #[allow(unused_imports, reason = "may not be implemented")]
                    use crate::implemented::*;

                    // SAFETY: the library's symbol of this name.
                    #[unsafe(export_name = $name)]
                    #[unsafe(naked)]
                    extern "C" fn export() {
                        #[cfg(target_arch = "x86_64")]
                        ::core::arch::naked_asm!("jmp {}", sym $symbol);
                        #[cfg(target_arch = "aarch64")]
                        ::core::arch::naked_asm!("b {}", sym $symbol);
                    }
                };
            };
        )*
    };
}
