//! Rules: which group a process belongs to when it registers, and what is set for it then. The first rule that is for
//! a process holds, and no other.
//!
//! They are read from the configuration and know no tree: what they say is carried out by whoever asks.

mod facts;
mod given;
mod list;
mod matching;
mod template;

use serde::Deserialize;
use toml::Spanned;

use self::given::{Compute, Memory};
use self::matching::Match;
use self::template::Template;

pub use self::facts::{Facts, user_name};
pub use self::given::Given;

/// `[[rule]]`, all of them, in the order in which they are asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Rules(Vec<Spanned<Rule>>);

/// One rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// For people.
    name: Option<String>,
    r#match: Match,
    group: Option<GroupOf>,
    process: ProcessOf,
}

/// `group.*`: where the process goes, and what is set for that group when it is made.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupOf {
    name: Template,
    /// Whether it is made as the process's user's.
    #[serde(default)]
    delegate: bool,
    #[serde(default)]
    memory: Memory,
    #[serde(default)]
    compute: Compute,
}

/// `process.*`: what is set for the process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ProcessOf {
    memory: Memory,
    compute: Compute,
}

/// What is to become of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// None: no rule says.
    pub group: Option<Group>,
    /// Whether the rule has looked at what the process wishes, and so its word on it is the last.
    pub heeds_wish: bool,
    pub process: Given,
}

/// The group that a rule names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Below the root, as `a/b`.
    pub path: String,
    /// How many names of it are the rule's own; those that follow are the wish's, and made in its user's account.
    pub nr_ruled: usize,
    /// Made as the process's user's.
    pub delegate: bool,
    /// Set when it is made.
    pub given: Given,
}

/// What one rule says of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement<'a> {
    /// Beginning with 1.
    pub number: usize,
    pub name: Option<&'a str>,
    /// Where in the text it begins, in bytes.
    pub offset: usize,
    /// Why it is not for the process, for people to read.
    pub verdict: Result<Verdict, String>,
}

impl Rules {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any of them needs [`Facts::user`].
    pub fn want_user(&self) -> bool {
        let groups = self.0.iter().filter_map(|rule| rule.get_ref().group.as_ref());
        groups.into_iter().any(|group| group.name.wants_user())
    }

    /// What the first rule says that is for the process; nothing if none is.
    pub fn verdict(&self, facts: &Facts) -> Verdict {
        let verdicts = self.0.iter().map(|rule| rule.get_ref().judge(facts));
        verdicts.into_iter().find_map(Result::ok).unwrap_or_default()
    }

    /// What each rule says of the process by itself.
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
    fn judge(&self, facts: &Facts) -> Result<Verdict, String> {
        self.r#match.check(facts)?;
        let group = self.group.as_ref().map(|group| {
            Ok::<_, String>(Group {
                path: group.name.render(facts)?,
                nr_ruled: group.name.nr_before_wish().unwrap_or(usize::MAX),
                delegate: group.delegate,
                given: Given::new(&group.memory, &group.compute),
            })
        });
        Ok(Verdict {
            group: group.transpose()?,
            heeds_wish: self.r#match.asks_for_wish()
                || self
                    .group
                    .as_ref()
                    .is_some_and(|group| group.name.nr_before_wish().is_some()),
            process: Given::new(&self.process.memory, &self.process.compute),
        })
    }
}

#[cfg(test)]
mod tests;
