//! What becomes of open files that are removed, on this client and this server: the reference's validation,
//! by a real Kafka.

use std::time::Duration;

use anyhow::{Context, ensure};
use e2e::history::WriteSpec;
use e2e::nfs::kafka::UNIT;
use e2e::nfs::scenario::{NfsScenario, NfsSetup, kafkas};
use e2e::scenario::PATIENCE;
use e2e::{eventually, story};

const TOPIC: &str = "moved";

#[test]
fn partitions_leave_a_broker_on_nfs() {
    story("partitions_leave_a_broker_on_nfs", |lab| {
        let scenario = NfsScenario::begin(
            lab,
            &NfsSetup { properties: &[("log.segment.delete.delay.ms", "1000")], ..NfsSetup::default() },
        )?;
        let (cluster, home) = (&scenario.cluster, scenario.home.guest());
        let before = kafkas(home)?;
        // What the probe says of this mount, before anything is risked.
        let said = scenario.home.cli(&["check"])?.stdout;
        let verdict = said
            .lines()
            .find(|line| line.contains("silly"))
            .context("`check` says nothing of silly renames")?;
        lab.note(verdict.trim());

        cluster.create_topic(TOPIC, 4, 2, 1)?;
        let writer = cluster.write(WriteSpec::steady(TOPIC, 4, 200))?;
        eventually("records to be acknowledged", PATIENCE, || {
            ensure!(writer.acked() > 1000, "{}", writer.acked());
            Ok(())
        })?;
        let dir = scenario.server.directory("broker1");
        let mine = || -> std::io::Result<Vec<String>> {
            let names = std::fs::read_dir(&dir)?
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned());
            Ok(names.filter(|name| name.starts_with("moved-")).collect())
        };
        cluster.reassign(TOPIC, 4, &[1, 2])?;
        ensure!(mine()?.len() == 4, "{:?}", mine()?);
        // Away from the broker on NFS: it removes what it has open.
        cluster.reassign(TOPIC, 4, &[2, 3])?;
        let mut seen = false;
        let gone = eventually("the partitions to be gone", Duration::from_secs(150), || {
            let left = home.sh("find /srv/kafka/broker1 -name '.nfs*' | head")?;
            seen |= !left.trim().is_empty();
            let left = mine()?;
            ensure!(left.is_empty(), "{left:?} are left");
            Ok(())
        });
        lab.note(format!("files renamed instead of removed: {}", if seen { "seen" } else { "none seen" }));
        lab.note(format!(
            "directories of the partitions: {}",
            if gone.is_ok() { "removed" } else { "left behind" }
        ));
        let offline =
            home.sh(&format!("journalctl --unit={UNIT} --no-pager | grep -c 'LogDirFailure' || true"))?;
        lab.note(format!(
            "Kafka on NFS {}; log dir failures: {}",
            if kafkas(home)? == before { "lives" } else { "has died" },
            offline.trim()
        ));
        // Whatever became of the broker, what was acknowledged is there.
        let history = writer.stop()?;
        cluster.verify(&[&history])?.ensure_clean()?;
        gone?;
        ensure!(kafkas(home)? == before, "Kafka has died of it");
        scenario.verdict()?;
        Ok(())
    });
}
