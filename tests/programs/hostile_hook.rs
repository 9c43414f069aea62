//! A malicious hook: registers with the daemon as the real one does, and then stores arbitrary values in its
//! usage block on command. It has no GPU. `GCGROUP_SOCKET` names the daemon; arguments are requested
//! settings: `group=a/b`, `priority=0`, `memory_limit=BYTES`, `memory_swap_max=BYTES`, `can_swap=1`.
//!
//! Prints `ready`, then reads commands from stdin and answers each with one line. A new command is one row of
//! [`COMMANDS`]; a new word of the block is one name in the lists of [`word`].

#[path = "hostile_hook/registration.rs"]
mod registration;
#[path = "hostile_hook/words.rs"]
mod words;

use std::error::Error;
use std::ffi::CStr;
use std::io::{self, BufRead as _};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;

use gcgroup_abi::map::USAGE_SIZE;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, pause, pipe, read, write};

use crate::registration::{Hook, wishes};
use crate::words::{now, number, word};

type Answer = Result<String, Box<dyn Error>>;

/// Handler of a command, with its arguments.
struct Command {
    name: &'static str,
    run: fn(&Hook, &[&str]) -> Answer,
}

const COMMANDS: &[Command] = &[
    // set FIELD INDEX VALUE: stores the value, and rings the doorbell.
    Command {
        name: "set",
        run: set,
    },
    // add FIELD INDEX VALUE: adds the value (wrapping), and rings.
    Command {
        name: "add",
        run: add,
    },
    // toggle FIELD INDEX ONE OTHER TIMES MICROSECONDS: stores two values alternately, with a pause and a ring
    // after each.
    Command {
        name: "toggle",
        run: toggle,
    },
    // get FIELD INDEX: reads the word. Answers `FIELD VALUE`.
    Command {
        name: "get",
        run: get,
    },
    // control INDEX: prints words of a device in the control block, for tests that wait for them.
    Command {
        name: "control",
        run: show_control,
    },
    // request INDEX BYTES: requests a grant from the groups above. Answers `granted BYTES` (the total of the
    // grant) or `refused`.
    Command {
        name: "request",
        run: request,
    },
    // press INDEX BYTES: requests that other processes make room on the GPU. Answers `relieved` or `refused`.
    Command {
        name: "press",
        run: press,
    },
    // acknowledge INDEX: claims to have made the room requested of it, without having done so.
    Command {
        name: "acknowledge",
        run: acknowledge,
    },
    // random SEED STORES: stores values at random positions of the block, and rings 64 times meanwhile.
    Command {
        name: "random",
        run: random,
    },
    // context: creates a context on device 0 with the driver alone: NVML lists the process from then on.
    Command {
        name: "context",
        run: context,
    },
    // crowd PROCESSES BYTES: registers this many children, which claim these bytes on device 0 and stay until
    // this process ends. Answers `crowd ACCEPTED`.
    Command {
        name: "crowd",
        run: crowd,
    },
    // flood PROCESSES: registers this many children in succession; each ends at once. Answers `flooded
    // ACCEPTED`.
    Command {
        name: "flood",
        run: flood,
    },
];

fn set(hook: &Hook, words: &[&str]) -> Answer {
    let [name, index, value] = *words else {
        return Err("three words".into());
    };
    word(hook.usage, name, index)?.store(number(value)?);
    hook.ring();
    Ok("ok".into())
}

fn add(hook: &Hook, words: &[&str]) -> Answer {
    let [name, index, value] = *words else {
        return Err("three words".into());
    };
    let word = word(hook.usage, name, index)?;
    word.store(word.load().wrapping_add(number(value)?));
    hook.ring();
    Ok("ok".into())
}

fn toggle(hook: &Hook, words: &[&str]) -> Answer {
    let [name, index, one, other, times, pause] = *words else {
        return Err("six words".into());
    };
    let word = word(hook.usage, name, index)?;
    for time in 0..number(times)? {
        word.store(number(if time % 2 == 0 { one } else { other })?);
        hook.ring();
        std::thread::sleep(Duration::from_micros(number(pause)?));
    }
    Ok("ok".into())
}

fn get(hook: &Hook, words: &[&str]) -> Answer {
    let [name, index] = *words else {
        return Err("two words".into());
    };
    Ok(format!("{name} {}", word(hook.usage, name, index)?.load()))
}

fn show_control(hook: &Hook, words: &[&str]) -> Answer {
    let [index] = *words else {
        return Err("one word".into());
    };
    let device = hook
        .control
        .devices
        .get(index.parse::<usize>()?)
        .ok_or("no such device")?;
    Ok(format!(
        "gate={} priority={} usage_nsec={} reclaim_generation={} reclaim_bytes={} group_room={}",
        device.gate.load(Relaxed),
        device.priority.load(Relaxed),
        device.usage_nsec.load(Relaxed),
        device.reclaim_generation.load(Relaxed),
        device.reclaim_bytes.load(Relaxed),
        device.group_room.load(Relaxed),
    ))
}

fn request(hook: &Hook, words: &[&str]) -> Answer {
    let [index, bytes] = *words else {
        return Err("two words".into());
    };
    let (index, bytes) = (index.parse::<usize>()?, number(bytes)?);
    let (usage, control) = (&hook.usage.devices[index], &hook.control.devices[index]);
    usage.grant_wanted.store(bytes, Relaxed);
    let number = usage.grant_request.fetch_add(1, Release).wrapping_add(1);
    hook.wait_for(&control.grant_answer, number)?;
    if control.grant_refused.load(Relaxed) == number {
        return Ok("refused".into());
    }
    Ok(format!("granted {}", usage.memory_granted.load(Relaxed)))
}

fn press(hook: &Hook, words: &[&str]) -> Answer {
    let [index, bytes] = *words else {
        return Err("two words".into());
    };
    let (index, bytes) = (index.parse::<usize>()?, number(bytes)?);
    let (usage, control) = (&hook.usage.devices[index], &hook.control.devices[index]);
    usage.pressure_wanted.store(bytes, Relaxed);
    let number = usage.pressure_request.fetch_add(1, Release).wrapping_add(1);
    hook.wait_for(&control.pressure_answer, number)?;
    let is_refused = control.pressure_refused.load(Relaxed) == number;
    Ok(if is_refused { "refused" } else { "relieved" }.into())
}

fn acknowledge(hook: &Hook, words: &[&str]) -> Answer {
    let [index] = *words else {
        return Err("one word".into());
    };
    let index = index.parse::<usize>()?;
    let generation = hook.control.devices[index].reclaim_generation.load(Acquire);
    hook.usage.devices[index]
        .reclaim_generation
        .store(generation, Release);
    hook.ring();
    Ok("ok".into())
}

fn random(hook: &Hook, words: &[&str]) -> Answer {
    let [seed, stores] = *words else {
        return Err("two words".into());
    };
    let (mut state, stores) = (number(seed)?.wrapping_mul(2).wrapping_add(1), number(stores)?);
    // xorshift64*.
    let mut next = move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    // SAFETY: the block has this length, is page-aligned and consists of atomic words.
    let words = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(hook.usage).cast::<AtomicU64>(), USAGE_SIZE / 8)
    };
    for store in 0..stores {
        // Magic and version are kept: the daemon ignores a block without them.
        let at = 2 + usize::try_from(next() >> 16).unwrap_or(0) % (words.len() - 2);
        let value = match next() >> 61 {
            0 => 0,
            1 => u64::MAX,
            2 => now(),
            3 | 4 => 1 << (next() >> 58),
            _ => next(),
        };
        words[at].store(value, Relaxed);
        if store % (stores / 64).max(1) == 0 {
            hook.ring();
        }
    }
    hook.ring();
    Ok("ok".into())
}

fn context(_: &Hook, _: &[&str]) -> Answer {
    /// Returns the address of a driver function.
    fn find(driver: *mut libc::c_void, name: &CStr) -> Result<*mut libc::c_void, Box<dyn Error>> {
        // SAFETY: the library is open, and the name is a valid string.
        let found = unsafe { libc::dlsym(driver, name.as_ptr()) };
        match found.is_null() {
            true => Err(format!("no {name:?}").into()),
            false => Ok(found),
        }
    }
    type Init = extern "C" fn(u32) -> i32;
    type Create = extern "C" fn(*mut *mut libc::c_void, u32, i32) -> i32;
    // SAFETY: the driver's initializers may run at any time.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if driver.is_null() {
        return Err("no driver".into());
    }
    // SAFETY: these are the types of the functions in cuda.h.
    let (init, create) = unsafe {
        (
            std::mem::transmute::<*mut libc::c_void, Init>(find(driver, c"cuInit")?),
            std::mem::transmute::<*mut libc::c_void, Create>(find(driver, c"cuCtxCreate_v2")?),
        )
    };
    let mut context = std::ptr::null_mut();
    match (init(0), create(&mut context, 0, 0)) {
        (0, 0) => Ok("ok".into()),
        errors => Err(format!("{errors:?}").into()),
    }
}

fn flood(hook: &Hook, words: &[&str]) -> Answer {
    let [times] = *words else {
        return Err("one word".into());
    };
    let mut accepted = 0;
    for _ in 0..number(times)? {
        // SAFETY: the program is single-threaded, so the child may call any function.
        match unsafe { fork() }? {
            ForkResult::Child => {
                let is_accepted = Hook::register(hook.hello).is_ok();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!is_accepted)) };
            }
            ForkResult::Parent { child } => {
                let status = waitpid(child, None)?;
                accepted += u64::from(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)));
            }
        }
    }
    Ok(format!("flooded {accepted}"))
}

fn crowd(hook: &Hook, words: &[&str]) -> Answer {
    let [processes, bytes] = words else {
        return Err("two words".into());
    };
    let bytes = number(bytes)?;
    let (answers, answer) = pipe()?;
    for _ in 0..number(processes)? {
        // SAFETY: the program is single-threaded, so the child may call any function.
        if let ForkResult::Child = unsafe { fork() }? {
            set_pdeathsig(Signal::SIGKILL)?;
            let own = Hook::register_patiently(hook.hello);
            if let Ok(own) = &own {
                for device in own.usage.devices.iter().take(1) {
                    device.memory_current.store(bytes, Relaxed);
                }
            }
            write(&answer, &[u8::from(own.is_ok())])?;
            loop {
                pause();
            }
        }
    }
    let mut accepted = 0;
    for _ in 0..number(processes)? {
        let mut is_accepted = [0];
        read(&answers, &mut is_accepted)?;
        accepted += u64::from(is_accepted[0]);
    }
    Ok(format!("crowd {accepted}"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let hook = Hook::register_patiently(wishes(std::env::args().skip(1))?)?;
    println!("ready");
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        let answer = match COMMANDS.iter().find(|command| command.name == name) {
            Some(command) => (command.run)(&hook, &words),
            None => Err("no such command".into()),
        };
        println!("{}", answer.unwrap_or_else(|error| format!("error {error}")));
    }
    Ok(())
}
