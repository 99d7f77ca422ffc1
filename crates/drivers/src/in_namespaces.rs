//! Tests that change mounts and interfaces, in namespaces of their own: the host never sees it, and
//! everything is gone when the process ends.

use std::env;
use std::process::{Command, Stdio};

const MARK: &str = "UNDERSTUDY_TEST_NAMESPACES";

/// Runs the ignored tests of this binary whose names begin with `module`, in fresh mount and network
/// namespaces. Skips loudly where the kernel does not allow that.
pub(super) fn run_ignored_tests_of(module: &str) {
    let mut unshare = vec!["--mount", "--net", "--propagation", "private"];
    if !rustix::process::geteuid().is_root() {
        unshare.extend(["--user", "--map-root-user"]);
    }
    let probe = Command::new("unshare").args(&unshare).arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: {module}: this user may not make namespaces; run the tests as root");
        return;
    }
    let exe = env::current_exe().unwrap();
    // The test harness prefixes no crate name to a test's path.
    let filter = module.split_once("::").unwrap().1;
    let output = Command::new("unshare")
        .args(&unshare)
        .arg(exe)
        .args(["--ignored", "--test-threads=1", "--nocapture", filter])
        .env(MARK, "1")
        .output()
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "in the namespaces:\n{said}");
    assert!(!said.contains("result: ok. 0 passed"), "no test was run:\n{said}");
}

/// Whether this process was started by [`run_ignored_tests_of`], so that it may change what it likes.
pub(super) fn inside() -> bool {
    let inside = env::var_os(MARK).is_some();
    if !inside {
        eprintln!("SKIPPED: this test is run by another one, in namespaces of its own");
    }
    inside
}

/// Runs a command that must succeed, and returns what it printed.
pub(super) fn must(command: &str) -> String {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}
