//! Changes of a container that gets devices: the library, environment variables, device files and CDI names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::cards::Card;

/// Directory in which NVIDIA's driver tells the number of a card's device file.
const DRIVER: &str = "/proc/driver/nvidia/gpus";

/// File or directory of the host in a container.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Mount {
    pub(crate) host_path: String,
    pub(crate) container_path: String,
    #[serde(default)]
    options: Vec<String>,
}

impl Mount {
    pub(crate) fn is_read_only(&self) -> bool {
        self.options.iter().any(|option| option == "ro")
    }
}

/// Changes of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Edits {
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) mounts: Vec<Mount>,
    /// Paths on the host and in the container.
    pub(crate) devices: Vec<(String, String)>,
    pub(crate) cdi_names: Vec<String>,
}

/// Specification that `gcgroupfs cdi` prints.
#[derive(Debug, Deserialize)]
struct Specification {
    devices: Vec<Device>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    container_edits: ContainerEdits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerEdits {
    env: Vec<String>,
    mounts: Vec<Mount>,
}

/// Templates, in which `{uuid}`, `{index}` and `{minor}` stand for values of each card.
#[derive(Debug, Clone, Default)]
pub(crate) struct Templates {
    /// File with the mounts and variables of the library.
    pub(crate) hook: PathBuf,
    /// `NAME=VALUE`; the values of several cards are joined by commas.
    pub(crate) environment: Vec<String>,
    /// `HOST` or `HOST:CONTAINER`.
    pub(crate) devices: Vec<String>,
    /// CDI names.
    pub(crate) cdi: Vec<String>,
}

impl Templates {
    /// Returns what a container with these cards gets.
    ///
    /// # Errors
    /// The library's file cannot be read; a template is invalid; the driver does not tell a card's number.
    pub(crate) fn edits(&self, cards: &[&Card]) -> anyhow::Result<Edits> {
        let mut edits = hook(&self.hook)?;
        for template in &self.environment {
            let (name, value) = template
                .split_once('=')
                .with_context(|| format!("{template}: not NAME=VALUE"))?;
            let values = expand(value, cards)?.join(",");
            edits.environment.insert(name.to_owned(), values);
        }
        for template in &self.devices {
            for device in expand(template, cards)? {
                let (host, container) = device.split_once(':').unwrap_or((&device, &device));
                edits.devices.push((host.to_owned(), container.to_owned()));
            }
        }
        for template in &self.cdi {
            edits.cdi_names.extend(expand(template, cards)?);
        }
        Ok(edits)
    }
}

/// Reads what the library needs in a container.
fn hook(file: &Path) -> anyhow::Result<Edits> {
    let name = file.display();
    let text = fs::read(file).with_context(|| format!("cannot read {name}"))?;
    let specification: Specification =
        serde_json::from_slice(&text).with_context(|| format!("{name}: no CDI specification"))?;
    let mut edits = Edits::default();
    for device in specification.devices {
        edits.mounts.extend(device.container_edits.mounts);
        for variable in device.container_edits.env {
            let (name, value) = variable.split_once('=').unwrap_or((&variable, ""));
            edits.environment.insert(name.to_owned(), value.to_owned());
        }
    }
    ensure!(!edits.mounts.is_empty(), "{name} mounts no library");
    Ok(edits)
}

/// Returns the text for each card, without duplicates.
fn expand(template: &str, cards: &[&Card]) -> anyhow::Result<Vec<String>> {
    let mut texts: Vec<String> = Vec::new();
    for card in cards {
        let mut text = template
            .replace("{uuid}", &card.uuid)
            .replace("{index}", &card.index);
        if text.contains("{minor}") {
            text = text.replace("{minor}", &minor(Path::new(DRIVER), &card.pci)?);
        }
        ensure!(
            !text.contains('{'),
            "{template}: only {{uuid}}, {{index}} and {{minor}} are known"
        );
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    Ok(texts)
}

/// Returns N of a card's /dev/nvidiaN, which may differ from its index.
fn minor(driver: &Path, pci: &str) -> anyhow::Result<String> {
    // The driver's names have a domain of four digits, NVML's of eight.
    let address = pci.to_ascii_lowercase();
    let short = address.strip_prefix("0000").filter(|rest| rest.contains(':'));
    let file = driver.join(short.filter(|rest| rest.len() == 12).unwrap_or(&address));
    let file = file.join("information");
    let name = file.display();
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {name}"))?;
    let minor = text.lines().find_map(|line| line.strip_prefix("Device Minor:"));
    Ok(minor
        .with_context(|| format!("{name}: no minor number"))?
        .trim()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(index: &str) -> Card {
        Card {
            index: index.to_owned(),
            uuid: format!("GPU-{index}"),
            pci: "00000000:3B:00.0".to_owned(),
            total: 0,
            is_healthy: true,
            xid: None,
        }
    }

    fn hook_file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    const HOOK: &str = r#"{"cdiVersion":"0.3.0","kind":"gcgroupfs/hook","devices":[{"name":"all","containerEdits":
        {"env":["GCGROUP_SOCKET=/run/x"],"mounts":[{"hostPath":"/a","containerPath":"/b","options":["bind","ro"]}]}}]}"#;

    #[test]
    fn templates_are_filled_in_for_each_card() {
        let file = hook_file(HOOK);
        let owned = |text: &str| vec![text.to_owned()];
        let templates = Templates {
            hook: file.path().to_owned(),
            environment: owned("VISIBLE={uuid}"),
            devices: vec![
                "/dev/nvidiactl".to_owned(),
                "/dev/a{index}:/dev/b{index}".to_owned(),
            ],
            cdi: owned("gcgroupfs/hook=all"),
        };
        let (one, two) = (card("0"), card("1"));
        let edits = templates.edits(&[&one, &two]).unwrap();
        assert_eq!(edits.environment["VISIBLE"], "GPU-0,GPU-1");
        assert_eq!(edits.environment["GCGROUP_SOCKET"], "/run/x");
        assert!(edits.mounts[0].is_read_only());
        assert_eq!(
            (edits.mounts[0].host_path.as_str(), edits.mounts.len()),
            ("/a", 1)
        );
        let pair = |host: &str, container: &str| (host.to_owned(), container.to_owned());
        assert_eq!(
            edits.devices,
            [
                pair("/dev/nvidiactl", "/dev/nvidiactl"),
                pair("/dev/a0", "/dev/b0"),
                pair("/dev/a1", "/dev/b1")
            ]
        );
        assert_eq!(edits.cdi_names, ["gcgroupfs/hook=all"]);
    }

    #[test]
    fn invalid_templates_and_files_are_errors() {
        let edits = |hook: &str, variable: &str| {
            let file = hook_file(hook);
            let templates = Templates {
                hook: file.path().to_owned(),
                environment: vec![variable.to_owned()],
                ..Templates::default()
            };
            templates.edits(&[&card("0")])
        };
        assert!(edits(HOOK, "A={index}").is_ok());
        assert!(edits(HOOK, "A={gpu}").is_err());
        assert!(edits(HOOK, "A").is_err());
        assert!(edits("{}", "A=1").is_err());
        assert!(edits(r#"{"devices":[]}"#, "A=1").is_err());
        assert!(Templates::default().edits(&[]).is_err());
    }

    #[test]
    fn minor_number_comes_from_the_driver() {
        let driver = tempfile::tempdir().unwrap();
        let directory = driver.path().join("0000:3b:00.0");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("information"), "Model: \t H\nDevice Minor: \t 3\n").unwrap();
        assert_eq!(minor(driver.path(), "00000000:3B:00.0").unwrap(), "3");
        assert!(minor(driver.path(), "00000000:3C:00.0").is_err());
    }
}
