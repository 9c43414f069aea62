//! Which driver is simulated: `SIMGPU_DRIVER`, read by each process for itself, as each loads a driver
//! library of its own.

use std::sync::OnceLock;

/// A driver, by the CUDA version that it came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver {
    /// What `SIMGPU_DRIVER` calls it.
    name: &'static str,
    /// The CUDA version as `cuDriverGetVersion` counts: 1000 major + 10 minor.
    pub cuda_version: i32,
    /// The driver's own version, as NVML words it.
    pub driver_version: &'static str,
}

/// The drivers there are, the newest last: that is the one where nothing else is asked for.
const DRIVERS: [Driver; 4] = [
    driver("11.8", 11080, "520.61.05"),
    driver("12.2", 12020, "535.54.03"),
    driver("12.8", 12080, "570.86.10"),
    driver("13.5", 13050, "615.10"),
];

const fn driver(name: &'static str, cuda_version: i32, driver_version: &'static str) -> Driver {
    Driver {
        name,
        cuda_version,
        driver_version,
    }
}

impl Driver {
    /// The driver of this process.
    pub fn of_process() -> Driver {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        *DRIVER.get_or_init(|| {
            let name = std::env::var("SIMGPU_DRIVER").unwrap_or_default();
            Driver::named(&name).unwrap_or_else(|| {
                eprintln!("simgpu: SIMGPU_DRIVER: no driver {name}");
                NEWEST
            })
        })
    }

    /// Whether NVML's third lists of processes have entries of 32 bytes, as those of drivers 535.43 to 535.86
    /// have, and not of 24.
    pub fn has_long_processes(&self) -> bool {
        self.driver_version.starts_with("535.54.")
    }

    fn named(name: &str) -> Option<Driver> {
        if name.is_empty() {
            return Some(NEWEST);
        }
        DRIVERS.into_iter().find(|driver| driver.name == name)
    }
}

const NEWEST: Driver = DRIVERS[DRIVERS.len() - 1];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_has_its_name_and_no_name_is_the_newest() {
        assert_eq!(Driver::named("").map(|driver| driver.cuda_version), Some(13050));
        assert_eq!(
            Driver::named("12.2").map(|driver| driver.cuda_version),
            Some(12020)
        );
        assert_eq!(Driver::named("12"), None);
    }
}
