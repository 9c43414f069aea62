//! Tests faults injected by `SIMGPU_FAULTS`: a call returns the given error and does nothing.

use crate::lookups::Names;
use crate::simgpu::Machine;

#[test]
fn nth_call_fails_and_changes_nothing() {
    let mut program = Machine::new()
        .env("SIMGPU_FAULTS", "cuMemAlloc_v2=2@2,cuCtxSynchronize=719@2+")
        .started();
    program.run("addresses = [alloc(MIB)]\nbefore = free_memory()");
    assert_eq!(program.ask("alloc(MIB)"), "'error 2'");
    assert_eq!(program.ask("free_memory() == before"), "True");
    assert_eq!(program.ask("type(alloc(MIB)) is int"), "True");
    assert_eq!(program.ask("before - free_memory() == MIB"), "True");
    program.calls(0, "cu.cuCtxSynchronize()");
    program.calls(719, "cu.cuCtxSynchronize()\ncu.cuCtxSynchronize()");
}

#[test]
fn failed_free_keeps_the_block() {
    let mut program = Machine::new()
        .env("SIMGPU_FAULTS", "cuMemFree_v2=400@1")
        .started();
    program.run("address = alloc(MIB)\nput(address, b'kept')");
    program.calls(400, "cu.cuMemFree_v2(address)");
    assert_eq!(program.ask("look(address, 4)"), "b'kept'");
    program.calls(0, "cu.cuMemFree_v2(address)");
}

#[test]
fn fault_applies_to_one_flavour_of_a_function() {
    let mut program = Machine::new()
        .env("SIMGPU_FAULTS", "cuLaunchKernel_ptsz=1")
        .started();
    program.run("spin = kernel('gcgroup_spin')");
    program.calls(0, "launch(spin, 1)");
    program.calls(
        1,
        "cu.cuLaunchKernel_ptsz(spin, 1, 1, 1, 1, 1, 1, 0, 0, None, None)",
    );
}

/// Tests all functions, simulated or not; no argument is examined.
#[test]
fn every_function_can_be_made_to_fail() {
    let names = Names::read();
    let symbols = names.symbols();
    let calls: String = symbols.keys().fold(String::new(), |mut list, symbol| {
        list += &format!("'{symbol}', ");
        list
    });
    let mut program = Machine::new().env("SIMGPU_FAULTS", "cu*=46").program();
    let question = format!("[name for name in [{calls}] if getattr(cu, name)(*[0] * 12) != 46]");
    assert_eq!(program.ask(&question), "[]");
}
