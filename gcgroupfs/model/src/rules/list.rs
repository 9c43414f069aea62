//! One value or a list of values in TOML, and the types of the values: a number or name, a pattern.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use serde::de::value::{I64Deserializer, StrDeserializer};
use serde::de::{Error, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::names::names;

/// One or several values. An empty list is an error: it would match nothing, which is never meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct List<T>(Vec<T>);

impl<T> List<T> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

impl<T: fmt::Display> fmt::Display for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, one) in self.0.iter().enumerate() {
            let before = if at == 0 { "" } else { ", " };
            write!(f, "{before}{one}")?;
        }
        Ok(())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one value or a list of them")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<List<T>, E> {
        let from: I64Deserializer<E> = number.into_deserializer();
        Ok(List(vec![T::deserialize(from)?]))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<List<T>, E> {
        let from: StrDeserializer<'_, E> = text.into_deserializer();
        Ok(List(vec![T::deserialize(from)?]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<List<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(one) = from.next_element()? {
            list.push(one);
        }
        if list.is_empty() {
            return Err(A::Error::custom("an empty list matches nothing"));
        }
        Ok(List(list))
    }
}

/// User or group of users. Names are looked up when the configuration is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Id<const GROUP: bool> {
    pub(super) number: u32,
    /// The name, if one was written.
    name: Option<String>,
}

pub(super) type Uid = Id<false>;
pub(super) type Gid = Id<true>;

impl<const GROUP: bool> fmt::Display for Id<GROUP> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({})", self.number),
            None => write!(f, "{}", self.number),
        }
    }
}

impl<'de, const GROUP: bool> Deserialize<'de> for Id<GROUP> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(IdVisitor)
    }
}

struct IdVisitor<const GROUP: bool>;

impl<const GROUP: bool> Visitor<'_> for IdVisitor<GROUP> {
    type Value = Id<GROUP>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a name")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Id<GROUP>, E> {
        let number = u32::try_from(number)
            .map_err(|_| E::custom(format!("{number} is not a user or group number")))?;
        Ok(Id { number, name: None })
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Id<GROUP>, E> {
        let names = names().ok_or_else(|| E::custom("names are not known here"))?;
        let (kind, lookup) = if GROUP {
            ("group", names.group)
        } else {
            ("user", names.user)
        };
        match lookup(name) {
            Ok(Some(number)) => Ok(Id {
                number,
                name: Some(name.to_owned()),
            }),
            Ok(None) => Err(E::custom(format!("there is no {kind} {name:?}"))),
            Err(error) => Err(E::custom(format!("cannot look up the {kind} {name:?}: {error}"))),
        }
    }
}

/// Glob pattern as in shells: `*` and `?` stop at slashes, `**` does not, `[...]` and `{a,b}` choose.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    text: String,
    matcher: GlobMatcher,
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// Syntax error in the pattern.
    pub(super) fn new(text: &str) -> Result<Self, globset::Error> {
        let glob = GlobBuilder::new(text).literal_separator(true).build()?;
        Ok(Self {
            text: text.to_owned(),
            matcher: glob.compile_matcher(),
        })
    }

    pub(super) fn matches(&self, text: impl AsRef<Path>) -> bool {
        self.matcher.is_match(text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_star_stops_at_slashes_double_star_does_not() {
        for (pattern, text, matches) in [
            ("/usr/bin/python*", "/usr/bin/python3.11", true),
            ("/usr/*", "/usr/bin/python3", false),
            ("/usr/**", "/usr/bin/python3", true),
            ("/slurm/**/job_*", "/slurm/uid_7/job_12", true),
            ("**/train", "/home/a/train", true),
            ("{train,eval}*", "evaluate", true),
            ("py[23]", "py3", true),
            ("train", "trainer", false),
        ] {
            assert_eq!(
                Pattern::new(pattern).unwrap().matches(text),
                matches,
                "{pattern} {text}"
            );
        }
    }
}
