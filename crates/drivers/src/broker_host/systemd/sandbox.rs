//! What a unit's own view of the file system lets its Kafka write. Pure, but for paths that are looked for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use zbus::{OwnedVariant, Variant};

use super::unit::{texts, word};

/// What [`Sandbox::refuses`] is about: "could not …".
pub(super) const WRITE: &str = "let Kafka write its log dirs";

/// The settings of a unit that make parts of the file system read-only or hide them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sandbox {
    /// `ProtectSystem=`: `no`, `yes`, `full` or `strict`.
    pub(super) system: String,
    /// `ProtectHome=`: `no`, `yes`, `read-only` or `tmpfs`.
    pub(super) home: String,
    /// `ReadWritePaths=` as it is written, with a `-` where a path may be missing.
    pub(super) writable: Vec<String>,
    pub(super) read_only: Vec<String>,
    pub(super) hidden: Vec<String>,
    /// Kafka's command has a `+` before it: none of this is for it.
    pub(super) privileged: bool,
}

impl Sandbox {
    pub(super) fn of(service: &HashMap<String, OwnedVariant>) -> Self {
        Self {
            system: word(service, "ProtectSystem"),
            home: word(service, "ProtectHome"),
            writable: texts(service.get("ReadWritePaths")),
            read_only: texts(service.get("ReadOnlyPaths")),
            hidden: texts(service.get("InaccessiblePaths")),
            privileged: privileged(service.get("ExecStartEx")),
        }
    }

    /// Why Kafka could not write one of `dirs`, or the unit not be started at all. `makes` are the directories that
    /// systemd makes for the unit, and lets it write.
    pub(super) fn refuses(&self, unit: &str, dirs: &[PathBuf], makes: &[String]) -> Vec<String> {
        if self.privileged {
            return Vec::new();
        }
        let missing = self.writable.iter().chain(&self.read_only).filter(|path| path.starts_with('/'));
        let missing = missing.filter(|path| {
            // A takeover attaches the storage first, and /run is filled while a host starts.
            let later = dirs.iter().any(|dir| Path::new(path).starts_with(dir)) || path.starts_with("/run");
            !later && !Path::new(path).exists()
        });
        let missing = missing.map(|path| {
            format!(
                "{unit} names {path} for ReadWritePaths= or ReadOnlyPaths=, which is not here, so systemd would not start it: make \
                 it, or write -{path}"
            )
        });
        let dirs = dirs.iter().filter_map(|dir| {
            let real = dir.canonicalize().unwrap_or_else(|_| dir.clone());
            let by = self.keeps(&real, makes)?;
            Some(format!(
                "{by} of {unit} keeps {} from being written by Kafka, which would not start: add ReadWritePaths={0} to the unit",
                dir.display()
            ))
        });
        missing.chain(dirs).collect()
    }

    /// The setting that keeps a path from being written: that of the longest path that it is below.
    fn keeps(&self, path: &Path, makes: &[String]) -> Option<String> {
        let mut rules: Vec<(PathBuf, Option<String>)> = Vec::new();
        let mut add = |paths: &[String], setting: Option<&str>| {
            for path in paths {
                let plain = Path::new(path.trim_start_matches(['-', '+']));
                let real = plain.canonicalize().unwrap_or_else(|_| plain.to_owned());
                rules.push((real, setting.map(|setting| format!("{setting}{path}"))));
            }
        };
        let texts = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
        let system = format!("ProtectSystem={}", self.system);
        let home = format!("ProtectHome={}", self.home);
        let (by_system, by_home): (&[&str], &[&str]) = (
            match self.system.as_str() {
                "strict" => &["/"],
                "full" => &["/usr", "/boot", "/efi", "/etc"],
                "yes" => &["/usr", "/boot", "/efi"],
                _ => &[],
            },
            match self.home.as_str() {
                "yes" | "read-only" | "tmpfs" => &["/home", "/root", "/run/user"],
                _ => &[],
            },
        );
        add(&self.hidden, Some("InaccessiblePaths="));
        add(&self.read_only, Some("ReadOnlyPaths="));
        add(&texts(&["/dev", "/proc", "/sys"]), None);
        add(makes, None);
        add(&self.writable, None);
        let whole = |paths: &[&str], setting: &str| {
            paths.iter().map(|path| (PathBuf::from(path), Some(setting.to_owned()))).collect::<Vec<_>>()
        };
        rules.extend(whole(by_system, &system));
        rules.extend(whole(by_home, &home));
        // Of equal paths the first one: what is hidden stays hidden.
        rules.reverse();
        let above = rules.into_iter().filter(|(rule, _)| path.starts_with(rule));
        above.max_by_key(|(rule, _)| rule.components().count())?.1
    }
}

/// `a(sasasttttuii)`: of each command its program, arguments and flags.
fn privileged(value: Option<&OwnedVariant>) -> bool {
    let Some(Variant::Array(commands)) = value.map(|value| &**value) else { return false };
    let flags = |item: &Variant<'_>| match item {
        Variant::Structure(command) => match command.fields().get(2) {
            Some(Variant::Array(flags)) => flags.inner().contains(&Variant::from("privileged")),
            _ => false,
        },
        _ => false,
    };
    commands.inner().iter().any(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(sandbox: &Sandbox, dirs: &[&str], makes: &[&str]) -> Vec<String> {
        let dirs: Vec<PathBuf> = dirs.iter().map(PathBuf::from).collect();
        let makes: Vec<String> = makes.iter().map(|dir| (*dir).to_owned()).collect();
        sandbox.refuses("kafka@1.service", &dirs, &makes)
    }

    fn sandbox(system: &str, home: &str, writable: &[&str]) -> Sandbox {
        let writable = writable.iter().map(|path| (*path).to_owned()).collect();
        Sandbox { system: system.into(), home: home.into(), writable, ..Sandbox::default() }
    }

    #[test]
    fn a_log_dir_that_the_unit_may_not_write_is_told_with_the_setting() {
        let none: &[&str] = &[];
        for (given, dir, by) in [
            (
                sandbox("strict", "no", none),
                "/mnt/kafka/1",
                Some("ProtectSystem=strict of kafka@1.service keeps"),
            ),
            (sandbox("strict", "no", &["-/mnt/kafka"]), "/mnt/kafka/1", None),
            (
                sandbox("strict", "no", &["-/mnt/kafka"]),
                "/mnt/kafka2/1",
                Some("ReadWritePaths=/mnt/kafka2/1"),
            ),
            (sandbox("full", "yes", none), "/mnt/kafka/1", None),
            (sandbox("full", "yes", none), "/etc/kafka/data", Some("ProtectSystem=full")),
            (sandbox("full", "yes", none), "/home/kafka/1", Some("ProtectHome=yes")),
            (sandbox("strict", "yes", &["-/home/kafka/1"]), "/home/kafka/1", None),
            (sandbox("yes", "no", none), "/usr/local/kafka/1", Some("ProtectSystem=yes")),
            (sandbox("no", "no", none), "/home/kafka/1", None),
            (Sandbox { privileged: true, ..sandbox("strict", "yes", none) }, "/mnt/kafka/1", None),
        ] {
            let said = told(&given, &[dir], &[]);
            assert_eq!(said.len(), usize::from(by.is_some()), "{dir}: {said:?}");
            assert!(said.iter().all(|said| said.contains(by.unwrap_or_default())), "{said:?}");
        }
        assert_eq!(told(&sandbox("strict", "no", none), &["/var/lib/kafka/1"], &["/var/lib/kafka"]), [""; 0]);
    }

    #[test]
    fn the_longest_path_decides() {
        let mut given = sandbox("strict", "no", &["-/mnt"]);
        given.read_only = vec!["-/mnt/kafka".into()];
        assert!(told(&given, &["/mnt/kafka/1"], &[])[0].starts_with("ReadOnlyPaths=-/mnt/kafka of"));
        given.writable.push("-/mnt/kafka/1".into());
        assert_eq!(told(&given, &["/mnt/kafka/1"], &[]), [""; 0]);
        given.hidden = vec!["/mnt/kafka/1".into()];
        assert!(told(&given, &["/mnt/kafka/1"], &[])[0].starts_with("InaccessiblePaths=/mnt/kafka/1 of"));
    }

    #[test]
    fn a_path_without_which_systemd_does_not_start_the_unit_is_told() {
        let given = sandbox("strict", "no", &["/nope/kafka", "/mnt/kafka/1", "-/nope/b", "/run/nope"]);
        let said = told(&given, &["/mnt/kafka/1"], &[]);
        assert!(
            said.len() == 1 && said[0].contains("names /nope/kafka") && said[0].ends_with("-/nope/kafka"),
            "{said:?}"
        );
    }
}
