//! The simulated driver version: `SIMGPU_DRIVER`, read by each process for itself because each loads its own
//! driver library.

use std::sync::OnceLock;

/// A driver, identified by the CUDA version of its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Value of `SIMGPU_DRIVER` that selects it.
    name: &'static str,
    /// CUDA version in the encoding of `cuDriverGetVersion`: 1000 major + 10 minor.
    pub cuda_version: i32,
    /// The driver's own version, as NVML reports it.
    pub driver_version: &'static str,
}

/// The available drivers; the last one is the newest and the default.
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
    /// Returns the driver selected for this process.
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

    /// Returns whether entries of NVML's third process list have 32 bytes, as in drivers 535.43 to 535.86,
    /// instead of 24.
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
    fn driver_name_selects_it_and_empty_name_selects_newest() {
        assert_eq!(Driver::named("").map(|driver| driver.cuda_version), Some(13050));
        assert_eq!(
            Driver::named("12.2").map(|driver| driver.cuda_version),
            Some(12020)
        );
        assert_eq!(Driver::named("12"), None);
    }
}
