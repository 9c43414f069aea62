//! Conditions of a rule.

use serde::Deserialize;

use super::Facts;
use super::list::{Gid, List, Pattern, Uid};
use crate::text::word;

/// Conditions that must all hold; of a list, one value must.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Match {
    uid: Option<List<Uid>>,
    /// Effective or supplementary.
    gid: Option<List<Gid>>,
    /// Full path of the program's file.
    exe: Option<List<Pattern>>,
    comm: Option<List<Pattern>>,
    /// Path of the kernel cgroup, in any of several hierarchies.
    cgroup: Option<List<Pattern>>,
    /// The group that it asks for.
    wish: Option<List<Pattern>>,
}

impl Match {
    pub(super) fn asks_for_wish(&self) -> bool {
        self.wish.is_some()
    }

    /// Checks the conditions against a process.
    ///
    /// # Errors
    /// Why the rule does not match, for people to read.
    pub(super) fn check(&self, facts: &Facts) -> Result<(), String> {
        if let Some(wanted) = &self.uid
            && !wanted.iter().any(|uid| uid.number == facts.uid)
        {
            return Err(format!("uid {} is not {wanted}", facts.uid));
        }
        if let Some(wanted) = &self.gid
            && !wanted.iter().any(|gid| facts.is_in_group(gid.number))
        {
            return Err(format!("it is not in group {wanted}"));
        }
        if let Some(wanted) = &self.exe {
            let Some(exe) = &facts.exe else {
                return Err("its executable is not known".to_owned());
            };
            if !wanted.iter().any(|pattern| pattern.matches(exe)) {
                let exe = exe.to_string_lossy();
                return Err(format!("exe {} is not {wanted}", word(&exe)));
            }
        }
        if let Some(wanted) = &self.comm
            && !wanted.iter().any(|pattern| pattern.matches(&*facts.comm))
        {
            return Err(format!("comm {} is not {wanted}", facts.comm));
        }
        if let Some(wanted) = &self.cgroup
            && !wanted
                .iter()
                .any(|pattern| facts.cgroups.iter().any(|path| pattern.matches(path)))
        {
            let cgroups: Vec<String> = facts.cgroups.iter().map(|path| word(path).to_string()).collect();
            return Err(format!("cgroup {} is not {wanted}", cgroups.join(" or ")));
        }
        if let Some(wanted) = &self.wish {
            let Some(wish) = &facts.wish else {
                return Err("it asks for no group".to_owned());
            };
            if !wanted.iter().any(|pattern| pattern.matches(wish)) {
                return Err(format!("wish {} is not {wanted}", word(wish)));
            }
        }
        Ok(())
    }
}
