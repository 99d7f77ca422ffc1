//! Scenario transcripts: evidence in, decisions out, as committed text files.
//!
//! A line that begins with `>` is a command to the [`stage::Stage`]; what follows it is what came of it. To
//! rewrite the files after a change that is meant:
//! `UPDATE_EXPECTED=1 cargo test -p understudy-recovery --test it transcripts`, and read the diff.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on should say why")]

mod stage;

use std::fs;
use std::path::{Path, PathBuf};

use stage::Stage;

fn scenarios() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let files = fs::read_dir(dir).expect("the folder of scenarios");
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    paths
}

/// The scenario once more: comments and commands as they are, each command followed by what comes of it.
fn played(text: &str) -> String {
    let mut stage = Stage::default();
    let mut played = String::new();
    let kept = text.lines().filter(|line| line.is_empty() || line.starts_with(['#', '>']));
    for line in kept {
        played.push_str(line);
        played.push('\n');
        if let Some(command) = line.strip_prefix('>') {
            played.push_str(&stage.run(command.trim()));
        }
    }
    played
}

#[test]
fn every_scenario_comes_out_as_it_is_written() {
    let update = std::env::var_os("UPDATE_EXPECTED").is_some();
    let mut wrong = Vec::new();
    let scenarios = scenarios();
    assert!(!scenarios.is_empty(), "there are no scenarios");
    for path in scenarios {
        let expected = fs::read_to_string(&path).expect("readable");
        let found = played(&expected);
        if found == expected {
            continue;
        }
        if update {
            fs::write(&path, found).expect("writable");
        } else {
            let differs = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
            wrong.push(format!("{}: {differs:#?}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "(found, expected) differ first at:\n{}", wrong.join("\n"));
}
