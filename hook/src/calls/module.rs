//! Modules, libraries and limits of contexts: the driver takes device memory for them, whose size no call
//! tells. It may take it when they are loaded, or when something in them is first used in a context.

use std::ffi::c_uint;

use crate::driver;
use crate::driver::cuda::{
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    CU_LIMIT_MALLOC_HEAP_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_STACK_SIZE, CUdevice, CUerror, CUfunction,
    CUkernel, CUlibrary, CUmodule, CUresult,
};
use crate::driver::interpose::Next;
use crate::driver::out_pointer::{argument_list, written};
use crate::hook;
use crate::program::no_target;

/// Handles `cuModuleLoad` and its variants.
pub(crate) fn load(module: *const CUmodule, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    let undo = || written(module).is_some_and(|module| driver::cuModuleUnload(module).is_ok());
    let object = || Some(written(module)?.0.addr());
    hook.memory.load(next, object, undo)
}

/// Handles `cuModuleUnload`.
pub(crate) fn unload(module: CUmodule, next: Next<'_>) -> CUresult {
    hook::get().map_or_else(next, |hook| hook.memory.unload(module.0.addr(), next))
}

/// Handles calls that use a module: `cuModuleGetFunction` and others.
pub(crate) fn use_module(module: CUmodule, next: Next<'_>) -> CUresult {
    use_object(module.0.addr(), next, || true)
}

/// Handles `cuModuleEnumerateFunctions`, which loads no function.
pub(crate) fn functions(
    functions: *const CUfunction,
    room: c_uint,
    module: CUmodule,
    next: Next<'_>,
) -> CUresult {
    use_object(module.0.addr(), next, || {
        let mut count = 0;
        let counted = driver::cuModuleGetFunctionCount(&mut count, module);
        let functions = argument_list(functions, counted.map_or(0, |()| count.min(room)));
        functions
            .first()
            .is_some_and(|function| driver::cuFuncLoad(*function).is_ok())
    })
}

/// Handles `cuFuncLoad`.
pub(crate) fn load_function(function: CUfunction, next: Next<'_>) -> CUresult {
    let mut module = CUmodule::NULL;
    match driver::cuFuncGetModule(&mut module, function) {
        Ok(()) => use_module(module, next),
        Err(_) => next(),
    }
}

/// Handles `cuLibraryLoadData` and `cuLibraryLoadFromFile`.
pub(crate) fn load_library(library: *const CUlibrary, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    let undo = || written(library).is_some_and(|library| driver::cuLibraryUnload(library).is_ok());
    let object = || Some(written(library)?.0.addr());
    hook.memory.load(next, object, undo)
}

/// Handles `cuLibraryUnload`.
pub(crate) fn unload_library(library: CUlibrary, next: Next<'_>) -> CUresult {
    hook::get().map_or_else(next, |hook| hook.memory.unload(library.0.addr(), next))
}

/// Handles calls that use a library in the current context: `cuLibraryGetGlobal` and others.
pub(crate) fn use_library(library: CUlibrary, next: Next<'_>) -> CUresult {
    use_object(library.0.addr(), next, || true)
}

/// Handles `cuLibraryGetModule`.
pub(crate) fn get_module(library: CUlibrary, next: Next<'_>) -> CUresult {
    hook::get().map_or_else(next, |hook| hook.memory.get_module(library.0.addr(), next))
}

/// Handles `cuLibraryGetKernel`, after which the program may launch the kernel: that would load the library
/// where nothing can be refused any more.
pub(crate) fn get_kernel(kernel: *const CUkernel, library: CUlibrary, next: Next<'_>) -> CUresult {
    use_object(library.0.addr(), next, || load_kernel(written(kernel)))?;
    note_kernels(library, written(kernel));
    Ok(())
}

/// Handles `cuLibraryEnumerateKernels` as [`get_kernel`].
pub(crate) fn kernels(
    kernels: *const CUkernel,
    room: c_uint,
    library: CUlibrary,
    next: Next<'_>,
) -> CUresult {
    let written = || {
        let mut count = 0;
        let counted = driver::cuLibraryGetKernelCount(&mut count, library);
        argument_list(kernels, counted.map_or(0, |()| count.min(room)))
    };
    use_object(library.0.addr(), next, || load_kernel(written().first().copied()))?;
    note_kernels(library, written());
    Ok(())
}

/// Handles `cuKernelGetFunction`.
pub(crate) fn get_function(kernel: CUkernel, next: Next<'_>) -> CUresult {
    let library = |hook: &hook::Hook| hook.memory.contexts.loaded.library_of(kernel.0.addr());
    hook::get().map_or_else(next, |hook| hook.memory.use_loaded(library(hook), next, || true))
}

/// Handles `cuCtxSetLimit`: sizes of stacks, heaps and buffers on the device. Refused where the new size does
/// not fit, since the driver may take the memory only at a later launch.
pub(crate) fn set_limit(limit: c_uint, value: usize, next: Next<'_>) -> CUresult {
    let Some(hook) = hook::get() else {
        return next();
    };
    let Some(target) = hook.program.target() else {
        return hook.memory.without_charge(no_target(), next);
    };
    if !hook.memory.is_limited() {
        return next();
    }
    let mut before = 0;
    driver::cuCtxGetLimit(&mut before, limit)?;
    if value <= before {
        return hook.memory.shrink_context(next);
    }
    let each = match limit {
        CU_LIMIT_STACK_SIZE => threads(target.local.device())?,
        CU_LIMIT_PRINTF_FIFO_SIZE | CU_LIMIT_MALLOC_HEAP_SIZE => 1,
        _ => 0,
    };
    let bytes = ((value - before) as u64).saturating_mul(each);
    drop(hook.memory.try_charge(target.index, bytes)?);
    let undo = |_| driver::cuCtxSetLimit(limit, before).is_ok();
    hook.memory.grow_context(next, undo).map(drop)
}

/// Returns how many threads a device can run at once, each with a stack.
fn threads(device: CUdevice) -> Result<u64, CUerror> {
    [
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
    ]
    .into_iter()
    .try_fold(1, |threads: u64, attribute| {
        let mut value = 0;
        driver::cuDeviceGetAttribute(&mut value, attribute, device)?;
        Ok(threads.saturating_mul(u64::from(value.unsigned_abs())))
    })
}

fn use_object(object: usize, next: Next<'_>, load: impl Fn() -> bool) -> CUresult {
    match hook::get() {
        Some(hook) => hook.memory.use_loaded(object, next, load),
        None => next(),
    }
}

/// Has the driver load the library of a kernel into the current context; returns whether it did.
fn load_kernel(kernel: Option<CUkernel>) -> bool {
    let mut function = CUfunction::NULL;
    kernel.is_some_and(|kernel| driver::cuKernelGetFunction(&mut function, kernel).is_ok())
}

fn note_kernels(library: CUlibrary, kernels: impl IntoIterator<Item = CUkernel>) {
    if let Some(hook) = hook::get() {
        let kernels = kernels.into_iter().map(|kernel| kernel.0.addr());
        hook.memory
            .contexts
            .loaded
            .note_kernels(library.0.addr(), kernels);
    }
}
