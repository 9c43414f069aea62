//! Modules, libraries, and the functions and kernels in them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

use parking_lot::Mutex;
use simgpu::memory::Kind;

use crate::abi::{
    CUcontext, CUdevice, CUdeviceptr, CUerror, CUfunction, CUkernel, CUlibrary, CUmodule, CUresult, Out, Raw,
    Text,
};
use crate::call::{Call, driver};
use crate::context::Context;
use crate::cost::{self, Charged};
use crate::error::{FILE_NOT_FOUND, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, OUT_OF_MEMORY};
use crate::image::{self, Image};
use crate::kernel::Known;
use crate::old_launch::Prepared;
use crate::price::Price;

/// A module loaded into a context.
pub(crate) struct Module {
    pub(crate) context: CUcontext,
    image: Image,
    functions: Mutex<HashMap<String, CUfunction>>,
    globals: Mutex<HashMap<String, (CUdeviceptr, u64)>>,
    /// Device memory that the module takes until it is unloaded; `None` before that.
    cost: Mutex<Option<Charged>>,
}

/// A function of a module.
pub(crate) struct Function {
    pub(crate) context: CUcontext,
    module: CUmodule,
    pub(crate) code: Arc<Code>,
    /// Shape and arguments set for the launch functions of before CUDA 4.0.
    pub(crate) prepared: Mutex<Prepared>,
}

/// A library, independent of contexts.
pub(crate) struct Library {
    image: Image,
    kernels: Mutex<HashMap<String, CUkernel>>,
    /// The module in each context that has used the library.
    modules: Mutex<HashMap<CUcontext, CUmodule>>,
}

/// A kernel of a library.
pub(crate) struct Kernel {
    library: CUlibrary,
    pub(crate) code: Arc<Code>,
}

/// Attributes of a kernel's code.
pub(crate) struct Code {
    name: CString,
    pub(crate) known: Known,
    /// Maximum bytes of dynamic shared memory, as set by the program.
    shared: AtomicU32,
    /// Whether it was launched before.
    pub(crate) was_launched: AtomicBool,
}

const SHARED_BY_DEFAULT: u32 = 48 << 10;
/// Maximum of the simulated card, `MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
pub(crate) const SHARED_AT_MOST: u32 = 227 << 10;

impl Code {
    fn new(name: &str) -> Arc<Code> {
        let c_name = CString::new(name).unwrap_or_default();
        Arc::new(Code {
            name: c_name,
            known: Known::by_name(name),
            shared: AtomicU32::new(SHARED_BY_DEFAULT),
            was_launched: AtomicBool::new(false),
        })
    }

    /// Returns the maximum bytes of dynamic shared memory of a launch.
    pub(crate) fn most_shared(&self) -> u32 {
        self.shared.load(Relaxed)
    }

    /// Returns a function attribute, by `CUfunction_attribute`.
    fn attribute(&self, attribute: u32) -> Result<i32, CUerror> {
        Ok(match attribute {
            0 => 1024,                             // MAX_THREADS_PER_BLOCK
            1..=3 => 0,                            // SHARED, CONST and LOCAL_SIZE_BYTES
            4 => 16,                               // NUM_REGS
            5 | 6 => 90,                           // PTX_VERSION, BINARY_VERSION
            7 => 0,                                // CACHE_MODE_CA
            8 => self.most_shared().cast_signed(), // MAX_DYNAMIC_SHARED_SIZE_BYTES
            9 => -1,                               // PREFERRED_SHARED_MEMORY_CARVEOUT
            10..=17 => 0,                          // clusters, node updates
            _ => return Err(INVALID_VALUE),
        })
    }

    fn set_attribute(&self, attribute: u32, value: i32) -> CUresult {
        match (attribute, u32::try_from(value)) {
            (8, Ok(bytes)) if bytes <= SHARED_AT_MOST => self.shared.store(bytes, Relaxed),
            (8, _) | (18.., _) => return Err(INVALID_VALUE),
            _ => (),
        }
        Ok(())
    }
}

impl Call {
    /// Returns the code of a function or a kernel: launches accept either.
    pub(crate) fn code(&self, function: CUfunction) -> Result<Arc<Code>, CUerror> {
        if let Ok(function) = self.process.functions.get(function, INVALID_HANDLE) {
            return Ok(Arc::clone(&function.code));
        }
        self.process
            .kernels
            .get(function, INVALID_HANDLE)
            .map(|kernel| Arc::clone(&kernel.code))
    }
}

fn load(call: Call, out: Out<CUmodule>, image: Image) -> CUresult {
    let context = call.context()?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let module = Module::new(call, &context, image)?;
    out.set(call.process.modules.insert(module))
}

impl Module {
    fn new(call: Call, context: &Context, image: Image) -> Result<Module, CUerror> {
        Price::Module.wait(1);
        let module = Module {
            context: context.base().handle,
            cost: Mutex::default(),
            image,
            functions: Mutex::default(),
            globals: Mutex::default(),
        };
        if !cost::is_lazy() {
            module.take_memory(call)?;
        }
        Ok(module)
    }

    /// Takes the device memory of the module unless it has.
    fn take_memory(&self, call: Call) -> CUresult {
        let mut cost = self.cost.lock();
        if cost.is_none() {
            let index = call.context_of(self.context)?.index;
            *cost = Some(Charged::module(call.process, index, &self.image)?);
        }
        Ok(())
    }
}

fn unload(call: Call, module: CUmodule) -> CUresult {
    let gone = call.process.modules.remove(module, INVALID_HANDLE)?;
    call.process
        .functions
        .remove_all(|function| function.module == module);
    for (address, _) in gone.globals.lock().values() {
        crate::memory::free_block(call.process, *address, |_| true);
    }
    Ok(())
}

fn get_function(call: Call, module: CUmodule, name: &str) -> Result<CUfunction, CUerror> {
    let object = call.process.modules.get(module, INVALID_HANDLE)?;
    if !object.image.kernels.iter().any(|kernel| kernel == name) {
        return Err(NOT_FOUND);
    }
    object.take_memory(call)?;
    let mut functions = object.functions.lock();
    let make = || {
        call.process.functions.insert(Function {
            context: object.context,
            module,
            code: Code::new(name),
            prepared: Mutex::default(),
        })
    };
    Ok(*functions.entry(name.to_owned()).or_insert_with(make))
}

pub(crate) fn get_global(
    call: Call,
    module: CUmodule,
    name: &str,
    address: Out<CUdeviceptr>,
    bytes: Out<usize>,
) -> CUresult {
    let object = call.process.modules.get(module, INVALID_HANDLE)?;
    let size = object
        .image
        .globals
        .iter()
        .find(|(global, _)| global == name)
        .ok_or(NOT_FOUND)?
        .1;
    object.take_memory(call)?;
    let mut globals = object.globals.lock();
    let (at, size) = match globals.get(name) {
        Some(global) => *global,
        None => {
            let context = call.context_of(object.context)?;
            // Charged with the module.
            let space = call.process.space;
            let at = space
                .make_device(size, Kind::Linear, context.index, context.owner(), 0)
                .ok_or(OUT_OF_MEMORY)?;
            globals.insert(name.to_owned(), (at, size));
            (at, size)
        }
    };
    address.set_if(at);
    bytes.set_if(usize::try_from(size).unwrap_or(0));
    Ok(())
}

fn load_library(call: Call, out: Out<CUlibrary>, image: Image) -> CUresult {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let library = Library {
        image,
        kernels: Mutex::default(),
        modules: Mutex::default(),
    };
    let handle = call.process.libraries.insert(library);
    if !cost::is_lazy() {
        let contexts = call.process.contexts.all().into_iter();
        let owners = contexts.filter(|(handle, context)| context.base().handle == *handle);
        let mut loaded = owners.map(|(_, context)| module_in(call, handle, &context));
        if let Some(error) = loaded.find_map(Result::err) {
            let _ = unload_library(call, handle);
            return Err(error);
        }
    }
    out.set(handle)
}

fn unload_library(call: Call, library: CUlibrary) -> CUresult {
    let gone = call.process.libraries.remove(library, INVALID_HANDLE)?;
    call.process
        .kernels
        .remove_all(|kernel| kernel.library == library);
    let modules: Vec<_> = gone.modules.lock().values().copied().collect();
    for module in modules {
        // Its context may be destroyed.
        let _ = unload(call, module);
    }
    Ok(())
}

fn read_file(path: &str) -> Result<Image, CUerror> {
    image::parse(&std::fs::read(path).map_err(|_| FILE_NOT_FOUND)?)
}

fn get_kernel(call: Call, library: CUlibrary, name: &str) -> Result<CUkernel, CUerror> {
    let object = call.process.libraries.get(library, INVALID_HANDLE)?;
    if !object.image.kernels.iter().any(|kernel| kernel == name) {
        return Err(NOT_FOUND);
    }
    let mut kernels = object.kernels.lock();
    let make = || {
        call.process.kernels.insert(Kernel {
            library,
            code: Code::new(name),
        })
    };
    Ok(*kernels.entry(name.to_owned()).or_insert_with(make))
}

/// Returns the library's module in the current context.
fn module_of(call: Call, library: CUlibrary) -> Result<CUmodule, CUerror> {
    module_in(call, library, &*call.context()?)
}

/// Returns the library's module in a context.
fn module_in(call: Call, library: CUlibrary, context: &Context) -> Result<CUmodule, CUerror> {
    let object = call.process.libraries.get(library, INVALID_HANDLE)?;
    let mut modules = object.modules.lock();
    Ok(match modules.entry(context.base().handle) {
        Entry::Occupied(known) => *known.get(),
        Entry::Vacant(place) => {
            let module = Module::new(call, context, object.image.clone())?;
            *place.insert(call.process.modules.insert(module))
        }
    })
}

/// Loads the library of a kernel that is launched into a context; functions are loaded.
pub(crate) fn load_kernel(call: Call, kernel: CUkernel, context: &Context) -> CUresult {
    let Ok(kernel) = call.process.kernels.get(kernel, INVALID_HANDLE) else {
        return Ok(());
    };
    let module = module_in(call, kernel.library, context)?;
    call.process
        .modules
        .get(module, INVALID_HANDLE)?
        .take_memory(call)
}

fn attribute(call: Call, value: Out<i32>, attribute: u32, function: CUfunction) -> CUresult {
    value.set(call.code(function)?.attribute(attribute)?)
}

/// Stores where a parameter lies, bytes, and how large it is, unless that is not asked for.
fn parameter(
    call: Call,
    function: CUfunction,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> CUresult {
    let code = call.code(function)?;
    let bytes = code.known.sizes().get(index).ok_or(INVALID_VALUE)?;
    offset.set(index * 8)?;
    if size.is_null() { Ok(()) } else { size.set(*bytes) }
}

driver! {
    fn cuModuleLoad(module: Out<CUmodule>, path: Text) |call| { load(call, module, read_file(path.get()?)?) }
    fn cuModuleLoadData(module: Out<CUmodule>, code: Raw) |call| { load(call, module, image::at(code)?) }
    fn cuModuleLoadDataEx(module: Out<CUmodule>, code: Raw, _count: u32, _options: Raw, _values: Raw) |call| {
        load(call, module, image::at(code)?)
    }
    fn cuModuleLoadFatBinary(module: Out<CUmodule>, code: Raw) |call| { load(call, module, image::at(code)?) }
    fn cuModuleUnload(module: CUmodule) |call| { unload(call, module) }
    fn cuModuleGetLoadingMode(mode: Out<u32>) |_| { mode.set(1 + u32::from(cost::is_lazy())) }
    fn cuModuleGetFunction(function: Out<CUfunction>, module: CUmodule, name: Text) |call| {
        function.set(get_function(call, module, name.get()?)?)
    }
    fn cuModuleGetFunctionCount(count: Out<u32>, module: CUmodule) |call| {
        let module = call.process.modules.get(module, INVALID_HANDLE)?;
        count.set(u32::try_from(module.image.kernels.len()).unwrap_or(u32::MAX))
    }
    fn cuModuleEnumerateFunctions(functions: Out<CUfunction>, count: u32, module: CUmodule) |call| {
        let object = call.process.modules.get(module, INVALID_HANDLE)?;
        for (index, name) in object.image.kernels.iter().enumerate().take(usize::try_from(count).unwrap_or(0)) {
            functions.set_at(index, get_function(call, module, name)?);
        }
        Ok(())
    }
    fn cuModuleGetGlobal_v2(address: Out<CUdeviceptr>, bytes: Out<usize>, module: CUmodule, name: Text) |call| {
        get_global(call, module, name.get()?, address, bytes)
    }

    fn cuLibraryLoadData(
        library: Out<CUlibrary>, code: Raw, _jit_options: Raw, _jit_values: Raw, _jit_count: u32, _options: Raw,
        _values: Raw, _count: u32,
    ) |call| {
        load_library(call, library, image::at(code)?)
    }
    fn cuLibraryLoadFromFile(
        library: Out<CUlibrary>, path: Text, _jit_options: Raw, _jit_values: Raw, _jit_count: u32, _options: Raw,
        _values: Raw, _count: u32,
    ) |call| {
        load_library(call, library, read_file(path.get()?)?)
    }
    fn cuLibraryUnload(library: CUlibrary) |call| {
        unload_library(call, library)
    }
    fn cuLibraryGetKernel(kernel: Out<CUkernel>, library: CUlibrary, name: Text) |call| {
        kernel.set(get_kernel(call, library, name.get()?)?)
    }
    fn cuLibraryGetKernelCount(count: Out<u32>, library: CUlibrary) |call| {
        let library = call.process.libraries.get(library, INVALID_HANDLE)?;
        count.set(u32::try_from(library.image.kernels.len()).unwrap_or(u32::MAX))
    }
    fn cuLibraryEnumerateKernels(kernels: Out<CUkernel>, count: u32, library: CUlibrary) |call| {
        let object = call.process.libraries.get(library, INVALID_HANDLE)?;
        for (index, name) in object.image.kernels.iter().enumerate().take(usize::try_from(count).unwrap_or(0)) {
            kernels.set_at(index, get_kernel(call, library, name)?);
        }
        Ok(())
    }
    fn cuLibraryGetModule(module: Out<CUmodule>, library: CUlibrary) |call| { module.set(module_of(call, library)?) }
    fn cuLibraryGetGlobal(address: Out<CUdeviceptr>, bytes: Out<usize>, library: CUlibrary, name: Text) |call| {
        get_global(call, module_of(call, library)?, name.get()?, address, bytes)
    }
    fn cuKernelGetFunction(function: Out<CUfunction>, kernel: CUkernel) |call| {
        let kernel = call.process.kernels.get(kernel, INVALID_HANDLE)?;
        let module = module_of(call, kernel.library)?;
        function.set(get_function(call, module, kernel.code.name.to_str().map_err(|_| NOT_FOUND)?)?)
    }
    fn cuKernelGetLibrary(library: Out<CUlibrary>, kernel: CUkernel) |call| {
        library.set(call.process.kernels.get(kernel, INVALID_HANDLE)?.library)
    }
    fn cuKernelGetName(name: Out<*const std::ffi::c_char>, kernel: CUkernel) |call| { name.set(call.code(kernel)?.name.as_ptr()) }
    fn cuKernelGetAttribute(value: Out<i32>, attr: u32, kernel: CUkernel, device: CUdevice) |call| {
        call.process.device(device)?;
        attribute(call, value, attr, kernel)
    }
    fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: CUkernel, device: CUdevice) |call| {
        call.process.device(device)?;
        call.code(kernel)?.set_attribute(attribute, value)
    }
    fn cuKernelSetCacheConfig(kernel: CUkernel, _config: u32, _device: CUdevice) |call| { call.code(kernel).map(|_| ()) }

    fn cuFuncGetName(name: Out<*const std::ffi::c_char>, function: CUfunction) |call| {
        name.set(call.code(function)?.name.as_ptr())
    }
    fn cuFuncGetModule(module: Out<CUmodule>, function: CUfunction) |call| {
        module.set(call.process.functions.get(function, INVALID_HANDLE)?.module)
    }
    fn cuFuncGetAttribute(value: Out<i32>, attr: u32, function: CUfunction) |call| { attribute(call, value, attr, function) }
    fn cuFuncSetAttribute(function: CUfunction, attribute: u32, value: i32) |call| {
        call.code(function)?.set_attribute(attribute, value)
    }
    fn cuFuncSetCacheConfig(function: CUfunction, _config: u32) |call| { call.code(function).map(|_| ()) }
    fn cuFuncSetSharedMemConfig(function: CUfunction, _config: u32) |call| { call.code(function).map(|_| ()) }
    fn cuFuncIsLoaded(state: Out<u32>, function: CUfunction) |call| { call.code(function)?; state.set(1) }
    fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: Out<usize>, size: Out<usize>) |call| {
        parameter(call, function, index, offset, size)
    }
    fn cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: Out<usize>, size: Out<usize>) |call| {
        parameter(call, kernel, index, offset, size)
    }
    fn cuFuncLoad(function: CUfunction) |call| { call.code(function).map(|_| ()) }
}
