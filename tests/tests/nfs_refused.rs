//! A standby that cannot have the right storage gives up, having written nothing, and another one takes its place.

use anyhow::{Context, ensure};
use e2e::nfs::scenario::{NfsScenario, NfsSetup, kafkas, mount_from};
use e2e::scenario::contents;
use e2e::story;

/// What is mounted instead, and what a person is told of it.
const CASES: [(&str, &str, &str); 4] = [
    ("the server refuses the mount", "10.77.0.250:/secret", "mount"),
    ("another directory is exported there", "10.77.0.250:/empty", "meta.properties"),
    ("the log dir of another cluster is exported there", "10.77.0.250:/foreign", "cluster"),
    ("the server hangs", "10.77.0.251:/broker1", "hung"),
];

#[test]
fn a_standby_without_the_right_storage_gives_up_and_the_next_one_takes_over() {
    story("a_standby_without_the_right_storage_gives_up_and_the_next_one_takes_over", |lab| {
        let setup = NfsSetup { standbys: 2, exports: &["empty", "foreign"], ..NfsSetup::default() };
        let scenario = NfsScenario::begin(lab, &setup)?;
        let (server, first) = (&scenario.server, scenario.agent());
        let own = std::fs::read_to_string(server.directory("broker1").join("meta.properties"))?;
        let foreign = own.lines().map(|line| match line.split_once('=') {
            Some(("cluster.id", _)) => "cluster.id=QW5vdGhlckNsdXN0ZXItMQ\n".to_owned(),
            _ => format!("{line}\n"),
        });
        std::fs::write(server.directory("foreign").join("meta.properties"), foreign.collect::<String>())?;
        let wrong = || Ok::<_, anyhow::Error>((contents(&server.directory("empty"))?, contents(&server.directory("foreign"))?));
        let before = wrong()?;

        scenario.recovered_after(|| {
            scenario.home.guest().crash()?;
            for (what, source, words) in CASES {
                lab.note(what);
                first.reconfigure(|config| mount_from(config, source))?;
                let tried = first.cli(&["failover", "--broker", "1", "--yes"])?;
                let said = tried.stdout + &tried.stderr;
                ensure!(tried.code == 4, "{what}: exit code {}:\n{said}", tried.code);
                ensure!(said.contains(words), "{what}: a person is not told {words:?}:\n{said}");
                ensure!(kafkas(first.guest())?.is_empty(), "{what}: Kafka was started");
                ensure!(wrong()? == before, "{what}: something was written");
                let owners = scenario.storage.owners("broker1");
                ensure!(owners.is_empty(), "{what}: {owners:?} are let in");
            }
            // The first standby is still configured so, and its daemon tries first.
            scenario.start_agents()
        })?;
        let second = scenario.standbys.get(1).context("two standbys")?;
        scenario.decided(second, "healthy")?;
        scenario.ensure_one_owner("standby-2")?;
        scenario.ensure_runs_on(second)?;
        scenario.note_phases(second)?;
        scenario.verdict()?;
        Ok(())
    });
}
