//! One target under libFuzzer. `cargo xtask fuzz` builds it with the instrumentation it needs, and runs it.

#![no_main]

mod targets;

use std::env;
use std::process;
use std::sync::LazyLock;

use fuzz::{Meter, Target};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static METER: Meter = Meter;

/// The one that `FUZZ_TARGET` names.
static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = env::var("FUZZ_TARGET").unwrap_or_default();
    targets::all().into_iter().find(|target| target.name == name).unwrap_or_else(|| {
        eprintln!("FUZZ_TARGET={name}: there is no such target");
        process::exit(2);
    })
});

fuzz_target!(|input: &[u8]| TARGET.check(input));
