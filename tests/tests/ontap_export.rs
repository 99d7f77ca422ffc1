//! The storage itself says who may write: the only fence is an ONTAP system's export rules, which gate the
//! shared directories for real.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::kafka::ClusterSpec;
use e2e::ontap::Ontap;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, LOG_DIRS, Storage, eventually, story};
use ontap_client::fake;

const RULES: &str = "/api/protocols/nfs/export-policies";
const LOCKS: &str = "/api/protocols/locks";
const FLUSH: &str = "/api/private/cli/vserver/export-policy/cache/flush";

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
    let (read, change, unlock, flush) =
        (("GET", RULES), ("PATCH", RULES), ("DELETE", LOCKS), ("POST", FLUSH));
    // The act and the request that hangs have the same limit: either may be what is told.
    vec![
        ("nobody can log in", read, Fault::login_expired(), "login refused"),
        ("reading the rules hangs", read, Fault::slow(minute), "within 7s"),
        ("the list of rules is cut short", read, Fault::partial(1), "in part"),
        ("rules may not be changed", change, Fault::denied(), "permission denied"),
        ("changing a rule is a lie", change, Fault::lying_success(), "ONTAP said it was done, but"),
        ("changing a rule is refused as too busy", change, Fault::busy(minute), "429"),
        ("locks cannot be broken", unlock, Fault::status(503), "503"),
        ("breaking locks is a lie", unlock, Fault::lying_success(), "locks are there again"),
        ("the cache may not be flushed", flush, Fault::denied(), "access cache is not flushed"),
        ("no answer comes to a flush", flush, Fault::dropped_reply(), "access cache is not flushed"),
    ]
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
            for (what, (method, path), fault, words) in faults() {
                storage.inject(fault.on(method, path));
                lab.note(format!("fault: {what}"));
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
            storage.inject(fake::Fault::busy(Duration::from_millis(100)).on("POST", FLUSH).first(1));
            scenario.cli(&["failover", "--broker", "1", "--yes"], 0)?;
            Ok(())
        })?;
        ensure!(storage.owners(VICTIM) == ["standby-1"], "{:?}", storage.owners(VICTIM));
        storage.ensure_one_owner_at_a_time()?;
        scenario.verdict()?;
        Ok(())
    });
}
