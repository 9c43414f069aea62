//! The daemon's model: the tree of processes and groups, the arbiter's decisions, the rules' verdicts, and
//! the control files over them. It has no clock, makes no system call and knows no mount, GPU or disk; values
//! come in, and listeners carry changes out.
//!
//! Layers, the lowest first; no files import each other in a circle, except a module and one inside it:
//! 1. values and formats: `error`, `event`, `text`, `quota`, `user_counts`, `user_queue`, `share`,
//!    `arbiter` but its `state`,
//!    `tree/{directory,device,sums,claims,idle_action,lease_action,byte_seconds}`;
//! 2. `tree/settings`: values, and the table. Its rows name handlers in layers above by the variants in
//!    `tree/settings/row`: `Publish` in `tree/enforce`, `Check` and `AfterWrite` in `tree/edit`, and
//!    `Computed` in `tree/view`;
//! 3. parts of processes and groups: `tree/{events,holders,refused,suspension,creation,inherited,origin}`,
//!    `tree/{context_sizes,idle_state,untrusted}`, `tree/stall/{average,children,totals}`;
//! 4. `tree/process`, `tree/group`, `tree/untrusted/sums`, and what is counted, stored and reported of them:
//!    `tree/{usage,energy,saved,notice,exited,storage,unmanaged,user_change,device_stat}`;
//! 5. what is put in force: `tree/enforce` stores into control blocks, `tree/grants` divides group limits;
//! 6. `tree/{view,edit}`: reads and writes of the `State` that `tree.rs` defines, for one directory;
//! 7. the other files of `tree`, one for each subject, with functions of `Tree`, `State`, `Edit` and `View`;
//! 8. `arbiter/state`, `files` and `file`, `rules`, `diagnosis`, and `tree/fixture` for tests;
//! 9. `configured`: carries out the configuration's groups.

#![deny(unsafe_code)]
#![cfg_attr(
    fuzzing,
    allow(
        dead_code,
        reason = "items that only tests use are compiled for the fuzz targets too"
    )
)]

pub mod arbiter;
pub mod configured;
pub mod diagnosis;
pub mod error;
pub mod event;
pub mod file;
pub mod files;
mod quota;
pub mod rules;
pub mod share;
pub mod text;
pub mod tree;
pub mod user_counts;
pub mod user_queue;
