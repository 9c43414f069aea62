//! Jobs whose kernels differ in length: whether each gets its share of the GPU, or of a common quota.

use anyhow::Result;
use serde_json::json;

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::debts::{pair, row, start, used};
use crate::job::{now, pass};
use crate::report::{Budget, Report};

/// Kernels of a job at priority 7 or 6, of one at priority 8, and the expected ratio of their GPU time.
const PAIRS: [((u32, &str), &str, f64); 5] = [
    ((7, "20000"), "100", 2.0),
    ((7, "100"), "20000", 2.0),
    ((6, "20000"), "100", 4.0),
    ((7, "1000x30"), "500", 2.0),
    ((7, "500"), "1000x30", 2.0),
];

/// Measured time of the members of a group, seconds.
const MEMBERS: f64 = 30.0;

pub(crate) fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    for ((priority, first), second, ratio) in PAIRS {
        let measure = || {
            let [high, low] = pair(setting, "weighted", [(priority, first), (8, second)])?;
            Ok(high / low)
        };
        let name = format!("weighted: kernels of {first} us at {priority} beside {second} us at 8");
        row(setting, report, name, Budget::About(ratio, ratio / 10.0), measure)?;
    }
    for has_neighbour in [false, true] {
        let mut shares: [Vec<f64>; 2] = Default::default();
        for _ in 0..setting.repetitions {
            let each = members(setting, has_neighbour)?;
            shares.iter_mut().zip(each).for_each(|(all, one)| all.push(one));
        }
        for (usec, shares) in ["100", "20000"].iter().zip(shares) {
            let beside = if has_neighbour { ", beside a busy job" } else { "" };
            let name = format!("member with kernels of {usec} us of a group with 20 %{beside}");
            report.add(name, "%", Budget::About(10.0, 1.0), shares, json!(null));
        }
    }
    Ok(())
}

/// Returns the shares of the GPU, in percent, of two members of a group with a quota of 20 %, with kernels of
/// 100 us and 20 ms.
fn members(setting: &Setting, has_neighbour: bool) -> Result<[f64; 2]> {
    let daemon = Daemon::start(&setting.environment)?;
    daemon.make_group("members")?;
    daemon.write("members", "compute.max", "20000 100000")?;
    let _neighbour = match has_neighbour {
        true => Some(start(&daemon, Rule::Governed, "1000")?),
        false => None,
    };
    let jobs = [
        start(&daemon, Rule::Governed, "100")?,
        start(&daemon, Rule::Governed, "20000")?,
    ];
    for job in &jobs {
        daemon.write("members", "gcgroup.procs", job.pid())?;
    }
    // What was queued before is charged, and repaid.
    pass(3.0);
    let began = now();
    pass(MEMBERS * setting.scale);
    let ended = now();
    Ok(jobs.each_ref().map(|job| 100.0 * used(job, began, ended)))
}
