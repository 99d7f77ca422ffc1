//! `understudy enter` and the broker host `kubernetes`: real processes, and small shell scripts for Kafka. No
//! namespaces: so an entry point can be killed here while its Kafka lives, which is worse than in a pod.

mod pod;
mod words;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use recovery::model::Epoch;
use recovery::ports::{ProcessState, StepError, chain};

use pod::{BROKER, FOREVER, LONG, Pod, agent_of, is_there, pid, proof, signal, started, until};
use rustix::process::Signal;

#[tokio::test]
async fn kafka_waits_for_the_word_and_then_runs_as_the_containers_child() {
    let pod = Pod::new(FOREVER);
    let driver = pod.driver();
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Absent);
    let stopped = driver.prove_stopped(BROKER, Epoch(1)).await.unwrap();
    assert_eq!((stopped.host.0.as_str(), stopped.by.as_str()), ("standby-1", "kubernetes"));
    assert_eq!(pod.starts(), 0, "{}", pod.log());

    let note = started(&*driver, 1).await.unwrap();
    assert!(note.details["proof"].contains("kafka-1 cannot write, by fence_agent"), "{note:?}");
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Running { pid: pid(&note) });
    until("output", async || (pod.starts() == 1).then_some(())).await;
    // What the container has, Kafka has: its environment, and where its output goes.
    let properties = pod.path("shared/broker-1/server.properties");
    assert!(pod.log().contains(&format!("started {} of-the-image\n", properties.display())), "{}", pod.log());
    let text = fs::read_to_string(properties).unwrap();
    assert!(text.contains("node.id=1\n") && text.contains("epoch 1"), "{text}");
    assert!(driver.bytes_read(BROKER, pid(&note)).await.unwrap() > 0);

    let note = driver.stop(BROKER, LONG).await.unwrap();
    assert!(note.text.contains("ended after SIGTERM"), "{note:?}");
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Absent);
    assert!(pod.lives());
}

#[tokio::test]
async fn a_second_word_adopts_and_an_older_epoch_is_refused() {
    let pod = Pod::new(FOREVER);
    let (driver, second) = (pod.driver(), pod.driver());
    driver.render(BROKER, Epoch(2)).await.unwrap();
    let (proof_a, proof_b) = (proof(), proof());
    let (a, b) =
        tokio::join!(driver.start(BROKER, Epoch(2), &proof_a), second.start(BROKER, Epoch(2), &proof_b));
    assert_eq!(pid(&a.unwrap()), pid(&b.unwrap()));
    let error = started(&*driver, 1).await.unwrap_err();
    assert!(matches!(error, StepError::Superseded { ours: Epoch(1), theirs: Epoch(2) }), "{}", chain(&error));
    says(&started(&*driver, 3).await.unwrap_err(), "from epoch 2 still runs");
    until("output", async || (pod.starts() > 0).then_some(())).await;
    assert_eq!(pod.starts(), 1, "{}", pod.log());
    let none = driver.start(BROKER, Epoch(2), &[]).await.unwrap_err();
    says(&none, "there is no proof");
}

#[tokio::test]
async fn how_kafka_ended_is_told_and_the_entry_point_waits_for_the_next_word() {
    let pod = Pod::new("echo started; read go <\"$GO\"; exit 3");
    let driver = pod.driver();
    started(&*driver, 1).await.unwrap();
    pod.go();
    let why = exited(&*driver).await;
    assert!(why.contains("exited with status 3") && why.contains("kubectl logs"), "{why}");
    // To an agent that comes later, too.
    assert_eq!(exited(&*pod.driver()).await, why);
    assert!(pod.lives());
    let again = pid(&started(&*driver, 2).await.unwrap());
    signal(again, Signal::KILL);
    let why = exited(&*driver).await;
    assert!(why.contains("was killed by signal 9"), "{why}");
    let _stopped = driver.prove_stopped(BROKER, Epoch(3)).await.unwrap();
}

#[tokio::test]
async fn a_kafka_that_ignores_sigterm_is_killed_by_its_very_number_only() {
    let pod = Pod::new("trap '' TERM; echo started; while :; do sleep 0.05; done");
    let driver = pod.driver();
    let note = started(&*driver, 1).await.unwrap();
    until("output", async || (pod.starts() == 1).then_some(())).await;
    let error = driver.stop(BROKER, Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error.kind(), "unconfirmed", "{}", chain(&error));
    says(&driver.kill(BROKER, pid(&note), LONG).await.unwrap_err(), "look at the process first");
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Running { pid: pid(&note) });
    says(&driver.kill(BROKER, pid(&note) + 1, LONG).await.unwrap_err(), "was meant");
    driver.kill(BROKER, pid(&note), LONG).await.unwrap();
    assert!(exited(&*driver).await.contains("was killed by signal 9"));
}

#[tokio::test]
async fn what_a_fenced_pod_still_runs_is_ended() {
    let pod = Pod::new("trap '' TERM; echo started; while :; do sleep 0.05; done");
    let driver = pod.driver();
    let note = started(&*driver, 1).await.unwrap();
    let said = driver.end_fenced(BROKER, LONG).await.unwrap();
    assert!(said.text.contains(&format!("killed: {}", pid(&note))), "{said:?}");
    assert!(!is_there(pid(&note)));
}

#[tokio::test]
async fn an_entry_point_that_comes_back_finds_the_kafka_that_outlived_it() {
    let mut pod = Pod::new(FOREVER);
    let driver = pod.driver();
    let first = pid(&started(&*driver, 1).await.unwrap());
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Running { pid: first });
    pod.kill();
    says(&driver.state(BROKER).await.unwrap_err(), "no entry point listens at");
    says(&driver.prove_stopped(BROKER, Epoch(2)).await.unwrap_err(), "no entry point listens at");
    pod.enter();
    // The number means nothing in another life of the container.
    says(&driver.kill(BROKER, first, LONG).await.unwrap_err(), "before it was started anew");
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Running { pid: first });
    says(&driver.prove_stopped(BROKER, Epoch(2)).await.unwrap_err(), "runs on this host");
    says(&started(&*driver, 2).await.unwrap_err(), "from epoch 1 still runs");
    driver.render(BROKER, Epoch(1)).await.unwrap();
    let note = driver.start(BROKER, Epoch(1), &proof()).await.unwrap();
    assert!(note.text.contains("adopted") && pid(&note) == first, "{note:?}");
    driver.stop(BROKER, LONG).await.unwrap();
    let _stopped = driver.prove_stopped(BROKER, Epoch(2)).await.unwrap();
    assert_eq!(pod.starts(), 1, "{}", pod.log());
}

#[tokio::test]
async fn an_end_that_nobody_saw_says_where_to_look() {
    let mut pod = Pod::new(FOREVER);
    let driver = pod.driver();
    let kafka = pid(&started(&*driver, 1).await.unwrap());
    pod.kill();
    signal(kafka, Signal::KILL);
    until("its end", async || (!is_there(kafka)).then_some(())).await;
    pod.enter();
    let why = exited(&*driver).await;
    assert!(why.contains("unknown status") && why.contains("kubectl describe pod"), "{why}");
}

#[tokio::test]
async fn the_end_of_the_pod_is_passed_on_and_waited_for() {
    let mut pod = Pod::new(
        "trap 'read go <\"$GO\"; echo bye; exit 0' TERM; echo started; while :; do sleep 0.05; done",
    );
    let driver = pod.driver();
    started(&*driver, 1).await.unwrap();
    until("output", async || (pod.starts() == 1).then_some(())).await;
    pod.signal(Signal::TERM);
    until("it to be passed on", async || pod.log().contains("is asked to end").then_some(())).await;
    // It is told of while it takes its time, and nothing else is started.
    assert!(matches!(driver.state(BROKER).await.unwrap(), ProcessState::Running { .. }));
    assert!(pod.lives());
    pod.go();
    assert_eq!(pod.wait().code(), Some(143), "{}", pod.log());
    assert!(pod.log().contains("bye\n"), "{}", pod.log());

    let mut idle = Pod::new(FOREVER);
    idle.signal(Signal::TERM);
    assert_eq!(idle.wait().code(), Some(0), "{}", idle.log());
}

#[tokio::test]
async fn children_that_lost_their_parent_are_taken_up() {
    let pod =
        Pod::new("sh -c 'sh -c \"read go <\\\"$GO\\\"\" & echo orphan $!'; echo started; exec sleep 1000");
    let driver = pod.driver();
    started(&*driver, 1).await.unwrap();
    until("output", async || (pod.starts() == 1).then_some(())).await;
    let log = pod.log();
    let orphan: i32 = log.lines().find_map(|line| line.strip_prefix("orphan ")).unwrap().parse().unwrap();
    let stat = fs::read_to_string(format!("/proc/{orphan}/stat")).unwrap();
    let parent = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap();
    assert_eq!(parent, pod.pid().to_string(), "{stat}");
    pod.go();
    until("its number to be free", async || {
        (!std::path::Path::new(&format!("/proc/{orphan}")).exists()).then_some(())
    })
    .await;
    assert!(matches!(driver.state(BROKER).await.unwrap(), ProcessState::Running { .. }));
}

#[tokio::test]
async fn a_volume_that_takes_nothing_more_starts_nothing() {
    let pod = Pod::new(FOREVER);
    let driver = pod.driver();
    driver.render(BROKER, Epoch(1)).await.unwrap();
    // As a full volume, it refuses what is written.
    pod.limit_files(Some(0));
    let error = driver.start(BROKER, Epoch(1), &proof()).await.unwrap_err();
    says(&error, "process.");
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Absent);
    pod.limit_files(None);
    driver.start(BROKER, Epoch(1), &proof()).await.unwrap();
    until("output", async || (pod.starts() > 0).then_some(())).await;
    assert_eq!(pod.starts(), 1, "{}", pod.log());
}

#[tokio::test]
async fn it_checks_as_kafkas_user_in_kafkas_container() {
    let pod = Pod::new(FOREVER);
    let all = pod.driver().check(BROKER).await;
    let told: Vec<String> = all
        .iter()
        .map(|one| one.as_ref().map_or_else(|error| chain(error), |note| note.text.clone()))
        .collect();
    assert!(told[0].contains("the entry point answers at"), "{told:#?}");
    assert!(told.iter().any(|one| one.contains("belongs to broker 1")), "{told:#?}");
    let absent = Pod::without_entry().driver().check(BROKER).await;
    says(absent[0].as_ref().unwrap_err(), "no entry point listens at");
}

#[test]
fn what_it_is_called_with_is_told_at_once() {
    let pod = Pod::without_entry();
    let shared = pod.path("shared").display().to_string();
    let said = pod.say(&["enter", "--dir", &shared, "--", "kafka"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.err.contains("`kafka` must be an absolute path") && said.err.contains("{properties}"),
        "{said:?}"
    );
    assert!(!said.err.contains("broker_host.command"), "{said:?}");
    let said = pod.say(&["enter", "--dir", "/no/such", "--", "/bin/sh", "{properties}"]);
    assert!(said.code == Some(1) && said.err.contains("mount the volume"), "{said:?}");
    // Of two on one volume, the second ends.
    let pod = Pod::new(FOREVER);
    let shared = pod.path("shared").display().to_string();
    let said = pod.say(&["enter", "--dir", &shared, "--", "/bin/sh", "{properties}"]);
    assert!(said.code == Some(1) && said.err.contains("another entry point lives"), "{said:?}");
}

#[test]
fn an_init_container_puts_the_program_onto_the_volume() {
    let pod = Pod::without_entry();
    let (shared, program) = (pod.path("shared").display().to_string(), pod.path("shared/understudy"));
    // Over one of before, which may be running.
    fs::write(&program, "of before").unwrap();
    for _ in 0..2 {
        let said = pod.say(&["enter", "--dir", &shared, "--install"]);
        assert!(said.code == Some(0) && said.out.is_empty() && said.err.is_empty(), "{said:?}");
        assert!(fs::read(&program).unwrap() == fs::read(env!("CARGO_BIN_EXE_understudy")).unwrap());
        assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(fs::read_dir(pod.path("shared")).unwrap().count(), 1);
    }
    let said = pod.say(&["enter", "--dir", "/no/such", "--install"]);
    assert!(
        said.code == Some(1) && said.err.contains("/no/such/understudy: mount there the volume"),
        "{said:?}"
    );
    let said = pod.say(&["enter", "--install", "--", "/bin/sh", "{properties}"]);
    assert_eq!(said.code, Some(2), "{said:?}");
}

async fn exited(driver: &dyn recovery::ports::BrokerHost) -> String {
    until("an exit", async || match driver.state(BROKER).await.unwrap() {
        ProcessState::Exited { why } => Some(why),
        _ => None,
    })
    .await
}

#[track_caller]
fn says(error: &StepError, part: &str) {
    assert!(chain(error).contains(part), "{}", chain(error));
}

/// A sidecar in a process of its own, for [`words::a_sidecar_killed_at_any_instant_leaves_one_kafka`].
#[tokio::test]
async fn sidecar_that_is_killed() {
    let Some(root) = agent_of() else { return };
    let driver = pod::driver_in(&root);
    fs::write(root.join("ready"), "").unwrap();
    driver.start(BROKER, Epoch(1), &proof()).await.unwrap();
}
