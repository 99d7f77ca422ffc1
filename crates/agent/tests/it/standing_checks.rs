//! A standby whose fence device refuses its login says so by itself, long before a broker dies.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{BROKER, Site, ledger};
use recovery::event::What;
use serde_json::Value;

/// A service processor: it lets nobody in while the file `expired` is there.
const DEVICE: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
case $(sed -n 's/^action=//p') in
    metadata) echo '<action name="off"/>';;
    status) if [ -e expired ]; then echo 'login failed: password expired' >&2; exit 1; fi; echo 'Status: ON';;
esac
"#;

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A site with a fence agent that can be asked, looked at every second.
fn site() -> Site {
    let site = Site::new();
    let device = site.path("fence_bmc");
    std::fs::write(&device, DEVICE).unwrap();
    std::fs::set_permissions(&device, PermissionsExt::from_mode(0o755)).unwrap();
    let text = std::fs::read_to_string(site.config()).unwrap();
    let text = text.replace(
        "driver = \"exec\"\ncommand = [\"/bin/false\"]",
        &format!("driver = \"fence_agent\"\nagent = {device:?}"),
    );
    let text = text.replace("[cluster]", "check_every = \"1s\"\n[cluster]");
    std::fs::write(site.config(), text).unwrap();
    site
}

fn start(site: &Site) -> Agent {
    let mut command = site.command(&["run", "--log-format", "json"]);
    let log = std::fs::File::create(site.path("log")).unwrap();
    Agent(command.stdout(Stdio::null()).stderr(Stdio::from(log)).spawn().unwrap())
}

fn page(site: &Site, path: &str) -> String {
    let Ok(mut stream) = std::net::TcpStream::connect(&site.listen) else { return String::new() };
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

/// Waits until a page says it.
fn until(site: &Site, path: &str, says: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let body = page(site, path);
        if says(&body) {
            return body;
        }
        assert!(Instant::now() < deadline, "{path} still says:\n{body}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn fence_is(site: &Site, ready: u8) {
    let line = format!("understudy_standby_ready{{check=\"fence\",of=\"kafka-1\"}} {ready}");
    until(site, "/metrics", |body| body.lines().any(|l| l == line));
}

/// What the log says of the fence, in order.
fn logged(site: &Site) -> Vec<String> {
    let log = std::fs::read_to_string(site.path("log")).unwrap();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_the_fence = lines.filter(|line| line["check"] == "fence" && line["of"] == "kafka-1");
    of_the_fence.map(|line| line["message"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_expired_password_is_told_before_it_is_needed_and_so_is_its_renewal() {
    let site = site();
    let _agent = start(&site);
    fence_is(&site, 1);
    assert!(!page(&site, "/readyz").contains("fence"), "nothing is wrong with it yet");

    std::fs::write(site.path("expired"), "").unwrap();
    fence_is(&site, 0);
    let ready = page(&site, "/readyz");
    let line = ready.lines().find(|line| line.starts_with("not ready: fence of kafka-1: ")).unwrap();
    assert!(line.contains("login failed: password expired") && line.contains("; do: "), "{line}");
    let status = site.run(&["status"]);
    assert!(status.out.contains("NOT READY: fence of kafka-1: "), "{status:?}");
    assert!(status.out.contains("password expired"), "{status:?}");
    until(&site, "/v1/view", |body| {
        let view: Value = serde_json::from_str(body).unwrap_or_default();
        view["candidate"]["not_ready"]["1"].is_string()
    });

    std::fs::remove_file(site.path("expired")).unwrap();
    fence_is(&site, 1);
    assert!(!page(&site, "/readyz").contains("fence"));
    assert_eq!(logged(&site), ["not ready: a check fails", "the check passes again"]);
    let book = ledger(&site.path("ledger"));
    let deadline = Instant::now() + Duration::from_secs(60);
    let turns = loop {
        let mut turns = Vec::new();
        for event in book.remembered(BROKER).await.unwrap() {
            match event.what {
                What::CheckFailed { found } => turns.push(format!("failed: {}", found.check)),
                What::CheckPassed { found } => turns.push(format!("passed: {}", found.check)),
                _ => {}
            }
        }
        turns.retain(|turn| turn.contains("fence"));
        if turns.len() >= 2 || Instant::now() > deadline {
            break turns;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(turns, ["failed: fence of kafka-1", "passed: fence of kafka-1"]);
    let history = site.run(&["history", "--broker", "1"]);
    assert!(history.out.contains("standby-1: not ready: fence of kafka-1: "), "{history:?}");
    assert!(history.out.contains("standby-1: ready again: fence of kafka-1"), "{history:?}");
}

/// There is one list: what the daemon finds, `understudy check` finds by the same name.
#[test]
fn the_command_and_the_daemon_find_the_same() {
    let site = site();
    let _agent = start(&site);
    let name = |found: &Value| (found["check"].to_string(), found["of"].to_string());
    let worst = |found: &Value| match found["verdict"].as_str().unwrap() {
        "fail" => 2,
        "warn" => 1,
        _ => 0,
    };
    let said = until(&site, "/v1/status", |body| body.contains("\"check\":\"broker_host\""));
    let status: Value = serde_json::from_str(&said).unwrap();
    let by_daemon: BTreeMap<_, _> =
        status["checks"].as_array().unwrap().iter().map(|found| (name(found), worst(found))).collect();
    let mut by_hand = BTreeMap::new();
    let check = site.run(&["check", "--output", "json"]).json();
    for found in check["items"].as_array().unwrap() {
        let verdict = by_hand.entry(name(found)).or_insert(0);
        *verdict = worst(found).max(*verdict);
    }
    for (check, verdict) in &by_daemon {
        assert_eq!(by_hand.get(check), Some(verdict), "{check:?} in {by_hand:?}");
    }
    let kinds: Vec<&str> = by_daemon.keys().map(|(check, _)| check.trim_matches('"')).collect();
    assert_eq!(kinds, ["address", "broker_host", "class_data", "fence", "ledger", "storage"]);
    assert!(by_hand.len() > by_daemon.len(), "some are for people only");
}
