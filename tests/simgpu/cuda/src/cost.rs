//! Device memory that contexts and modules take. A process reads for itself:
//!
//! - `SIMGPU_CONTEXT_SIZES`: bytes of its contexts in the order in which they are made, separated by commas;
//!   the last number holds for all further ones. Unset: the machine's `SIMGPU_CONTEXT_MEMORY`.
//! - `SIMGPU_GREEN_SIZE`: bytes of a green context, 0 by default.
//! - `SIMGPU_CODE_SIZE`: bytes of the code of a module. If set, a module takes these and its variables as
//!   soon as it is loaded; with `CUDA_MODULE_LOADING=LAZY`, at the first use of anything in it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use simgpu::Held;
use simgpu::config::parse_bytes;

use crate::abi::{CUerror, CUresult};
use crate::error::OUT_OF_MEMORY;
use crate::image::Image;
use crate::price::Price;
use crate::process::Process;

struct Costs {
    contexts: Vec<u64>,
    green: u64,
    code: Option<u64>,
    is_lazy: bool,
    nr_contexts: AtomicUsize,
}

fn costs() -> &'static Costs {
    static COSTS: OnceLock<Costs> = OnceLock::new();
    COSTS.get_or_init(|| {
        let number = |name: &str| std::env::var(name).ok().as_deref().and_then(parse_bytes);
        let contexts = std::env::var("SIMGPU_CONTEXT_SIZES").unwrap_or_default();
        Costs {
            contexts: contexts.split(',').filter_map(parse_bytes).collect(),
            green: number("SIMGPU_GREEN_SIZE").unwrap_or(0),
            code: number("SIMGPU_CODE_SIZE"),
            is_lazy: std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "LAZY"),
            nr_contexts: AtomicUsize::new(0),
        }
    })
}

/// Returns whether modules take memory at their first use.
pub(crate) fn is_lazy() -> bool {
    costs().is_lazy
}

/// Bytes charged to the process until dropped.
pub(crate) struct Charged {
    process: &'static Process,
    index: usize,
    bytes: u64,
}

impl Charged {
    /// Charges a new context on the device with that index.
    pub(crate) fn context(process: &'static Process, index: usize) -> Result<Charged, CUerror> {
        let Costs {
            contexts,
            nr_contexts,
            ..
        } = costs();
        let number = nr_contexts.fetch_add(1, Relaxed);
        let bytes = contexts.get(number).or(contexts.last()).copied();
        let bytes = bytes.unwrap_or(process.member.machine().config().context_memory);
        Charged::new(process, index, bytes)
    }

    /// Charges a new green context.
    pub(crate) fn green(process: &'static Process, index: usize) -> Result<Charged, CUerror> {
        Charged::new(process, index, costs().green)
    }

    /// Charges a module that is being loaded.
    pub(crate) fn module(process: &'static Process, index: usize, image: &Image) -> Result<Charged, CUerror> {
        let variables: u64 = image.globals.iter().map(|(_, bytes)| bytes).sum();
        Charged::new(process, index, costs().code.map_or(0, |code| code + variables))
    }

    /// Charges what the first launch of a function takes until the process ends.
    pub(crate) fn first_launch(process: &'static Process, index: usize) -> CUresult {
        let charged = Charged::new(process, index, Price::FirstLaunchMemory.get())?;
        std::mem::forget(charged);
        Ok(())
    }

    /// Changes the size; on failure it stays.
    pub(crate) fn resize(&mut self, bytes: u64) -> CUresult {
        let member = &self.process.member;
        match bytes.checked_sub(self.bytes) {
            Some(more) if !member.try_charge(self.index, Held::Context, more) => return Err(OUT_OF_MEMORY),
            Some(_) => {}
            None => member.uncharge(self.index, Held::Context, self.bytes - bytes),
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Charges bytes on the device with that index.
    pub(crate) fn new(process: &'static Process, index: usize, bytes: u64) -> Result<Charged, CUerror> {
        if !process.member.try_charge(index, Held::Context, bytes) {
            return Err(OUT_OF_MEMORY);
        }
        Ok(Charged {
            process,
            index,
            bytes,
        })
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        let member = &self.process.member;
        member.uncharge(self.index, Held::Context, self.bytes);
    }
}
