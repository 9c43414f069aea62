//! A simulated GPU: devices, their memory and their time, shared by several processes through a directory.
//! Independent of CUDA and NVML; the simulated libraries are built on this crate.

#![allow(
    clippy::too_many_arguments,
    reason = "copies and mappings are described as the driver does"
)]

mod account;
mod checkpoint;
pub mod clock;
pub mod config;
mod device;
mod driver;
mod engine;
mod export;
mod faults;
mod held;
mod host;
mod layout;
mod life;
mod lock;
mod member;
pub mod memory;
mod mig;
mod quirks;
pub mod shield;
mod size;
mod state;
mod symbols;
mod thread;
mod turn;
mod work;

pub use account::{Account, OnDevice};
pub use checkpoint::Suspended;
pub use config::Config;
pub use device::{COMPUTE_CAPABILITY, Device, NAME, Process};
pub use driver::Driver;
pub use engine::{Engine, StreamId};
pub use export::{Export, Tag, open_of};
pub use faults::{Faults, Strike};
pub use held::Held;
pub use life::{Life, MAX_LIVES};
pub use member::Member;
pub use mig::{MAX_INSTANCES, Mig};
pub use quirks::Quirk;
pub use state::Machine;
pub use thread::spawn;
pub use work::{Cost, Route, StreamKind, Watch, Work};
