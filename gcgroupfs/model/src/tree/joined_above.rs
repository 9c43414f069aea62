//! Processes that hold more than a limit when they join: they began while no daemon governed them.

use super::settings::MEMORY_LIMIT;
use super::{Notice, ProcessId, State, Tree, usage};

impl Tree {
    /// Counts (`over_limit`) if a process that has just joined for the first time holds more than its
    /// `memory.limit`, or makes a group exceed its limit. Returns that in words.
    pub fn count_joined_above(&self, id: ProcessId) -> Option<String> {
        self.update(|state, notices| state.count_joined_above(id, notices))
    }
}

impl State {
    fn count_joined_above(&mut self, id: ProcessId, notices: &mut Vec<Notice>) -> Option<String> {
        let process = self.processes.get(&id)?;
        let places: Vec<Option<usize>> = [None]
            .into_iter()
            .chain((0..self.devices.len()).map(Some))
            .collect();
        let held = |place: Option<usize>| usage::current(process, place, &self.devices);
        let limit = |place: Option<usize>| {
            let device = place.and_then(|slot| self.devices.get(slot));
            let uuid = device.map(|device| device.uuid_text.as_str());
            process.settings.get(MEMORY_LIMIT, uuid).number()
        };
        let own: Vec<_> = places
            .iter()
            .copied()
            .filter(|place| held(*place) > limit(*place))
            .collect();
        let groups = self.chain(process.group).into_iter();
        let mut groups = groups.flat_map(|group| places.iter().map(move |place| (group, *place)));
        // The innermost group of those that had room before.
        let group = groups.find(|(group, place)| {
            let excess = self.grants.excess(*group, *place);
            excess > 0 && excess <= held(*place)
        });
        if own.is_empty() && group.is_none() {
            return None;
        }
        let of = match group {
            Some((group, _)) if own.is_empty() => format!("group {:?}", self.path(Some(group))),
            _ => "the process".to_owned(),
        };
        let text = format!(
            "joins with {} bytes of device memory, which exceeds memory.limit of {of}: it gets no more",
            held(None)
        );
        let process = self.processes.get_mut(&id)?;
        for place in own {
            if let Some(kept) = process.kept_mut(place) {
                kept.nr_over_limit += 1;
            }
        }
        notices.push(Notice::SettingsChanged(id));
        if let Some((group, place)) = group {
            self.count_in_group(group, place, |sums| sums.nr_over_limit += 1, notices);
            notices.extend(self.chain(Some(group)).into_iter().map(Notice::GroupChanged));
        }
        self.note_events(id, notices);
        Some(text)
    }
}
