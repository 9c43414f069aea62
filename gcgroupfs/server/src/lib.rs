//! The daemon's ends towards processes, the disk and NVML: the socket on which hooks register, the journal of
//! settings, and measurements of what the devices hold.

#![deny(unsafe_code)]

mod audit;
mod block;
pub mod containers;
pub mod devices;
pub mod facts;
pub mod history;
pub mod host;
pub mod journal;
mod log_limit;
mod overhead;
pub mod receive;
pub mod socket;
pub mod suspend;
pub mod ticks;
mod xid;
