//! The standby has made a class-data archive before anything happens, and the takeover's Kafka maps it: by
//! the kernel's word.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::kafka::{ClusterSpec, Jvm};
use e2e::scenario::{PATIENCE, Scenario, Setup};
use e2e::{eventually, story};

/// How long a daemon may take to have an archive made: half a minute until it begins, and a Kafka that gets
/// of the processors what nobody else wants.
const MADE_WITHIN: Duration = Duration::from_secs(480);

/// Kafka on the standby has `archive` mapped, by the kernel's word.
fn ensure_mapped(scenario: &Scenario<'_>, archive: &str) -> Result<()> {
    let [kafka] = &scenario.kafkas()?[..] else { bail!("not one Kafka on the standby") };
    let maps = scenario.standby.run(&["cat", &format!("/proc/{kafka}/maps")])?.stdout;
    ensure!(maps.contains(archive), "Kafka has not mapped {archive}:\n{maps}");
    Ok(())
}

#[test]
fn a_takeover_starts_kafka_with_the_classes_that_the_standby_made_ready() {
    story("a_takeover_starts_kafka_with_the_classes_that_the_standby_made_ready", |lab| {
        let cluster = ClusterSpec { jvm: Jvm::quick("512m").without_archive(), ..ClusterSpec::default() };
        let setup = Setup { mode: "observe", cluster, ..Setup::default() };
        let scenario = Scenario::begin(lab, &setup)?;
        let checked = scenario.cli(&["check"], 0)?.stdout;
        ensure!(checked.contains("class data: none: none was made yet"), "{checked}");

        let made = scenario.cli(&["warm", "--output", "json"], 0)?.stdout;
        let made: serde_json::Value = serde_json::from_str(&made)?;
        lab.note(format!("made a class-data archive: {made}"));
        let archive = made["archive"].as_str().context("no archive in what `warm` said")?.to_owned();
        ensure!(
            made["did"] == "made" && made["java"].as_str().is_some_and(|java| java.starts_with("Java ")),
            "{made}"
        );
        ensure!(scenario.kafkas()?.is_empty(), "the scratch Kafka is gone");
        let left = scenario.standby.run(&["ls", "-l", "/srv/local/state/class-data"])?.stdout;
        ensure!(!left.contains("scratch") && left.contains("-rw-r--r-- 1 root"), "{left}");
        let again = scenario.cli(&["warm"], 0)?.stdout;
        ensure!(again.starts_with("still fits: "), "{again}");

        let victim = scenario.victim()?.clone();
        scenario.recovered_after(PATIENCE, || {
            victim.power_off()?;
            scenario.cli(&["failover", "--broker", "1", "--yes"], 0).map(drop)
        })?;
        ensure_mapped(&scenario, &archive)?;
        let told = scenario.cli(&["history", "--broker", "1", "--output", "json"], 0)?.stdout;
        ensure!(told.contains(&format!("used: {archive}")), "history does not say so:\n{told}");

        // One that is cut short, which Java would die of, is not offered to the next start.
        scenario.standby.run(&["truncate", "--size=1M", &archive])?;
        let checked = scenario.cli(&["check"], 0)?.stdout;
        ensure!(checked.contains("has 1048576 bytes of"), "{checked}");
        scenario.verdict()?;
        Ok(())
    });
}

#[test]
fn a_daemon_has_an_archive_made_while_all_is_well_and_takes_over_with_it() {
    story("a_daemon_has_an_archive_made_while_all_is_well_and_takes_over_with_it", |lab| {
        let cluster = ClusterSpec { jvm: Jvm::quick("512m").without_archive(), ..ClusterSpec::default() };
        let scenario = Scenario::begin(lab, &Setup { cluster, ..Setup::default() })?;
        let automatic = "s/^class_data = .*/class_data = \"auto\"/";
        scenario.standby.run(&["sed", "-i", automatic, "/srv/local/understudy.toml"])?;
        let checked = scenario.cli(&["check"], 0)?.stdout;
        ensure!(checked.contains("class data: none: none was made yet"), "{checked}");

        scenario.start_agents()?;
        eventually("the daemon to have an archive made", MADE_WITHIN, || {
            let fits = scenario.agent.metric("understudy_class_data_fits{}")?;
            ensure!(fits == Some(1.0), "understudy_class_data_fits is {fits:?}");
            Ok(())
        })?;
        lab.note("the daemon has had an archive made");
        scenario.ensure_untouched()?;
        let kept = scenario.standby.run(&["sh", "-c", "cd /srv/local/state/class-data && echo *"])?.stdout;
        let archive = kept.split_whitespace().find(|name| name.ends_with(".jsa"));
        let archive = format!("/srv/local/state/class-data/{}", archive.context(kept.clone())?);
        ensure!(!kept.contains("scratch"), "{kept}");

        let victim = scenario.victim()?.clone();
        scenario.recovered_after(PATIENCE, || victim.power_off())?;
        scenario.decided("healthy", PATIENCE)?;
        ensure_mapped(&scenario, &archive)?;
        scenario.journal_says(1, &[&format!("used: {archive}")], PATIENCE)?;
        scenario.verdict()?;
        Ok(())
    });
}
