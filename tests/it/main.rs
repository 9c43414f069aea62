//! Integration tests: one binary, a real mount, real processes.
