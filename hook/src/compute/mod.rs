//! Work for the device: let through, counted, held back.

pub mod fast;
pub mod gate;
