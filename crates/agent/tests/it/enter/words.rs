//! Words that count no more: their sender is gone, or they come late.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use recovery::model::{BrokerId, Epoch};
use recovery::ports::{ProcessState, chain};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::pod::{AGENT_OF, BROKER, FOREVER, LONG, Pod, pid, proof, since_boot, started, until};

fn start() -> Value {
    json!({ "act": "start", "broker": 1, "epoch": 1, "proof": "kafka-1 is off" })
}

fn in_a_while() -> u64 {
    since_boot() + u64::try_from(LONG.as_nanos()).unwrap()
}

/// Whatever was said before is carried out or refused by the time that a later question is answered, but for what
/// takes its time: that is waited for as long as a start takes.
async fn nothing_starts(pod: &Pod) {
    let driver = pod.driver();
    let _stopped = driver.prove_stopped(BROKER, Epoch(2)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Absent);
    assert_eq!(pod.starts(), 0, "{}", pod.log());
}

/// The next word is as good as any.
async fn and_the_next_word_does(pod: &Pod) {
    pod.driver().start(BROKER, Epoch(1), &proof()).await.unwrap();
    until("output", async || (pod.starts() > 0).then_some(())).await;
    assert_eq!(pod.starts(), 1, "{}", pod.log());
}

#[tokio::test]
async fn the_word_of_a_sidecar_that_is_gone_counts_no_more() {
    let pod = Pod::new(FOREVER);
    pod.driver().render(BROKER, Epoch(1)).await.unwrap();
    pod.signal(Signal::STOP);
    drop(pod.word(in_a_while(), &start()));
    pod.signal(Signal::CONT);
    nothing_starts(&pod).await;
    and_the_next_word_does(&pod).await;
}

/// The last look counts, and not only the first.
#[tokio::test]
async fn a_sidecar_that_gives_up_while_its_word_waits_is_not_obeyed() {
    let pod = Pod::new(FOREVER);
    pod.driver().render(BROKER, Epoch(1)).await.unwrap();
    let lock = pod.path("shared/broker-1/start.lock");
    let held = std::fs::File::create(&lock).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let word = pod.word(in_a_while(), &start());
    until("it to wait for the lock", async || pod.has_open(&lock).then_some(())).await;
    drop(word);
    drop(held);
    until("it to go on", async || (!pod.has_open(&lock)).then_some(())).await;
    nothing_starts(&pod).await;
    and_the_next_word_does(&pod).await;
}

#[tokio::test]
async fn a_word_that_comes_late_counts_no_more() {
    let pod = Pod::new(FOREVER);
    pod.driver().render(BROKER, Epoch(1)).await.unwrap();
    pod.signal(Signal::STOP);
    let until_then = since_boot() + 50_000_000;
    let waits = pod.word(until_then, &start());
    while since_boot() <= until_then {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pod.signal(Signal::CONT);
    let mut reply = String::new();
    BufReader::new(waits).read_line(&mut reply).unwrap();
    assert!(reply.contains("the request is too old"), "{reply}");
    nothing_starts(&pod).await;
    and_the_next_word_does(&pod).await;
}

#[tokio::test]
async fn a_sidecar_that_hears_nothing_knows_nothing_and_its_word_is_void() {
    let pod = Pod::new(FOREVER);
    let hasty = pod.driver_within(Duration::from_millis(300));
    hasty.render(BROKER, Epoch(1)).await.unwrap();
    pod.signal(Signal::STOP);
    let error = hasty.start(BROKER, Epoch(1), &proof()).await.unwrap_err();
    assert_eq!(error.kind(), "unconfirmed", "{}", chain(&error));
    pod.signal(Signal::CONT);
    nothing_starts(&pod).await;
    and_the_next_word_does(&pod).await;
}

#[tokio::test]
async fn what_is_no_word_is_refused() {
    let pod = Pod::new(FOREVER);
    let ask = |text: &str| {
        let mut reply = String::new();
        BufReader::new(pod.send(text)).read_line(&mut reply).unwrap();
        reply
    };
    let said = ask("{\"protocol\":99,\"until\":0}\n");
    assert!(said.contains("speaks protocol 99") && said.contains("have the pod made anew"), "{said}");
    for nonsense in ["{}\n", "start\n", "\n", "{\"protocol\":1}\n", "[1,2]\n"] {
        let said = ask(nonsense);
        assert!(said.contains("makes no sense"), "{nonsense:?}: {said}");
    }
    // Half a word is none.
    drop(pod.send("{\"protocol\":1,"));
    let other = pod.driver().render(BrokerId(7), Epoch(1)).await.unwrap_err();
    assert!(chain(&other).contains("broker 7 is not configured here"), "{}", chain(&other));
    nothing_starts(&pod).await;
}

#[tokio::test]
async fn kafka_lives_on_while_the_sidecar_is_gone_and_a_new_one_stops_it() {
    let pod = Pod::new(FOREVER);
    let note = started(&*pod.driver(), 1).await.unwrap();
    // Nothing of the first one is left but its Kafka.
    let again = pod.driver();
    assert_eq!(again.state(BROKER).await.unwrap(), ProcessState::Running { pid: pid(&note) });
    again.stop(BROKER, LONG).await.unwrap();
    assert_eq!(again.state(BROKER).await.unwrap(), ProcessState::Absent);
}

#[tokio::test]
async fn a_sidecar_killed_at_any_instant_leaves_one_kafka() {
    let mut adopted = 0;
    let fine = (0..8).map(|step| Duration::from_micros(step * 1500));
    let coarse = (0..9).map(|step| Duration::from_millis(20 << step));
    for (step, delay) in fine.chain(coarse).enumerate() {
        if step >= 8 && adopted > 0 {
            break;
        }
        let pod = Pod::new(FOREVER);
        let driver = pod.driver();
        driver.render(BROKER, Epoch(1)).await.unwrap();
        let mut sidecar = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "enter::sidecar_that_is_killed"])
            .env(AGENT_OF, pod.path(""))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("the sidecar", async || pod.path("ready").exists().then_some(())).await;
        // The moment of the kill is the point here, so it is a sleep and not a condition.
        std::thread::sleep(delay);
        sidecar.kill().unwrap();
        sidecar.wait().unwrap();
        let note = driver.start(BROKER, Epoch(1), &proof()).await.unwrap();
        adopted += usize::from(note.text.contains("adopted"));
        until("output", async || (pod.starts() > 0).then_some(())).await;
        assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Running { pid: pid(&note) });
        assert_eq!(pod.starts(), 1, "{}", pod.log());
    }
    assert!(adopted > 0, "no kill came late enough to matter");
}
