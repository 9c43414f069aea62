//! What the integration tests share: the mount, governed processes, built artifacts.
