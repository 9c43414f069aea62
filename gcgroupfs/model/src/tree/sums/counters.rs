//! Table of counters: macro and row. From a row of [`Sums`] or [`Swapped`](super::Swapped)
//! follow its sums over devices, processes and groups, what is stored of it, its bounds, its line in a
//! control file, the wake-ups of `memory.events`, and the manual.

use std::sync::atomic::AtomicU64;

use gcgroup_abi::{Usage, UsageDevice};

use super::Sums;
use crate::tree::claims::Counts;

/// Row of the table of counters.
#[derive(Debug)]
pub struct Counter {
    /// The word of a device in which the process counts; `None`: counted elsewhere.
    pub(in crate::tree) on_device: Option<fn(&UsageDevice) -> &AtomicU64>,
    /// The word in which the process counts for no device.
    pub(in crate::tree) as_a_whole: Option<fn(&Usage) -> &AtomicU64>,
    /// Upper bound of what a process can have counted.
    pub(in crate::tree) most: fn(Counts) -> u64,
    pub(in crate::tree) number: fn(&mut Sums) -> &mut u64,
    /// Name of the control file that shows it, key there, and entry in the manual; `None`: none shows it.
    pub shown: Option<(&'static str, &'static str, &'static str)>,
}

impl Counter {
    /// Returns the name of the control file that shows it.
    pub fn file(&self) -> Option<&'static str> {
        self.shown.map(|(file, ..)| file)
    }

    /// Returns whether there is one number for each process, and none for devices and groups.
    fn is_of_process(&self) -> bool {
        self.on_device.is_none() && self.as_a_whole.is_some()
    }

    /// Returns key and number of each of the counters that `file` shows.
    pub(crate) fn pairs(
        rows: impl IntoIterator<Item = &'static Self>,
        file: &str,
        mut sums: Sums,
        of_process: bool,
    ) -> impl Iterator<Item = (&'static str, u64)> {
        rows.into_iter().filter_map(move |row| {
            let (place, key, _) = row.shown?;
            let is_here = place == file && (of_process || !row.is_of_process());
            is_here.then(|| (key, *(row.number)(&mut sums)))
        })
    }
}

/// Numbers that are added up one by one.
pub(in crate::tree) trait Numbers {
    /// Changes each number, given the corresponding one of `other`.
    fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64);

    /// Returns the wrapping sum.
    fn total(&self) -> u64;
}

impl Numbers for u64 {
    fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        *self = with(*self, *other);
    }

    fn total(&self) -> u64 {
        *self
    }
}

impl<const N: usize> Numbers for [u64; N] {
    fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        for (number, other) in self.iter_mut().zip(other) {
            number.combine(other, with);
        }
    }

    fn total(&self) -> u64 {
        self.iter().fold(0, |sum, number| sum.wrapping_add(*number))
    }
}

/// Defines a structure of numbers: fields, and rows of counters.
///
/// ```text
/// nr_oom = device.nr_oom, process.nr_oom, most calls as "memory.events" "oom" "allocations refused";
/// ```
///
/// A row names the words in which a process counts, on a device and as a whole, with a bound from
/// [`Counts`], if it counts in plain words; and the control file, key and description, if one shows it.
macro_rules! counters {
    (
        $(#[$meta:meta])*
        pub struct $Struct:ident $(in $part:ident)? {
            $( $(#[$field_meta:meta])* pub $field:ident: $ty:ty, )*
        }
        counters {
            $(
                $(#[$doc:meta])*
                $name:ident
                $(= $(device.$device:ident,)? $(process.$process:ident,)? most $most:ident)?
                $(as $file:literal $key:literal $shown:literal)?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $Struct {
            $( $(#[$field_meta])* #[serde(skip_serializing_if = "is_default")] pub $field: $ty, )*
            $( $(#[$doc])* #[serde(skip_serializing_if = "is_default")] pub $name: u64, )*
        }

        impl $Struct {
            fn part(sums: &mut Sums) -> &mut Self {
                &mut (*sums)$(.$part)?
            }

            /// The counters among the numbers, in the order of the control files.
            pub const COUNTERS: &[Counter] = &[$(
                Counter {
                    $(
                        $( on_device: Some(|usage| &usage.$device), )?
                        $( as_a_whole: Some(|usage| &usage.$process), )?
                        most: |most| most.$most,
                    )?
                    $( shown: Some(($file, $key, $shown)), )?
                    ..Counter::counted_elsewhere(|sums| &mut Self::part(sums).$name)
                },
            )*];
        }

        impl Numbers for $Struct {
            fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
                $( self.$field.combine(&other.$field, with); )*
                $( self.$name.combine(&other.$name, with); )*
            }

            fn total(&self) -> u64 {
                let fields = [$( self.$field.total(), )* $( self.$name, )*];
                fields.total()
            }
        }
    };
}

impl Counter {
    pub(in crate::tree) const fn counted_elsewhere(number: fn(&mut Sums) -> &mut u64) -> Self {
        Self {
            on_device: None,
            as_a_whole: None,
            most: |_| u64::MAX,
            number,
            shown: None,
        }
    }
}

pub(super) use counters;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::Ordering::Relaxed;

    use crate::files;
    use crate::tree::fixture::World;
    use crate::tree::{Notice, all_counters};

    #[test]
    fn every_counter_is_shown_where_its_row_says() {
        let world = World::new(1);
        world.join(1);
        let id = world.join(100);
        for (number, counter) in (3..).zip(all_counters()) {
            let Some((file, key, _)) = counter.shown else {
                continue;
            };
            let has = |place: &str, number: u64| {
                let text = world.show(&format!("{place}{file}"));
                text.lines()
                    .filter(|line| *line == format!("{key} {number}"))
                    .count()
                    == 1
            };
            if let Some(word) = counter.on_device {
                word(&world.usage(id).devices[0]).store(number, Relaxed);
                assert!(has("100/0/", number) && has("100/", number), "{counter:?}");
            } else if let Some(word) = counter.as_a_whole {
                word(&world.usage(id)).store(number, Relaxed);
                assert!(has("100/", number) && !has("100/0/", number), "{counter:?}");
            } else {
                assert!(has("100/", 0), "{counter:?}");
            }
        }
    }

    #[test]
    fn every_counter_has_a_key_of_its_own_in_a_file_that_lists_counters() {
        let mut keys = HashSet::new();
        for (file, key, _) in all_counters().filter_map(|counter| counter.shown) {
            assert!(keys.insert((file, key)), "{file}: {key}");
            let row = files::all().find(|row| row.name == file).unwrap();
            assert!(row.doc.contains("@COUNTERS@"), "{file}");
        }
        assert!(keys.len() > 15, "{}", keys.len());
    }

    #[test]
    fn counter_of_events_wakes_readers() {
        for counter in all_counters().filter(|counter| counter.file() == Some("memory.events")) {
            let world = World::new(1);
            let id = world.join(100);
            let Some(word) = counter.on_device else { continue };
            world.tree.rung(id);
            world.take_notices();
            word(&world.usage(id).devices[0]).store(1, Relaxed);
            world.tree.rung(id);
            let notices = world.take_notices();
            assert!(notices.contains(&Notice::Events(id)), "{counter:?}: {notices:?}");
        }
    }
}
