//! Tests the driver versions that `SIMGPU_DRIVER` selects: newer functions are absent.

use std::fmt::Write as _;

use crate::lookups::Names;
use crate::simgpu::{Machine, Program};

/// Values of `SIMGPU_DRIVER` with the version that the driver reports.
const DRIVERS: [(&str, i32); 4] = [("11.8", 11080), ("12.2", 12020), ("12.8", 12080), ("13.5", 13050)];

fn program(driver: &str) -> Program {
    Machine::new().env("SIMGPU_DRIVER", driver).program()
}

/// Returns a list of strings in Python syntax.
fn list<'a>(strings: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::from("[");
    for string in strings {
        let separator = if text.len() > 1 { ", " } else { "" };
        write!(text, "{separator}'{string}'").unwrap();
    }
    text + "]"
}

#[test]
fn driver_reports_its_version() {
    for (driver, version) in DRIVERS {
        let mut program = program(driver);
        assert_eq!(
            program.ask("got(c_int, 'cuDriverGetVersion')"),
            version.to_string()
        );
        program.run("context = start()");
    }
}

#[test]
fn older_driver_exports_no_newer_symbols() {
    let names = Names::read();
    let symbols = names.symbols();
    let all = list(symbols.keys().copied());
    for (driver, version) in DRIVERS {
        let newer = symbols
            .iter()
            .filter(|(_, since)| **since > version)
            .map(|(symbol, _)| *symbol);
        let absent = program(driver).ask(&format!("[name for name in {all} if not cu.has(name)]"));
        assert_eq!(absent, list(newer), "{driver}");
    }
    assert_eq!(program("11.8").ask("cu.has('cuGetProcAddress_v2_ptsz')"), "False");
}

#[test]
fn older_driver_look_up_of_newer_names_fails() {
    let asked = |driver: &str, name: &str, version: i32| {
        let mut program = program(driver);
        program.run("function, status = c_uint64(), c_int()");
        let call = format!("cu.cuGetProcAddress_v2('{name}', function, {version}, 0, status)");
        let result = program.number(&call);
        (result, program.ask("(bool(function.value), status.value)"))
    };
    let found = || (0, "(True, 0)".to_owned());
    assert_eq!(asked("12.2", "cuMemAlloc", 12020), found());
    // A name whose first function is newer than the driver is unknown to the driver.
    assert_eq!(
        asked("12.2", "cuMemcpyBatchAsync", 13000),
        (0, "(False, 1)".to_owned())
    );
    assert_eq!(asked("12.8", "cuMemcpyBatchAsync", 13000), found());
    assert_eq!(
        asked("12.8", "cuMemcpyBatchAsync", 12020),
        (0, "(False, 2)".to_owned())
    );
    // Drivers before CUDA 13 accept a version newer than the driver; later ones reject it.
    assert_eq!(asked("12.8", "cuMemAlloc", 13050), found());
    assert_eq!(asked("13.5", "cuMemAlloc", 13060).0, 1);
}

#[test]
fn oldest_driver_has_only_the_older_look_up() {
    let mut program = program("11.8");
    assert_eq!(program.ask("cu.has('cuGetProcAddress_v2')"), "False");
    program.run("function = c_uint64()");
    program.calls(0, "cu.cuGetProcAddress('cuMemAlloc', function, 11080, 0)");
    program.calls(500, "cu.cuGetProcAddress('cuGraphAddNode', function, 12030, 0)");
}
