//! The machine of a broker dies. Its lock is broken at the server, its successor does not wait for the lease;
//! and when the machine comes back with Kafka enabled, it stays out.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use e2e::nfs::GuestAgent;
use e2e::nfs::kafka::UNIT;
use e2e::nfs::scenario::{NfsScenario, NfsSetup, kafkas};
use e2e::nfs::units::AGENT;
use e2e::scenario::PATIENCE;
use e2e::{Lab, eventually, story};
use fakes::ontap::{Fault, Table};
use serde_json::json;

/// What `deploy/systemd/README.md` says of the exposure of `understudy.service` where it mounts.
const EXPOSURE: f64 = 5.4;

/// The daemon is what operators install, and what confines it is in force.
fn runs_as_shipped(lab: &Lab, agent: &GuestAgent) -> Result<()> {
    agent.ensure_watched()?;
    let (exposure, confinement) = (agent.exposure()?, agent.confinement()?);
    lab.note(format!("{AGENT} is exposed to {exposure}; {confinement}"));
    ensure!(exposure <= EXPOSURE, "its exposure is {exposure}");
    // CAP_SYS_MODULE, CAP_SYS_TIME and CAP_SYSLOG are not in it: the whole set ends with ffffffff.
    ensure!(confinement.contains("NoNewPrivs: 1") && !confinement.contains("1ffffffffff"), "{confinement}");
    Ok(())
}

/// The kernel's word that the takeover's Kafka works with the archive that its host had ready, and the
/// agent's.
fn started_warm(scenario: &NfsScenario<'_>, agent: &GuestAgent) -> Result<()> {
    let running = kafkas(agent.guest())?;
    let [kafka] = &running[..] else { bail!("{running:?} run") };
    let archive = agent.guest().sh("ls /var/lib/understudy/class-data/kafka-*.jsa")?;
    let (archive, maps) = (archive.trim(), agent.guest().read(&format!("/proc/{kafka}/maps"))?);
    ensure!(!archive.is_empty() && maps.contains(archive), "Kafka has not mapped {archive:?}:\n{maps}");
    let journal = scenario.journal()?;
    ensure!(journal.contains(&format!("used: {archive}")), "the ledger does not say so:\n{journal}");
    Ok(())
}

/// What an operator does before the first night: the standby itself is let in to a scratch volume, is denied,
/// and finds out whether it can write. A storage that lies about it in every answer is found out.
fn the_storage_is_verified(scenario: &NfsScenario<'_>) -> Result<()> {
    let (agent, storage) = (scenario.agent(), &scenario.storage);
    let server = scenario.server.address().to_string();
    let verify = ["ontap", "verify", "--try", "--yes", "--aggregate", "aggr1", "--mount", &server];
    let said = scenario.cli(agent, &[&verify[..], &["--report", "/tmp/verify.json"]].concat(), 0)?.stdout;
    for words in [
        "rule_bites (svm1): this host could not write",
        "let_in_again (svm1): this host can write",
        "0 differ",
    ] {
        ensure!(said.contains(words), "`verify` does not say {words:?}:\n{said}");
    }
    let report: serde_json::Value = serde_json::from_str(&agent.guest().read("/tmp/verify.json")?)?;
    ensure!(
        report["differing"] == 0 && report["findings"].as_array().is_some_and(|all| all.len() > 15),
        "{report}"
    );

    let cache = "/api/private/cli/vserver/export-policy";
    let no_entry = json!({ "error": { "code": "4", "message": "entry doesn't exist" } });
    storage.inject(
        Fault::bites_late(Duration::from_secs(3600)).on("PATCH", "/api/protocols/nfs/export-policies"),
    );
    storage.inject(Fault::says(200, json!({ "num_records": 1 })).on("POST", cache));
    storage.inject(Fault::says(404, no_entry).on("GET", cache));
    let said = scenario.cli(agent, &verify, 1)?.stdout;
    storage.heal();
    // The caches show "none" of everybody, so that it is no proof. It was one once, and this host wrote after it.
    let unproven = "has shown no access cache entry";
    ensure!(said.contains(unproven) && !said.contains("WROTE after the proof"), "{said}");
    let left =
        storage.fake().world(|world| world.find(Table::Volumes, &[("name", "understudy_verify")]).is_some());
    ensure!(!left, "the scratch volume is there still:\n{said}");
    Ok(())
}

#[test]
fn a_dead_machine_is_replaced_at_once_and_stays_out() {
    story("a_dead_machine_is_replaced_at_once_and_stays_out", |lab| {
        let scenario = NfsScenario::begin(lab, &NfsSetup::default())?;
        let (agent, home) = (scenario.agent(), scenario.home.guest());
        // Topics that nobody else has a copy of: what `check` warns of, and `history` must not hide.
        scenario.cluster.create_topic("alone", 6, 1, 1)?;
        let warned = scenario.agent().cli(&["check"])?;
        ensure!(warned.stdout.contains("have no other replica"), "{warned:?}");
        the_storage_is_verified(&scenario)?;
        scenario.start_agents()?;
        runs_as_shipped(lab, agent)?;
        ensure!(scenario.storage.owners("broker1") == ["b1"], "{:?}", scenario.storage.owners("broker1"));

        scenario.recovered_after(|| home.crash())?;
        scenario.decided(agent, "healthy")?;
        scenario.ensure_runs_on(agent)?;
        agent.ensure_unit_of(1)?;
        started_warm(&scenario, agent)?;
        ensure!(
            scenario.storage.owners("broker1") == ["standby-1"],
            "{:?}",
            scenario.storage.owners("broker1")
        );
        let history = scenario.note_phases(agent)?;
        for word in ["ontap_export", "broke", "have no other replica"] {
            ensure!(history.contains(word), "`history` does not say {word:?}:\n{history}");
        }
        let mount = agent.guest().sh("grep ' /srv/kafka/broker1 nfs4 ' /proc/mounts")?;
        ensure!(mount.contains("vers=4.1") && mount.contains("hard"), "{mount}");

        // It boots, and its units are enabled. Storage lets it in no more, and the ledger says why.
        let begun = Instant::now();
        home.power_on()?;
        eventually("Kafka's unit to be skipped or to fail", PATIENCE, || {
            let shown =
                home.sh(&format!("systemctl show {UNIT} -p ActiveState -p ConditionResult -p Result"))?;
            let settled = shown.contains("ActiveState=inactive") || shown.contains("ActiveState=failed");
            let jobs = home.sh("systemctl list-jobs --no-legend")?;
            ensure!(settled && !jobs.contains(UNIT), "{shown}{jobs}");
            Ok(())
        })?;
        lab.note(format!("b1 came back and stayed out after {:.1} s", begun.elapsed().as_secs_f64()));
        let refused = scenario.home.cli(&["guard", "--broker", "1"])?;
        let said = refused.stdout + &refused.stderr;
        ensure!(refused.code != 0 && said.contains("standby-1"), "the guard lets it start: {said}");
        let by_hand = home.run(&["systemctl", "start", UNIT])?;
        ensure!(kafkas(home)?.is_empty(), "Kafka runs on the old host: {by_hand:?}");
        let probe = home.run_within(
            Duration::from_secs(20),
            &["mount", "-t", "nfs4", &scenario.server.source("broker1"), "/mnt"],
        )?;
        let written = home.run_within(Duration::from_secs(20), &["touch", "/mnt/probe"])?;
        ensure!(probe.code != 0 || written.code != 0, "the old host can write");
        scenario.ensure_runs_on(agent)?;
        // All of this, and the watchdog never had to end the agent.
        agent.ensure_watched()?;
        ensure!(
            scenario.epochs()? == ["epoch-1.journal"],
            "one fault, one takeover: {:?}",
            scenario.epochs()?
        );
        scenario.verdict()?;
        Ok(())
    });
}
