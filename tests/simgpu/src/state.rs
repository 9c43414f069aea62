//! The simulated machine as one process sees it: attached once, for the lifetime of the process.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use memmap2::{MmapOptions, MmapRaw};

use crate::config::{self, Config};
use crate::host::Host;
use crate::layout::{Layout, MAX_PROCESSES};
use crate::lock::{Exclusive, Locks, open_shared};
use crate::mig::{Instance, Mig};

/// An attached machine.
#[derive(Debug)]
pub struct Machine {
    map: MmapRaw,
    pub(crate) locks: Locks,
    config: Config,
    dir: PathBuf,
    host: Option<Host>,
}

impl Machine {
    /// Returns the machine in [`config::directory`], attached on the first call and created if it does not
    /// exist.
    ///
    /// If no living process has attached to the directory, a new machine is created from the environment;
    /// otherwise the first process's configuration applies.
    pub fn attached() -> io::Result<&'static Machine> {
        static MACHINE: OnceLock<Result<Machine, (io::ErrorKind, String)>> = OnceLock::new();
        let attach = || Machine::attach(&config::directory(), Config::from_env());
        match MACHINE.get_or_init(|| attach().map_err(|e| (e.kind(), e.to_string()))) {
            Ok(machine) => Ok(machine),
            Err((kind, text)) => Err(io::Error::new(*kind, text.clone())),
        }
    }

    /// Attaches to the machine in `dir`; `config` is used if a new one is created.
    ///
    /// A process must attach to a directory at most once with each copy of this library and never detach: see
    /// `lock`.
    pub fn attach(dir: &Path, config: Config) -> io::Result<Machine> {
        make_directory(dir)?;
        let mut machine = Machine::open(dir, config)?;
        let file = open_shared(&dir.join("state"))?;
        let _exclusive = Exclusive::hold(&file)?;
        let published = machine.layout().config();
        match published {
            Some(config) if machine.locks.anyone_attached() => machine.config = config,
            _ => machine.layout().publish(&config),
        }
        machine.locks.attach()?;
        machine.host = Host::open(dir)?;
        machine.tell_host(MAX_PROCESSES);
        Ok(machine)
    }

    /// Maps the state file, whatever its content.
    pub(crate) fn open(dir: &Path, config: Config) -> io::Result<Machine> {
        let locks = Locks::open(dir)?;
        let file = open_shared(&dir.join("state"))?;
        let bytes = size_of::<Layout>();
        {
            let _exclusive = Exclusive::hold(&file)?;
            if file.metadata()?.len() < bytes as u64 {
                file.set_len(bytes as u64)?;
            }
        }
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        Ok(Machine {
            map,
            locks,
            config,
            dir: dir.to_owned(),
            host: None,
        })
    }

    /// Creates a directory in the machine's directory, accessible to all its users.
    pub(crate) fn make_directory(&self, dir: &Path) -> io::Result<()> {
        make_directory(dir)
    }

    pub(crate) fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// Returns the machine's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the current MIG configuration.
    pub fn mig(&self) -> Mig {
        self.layout().mig()
    }

    /// Creates instances while processes use the machine: `text` is as in `SIMGPU_MIG` and begins with the
    /// existing instances. Returns whether the devices can be divided so. Processes that have initialized the
    /// driver before do not see new instances, as with NVIDIA's driver.
    pub fn divide(&self, text: &str) -> bool {
        let wanted = Mig::parse(text, self.config.devices, self.config.memory);
        let wanted = wanted.filter(|mig| {
            self.mig()
                .instances()
                .zip(mig.instances())
                .all(|(is, will)| is == will)
        });
        wanted.inspect(|mig| self.layout().divide(mig)).is_some()
    }

    /// Returns the machine's directory.
    pub fn directory(&self) -> &Path {
        &self.dir
    }

    /// Returns whether a living process owns the slot.
    pub fn is_taken(&self, slot: usize) -> bool {
        self.locks.slot_owner(slot).is_some()
    }

    /// Returns the number of devices and instances together.
    pub(crate) fn places(&self) -> usize {
        self.config.devices + self.mig().instances().count()
    }

    /// Returns the instance with this index; `None` for a device.
    pub(crate) fn instance(&self, index: usize) -> Option<Instance> {
        let index = index.checked_sub(self.config.devices)?;
        self.mig().instances().nth(index)
    }

    /// Returns the bytes of memory of a device or instance.
    pub(crate) fn memory_of(&self, index: usize) -> u64 {
        self.instance(index)
            .map_or(self.config.memory, |instance| instance.memory)
    }

    /// Publishes the available host memory; `own` is the caller's slot.
    pub(crate) fn tell_host(&self, own: usize) {
        if let Some(host) = &self.host {
            let slots = self.layout().slots().enumerate();
            host.tell(
                slots
                    .filter(|(index, _)| *index == own || self.is_taken(*index))
                    .map(|(_, slot)| slot),
            );
        }
    }

    /// Claims a slot among the processes that share the machine. At most once per process.
    pub(crate) fn claim(&self) -> io::Result<usize> {
        let layout = self.layout();
        let slot = self.locks.claim_slot(MAX_PROCESSES, |slot| {
            for (device, left) in layout.device.iter().zip(&layout.slot[slot].device) {
                device
                    .busy_of_gone_ns
                    .fetch_add(left.busy_ns.load(Relaxed), Relaxed);
            }
            // Exports of the slot's last owner have no owner now.
            for export in &layout.export {
                let owner = slot as u64 + 1;
                let _ = export.owner.compare_exchange(owner, 0, AcqRel, Relaxed);
            }
            layout.slot[slot].clear();
            layout.slot[slot].pid.store(std::process::id(), Relaxed);
            layout.claimed.fetch_max(slot as u64 + 1, Release);
        })?;
        Ok(slot)
    }

    pub(crate) fn layout(&self) -> &Layout {
        // SAFETY: the mapping is page-aligned, as long as a Layout and lives as long as self; a Layout
        // consists of atomic integers only, for which any bytes are valid.
        unsafe { &*self.map.as_ptr().cast::<Layout>() }
    }
}

fn make_directory(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777))
}
