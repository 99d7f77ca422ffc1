//! Ladders whose rungs are shell scripts.

use std::time::{Duration, Instant};

use super::super::ExecConfig;
use super::*;

const EPOCH: Epoch = Epoch(1);

/// A rung that answers `off` and `status` with these scripts.
fn rung(off: &str, status: &str) -> Arc<dyn Fence> {
    rung_within(Duration::from_secs(1), off, status)
}

fn rung_within(timeout: Duration, off: &str, status: &str) -> Arc<dyn Fence> {
    let script =
        format!("a=$(sed -n s/^action=//p); case $a in off) {off};; status|on) {status};; *) exit 1;; esac");
    let command = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
    let config = ExecConfig { command, timeout, options: Default::default(), leaves_running: false };
    Arc::new(config.build().unwrap())
}

fn works() -> Arc<dyn Fence> {
    rung("exit 0", "echo off; exit 2")
}

fn host() -> HostName {
    HostName::from("kafka-1")
}

#[tokio::test]
async fn the_first_proven_rung_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let touched = dir.path().join("touched");
    let unused = rung(&format!("touch {}", touched.display()), "echo off; exit 2");
    let ladder = Ladder::new(vec![rung("echo broken; exit 1", "exit 1"), works(), unused]);
    let note = ladder.fence(&host(), EPOCH).await.unwrap();
    assert!(note.text.starts_with("kafka-1 is fenced by exec (2 of 3)"), "{}", note.text);
    assert!(note.details["failed_before"].contains("exec (1 of 3): exec could not turn kafka-1 off"));
    assert!(note.details["failed_before"].contains("broken"));
    assert!(
        note.text.contains("turned kafka-1 off in") && note.text.contains("reads that kafka-1 is off"),
        "{note}"
    );
    assert!(!touched.exists(), "a rung beyond the proven one was used");
}

#[tokio::test]
async fn a_rung_that_says_done_and_is_still_on_contradicts_the_next_one() {
    let ladder = Ladder::new(vec![rung("exit 0", "exit 0"), works()]);
    let error = ladder.fence(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("exec (2 of 2) reads off, and exec (1 of 2) reads that kafka-1 is on"), "{error}");
}

#[tokio::test]
async fn a_host_that_only_reads_as_off_may_be_in_the_middle_of_a_reboot() {
    let dir = tempfile::tempdir().unwrap();
    // Off at the first look, and on at the next one.
    let status = format!(
        "cd {}; [ -e seen ] && {{ echo on; exit 0; }}; touch seen; echo off; exit 2",
        dir.path().display()
    );
    let ladder = Ladder::new(vec![rung("exit 1", &status)]);
    let error = ladder.fence(&host(), EPOCH).await.unwrap_err();
    assert!(error.to_string().contains("could not turn kafka-1 off"), "{error}");
}

/// A device that looks at another machine, or knows no other answer.
#[tokio::test]
async fn a_host_that_answers_by_its_own_address_is_not_off() {
    let own = Some(IpAddr::from([127, 0, 0, 1]));
    let ladder = Ladder::new(vec![works()]).of_the_host_at(own);
    let error = ladder.prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("reads that kafka-1 is off, and 127.0.0.1:"), "{error}");
    // What is cut off its storage alone may answer.
    assert!(Ladder::new(vec![Arc::new(StorageOnly)]).of_the_host_at(own).prove(&host(), EPOCH).await.is_ok());
}

/// A device that looks at another machine: its order would switch that one off.
#[tokio::test]
async fn a_rung_that_read_off_while_the_host_lived_counts_again_once_it_has_read_on() {
    let dir = tempfile::tempdir().unwrap();
    let (ordered, on) = (dir.path().join("ordered"), dir.path().join("on"));
    let status = format!("[ -e {} ] && {{ echo on; exit 0; }}; echo off; exit 2", on.display());
    let ladder = Ladder::new(vec![rung(&format!("touch {}", ordered.display()), &status)]);
    ladder.disbelieve("exec (1 of 1)", "it reads off, and broker 1 there answers");
    for error in [
        ladder.fence(&host(), EPOCH).await.unwrap_err(),
        ladder.prove(&host(), EPOCH).await.unwrap_err(),
        ladder.clone().finish(&host(), EPOCH).await.unwrap_err(),
    ] {
        let error = error.to_string();
        assert!(
            error.contains("broker 1 there answers. No word of it counts before it has read on"),
            "{error}"
        );
    }
    assert!(!ordered.exists(), "it was ordered to switch off what is another machine");
    ladder.checks(&host()).await;
    assert!(ladder.prove(&host(), EPOCH).await.is_err(), "it has not read on");
    std::fs::write(&on, "").unwrap();
    ladder.checks(&host()).await;
    std::fs::remove_file(&on).unwrap();
    assert!(ladder.fence(&host(), EPOCH).await.is_ok());
}

/// `check` dials the host's own address as a takeover does.
#[tokio::test]
async fn check_compares_what_a_rung_reads_with_the_hosts_own_address() {
    let own = Some(IpAddr::from([127, 0, 0, 1]));
    let checked = |ladder: Ladder| async move { ladder.checks(&host()).await.remove(0).1 };
    let error = checked(Ladder::new(vec![works()]).of_the_host_at(own)).await.unwrap_err().to_string();
    assert!(error.contains("reads that kafka-1 is off, and 127.0.0.1:"), "{error}");
    assert!(checked(Ladder::new(vec![works()])).await.is_ok());
    assert!(checked(Ladder::new(vec![rung("exit 0", "echo on; exit 0")]).of_the_host_at(own)).await.is_ok());
}

/// Two outlets as two rungs: one of them off is no proof while the other reads on.
#[tokio::test]
async fn another_power_fence_that_reads_on_is_switched_off_too() {
    let dir = tempfile::tempdir().unwrap();
    let outlet = |name: &str, off: &str| {
        let file = dir.path().join(name).display().to_string();
        rung(
            &format!("{off} && touch {file}"),
            &format!("[ -e {file} ] && {{ echo off; exit 2; }}; echo on; exit 0"),
        )
    };
    let ladder = Ladder::new(vec![outlet("a", "true"), outlet("b", "true")]);
    let note = ladder.fence(&host(), EPOCH).await.unwrap();
    assert!(note.text.contains("exec (2 of 2), which read on"), "{}", note.text);
    assert!(dir.path().join("b").exists());
    assert_eq!(ladder.prove(&host(), EPOCH).await.unwrap().host, host());

    let stuck = Ladder::new(vec![outlet("a", "true"), outlet("c", "false")]);
    let error = stuck.fence(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("exec (2 of 2) reads that kafka-1 is on"), "{error}");
    let error = stuck.prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("exec (1 of 2) reads off, and exec (2 of 2) reads on"), "{error}");
}

#[tokio::test]
async fn when_no_rung_is_proven_all_of_them_are_named() {
    let ladder = Ladder::new(vec![rung("exit 7", "exit 1"), rung("exit 0", "exit 3")]);
    let text = ladder.fence(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(text.contains("exec (1 of 2)") && text.contains("exit code 7"), "{text}");
    assert!(text.contains("exec (2 of 2)") && text.contains("Missing: a status of off"), "{text}");
    let text = ladder.prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(text.contains("exec (1 of 2)") && text.contains("exec (2 of 2)"), "{text}");
    let text = Ladder::new(vec![]).prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(text.contains("no fence is configured"), "{text}");
}

#[tokio::test]
async fn a_hung_rung_does_not_hold_up_the_proof_of_another() {
    let begun = Instant::now();
    let hung = rung_within(Duration::from_secs(60), "exit 1", "sleep 1000");
    let proof = Ladder::new(vec![hung, works()]).prove(&host(), EPOCH).await.unwrap();
    assert_eq!(proof.by, "exec (2 of 2)");
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn lifting_wants_every_rung_and_reads_it_back() {
    let lifted = || rung("exit 1", "echo on");
    let note = Ladder::new(vec![lifted(), lifted()]).lift(&host()).await.unwrap();
    assert_eq!(note.text.matches("reads that kafka-1 is on").count(), 2, "{note:?}");
    let error = Ladder::new(vec![lifted(), works()]).lift(&host()).await.unwrap_err().to_string();
    assert!(error.contains("exec (2 of 2)") && error.contains("turn kafka-1 on"), "{error}");
}

/// A rung that denies the storage, and is proven.
struct StorageOnly;

#[async_trait]
impl Fence for StorageOnly {
    fn name(&self) -> &'static str {
        "storage"
    }
    fn leaves_running(&self) -> bool {
        true
    }
    async fn fence(&self, _: &HostName, _: Epoch) -> Result<Note, StepError> {
        Ok(Note::new("denied"))
    }
    async fn prove(&self, host: &HostName, _: Epoch) -> Result<Proof, StepError> {
        Ok(Proof { host: host.clone(), by: "storage".to_owned(), note: Note::new("denied") })
    }
    async fn lift(&self, _: &HostName) -> Result<Note, StepError> {
        Ok(Note::new("let in"))
    }
    async fn check(&self, _: &HostName) -> Result<Note, StepError> {
        Ok(Note::new("answers"))
    }
}

#[tokio::test]
async fn a_proven_storage_fence_is_finished_by_the_next_rung_that_stops_the_host() {
    let storage = || Arc::new(StorageOnly) as Arc<dyn Fence>;
    let dir = tempfile::tempdir().unwrap();
    let off = dir.path().join("off");
    // On until it is switched off.
    let (switch, look) =
        (format!("touch {}", off.display()), format!("[ -e {} ] && {{ echo off; exit 2; }}", off.display()));
    let ladder = Ladder::new(vec![storage(), rung(&switch, &look)]);
    assert!(ladder.fence(&host(), EPOCH).await.unwrap().text.contains("storage (1 of 2)"));
    assert!(!off.exists(), "the first proof is enough for a start");
    let note = ladder.finish(&host(), EPOCH).await.unwrap();
    assert!(note.text.starts_with("kafka-1 is off by exec (2 of 2)"), "{}", note.text);
    assert!(off.exists() && !ladder.leaves_running());

    let error = Ladder::new(vec![storage()]).finish(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("no fence that stops it is configured"), "{error}");
    assert!(Ladder::new(vec![storage()]).leaves_running());
    let broken = Ladder::new(vec![storage(), rung("exit 7", "exit 1")]);
    let error = broken.finish(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("exec (2 of 2)") && error.contains("turn the host off by hand"), "{error}");
}

#[tokio::test]
async fn check_wants_every_rung() {
    assert!(Ladder::new(vec![works(), works()]).check(&host()).await.is_ok());
    let error = Ladder::new(vec![works(), rung("exit 0", "exit 1")]).check(&host()).await.unwrap_err();
    assert!(error.to_string().contains("exec (2 of 2)"), "{error}");
}

#[tokio::test]
async fn each_rung_is_checked_and_told_by_itself() {
    let broken = rung("exit 0", "exit 1");
    let found = Ladder::new(vec![works(), broken, works()]).checks(&host()).await;
    let found: Vec<(&str, bool)> = found.iter().map(|(rung, found)| (rung.as_str(), found.is_ok())).collect();
    assert_eq!(found, [("exec (1 of 3)", true), ("exec (2 of 3)", false), ("exec (3 of 3)", true)]);
    let none = Ladder::new(Vec::new()).checks(&host()).await;
    assert!(matches!(&none[..], [(_, Err(_))]), "{none:?}");
}
