//! Orders of people: what is written, what is said, and what is refused.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{BROKER, Site, Until, Written, ledger, me, order, said};
use jiff::Timestamp;
use recovery::journal::{Direction, Entry};
use recovery::model::{Cause, Epoch, Instruction, Order, Outcome};
use recovery::ports::Note;
use understudy::refusal::{RUNBOOK, Refusal};

async fn orders(site: &Site) -> Vec<Order> {
    ledger(&site.path("ledger")).orders().await.unwrap().0
}

#[tokio::test]
async fn a_pause_is_written_with_its_giver_and_seen_by_the_other_host() {
    let site = Site::new();
    let other = site.on("standby-2", |text| text);
    let pause = site.run(&["pause", "--broker", "1", "--reason", "switch upgrade", "--for", "2h"]);
    assert_eq!(pause.code, Some(0), "{pause:?}");
    assert!(pause.out.contains(&format!("ordered, as {}", me())), "{pause:?}");
    assert!(pause.out.contains("no agent begins a takeover of broker 1 until 2"), "{pause:?}");
    assert!(!pause.out.contains("WARNING"), "{pause:?}");

    let book = orders(&site).await;
    assert_eq!((book.len(), book[0].host.0.as_str()), (1, "standby-1"));
    assert!(book[0].who.starts_with(&me()), "{book:?}");
    let Instruction::Pause { broker, reason, until } = &book[0].what else { panic!("{book:?}") };
    assert_eq!((*broker, reason.as_str()), (Some(BROKER), "switch upgrade"));
    let lasts = until.unwrap().duration_since(book[0].at).as_secs();
    assert!((7190..=7200).contains(&lasts), "{lasts}");

    let status = site.run_with(&other, &["status"]);
    assert!(status.out.contains(&format!("PAUSED: {}", me())), "{status:?}");
    let resume = site.run_with(&other, &["resume", "--broker", "1"]);
    assert_eq!(resume.code, Some(0), "{resume:?}");
    assert!(resume.out.contains("may take broker 1 over again"), "{resume:?}");
    assert!(!site.run(&["status"]).out.contains("PAUSED"));
    let history = site.run(&["history"]);
    assert!(history.out.contains(&format!("order: {}", me())), "{history:?}");
    assert!(history.out.contains(": resume broker 1"), "{history:?}");
}

#[test]
fn a_pause_of_all_outlives_the_resume_of_one() {
    let site = Site::new();
    let pause = site.run(&["pause", "--reason", "storage move"]);
    assert!(pause.out.contains("WARNING: it has no end"), "{pause:?}");
    let resume = site.run(&["resume", "--broker", "1", "--output", "json"]);
    assert_eq!(resume.code, Some(0), "{resume:?}");
    let resume = resume.json();
    assert_eq!(resume["order"]["order"], "resume");
    assert!(resume["means"][0].as_str().unwrap().contains("STAYS PAUSED"), "{resume}");
    assert_eq!(resume["in_force"][0]["order"], "pause");
    assert_eq!(resume["in_force"][0]["reason"], "storage move");
    let resume = site.run(&["resume", "--output", "json"]).json();
    assert_eq!(resume["in_force"], serde_json::json!([]));
    let again = site.run(&["resume"]);
    assert!(again.out.contains("no pause of any broker was in force"), "{again:?}");
}

/// Of two hosts with different clocks the later order must still count as the later one.
#[tokio::test]
async fn a_resume_comes_after_its_pause_whatever_the_clocks_say() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    let ahead = Timestamp::now() + Duration::from_secs(600);
    let what = Instruction::Pause { broker: None, reason: "clock".to_owned(), until: None };
    book.order(&Order { at: ahead, host: "standby-2".into(), who: "eve".to_owned(), what }).await.unwrap();
    let resume = site.run(&["resume"]);
    assert_eq!(resume.code, Some(0), "{resume:?}");
    assert!(resume.out.contains("compare `date`"), "{resume:?}");
    let after = book.orders().await.unwrap();
    assert!(after.pause(BROKER, ahead + Duration::from_secs(60)).is_none(), "{after:?}");
}

#[tokio::test]
async fn an_ack_tells_what_it_clears_and_comes_after_the_attempt() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    Written::new(1, "kafka-1", "standby-2").write(book.as_ref(), Until::Abandoned).await;
    let before = site.run(&["status", "--output", "json"]).json();
    assert_eq!(before["brokers"][0]["budget"]["used"], 1, "{before}");
    let ack = site.run(&["ack", "--broker", "1", "--reason", "disk was full"]);
    assert_eq!(ack.code, Some(0), "{ack:?}");
    assert!(ack.out.contains("although epoch 1 ended abandoned at prove"), "{ack:?}");
    let after = site.run(&["status", "--output", "json"]).json();
    assert_eq!(after["brokers"][0]["budget"]["used"], 0, "{after}");
    assert_eq!(after["brokers"][0]["budget"]["limit"], 3, "{after}");
}

#[tokio::test]
async fn an_approval_is_for_the_epoch_of_now() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    Written::new(1, "kafka-1", "standby-2").write(book.as_ref(), Until::Recovered).await;
    let approve = site.run(&["approve", "--broker", "1", "--for", "5m", "--output", "json"]);
    assert_eq!(approve.code, Some(0), "{approve:?}");
    let approve = approve.json();
    assert_eq!((&approve["order"]["order"], &approve["order"]["epoch"]), (&"approve".into(), &1.into()));
    assert!(approve["warnings"][0].as_str().unwrap().contains("mode auto"), "{approve}");
    assert!(site.run(&["status"]).out.contains(&format!("waiting: {}", me())));
    Written::new(2, "standby-2", "standby-1").write(book.as_ref(), Until::Claimed).await;
    assert!(!site.run(&["status"]).out.contains("waiting:"), "a claim ends it");
    let late = site.run(&["approve", "--broker", "1", "--output", "json"]);
    assert_eq!((late.code, &late.json()["refused"]), (Some(3), &"epoch_open".into()), "{late:?}");
}

#[test]
fn what_means_nothing_ends_with_2_and_writes_nothing() {
    let site = Site::new();
    for wrong in [
        &["pause"] as &[&str],
        &["pause", "--reason", " "],
        &["pause", "--reason", "x", "--for", "soon"],
        &["pause", "--reason", "x", "--for", "1h", "--until", "2030-01-01T00:00:00Z"],
        &["pause", "--reason", "x", "--until", "2001-01-01T00:00:00Z"],
        &["pause", "--reason", "x", "--until", "tomorrow"],
        &["pause", "--reason", "x", "--broker", "7"],
        &["ack"],
        &["approve"],
        &["switchover", "--broker", "1"],
        &["switchover", "--broker", "1", "--to", "standyb-2", "--yes"],
        &["switchover", "--broker", "1", "--to", "standby-1"],
        &["switchover", "--broker", "1", "--to", "standby-1", "--at", "2001-01-01 00:00", "--yes"],
    ] {
        let answer = site.run(wrong);
        assert_eq!(answer.code, Some(2), "{wrong:?}: {answer:?}");
    }
    assert!(site.run(&["history"]).out.lines().all(|line| !line.contains("order:")));
}

#[test]
fn an_order_that_cannot_be_written_is_a_failure_that_says_so() {
    let site = Site::new();
    std::fs::remove_dir_all(site.path("ledger")).unwrap();
    let pause = site.run(&["pause", "--reason", "x"]);
    assert_eq!(pause.code, Some(1), "{pause:?}");
    assert!(
        pause.err.contains("nothing was ordered") && pause.err.contains("no such directory"),
        "{pause:?}"
    );
}

#[tokio::test]
async fn a_switchover_is_refused_where_it_cannot_be_done() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    let refused = |to: &str| {
        let answer = site.run(&["switchover", "--broker", "1", "--to", to, "--yes", "--output", "json"]);
        assert_eq!(answer.code, Some(3), "{answer:?}");
        let answer = answer.json();
        assert!(answer["runbook"].as_str().unwrap().starts_with(RUNBOOK), "{answer}");
        answer["refused"].as_str().unwrap().to_owned()
    };
    assert_eq!(refused("kafka-1"), "owns_already");
    assert_eq!(site.run(&["pause", "--reason", "x"]).code, Some(0));
    assert_eq!(refused("standby-1"), "paused");
    assert_eq!(site.run(&["resume"]).code, Some(0));
    let first = Written::new(1, "kafka-1", "standby-2");
    first.write(book.as_ref(), Until::Claimed).await;
    assert_eq!(refused("standby-1"), "epoch_open");
    // The claimant fell silent, and its successor gave up: the first may yet act.
    let succeeds = Some(recovery::model::Succession { epoch: Epoch(1), records: 1 });
    Written { succeeds, ..Written::new(2, "kafka-1", "standby-1") }
        .write(book.as_ref(), Until::Abandoned)
        .await;
    assert_eq!(refused("standby-1"), "other_writer");
    let orders = book.orders().await.unwrap();
    assert!(!orders.0.iter().any(|o| matches!(o.what, Instruction::Switchover { .. })), "{orders:?}");
    let history = site.run(&["history"]);
    assert!(history.out.contains("succeeds the silent claimant of epoch 1"), "{history:?}");
}

#[tokio::test]
async fn a_switchover_that_lies_ahead_is_written_and_not_followed() {
    let site = Site::new();
    let at = (Timestamp::now() + Duration::from_secs(3600)).to_string();
    let ahead = ["switchover", "--broker", "1", "--to", "standby-1", "--yes", "--at", &at, "--within", "30m"];
    let answer = site.run(&ahead);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(answer.err.contains("switchover of broker 1: kafka-1 -> standby-1, epoch 0 -> 1"), "{answer:?}");
    let Instruction::Switchover { at, until, epoch, .. } = orders(&site).await.remove(0).what else {
        panic!("no switchover")
    };
    assert_eq!((until.duration_since(at).as_secs(), epoch), (1800, Epoch(0)));
    assert!(site.run(&["status"]).out.contains(&format!("waiting: {}", me())));
}

/// Waits until the order book has a switchover, as the agent of the target does.
async fn ordered(path: &Path) {
    let book = ledger(path);
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let orders = book.orders().await.unwrap();
        if orders.0.iter().any(|o| matches!(o.what, Instruction::Switchover { .. })) {
            return;
        }
        assert!(Instant::now() < until, "no switchover is ordered");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn follow(site: &Site, more: &[&str]) -> std::process::Child {
    let arguments = ["switchover", "--broker", "1", "--to", "standby-2", "--yes", "--output", "json"];
    // Ordered on the owner's host, which is neither where it goes nor where the fence is configured.
    let config = site
        .on("kafka-1", |text| text.replace("[broker_host]", "[[host]]\nname = \"standby-2\"\n[broker_host]"));
    let mut command = site.command_with(&config, &arguments);
    command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[tokio::test]
async fn a_switchover_is_followed_to_its_end() {
    let site = Site::new();
    let child = follow(&site, &[]);
    ordered(&site.path("ledger")).await;
    let book = ledger(&site.path("ledger"));
    let planned = Written { cause: Cause::Planned, ..Written::new(1, "kafka-1", "standby-2") };
    planned.claim(book.as_ref()).await;
    let found = "Kafka ended; 10.0.0.1 is gone".to_owned();
    order(book.as_ref(), "kafka-1", Instruction::Released { broker: BROKER, epoch: Epoch(1), found }).await;
    let step = |step| {
        let (direction, note) = (Direction::Forward, Note::new("well done"));
        [Entry::Started { step, direction }, Entry::Done { step, direction, note }]
    };
    planned.append(book.as_ref(), &[step(0), step(1), step(2)].concat()).await;
    let outcome = Outcome::Recovered { time_to_isr: Duration::from_secs(9), remarks: Vec::new() };
    planned.append(book.as_ref(), &[Entry::Ended { outcome }]).await;
    let answer = said(child.wait_with_output().unwrap());
    assert_eq!(answer.code, Some(0), "{answer:?}");
    for part in
        ["standby-2 claims the broker", "kafka-1 has released the broker: Kafka ended", "start_broker"]
    {
        assert!(answer.err.contains(part), "{part}: {answer:?}");
    }
    let report = answer.json();
    assert_eq!((&report["owner"], &report["epoch"]), (&"standby-2".into(), &1.into()), "{report}");
    assert!(report["ordered"]["order"]["who"].as_str().unwrap().starts_with(&me()), "{report}");

    let history = site.run(&["history"]);
    assert!(history.out.contains("epoch 1: kafka-1 -> standby-2, a switchover"), "{history:?}");
    assert!(history.out.contains("PROOF that kafka-1 cannot write, read by standby-2"), "{history:?}");
    assert!(history.out.contains("order: agent on kafka-1, "), "{history:?}");
    let proofs = &site.run(&["history", "--output", "json"]).json()["brokers"][0]["takeovers"][0]["proofs"];
    assert_eq!((&proofs[0]["host"], &proofs[0]["by"]), (&"kafka-1".into(), &"standby-2".into()), "{proofs}");
}

#[tokio::test]
async fn an_abandoned_switchover_leaves_the_owner_and_ends_with_1() {
    let site = Site::new();
    let child = follow(&site, &[]);
    ordered(&site.path("ledger")).await;
    let book = ledger(&site.path("ledger"));
    let planned = Written { cause: Cause::Planned, ..Written::new(1, "kafka-1", "standby-2") };
    planned.write(book.as_ref(), Until::Abandoned).await;
    let answer = said(child.wait_with_output().unwrap());
    assert_eq!((answer.code, &answer.json()["owner"]), (Some(1), &"kafka-1".into()), "{answer:?}");
}

#[tokio::test]
async fn another_claim_makes_the_order_void() {
    let site = Site::new();
    let child = follow(&site, &[]);
    ordered(&site.path("ledger")).await;
    let book = ledger(&site.path("ledger"));
    Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), Until::Fenced).await;
    let answer = said(child.wait_with_output().unwrap());
    assert_eq!((answer.code, &answer.json()["refused"]), (Some(3), &"order_void".into()), "{answer:?}");
}

#[tokio::test]
async fn a_switchover_that_nobody_takes_up_ends_with_3() {
    let site = Site::new();
    let answer = said(follow(&site, &["--within", "1s"]).wait_with_output().unwrap());
    assert_eq!((answer.code, &answer.json()["refused"]), (Some(3), &"not_taken_up".into()), "{answer:?}");
}

#[test]
fn every_refusal_has_its_section_in_the_runbook() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(RUNBOOK);
    let page = std::fs::read_to_string(page).unwrap();
    for refusal in Refusal::ALL {
        let heading = format!("### {}", refusal.label());
        assert!(page.lines().any(|line| line == heading), "{RUNBOOK} has no section `{heading}`");
        assert_eq!(serde_json::to_value(refusal).unwrap(), refusal.label());
    }
}
