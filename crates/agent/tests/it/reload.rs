//! A configuration that changes while the agent runs.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::Site;
use crate::socket::{Agent, ask};

/// The same file with one text in place of another, which is there.
fn edit(site: &Site, from: &str, to: &str) {
    let text = fs::read_to_string(site.config()).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(site.config(), text.replace(from, to)).unwrap();
}

fn mode(site: &Site) -> String {
    let (code, status) = ask(site, "GET", "/v1/status", "").unwrap();
    assert_eq!(code, 200, "{status}");
    status["mode"].as_str().unwrap().to_owned()
}

/// A page over TCP.
fn page(site: &Site, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(&site.listen)?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn has_metric(site: &Site, line: &str) -> bool {
    page(site, "/metrics").unwrap().lines().any(|found| found == line)
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn hang_up(agent: &Agent) {
    kill_process(Pid::from_child(&agent.0), Signal::HUP).unwrap();
}

#[test]
fn what_is_different_is_told_and_in_force_when_the_command_ends() {
    let site = Site::new();
    let _agent = Agent::start(&site);
    let same = site.run(&["reload"]);
    assert_eq!(same.code, Some(0), "{same:?}");
    assert!(same.out.contains("nothing to reload"), "{same:?}");

    edit(&site, "mode = \"auto\"\n", "mode = \"observe\"\n");
    edit(&site, "[ledger]", "[policy]\nhung_after = \"33s\"\n[ledger]");
    let shown = site.run(&["reload", "--dry-run"]);
    let differences = "  mode: \"auto\" → \"observe\"\n  policy.hung_after: not set → \"33s\"\n";
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.out.contains(differences) && shown.out.contains("nothing was applied"), "{shown:?}");
    assert_eq!(mode(&site), "auto");

    let applied = site.run(&["reload"]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert!(applied.out.contains(differences) && applied.out.contains("applied at "), "{applied:?}");
    assert_eq!(mode(&site), "observe");
    assert!(has_metric(&site, "understudy_config_last_reload_successful{} 1"));
    // Orders are judged by it, too.
    let (code, given) = ask(&site, "POST", "/v1/brokers/1/approve", "").unwrap();
    assert_eq!(code, 200, "{given}");
    assert!(given["warnings"][0].as_str().unwrap().contains("mode observe"), "{given}");
    // And the brokers are looked at anew.
    eventually("no decision is made after the reload", || {
        let (_, status) = ask(&site, "GET", "/v1/status", "").unwrap();
        !status["brokers"][0]["decision"].is_null()
    });
}

#[test]
fn a_file_with_problems_changes_nothing_and_all_of_them_are_told() {
    let site = Site::new();
    let agent = Agent::start(&site);
    edit(&site, "mode = \"auto\"\n", "mode = \"observe\"\n");
    edit(&site, "[ledger]", "[policy]\nhung_after = \"3 parsecs\"\nhunged = 1\n[ledger]");
    let refused = site.run(&["reload"]);
    assert_eq!((refused.code, refused.err.contains("2 problems")), (Some(2), true), "{refused:?}");
    // As the agent itself says it.
    let (code, told) = ask(&site, "POST", "/v1/reload", "").unwrap();
    assert_eq!(code, 400, "{told}");
    let keys: Vec<_> = told["problems"].as_array().unwrap().iter().map(|problem| &problem["key"]).collect();
    assert_eq!(keys, ["policy.hung_after", "policy.hunged"], "{told}");
    assert!(has_metric(&site, "understudy_config_last_reload_successful{} 0"));
    hang_up(&agent);
    assert_eq!(mode(&site), "auto");

    edit(&site, "hung_after = \"3 parsecs\"\nhunged = 1\n", "");
    hang_up(&agent);
    eventually("SIGHUP does not reload", || mode(&site) == "observe");
    assert!(has_metric(&site, "understudy_config_last_reload_successful{} 1"));
}

#[test]
fn what_takes_a_restart_is_refused_with_all_the_rest() {
    let site = Site::new();
    let _agent = Agent::start(&site);
    edit(&site, "mode = \"auto\"\n", "mode = \"observe\"\n");
    edit(&site, &format!("listen = \"{}\"", site.listen), "listen = \"127.0.0.1:1\"");
    let refused = site.run(&["reload"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    for part in ["not done: agent.listen: ", "systemctl restart understudy", "planned-work.md#needs_restart"]
    {
        assert!(refused.err.contains(part), "{refused:?}");
    }
    assert_eq!(mode(&site), "auto");
}

#[test]
fn nobody_is_turned_away_while_it_reloads() {
    let site = Site::new();
    let _agent = Agent::start(&site);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let mut asked = 0;
            while !done.load(Ordering::SeqCst) {
                let answer = page(&site, "/livez").unwrap();
                assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
                let (code, status) = ask(&site, "GET", "/v1/status", "").unwrap();
                assert_eq!(code, 200, "{status}");
                asked += 1;
            }
            asked
        });
        let modes = ["auto", "observe", "approve"].into_iter().cycle();
        for (from, to) in modes.clone().zip(modes.skip(1)).take(9) {
            edit(&site, &format!("mode = \"{from}\"\n"), &format!("mode = \"{to}\"\n"));
            let (code, _) = ask(&site, "POST", "/v1/reload", "").unwrap();
            assert_eq!((code, mode(&site)), (200, to.to_owned()));
        }
        done.store(true, Ordering::SeqCst);
        assert!(asks.join().unwrap() > 0);
    });
}

#[test]
fn without_an_agent_it_says_so() {
    let site = Site::new();
    let said = site.run(&["reload"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("no agent answers at") && said.err.contains("agent.sock"), "{said:?}");
}
