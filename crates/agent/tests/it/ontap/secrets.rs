//! A secret in every place that has one, programs and an ONTAP that repeat whatever they are told, and
//! everything that the agent writes: none of it has a secret in it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use fakes::ontap::Fault;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::bed::{Bed, good_world};
use crate::common::Said;

/// In each of the secrets; the others are the begin of the ONTAP login in base64, and of a secret with a
/// quote as JSON has it.
const MARKS: [&str; 2] = ["s3cret", "YWRtaW46MG50YX"];

const VARIABLE: &str = "UNDERSTUDY_TEST_SECRET";
const LONG: Duration = Duration::from_secs(60);

/// Repeats all that it is told. It switches off, and does not know whether anything is off.
const FENCE: &str =
    r#"told=$(cat); echo "$told $*"; echo "$told $*" >&2; case $told in *action=off*) exit 0;; esac; exit 1"#;

fn gives_nothing_away(what: &str, said: &str) {
    for mark in MARKS {
        let at = said.find(mark).map(|at| {
            let from = (0..=at.saturating_sub(200)).rev().find(|from| said.is_char_boundary(*from));
            &said[from.unwrap_or_default()..at + mark.len()]
        });
        assert!(at.is_none(), "{what} has a secret: …{}", at.unwrap_or_default());
    }
}

/// Every file that the agent may have written.
fn written(dir: &Path, ours: &[&str]) -> usize {
    let mut files = 0;
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            files += written(&path, ours);
        } else if path.is_file() && !ours.iter().any(|name| entry.file_name() == *name) {
            let content = fs::read(&path).unwrap();
            gives_nothing_away(&path.display().to_string(), &String::from_utf8_lossy(&content));
            files += 1;
        }
    }
    files
}

/// A host with secrets in all places, and what repeats them.
async fn bed() -> Bed {
    let bed = Bed::new(good_world()).await;
    fs::write(bed.path("password"), "0ntap-s3cret\n").unwrap();
    fs::write(bed.path("fence.password"), "f1le-s3cret\n").unwrap();
    fs::write(bed.path("fence.sh"), FENCE).unwrap();
    fs::write(bed.path("kafka.sh"), "echo \"$KAFKA_OPTS $*\"; exit 1").unwrap();
    fs::write(bed.path("server.properties"), "ssl.keystore.password=template-s3cret\n").unwrap();
    let fence = format!(
        "[[host.fence]]\ndriver = \"exec\"\ntimeout = \"2s\"\n\
         command = [\"/bin/sh\", {:?}, \"--password=arg-s3cret\", \"--token\", \"t0ken-s3cret\"]\n\
         [host.fence.options]\npassword = \"pl4in-s3cret\"\npasswd = {{ file = {:?} }}\nlogin = {{ env = \"{VARIABLE}\" }}\n[broker_host]",
        bed.path("fence.sh"),
        bed.path("fence.password"),
    );
    bed.edit(|text| {
        let fenced = text.replace("[broker_host]", &fence);
        let command = format!("command = [\"/bin/sh\", {:?}, \"{{properties}}\"]", bed.path("kafka.sh"));
        let kafka = fenced.replace("command = [\"/bin/sh\", \"{properties}\"]", &command);
        assert!(fenced != text && kafka != fenced);
        let environment = "[broker_host.environment]\nKAFKA_OPTS = \"-Djavax.net.ssl.keyStorePassword=0pts-s3cret\"\n\
                           [[broker]]\nproperties = { \"ssl.key.password\" = \"k3y-s3cret\" }\n";
        kafka.replace("[[broker]]\n", environment)
    });
    let says = "login Basic YWRtaW46MG50YXAtczNjcmV0 (admin:0ntap-s3cret) failed";
    bed.fake
        .inject(Fault::says(401, json!({ "error": { "message": says, "code": "6691623", "target": says } })));
    bed
}

async fn run(bed: &Bed, arguments: &[&str]) -> Said {
    let said = bed.run_in(&[(VARIABLE, "env\"s3cret")], arguments).await;
    gives_nothing_away(&format!("{arguments:?}"), &format!("{}{}", said.out, said.err));
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_agent_writes_has_no_secret_in_it() {
    let bed = bed().await;
    let told = |said: &Said, part: &str| {
        let all = format!("{}{}", said.out, said.err);
        assert!(all.contains("***") && all.contains(part), "{part} is not quoted: {said:?}");
    };
    told(&run(&bed, &["check"]).await, "understudy_host=kafka-1");
    told(&run(&bed, &["--output", "json", "check"]).await, "login Basic ***");
    told(&run(&bed, &["warm"]).await, "keyStorePassword=***");
    told(&run(&bed, &["failover", "--broker", "1", "--yes", "--override"]).await, "login Basic ***");
    told(&run(&bed, &["history"]).await, "--password=***");
    told(&run(&bed, &["--output", "json", "history"]).await, "--token ***");
    told(&run(&bed, &["ontap", "audit"]).await, "***");
    for arguments in [&["rejoin", "--yes"][..], &["plan", "--broker", "1"], &["status"]] {
        run(&bed, arguments).await;
    }
    the_daemon(&bed).await;
    // What people get wrong.
    bed.edit(|text| {
        text.replace("passwd = {", "passwd.fle = {").replace("password = \"pl4in", "passwrd = [\"pl4in")
    });
    assert_eq!(run(&bed, &["check"]).await.code, Some(2));
    bed.edit(|text| format!("ledger.passwrd = \"s3cret\"\n{text}").replace("passwrd = [\"", "password = \""));
    assert_eq!(run(&bed, &["check"]).await.code, Some(2));

    let ours = ["password", "fence.password", "standby-1.toml", "server.properties"];
    let files = written(bed.path("").as_path(), &ours);
    assert!(files > 5, "{files} files were looked at");
}

/// Its log and its pages, until it has decided about the broker.
async fn the_daemon(bed: &Bed) {
    let (log, listen) = (bed.path("daemon.log"), bed.listen());
    let file = fs::File::create(&log).unwrap();
    let mut command = bed.command(&["run"]);
    command
        .env(VARIABLE, "env\"s3cret")
        .env("RUST_LOG", "trace")
        .stdout(file.try_clone().unwrap())
        .stderr(file);
    let mut agent = Killed(command.stdin(Stdio::null()).spawn().unwrap());
    let begun = Instant::now();
    while !get(&listen, "/v1/status").contains("\"decision\":{") {
        assert!(begun.elapsed() < LONG, "{}", fs::read_to_string(&log).unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for path in ["/livez", "/readyz", "/metrics", "/v1/status", "/v1/view", "/v1/brokers/1", "/v1/clients"] {
        gives_nothing_away(path, &get(&listen, path));
    }
    let pid = Pid::from_raw(i32::try_from(agent.0.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(agent.0.wait().unwrap().success());
    assert!(fs::read_to_string(&log).unwrap().contains("watching"));
}

/// The whole answer, or nothing while nobody answers.
fn get(listen: &str, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(listen) else { return String::new() };
    let mut answer = Vec::new();
    let asked = stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes());
    let _ = asked.and_then(|()| stream.read_to_end(&mut answer));
    String::from_utf8_lossy(&answer).into_owned()
}

/// Ends with the test, however that ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
