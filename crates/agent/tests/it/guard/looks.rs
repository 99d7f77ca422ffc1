//! What guard sees beside the owner: a newer ledger, an older one, processes of this host.

use super::*;

#[tokio::test]
async fn what_a_newer_version_wrote_starts_no_kafka_and_is_not_waited_for() {
    let site = Site::new();
    let config = small(&site, "kafka-1");
    assert_eq!(allowed(&site, "kafka-1"), 0);
    let book = ledger(&site.path("ledger"));
    Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), Until::Claimed).await;
    let file = site.path("ledger/broker-1/epoch-1.journal");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("v1 ", "v2 ", 1)).unwrap();
    let begun = std::time::Instant::now();
    let answer = site.run_with(&config, &["guard", "--broker", "1", "--wait", "60s", "--output", "json"]);
    assert_eq!((answer.code, &answer.json()["refused"]), (Some(3), &"ledger_newer".into()), "{answer:?}");
    assert!(answer.json()["why"].as_str().unwrap().contains("upgrade this host"), "{answer:?}");
    assert!(begun.elapsed().as_secs() < 30, "waiting does not upgrade a host");
}

#[tokio::test]
async fn a_ledger_that_was_restored_from_an_old_copy_starts_no_kafka_until_it_is_adopted() {
    let site = Site::new();
    let config = small(&site, "standby-1");
    let book = ledger(&site.path("ledger"));
    let journal = |epoch: u64| site.path(&format!("ledger/broker-1/epoch-{epoch}.journal"));
    Written::new(1, "kafka-1", "standby-1").write(book.as_ref(), Until::Recovered).await;
    assert_eq!(allowed(&site, "standby-1"), 1);
    Written::new(2, "standby-1", "standby-2").write(book.as_ref(), Until::Recovered).await;
    assert_eq!(refused(&site, "standby-1"), "not_owner");
    std::fs::remove_file(journal(2)).unwrap();
    let (label, why) = refusal(&site, &config);
    assert_eq!(label, "ledger_went_back");
    assert!(why.contains("is 1, and this host has seen epoch 2"), "{why}");
    let adopted = site.run_with(&config, &["ledger", "adopt", "--yes", "--output", "json"]);
    assert_eq!(adopted.code, Some(0), "{adopted:?}");
    assert!(adopted.out.contains("2 → 1"), "{adopted:?}");
    assert_eq!(allowed(&site, "standby-1"), 1);
}

/// Something that looks as a Kafka with these properties does before it has opened anything.
fn kafka(properties: &std::path::Path) -> std::process::Child {
    let mut sh = std::process::Command::new("sh");
    sh.args(["-c", "echo; read end", "sh", "kafka.Kafka"]).arg(properties);
    let mut child =
        sh.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    child
}

#[test]
fn a_kafka_without_the_right_is_seen_by_its_process() {
    let site = Site::new();
    let properties = site.path("server.properties");
    std::fs::write(&properties, format!("node.id=1\nlog.dirs={}\n", site.path("logs").display())).unwrap();
    let file = properties.display().to_string();
    let starts = |id: &str| {
        let words = ["echo", "started", id, &file];
        crate::common::said(exec(&site, "kafka-1", &words).output().unwrap())
    };
    assert_eq!(starts("free").code, Some(0));
    let mut running = kafka(&properties);
    let held = starts("second");
    assert_eq!((held.code, held.out.as_str()), (Some(125), ""), "{held:?}");
    assert!(held.err.contains(&running.id().to_string()) && held.err.contains("kafka_runs"), "{held:?}");
    assert_eq!(refused(&site, "kafka-1"), "kafka_runs", "also where guard only answers");
    let adopt = site.run_with(&small(&site, "kafka-1"), &["ledger", "adopt", "--yes", "--output", "json"]);
    assert_eq!((adopt.code, &adopt.json()["refused"]), (Some(3), &"kafka_runs".into()), "{adopt:?}");
    drop(running.stdin.take());
    running.wait().unwrap();
    assert_eq!(starts("third").code, Some(0));
}

#[test]
fn a_command_that_starts_another_broker_is_refused_however_it_is_written() {
    let site = Site::new();
    let (own, other) = (site.path("own.conf"), site.path("other.conf"));
    std::fs::write(&own, "node.id=1\n").unwrap();
    std::fs::write(&other, "node.id=2\n").unwrap();
    let (own, other) = (own.display().to_string(), other.display().to_string());
    let starts = |words: &[&str]| crate::common::said(exec(&site, "kafka-1", words).output().unwrap());
    for words in [
        &["echo", &other][..],
        &["sh", "start.sh", &other],
        &["echo", &own, "--override", "node.id=2"],
        &["echo", &own, "--override=broker.id=2", "--override=node.id=2"],
        &["env", "KAFKA_LOG_DIRS=/a", "kafka-server-start.sh", &other],
    ] {
        let wrong = starts(words);
        assert_eq!((wrong.code, wrong.out.as_str()), (Some(125), ""), "{wrong:?}");
        assert!(wrong.err.contains("--broker is 1") && wrong.err.contains("broker 2"), "{wrong:?}");
        assert!(!wrong.err.contains("may start"), "{wrong:?}");
    }
    let image = exec(&site, "kafka-1", &["echo", "up"]).env("KAFKA_NODE_ID", "2").output().unwrap();
    let image = crate::common::said(image);
    assert_eq!((image.code, image.out.as_str()), (Some(125), ""), "{image:?}");
    assert_eq!(starts(&["echo", &own]).code, Some(0));
    // What cannot be known is said.
    let untold = starts(&["echo", "up"]);
    assert!(untold.code == Some(0) && untold.err.contains("is not checked"), "{untold:?}");
}
