//! Rules: the group of a process that registers, and what is set for it then. Only the first rule that
//! matches a process applies.
//!
//! Rules are read from the configuration and know no tree: the caller carries out their verdict.

mod configured;
mod facts;
mod list;
mod matching;
mod names;
mod pod;
mod settings;
mod template;

use serde::Deserialize;
use toml::Spanned;

use self::matching::Match;
use self::template::Template;
use crate::text::word;

pub use self::configured::{ConfiguredGroup, ConfiguredGroups};
pub use self::facts::Facts;
pub use self::names::{Names, with_names};
pub use self::pod::PodCgroup;
pub use self::settings::RuleSettings;

/// All `[[rule]]` tables, in the order in which they are evaluated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Rules(Vec<Spanned<Rule>>);

/// One rule of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// For people only.
    name: Option<String>,
    /// Line of the configuration, from 1; 0 if not known.
    #[serde(skip)]
    line: usize,
    r#match: Match,
    group: Option<GroupOf>,
    process: ProcessOf,
    /// Whether CUDA is refused to a process that cannot be governed in its group.
    required: bool,
}

/// `group.*`: the group that the process joins, and what is set when that group is made.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupOf {
    name: Template,
    /// Whether the group is made with the process's user as its owner.
    #[serde(default)]
    delegate: bool,
    #[serde(default, deserialize_with = "settings::memory_of_group")]
    memory: RuleSettings,
    #[serde(default, deserialize_with = "settings::compute")]
    compute: RuleSettings,
    #[serde(default, deserialize_with = "settings::gcgroup_of_group")]
    gcgroup: RuleSettings,
}

/// `process.*`: what is set for the process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ProcessOf {
    #[serde(deserialize_with = "settings::memory_of_process")]
    memory: RuleSettings,
    #[serde(deserialize_with = "settings::compute")]
    compute: RuleSettings,
    #[serde(deserialize_with = "settings::gcgroup_of_process")]
    gcgroup: RuleSettings,
}

/// Verdict of the rules on a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// `None`: no rule names one.
    pub group: Option<Group>,
    /// Whether the rule examined the group that the process asks for, and so decides about it.
    pub heeds_wish: bool,
    pub process: RuleSettings,
    /// Whether CUDA is refused to the process unless it is governed in its group.
    pub required: bool,
    /// Number, line and name of the rule, for people to read; `None` if none matches.
    pub rule: Option<String>,
}

/// The group that a rule names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Path below the root, as `a/b`.
    pub path: String,
    /// Number of leading directories that the rule names. The others come from the process's wish and are
    /// made on its user's account.
    pub nr_ruled: usize,
    /// Whether the group is made with the process's user as its owner.
    pub delegate: bool,
    /// Settings of the group when it is made.
    pub settings: RuleSettings,
}

/// Verdict of one rule on a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement<'a> {
    /// Number of the rule, from 1.
    pub number: usize,
    pub name: Option<&'a str>,
    /// Offset of the rule in the configuration's text, bytes.
    pub offset: usize,
    /// The verdict, or why the rule does not match, for people to read.
    pub verdict: Result<Verdict, String>,
}

impl Group {
    /// Returns the group in which jobs of the process's user begin where no rule names one: `users/NAME`,
    /// owned by the user.
    pub fn of_user(facts: &Facts) -> Self {
        Self {
            path: format!("users/{}", template::user_name(facts)),
            nr_ruled: 1,
            delegate: true,
            settings: RuleSettings::default(),
        }
    }
}

impl Rules {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether any rule has [`Verdict::required`].
    pub fn any_requires(&self) -> bool {
        self.0.iter().any(|rule| rule.get_ref().required)
    }

    /// Returns whether any rule makes a group with a list of devices.
    pub fn any_limits_devices(&self) -> bool {
        let groups = self.0.iter().filter_map(|rule| rule.get_ref().group.as_ref());
        groups.into_iter().any(|group| group.gcgroup.devices().is_some())
    }

    /// Returns whether any rule needs [`Facts::user`].
    pub fn want_user(&self) -> bool {
        let groups = self.0.iter().filter_map(|rule| rule.get_ref().group.as_ref());
        groups.into_iter().any(|group| group.name.wants_user())
    }

    /// Returns whether any rule needs [`Facts::container`].
    pub fn want_container(&self) -> bool {
        let groups = self.0.iter().filter_map(|rule| rule.get_ref().group.as_ref());
        groups.into_iter().any(|group| group.name.wants_container())
    }

    /// Returns the verdict of the first rule that matches; an empty verdict if none does.
    pub fn verdict(&self, facts: &Facts) -> Verdict {
        let mut verdicts = self.0.iter().zip(1..).map(|(rule, number)| {
            let rule = rule.get_ref();
            let verdict = rule.judge(facts)?;
            Ok::<_, String>(Verdict {
                rule: Some(rule.place(number)),
                ..verdict
            })
        });
        verdicts.find_map(Result::ok).unwrap_or_default()
    }

    /// Notes in which line of the configuration each rule begins, for [`Verdict::rule`].
    pub fn note_lines(&mut self, text: &str) {
        for rule in &mut self.0 {
            let before = text.get(..rule.span().start).unwrap_or_default();
            rule.get_mut().line = before.matches('\n').count() + 1;
        }
    }

    /// Returns the verdict of each rule, regardless of the rules before it.
    pub fn judgements(&self, facts: &Facts) -> impl Iterator<Item = Judgement<'_>> {
        self.0.iter().zip(1..).map(|(rule, number)| Judgement {
            number,
            name: rule.get_ref().name.as_deref(),
            offset: rule.span().start,
            verdict: rule.get_ref().judge(facts),
        })
    }
}

impl Rule {
    /// Returns number, line and name.
    fn place(&self, number: usize) -> String {
        let name = self.name.as_deref();
        let name = name.map_or(String::new(), |name| format!(" ({})", word(name)));
        format!("rule {number}, line {} of the configuration{name}", self.line)
    }

    fn judge(&self, facts: &Facts) -> Result<Verdict, String> {
        self.r#match.check(facts)?;
        let group = self.group.as_ref().map(|group| {
            Ok::<_, String>(Group {
                path: group.name.render(facts)?,
                nr_ruled: group.name.nr_before_wish().unwrap_or(usize::MAX),
                delegate: group.delegate,
                settings: group.memory.with(&group.compute).with(&group.gcgroup),
            })
        });
        Ok(Verdict {
            group: group.transpose()?,
            heeds_wish: self.r#match.asks_for_wish()
                || self
                    .group
                    .as_ref()
                    .is_some_and(|group| group.name.nr_before_wish().is_some()),
            process: (self.process.memory)
                .with(&self.process.compute)
                .with(&self.process.gcgroup),
            required: self.required,
            rule: None,
        })
    }
}

#[cfg(test)]
mod tests;
