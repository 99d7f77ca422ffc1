//! The driver on a real bus, with a stand-in for systemd whose jobs end late, badly, unheard, or never.

mod checked;
mod fake;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;

use super::super::class_data::with_archive;
use super::super::common::processors;
use super::super::{BrokerHostConfig, BrokerIdentity};
use super::*;
use fake::{Fake, OnStart, OnStop, UNIT};
use recovery::ports::chain;

const BROKER: BrokerId = BrokerId(1);
const LONG: Duration = Duration::from_secs(20);

/// A host with one broker's storage, a bus, and a systemd.
struct Bed {
    root: tempfile::TempDir,
    fake: Fake,
}

async fn bed() -> Bed {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("log")).unwrap();
    let meta = "version=1\ncluster.id=c1\nnode.id=1\ndirectory.id=d1\n";
    fs::write(root.path().join("log/meta.properties"), meta).unwrap();
    let template = "process.roles=broker\nnode.id=9\ncontroller.quorum.voters=101@c:9093\n\
                    controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://:9092\n";
    fs::write(root.path().join("template"), template).unwrap();
    let fake = Fake::new(root.path()).await;
    Bed { root, fake }
}

fn config_in(root: &Path) -> SystemdConfig {
    SystemdConfig {
        unit: "kafka@{broker}.service".into(),
        template: root.join("template"),
        environment: BTreeMap::from([("EXTRA".into(), "extra".into())]),
        user: None,
        class_data: ClassDataUse::Auto,
        timeout: LONG,
        start_timeout: LONG,
    }
}

fn identity_in(root: &Path) -> BrokerIdentity {
    BrokerIdentity {
        id: BROKER,
        listener: "10.0.0.1:9092".parse().unwrap(),
        log_dirs: vec![root.join("log")],
        properties: BTreeMap::new(),
    }
}

impl Bed {
    /// A driver as a newly started agent makes it.
    fn driver(&self) -> Systemd {
        self.driver_of(config_in(self.root.path()))
    }

    fn driver_of(&self, config: SystemdConfig) -> Systemd {
        let root = self.root.path();
        let driver = Systemd::new(config, "standby".into(), root.join("state"), vec![identity_in(root)]);
        let bus = Bus::new(Some(self.fake.address()));
        Systemd { bus, run_dir: root.join("run"), ..driver.unwrap() }
    }

    /// A driver whose patience ends soon.
    fn hasty(&self) -> Systemd {
        let (timeout, start_timeout) = (Duration::from_secs(2), Duration::from_secs(2));
        self.driver_of(SystemdConfig { timeout, start_timeout, ..config_in(self.root.path()) })
    }

    fn drop_in(&self) -> PathBuf {
        self.root.path().join("run/kafka@1.service.d/50-understudy.conf")
    }
}

fn proof_of(host: &str) -> Proof {
    Proof { host: host.into(), by: "fence_agent".into(), note: Note::new("status is off") }
}

async fn started(driver: &Systemd, epoch: u64) -> Result<Note, StepError> {
    driver.render(BROKER, Epoch(epoch)).await.unwrap();
    driver.start(BROKER, Epoch(epoch), &[proof_of("kafka-1")]).await
}

#[track_caller]
fn says(error: &StepError, kind: &str, part: &str) {
    assert_eq!(error.kind(), kind, "{}", chain(error));
    assert!(chain(error).contains(part), "{}", chain(error));
}

async fn is_running(driver: &Systemd) -> bool {
    matches!(driver.state(BROKER).await.unwrap(), ProcessState::Running { .. })
}

#[tokio::test]
async fn the_unit_is_started_with_this_epochs_environment_and_stopped_without_a_trace() {
    let bed = bed().await;
    let driver = bed.driver();
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Absent);
    let note = started(&driver, 3).await.unwrap();
    assert!(note.text.starts_with("started kafka@1.service, pid "), "{note:?}");
    assert!(note.details["proof"].contains("kafka-1 cannot write, by fence_agent"), "{note:?}");
    let pid: i32 = note.details["pid"].parse().unwrap();
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Running { pid });
    let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let properties = bed.root.path().join("state/broker-1/server.properties");
    for pair in [
        "UNDERSTUDY_BROKER=1".to_owned(),
        "UNDERSTUDY_EPOCH=3".to_owned(),
        format!("UNDERSTUDY_PROPERTIES={}", properties.display()),
        "EXTRA=extra".to_owned(),
    ] {
        assert!(environment.split('\0').any(|word| word == pair), "{pair}: {environment}");
    }
    assert!(fs::read_to_string(properties).unwrap().contains("epoch 3"));

    let note = driver.stop(BROKER, LONG).await.unwrap();
    assert!(note.text.contains("is inactive since it was asked to stop"), "{note:?}");
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Absent);
    assert!(!bed.drop_in().exists());
    let note = driver.stop(BROKER, LONG).await.unwrap();
    assert!(note.text.contains("no Kafka of the broker ran here"), "{note:?}");
}

#[tokio::test]
async fn the_unit_has_its_environment_before_the_start_which_makes_up_for_what_was_lost() {
    let bed = bed().await;
    let (driver, proofs) = (bed.driver(), [proof_of("kafka-1")]);
    let note = driver.render(BROKER, Epoch(1)).await.unwrap();
    assert_eq!(note.details["unit"], "kafka@1.service has the environment of epoch 1");
    assert_eq!(bed.fake.machine().reloads, 1);
    assert_eq!(bed.fake.machine().starts, 0);
    driver.start(BROKER, Epoch(1), &proofs).await.unwrap();
    assert_eq!(bed.fake.machine().reloads, 1, "it was read again though nothing had changed");
    driver.stop(BROKER, LONG).await.unwrap();

    driver.render(BROKER, Epoch(2)).await.unwrap();
    fs::remove_file(bed.drop_in()).unwrap();
    driver.start(BROKER, Epoch(2), &proofs).await.unwrap();
    assert!(bed.drop_in().exists());
    driver.stop(BROKER, LONG).await.unwrap();

    // What keeps a unit from being started is told by the start.
    bed.fake.machine().load = "masked";
    driver.render(BROKER, Epoch(3)).await.unwrap();
    says(&driver.start(BROKER, Epoch(3), &proofs).await.unwrap_err(), "refused", "systemctl unmask");
}

#[tokio::test]
async fn a_second_start_adopts() {
    let bed = bed().await;
    let first = started(&bed.driver(), 1).await.unwrap();
    let second = started(&bed.driver(), 1).await.unwrap();
    assert!(second.text.starts_with("adopted"), "{second:?}");
    assert_eq!(first.details["pid"], second.details["pid"]);
    assert_eq!(bed.fake.machine().starts, 1);
}

#[tokio::test]
async fn an_agent_that_dies_before_the_answer_does_not_start_again() {
    let bed = bed().await;
    // At each of these moments of its start; the last ones come after it.
    let proofs = [proof_of("kafka-1")];
    for millis in [1, 5, 10, 20, 30, 40, 60, 80, 120, 400] {
        bed.driver().render(BROKER, Epoch(1)).await.unwrap();
        let agent = bed.driver();
        let died = agent.start(BROKER, Epoch(1), &proofs);
        let died = tokio::time::timeout(Duration::from_millis(millis), died).await;
        let before = bed.fake.machine().starts;
        let note = loop {
            match bed.driver().start(BROKER, Epoch(1), &proofs).await {
                Ok(note) => break note,
                // Only the future died here, and not its threads, as they would with an agent.
                Err(error) if chain(&error).contains("still hangs") => {}
                Err(error) if chain(&error).contains("another agent process") => {}
                Err(error) => panic!("after {millis} ms: {}", chain(&error)),
            }
        };
        let starts = bed.fake.machine().starts;
        assert_eq!(starts, before.max(1), "after {millis} ms ({died:?}): {note:?}");
        bed.driver().stop(BROKER, LONG).await.unwrap();
        bed.fake.machine().starts = 0;
    }
}

#[tokio::test]
async fn a_job_whose_end_nobody_hears_is_found_out_by_looking() {
    let bed = bed().await;
    bed.fake.machine().on_start = OnStart::RunsUnheard;
    let note = started(&bed.driver(), 1).await.unwrap();
    assert!(note.text.starts_with("started"), "{note:?}");
    assert_eq!(bed.fake.machine().starts, 1);
}

#[tokio::test]
async fn a_start_that_fails_says_why_and_may_be_tried_again() {
    let bed = bed().await;
    let driver = bed.driver();
    for (on_start, told) in [
        (
            OnStart::Fails,
            "`failed`: kafka@1.service ended with result `exit-code`; its main process exited with status 3",
        ),
        (
            OnStart::Skipped,
            "`skipped`: kafka@1.service ended with result `exec-condition` (its ExecCondition= said no)",
        ),
        (OnStart::NotMet, "said no"),
        (OnStart::Denied, "run the agent as root"),
    ] {
        bed.fake.machine().on_start = on_start;
        says(&started(&driver, 1).await.unwrap_err(), "refused", told);
        assert!(!is_running(&driver).await);
    }
    bed.fake.machine().on_start = OnStart::Fails;
    started(&driver, 1).await.unwrap_err();
    let ProcessState::Exited { why } = driver.state(BROKER).await.unwrap() else { panic!("it failed") };
    assert!(why.contains("exit-code"), "{why}");
    bed.fake.machine().on_start = OnStart::Runs;
    started(&driver, 1).await.unwrap();
    assert!(bed.fake.machine().resets > 0, "what failed before counts against the start");
}

#[tokio::test]
async fn a_job_that_never_ends_is_unconfirmed_and_never_a_success() {
    let bed = bed().await;
    bed.fake.machine().on_start = OnStart::Hangs;
    let begun = Instant::now();
    says(&started(&bed.hasty(), 1).await.unwrap_err(), "unconfirmed", "systemctl list-jobs");
    assert!(begun.elapsed() < LONG);
    // Neither running nor stopped, for anybody who looks.
    says(&bed.driver().state(BROKER).await.unwrap_err(), "refused", "neither runs nor has it ended");
    says(
        &bed.driver().prove_stopped(BROKER, Epoch(2)).await.unwrap_err(),
        "refused",
        "it may run at any moment",
    );
    // And who carries on waits for it, and does not ask again.
    says(&started(&bed.hasty(), 1).await.unwrap_err(), "unconfirmed", "activating (condition)");
    assert_eq!(bed.fake.machine().starts, 1);
}

#[tokio::test]
async fn a_bus_that_stands_still_is_an_error_in_time_and_never_stopped() {
    let bed = bed().await;
    started(&bed.driver(), 1).await.unwrap();
    let driver = bed.hasty();
    assert!(is_running(&driver).await);
    bed.fake.signal_bus(Signal::STOP);
    let begun = Instant::now();
    says(&driver.state(BROKER).await.unwrap_err(), "unconfirmed", "tell of kafka@1.service");
    says(&driver.prove_stopped(BROKER, Epoch(2)).await.unwrap_err(), "unconfirmed", "");
    says(&driver.stop(BROKER, Duration::from_secs(1)).await.unwrap_err(), "unconfirmed", "");
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    bed.fake.signal_bus(Signal::CONT);
    assert!(is_running(&bed.driver()).await);
    // A driver that was let down connects anew.
    assert!(is_running(&driver).await);
}

#[tokio::test]
async fn a_manager_that_is_gone_for_a_moment_is_asked_again() {
    let mut bed = bed().await;
    let driver = bed.driver();
    started(&driver, 1).await.unwrap();
    bed.fake.go().await;
    says(&bed.hasty().state(BROKER).await.unwrap_err(), "failed", "are dbus.service and systemd well?");
    let looks = tokio::spawn(async move { driver.state(BROKER).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    bed.fake.come().await;
    assert!(matches!(looks.await.unwrap().unwrap(), ProcessState::Running { .. }));
}

#[tokio::test]
async fn a_bus_that_was_restarted_is_found_again() {
    let mut bed = bed().await;
    let driver = bed.driver();
    started(&driver, 1).await.unwrap();
    bed.fake.restart_bus().await;
    assert!(is_running(&driver).await);
    driver.stop(BROKER, LONG).await.unwrap();
}

#[tokio::test]
async fn a_manager_that_is_gone_in_the_middle_of_a_start_is_waited_for() {
    let mut bed = bed().await;
    bed.fake.machine().on_start = OnStart::Hangs;
    let driver = bed.driver();
    let starts = tokio::spawn(async move { started(&driver, 1).await });
    let begun = Instant::now();
    while bed.fake.machine().starts == 0 {
        assert!(begun.elapsed() < LONG, "it was never started");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bed.fake.go().await;
    {
        let mut machine = bed.fake.machine();
        machine.job = 0;
        machine.run();
    }
    bed.fake.come().await;
    let note = starts.await.unwrap().unwrap();
    assert!(note.text.starts_with("started"), "{note:?}");
    assert_eq!(bed.fake.machine().starts, 1);
}

#[tokio::test]
async fn what_this_epoch_did_not_start_is_not_adopted() {
    let bed = bed().await;
    let driver = bed.driver();
    started(&driver, 3).await.unwrap();
    says(&started(&driver, 4).await.unwrap_err(), "refused", "still runs since epoch 3");
    says(&started(&driver, 2).await.unwrap_err(), "superseded", "epoch 2 is superseded by epoch 3");
    driver.stop(BROKER, LONG).await.unwrap();
    bed.fake.machine().run();
    says(&started(&bed.hasty(), 4).await.unwrap_err(), "refused", "no takeover started it");
    // It can be stopped all the same: it is the broker's unit.
    driver.stop(BROKER, LONG).await.unwrap();
    started(&driver, 4).await.unwrap();
}

#[tokio::test]
async fn nothing_is_started_without_proofs_the_epochs_file_and_the_epochs_environment() {
    let bed = bed().await;
    let driver = bed.driver();
    driver.render(BROKER, Epoch(1)).await.unwrap();
    says(&driver.start(BROKER, Epoch(1), &[]).await.unwrap_err(), "refused", "no proof");
    let ourselves = [proof_of("standby")];
    says(&driver.start(BROKER, Epoch(1), &ourselves).await.unwrap_err(), "refused", "this very host");
    let proofs = [proof_of("kafka-1")];
    says(&driver.start(BROKER, Epoch(2), &proofs).await.unwrap_err(), "refused", "was not rendered");
    bed.fake.machine().overridden = Some("UNDERSTUDY_EPOCH");
    says(
        &driver.start(BROKER, Epoch(1), &proofs).await.unwrap_err(),
        "refused",
        "does not have UNDERSTUDY_EPOCH",
    );
    bed.fake.machine().overridden = None;
    bed.fake.machine().load = "masked";
    says(&driver.start(BROKER, Epoch(1), &proofs).await.unwrap_err(), "refused", "systemctl unmask");
    assert_eq!(bed.fake.machine().starts, 0);
}

#[tokio::test]
async fn a_kafka_that_somebody_else_started_is_seen() {
    let bed = bed().await;
    let driver = bed.driver();
    driver.render(BROKER, Epoch(1)).await.unwrap();
    let lock = fs::File::create(bed.root.path().join("log/.lock")).unwrap();
    let proofs = [proof_of("kafka-1")];
    says(&driver.start(BROKER, Epoch(1), &proofs).await.unwrap_err(), "refused", "stop it as it was started");
    says(&driver.prove_stopped(BROKER, Epoch(1)).await.unwrap_err(), "refused", "stop it as it was started");
    says(&driver.stop(BROKER, LONG).await.unwrap_err(), "refused", "stop it as it was started");
    drop(lock);
    // As a takeover's own start would mark it, under whatever driver.
    let mut marked = Command::new("sleep")
        .arg("1000")
        .env("UNDERSTUDY_BROKER", "1")
        .env("UNDERSTUDY_EPOCH", "7")
        .env("UNDERSTUDY_STATE_DIR", bed.root.path().join("state").canonicalize().unwrap())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let refused = driver.prove_stopped(BROKER, Epoch(7)).await;
    marked.kill().unwrap();
    marked.wait().unwrap();
    says(&refused.unwrap_err(), "refused", "started for epoch 7");
    let _proof = driver.prove_stopped(BROKER, Epoch(1)).await.unwrap();
}

#[tokio::test]
async fn stopped_is_proven_only_of_a_unit_from_which_nothing_can_come() {
    let bed = bed().await;
    let driver = bed.driver();
    let proof = driver.prove_stopped(BROKER, Epoch(1)).await.unwrap();
    assert_eq!((proof.host.0.as_str(), proof.by.as_str()), ("standby", "systemd"));
    for part in
        ["kafka@1.service is inactive (dead)", "no job queued", "control group", "no process on this host"]
    {
        assert!(proof.note.text.contains(part), "{proof:?}");
    }
    (bed.fake.machine().active, bed.fake.machine().sub) = ("activating", "auto-restart");
    says(&driver.prove_stopped(BROKER, Epoch(1)).await.unwrap_err(), "refused", "(auto-restart)");
    (bed.fake.machine().active, bed.fake.machine().sub) = ("inactive", "dead");
    bed.fake.machine().job = 9;
    says(&driver.prove_stopped(BROKER, Epoch(1)).await.unwrap_err(), "refused", "job 9 queued");
    bed.fake.machine().job = 0;
    bed.fake.machine().control_group = vec![("/k".into(), 4711, "java kafka.Kafka".into())];
    says(&driver.prove_stopped(BROKER, Epoch(1)).await.unwrap_err(), "refused", "4711 (java kafka.Kafka)");
    bed.fake.machine().control_group.clear();
    started(&driver, 5).await.unwrap();
    let own = driver.prove_stopped(BROKER, Epoch(5)).await.unwrap();
    assert!(own.note.text.contains("the one of this takeover"), "{own:?}");
    says(
        &driver.prove_stopped(BROKER, Epoch(6)).await.unwrap_err(),
        "refused",
        "systemctl stop kafka@1.service",
    );
}

#[tokio::test]
async fn what_ignores_the_stop_is_not_killed() {
    let bed = bed().await;
    let driver = bed.driver();
    started(&driver, 1).await.unwrap();
    bed.fake.machine().on_stop = OnStop::Ignored;
    says(&driver.stop(BROKER, Duration::from_secs(2)).await.unwrap_err(), "unconfirmed", "");
    assert!(is_running(&driver).await);
    let status = bed.fake.machine().main.as_mut().map(|main| main.try_wait().unwrap());
    assert_eq!(status, Some(None));
    // Its exit code on SIGTERM is no failure: it was asked to end.
    bed.fake.machine().on_stop = OnStop::EndsBadly;
    driver.stop(BROKER, LONG).await.unwrap();
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Absent);
}

/// The unit's name is what the stand-in serves.
#[test]
fn the_stand_in_serves_the_configured_unit() {
    assert_eq!(config_in(Path::new("/")).unit.replace(super::BROKER, "1"), UNIT);
}

#[tokio::test]
async fn the_unit_is_told_of_an_archive_that_fits_behind_whatever_it_says_itself() {
    let bed = bed().await;
    let driver = bed.driver();
    let note = started(&driver, 3).await.unwrap();
    assert_eq!(note.details["class_data"], "none: none was made yet");
    driver.stop(BROKER, LONG).await.unwrap();

    let archive = super::super::class_data::tests::shelve(&driver.shelf);
    let note = started(&driver, 4).await.unwrap();
    assert_eq!(note.details["class_data"], format!("used: {}", archive.display()));
    let pid = &note.details["pid"];
    let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let told = format!("JDK_JAVA_OPTIONS={}", with_archive(None, &archive, processors()));
    assert!(environment.split('\0').any(|word| word == told), "{environment}");
    driver.stop(BROKER, LONG).await.unwrap();

    fs::write(&archive, "cut").unwrap();
    let note = started(&driver, 5).await.unwrap();
    assert!(note.details["class_data"].ends_with("has 3 bytes of 7"), "{note:?}");
    assert!(!fs::read_to_string(bed.drop_in()).unwrap().contains("JDK_JAVA_OPTIONS"));
    driver.stop(BROKER, LONG).await.unwrap();
}

#[tokio::test]
async fn what_has_no_registration_is_killed_and_can_be_started_again() {
    let bed = bed().await;
    let driver = bed.driver();
    let note = started(&driver, 1).await.unwrap();
    let pid: i32 = note.details["pid"].parse().unwrap();
    bed.fake.machine().on_stop = OnStop::Ignored;
    says(&driver.kill(BROKER, pid + 1, LONG).await.unwrap_err(), "refused", "was meant");
    assert!(is_running(&driver).await);
    assert_eq!(bed.fake.machine().kills, 0);

    let note = driver.kill(BROKER, pid, LONG).await.unwrap();
    assert!(note.text.contains("killed"), "{note:?}");
    assert_eq!(bed.fake.machine().kills, 1);
    let _stopped = driver.prove_stopped(BROKER, Epoch(2)).await.unwrap();
    started(&driver, 2).await.unwrap();
    assert!(is_running(&driver).await);
}
