//! What this agent did not start: seen, kept from starting twice, stopped as the site stops it.

use super::*;

#[tokio::test]
async fn a_kafka_that_somebody_else_started_is_seen() {
    let bed = bed(FOREVER);
    let driver = bed.driver();
    let _kafka = fs::File::create(bed.root.path().join("log/.lock")).unwrap();
    says(&driver.prove_stopped(BROKER, Epoch(2)).await.unwrap_err(), "refused", "works on the log dirs");
    says(&driver.verify(BROKER, Some("c1")).await.unwrap_err(), "refused", "works on the log dirs");
    let told = driver.check(BROKER).await.pop().unwrap();
    says(&told.unwrap_err(), "refused", "understudy guard --broker 1 --exec");
    let _right = Right::take(&bed.root.path().join("state"), BROKER, Duration::ZERO).unwrap();
    assert!(driver.check(BROKER).await.pop().unwrap().unwrap().text.contains("holds it"));
}

#[tokio::test]
async fn a_kafka_that_has_not_opened_its_log_dirs_yet_is_a_writer() {
    let bed = bed(FOREVER);
    let driver = bed.driver();
    let properties = bed.root.path().join("server.properties");
    fs::write(&properties, format!("node.id=1\nlog.dirs={}\n", bed.root.path().join("log").display()))
        .unwrap();
    driver.render(BROKER, Epoch(1)).await.unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "read forever", "sh", "kafka.Kafka"]).arg(&properties);
    let mut kafka = command.stdin(Stdio::piped()).spawn().unwrap();
    let line = format!("/proc/{}/cmdline", kafka.id());
    until("the exec", async || fs::read(&line).unwrap().starts_with(b"sh\0").then_some(())).await;
    says(&driver.prove_stopped(BROKER, Epoch(1)).await.unwrap_err(), "refused", "or is about to");
    // Whatever was proven before: it is looked at again right before the start.
    says(&driver.start(BROKER, Epoch(1), &proof()).await.unwrap_err(), "refused", "or is about to");
    kafka.kill().unwrap();
    kafka.wait().unwrap();
    let _ = driver.prove_stopped(BROKER, Epoch(1)).await.unwrap();
}

#[tokio::test]
async fn whoever_has_the_right_keeps_everybody_else_from_starting_and_is_seen_to_run() {
    let bed = bed(FOREVER);
    let driver = bed.driver();
    driver.render(BROKER, Epoch(1)).await.unwrap();
    let right = Right::take(&bed.root.path().join("state"), BROKER, Duration::ZERO).unwrap();
    let held = std::process::id();
    let state = driver.state(BROKER).await.unwrap();
    assert_eq!(state, ProcessState::Running { pid: i32::try_from(held).unwrap() });
    let named = format!("{held} (");
    says(&driver.prove_stopped(BROKER, Epoch(1)).await.unwrap_err(), "refused", &named);
    says(&driver.start(BROKER, Epoch(1), &proof()).await.unwrap_err(), "refused", &named);
    drop(right);
    assert_eq!(driver.state(BROKER).await.unwrap(), ProcessState::Absent);
    driver.start(BROKER, Epoch(1), &proof()).await.unwrap();
    let error = Right::take(&bed.root.path().join("state"), BROKER, Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("is held by"), "{error}");
}

#[tokio::test]
async fn a_kafka_that_somebody_else_started_is_stopped_as_the_site_stops_it() {
    let bed = bed(FOREVER);
    let lock = bed.root.path().join("log/.lock");
    let hold = format!("exec 3>{}; exec sleep 1000", lock.display());
    let mut kafka =
        Command::new("sh").args(["-c", &hold]).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    until("the lock file", async || lock.exists().then_some(())).await;
    let stopped_by = |script: String| {
        let stop_command = vec!["/bin/sh".to_owned(), "-c".to_owned(), script];
        let config = ProcessConfig { stop_command, ..bed.config() };
        let brokers = vec![bed.identity()];
        Process::new(config, "standby".into(), bed.root.path().join("state"), brokers).unwrap()
    };
    // Not at all, without being told how.
    says(&bed.driver().stop(BROKER, LONG).await.unwrap_err(), "refused", "broker_host.stop_command");
    let failing = stopped_by("echo no such unit >&2; exit 5".to_owned());
    says(&failing.stop(BROKER, LONG).await.unwrap_err(), "refused", "exit code 5: no such unit");
    // Neither is its word enough.
    let lying = stopped_by("exit 0".to_owned()).stop(BROKER, Duration::from_secs(3)).await.unwrap_err();
    says(&lying, "unconfirmed", "this still runs");
    assert!(kafka.try_wait().unwrap().is_none(), "it was stopped all the same");

    let driver = stopped_by(format!("kill {}", kafka.id()));
    // Our child: a zombie until it is waited for, and a zombie holds nothing.
    let note = driver.stop(BROKER, LONG).await;
    kafka.wait().unwrap();
    assert!(note.unwrap().text.contains("/bin/sh stopped what this agent had not started"));
    let _proof = driver.prove_stopped(BROKER, Epoch(2)).await.unwrap();
}
