//! The units in `deploy/systemd`, judged by systemd's own tools.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd")
}

fn analyze(arguments: &[&str], file: &Path) -> Output {
    let output = Command::new("systemd-analyze").args(arguments).arg(file).output();
    output.expect("systemd-analyze is needed for this test: apt-get install systemd")
}

/// The shipped units in a directory of their own, with programs that this machine has.
fn installed(drop_ins: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["understudy.service", "understudy-warm.service", "kafka@.service"] {
        let text = fs::read_to_string(shipped().join(name)).unwrap();
        let text = text.replace("/usr/bin/understudy", "/bin/true");
        let text = text.replace("/opt/kafka/bin/kafka-server-start.sh", "/bin/true");
        fs::write(dir.path().join(name.replace('@', "@1")), text).unwrap();
    }
    let place = dir.path().join("understudy.service.d");
    fs::create_dir(&place).unwrap();
    for name in drop_ins {
        fs::copy(shipped().join("understudy.service.d").join(name), place.join(name)).unwrap();
    }
    dir
}

/// Whatever systemd finds to say of a unit is an error: an unknown key is a warning to it, and is left out.
#[test]
fn systemd_has_nothing_to_say_against_the_units() {
    for drop_ins in [&[][..], &["nfs.conf"], &["process.conf"], &["nfs.conf", "process.conf"]] {
        let dir = installed(drop_ins);
        for unit in ["understudy.service", "understudy-warm.service", "kafka@1.service"] {
            let output = analyze(&["verify", "--man=no", "--recursive-errors=no"], &dir.path().join(unit));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.trim().is_empty(), "{unit} with {drop_ins:?}: {said}");
        }
    }
}

#[test]
fn a_unit_that_systemd_does_not_understand_is_found_out() {
    let dir = installed(&[]);
    let unit = dir.path().join("understudy.service");
    let text = fs::read_to_string(&unit).unwrap().replace("WatchdogSec=30", "WatchdogSecs=30");
    fs::write(&unit, text).unwrap();
    let output = analyze(&["verify", "--man=no", "--recursive-errors=no"], &unit);
    assert!(String::from_utf8_lossy(&output.stderr).contains("WatchdogSecs"), "{output:?}");
}

/// The exposure of `understudy.service`, and the names of what it leaves open.
fn open(drop_ins: &[&str]) -> (f64, BTreeSet<String>) {
    let dir = installed(drop_ins);
    let unit = dir.path().join("understudy.service");
    let table = analyze(&["security", "--offline=true", "--no-pager", "--threshold=100"], &unit);
    let table = String::from_utf8(table.stdout).unwrap();
    let overall = table.lines().find_map(|line| line.split_once("understudy.service: ")).unwrap().1;
    let overall = overall.split(' ').next().unwrap().parse().unwrap();
    let json = analyze(&["security", "--offline=true", "--json=short", "--threshold=100"], &unit);
    let rows: Vec<Value> = serde_json::from_slice(&json.stdout).unwrap();
    let counts = |row: &&Value| match &row["exposure"] {
        Value::String(text) => text.parse::<f64>().unwrap() > 0.0,
        number => number.as_f64().is_some_and(|exposure| exposure > 0.0),
    };
    let name = |row: &Value| row["name"].as_str().unwrap().to_owned();
    (overall, rows.iter().filter(counts).map(name).collect())
}

#[test]
fn whatever_the_agents_unit_leaves_open_is_argued_in_it_and_nothing_else() {
    let text = fs::read_to_string(shipped().join("understudy.service")).unwrap();
    let list = text.lines().skip_while(|line| !line.starts_with("# Open, as")).skip(1);
    let list = list.take_while(|line| line.starts_with("#   "));
    // Lines that go on with a reason are set in further than names are.
    let argued: BTreeSet<String> = list
        .filter_map(|line| line.strip_prefix("#   ").filter(|rest| !rest.starts_with(' ')))
        .map(|line| line.split("  ").next().unwrap().split(' ').next().unwrap().to_owned())
        .collect();
    let (exposure, open) = open(&[]);
    assert_eq!(open, argued);
    assert!(exposure <= 3.3, "{exposure}");
}

#[test]
fn what_the_drop_ins_open_is_bounded() {
    for (drop_ins, most) in
        [(&["process.conf"][..], 3.8), (&["nfs.conf"], 5.4), (&["nfs.conf", "process.conf"], 5.7)]
    {
        let (exposure, _) = open(drop_ins);
        assert!(exposure <= most, "{drop_ins:?}: {exposure}");
    }
}

/// What keeps a scratch Kafka from every cluster and every log dir, whatever the unit of Kafka is made of.
#[test]
fn what_makes_the_class_data_archive_reaches_nothing() {
    let text = fs::read_to_string(shipped().join("understudy-warm.service")).unwrap();
    for line in
        ["PrivateNetwork=yes", "ProtectSystem=strict", "NoNewPrivileges=yes", "CPUSchedulingPolicy=idle"]
    {
        assert!(text.lines().any(|found| found == line), "{line}");
    }
    // It must not have what keeps Java from running.
    assert!(!text.lines().any(|line| line.starts_with("MemoryDenyWriteExecute")));
}
