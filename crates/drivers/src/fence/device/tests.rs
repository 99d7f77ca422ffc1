//! Devices that are shell scripts: what they are told, and what counts as their answer.

use std::path::Path;

use futures_util::future::join_all;

use super::*;
use recovery::ports::chain;

const EPOCH: Epoch = Epoch(3);

/// A device that is a shell script: `$action` is what it is told, `$told` all of its input.
fn device(script: &str, timeout: Duration) -> Device {
    let prelude = "told=$(cat); action=$(echo \"$told\" | sed -n 's/^action=//p')";
    Device {
        driver: "fence_agent",
        program: PathBuf::from("/bin/sh"),
        arguments: vec!["-c".to_owned(), format!("{prelude}\n{script}")],
        options: toml::from_str("plug = \"7\"\npassword.env = \"PATH\"").unwrap(),
        timeout,
        is_fence_agent: true,
        leaves_running: false,
        steady: Duration::from_millis(600),
    }
}

fn quick(script: &str) -> Device {
    device(script, Duration::from_secs(1))
}

fn patient(script: &str) -> Device {
    device(script, Duration::from_secs(20))
}

fn host() -> HostName {
    HostName::from("kafka-1")
}

/// A power switch with memory: `off` takes effect a while after it was asked for.
fn switch(dir: &Path) -> Device {
    patient(&format!(
        "cd {}
        case $action in
            off) (sleep 0.3; touch off) > /dev/null 2>&1 & echo 'Success: Powered OFF';;
            status) if [ -e off ]; then echo 'Status: OFF'; exit 2; else echo 'Status: ON'; fi;;
        esac",
        dir.display()
    ))
}

#[tokio::test]
async fn a_switch_turns_off_and_is_read_until_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let switch = switch(dir.path());
    let note = switch.fence(&host(), EPOCH).await.unwrap();
    assert!(note.text.contains("turned kafka-1 off"), "{}", note.text);
    let proof = switch.prove(&host(), EPOCH).await.unwrap();
    assert_eq!((proof.host, proof.by.as_str()), (host(), "fence_agent"));
    assert_eq!(proof.note.details["stdout"], "Status: OFF");
    assert_eq!(proof.note.details["ending"], "exit code 2");
    assert!(proof.note.details["asked"].parse::<u32>().unwrap() > 1);
}

#[tokio::test]
async fn on_unknown_and_failing_are_no_proof() {
    let scripts = [
        ("exit 0", "says that it is still on"),
        ("echo 'no route to the device' >&2; exit 1", "exit code 1: no route to the device"),
        ("exit 3", "does not say whether it is on or off"),
        ("echo 'Usage: fence {on|off}'; exit 2", "says how it is used, and no state"),
        ("exit 2", "no line of its output is a state"),
        ("echo 'Chassis Power is off'", "let it exit with 2 when it says off"),
        ("kill -9 $$", "signal 9"),
    ];
    let proofs = scripts
        .map(|(script, said)| async move { (quick(script).prove(&host(), EPOCH).await.unwrap_err(), said) });
    for (error, said) in join_all(proofs).await {
        assert_eq!(error.kind(), "refused");
        let text = chain(&error);
        assert!(text.contains(said) && text.contains("Missing: a status of off"), "{text}");
    }
}

#[tokio::test]
async fn a_program_that_breaks_with_code_2_is_no_proof() {
    // A real shell with a real syntax error.
    let error = quick("if then fi").prove(&host(), EPOCH).await.unwrap_err();
    assert!(chain(&error).contains("exit code 2"), "{}", chain(&error));
    // An agent that warns and still says what it read is believed.
    let agent = quick("echo 'weak cipher' >&2; echo 'Status: OFF'; exit 2");
    assert!(agent.prove(&host(), EPOCH).await.is_ok());
}

#[tokio::test]
async fn a_device_that_hangs_is_unconfirmed_whatever_it_said() {
    let hung = quick("echo \"asking $PATH\"; sleep 1000");
    let host = host();
    let (fence, prove, check) =
        tokio::join!(hung.fence(&host, EPOCH), hung.prove(&host, EPOCH), hung.check(&host));
    for error in [fence.unwrap_err(), prove.unwrap_err(), check.unwrap_err()] {
        assert_eq!(error.kind(), "unconfirmed", "{error}");
        assert!(error.to_string().contains("asking ***"), "{error}");
        assert!(!error.to_string().contains(&std::env::var("PATH").unwrap()), "{error}");
    }
}

#[tokio::test]
async fn a_device_that_hangs_at_last_is_reported_by_its_last_answer() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!("cd {}; if [ -e asked ]; then sleep 1000; fi; touch asked", dir.path().display());
    let error = quick(&script).prove(&host(), EPOCH).await.unwrap_err();
    assert!(error.to_string().contains("says that it is still on"), "{error}");
}

#[tokio::test]
async fn a_refused_off_says_what_the_device_said_without_secrets() {
    let error = quick("echo \"$told\" >&2; exit 1").fence(&host(), EPOCH).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("action=off | password=*** | plug=7"), "{text}");
    let known = |device: &Device| format!("{device:?}").contains(&std::env::var("PATH").unwrap());
    assert!(!known(&quick("")), "a secret in the debug text");
}

#[tokio::test]
async fn a_sites_own_program_is_told_host_and_epoch() {
    let mut device = quick("echo \"$told\"; echo off; exit 2");
    let told = device.prove(&host(), EPOCH).await.unwrap().note.details["stdout"].clone();
    assert_eq!(told, "action=status | password=*** | plug=7 | off");
    device.is_fence_agent = false;
    let told = device.prove(&host(), EPOCH).await.unwrap().note.details["stdout"].clone();
    let head = "action=status | understudy_host=kafka-1 | understudy_epoch=3 | ";
    assert!(told.starts_with(head), "{told}");
}

#[tokio::test]
async fn check_wants_a_power_state_and_the_action_off() {
    let metadata = |actions: &str| {
        patient(&format!(
            "if [ $action = metadata ]; then echo '<actions>{actions}</actions>'; else exit 0; fi"
        ))
    };
    let note = metadata("<action name=\"on\" automatic=\"0\"/><action name=\"off\"/>").check(&host()).await;
    assert!(note.unwrap().text.contains("kafka-1 is on"));
    let error = metadata("<action name=\"on\"/><parameter name=\"off\"/>").check(&host()).await.unwrap_err();
    assert!(error.to_string().contains("does not list the action `off`"), "{error}");

    let mut own = patient("exit 1");
    own.is_fence_agent = false;
    let error = own.check(&host()).await.unwrap_err();
    assert!(error.to_string().contains("0 (on) or 2 (off) would be an answer"), "{error}");
}

#[tokio::test]
async fn a_program_that_is_not_there_fails_at_once() {
    let mut device = patient("");
    device.program = PathBuf::from("/nonexistent/fence_agent");
    let error = device.prove(&host(), EPOCH).await.unwrap_err();
    assert_eq!(error.kind(), "failed");
    assert!(chain(&error).contains("/nonexistent/fence_agent could not be started"), "{}", chain(&error));
}

/// As a cloud's agent does: `off` returns once the instance is down, and we do not wait so long.
#[tokio::test]
async fn an_off_that_outlasts_our_patience_is_proven_by_what_came_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let slow = quick(&format!(
        "cd {}
        case $action in
            off) setsid sh -c 'sleep 1.3; touch off' > /dev/null 2>&1 & sleep 30;;
            status) if [ -e off ]; then echo 'Status: OFF'; exit 2; else echo 'Status: ON'; fi;;
        esac",
        dir.path().display()
    ));
    let note = slow.fence(&host(), EPOCH).await.unwrap();
    assert!(note.text.contains("did not return; it read off 2 times"), "{}", note.text);
    assert!(slow.prove(&host(), EPOCH).await.is_ok());
}

/// As the published library answers: it gives no order where it reads off, as of a host that somebody resets.
#[tokio::test]
async fn a_host_that_was_off_already_must_stay_off() {
    let dir = tempfile::tempdir().unwrap();
    let already = |status: &str| {
        let here = dir.path().display();
        quick(&format!(
            "cd {here}; case $action in off) echo 'Success: Already OFF';; status) {status};; esac"
        ))
    };
    let reset = already("[ -e seen ] && exit 0; touch seen; echo 'Status: OFF'; exit 2");
    let error = reset.fence(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("its status: exit code 0"), "{error}");
    let note = already("echo 'Status: OFF'; exit 2").fence(&host(), EPOCH).await.unwrap();
    assert!(note.text.contains("off already; it read off 2 times"), "{}", note.text);
}

/// A service processor whose host has lost its power already refuses to switch it off.
#[tokio::test]
async fn a_refused_off_counts_for_a_host_that_stays_off() {
    let refuses = |status: &str| {
        quick(&format!(
            "case $action in off) echo 'not supported in present state' >&2; exit 1;; status) {status};; esac"
        ))
    };
    let steady = refuses("echo 'Chassis Power is off'; exit 2");
    let note = steady.fence(&host(), EPOCH).await.unwrap();
    assert!(note.text.contains("refused") && note.text.contains("read off 2 times"), "{}", note.text);
    let on =
        refuses("echo 'Chassis Power is on'; exit 0").fence(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(
        on.contains("present state") && on.contains("its status: exit code 0: Chassis Power is on"),
        "{on}"
    );
}

#[tokio::test]
async fn check_finds_who_calls_the_unknown_off_and_who_waits_longer_than_we_do() {
    let agent = |metadata: &str| {
        quick(&format!(
            "case $action in metadata) echo '<action name=\"off\"/>{metadata}';; status) echo 'Status: OFF'; exit 2;; esac"
        ))
    };
    let note = agent("").check(&host()).await.unwrap();
    assert_eq!(note.details[POWER], "off");
    for (metadata, said) in [
        ("<action name=\"on\" automatic=\"1\"/>", "leaves it running"),
        ("<parameter name=\"power_timeout\"><content default=\"40\"/></parameter>", "set timeout to more"),
        (
            "<parameter name=\"delay\"><content default=\"40\"/></parameter>",
            "(delay=40), and is killed after",
        ),
        ("<parameter name=\"missing_as_off\"><content default=\"1\"/></parameter>", "it proves nothing"),
    ] {
        let error = agent(metadata).check(&host()).await.unwrap_err().to_string();
        assert!(error.contains(said), "{metadata}: {error}");
    }
}

/// What cuts a host off its storage says nothing about its power.
#[tokio::test]
async fn a_fence_that_leaves_the_host_running_says_so() {
    let mut fabric = quick("echo 'Status: OFF'; exit 2");
    fabric.leaves_running = true;
    assert!(fabric.leaves_running() && fabric.has_power(&host()).await.is_none());
    let proof = fabric.prove(&host(), EPOCH).await.unwrap();
    assert!(proof.note.text.contains("kafka-1 is cut off"), "{}", proof.note.text);
    fabric.leaves_running = false;
    assert_eq!(fabric.has_power(&host()).await, Some(false));
}

#[tokio::test]
async fn a_sites_own_program_that_says_nothing_says_nothing_of_the_host() {
    let own = |script: &str| Device { driver: "exec", is_fence_agent: false, ..quick(script) };
    for (script, says) in [
        ("exit 0", "said nothing that is a state (exit 0): print `on` or `off`"),
        ("echo 'Usage: site-fence on|off|status'", "says how it is used, and no state"),
    ] {
        let silent = own(script);
        let error = silent.check(&host()).await.unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("from standard input"), "{error}");
        // It may mean on: it still speaks against another fence's proof.
        assert_eq!(silent.has_power(&host()).await, Some(true), "{script}");
        let error = silent.prove(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert!(silent.lift(&host()).await.is_err(), "{script}");
    }
    let says = own("echo on");
    assert_eq!(says.check(&host()).await.unwrap().details[POWER], "on");
    assert_eq!(says.has_power(&host()).await, Some(true));
    assert_eq!(quick("exit 0").has_power(&host()).await, Some(true), "a fence agent");
}
