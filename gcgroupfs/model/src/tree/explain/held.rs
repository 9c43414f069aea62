//! Values that other processes hold, and leases.

use super::{Case, Line, Place, Subject, shown};
use crate::tree::settings::{LEASE, Setting};
use crate::tree::{Group, lease};

impl<'a> Case<'a> {
    /// Returns a line for each value of a setting that a process holds, or that an expired lease brings.
    pub(super) fn held(&self, setting: &'static Setting, places: &[Place<'a>]) -> Vec<Line> {
        let mut lines = Vec::new();
        for place in places {
            let holds = match place.entity {
                Subject::Process(process) => &process.holds,
                Subject::Group(group) => &group.holds,
            };
            let here = holds.iter().filter(|hold| {
                hold.device.as_deref() == self.uuid(place.device) && hold.setting() == Some(setting)
            });
            let file = self.file(*place, setting.name);
            lines.extend(here.map(|hold| {
                let (value, holder) = (shown(setting, hold.value), hold.holder);
                let (pid, uid) = (holder.pid, holder.uid);
                Line::new(format!(
                    "{file} {value}: held by pid {pid} of uid {uid}, until it ends"
                ))
            }));
            if let (Subject::Group(group), None) = (place.entity, place.device)
                && let Some(held) = lease::held(group).filter(|held| held.setting == setting)
            {
                let value = shown(setting, held.value);
                lines.push(Line::new(format!(
                    "{file} {value}: the lease of {} has expired",
                    self.name(group.id)
                )));
            }
        }
        lines
    }

    /// Returns the groups whose leases have expired: that of the subject and those above.
    pub(super) fn expired(&self) -> impl Iterator<Item = Place<'a>> {
        let places = self.places().into_iter();
        places.filter(|place| {
            let has_expired = |group: &Group| group.lease.has_expired;
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
