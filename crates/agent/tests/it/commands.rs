//! The real binary: exit codes, and what it says.

use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Said, Site, ledger, said};
use jiff::Timestamp;
use recovery::decide::{Decision, HoldReason};
use recovery::event::{Event, What};
use recovery::journal::{Claim, Direction, Entry};
use recovery::model::{BrokerId, Cause, Epoch, HostName, Outcome};
use recovery::plan::{Phase, Plan, Stage, Step};
use recovery::ports::Note;

const BROKER: BrokerId = BrokerId(1);

fn plan() -> Plan {
    let (host, ladder) = (HostName::from("kafka-1"), vec!["exec".to_owned()]);
    let fence = Step::Fence { host: host.clone(), ladder: ladder.clone(), on: None };
    let stages = vec![
        Stage { phase: Phase::Fence, steps: vec![fence] },
        Stage { phase: Phase::Prove, steps: vec![Step::Prove { host: host.clone(), ladder }] },
    ];
    Plan {
        broker: BROKER,
        from: host,
        to: HostName::from("standby-1"),
        epoch: Epoch(1),
        fault_at: Timestamp::now(),
        because: vec!["our probe: broker 1 cannot be reached for 2.1 s".to_owned()],
        stages,
        predicted: None,
    }
}

/// Writes a takeover into the ledger that ended `stuck` at the proof, and one hold before it.
async fn stuck_takeover(site: &Site) {
    let ledger = ledger(&site.path("ledger"));
    let by = HostName::from("standby-1");
    let decision = Decision::Hold { reasons: vec![HoldReason::OneWitness] };
    let what = What::Decided { decision, evidence: vec!["3 of 3 other brokers answer us".to_owned()] };
    let event = Event { at: Timestamp::now(), host: by.clone(), broker: Some(BROKER), epoch: None, what };
    ledger.remember(BROKER, &event).await.unwrap();
    let claim = Claim {
        at: Timestamp::now(),
        by: by.clone(),
        cause: Cause::Automatic,
        succeeds: None,
        instance: None,
        plan: plan(),
    };
    ledger.claim(&claim).await.unwrap();
    let direction = Direction::Forward;
    let note = Note::new("exec says off").with("rung", 1);
    let (error, kind) = ("the switch does not answer".to_owned(), "unconfirmed".to_owned());
    let outcome = Outcome::Stuck { at: "prove".to_owned(), why: error.clone() };
    let entries = [
        Entry::Started { step: 0, direction },
        Entry::Done { step: 0, direction, note },
        Entry::Started { step: 1, direction },
        Entry::Failed { step: 1, direction, error, kind },
        Entry::Ended { outcome },
    ];
    ledger.append(BROKER, Epoch(1), Timestamp::now(), &by, &entries).await.unwrap();
}

#[test]
fn usage_and_configuration_end_with_2() {
    let site = Site::new();
    assert_eq!(site.run(&["fail-over"]).code, Some(2));
    assert_eq!(site.run(&["plan"]).code, Some(2));
    std::fs::write(site.config(), "mode = \"maybe\"\n").unwrap();
    let bad = site.run(&["status"]);
    assert_eq!(bad.code, Some(2), "{bad:?}");
    assert!(bad.err.contains("mode = \"maybe\"") && bad.err.contains("ledger"), "{bad:?}");
    let bad = site.run(&["--output", "json", "status"]);
    let problems: serde_json::Value = serde_json::from_str(&bad.out).unwrap();
    assert_eq!(problems["problems"][0]["key"], "mode");
    std::fs::remove_file(site.config()).unwrap();
    let missing = site.run(&["status"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(missing.err.contains("cannot be read"), "{missing:?}");
}

#[test]
fn version_needs_no_configuration() {
    let site = Site::new();
    std::fs::remove_file(site.config()).unwrap();
    let version = site.run(&["version"]);
    assert_eq!(
        (version.code, version.out.trim()),
        (Some(0), concat!("understudy ", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn failover_refuses_what_it_cannot_mean() {
    let site = Site::new();
    let other = site.run(&["failover", "--broker", "1", "--to", "standby-2", "--yes"]);
    assert_eq!(other.code, Some(2), "{other:?}");
    assert!(other.err.contains("run the command on standby-2"), "{other:?}");
    let unknown = site.run(&["failover", "--broker", "7", "--yes"]);
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.err.contains("it guards 1"), "{unknown:?}");
}

#[test]
fn objections_hold_and_an_override_still_has_to_prove_the_fence() {
    let site = Site::new();
    let held = site.run(&["failover", "--broker", "1", "--yes"]);
    assert_eq!(held.code, Some(3), "{held:?}");
    assert!(held.out.contains("fence kafka-1 by exec") && held.out.contains("against it: "), "{held:?}");
    let nobody = site.run(&["failover", "--broker", "1", "--override"]);
    assert_eq!(nobody.code, Some(2), "{nobody:?}");
    assert!(nobody.err.contains("--yes"), "{nobody:?}");

    // The fence is /bin/false: nothing can be proven, so nothing is started.
    let stuck = site.run(&["failover", "--broker", "1", "--override", "--yes", "--output", "json"]);
    assert_eq!(stuck.code, Some(4), "{stuck:?}");
    let report: serde_json::Value = serde_json::from_str(&stuck.out).unwrap();
    assert_eq!(report["outcome"]["outcome"], "stuck");
    assert_eq!(report["epoch"], 1);
    assert!(stuck.err.contains("fence FAILED"), "{stuck:?}");
    let history = site.run(&["history"]);
    assert!(history.out.contains("because overridden: "), "{history:?}");
    assert!(history.out.contains("asked for by a person"), "{history:?}");
    assert_eq!(site.run(&["status"]).code, Some(4));
}

#[test]
fn plan_shows_evidence_and_objections_and_does_nothing() {
    let site = Site::new();
    let template = "process.roles=broker\ncontroller.quorum.voters=101@c:9093\n\
                    controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://:9092\n";
    std::fs::write(site.path("server.properties"), template).unwrap();
    let plan = site.run(&["plan", "--broker", "1", "--output", "json"]);
    assert_eq!(plan.code, Some(3), "{plan:?}");
    let plan: serde_json::Value = serde_json::from_str(&plan.out).unwrap();
    assert_eq!(plan["plan"]["epoch"], 1);
    assert!(plan["objections"][0].as_str().unwrap().contains("not a majority"), "{plan}");
    let told: Vec<&str> =
        plan["properties"].as_array().unwrap().iter().filter_map(|it| it.as_str()).collect();
    assert!(told.contains(&"listeners=PLAINTEXT://127.0.0.1:2"), "{told:?}");
    let history: serde_json::Value =
        serde_json::from_str(&site.run(&["history", "--output", "json"]).out).unwrap();
    assert_eq!(history["brokers"][0]["takeovers"], serde_json::json!([]));
}

#[tokio::test]
async fn status_by_the_ledger_says_what_is_missing() {
    let site = Site::new();
    let quiet = site.run(&["status"]);
    assert_eq!(quiet.code, Some(0), "{quiet:?}");
    assert!(quiet.out.contains("by the ledger") && quiet.out.contains("NOTHING IS WATCHED"), "{quiet:?}");
    stuck_takeover(&site).await;
    let status = site.run(&["status"]);
    assert_eq!(status.code, Some(4), "{status:?}");
    for part in ["the switch does not answer", "docs/runbooks/holds-and-errors.md#stuck"] {
        assert!(status.out.contains(part), "{status:?}");
    }
}

#[tokio::test]
async fn history_tells_every_step_and_every_hold() {
    let site = Site::new();
    stuck_takeover(&site).await;
    let history = site.run(&["history", "--broker", "1"]);
    assert_eq!(history.code, Some(0), "{history:?}");
    for part in [
        "epoch 1: kafka-1 -> standby-1, decided by the agent",
        "because our probe: broker 1 cannot be reached for 2.1 s",
        "fence: fence kafka-1 by exec",
        "fence: done in ",
        ": exec says off",
        "rung: 1",
        "prove: FAILED (unconfirmed) after ",
        "stuck at prove",
        "phases: detect",
        "bounded by: ",
        "hold: only our own probe says so",
        "because 3 of 3 other brokers answer us",
    ] {
        assert!(history.out.contains(part), "{part} is missing in:\n{}", history.out);
    }
    assert_eq!(site.run(&["history", "--broker", "2"]).code, Some(2));
}

#[tokio::test]
async fn history_draws_a_takeover() {
    let site = Site::new();
    let never = site.run(&["history", "--svg"]);
    assert_eq!(never.code, Some(2), "{never:?}");
    assert!(never.err.contains("no such takeover"), "{never:?}");
    stuck_takeover(&site).await;
    let rate = site.path("rate.csv");
    let now = Timestamp::now().as_second();
    std::fs::write(&rate, format!("{now},300\n{},0\n", now + 1)).unwrap();
    let drawn = site.run(&["history", "--broker", "1", "--svg", "--rate", rate.to_str().unwrap()]);
    assert_eq!(drawn.code, Some(0), "{drawn:?}");
    assert!(drawn.out.starts_with("<svg ") && drawn.out.ends_with("</svg>\n"), "{drawn:?}");
    for part in
        ["kafka-1 → standby-1, epoch 1: stuck at prove", ">fence</text>", "class=\"failed\"", "records/s"]
    {
        assert!(drawn.out.contains(part), "{part} is missing in:\n{}", drawn.out);
    }
    assert_eq!(site.run(&["history", "--broker", "1", "--svg", "--epoch", "7"]).code, Some(2));
    std::fs::write(&rate, "1,2\nsoon,3\n").unwrap();
    let bad = site.run(&["history", "--svg", "--rate", rate.to_str().unwrap()]);
    assert!(bad.code == Some(1) && bad.err.contains("line 2"), "{bad:?}");
}

#[test]
fn check_names_everything_that_is_missing() {
    let site = Site::new();
    let check = site.run(&["check", "--output", "json"]);
    assert_eq!(check.code, Some(1), "{check:?}");
    let report: serde_json::Value = serde_json::from_str(&check.out).unwrap();
    let verdict = |item: &str| {
        let items = report["items"].as_array().unwrap();
        let verdicts = items.iter().filter(|i| i["item"].as_str().unwrap().starts_with(item));
        verdicts.map(|i| i["verdict"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(verdict("configuration"), ["ok"]);
    assert_eq!(verdict("cluster"), ["fail"]);
    assert_eq!(verdict("fence of kafka-1"), ["fail"]);
    assert_eq!(verdict("controllers"), ["warn"]);
    assert_eq!(verdict("broker 1: storage"), ["ok"]);
    assert_eq!(verdict("broker 1: Kafka here").len(), 9);
}

/// A running agent, stopped at the end whatever happens.
struct Agent(Child);

impl Agent {
    fn start(site: &Site) -> Self {
        let mut command = site.command(&["run", "--log-format", "json"]);
        let agent = Self(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let until = Instant::now() + Duration::from_secs(20);
        while get(site, "/livez").is_none_or(|(code, _)| code != 200) {
            assert!(Instant::now() < until, "the agent does not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
        agent
    }

    fn stop(mut self) -> Said {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let code = self.0.wait().unwrap().code();
        let mut err = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        Said { code, out: String::new(), err }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(site: &Site, path: &str) -> Option<(u16, String)> {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(&site.listen).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

#[test]
fn the_service_manager_is_told() {
    let site = Site::new();
    let manager = std::os::unix::net::UnixDatagram::bind(site.path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut command = site.command(&["run"]);
    command
        .env("NOTIFY_SOCKET", site.path("notify"))
        .env("WATCHDOG_USEC", "400000")
        .env_remove("WATCHDOG_PID");
    let agent = Agent(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let hear = || {
        let mut message = [0; 1024];
        let length = manager.recv(&mut message).expect("the agent tells nothing");
        String::from_utf8(message[..length].to_vec()).unwrap()
    };
    assert_eq!(hear(), "READY=1\n");
    let mut heard = Vec::new();
    while heard.iter().filter(|said| *said == "WATCHDOG=1\n").count() < 3 {
        heard.push(hear());
    }
    let status: Vec<&String> = heard.iter().filter(|said| said.starts_with("STATUS=mode auto; ")).collect();
    assert!(!status.is_empty(), "{heard:?}");
    // What stands still as a whole feeds nobody.
    let pid = rustix::process::Pid::from_child(&agent.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    manager.set_read_timeout(Some(Duration::from_millis(600))).unwrap();
    while manager.recv(&mut [0; 1024]).is_ok() {}
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    while hear() != "STOPPING=1\n" {}
    assert_eq!(agent.stop().code, Some(0));
}

#[test]
fn the_daemon_answers_and_stops_when_asked() {
    let site = Site::new();
    let agent = Agent::start(&site);
    let (code, why) = get(&site, "/readyz").unwrap();
    assert_eq!((code, why.contains("broker list")), (503, true), "{why}");
    let status = site.run(&["status"]);
    assert_eq!(status.code, Some(0), "{status:?}");
    assert!(status.out.contains("by the agent running here"), "{status:?}");

    let second = said(site.command(&["run"]).output().unwrap());
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.err.contains("cannot listen on") && second.err.contains("agent.listen"), "{second:?}");

    let end = agent.stop();
    assert_eq!(end.code, Some(0), "{end:?}");
    let lines: Vec<serde_json::Value> = end.err.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let messages: Vec<_> = lines.iter().filter_map(|line| line["message"].as_str()).collect();
    assert!(messages.contains(&"watching"), "{messages:?}");
    assert!(messages.iter().any(|m| m.starts_with("stopping")), "{messages:?}");
}

#[tokio::test]
async fn a_running_agent_reports_what_needs_a_person() {
    let site = Site::new();
    stuck_takeover(&site).await;
    let agent = Agent::start(&site);
    let until = Instant::now() + Duration::from_secs(20);
    let status = loop {
        let status = site.run(&["status"]);
        if status.code == Some(4) || Instant::now() > until {
            break status;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(status.code, Some(4), "{status:?}");
    assert!(status.out.contains("by the agent running here"), "{status:?}");
    assert!(status.out.contains("needs a person: takeover epoch 1 is stuck at prove"), "{status:?}");
    let (_, metrics) = get(&site, "/metrics").unwrap();
    assert!(metrics.contains("understudy_broker_state{broker=\"1\",state=\"escalate\"} 1"), "{metrics}");
    assert!(metrics.contains("understudy_ledger_epoch{broker=\"1\"} 1"), "{metrics}");
    assert_eq!(agent.stop().code, Some(0));
}
