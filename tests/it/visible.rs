//! Tests `memory.visible`: the device memory that a program is shown.

use std::collections::BTreeMap;

use nix::errno::Errno;
use support::{Config, Governed, Mount, artifacts};

use crate::driver::Dir;
use crate::nvml::Nvml;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 16 * MIB;
/// Bytes of host memory that are never taken.
const RESERVE: u64 = 512 * MIB;

#[track_caller]
fn mkdir(mount: &Mount, path: &str) {
    std::fs::create_dir(mount.path().join(path)).expect("a new group");
}

/// Mounts with a device of 1 GiB and a host that has `room` bytes for swap.
fn mount(room: u64) -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_MEMORY", "1G")
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_HOST_MEMORY", RESERVE + room),
    )
}

/// Starts a program that can swap, with that environment.
#[track_caller]
fn program(mount: &Mount, environment: &[(&str, &str)]) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    command.env("GCGROUP_MEMINFO", mount.simgpu_dir().join("meminfo"));
    command.envs(environment.iter().copied());
    let mut program = Governed::spawn(command);
    program.expect("ready");
    program
}

/// Returns free and total memory as the program is shown them, in MiB.
#[track_caller]
fn shown(program: &mut Governed) -> (u64, u64) {
    let answer = program.ask("meminfo");
    let words: Vec<_> = answer.split(' ').skip(1).collect();
    let [free, total] = words[..] else {
        panic!("{answer}");
    };
    let total_alone = program.ask("device-total");
    assert_eq!(total_alone, format!("device-total {total}"));
    let mib = |text: &str| text.parse::<u64>().expect("bytes") / MIB;
    (mib(free), mib(total))
}

/// Allocates blocks until one is refused. Returns their bytes in MiB.
fn fill(program: &mut Governed) -> u64 {
    let granted = |program: &mut Governed| {
        program
            .ask(&format!("alloc linear {BLOCK}"))
            .starts_with("allocated ")
    };
    (0..).take_while(|_| granted(program)).count() as u64 * BLOCK / MIB
}

#[test]
fn swap_shows_what_would_be_granted() {
    let mount = mount(1024 * MIB);
    let mut program = program(&mount, &[("GCGROUP_MEMORY_LIMIT", "96M")]);
    let dir = Dir::of(&mount, program.pid());
    dir.write("memory.swap.max", 64 * MIB);
    assert_eq!(shown(&mut program), (96, 96));
    dir.write("memory.visible", "swap");
    assert_eq!(shown(&mut program), (160, 160));
    assert_eq!(fill(&mut program), 160);
    assert_eq!(shown(&mut program), (0, 160));
    assert_eq!(dir.number("memory.swap.current"), 64 * MIB);
    dir.write("memory.visible", "limit");
    assert_eq!(shown(&mut program), (0, 96));
}

#[test]
fn swap_shows_no_more_than_groups_and_host_allow() {
    let mount = mount(48 * MIB);
    mkdir(&mount, "team");
    mount.write("team", "memory.visible", "swap");
    mount.write("team", "memory.swap.max", "32M");
    let environment = [("GCGROUP_MEMORY_LIMIT", "96M"), ("GCGROUP_GROUP", "team")];
    let mut program = program(&mount, &environment);
    assert_eq!(shown(&mut program), (128, 128));
    mount.write("team", "memory.swap.max", "max");
    assert_eq!(shown(&mut program), (144, 144), "the host has 48 MiB");
}

#[test]
fn swap_is_limit_for_a_program_that_cannot_swap() {
    let mount = mount(1024 * MIB);
    let mut program = program(&mount, &[("GCGROUP_MEMORY_LIMIT", "96M"), ("GCGROUP_SWAP", "0")]);
    let dir = Dir::of(&mount, program.pid());
    dir.write("memory.visible", "swap");
    assert_eq!(shown(&mut program), (96, 96));
    dir.write("memory.limit", "max");
    assert_eq!(shown(&mut program), (1024, 1024));
}

#[test]
fn bytes_are_shown_as_total_with_and_without_limit() {
    let mount = mount(1024 * MIB);
    let mut program = program(&mount, &[("GCGROUP_SWAP", "0")]);
    let dir = Dir::of(&mount, program.pid());
    dir.gpu(0).write("memory.visible", "64M");
    assert_eq!(shown(&mut program), (64, 64));
    let answer = program.ask(&format!("alloc linear {}", 80 * MIB));
    assert!(answer.starts_with("allocated "), "nothing is refused: {answer}");
    assert_eq!(shown(&mut program), (0, 64));
    dir.write("memory.visible", "4G");
    assert_eq!(shown(&mut program), (1024 - 80, 4096));
    dir.write("memory.limit", "100M");
    assert_eq!(shown(&mut program), (20, 4096), "the limit is what is granted");
}

#[test]
fn visible_bytes_are_shown_by_nvml() {
    let mount = mount(0);
    let (mut nvml, dir) = Nvml::limited(&mount, 512 * MIB);
    assert_eq!(nvml.ask(&format!("alloc 0 {}", 96 * MIB)), [0]);
    dir.write("memory.visible", "200M");
    for version in 1..=2 {
        let told = nvml.ask(&format!("memory 0 {version}"));
        assert_eq!(told, [0, 200 * MIB, 104 * MIB, 96 * MIB]);
    }
    dir.gpu(0).write("memory.limit", "max");
    assert_eq!(nvml.ask("memory 0 1"), [0, 200 * MIB, 104 * MIB, 96 * MIB]);
    dir.write("memory.visible", "limit");
    assert_eq!(nvml.ask("memory 0 1"), [0, 1024 * MIB, 928 * MIB, 96 * MIB]);
}

#[test]
fn group_value_holds_for_processes_without_one() {
    let mount = mount(0);
    mkdir(&mount, "team");
    mkdir(&mount, "team/a");
    let mut program = program(&mount, &[("GCGROUP_GROUP", "team/a")]);
    let dir = Dir::of(&mount, program.pid());
    assert_eq!(dir.read("memory.visible"), "limit");
    mount.write("team", "memory.visible", "300M");
    assert_eq!(shown(&mut program).1, 300);
    assert_eq!(dir.number("memory.visible"), 300 * MIB);
    mount.write("team/a/0", "memory.visible", "200M");
    assert_eq!(shown(&mut program).1, 200);
    dir.write("memory.visible", "limit");
    assert_eq!(shown(&mut program).1, 1024, "the process's own value holds");
    let refused: BTreeMap<_, _> = [
        ("max", Errno::EINVAL),
        ("all", Errno::EINVAL),
        ("0", Errno::ERANGE),
        ("17179869185G", Errno::ERANGE),
    ]
    .into();
    for (text, errno) in refused {
        let error = std::fs::write(dir.path().join("memory.visible"), text).expect_err(text);
        assert_eq!(error.raw_os_error(), Some(errno as i32), "{text}");
    }
    assert_eq!(dir.read("memory.visible"), "limit");
}
