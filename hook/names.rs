//! Names of the hooked functions, for the preload library's build script and the tests, which include this
//! file by path.

macro_rules! in_hook {
    ($($tokens:tt)*) => {};
}

macro_rules! hooks {
    ($(
        group $class:ident $what:literal;
        $( $(#[$doc:meta])* fn $name:ident $([$twin:ident])? ($($args:tt)*) @ $version:literal
            => $(submit $kind:ident)? $(|$next:ident| $body:expr)? ; )*
    )*) => {
        /// Every symbol of the table, including twins, in the order of the rows.
        pub(crate) const NAMES: &[&str] = &[$( $( stringify!($name), $(stringify!($twin),)? )* )*];
    };
}

#[path = "src/table.rs"]
mod table;

pub(crate) use table::NAMES;
