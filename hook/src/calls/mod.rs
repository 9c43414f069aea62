//! What happens at each hooked call: the handlers ask the engines in turn.

pub(crate) mod capture;
pub(crate) mod fast;
pub(crate) mod graphs;
pub(crate) mod green;
pub(crate) mod progress;
pub(crate) mod reach;
pub(crate) mod slots;
pub(crate) mod streams;
pub(crate) mod submit;
