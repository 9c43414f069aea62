//! Initializations of the library.

use parking_lot::Mutex;
use simgpu::Machine;

use crate::result::{Error, Result};
use crate::sample;

/// Number of initializations without a matching shutdown.
static USERS: Mutex<u32> = Mutex::new(0);

/// Returns the machine if the library is initialized.
pub(crate) fn machine() -> Result<&'static Machine> {
    if *USERS.lock() == 0 {
        return Err(Error::Uninitialized);
    }
    attached()
}

fn attached() -> Result<&'static Machine> {
    Machine::attached().map_err(|_| Error::DriverNotLoaded)
}

/// Counts an initialization.
pub(crate) fn add() -> Result {
    let mut users = USERS.lock();
    let machine = attached()?;
    if *users == 0 {
        sample::begin(machine);
    }
    *users = users.saturating_add(1);
    Ok(())
}

/// Counts a shutdown.
pub(crate) fn remove() -> Result {
    let mut users = USERS.lock();
    *users = users.checked_sub(1).ok_or(Error::Uninitialized)?;
    Ok(())
}
