//! Whether the program that a command runs can be run: the one that is named, the interpreter of its first line, and
//! what `env` or a shell becomes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::launch::{find_in_path, is_executable};

/// The kernel reads no more of a script's first line.
const LINE: u64 = 256;

/// Looks as the caller, who is Kafka's user: what was seen, or why it cannot be run and what to do.
pub(super) fn look(command: &[String], path: &OsStr) -> Result<String, String> {
    let program = command.first().map(String::as_str).unwrap_or_default();
    let fine = format!("{program} is there and can be executed");
    can_run(program, path)?;
    match behind(command) {
        Behind::Nothing => Ok(fine),
        Behind::Unseen => Ok(format!("{fine}; what it runs is not seen")),
        Behind::Program(inner) => {
            can_run(inner, path)?;
            Ok(format!("{inner}, which {program} runs, is there and can be executed"))
        }
    }
}

fn can_run(program: &str, path: &OsStr) -> Result<(), String> {
    let found = match program.contains('/') {
        true => Some(program.into()).filter(|file: &std::path::PathBuf| is_executable(file)),
        false => find_in_path(program, path),
    };
    let Some(file) = found else {
        return Err(format!(
            "{program} is not there or cannot be executed by Kafka's user: install Kafka, or correct \
             broker_host.command"
        ));
    };
    interpreter(&file, path)
}

/// A script is run by what its first line names.
fn interpreter(script: &Path, path: &OsStr) -> Result<(), String> {
    let mut line = Vec::new();
    let read =
        File::open(script).and_then(|file| BufReader::new(file.take(LINE)).read_until(b'\n', &mut line));
    // A program may be executed and not read.
    let Some(line) = read.ok().and_then(|_| line.strip_prefix(b"#!")) else { return Ok(()) };
    let line = String::from_utf8_lossy(line);
    let line = line.trim_end_matches('\n');
    let shown = script.display();
    if line.ends_with('\r') {
        return Err(format!(
            "{shown} has the line ends of Windows (CRLF), so that its first line, `#!{}`, names no program: convert it, with \
             `sed -i 's/\\r$//' {shown}`",
            line.trim_end()
        ));
    }
    let mut words = line.split_whitespace();
    let named = words.next().unwrap_or_default();
    let missing = |what: &str| {
        Err(format!(
            "{shown} cannot be executed: its first line, `#!{line}`, names {what}, which is not there or cannot be executed. \
             Install it, or correct the line"
        ))
    };
    if !is_executable(Path::new(named)) {
        return missing(named);
    }
    match (named.ends_with("/env"), words.next()) {
        (true, Some(word))
            if !word.starts_with('-') && !word.contains('=') && find_in_path(word, path).is_none() =>
        {
            missing(word)
        }
        _ => Ok(()),
    }
}

/// What a program becomes that is not Kafka's own.
#[derive(Debug, PartialEq, Eq)]
enum Behind<'c> {
    /// It is Kafka's own, as far as is known.
    Nothing,
    Program(&'c str),
    /// It runs another one, and which is not clear.
    Unseen,
}

fn behind(command: &[String]) -> Behind<'_> {
    let Some((program, arguments)) = command.split_first() else { return Behind::Nothing };
    match program.rsplit('/').next() {
        Some("env") => {
            let first = arguments.iter().find(|word| !word.contains('='));
            first.filter(|word| !word.starts_with('-')).map_or(Behind::Unseen, |word| Behind::Program(word))
        }
        Some("sh" | "bash" | "dash" | "ash" | "ksh" | "zsh") => match arguments {
            [option, script, ..] if option == "-c" => becomes(script),
            _ => Behind::Unseen,
        },
        Some(
            "sudo" | "runuser" | "su" | "nice" | "ionice" | "taskset" | "numactl" | "chrt" | "nohup"
            | "setsid",
        ) => Behind::Unseen,
        _ => Behind::Nothing,
    }
}

/// The program of `exec PROGRAM …`, or of a script that is one command, by its absolute path.
fn becomes(script: &str) -> Behind<'_> {
    let mut words = script.split_whitespace();
    let program = match words.next() {
        Some("exec") => words.next(),
        first => first,
    };
    let several = script.contains([';', '|', '\n', '`']) || script.contains("&&");
    let plain = |word: &&str| word.starts_with('/') && !word.contains(['$', '"', '\'', '*']);
    program.filter(plain).filter(|_| !several).map_or(Behind::Unseen, Behind::Program)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn run(command: &[&str]) -> Result<String, String> {
        look(&words(command), OsStr::new("/usr/bin:/bin"))
    }

    #[test]
    fn a_script_is_run_by_what_its_first_line_names() {
        let dir = tempfile::tempdir().unwrap();
        let script = |text: &str| {
            let path = dir.path().join("kafka.sh");
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            run(&[path.to_str().unwrap(), "{properties}"])
        };
        for fine in ["#!/bin/sh\nexec x\n", "#! /bin/sh -e\n", "#!/usr/bin/env sh\n", "echo\r\n", ""] {
            assert!(script(fine).is_ok(), "{fine:?}: {:?}", script(fine));
        }
        let said = script("#!/bin/sh\r\nexec x\r\n").unwrap_err();
        assert!(said.contains("line ends of Windows (CRLF)") && said.contains("`#!/bin/sh`"), "{said}");
        let said = script("#!/usr/bin/env sh\r\n").unwrap_err();
        assert!(said.contains("CRLF"), "{said}");
        let said = script("#!/opt/nope/bash -e\n").unwrap_err();
        assert!(said.contains("`#!/opt/nope/bash -e`, names /opt/nope/bash, which is not there"), "{said}");
        let said = script("#!/usr/bin/env no-such-shell\n").unwrap_err();
        assert!(said.contains("names no-such-shell"), "{said}");
    }

    #[test]
    fn the_program_behind_env_or_a_shell_is_looked_at() {
        let gone = "/opt/nope/kafka-server-start.sh";
        for command in [
            &["/usr/bin/env", gone, "{properties}"][..],
            &["/usr/bin/env", "KAFKA_OPTS=-Xmx1g", gone, "{properties}"],
            &["/bin/sh", "-c", "exec /opt/nope/kafka-server-start.sh {properties}"],
            &["/bin/sh", "-c", "/opt/nope/kafka-server-start.sh {properties} > /k/log 2>&1"],
            &["/usr/bin/env", "no-such-program", "{properties}"],
        ] {
            let said = run(command).unwrap_err();
            assert!(said.contains("is not there or cannot be executed"), "{command:?}: {said}");
        }
        for command in [
            &["/bin/sh", "-c", "cd /opt/kafka && exec bin/kafka-server-start.sh {properties}"][..],
            &["/bin/sh", "-c", "exec $KAFKA_HOME/bin/kafka-server-start.sh {properties}"],
            &["/bin/sh", "/opt/nope/start", "{properties}"],
            &["/usr/bin/env", "-i", gone],
        ] {
            let said = run(command).unwrap();
            assert!(said.ends_with("what it runs is not seen"), "{command:?}: {said}");
        }
        assert_eq!(
            run(&["/usr/bin/env", "sh", "x"]).unwrap(),
            "sh, which /usr/bin/env runs, is there and can be executed"
        );
    }
}
