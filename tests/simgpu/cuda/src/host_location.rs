//! Host locations at which memory can or cannot be created: `SIMGPU_HOST_LOCATIONS`.

use std::path::Path;
use std::sync::OnceLock;

use crate::abi::{CUerror, CUmemLocation, CUresult};
use crate::vmm::{LOCATION_HOST, LOCATION_HOST_NUMA};

/// A location or several, and what becomes of memory there.
struct Row {
    kind: u32,
    /// `None`: every NUMA node.
    node: Option<i32>,
    outcome: Outcome,
}

#[derive(Clone, Copy)]
enum Outcome {
    Made,
    Refused(CUerror),
    /// The process gets a SIGSEGV.
    Crash,
}

impl Row {
    fn parse(text: &str) -> Option<Row> {
        let (location, outcome) = text.split_once('=')?;
        let (kind, node) = match location.split_once(':') {
            None if location == "host" => (LOCATION_HOST, None),
            Some(("numa", "*")) => (LOCATION_HOST_NUMA, None),
            Some(("numa", node)) => (LOCATION_HOST_NUMA, Some(node.parse().ok()?)),
            _ => return None,
        };
        let outcome = match outcome {
            "ok" => Outcome::Made,
            "crash" => Outcome::Crash,
            error => Outcome::Refused(CUerror::new(error.parse().ok().filter(|&error| error > 0)?)),
        };
        Some(Row { kind, node, outcome })
    }

    fn is_for(&self, location: CUmemLocation) -> bool {
        self.kind == location.kind && self.node.is_none_or(|node| node == location.id)
    }
}

fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let list = std::env::var("SIMGPU_HOST_LOCATIONS").unwrap_or_default();
        let rows = list.split(',').map(str::trim).filter(|row| !row.is_empty());
        let parsed = rows.filter_map(|text| {
            let row = Row::parse(text);
            if row.is_none() {
                eprintln!("simgpu: SIMGPU_HOST_LOCATIONS: expected numa:NODE=ERROR, numa:*=ERROR or host=ERROR, got {text}");
            }
            row
        });
        parsed.collect()
    })
}

/// Returns whether the host has this NUMA node. A host without NUMA has node 0.
pub(crate) fn is_node(node: i32) -> bool {
    let is_named = |row: &Row| row.node == Some(node);
    node == 0
        || rows().iter().any(is_named)
        || Path::new(&format!("/sys/devices/system/node/node{node}")).exists()
}

/// Refuses to create memory at a host location, or ends the process, as requested.
pub(crate) fn check(location: CUmemLocation) -> CUresult {
    match rows()
        .iter()
        .find(|row| row.is_for(location))
        .map(|row| row.outcome)
    {
        Some(Outcome::Refused(error)) => Err(error),
        Some(Outcome::Crash) => {
            // SAFETY: passes only a number.
            unsafe { libc::raise(libc::SIGSEGV) };
            Ok(())
        }
        Some(Outcome::Made) | None => Ok(()),
    }
}
