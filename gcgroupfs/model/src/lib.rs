//! The daemon's model: the tree of processes and groups, the arbiter's decisions, the rules' verdicts, and
//! the control files over them. It has no clock, makes no system call and knows no mount, GPU or disk; values
//! come in, and listeners carry changes out.
//!
//! Layers, the lowest first; no two files use each other, except a module and its children:
//! 1. values and formats: `error`, `text`, `arbiter` but its `state`, `tree/{quota,directory,device,sums}`;
//! 2. `tree/settings`, whose table alone points at functions of the layers above;
//! 3. parts of processes and groups: `tree/{events,holders,refused,suspension,made,inherited,untrusted}`;
//! 4. `tree/process`, `tree/group`, and what is counted and stored of them: `tree/{usage,saved,notice}`;
//! 5. what is put in force: `tree/enforce` stores into control blocks, `tree/grants` divides group limits;
//! 6. `tree/{view,edit}`: reads and writes of the `State` that `tree.rs` defines, for one directory;
//! 7. the other files of `tree`, one for each subject, with functions of `Tree`, `State`, `Edit` and `View`;
//! 8. `arbiter/state`, `files` and `file`, `rules`.

#![deny(unsafe_code)]
#![cfg_attr(
    fuzzing,
    allow(
        dead_code,
        reason = "items that only tests use are compiled for the fuzz targets too"
    )
)]

pub mod arbiter;
pub mod diagnosis;
pub mod error;
pub mod file;
pub mod files;
pub mod rules;
pub mod share;
pub mod text;
pub mod tree;
pub mod user_counts;
