//! Assembly of each processor, and how it passes arguments. Each file has the same items; an assembly text is
//! a macro that takes its operands from the function that uses it.

#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
mod processor;

pub(crate) use processor::{
    REGISTERS, STUB_BYTES, admit_text, call_text, go_text, import_text, jump_text, landed_text, pushed,
    stop_text, stubs_text, submission_text, syscall_text, system_call_text, thread_pointer, traced_text,
};
