//! The simulated `libcuda.so.1`.

mod names;
