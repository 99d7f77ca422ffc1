//! The storage itself says who may write: the only fence is an ONTAP system's export rules, which gate the
//! shared directories for real.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::kafka::ClusterSpec;
use e2e::ontap::Ontap;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, LOG_DIRS, Storage, eventually, story};
use fakes::ontap as fake;
use serde_json::json;

const RULES: &str = "/api/protocols/nfs/export-policies";
const LOCKS: &str = "/api/protocols/locks";
const CACHE: &str = "/api/private/cli/vserver/export-policy/access-cache";
/// Of one node's cache, and of all caches, which is the older command.
const FLUSHES: &str = "/api/private/cli/vserver/export-policy";
const EVALUATION: &str = "/api/private/cli/vserver/export-policy/check-access";

fn setup(timeout: &'static str) -> Setup {
    let cluster = ClusterSpec { storage: Storage::Fuse, ..ClusterSpec::default() };
    Setup { cluster, ontap: Some(timeout), ..Setup::default() }
}

fn ontap<'s>(scenario: &'s Scenario<'_>) -> Result<&'s Ontap> {
    scenario.ontap.as_ref().context("no storage system")
}

#[test]
fn a_host_that_is_cut_off_and_lives_is_denied_its_volumes() {
    story("a_host_that_is_cut_off_and_lives_is_denied_its_volumes", |lab| {
        let scenario = Scenario::begin(lab, &setup("30s"))?;
        let storage = ontap(&scenario)?;
        ensure!(storage.owners(VICTIM) == ["b1"], "{:?}", storage.owners(VICTIM));
        scenario.start_agents()?;
        let victim = scenario.victim()?.clone();
        let probe = format!("{LOG_DIRS}/broker{VICTIM}/probe");

        scenario.recovered_after(PATIENCE, || {
            scenario.strike(&Fault::CutOff(vec!["b1".to_owned()]))?;
            // It is cut off from the others, and not from its storage.
            let wrote = victim.run(&["sh", "-c", &format!("touch {probe} && rm {probe}")])?;
            ensure!(wrote.code == 0, "{wrote:?}");
            Ok(())
        })?;
        scenario.decided("healthy", PATIENCE)?;
        ensure!(storage.owners(VICTIM) == ["standby-1"], "{:?}", storage.owners(VICTIM));
        let refused = victim.run(&["touch", &probe])?;
        ensure!(refused.code != 0, "the old host can write: {refused:?}");
        eventually("the old broker to end, as it has no storage", PATIENCE, || {
            let zombies = victim.processes(&["kafka.Kafka"])?;
            ensure!(zombies.is_empty(), "{zombies:?} run");
            Ok(())
        })?;
        scenario.ensure_runs_on("standby-1")?;

        // What was and was not proven stands where a person looks for it.
        let history = scenario.cli(&["history", "--broker", "1"], 0)?.stdout;
        for word in ["ontap_export", "no export rule of", "holds no lock"] {
            ensure!(history.contains(word), "`history` does not mention {word}:\n{history}");
        }
        storage.ensure_one_owner_at_a_time()?;
        scenario.verdict()?;
        Ok(())
    });
}

/// What stays wrong for as long as it is not mended: with which request, and what a person is told of it.
/// Those that keep a rule from being changed come first: once it is, nobody asks for it again.
fn faults() -> Vec<(&'static str, (&'static str, &'static str), fake::Fault, &'static str)> {
    use fake::Fault;
    let minute = Duration::from_secs(60);
    let (read, change, unlock, cache) = (("GET", RULES), ("PATCH", RULES), ("DELETE", LOCKS), ("GET", CACHE));
    // The act and the request that hangs have the same limit: either may be what is told.
    vec![
        ("nobody can log in", read, Fault::login_expired(), "login refused"),
        ("reading the rules hangs", read, Fault::slow(minute), "within 7s"),
        ("the list of rules is cut short", read, Fault::partial(1), "in part"),
        ("rules may not be changed", change, Fault::denied(), "permission denied"),
        ("changing a rule is a lie", change, Fault::lying_success(), "ONTAP said it was done, but"),
        ("changing a rule is refused as too busy", change, Fault::busy(minute), "429"),
        ("locks cannot be broken", unlock, Fault::status(503), "503"),
        ("breaking locks is a lie", unlock, Fault::lying_success(), "its locks are there still"),
        ("the caches may not be read", cache, Fault::denied(), "access cache cannot be read back"),
        (
            "an empty answer about the caches",
            cache,
            Fault::says(200, json!({})),
            "access cache cannot be read back",
        ),
        (
            "an empty list of entries beside a complaint",
            cache,
            Fault::says(200, json!({ "num_records": 0, "records": [], "cli_output": "Error: show failed" })),
            "access cache cannot be read back",
        ),
        (
            "entries that do not say whether they let in",
            cache,
            Fault::says(200, json!({ "num_records": 1, "records": [{}] })),
            "may still let it in",
        ),
        ("ONTAP itself evaluates otherwise", ("GET", EVALUATION), still_lets_in(), "check-access says"),
    ]
}

/// Two volumes' policies are in one answer, which a real one never is: whichever is asked about is in it.
fn still_lets_in() -> fake::Fault {
    let row = |policy: &str| json!({ "path": "/", "policy": policy, "access": "read_write" });
    let rows: Vec<_> = ["broker1", "broker2", "broker3"].map(row).into();
    fake::Fault::says(200, json!({ "num_records": rows.len(), "records": rows }))
}

#[test]
fn a_storage_system_that_fails_or_lies_never_leads_to_a_start() {
    story("a_storage_system_that_fails_or_lies_never_leads_to_a_start", |lab| {
        // Longer than the time for which it has to be idle.
        let scenario = Scenario::begin(lab, &setup("7s"))?;
        let storage = ontap(&scenario)?;
        let victim = scenario.victim()?.clone();
        scenario.recovered_after(PATIENCE * 2, || {
            victim.power_off()?;
            // However locks are shown: each face in turn, until the takeover that works.
            let faces = fake::LockFace::ALL.into_iter().cycle();
            for ((what, (method, path), fault, words), face) in faults().into_iter().zip(faces) {
                storage.show_locks(face);
                storage.inject(fault.on(method, path));
                lab.note(format!("fault: {what}; locks are shown as {face:?}"));
                let tried = scenario.agent.cli(&["failover", "--broker", "1", "--yes"])?;
                ensure!(tried.code == 4, "{what}: {tried:?}");
                let said = tried.stdout + &tried.stderr;
                ensure!(said.contains(words), "{what}: a person is not told {words:?}:\n{said}");
                scenario.ensure_not_started()?;
                let owners = storage.owners(VICTIM);
                ensure!(!owners.contains(&"standby-1".to_owned()), "{what}: {owners:?} are let in");
                storage.ensure_one_owner_at_a_time()?;
                storage.heal();
            }
            // What passes by itself costs time and nothing else.
            storage.inject(fake::Fault::status(503).on("GET", RULES).first(1));
            storage.inject(fake::Fault::dropped_reply().on("PATCH", RULES).first(1));
            storage.inject(fake::Fault::busy(Duration::from_millis(100)).on("GET", CACHE).first(1));
            scenario.cli(&["failover", "--broker", "1", "--yes"], 0)?;
            Ok(())
        })?;
        ensure!(storage.owners(VICTIM) == ["standby-1"], "{:?}", storage.owners(VICTIM));
        storage.ensure_one_owner_at_a_time()?;
        scenario.verdict()?;
        Ok(())
    });
}

/// What may be answered to an order to flush that was not carried out.
fn flush_lies() -> Vec<fake::Fault> {
    let bodies = [
        json!({}),
        json!([]),
        json!({ "num_records": 0 }),
        json!({ "num_records": 1, "cli_output": "" }),
        json!({ "num_records": 1, "cli_output": "Error: command failed on node-02" }),
    ];
    let said = bodies.map(|body| fake::Fault::says(200, body));
    [fake::Fault::lying_success(), fake::Fault::denied()].into_iter().chain(said).collect()
}

/// What a storage system answers that shows nothing of anybody's entries.
fn shows_nothing() -> [fake::Fault; 2] {
    let none = json!({ "error": { "code": "4", "message": "entry doesn't exist" } });
    [fake::Fault::says(404, none), fake::Fault::says(200, json!({ "num_records": 0, "records": [] }))]
}

/// The nodes remember the old owner, and it writes: the rule is no proof, nor is an order that was taken, nor
/// that nothing is shown.
#[test]
fn a_node_that_remembers_the_old_host_never_leads_to_a_start() {
    story("a_node_that_remembers_the_old_host_never_leads_to_a_start", |lab| {
        let scenario = Scenario::begin(lab, &setup("5s"))?;
        let storage = ontap(&scenario)?;
        let victim = scenario.victim()?.clone();
        let probe = format!("{LOG_DIRS}/broker{VICTIM}/probe");
        let write = || victim.run(&["sh", "-c", &format!("touch {probe} && rm {probe}")]);
        scenario.recovered_after(PATIENCE * 2, || {
            scenario.strike(&Fault::CutOff(vec!["b1".to_owned()]))?;
            storage.inject(fake::Fault::bites_late(Duration::from_secs(3600)).on("PATCH", RULES));
            let lies = flush_lies().into_iter().map(|lie| (lie, None, "may still let it in"));
            let blind = shows_nothing()
                .map(|none| (fake::Fault::lying_success(), Some(none), "has shown no access cache entry"));
            for (lie, none, words) in lies.chain(blind) {
                lab.note(format!("faults: {lie:?}, {none:?}"));
                storage.inject(lie.on("POST", FLUSHES));
                none.into_iter().for_each(|none| storage.inject(none.on("GET", CACHE)));
                let tried = scenario.agent.cli(&["failover", "--broker", "1", "--yes"])?;
                ensure!(tried.code == 4, "{tried:?}");
                let said = tried.stdout + &tried.stderr;
                ensure!(said.contains(words), "a person is not told {words:?}:\n{said}");
                scenario.ensure_not_started()?;
                // And so it is.
                let wrote = write()?;
                ensure!(wrote.code == 0 && storage.owners(VICTIM).is_empty(), "{wrote:?}");
                storage.heal();
            }
            scenario.cli(&["failover", "--broker", "1", "--yes"], 0)?;
            Ok(())
        })?;
        let refused = write()?;
        ensure!(refused.code != 0, "the old host can write: {refused:?}");
        ensure!(storage.owners(VICTIM) == ["standby-1"], "{:?}", storage.owners(VICTIM));
        storage.ensure_one_owner_at_a_time()?;
        scenario.verdict()?;
        Ok(())
    });
}
