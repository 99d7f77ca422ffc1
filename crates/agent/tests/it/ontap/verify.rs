//! `ontap verify --try` that is ended by a signal while its volume is being made.

use std::process::Stdio;
use std::time::Duration;

use fakes::ontap::Table;
use rustix::process::{Pid, Signal, kill_process};

use super::bed::{Bed, good_world};
use crate::common::said;

const SCRATCH: &str = "understudy_verify";

async fn ended_by(signal: Signal) {
    let bed = Bed::new(good_world()).await;
    bed.fake.world(|world| world.jobs_take(Duration::from_secs(2)));
    let report = bed.path("verify.json");
    let arguments = ["ontap", "verify", "--try", "--yes", "--aggregate", "aggr1", "--report"];
    let mut command = bed.command(&arguments);
    let child = command.arg(&report).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let being_made = async {
        while !bed.writes().contains(&"POST /api/storage/volumes".to_owned()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), being_made).await.unwrap();
    kill_process(Pid::from_child(&child), signal).unwrap();
    let output = tokio::task::spawn_blocking(|| child.wait_with_output()).await.unwrap().unwrap();
    let said = said(output);
    // What it had begun, and did not wait for, comes as well.
    bed.fake.end_jobs();
    let left = |table| bed.fake.world(|world| world.find(table, &[("name", SCRATCH)]).is_some());
    assert!(!left(Table::Volumes) && !left(Table::Policies), "{signal:?}: {said:?}");
    assert_eq!(said.code, Some(1), "{signal:?}: {said:?}");
    assert!(said.err.contains("interrupted: what was made is taken away first"), "{signal:?}: {said:?}");
    let written: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!(written["broke_off"][0], "svm1: interrupted", "{written}");
    assert!(written["findings"].as_array().unwrap().len() > 8, "{written}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_leaves_nothing_behind() {
    tokio::join!(ended_by(Signal::INT), ended_by(Signal::TERM), ended_by(Signal::HUP));
}
