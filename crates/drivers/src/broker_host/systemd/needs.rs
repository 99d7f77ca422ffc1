//! What a unit names on this host and does not start without.

use std::path::{Path, PathBuf};

use super::class_data::variables;
use super::drop_in;
use super::unit::{Unit, kafkas_own};

/// What [`missing`] is about: "could not …".
pub(super) const NEEDS: &str = "start the unit";

/// Whether a program can be executed, by Kafka's user or by ours.
type Executable<'a> = &'a dyn Fn(&Path, ByKafka) -> bool;

/// Whether Kafka's user is who executes it. The guard may be root's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByKafka(pub(super) bool);

/// Each that is not there, and what keeps the configuration of a takeover from Kafka.
pub(super) fn missing(unit: &Unit, log_dirs: &[PathBuf], is_executable: Executable<'_>) -> Vec<String> {
    // The unit's own file system is not seen from here.
    if unit.load_state != "loaded" || !unit.root.is_empty() {
        return Vec::new();
    }
    let files =
        unit.environment_files.iter().flat_map(|(file, optional)| environment_file(unit, file, *optional));
    let directory = working_directory(unit, log_dirs);
    files.chain(directory).chain(programs(unit, is_executable)).collect()
}

fn environment_file(unit: &Unit, file: &str, optional: bool) -> Option<String> {
    let name = &unit.name;
    // It may stand for any number of files, and another unit may write it first.
    if file.contains(['*', '?', '[']) || (file.starts_with("/run/") && !Path::new(file).exists()) {
        return None;
    }
    match std::fs::read(file) {
        Ok(content) => {
            let set = variables(&String::from_utf8_lossy(&content));
            let ours = set.keys().find(|name| name.starts_with("UNDERSTUDY_"))?;
            let so = match ours.as_str() {
                drop_in::PROPERTIES => "Kafka would not get its rendered configuration",
                _ => "the Kafka would not be known as the broker's",
            };
            Some(format!(
                "EnvironmentFile={file} of {name} sets {ours}, which wins over what a takeover gives, so {so}: remove it from \
                 {file}"
            ))
        }
        Err(error) => (!optional).then(|| {
            format!(
                "EnvironmentFile={file} of {name} cannot be read ({error}), so systemd would not start it: put the file there, \
                 or write EnvironmentFile=-{file}"
            )
        }),
    }
}

fn working_directory(unit: &Unit, log_dirs: &[PathBuf]) -> Option<String> {
    // With `!` it may be missing; `~` is a home that systemd looks up.
    let dir = Some(Path::new(&unit.working_directory)).filter(|dir| dir.is_absolute() && !dir.is_dir())?;
    let by_systemd = dir.starts_with("/run") || unit.makes.iter().any(|made| dir.starts_with(made));
    // A takeover attaches the storage first.
    let with_storage = log_dirs.iter().any(|log_dir| {
        let above = log_dir.parent().filter(|above| above.parent().is_some());
        dir.starts_with(above.unwrap_or(log_dir))
    });
    (!by_systemd && !with_storage).then(|| {
        format!(
            "WorkingDirectory={} of {} is no directory of this host, so systemd would not start it: make it, or correct the unit",
            dir.display(),
            unit.name
        )
    })
}

/// The program of each command, and Kafka's own behind the guard.
fn programs(unit: &Unit, is_executable: Executable<'_>) -> Vec<String> {
    let mut programs: Vec<(&String, ByKafka)> = Vec::new();
    for words in &unit.exec_start {
        let own = kafkas_own(words);
        let is_own = own.len() == words.len();
        programs.extend(words.first().map(|program| (program, ByKafka(is_own))));
        programs.extend(own.first().filter(|_| !is_own).map(|program| (program, ByKafka(true))));
    }
    let missing = programs.into_iter().filter(|(program, by)| {
        let plain = program.starts_with('/') && !program.contains('$');
        plain && !is_executable(Path::new(program.as_str()), *by)
    });
    let told = missing.map(|(program, by)| {
        let by = if by.0 { " by Kafka's user" } else { "" };
        format!(
            "ExecStart= of {} runs {program}, which is not there or cannot be executed{by}: install it, or correct the unit",
            unit.name
        )
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn told(change: impl FnOnce(&mut Unit)) -> Vec<String> {
        let words = "/usr/bin/understudy guard --broker 1 --exec -- /k/start.sh ${UNDERSTUDY_PROPERTIES}";
        let mut unit = Unit {
            name: "kafka@1.service".into(),
            load_state: "loaded".into(),
            exec_start: vec![words.split(' ').map(str::to_owned).collect()],
            ..Unit::default()
        };
        change(&mut unit);
        missing(&unit, &["/mnt/kafka/1".into()], &|program, _| !program.starts_with("/nope"))
    }

    #[track_caller]
    fn is_missed(change: impl FnOnce(&mut Unit), part: &str) {
        let said = told(change);
        assert!(said.len() == 1 && said[0].contains(part), "{said:?}");
    }

    #[test]
    fn what_is_there_is_not_missed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kafka.env").display().to_string();
        fs::write(&file, "KAFKA_HEAP_OPTS=-Xmx1g\n#UNDERSTUDY_PROPERTIES=/x\n").unwrap();
        let fine = |unit: &mut Unit| {
            unit.environment_files = vec![
                (file, false),
                ("/nope/a".into(), true),
                ("/nope/*.env".into(), false),
                ("/run/no-kafka.env".into(), false),
            ];
            unit.working_directory = dir.path().display().to_string();
        };
        assert_eq!(told(fine), Vec::<String>::new());
        for other in ["", "~", "!/nope"] {
            assert_eq!(told(|unit| unit.working_directory = other.into()), Vec::<String>::new(), "{other}");
        }
        for later in ["/var/lib/no-kafka/x", "/run/no-kafka", "/mnt/kafka/1/work"] {
            let later = |unit: &mut Unit| {
                unit.makes = vec!["/var/lib/no-kafka".into()];
                unit.working_directory = later.into();
            };
            assert_eq!(told(later), Vec::<String>::new());
        }
        let own_root = |unit: &mut Unit| {
            unit.root = "/srv/kafka".into();
            unit.working_directory = "/nope".into();
        };
        assert_eq!(told(own_root), Vec::<String>::new());
    }

    #[test]
    fn an_environment_file_that_hides_the_configuration_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kafka.env").display().to_string();
        fs::write(&file, "A=b\nUNDERSTUDY_PROPERTIES=/etc/kafka/server.properties\n").unwrap();
        for optional in [false, true] {
            let hides = |unit: &mut Unit| unit.environment_files = vec![(file.clone(), optional)];
            is_missed(hides, "sets UNDERSTUDY_PROPERTIES, which wins over");
            is_missed(hides, &format!("remove it from {file}"));
        }
    }

    #[test]
    fn what_a_unit_does_not_start_without_is_told() {
        is_missed(
            |unit| unit.environment_files = vec![("/nope/k.env".into(), false)],
            "EnvironmentFile=-/nope/k.env",
        );
        is_missed(
            |unit| unit.working_directory = "/nope/kafka".into(),
            "WorkingDirectory=/nope/kafka of kafka@1",
        );
        is_missed(|unit| unit.exec_start[0][0] = "/nope/understudy".into(), "runs /nope/understudy, which");
        is_missed(|unit| unit.exec_start[0][6] = "/nope/start.sh".into(), "runs /nope/start.sh, which");
        is_missed(|unit| unit.exec_start = vec![vec!["/nope/k.sh".into()]], "runs /nope/k.sh, which");
    }
}
