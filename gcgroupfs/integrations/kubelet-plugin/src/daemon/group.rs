//! Group of a pod or of a container: what is granted to it, and its settings.

use anyhow::{anyhow, bail};
use gcgroup_client::Client;
use nix::errno::Errno;

use super::Limits;
use crate::cards::Card;
use crate::policy::{LIMIT, Setting};

/// Group of a pod or of a container.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) path: String,
    pub(super) limits: &'a Limits,
    pub(super) settings: Vec<&'a Setting>,
}

impl Group<'_> {
    /// Returns whether the limit over all cards, as the daemon shows it, is as it is set.
    pub(super) fn is_set(&self, limit: &str) -> bool {
        let setting = self.settings.iter().find(|setting| setting.file == LIMIT);
        setting.is_none_or(|setting| {
            self.value(setting)
                .is_ok_and(|value| value.as_deref() == Some(limit))
        })
    }

    /// Returns what is written for a setting, if anything is.
    fn value(&self, setting: &Setting) -> Result<Option<String>, String> {
        let is_default_limit = setting.file == LIMIT && setting.value == Ok(None);
        if is_default_limit {
            return Ok(Some(shown(sum(self.limits))));
        }
        setting.value.clone()
    }

    /// Limits the group on each card to what is granted.
    pub(super) fn grant(&self, client: &mut Client, cards: &[Card]) -> anyhow::Result<()> {
        let path = &self.path;
        make(client, path)?;
        for card in cards {
            let limit = self.limits.get(&card.uuid).copied().unwrap_or(Some(0));
            set(client, &format!("{path}/{}/{LIMIT}", card.index), &shown(limit))?;
        }
        if let Some(granted) = sum(self.limits)
            && self.number(client, LIMIT)? > granted
        {
            set(client, &format!("{path}/{LIMIT}"), &shown(Some(granted)))?;
        }
        Ok(())
    }

    fn text(&self, client: &mut Client, file: &str) -> anyhow::Result<String> {
        let path = format!("{}/{file}", self.path);
        let text = client.get(&path)?;
        text.map_err(|refusal| anyhow!("cannot read {path}: {refusal}"))
    }

    /// Reads a number, or `max`.
    fn number(&self, client: &mut Client, file: &str) -> anyhow::Result<u64> {
        Ok(self.text(client, file)?.trim().parse().unwrap_or(u64::MAX))
    }

    /// Writes a setting. Returns why it is refused.
    pub(super) fn write(&self, client: &mut Client, setting: &Setting) -> anyhow::Result<Result<(), String>> {
        let value = match self.value(setting) {
            Err(reason) => return Ok(Err(reason)),
            Ok(None) => return Ok(Ok(())),
            Ok(Some(value)) => value,
        };
        if setting.file == LIMIT
            && let Some(reason) = self.unfit(client, value.parse().unwrap_or(u64::MAX))?
        {
            return Ok(Err(reason.to_owned()));
        }
        let written = client.set(&format!("{}/{}", self.path, setting.file), &value)?;
        Ok(written.map_err(|refusal| refusal.reason()))
    }

    /// Returns why the limit over all cards cannot be this: more than is granted, or less than is in use.
    fn unfit(&self, client: &mut Client, limit: u64) -> anyhow::Result<Option<&'static str>> {
        if sum(self.limits).is_some_and(|granted| limit > granted) {
            return Ok(Some("more than the resources of the pod or container grant"));
        }
        let is_lowered = limit < self.number(client, LIMIT)?;
        let current = self.number(client, "memory.current")?;
        if is_lowered && limit < current.saturating_sub(self.movable(client, current)?) {
            return Ok(Some(
                "less than is in use and cannot move to host memory (memory-swap-max)",
            ));
        }
        Ok(None)
    }

    /// Returns how many of the bytes in use may move to host memory.
    fn movable(&self, client: &mut Client, current: u64) -> anyhow::Result<u64> {
        let stat = self.text(client, "memory.stat")?;
        let most = self.number(client, "memory.swap.max")?;
        Ok(movable(&stat, current).min(most.saturating_sub(self.number(client, "memory.swap.current")?)))
    }
}

/// Returns how many of the bytes in use are neither pinned nor of contexts, by the text of `memory.stat`.
fn movable(stat: &str, current: u64) -> u64 {
    let words = stat.lines().filter_map(|line| line.split_once(' '));
    let fixed = words.filter(|(key, _)| matches!(*key, "context" | "pinned_unswappable"));
    fixed.fold(current, |rest, (_, bytes)| {
        rest.saturating_sub(bytes.trim().parse().unwrap_or(u64::MAX))
    })
}

/// Makes a group, if it is not there.
///
/// # Errors
/// The daemon does not answer, or refuses.
pub(super) fn make(client: &mut Client, path: &str) -> anyhow::Result<()> {
    match client.make(path)? {
        Err(refusal) if refusal.errno != Errno::EEXIST => {
            bail!("cannot make group {path}: {}", refusal.reason())
        }
        _ => Ok(()),
    }
}

/// Writes a control file.
///
/// # Errors
/// The daemon does not answer, or refuses.
fn set(client: &mut Client, path: &str, value: &str) -> anyhow::Result<()> {
    client
        .set(path, value)?
        .map_err(|refusal| anyhow!("cannot write {value} to {path}: {}", refusal.reason()))
}

/// Returns the limit over all cards.
pub(super) fn sum(limits: &Limits) -> Option<u64> {
    let mut limits = limits.values();
    limits.try_fold(0_u64, |sum, limit| limit.map(|limit| sum.saturating_add(limit)))
}

/// Returns a limit as the daemon shows it.
fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string())
}

#[cfg(test)]
mod tests {
    #[test]
    fn pinned_memory_and_contexts_do_not_move() {
        let movable = |stat| super::movable(stat, 100);
        assert_eq!(
            movable("linear 90\ncontext 10\npinned_unswappable 30\nswapped 7\n"),
            60
        );
        assert_eq!(movable("context 10\npinned_unswappable 95\n"), 0);
        assert_eq!(movable("pinned_unswappable odd\n"), 0);
    }
}
