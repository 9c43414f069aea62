//! Template of a group's name: text with fields like `{uid}` and `{user}`, filled in for each process.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::list::Pattern;
use super::{Facts, PodCgroup};
use crate::file::is_taken;
use crate::tree::MAX_DEPTH;

/// Fields that braces may contain, for people to read.
const FIELDS: &str =
    "{uid}, {user}, {gid}, {comm}, {exe}, {cgroup}, {cgroup:PATTERN}, {pod}, {container} or {wish}";

/// Longest name of a directory, bytes.
const LONGEST: usize = 255;

/// Path of a group below the root, without a slash at either end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    text: String,
    /// Parts of each directory's name.
    names: Vec<Vec<Part>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Uid,
    User,
    Gid,
    Comm,
    /// File name of the program.
    Exe,
    /// Last component of the kernel cgroup's path, or the first component that matches.
    Cgroup(Option<Pattern>),
    /// UID of the Kubernetes pod that the kernel cgroup's path names.
    Pod,
    /// Name of its container.
    Container,
    /// The process's wish, which is a path.
    Wish,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// What is wrong with it, for people to read.
    fn new(text: &str) -> Result<Self, String> {
        let names: Vec<Vec<Part>> = text.split('/').map(parse_name).collect::<Result<_, _>>()?;
        if names.len() > MAX_DEPTH {
            return Err(format!("groups nest {MAX_DEPTH} deep at most"));
        }
        Ok(Self {
            text: text.to_owned(),
            names,
        })
    }

    pub(super) fn wants_user(&self) -> bool {
        self.names.iter().flatten().any(|part| *part == Part::User)
    }

    pub(super) fn wants_container(&self) -> bool {
        self.names.iter().flatten().any(|part| *part == Part::Container)
    }

    /// Returns how many directories precede the one that is the process's wish; `None` if the template has no
    /// `{wish}`.
    pub(super) fn nr_before_wish(&self) -> Option<usize> {
        self.names.iter().position(|parts| parts.contains(&Part::Wish))
    }

    /// Returns the path of a process's group.
    ///
    /// # Errors
    /// A field is unknown for this process, or a name is too long; the text says which.
    pub(super) fn render(&self, facts: &Facts) -> Result<String, String> {
        let names = self.names.iter().map(|parts| {
            let name: String = parts
                .iter()
                .map(|part| part.render(facts))
                .collect::<Result<_, _>>()?;
            if parts.contains(&Part::Wish) {
                return Ok(name);
            }
            let name = as_name(&name);
            if name.len() > LONGEST {
                return Err(format!("its group's name would be longer than {LONGEST} bytes"));
            }
            Ok(name)
        });
        Ok(names.collect::<Result<Vec<_>, _>>()?.join("/"))
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl Part {
    fn render(&self, facts: &Facts) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Uid => Ok(facts.uid.to_string()),
            Self::User => Ok(user(facts)),
            Self::Gid => Ok(facts.gid.to_string()),
            Self::Comm => Ok(str::to_owned(&facts.comm)),
            Self::Exe => {
                let name = facts.exe.as_ref().and_then(|exe| exe.file_name());
                let name = name.ok_or("its group is named by its executable, which is not known")?;
                Ok(name.to_string_lossy().into_owned())
            }
            Self::Cgroup(None) => {
                let names = facts.cgroups.iter().filter_map(|path| path.rsplit('/').next());
                let name = names.into_iter().find(|name| !name.is_empty());
                Ok(name
                    .ok_or("its group is named by its cgroup, which is the root")?
                    .to_owned())
            }
            Self::Cgroup(Some(pattern)) => {
                let mut names = facts.cgroups.iter().flat_map(|path| path.split('/'));
                let name = names.find(|name| !name.is_empty() && pattern.matches(name));
                name.map(str::to_owned).ok_or_else(|| {
                    format!("its group is named by a part {pattern} of its cgroup, which has none")
                })
            }
            Self::Pod => {
                let pod = PodCgroup::find(&facts.cgroups);
                Ok(pod
                    .ok_or("its group is named by its pod, but its cgroup is in none")?
                    .uid)
            }
            Self::Container => Ok(facts
                .container
                .clone()
                .ok_or("its group is named by its Kubernetes container, which is not known")?),
            Self::Wish => Ok(facts
                .wish
                .clone()
                .ok_or("its group is named by its wish, but it has none")?),
        }
    }

    /// Returns whether it can only be digits.
    fn is_number(&self) -> bool {
        match self {
            Self::Uid | Self::Gid => true,
            Self::Text(text) => text.bytes().all(|byte| byte.is_ascii_digit()),
            _ => false,
        }
    }
}

/// Parses one directory's name.
fn parse_name(text: &str) -> Result<Vec<Part>, String> {
    if text.is_empty() {
        return Err("a group is named as a/b/c: without a slash at its ends, or two in a row".to_owned());
    }
    if matches!(text, "." | "..") {
        return Err(format!("{text:?} cannot be a name"));
    }
    if is_taken(text) {
        return Err(format!("{text} is the name of a control file"));
    }
    let (mut parts, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let end = rest.find(['{', '}']).unwrap_or(rest.len());
        let (before, after) = rest.split_at(end);
        if !before.is_empty() {
            parts.push(Part::Text(before.to_owned()));
        }
        let Some(inside) = after.strip_prefix('{') else {
            if after.is_empty() {
                break;
            }
            return Err("a } without its {".to_owned());
        };
        let (field, after) = inside.split_once('}').ok_or("a { without its }")?;
        parts.push(parse_field(field)?);
        rest = after;
    }
    if parts.iter().all(Part::is_number) {
        return Err(format!(
            "a group's name must not consist of digits only ({text}): write user-{{uid}}"
        ));
    }
    if parts.contains(&Part::Wish) && parts.len() > 1 {
        return Err("{wish} is a path and must stand by itself between slashes".to_owned());
    }
    Ok(parts)
}

fn parse_field(field: &str) -> Result<Part, String> {
    Ok(match field {
        "uid" => Part::Uid,
        "user" => Part::User,
        "gid" => Part::Gid,
        "comm" => Part::Comm,
        "exe" => Part::Exe,
        "cgroup" => Part::Cgroup(None),
        "pod" => Part::Pod,
        "container" => Part::Container,
        "wish" => Part::Wish,
        _ => match field.strip_prefix("cgroup:") {
            Some(pattern) => Part::Cgroup(Some(Pattern::new(pattern).map_err(|error| error.to_string())?)),
            None => return Err(format!("unknown {{{field}}}, expected {FIELDS}")),
        },
    })
}

fn user(facts: &Facts) -> String {
    facts.user.clone().unwrap_or_else(|| format!("uid-{}", facts.uid))
}

/// Returns the name of a process's user as the name of a directory: `uid-N` if the user has none, or one that
/// is too long.
pub(super) fn user_name(facts: &Facts) -> String {
    let name = as_name(&user(facts));
    if name.len() <= LONGEST {
        return name;
    }
    format!("uid-{}", facts.uid)
}

/// Returns text that other programs chose as a valid name of a directory.
fn as_name(text: &str) -> String {
    let name: String = text.chars().map(|c| if may_name(c) { c } else { '_' }).collect();
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    if matches!(name.as_str(), "" | "." | "..") || is_number || is_taken(&name) {
        format!("_{name}")
    } else {
        name
    }
}

/// Returns whether a character may stand in a directory's name. Beyond ASCII only letters and digits may:
/// some blanks end lines, and some control characters reverse them.
fn may_name(c: char) -> bool {
    match c {
        '/' => false,
        ' '..='~' => true,
        _ => c.is_alphanumeric(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            uid: 1000,
            gid: 27,
            user: Some("alice".into()),
            comm: "py/thon".into(),
            exe: Some("/usr/bin/python3".into()),
            cgroups: vec!["/".into(), "/slurm/uid_1000/job_7/step_0".into()],
            wish: Some("a/b".into()),
            ..Facts::default()
        }
    }

    fn rendered(text: &str) -> Result<String, String> {
        Template::new(text).unwrap().render(&facts())
    }

    #[test]
    fn render_fills_in_all_fields() {
        for (text, name) in [
            ("team", "team"),
            ("users/{user}", "users/alice"),
            ("u{uid}-{gid}", "u1000-27"),
            ("{comm}/{exe}", "py_thon/python3"),
            ("jobs/{cgroup}", "jobs/step_0"),
            ("jobs/{cgroup:job_*}", "jobs/job_7"),
            ("users/{user}/{wish}", "users/alice/a/b"),
        ] {
            assert_eq!(rendered(text).unwrap(), name, "{text}");
        }
    }

    #[test]
    fn render_replaces_bidi_and_line_separators() {
        for (comm, name) in [
            ("\u{202e}x\u{2028}", "_x_"),
            ("a\u{a0}\u{200b}b", "a__b"),
            ("\u{e9}t\u{e9} 1=2", "\u{e9}t\u{e9} 1=2"),
        ] {
            let facts = Facts {
                comm: comm.into(),
                ..Facts::default()
            };
            let template = Template::new("{comm}").unwrap();
            assert_eq!(template.render(&facts).as_deref(), Ok(name), "{comm:?}");
        }
    }

    #[test]
    fn render_fails_for_unknown_fields() {
        assert!(rendered("{cgroup:pod*}").unwrap_err().contains("pod*"));
        let nothing = Facts::default();
        for text in ["{exe}", "{cgroup}", "{wish}"] {
            assert!(Template::new(text).unwrap().render(&nothing).is_err(), "{text}");
        }
        assert_eq!(
            Template::new("{user}").unwrap().render(&nothing).unwrap(),
            "uid-0"
        );
        let long = Facts {
            cgroups: vec![format!("/{}", "x".repeat(256))],
            ..Facts::default()
        };
        assert!(Template::new("{cgroup}").unwrap().render(&long).is_err());
    }

    #[test]
    fn render_names_pod_and_container() {
        let uid = "8d3f1c2a-0b1c-4d5e-8f90-123456789abc";
        let mut facts = Facts {
            cgroups: vec![format!("/kubepods/besteffort/pod{uid}/0123")],
            ..Facts::default()
        };
        let template = Template::new("pods/{pod}/container-{container}").unwrap();
        assert!(template.wants_container());
        assert!(template.render(&facts).unwrap_err().contains("not known"));
        facts.container = Some("7".to_owned());
        assert_eq!(
            template.render(&facts).unwrap(),
            format!("pods/{uid}/container-7")
        );
        facts.cgroups.clear();
        assert!(template.render(&facts).unwrap_err().contains("its pod"));
    }

    #[test]
    fn as_name_makes_foreign_text_valid() {
        for (text, name) in [
            ("7", "_7"),
            ("", "_"),
            ("..", "_.."),
            ("a/b\nc", "a_b_c"),
            ("devices", "_devices"),
            ("x1", "x1"),
        ] {
            assert_eq!(as_name(text), name, "{text:?}");
        }
    }

    #[test]
    fn invalid_templates_report_reason() {
        for (text, why) in [
            ("", "named as"),
            ("/a", "named as"),
            ("a//b", "named as"),
            ("a/..", "cannot be a name"),
            ("a/memory.limit", "control file"),
            ("{uid}", "digits"),
            ("a/12", "digits"),
            ("a/b/c/d/e/f/g/h/i", "8 deep"),
            ("a{", "without its }"),
            ("a}", "without its {"),
            ("{pid}", "{cgroup:PATTERN}"),
            ("{cgroup:[}", "unclosed"),
            ("x{wish}", "by itself"),
        ] {
            let said = Template::new(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
