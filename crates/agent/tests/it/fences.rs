//! Fence devices as people have them: what the configuration refuses, and what `check` says of the others.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use crate::common::{Said, Site};

/// A site whose fence is `section`, with programs named in it below the site's folder, and a broker at `listener`.
fn site(section: &str, programs: &[(&str, &str)], listener: &str) -> Site {
    let site = Site::new();
    for (name, script) in programs {
        let path = site.path(name);
        fs::write(&path, format!("#!/bin/sh\na=$(sed -n 's/^action=//p')\n{script}\n")).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let here = site.path("").display().to_string();
    let text = fs::read_to_string(site.config()).unwrap();
    let text = text.replace("driver = \"exec\"\ncommand = [\"/bin/false\"]", &section.replace("@/", &here));
    fs::write(site.config(), text.replace("127.0.0.1:2", listener)).unwrap();
    site
}

/// What `check` says of the fences of kafka-1, line by line, each with its verdict.
fn fences(said: &Said) -> Vec<String> {
    let found = said.json();
    let items = found["items"].as_array().unwrap_or_else(|| panic!("{said:?}")).clone();
    let of_it = items.iter().filter(|item| item.to_string().contains("fence of kafka-1"));
    of_it.map(|item| format!("{}: {}", item["verdict"].as_str().unwrap_or("?"), item["says"])).collect()
}

fn checked(site: &Site) -> Vec<String> {
    fences(&site.run(&["check", "--output", "json"]))
}

const AGENT: &str = "driver = \"fence_agent\"\nagent = \"@/fence\"\n";
const METADATA: &str =
    "metadata) echo '<action name=\"on\" automatic=\"0\"/><action name=\"off\"/>'; exit 0;;";

/// `fence_xvm` calls a machine that it does not know off, by the word and the code.
#[test]
fn a_device_that_reads_off_of_a_host_whose_broker_answers_looks_at_another_machine() {
    let broker = TcpListener::bind("127.0.0.1:0").unwrap();
    let listener = broker.local_addr().unwrap().to_string();
    let script = format!("case $a in {METADATA} status) echo 'Status: OFF'; exit 2;; esac; exit 1");
    let living =
        checked(&site(&format!("{AGENT}options = {{ port = \"typo\" }}"), &[("fence", &script)], &listener));
    assert!(
        living.iter().any(|item| item.starts_with("fail") && item.contains("broker 1 there answers")),
        "{living:?}"
    );
    drop(broker);
    let silent = checked(&site(AGENT, &[("fence", &script)], &listener));
    assert!(silent.iter().any(|item| item.starts_with("warn") && item.contains("is it off?")), "{silent:?}");
}

#[test]
fn two_devices_that_contradict_each_other_are_told() {
    let rung = |name: &str| format!("driver = \"fence_agent\"\nagent = \"@/{name}\"\n");
    let section = format!("{}[[host.fence]]\n{}", rung("a"), rung("b"));
    let script = |status: &str| format!("case $a in {METADATA} status) {status};; esac; exit 1");
    let (off, on) = (script("echo 'Status: OFF'; exit 2"), script("echo 'Status: ON'; exit 0"));
    let found = checked(&site(&section, &[("a", &off), ("b", &on)], "127.0.0.1:2"));
    assert!(
        found.iter().any(|item| item.starts_with("fail") && item.contains("fence_agent (2 of 2) reads on")),
        "{found:?}"
    );
}

/// Nobody wrote a `status` for it: it explains itself, with the word and with the code.
#[test]
fn a_program_that_only_knows_on_and_off_is_found_before_the_night() {
    let script = "case $a in on|off) exit 0;; *) echo \"Usage: $0 {on|off}\"; exit 2;; esac";
    let found =
        checked(&site("driver = \"exec\"\ncommand = [\"@/fence\"]", &[("fence", script)], "127.0.0.1:2"));
    let told = |item: &String| item.starts_with("fail") && item.contains("says how it is used, and no state");
    assert!(found.iter().any(told), "{found:?}");
}

#[test]
fn what_answers_for_the_device_is_refused_with_its_key() {
    let section = format!("{AGENT}options = {{ plug = \"old\", missing-as-off = \"1\" }}");
    let said = site(&section, &[], "127.0.0.1:2").run(&["check"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("missing-as-off") && said.err.contains("has not read"), "{said:?}");
}

#[test]
fn one_outlet_of_all_or_a_brokers_own_address_is_refused() {
    let one = "driver = \"all_of\"\n[[host.fence.device]]\ndriver = \"exec\"\ncommand = [\"/bin/a\"]";
    let said = site(one, &[], "127.0.0.1:2").run(&["check"]);
    assert!(said.code == Some(2) && said.err.contains("add another"), "{said:?}");
    let said = site("driver = \"exec\"\ncommand = [\"/bin/false\"]", &[], "127.0.0.1:2");
    let text = fs::read_to_string(said.config()).unwrap();
    let text = text.replace("name = \"kafka-1\"\n", "name = \"kafka-1\"\naddress = \"127.0.0.1\"\n");
    fs::write(said.config(), text).unwrap();
    let said = said.run(&["check"]);
    assert!(said.code == Some(2) && said.err.contains("is a broker's, which moves with it"), "{said:?}");
}
