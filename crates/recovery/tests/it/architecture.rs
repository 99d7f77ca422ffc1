//! Holds the walls: the core is pure, and dependencies inside the crate point one way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules from the inside out. A module may use those before it, itself, and plain data.
const LAYERS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("policy", &[]),
    ("departure", &["model"]),
    ("observe", &["model", "departure"]),
    ("experience", &["model", "observe"]),
    ("decide", &["model", "departure", "observe", "policy", "experience"]),
    ("plan", &["model", "observe", "policy", "decide", "experience"]),
    ("journal", &["model", "plan"]),
    ("event", &["model", "decide", "plan"]),
    ("progress", &["model", "plan", "journal"]),
    ("rejoin", &["model"]),
    ("view", &["model", "observe", "policy"]),
];

/// What would make the core impure.
const IMPURE: &[&str] = &[
    "async ",
    ".await",
    "tokio",
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::thread",
    "Instant",
    "SystemTime",
    "Timestamp::now",
    "rand::",
    "tracing",
    "println!",
];

fn sources(module: &str) -> Vec<(String, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let file = src.join(format!("{module}.rs"));
    let dir = fs::read_dir(src.join(module)).into_iter().flatten();
    let paths = dir.map(|entry| entry.expect("readable").path()).chain([file]);
    let is_code = |path: &PathBuf| path.is_file() && !path.ends_with("tests.rs");
    let paths: Vec<PathBuf> = paths.filter(is_code).collect();
    assert!(!paths.is_empty(), "{module} is a file or a folder");
    let read = |path: PathBuf| {
        // Tests in a file of their own are declared where modules are, at the top.
        let text = fs::read_to_string(&path).expect("readable").replace("#[cfg(test)]\nmod tests;", "");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code: Vec<&str> = code.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
        (path.display().to_string(), code.join("\n"))
    };
    paths.into_iter().map(read).collect()
}

fn modules_used(code: &str) -> Vec<String> {
    let names = code.split("crate::").skip(1);
    names.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
}

#[test]
fn the_core_uses_only_what_lies_further_in() {
    for (module, allowed) in LAYERS {
        for (path, code) in sources(module) {
            for used in modules_used(&code) {
                assert!(
                    used == *module || allowed.contains(&used.as_str()),
                    "{path} uses crate::{used}; {module} may only use {allowed:?}"
                );
            }
        }
    }
}

#[test]
fn no_modules_use_one_another_in_a_circle() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let names = fs::read_dir(src).expect("readable").map(|entry| entry.expect("readable").path());
    let names = names.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    let used = |module: &String| -> BTreeSet<String> {
        let used = sources(module).into_iter().flat_map(|(_, code)| modules_used(&code));
        used.filter(|used| used != module).collect()
    };
    let modules: BTreeSet<String> = names.filter(|name| name != "lib").collect();
    let mut left: BTreeMap<String, BTreeSet<String>> =
        modules.into_iter().map(|module| (module.clone(), used(&module))).collect();
    // Whatever uses nothing that is left is in no circle.
    loop {
        let free = left.iter().find(|(_, used)| used.iter().all(|used| !left.contains_key(used)));
        let Some(free) = free.map(|(module, _)| module.clone()) else { break };
        left.remove(&free);
    }
    assert!(left.is_empty(), "these use one another in a circle: {left:#?}");
}

#[test]
fn the_core_is_pure() {
    for (module, _) in LAYERS {
        for (path, code) in sources(module) {
            for word in IMPURE {
                let hit = code.lines().find(|line| line.contains(word));
                assert!(
                    hit.is_none(),
                    "{path} is part of the pure core and must not contain `{word}`: {hit:?}"
                );
            }
        }
    }
}

/// One scenario is one run, whenever it is run.
#[test]
fn what_is_simulated_reads_no_clock_but_the_one_it_is_given() {
    for module in ["cycle", "execute", "known", "ledger_signal", "stand_down", "status", "steps", "takeover"]
    {
        for (path, code) in sources(module) {
            let hit =
                code.lines().find(|line| line.contains("Timestamp::now") || line.contains("SystemTime"));
            assert!(hit.is_none(), "{path} is simulated, and must take the time from `Clock`: {hit:?}");
        }
    }
}

#[test]
fn signals_touch_no_file_system() {
    // The canary writes in a process of its own.
    let drivers = sources("../../drivers/src/health_signal");
    let code = drivers.into_iter().chain(sources("ledger_signal"));
    let code = code.filter(|(path, _)| !path.ends_with("storage_canary.rs"));
    for (path, code) in code {
        for word in ["std::fs", " fs::", "statvfs", "canonicalize", ".exists()"] {
            assert!(!code.contains(word), "{path} feeds decisions and must not contain `{word}`");
        }
    }
}

#[test]
fn no_file_outgrows_a_sitting() {
    fn walk(dir: &Path, long: &mut Vec<String>) {
        for entry in fs::read_dir(dir).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                walk(&path, long);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).expect("readable");
                let lines = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().lines().count();
                if lines > 500 {
                    long.push(format!("{} ({lines})", path.display()));
                }
            }
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut long = Vec::new();
    walk(&crates, &mut long);
    assert!(long.is_empty(), "files over 500 lines without tests: {long:?}");
}
