//! Values that other processes hold, and leases.

use super::{Case, Line, Place, Subject, shown};
use crate::tree::Group;
use crate::tree::settings::{Holder, LEASE, Setting};

impl<'a> Case<'a> {
    /// Returns a line for each value of a setting that a process holds, or that an expired lease brings.
    pub(super) fn held(&self, setting: &'static Setting, places: &[Place<'a>]) -> Vec<Line> {
        let on = |place: &Place<'a>| {
            let file = self.file(*place, setting.name);
            let holds = place.settings().holds.iter();
            let here = holds.filter(|hold| hold.is_of(setting, self.uuid(place.device)));
            let lines = here.map(|hold| {
                let (value, Holder { pid, uid, .. }) = (shown(setting, hold.value), hold.holder);
                Line::new(match place.entity {
                    Subject::Group(group) if hold.holder.is_lease() => {
                        format!("{file} {value}: the lease of {} has expired", self.name(group.id))
                    }
                    _ => format!("{file} {value}: held by pid {pid} of uid {uid}, until it ends"),
                })
            });
            lines.collect::<Vec<_>>()
        };
        places.iter().flat_map(on).collect()
    }

    /// Returns the groups whose leases have expired: that of the subject and those above.
    pub(super) fn expired(&self) -> impl Iterator<Item = Place<'a>> {
        let places = self.places().into_iter();
        places.filter(|place| {
            let has_expired = |group: &Group| group.has_lease_expired;
            place.device.is_none() && matches!(place.entity, Subject::Group(group) if has_expired(group))
        })
    }

    /// Returns what is to be said about the value of `gcgroup.lease` in a place; `None` for other settings.
    pub(super) fn lease(&self, setting: &Setting, place: Place<'_>) -> Option<String> {
        match place.entity {
            Subject::Group(group) if setting == LEASE => self.state.describe_lease(group),
            _ => None,
        }
    }
}
