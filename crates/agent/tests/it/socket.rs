//! The Unix socket of a running agent: who may connect, what it serves, what it takes.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{BROKER, Site, ledger, me, said};
use jiff::Timestamp;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

/// A user without rights, on every Linux.
const NOBODY: u32 = 65534;

/// A running agent, ended without a word, as by a power cut.
pub(crate) struct Agent(pub(crate) Child);

impl Agent {
    pub(crate) fn start(site: &Site) -> Self {
        let mut command = site.command(&["run"]);
        let agent = Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let until = Instant::now() + Duration::from_secs(20);
        while ask(site, "GET", "/livez", "").is_none_or(|(code, _)| code != 200) {
            assert!(Instant::now() < until, "the agent does not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn ask(site: &Site, method: &str, path: &str, body: &str) -> Option<(u16, serde_json::Value)> {
    let mut stream = UnixStream::connect(site.path("state/agent.sock")).ok()?;
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).unwrap_or_default()))
}

#[tokio::test]
async fn orders_are_taken_as_from_the_command_line() {
    let site = Site::new();
    let _agent = Agent::start(&site);
    let post = |path: &str, body: &str| ask(&site, "POST", path, body).unwrap();
    let (code, status) = ask(&site, "GET", "/v1/status", "").unwrap();
    assert_eq!((code, &status["host"]), (200, &"standby-1".into()), "the pages are here too");

    let (code, given) =
        post("/v1/brokers/1/pause", r#"{"reason": "deploy", "until": "2099-01-01T00:00:00Z"}"#);
    assert_eq!((code, &given["order"]["order"]), (200, &"pause".into()), "{given}");
    assert_eq!(given["order"]["who"], me());
    let book = ledger(&site.path("ledger"));
    assert!(book.orders().await.unwrap().pause(BROKER, Timestamp::now()).is_some());

    let (code, given) = post("/v1/resume", "");
    assert_eq!((code, &given["in_force"]), (200, &serde_json::json!([])), "{given}");
    assert!(book.orders().await.unwrap().pause(BROKER, Timestamp::now()).is_none());
    let (code, given) = post("/v1/brokers/1/ack", r#"{"reason": "looked"}"#);
    assert_eq!((code, &given["order"]["order"]), (200, &"ack".into()), "{given}");
    let (code, given) = post("/v1/brokers/1/approve", "");
    assert_eq!((code, &given["order"]["epoch"]), (200, &0.into()), "{given}");

    for (path, body, expected) in [
        ("/v1/pause", r#"{"reason": ""}"#, 400),
        ("/v1/pause", r#"{"reason": "ok\n  order: root (uid 0)"}"#, 400),
        ("/v1/brokers/1/approve", r#"{"reason": "ok"}"#, 400),
        ("/v1/resume", r#"{"until": "2099-01-01T00:00:00Z"}"#, 400),
        ("/v1/pause", r#"{"reason": "x", "untill": "2099-01-01T00:00:00Z"}"#, 400),
        ("/v1/pause", r#"{"reason": "x", "until": "2001-01-01T00:00:00Z"}"#, 400),
        ("/v1/brokers/7/pause", r#"{"reason": "x"}"#, 404),
        ("/v1/brokers/one/pause", r#"{"reason": "x"}"#, 404),
        ("/v1/brokers/1/failover", r#"{"reason": "x"}"#, 404),
        ("/v1/brokers/1/switchover", r#"{"to": "kafka-2"}"#, 400),
        (
            "/v1/brokers/1/switchover",
            r#"{"to": "standby-1", "at": "2099-01-02T00:00:00Z", "until": "2099-01-01T00:00:00Z"}"#,
            400,
        ),
        ("/v1/approve", "", 404),
    ] {
        let (code, why) = post(path, body);
        assert_eq!(code, expected, "{path} {body}: {why}");
        assert!(why["error"].is_string(), "{why}");
    }
    assert_eq!(book.orders().await.unwrap().0.len(), 4, "a refused order is not written");
    std::fs::rename(site.path("ledger"), site.path("gone")).unwrap();
    let (code, why) = post("/v1/pause", r#"{"reason": "x"}"#);
    assert_eq!(code, 503, "{why}");
}

#[test]
fn an_order_is_the_users_whom_the_kernel_knows() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let site = Site::new();
    let _agent = Agent::start(&site);
    // As a site may do it that lets a group give orders.
    let socket = site.path("state/agent.sock");
    for (path, mode) in [(site.path(""), 0o755), (site.path("state"), 0o755), (socket, 0o666)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    // Linux keeps credentials by thread.
    let ask = || {
        set_thread_groups(&[]).unwrap();
        set_thread_gid(Gid::from_raw(NOBODY)).unwrap();
        set_thread_uid(Uid::from_raw(NOBODY)).unwrap();
        ask(&site, "POST", "/v1/pause", r#"{"reason": "I am root"}"#).unwrap()
    };
    let (code, given) = std::thread::scope(|scope| scope.spawn(ask).join()).unwrap();
    assert_eq!(code, 200, "{given}");
    assert_eq!(given["order"]["who"], format!("nobody (uid {NOBODY})"));
}

#[test]
fn only_its_owner_may_connect_and_a_dead_one_is_replaced() {
    let site = Site::new();
    let path = site.path("state/agent.sock");
    let first = Agent::start(&site);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(first);
    assert!(path.exists(), "a killed agent leaves its socket behind");
    let _second = Agent::start(&site);

    // Another agent with a port of its own and the same socket.
    let config = site.on("standby-2", |text| {
        let text = text.replace(&format!("listen = \"{}\"", site.listen), "listen = \"127.0.0.1:0\"");
        text.replace("[cluster]", &format!("socket = \"{}\"\n[cluster]", path.display()))
    });
    let third = said(site.command_with(&config, &["run"]).output().unwrap());
    assert_eq!(third.code, Some(1), "{third:?}");
    assert!(third.err.contains("agent.socket") && third.err.contains("another agent answers"), "{third:?}");
    assert!(ask(&site, "GET", "/livez", "").is_some(), "the living one is left alone");
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let site = Site::new();
    std::fs::write(site.path("state/agent.sock"), "notes").unwrap();
    let refused = said(site.command(&["run"]).output().unwrap());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("not a socket"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(site.path("state/agent.sock")).unwrap(), "notes");

    let long = site.on("standby-2", |text| {
        text.replace("[cluster]", &format!("socket = \"/{}\"\n[cluster]", "x".repeat(107)))
    });
    let refused = site.run_with(&long, &["run"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("107 bytes"), "{refused:?}");
}
