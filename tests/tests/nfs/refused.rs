//! A standby that cannot have the right storage gives up, having written nothing, and another one takes its
//! place.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, chown};

use anyhow::{Context, Result, ensure};
use e2e::nfs::scenario::{NfsScenario, NfsSetup, kafkas, mount_from};
use e2e::scenario::{PATIENCE, contents};
use e2e::story;

/// Tries to take over by hand on the first standby, which must give up and say why.
fn gives_up(scenario: &NfsScenario<'_>, what: &str, words: &str) -> Result<()> {
    scenario.lab.note(what);
    let (agent, volume) = (scenario.agent(), scenario.server.directory("broker1"));
    let before = contents(&volume)?;
    let tried = agent.cli(&["failover", "--broker", "1", "--yes", "--override"])?;
    let said = tried.stdout + &tried.stderr;
    ensure!(tried.code == 1 && said.contains("abandoned"), "{what}: exit code {}:\n{said}", tried.code);
    ensure!(said.contains(words), "{what}: a person is not told {words:?}:\n{said}");
    ensure!(kafkas(agent.guest())?.is_empty(), "{what}: Kafka was started");
    ensure!(contents(&volume)? == before, "{what}: something was written");
    let owners = scenario.storage.owners("broker1");
    ensure!(owners.is_empty(), "{what}: {owners:?} are let in");
    Ok(())
}

#[test]
fn a_standby_without_the_right_storage_gives_up_and_the_next_one_takes_over() {
    story("a_standby_without_the_right_storage_gives_up_and_the_next_one_takes_over", |lab| {
        let scenario = NfsScenario::begin(lab, &NfsSetup { standbys: 2, ..NfsSetup::default() })?;
        let (first, second) = (scenario.agent(), scenario.standbys.get(1).context("two standbys")?);
        // Who is to take its place watches from the beginning, and a person keeps it back until all has been
        // tried.
        scenario.cli(
            first,
            &["pause", "--broker", "1", "--reason", "trying wrong storage", "--for", "1h"],
            0,
        )?;
        second.start()?;
        second.wait_ready(PATIENCE)?;
        scenario.decided(second, "healthy")?;
        let properties = scenario.server.directory("broker1").join("meta.properties");
        // It takes connections and never says a word.
        let silent = TcpListener::bind("10.77.0.254:2049")?;

        scenario.recovered_after(|| {
            scenario.home.guest().crash()?;
            let held = scenario.decided(second, "hold")?;
            ensure!(held.to_string().contains("paused"), "{held}");
            scenario.cli(first, &["failover", "--broker", "1", "--yes"], 3)?;
            let own = fs::read_to_string(&properties)?;
            let of_another = own.lines().map(|line| match line.split_once('=') {
                Some(("cluster.id", _)) => "cluster.id=QW5vdGhlckNsdXN0ZXItMQ\n".to_owned(),
                _ => format!("{line}\n"),
            });
            fs::write(&properties, of_another.collect::<String>())?;
            gives_up(
                &scenario,
                "the log dir of another cluster is exported there",
                "QW5vdGhlckNsdXN0ZXItMQ",
            )?;
            fs::write(&properties, &own)?;
            // Gone, and not renamed: the server remembers names of files that still are somewhere.
            let user = fs::metadata(&properties)?.uid();
            fs::remove_file(&properties)?;
            gives_up(&scenario, "something else is exported there", "meta.properties")?;
            fs::write(&properties, own)?;
            chown(&properties, Some(user), Some(user))?;
            first.reconfigure(|config| mount_from(config, "10.77.0.250:/broker1/nowhere"))?;
            gives_up(&scenario, "the server refuses the mount", "nowhere")?;
            first.reconfigure(|config| mount_from(config, "10.77.0.254:/broker1"))?;
            gives_up(&scenario, "the server hangs", "hung")?;
            ensure!(kafkas(second.guest())?.is_empty(), "standby-2 did not wait");
            scenario.cli(first, &["resume", "--broker", "1"], 0).map(drop)
        })?;
        drop(silent);
        scenario.decided(second, "healthy")?;
        scenario.ensure_one_owner("standby-2")?;
        scenario.ensure_runs_on(second)?;
        ensure!(scenario.epochs()?.len() == 5, "four gave up, and one took over: {:?}", scenario.epochs()?);
        second.ensure_unit_of(5)?;
        scenario.note_phases(second)?;
        scenario.verdict()?;
        Ok(())
    });
}
