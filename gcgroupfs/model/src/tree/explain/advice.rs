//! Advice about refusals, freezes and suspensions.

use gcgroup_abi::NO_LIMIT;

use super::{Case, Line, Place, Subject};
use crate::text::size;
use crate::tree::process::Process;
use crate::tree::refused::{Cause, Refused};
use crate::tree::settings::{COMPUTE_FREEZE, LEASE, MEMORY_LIMIT, SUSPEND, Setting, Tighter, Value};

impl<'a> Case<'a> {
    pub(super) fn advice(&self) -> Vec<Line> {
        let mut texts = Vec::new();
        let refusals = match self.subject {
            Subject::Process(process) => &process.refusals.last,
            Subject::Group(group) => &group.refusals,
        };
        for refused in refusals.iter().rev() {
            if refused.cause == Cause::Memory {
                texts
                    .push("free memory of the GPU: gcgroupfs ls shows the processes that hold it".to_owned());
                continue;
            }
            let binding: Vec<_> = self.binding(refused).collect();
            if binding.is_empty() {
                texts.push(format!("{} fits now: try again", size(refused.bytes)));
            }
            let changes = binding.into_iter();
            texts.extend(changes.filter_map(|place| self.change(MEMORY_LIMIT, place, "SIZE")));
        }
        let is_refused = refusals.iter().next().is_some();
        if let Subject::Process(process) = self.subject
            && is_refused
            && !process.can_swap()
        {
            texts.push(
                "start the program with gcgroupfs run --swap, so that memory can move to the host".to_owned(),
            );
        }
        for place in self.places() {
            let value = place.settings().written(COMPUTE_FREEZE, self.uuid(place.device));
            if value.is_some_and(|value| value.is_on()) {
                texts.extend(self.change(COMPUTE_FREEZE, place, "0"));
            }
        }
        for place in self.expired() {
            texts.extend(self.change(LEASE, place, "SECONDS"));
        }
        for place in self.places() {
            let value = place.settings().written(SUSPEND, self.uuid(place.device));
            if value.is_some_and(|value| value.is_on()) {
                texts.extend(self.change(SUSPEND, place, "0"));
            }
        }
        let mut lines: Vec<Line> = Vec::new();
        for text in texts {
            if !lines.iter().any(|line| line.text == text) {
                lines.push(Line::new(text));
            }
        }
        lines
    }

    /// Returns the places whose limits would refuse the allocation now, the nearest first.
    fn binding(&self, refused: &Refused) -> impl Iterator<Item = Place<'a>> {
        let (slot, bytes) = (refused.device, refused.bytes.max(1));
        self.places().into_iter().filter(move |place| {
            let limit = place.settings().written(MEMORY_LIMIT, self.uuid(place.device));
            let limit = limit.map_or(NO_LIMIT, Value::number);
            place.device.is_none_or(|device| device == slot)
                && self.used(*place).saturating_add(bytes) > limit
        })
    }

    /// Returns the command that changes a setting, and the user it needs; `None` if the asker may not see
    /// the group.
    fn change(&self, setting: &Setting, place: Place<'_>, value: &str) -> Option<String> {
        let owner = match place.entity {
            Subject::Process(Process { identity, .. }) => identity.uid,
            Subject::Group(group) if !self.visible.contains(&group.id) => return None,
            Subject::Group(group) => group.access.owner.uid,
        };
        let file = self.file(place, setting.name);
        let file = file.trim_start_matches('/');
        let root = place.settings().root(setting, self.uuid(place.device));
        let is_bound = root.is_some_and(|root| match setting.tighter {
            Tighter::Any => false,
            _ => root != setting.default,
        });
        // The user that runs the daemon has root's rights there.
        let by = match (owner, is_bound) {
            (0, _) => "as root".to_owned(),
            (owner, true) if owner == self.state.owner.uid => format!("as uid {owner} or root"),
            (_, true) => "as root, because root has set it".to_owned(),
            (owner, false) => format!("as uid {owner} or root"),
        };
        Some(format!("gcgroupfs set {file} {value}   ({by})"))
    }
}
