//! Every target on its seeds and on a fixed number of changed ones, without any engine: the same at every
//! run.
//!
//! `FUZZ_INPUT=PATH` runs a file or a folder instead, such as what `cargo xtask fuzz` found; a relative path
//! begins at the top of the checkout. `FUZZ_NUMBER=N` makes other changes.

mod targets;

use std::env;
use std::path::Path;

use fuzz::{Meter, Target, inputs};

#[global_allocator]
static METER: Meter = Meter;

fn exercise(name: &str) {
    let Some(target) = targets::all().into_iter().find(|target| target.name == name) else {
        panic!("there is no target {name}");
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (target, folder) = match env::var_os("FUZZ_INPUT") {
        Some(path) => (Target { cases: 0, ..target }, here.join("..").join(path)),
        None => (target, here.join("corpus").join(name)),
    };
    let number = env::var("FUZZ_NUMBER").unwrap_or_else(|_| "1".to_owned());
    let Ok(number) = number.parse() else { panic!("FUZZ_NUMBER={number} is not a number") };
    let seeds = inputs(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    assert!(!seeds.is_empty(), "{} has no seeds", folder.display());
    if let Err(why) = target.exercise(&seeds, number, Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        panic!("{why}");
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                exercise(stringify!($name));
            }
        )*

        #[test]
        fn no_target_is_left_out() {
            let mut all: Vec<_> = targets::all().iter().map(|target| target.name).collect();
            all.sort_unstable();
            assert_eq!(all, [$(stringify!($name)),*]);
        }
    };
}

targets! {
    clients_page
    config
    decisions
    fence_metadata
    jks
    journal
    ledger_lines
    meta_properties
    mountinfo
    names
    neighbour
    nfs_kernel
    peer_view
    properties
    properties_edit
    wire_answer
    wire_frames
    wire_offer
    zookeeper
}

fn broken(input: &[u8]) {
    let _ = Vec::<u8>::with_capacity(if input == b"SEED" { 1 << 30 } else { 0 });
    assert_ne!(input, b"seed!");
}

#[test]
fn a_panic_and_a_large_reservation_are_found_and_told() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = Target { name: "broken", run: broken, at_rest: 1024, per_byte: 1, cases: 20_000 };
    let panic = target.exercise(&[b"seed".to_vec(), b"sead!".to_vec()], 1, folder).unwrap_err();
    assert!(panic.contains("seed!"), "{panic}");
    assert_eq!(inputs(&folder.join("broken-failed")).unwrap(), [b"seed!"]);
    let target = Target { cases: 0, ..target };
    let memory = target.exercise(&[b"SEED".to_vec()], 1, folder).unwrap_err();
    assert!(memory.contains("4 bytes of input made it reserve 1073741824 bytes, more than 1028"), "{memory}");
}
