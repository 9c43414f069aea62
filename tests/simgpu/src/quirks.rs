//! Behaviour in which real drivers and machines differ from the standard of this one: one row each, switched
//! on by its name in `SIMGPU_QUIRKS`, a list separated by commas. Each process reads it for itself.

use std::sync::OnceLock;

macro_rules! quirks {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A difference from the standard behaviour.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Quirk {
            $($(#[$doc])* $name,)*
        }

        const ROWS: &[(Quirk, &str)] = &[$((Quirk::$name, $text)),*];
    };
}

quirks! {
    /// `cuPointerSetAttribute` returns `CUDA_ERROR_NOT_SUPPORTED` for mapped memory.
    VmmAttributes = "vmm-attributes";
    /// Copies between the program's pageable memory and host memory of `cuMemCreate` fail, unless processors
    /// have access to the latter.
    PageableCopies = "pageable-copies";
    /// Copies fail that touch mapped memory of the device and of the host on one side.
    MixedCopies = "mixed-copies";
    /// Network adapters can use memory of `cuMemAlloc`, and mapped memory that was created for it.
    Rdma = "rdma";
    /// As `rdma`, but devices get no access to mapped memory that was created for it.
    RdmaRefused = "rdma-refused";
    /// `cuCtxRecordEvent` returns `CUDA_ERROR_INVALID_CONTEXT` for contexts other than primary ones.
    RecordPrimary = "record-primary";
    /// The functions of stream memory operations exist and return `CUDA_ERROR_NOT_SUPPORTED`.
    NoMemoryOperations = "no-memory-operations";
    /// NVML lists processes with 0 bytes.
    NvmlZero = "nvml-zero";
    /// NVML lists no processes.
    NvmlMissing = "nvml-missing";
    /// NVML lists processes from half a second after they were first there.
    NvmlLate = "nvml-late";
    /// NVML's lists of processes wait while the machine's directory has a file `nvml-waits`.
    NvmlWaits = "nvml-waits";
    /// The checkpoint functions report that another program moves the process's memory while the machine's
    /// directory has a file `checkpointing`.
    Checkpointing = "checkpointing";
    /// A context keeps pages that small blocks have shared until it is destroyed.
    KeptPages = "kept-pages";
    /// Devices with an odd index are of another chip.
    TwoChips = "two-chips";
}

impl Quirk {
    /// Returns whether the quirk is switched on in this process.
    pub fn is_on(self) -> bool {
        static QUIRKS: OnceLock<Vec<Quirk>> = OnceLock::new();
        let quirks = QUIRKS.get_or_init(|| parse(&std::env::var("SIMGPU_QUIRKS").unwrap_or_default()));
        quirks.contains(&self)
    }
}

/// Parses a list. Unknown names are reported on standard error and skipped.
fn parse(list: &str) -> Vec<Quirk> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    let found = names.filter_map(|name| {
        let row = ROWS.iter().find(|(_, text)| *text == name);
        if row.is_none() {
            eprintln!("simgpu: SIMGPU_QUIRKS: no quirk {name}");
        }
        row.map(|(quirk, _)| *quirk)
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_unknown_ones_are_skipped() {
        assert_eq!(parse(""), []);
        assert_eq!(parse("rdma, nvml-zero,x"), [Quirk::Rdma, Quirk::NvmlZero]);
    }
}
