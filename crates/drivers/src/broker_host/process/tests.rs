//! The driver with real processes: small shell scripts stand in for Kafka.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::super::right::Right;
use super::super::site::{Record, Site};
use super::super::{BrokerIdentity, proc};
use super::*;
use recovery::ports::chain;

mod configured;
mod foreign;

const BROKER: BrokerId = BrokerId(1);
const LONG: Duration = Duration::from_secs(20);

/// A host with one broker's storage; scripts stand in for Kafka.
struct Bed {
    root: tempfile::TempDir,
    script: PathBuf,
}

/// A log dir, a template and `script` as Kafka. Whatever runs at the end is killed, by its own pid.
fn bed(script: &str) -> Bed {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("kafka.sh");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(root.path().join("log")).unwrap();
    let meta = "version=1\ncluster.id=c1\nnode.id=1\ndirectory.id=d1\n";
    fs::write(root.path().join("log/meta.properties"), meta).unwrap();
    let template = "process.roles=broker\nnode.id=9\ncontroller.quorum.voters=101@c:9093\n\
                    controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://:9092\n";
    fs::write(root.path().join("template"), template).unwrap();
    Bed { root, script: path }
}

/// Prints its arguments once for every start, and runs until it is asked to stop.
const FOREVER: &str = "echo started \"$1\" \"$EXTRA\"; exec sleep 1000";

fn text(path: &Path) -> String {
    path.to_str().unwrap().into()
}

fn config_in(root: &Path) -> ProcessConfig {
    ProcessConfig {
        // Not the script itself: it cannot be executed while another test's fork still has it open.
        command: vec!["/bin/sh".into(), text(&root.join("kafka.sh")), "{properties}".into()],
        stop_command: Vec::new(),
        template: root.join("template"),
        environment: BTreeMap::from([("EXTRA".into(), "extra".into())]),
        user: None,
        class_data: ClassDataUse::Auto,
        timeout: LONG,
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

fn driver_in(root: &Path) -> Process {
    Process::new(config_in(root), "standby".into(), root.join("state"), vec![identity_in(root)]).unwrap()
}

impl Bed {
    fn config(&self) -> ProcessConfig {
        config_in(self.root.path())
    }

    fn identity(&self) -> BrokerIdentity {
        identity_in(self.root.path())
    }

    /// A driver as a newly started agent makes it.
    fn driver(&self) -> Process {
        driver_in(self.root.path())
    }

    fn site(&self) -> Site {
        self.driver().inner.common.site(BROKER)
    }

    fn output(&self) -> String {
        fs::read_to_string(self.site().output()).unwrap_or_default()
    }

    /// Starts another process as an agent would that died before it could record it.
    fn unrecorded(&self, epoch: &str) -> Child {
        Command::new("sleep")
            .arg("1000")
            .env("UNDERSTUDY_BROKER", BROKER.to_string())
            .env("UNDERSTUDY_EPOCH", epoch)
            .env("UNDERSTUDY_STATE_DIR", self.root.path().join("state").canonicalize().unwrap())
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let marker = self.driver().inner.common.marker(BROKER);
        for marked in marker.find().unwrap() {
            kill(marked.id.pid);
        }
    }
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

fn proof() -> [Proof; 1] {
    [proof_of("kafka-1")]
}

fn proof_of(host: &str) -> Proof {
    Proof { host: host.into(), by: "fence_agent".into(), note: Note::new("status is off") }
}

async fn started(driver: &Process, epoch: u64) -> Result<Note, StepError> {
    driver.render(BROKER, Epoch(epoch)).await.unwrap();
    driver.start(BROKER, Epoch(epoch), &proof()).await
}

async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(begun.elapsed() < LONG, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn exited(driver: &Process) -> String {
    until("an exit", async || match driver.state(BROKER).await.unwrap() {
        ProcessState::Exited { why } => Some(why),
        _ => None,
    })
    .await
}

fn pid(note: &Note) -> i32 {
    note.details["pid"].parse().unwrap()
}

#[track_caller]
fn says(error: &StepError, kind: &str, part: &str) {
    assert_eq!(error.kind(), kind, "{}", chain(error));
    assert!(chain(error).contains(part), "{}", chain(error));
}

#[tokio::test]
async fn starts_in_its_own_session_and_stops_on_sigterm() {
    let bed = bed(FOREVER);
    let driver = bed.driver();
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Absent);
    let note = started(&driver, 1).await.unwrap();
    let pid = pid(&note);
    assert!(
        note.details["proof"].contains("kafka-1 cannot write, by fence_agent: status is off"),
        "{note:?}"
    );
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Running { pid });
    let session = rustix::process::getsid(rustix::process::Pid::from_raw(pid)).unwrap();
    assert_eq!(session.as_raw_pid(), pid);
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), PathBuf::from("/"));
    let properties = bed.site().properties();
    let printed = format!("started {} extra\n", properties.display());
    until("output", async || (bed.output() == printed).then_some(())).await;

    let note = driver.stop(BROKER, LONG).await.unwrap();
    assert!(note.text.contains("ended after SIGTERM"), "{note:?}");
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Absent);
    let note = driver.stop(BROKER, LONG).await.unwrap();
    assert!(note.text.contains("no Kafka"), "{note:?}");
}

#[tokio::test]
async fn a_second_start_adopts() {
    let bed = bed(FOREVER);
    let first = started(&bed.driver(), 1).await.unwrap();
    let second = started(&bed.driver(), 1).await.unwrap();
    assert!(second.text.contains("adopted"), "{second:?}");
    assert_eq!(pid(&first), pid(&second));
    until("output", async || (!bed.output().is_empty()).then_some(())).await;
    assert_eq!(bed.output().lines().count(), 1, "{}", bed.output());
}

#[tokio::test]
async fn starts_at_the_same_time_start_once() {
    let bed = bed(FOREVER);
    let (a, b) = (bed.driver(), bed.driver());
    a.render(BROKER, Epoch(1)).await.unwrap();
    let (proof_a, proof_b) = (proof(), proof());
    let (a, b) = tokio::join!(a.start(BROKER, Epoch(1), &proof_a), b.start(BROKER, Epoch(1), &proof_b));
    assert_eq!(pid(&a.unwrap()), pid(&b.unwrap()));
    until("output", async || (!bed.output().is_empty()).then_some(())).await;
    assert_eq!(bed.output().lines().count(), 1, "{}", bed.output());
}

#[tokio::test]
async fn an_agent_that_died_before_it_recorded_the_start_does_not_start_again() {
    let bed = bed(FOREVER);
    let first = started(&bed.driver(), 1).await.unwrap();
    let record = bed.site().record().unwrap().unwrap();
    for left in [None, Some(Record { process: None, ..record.clone() })] {
        match &left {
            None => bed.site().forget().unwrap(),
            Some(intent) => bed.site().keep(intent).unwrap(),
        }
        let again = started(&bed.driver(), 1).await.unwrap();
        assert!(again.text.contains("adopted"), "{again:?}");
        assert_eq!(pid(&first), pid(&again));
        assert_eq!(bed.site().record().unwrap().unwrap().process, record.process);
    }
    until("output", async || (!bed.output().is_empty()).then_some(())).await;
    assert_eq!(bed.output().lines().count(), 1, "{}", bed.output());
}

/// Names the test host to [`agent_that_is_killed`].
const AGENT_OF: &str = "TEST_AGENT_OF";

/// An agent in a process of its own, for [`an_agent_killed_at_any_instant_leaves_one_kafka`].
#[tokio::test]
async fn agent_that_is_killed() {
    let Some(root) = std::env::var_os(AGENT_OF) else { return };
    let driver = driver_in(Path::new(&root));
    fs::write(Path::new(&root).join("ready"), "").unwrap();
    driver.start(BROKER, Epoch(1), &proof()).await.unwrap();
}

#[tokio::test]
async fn an_agent_killed_at_any_instant_leaves_one_kafka() {
    let mut adopted = 0;
    // Every half millisecond at first; then later and later, until a machine of any speed has started one in
    // time.
    let fine = (0..24).map(|step| Duration::from_micros(step * 500));
    let coarse = (0..9).map(|step| Duration::from_millis(20 << step));
    for (step, delay) in fine.chain(coarse).enumerate() {
        if step >= 24 && adopted > 0 {
            break;
        }
        let bed = bed(FOREVER);
        let driver = bed.driver();
        driver.render(BROKER, Epoch(1)).await.unwrap();
        let mut agent = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "broker_host::process::tests::agent_that_is_killed"])
            .env(AGENT_OF, bed.root.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("the agent", async || bed.root.path().join("ready").exists().then_some(())).await;
        // The moment of the kill is the point here, so it is a sleep and not a condition.
        std::thread::sleep(delay);
        agent.kill().unwrap();
        agent.wait().unwrap();
        let note = driver.start(BROKER, Epoch(1), &proof()).await.unwrap();
        adopted += usize::from(note.text.contains("adopted"));
        let running = ProcessState::Running { pid: pid(&note) };
        assert_eq!(driver.state(BROKER).await.unwrap(), running);
        until("output", async || (!bed.output().is_empty()).then_some(())).await;
        assert_eq!(bed.output().lines().count(), 1, "{}", bed.output());
        // While it calls `exec` the kernel shows no environment of it.
        let marked = || driver.inner.common.marker(BROKER).find().unwrap().len();
        until("the marker", async || (marked() > 0).then_some(())).await;
        assert!(marked() <= 1);
    }
    assert!(adopted > 0, "no kill came late enough to matter");
}

/// Between fork and exec a process has the lock and not yet the marker.
#[tokio::test]
async fn a_process_that_only_holds_the_lock_keeps_a_second_one_from_starting() {
    let bed = bed(FOREVER);
    let driver = bed.driver();
    driver.render(BROKER, Epoch(1)).await.unwrap();
    let lock = bed.site().lock_alive(Duration::ZERO).unwrap().unwrap();
    says(&driver.start(BROKER, Epoch(1), &proof()).await.unwrap_err(), "refused", "alive.lock");
    says(&driver.prove_stopped(BROKER, Epoch(2)).await.unwrap_err(), "refused", "alive.lock");
    assert_eq!(bed.output(), "");
    // It shows itself in time: adopted.
    let mut child = bed.unrecorded("1");
    let note = driver.start(BROKER, Epoch(1), &proof()).await.unwrap();
    assert_eq!(pid(&note), i32::try_from(child.id()).unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    drop(lock);
    let _stopped = driver.prove_stopped(BROKER, Epoch(2)).await.unwrap();
}

#[tokio::test]
async fn a_recycled_pid_is_not_our_process() {
    let bed = bed(FOREVER);
    let driver = bed.driver();
    let first = started(&driver, 1).await.unwrap();
    driver.stop(BROKER, LONG).await.unwrap();
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    let other_pid = i32::try_from(other.id()).unwrap();
    let record = Record {
        epoch: Epoch(1),
        boot_id: proc::boot_id().unwrap(),
        process: Some(ProcessId { pid: other_pid, start_ticks: 1 }),
        command: Vec::new(),
        proof: String::new(),
        output_from: 0,
    };
    bed.site().keep(&record).unwrap();
    assert!(matches!(driver.state(BROKER).await.unwrap(), ProcessState::Exited { .. }));
    let _stopped = driver.prove_stopped(BROKER, Epoch(2)).await.unwrap();
    driver.stop(BROKER, LONG).await.unwrap();
    bed.site().keep(&record).unwrap();
    let note = started(&driver, 1).await.unwrap();
    assert!(note.text.contains("started Kafka"), "{note:?}");
    assert!(pid(&note) != other_pid && pid(&note) != pid(&first));
    assert_eq!(other.try_wait().unwrap(), None, "a process of somebody else was ended");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[tokio::test]
async fn an_exit_tells_its_status_and_last_words() {
    let bed = bed("sleep 0.2; echo first; echo 'ERROR no lock' >&2; exit 3");
    let driver = bed.driver();
    started(&driver, 1).await.unwrap();
    let why = exited(&driver).await;
    assert!(why.contains("exited with status 3"), "{why}");
    assert!(why.ends_with("first\nERROR no lock"), "{why}");
    // Told again, although the status can be fetched once only.
    assert_eq!(exited(&driver).await, why);
    // Another agent was not its parent.
    let why = exited(&bed.driver()).await;
    assert!(why.contains("unknown status") && why.ends_with("ERROR no lock"), "{why}");
    // It may be started again in the same epoch; the old words are not those of the new process.
    let _stopped = driver.prove_stopped(BROKER, Epoch(2)).await.unwrap();
    started(&driver, 1).await.unwrap();
    assert!(matches!(driver.state(BROKER).await.unwrap(), ProcessState::Running { .. }));
    let why = exited(&driver).await;
    assert_eq!(why.matches("first").count(), 1, "{why}");
}

#[tokio::test]
async fn a_killed_process_counts_as_exited() {
    let bed = bed(FOREVER);
    let driver = bed.driver();
    let note = started(&driver, 1).await.unwrap();
    kill(pid(&note));
    let why = exited(&driver).await;
    assert!(why.contains("was killed by signal 9"), "{why}");
}

#[tokio::test]
async fn a_process_that_ignores_sigterm_is_not_killed() {
    let bed = bed("trap 'echo ignored' TERM; echo ready; while :; do sleep 0.05; done");
    let driver = bed.driver();
    let note = started(&driver, 1).await.unwrap();
    until("output", async || (!bed.output().is_empty()).then_some(())).await;
    let error = driver.stop(BROKER, Duration::from_secs(3)).await.unwrap_err();
    says(&error, "unconfirmed", "was sent SIGTERM and still runs");
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Running { pid: pid(&note) });
    says(&driver.prove_stopped(BROKER, Epoch(2)).await.unwrap_err(), "refused", "runs on this host");
    // To an agent that died after the start and carries on, the Kafka of its own epoch is no obstacle.
    let _own = driver.prove_stopped(BROKER, Epoch(1)).await.unwrap();
    assert_eq!(bed.output().matches("ignored").count(), 1, "{}", bed.output());
}

#[tokio::test]
async fn a_wrapper_that_does_not_exec_is_stopped_with_what_it_started() {
    let bed = bed("sleep 1000 & echo ready; wait");
    let driver = bed.driver();
    started(&driver, 1).await.unwrap();
    until("output", async || (!bed.output().is_empty()).then_some(())).await;
    driver.stop(BROKER, LONG).await.unwrap();
    let _stopped = driver.prove_stopped(BROKER, Epoch(2)).await.unwrap();
}

#[tokio::test]
async fn epochs_only_grow() {
    let bed = bed(FOREVER);
    let driver = bed.driver();
    started(&driver, 3).await.unwrap();
    says(&started(&driver, 2).await.unwrap_err(), "superseded", "epoch 2 is superseded by epoch 3");
    says(&started(&driver, 4).await.unwrap_err(), "refused", "from epoch 3 still runs");
    driver.stop(BROKER, LONG).await.unwrap();
    started(&driver, 4).await.unwrap();
}

#[tokio::test]
async fn kafka_is_not_started_with_a_file_of_another_epoch_or_without_one() {
    let bed = bed(FOREVER);
    let driver = bed.driver();
    let error = driver.start(BROKER, Epoch(1), &proof()).await.unwrap_err();
    says(&error, "failed", "server.properties");
    driver.render(BROKER, Epoch(1)).await.unwrap();
    let error = driver.start(BROKER, Epoch(2), &proof()).await.unwrap_err();
    says(&error, "refused", "was not rendered for broker 1, epoch 2");
}

#[tokio::test]
async fn a_fence_of_this_very_host_is_no_proof() {
    let bed = bed(FOREVER);
    let driver = bed.driver();
    driver.render(BROKER, Epoch(1)).await.unwrap();
    let about_us = [proof_of("kafka-1"), proof_of("standby")];
    says(&driver.start(BROKER, Epoch(1), &[]).await.unwrap_err(), "refused", "no proof");
    says(&driver.start(BROKER, Epoch(1), &about_us).await.unwrap_err(), "refused", "this very host");
    let own = driver.prove_stopped(BROKER, Epoch(2)).await.unwrap();
    assert_eq!((own.host.0.as_str(), own.by.as_str()), ("standby", "process"));
    driver.start(BROKER, Epoch(1), &[own]).await.unwrap();
}

#[tokio::test]
async fn what_has_no_registration_is_killed_with_what_it_started() {
    let bed = bed("trap '' TERM; sleep 1000 & echo ready; wait");
    let driver = bed.driver();
    let pid = pid(&started(&driver, 1).await.unwrap());
    until("output", async || (!bed.output().is_empty()).then_some(())).await;
    says(&driver.stop(BROKER, Duration::from_secs(1)).await.unwrap_err(), "unconfirmed", "it is not killed");
    // Another process than the one that was seen is not touched.
    says(&driver.kill(BROKER, pid + 1, LONG).await.unwrap_err(), "refused", "was meant");
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Running { pid });

    let note = driver.kill(BROKER, pid, LONG).await.unwrap();
    assert!(note.text.contains("was killed"), "{note:?}");
    let _stopped = driver.prove_stopped(BROKER, Epoch(1)).await.unwrap();
    assert!(matches!(driver.state(BROKER).await.unwrap(), ProcessState::Exited { .. }));
    let note = driver.kill(BROKER, pid, LONG).await.unwrap();
    assert!(note.text.contains("has ended already"), "{note:?}");
    // The same epoch may start it again. Before it has set its trap, it would end.
    started(&driver, 1).await.unwrap();
    until("it again", async || (bed.output().matches("ready").count() > 1).then_some(())).await;
    driver.stop(BROKER, Duration::from_secs(1)).await.unwrap_err();
    driver.kill(BROKER, self::pid(&started(&driver, 1).await.unwrap()), LONG).await.unwrap();
}
