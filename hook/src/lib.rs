//! Placeholder until the hook lands.
