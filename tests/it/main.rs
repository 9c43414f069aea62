//! Integration tests: one binary, a real mount, real processes. Each file has one subject.

#[cfg(test)]
mod end_to_end;
