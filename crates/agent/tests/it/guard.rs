//! `guard` and `rejoin`: what the old host may do.

mod looks;

use std::fs::File;
use std::path::PathBuf;

use crate::common::{Said, Site, Until, Written, ledger, me, order};
use recovery::journal::{Direction, Entry};
use recovery::model::{Epoch, Instruction, Succession};
use recovery::ports::Note;

/// The whole configuration of a broker host.
fn small(site: &Site, host: &str) -> PathBuf {
    let path = site.path(&format!("small-{host}.toml"));
    let ledger = site.path("ledger");
    let (ledger, state) = (ledger.display(), site.path(&format!("state-{host}")));
    // So that the Kafka of another test is another's.
    let logs = site.path("logs");
    let text = format!(
        "[agent]\nhost = \"{host}\"\nstate_dir = \"{}\"\n[ledger]\ndriver = \"file\"\ndir = \"{ledger}\"\ntimeout = \
         \"60s\"\n[[broker]]\nid = 1\nhome = \"kafka-1\"\nlog_dirs = [\"{}\"]\n",
        state.display(),
        logs.display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn guard(site: &Site, host: &str) -> Said {
    let arguments = ["guard", "--broker", "1", "--wait", "0s", "--output", "json"];
    site.run_with(&small(site, host), &arguments)
}

fn refused(site: &Site, host: &str) -> String {
    let answer = guard(site, host);
    assert_eq!(answer.code, Some(3), "{answer:?}");
    answer.json()["refused"].as_str().unwrap().to_owned()
}

fn allowed(site: &Site, host: &str) -> u64 {
    let answer = guard(site, host);
    assert_eq!((answer.code, &answer.json()["may_start"]), (Some(0), &true.into()), "{answer:?}");
    answer.json()["epoch"].as_u64().unwrap()
}

#[tokio::test]
async fn only_the_owner_may_start() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    assert_eq!(allowed(&site, "kafka-1"), 0);
    assert_eq!(refused(&site, "standby-1"), "not_owner");
    Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), Until::Recovered).await;
    assert_eq!(refused(&site, "kafka-1"), "not_owner");
    assert_eq!(allowed(&site, "standby-1"), 1);
    let said = site.run_with(&small(&site, "kafka-1"), &["guard", "--broker", "1"]);
    assert!(said.err.contains("belongs to standby-1") && said.err.contains("understudy rejoin"), "{said:?}");
}

/// `guard --exec` on a host.
fn exec(site: &Site, host: &str, command: &[&str]) -> std::process::Command {
    let path = small(site, host);
    let guard = ["guard", "--broker", "1", "--wait", "0s", "--exec", "--"];
    site.command_with(&path, &[&guard, command].concat())
}

#[tokio::test]
async fn guard_becomes_kafka_and_holds_the_right_for_as_long_as_that_lives() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    let mut kafka = exec(&site, "kafka-1", &["sh", "-c", "echo up; read end; exit 7"]);
    let mut kafka =
        kafka.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(kafka.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "up\n");
    let second = crate::common::said(exec(&site, "kafka-1", &["echo", "started"]).output().unwrap());
    assert_eq!((second.code, second.out.as_str()), (Some(125), ""), "{second:?}");
    assert!(second.err.contains(&format!("held by {} (sh)", kafka.id())), "{second:?}");
    // Its exit code is Kafka's own, and the right is free again.
    drop(kafka.stdin.take());
    assert_eq!(kafka.wait().unwrap().code(), Some(7));
    let third = crate::common::said(exec(&site, "kafka-1", &["echo", "started"]).output().unwrap());
    assert_eq!((third.code, third.out.as_str()), (Some(0), "started\n"), "{third:?}");

    Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), Until::Claimed).await;
    let refused = crate::common::said(exec(&site, "kafka-1", &["echo", "started"]).output().unwrap());
    assert_eq!((refused.code, refused.out.as_str()), (Some(125), ""), "{refused:?}");
    assert!(refused.err.contains("is at work on broker 1"), "{refused:?}");
}

#[tokio::test]
async fn an_open_takeover_keeps_kafka_off_everywhere() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    let takeover = Written::new(1, "kafka-1", "standby-1");
    takeover.write(book.as_ref(), Until::Claimed).await;
    assert_eq!(refused(&site, "kafka-1"), "epoch_open");
    assert_eq!(refused(&site, "standby-1"), "epoch_open");
}

/// What guard answers before a start that an agent's drop-in marks as part of `epoch`: the refusal, or the
/// epoch.
fn marked(site: &Site, host: &str, epoch: &str) -> Result<u64, String> {
    let arguments = ["guard", "--broker", "1", "--wait", "0s", "--output", "json"];
    let mut command = site.command_with(&small(site, host), &arguments);
    let answer = crate::common::said(command.env("UNDERSTUDY_EPOCH", epoch).output().unwrap());
    match answer.code {
        Some(0) => Ok(answer.json()["epoch"].as_u64().unwrap()),
        Some(3) => Err(answer.json()["refused"].as_str().unwrap().to_owned()),
        _ => Err(format!("{answer:?}")),
    }
}

fn is<T>(refusal: &str) -> Result<T, String> {
    Err(refusal.to_owned())
}

#[tokio::test]
async fn the_start_of_an_open_takeover_is_let_through_where_it_is_meant_and_by_its_own_agent() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), Until::Started).await;
    assert_eq!(marked(&site, "standby-1", "1"), Ok(1));
    // A person, or a unit that the agent did not start, beside the Kafka that the agent is about to start.
    assert_eq!(refused(&site, "standby-1"), "epoch_open");
    assert_eq!(marked(&site, "standby-1", "0"), is("epoch_open"), "left by an older takeover");
    assert_eq!(marked(&site, "standby-1", "2"), is("ledger_unreadable"), "the ledger forgot");
    assert_eq!(marked(&site, "kafka-1", "1"), is("epoch_open"), "the old owner");
    assert_eq!(marked(&site, "standby-2", "1"), is("epoch_open"), "another standby");
    assert!(marked(&site, "standby-1", "one").unwrap_err().contains("code: Some(2)"));
}

#[tokio::test]
async fn before_the_start_is_written_down_no_epoch_helps() {
    for until in [Until::Claimed, Until::Fenced] {
        let site = Site::new();
        let book = ledger(&site.path("ledger"));
        Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), until).await;
        assert_eq!(marked(&site, "standby-1", "1"), is("epoch_open"));
    }
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    let in_place = Written::new(1, "kafka-1", "kafka-1");
    in_place.write(book.as_ref(), Until::Claimed).await;
    assert_eq!(marked(&site, "kafka-1", "1"), is("epoch_open"), "not proven to be stopped yet");
    let step = |step| {
        let (direction, note) = (Direction::Forward, Note::new("done"));
        [Entry::Started { step, direction }, Entry::Done { step, direction, note }]
    };
    in_place.append(book.as_ref(), &[step(0), step(1)].concat()).await;
    assert_eq!(marked(&site, "kafka-1", "1"), is("epoch_open"), "proven, and the start not written down");
    in_place.append(book.as_ref(), &[Entry::Started { step: 2, direction: Direction::Forward }]).await;
    assert_eq!(marked(&site, "kafka-1", "1"), Ok(1));
}

#[tokio::test]
async fn an_agent_that_carries_on_proves_anew_before_its_start_is_let_through() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    let takeover = Written::new(1, "kafka-1", "standby-1");
    takeover.write(book.as_ref(), Until::Started).await;
    takeover.append(book.as_ref(), &[Entry::Resumed]).await;
    assert_eq!(marked(&site, "standby-1", "1"), is("epoch_open"), "the proofs were those of the run before");
    let proven = [
        Entry::Started { step: 1, direction: Direction::Forward },
        Entry::Done { step: 1, direction: Direction::Forward, note: Note::new("off") },
        Entry::Started { step: 2, direction: Direction::Forward },
    ];
    takeover.append(book.as_ref(), &proven).await;
    assert_eq!(marked(&site, "standby-1", "1"), Ok(1));
    // Once it runs, whoever carries on only waits for it: its unit may start it again.
    let runs = Entry::Done { step: 2, direction: Direction::Forward, note: Note::new("runs") };
    takeover.append(book.as_ref(), &[runs, Entry::Resumed]).await;
    assert_eq!(marked(&site, "standby-1", "1"), Ok(1));
}

#[tokio::test]
async fn a_claimant_that_was_superseded_is_refused_whatever_its_unit_says() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), Until::Started).await;
    let records =
        u64::try_from(book.latest(crate::common::BROKER).await.unwrap().unwrap().records.len()).unwrap();
    let succeeds = Some(Succession { epoch: Epoch(1), records });
    let second = Written { succeeds, ..Written::new(2, "standby-1", "standby-2") };
    second.write(book.as_ref(), Until::Claimed).await;
    assert_eq!(marked(&site, "standby-1", "1"), is("epoch_open"));
    assert_eq!(marked(&site, "standby-1", "2"), is("epoch_open"), "the epoch is somebody else's");
    assert_eq!(marked(&site, "standby-2", "1"), is("epoch_open"), "the start is another epoch's");
}

#[tokio::test]
async fn once_it_has_ended_the_owner_decides_and_an_old_mark_does_not_help() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), Until::Recovered).await;
    assert_eq!(marked(&site, "standby-1", "1"), Ok(1), "its unit restarts it");
    Written::new(2, "standby-1", "standby-2").write(book.as_ref(), Until::Recovered).await;
    assert_eq!(marked(&site, "standby-1", "1"), is("not_owner"));
    assert_eq!(marked(&site, "standby-1", "2"), is("not_owner"));
    assert_eq!(marked(&site, "standby-2", "3"), is("ledger_unreadable"), "the ledger forgot");
}

#[tokio::test]
async fn a_journal_that_makes_no_sense_lets_nobody_in() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    let takeover = Written::new(1, "kafka-1", "standby-1");
    takeover.write(book.as_ref(), Until::Claimed).await;
    // The start before the fence and the proof: no run of ours writes that.
    takeover.append(book.as_ref(), &[Entry::Started { step: 2, direction: Direction::Forward }]).await;
    assert_eq!(marked(&site, "standby-1", "1"), is("epoch_open"));
}

#[tokio::test]
async fn a_claimant_that_may_thaw_keeps_the_owner_off() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), Until::Claimed).await;
    let succeeds = Some(Succession { epoch: Epoch(1), records: 1 });
    let second = Written { succeeds, ..Written::new(2, "kafka-1", "standby-2") };
    second.write(book.as_ref(), Until::Abandoned).await;
    assert_eq!(refused(&site, "kafka-1"), "other_writer");
}

#[tokio::test]
async fn a_fence_that_nobody_lifted_keeps_the_owner_off() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), Until::Abandoned).await;
    assert_eq!(refused(&site, "kafka-1"), "fenced_here");
    order(book.as_ref(), "standby-2", Instruction::Rejoined).await;
    assert_eq!(refused(&site, "kafka-1"), "fenced_here", "another host rejoined");
    order(book.as_ref(), "kafka-1", Instruction::Rejoined).await;
    assert_eq!(allowed(&site, "kafka-1"), 1);
    Written::new(2, "kafka-1", "standby-1").write(book.as_ref(), Until::Abandoned).await;
    assert_eq!(refused(&site, "kafka-1"), "fenced_here", "fenced again");
    Written::new(3, "kafka-1", "kafka-1").write(book.as_ref(), Until::Recovered).await;
    assert_eq!(allowed(&site, "kafka-1"), 3, "it has run here since");
}

#[test]
fn what_cannot_be_read_is_a_no() {
    let site = Site::new();
    let config = small(&site, "kafka-1");
    let arguments = ["guard", "--broker", "1", "--wait", "2s"];
    std::fs::remove_dir_all(site.path("ledger")).unwrap();
    let begun = std::time::Instant::now();
    let answer = site.run_with(&config, &arguments);
    assert_eq!(answer.code, Some(3), "{answer:?}");
    assert!(
        answer.err.contains("no such directory") && answer.err.contains("ledger_unreadable"),
        "{answer:?}"
    );
    assert!(begun.elapsed().as_millis() >= 1000, "it was not tried again");
    // The ledger comes while it waits.
    let waiting = site.command_with(&config, &["guard", "--broker", "1", "--wait", "60s"]).spawn().unwrap();
    std::fs::create_dir(site.path("ledger")).unwrap();
    crate::common::initialise(&site.path("ledger"));
    assert!(waiting.wait_with_output().unwrap().status.success());

    assert_eq!(site.run_with(&config, &["guard", "--broker", "2"]).code, Some(2));
    std::fs::write(&config, "[agent]\n").unwrap();
    let answer = site.run_with(&config, &arguments);
    assert_eq!(answer.code, Some(2), "{answer:?}");
    assert!(answer.err.contains("agent.host") && answer.err.contains("ledger.driver"), "{answer:?}");
}

/// A host whose `check` can pass is more than a test can make: what fails besides is told apart by its label.
fn reasons(answer: &Said) -> Vec<(String, String)> {
    let report = answer.json();
    let checks = report["checks"].as_array().unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    checks.filter(|c| !c["refused"].is_null()).map(|c| (text(&c["refused"]), text(&c["what"]))).collect()
}

fn rejoin(site: &Site, edit: impl FnOnce(String) -> String) -> Said {
    let lifted = site.path("lifted").display().to_string();
    // Its own fence notes what it is asked for.
    let fence = format!(
        "[[host]]\nname = \"kafka-1\"\n[[host.fence]]\ndriver = \"exec\"\ncommand = [\"/bin/sh\", \"-c\", \"cat >> \
         {lifted}\"]\n"
    );
    let config = site.on("kafka-1", |text| {
        let old =
            "[[host]]\nname = \"kafka-1\"\n[[host.fence]]\ndriver = \"exec\"\ncommand = [\"/bin/false\"]\n";
        edit(text.replace(old, &fence))
    });
    site.run_with(&config, &["rejoin", "--yes", "--output", "json"])
}

fn was_lifted(site: &Site) -> bool {
    std::fs::read_to_string(site.path("lifted")).is_ok_and(|said| said.contains("action=on"))
}

#[tokio::test]
async fn a_host_that_may_write_does_not_rejoin() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), Until::Fenced).await;
    let answer = rejoin(&site, |text| text);
    assert_eq!(answer.code, Some(3), "{answer:?}");
    assert!(reasons(&answer).contains(&("epoch_open".into(), "broker 1".into())), "{answer:?}");

    // Its own claim was left behind by one that did not end well either.
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    Written::new(1, "standby-1", "kafka-1").write(book.as_ref(), Until::Claimed).await;
    let succeeds = Some(Succession { epoch: Epoch(1), records: 1 });
    let second = Written { succeeds, ..Written::new(2, "standby-1", "standby-2") };
    second.write(book.as_ref(), Until::Abandoned).await;
    let answer = rejoin(&site, |text| {
        text.replace("home = \"kafka-1\"", "home = \"standby-1\"").replace(
        "[broker_host]",
        "[[host]]\nname = \"standby-1\"\n[[host.fence]]\ndriver = \"exec\"\ncommand = [\"/bin/false\"]\n[broker_host]",
    )
    });
    assert!(reasons(&answer).contains(&("still_writer".into(), "broker 1".into())), "{answer:?}");
    assert!(!was_lifted(&site));
}

#[tokio::test]
async fn a_host_with_kafka_or_work_left_does_not_rejoin() {
    let site = Site::new();
    let book = ledger(&site.path("ledger"));
    Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), Until::Recovered).await;
    // Kafka holds `.lock` of its log dir, and an agent that was frozen in a takeover holds the host's lock.
    let _kafka = File::create(site.path("logs/.lock")).unwrap();
    std::fs::create_dir_all(site.path("state-kafka-1/broker-1")).unwrap();
    let work = File::create(site.path("state-kafka-1/broker-1/takeover.lock")).unwrap();
    rustix::fs::flock(&work, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let address = "[broker.address]\ndriver = \"netlink\"\naddress = \"192.0.2.7/24\"\ninterface = \"lo\"\n";
    let answer = rejoin(&site, |text| {
        let text = text.replace("127.0.0.1:2", "192.0.2.7:2");
        text.replace("[broker.storage]", &format!("{address}[broker.storage]"))
    });
    assert_eq!(answer.code, Some(3), "{answer:?}");
    let reasons = reasons(&answer);
    for expected in [
        ("kafka_runs", "Kafka of broker 1 here"),
        ("still_writer", "work at broker 1 here"),
        ("not_ready", "check, cluster"),
    ] {
        let expected = (expected.0.to_owned(), expected.1.to_owned());
        assert!(reasons.contains(&expected), "{expected:?}: {reasons:?}");
    }
    assert!(!reasons.iter().any(|(_, what)| what == "broker 1"), "the ledger has nothing against it");
    assert!(!was_lifted(&site), "nothing is lifted after a refusal");
    let orders = book.orders().await.unwrap();
    assert!(orders.0.is_empty(), "{orders:?}");
    assert_eq!(answer.json()["rejoined"], false);
    assert!(answer.json()["who"].as_str().unwrap().starts_with(&me()), "{answer:?}");
}

/// What guard refuses, and its words.
fn refusal(site: &Site, config: &std::path::Path) -> (String, String) {
    let answer = site.run_with(config, &["guard", "--broker", "1", "--wait", "0s", "--output", "json"]);
    assert_eq!(answer.code, Some(3), "{answer:?}");
    let json = answer.json();
    (json["refused"].as_str().unwrap().to_owned(), json["why"].as_str().unwrap().to_owned())
}

#[test]
fn an_empty_directory_in_place_of_the_ledger_starts_no_kafka() {
    let site = Site::new();
    let config = small(&site, "kafka-1");
    assert_eq!(allowed(&site, "kafka-1"), 0);
    // As at a boot at which the mount is missing.
    std::fs::rename(site.path("ledger"), site.path("unmounted")).unwrap();
    std::fs::create_dir(site.path("ledger")).unwrap();
    let (label, why) = refusal(&site, &config);
    assert_eq!(label, "ledger_unknown");
    assert!(why.contains("this host knows ledger") && why.contains("is its storage mounted?"), "{why}");
    // Whoever says `init` in that moment is told as well, and makes no second ledger.
    let answer = site.run_with(&config, &["ledger", "init", "--output", "json"]);
    assert_eq!((answer.code, &answer.json()["refused"]), (Some(3), &"ledger_foreign".into()), "{answer:?}");
    assert_eq!(std::fs::read_dir(site.path("ledger")).unwrap().count(), 0, "nothing was written");
    // Another host never knew one.
    let (label, why) = refusal(&site, &small(&site, "kafka-2"));
    assert!(label == "ledger_unknown" && why.contains("understudy ledger init"), "{why}");
    // A different ledger is not better than none.
    crate::common::initialise(&site.path("ledger"));
    assert_eq!(refusal(&site, &config).0, "ledger_foreign");
    // The mount comes.
    std::fs::rename(site.path("ledger"), site.path("other")).unwrap();
    std::fs::rename(site.path("unmounted"), site.path("ledger")).unwrap();
    assert_eq!(allowed(&site, "kafka-1"), 0);
}

#[tokio::test]
async fn a_ledger_of_an_older_build_is_initialised_beside_its_epochs() {
    let site = Site::new();
    std::fs::remove_dir_all(site.path("ledger")).unwrap();
    std::fs::create_dir(site.path("ledger")).unwrap();
    let book = ledger(&site.path("ledger"));
    Written::new(1, "kafka-1", "kafka-1").write(book.as_ref(), Until::Recovered).await;
    let config = small(&site, "kafka-1");
    assert_eq!(refusal(&site, &config).0, "ledger_unknown");
    let made = site.run_with(&config, &["ledger", "init", "--output", "json"]);
    assert_eq!((made.code, &made.json()["made"]), (Some(0), &true.into()), "{made:?}");
    assert_eq!(allowed(&site, "kafka-1"), 1);
    let again = site.run_with(&config, &["ledger", "init", "--output", "json"]);
    assert_eq!((again.code, &again.json()["made"]), (Some(3), &false.into()), "{again:?}");
    assert_eq!(again.json()["id"], made.json()["id"]);
    let shown = site.run_with(&config, &["ledger", "show"]);
    let id = made.json()["id"].as_str().unwrap().to_owned();
    for word in [&format!("ledger {id}"), "name kafka-1: instance", "home of broker 1: kafka-1, since"] {
        assert!(shown.out.contains(word), "{word}: {shown:?}");
    }
}

#[test]
fn a_copied_configuration_starts_no_kafka_and_a_reinstalled_host_takes_its_name_back() {
    let site = Site::new();
    let config = small(&site, "kafka-1");
    assert_eq!(allowed(&site, "kafka-1"), 0);
    let copy = site.path("copy.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&copy, text.replace("/state-kafka-1", "/state-of-the-copy")).unwrap();
    let (label, why) = refusal(&site, &copy);
    assert_eq!(label, "name_taken");
    assert!(why.contains("another machine has the name kafka-1"), "{why}");
    // The one that has the name goes on, and its check tells of the other.
    assert_eq!(allowed(&site, "kafka-1"), 0);
    let full = site.on("kafka-1", |text| text);
    let checked = site.run_with(&full, &["check"]);
    assert!(checked.out.contains("another machine uses this host's name, kafka-1"), "{checked:?}");
    // It is gone, a person says; had it been wrong, that machine would be the one that is refused.
    let asked = site.run_with(&copy, &["ledger", "adopt"]);
    assert_eq!(asked.code, Some(2), "nobody can be asked: {asked:?}");
    let adopted = site.run_with(&copy, &["ledger", "adopt", "--yes"]);
    assert!(adopted.code == Some(0) && adopted.out.contains("the name kafka-1: instance"), "{adopted:?}");
    let answer = site.run_with(&copy, &["guard", "--broker", "1", "--wait", "0s"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(refused(&site, "kafka-1"), "name_taken");
}

#[test]
fn a_wrong_home_starts_no_kafka() {
    let site = Site::new();
    assert_eq!(allowed(&site, "kafka-1"), 0);
    let wrong = small(&site, "kafka-2");
    let text = std::fs::read_to_string(&wrong).unwrap();
    std::fs::write(&wrong, text.replace("home = \"kafka-1\"", "home = \"kafka-2\"")).unwrap();
    let (label, why) = refusal(&site, &wrong);
    assert_eq!(label, "wrong_home");
    assert!(why.contains("home of broker 1 is kafka-2, and kafka-1 is registered"), "{why}");
    // The broker was moved, a person says.
    assert_eq!(site.run_with(&wrong, &["ledger", "adopt", "--yes"]).code, Some(0));
    let answer = site.run_with(&wrong, &["guard", "--broker", "1", "--wait", "0s"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(refused(&site, "kafka-1"), "wrong_home");
}
