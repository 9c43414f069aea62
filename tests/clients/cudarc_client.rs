//! A Rust program on `cudarc`, which opens the driver at run time. Reads commands on stdin, answers a line
//! each: `total`, `alloc BYTES`, `free`, `launch N`.

use std::error::Error;
use std::ffi::c_void;
use std::io::{BufRead as _, stdin};

use cudarc::driver::result::{self, DriverError, ctx, device, module, primary_ctx};
use cudarc::driver::sys;

const PTX: &str = concat!(include_str!("../load/kernels.ptx"), "\0");

fn main() -> Result<(), Box<dyn Error>> {
    result::init()?;
    let device = device::get(0)?;
    // SAFETY: the device was just given by the driver, and the context belongs to it.
    unsafe { ctx::set_current(primary_ctx::retain(device)?)? };
    // SAFETY: the image is text that ends in a zero byte, and the module stays loaded.
    let spin = unsafe {
        module::get_function(
            module::load_data(PTX.as_ptr().cast())?,
            c"gcgroup_spin".to_owned(),
        )?
    };
    let mut blocks = Vec::new();
    println!("ready");
    for line in stdin().lock().lines() {
        let line = line?;
        let answer = one(&line, spin, &mut blocks).unwrap_or_else(|error| match error.error_name() {
            Ok(name) => name.to_string_lossy().into_owned(),
            Err(_) => format!("{error:?}"),
        });
        println!("{answer}");
    }
    Ok(())
}

fn one(line: &str, spin: sys::CUfunction, blocks: &mut Vec<sys::CUdeviceptr>) -> Result<String, DriverError> {
    let (verb, number) = line.split_once(' ').unwrap_or((line, ""));
    let number: usize = number.parse().unwrap_or(0);
    match verb {
        "total" => return Ok(result::mem_get_info()?.1.to_string()),
        // SAFETY: the block is freed once, by `free`.
        "alloc" => blocks.push(unsafe { result::malloc_sync(number)? }),
        "free" => {
            if let Some(block) = blocks.pop() {
                // SAFETY: allocated by `alloc`, and used nowhere else.
                unsafe { result::free_sync(block)? };
            }
        }
        "launch" => {
            let mut microseconds = 1_u64;
            let mut parameters = [(&raw mut microseconds).cast::<c_void>()];
            for _ in 0..number {
                // SAFETY: the kernel takes one 64-bit word.
                unsafe {
                    result::launch_kernel(
                        spin,
                        (1, 1, 1),
                        (1, 1, 1),
                        0,
                        std::ptr::null_mut(),
                        &mut parameters,
                    )?;
                }
            }
            ctx::synchronize()?;
        }
        _ => return Ok("unknown command".to_owned()),
    }
    Ok("ok".to_owned())
}
