//! Advice about refusals, freezes and suspensions.

use super::{Case, Line, Place, Subject};
use crate::tree::process::Process;
use crate::tree::refused::Cause;
use crate::tree::settings::{COMPUTE_FREEZE, LEASE, MEMORY_LIMIT, SUSPEND, Setting, Tighter};

impl<'a> Case<'a> {
    pub(super) fn advice(&self) -> Vec<Line> {
        let mut texts = Vec::new();
        let refusals = match self.subject {
            Subject::Process(process) => &process.refusals.last,
            Subject::Group(group) => &group.refusals,
        };
        let mut is_refused = false;
        for refused in refusals.iter().rev() {
            is_refused = true;
            let place = match refused.cause {
                Cause::Memory => {
                    texts.push(
                        "free memory of the GPU: gcgroupfs ls shows the processes that hold it".to_owned(),
                    );
                    continue;
                }
                Cause::Group(group, device) => self.state.groups.get(&group).map(|group| Place {
                    entity: Subject::Group(group),
                    device,
                }),
                Cause::Device => {
                    let is_known = refused.device < self.state.devices.len();
                    is_known.then(|| self.own(Some(refused.device)))
                }
                Cause::Process => Some(self.own(None)),
            };
            texts.extend(place.and_then(|place| self.change(MEMORY_LIMIT, place, "SIZE")));
        }
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

    fn own(&self, device: Option<usize>) -> Place<'a> {
        Place {
            entity: self.subject,
            device,
        }
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
        let by = match (owner, is_bound) {
            (0, _) => "as root".to_owned(),
            (_, true) => "as root, because root has set it".to_owned(),
            (owner, false) => format!("as uid {owner} or root"),
        };
        Some(format!("gcgroupfs set {file} {value}   ({by})"))
    }
}
