//! `understudy ontap efficiency`: how many bytes Kafka's data take as clients count them, and how many on the
//! disks.
//!
//! TR-4947 tells what efficiency saves by aggregate: 420.3 GB logical in 281.7 GB physical. It calls that
//! 1.70:1; the two numbers are 1.49:1. Here the ratio is ONTAP's own, and the bytes stand beside it.

use std::fmt;

use ontap_client::{Aggregate, Efficiency, Volume};
use recovery::model::BrokerId;
use serde::Serialize;
use tokio::task::JoinSet;

use super::facts::{Facts, Unread};
use super::provision::size;
use super::sites::{Site, sites};
use crate::UsageError;
use crate::cli::Global;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::print;

/// Logical and physical bytes, and their ratio. What ONTAP does not say is not there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
struct Saving {
    /// As clients count them.
    logical_bytes: Option<u64>,
    /// On the disks.
    physical_bytes: Option<u64>,
    /// Logical bytes for each physical one.
    ratio: Option<f64>,
}

impl Saving {
    /// `said`: ONTAP's own ratio, which is missing on some releases.
    fn of(logical_bytes: Option<u64>, physical_bytes: Option<u64>, said: Option<f64>) -> Self {
        let computed = || Some(logical_bytes? as f64 / physical_bytes.filter(|bytes| *bytes > 0)? as f64);
        Self { logical_bytes, physical_bytes, ratio: said.filter(|ratio| *ratio > 0.0).or_else(computed) }
    }

    fn is_known(&self) -> bool {
        self.logical_bytes.is_some() && self.physical_bytes.is_some()
    }
}

/// Where volumes of brokers lie. Others' volumes on it count in.
#[derive(Debug, Serialize)]
struct OfAggregate {
    ontap: String,
    aggregate: String,
    /// Snapshots and clones counted in.
    total: Saving,
    /// Without them: what efficiency itself saves. ONTAP 9.9.
    data: Option<Saving>,
}

/// A broker's volume.
#[derive(Debug, Serialize)]
struct OfVolume {
    svm: String,
    broker: BrokerId,
    volume: String,
    saving: Saving,
}

/// What is not told.
#[derive(Debug, Serialize)]
struct Missing {
    what: String,
    why: String,
    /// The role or the platform does not show it; otherwise it is an error.
    not_visible: bool,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    aggregates: Vec<OfAggregate>,
    volumes: Vec<OfVolume>,
    missing: Vec<Missing>,
}

pub(super) async fn run(global: &Global, config: &Config) -> anyhow::Result<Exit> {
    let (sites, _) = sites(config);
    if sites.is_empty() {
        let why = "no broker has a [broker.storage.grant], so there is no volume to look at; add one to each";
        return Err(UsageError(why.to_owned()).into());
    }
    let mut looks = JoinSet::new();
    for (place, site) in sites.into_iter().enumerate() {
        looks.spawn(async move {
            let facts = Facts::of(&site.ontap, &site.svm).await;
            (place, site, facts)
        });
    }
    let mut seen = looks.join_all().await;
    seen.sort_by_key(|(place, ..)| *place);
    let mut report = Report::default();
    for (_, site, facts) in &seen {
        measure(&mut report, site, facts);
    }
    print(&report, global.output)?;
    let failed = report.missing.iter().any(|missing| !missing.not_visible);
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// What one SVM adds to the report. Pure.
fn measure(report: &mut Report, site: &Site, facts: &Facts) {
    let svm = &site.svm;
    let mut used: Vec<&str> = Vec::new();
    match &facts.volumes {
        Ok(all) => {
            for broker in &site.brokers {
                for name in &broker.volumes {
                    let Some(volume) = all.iter().find(|volume| volume.name == *name) else {
                        report.error(format!("volume {name} of {svm}"), "there is none of this name");
                        continue;
                    };
                    used.extend(volume.aggregates.iter().filter_map(|one| one.name.as_deref()));
                    report.volume(svm, broker.id, volume);
                }
            }
        }
        Err(why) => report.unread(format!("volumes of {svm}"), why),
    }
    match &facts.aggregates {
        Ok(all) => {
            let ours = all.iter().filter(|aggregate| used.contains(&aggregate.name.as_str()));
            ours.for_each(|aggregate| report.aggregate(&site.ontap.url, aggregate));
        }
        Err(why) => report.unread(format!("aggregates of {}", site.ontap.url), why),
    }
}

impl Report {
    fn error(&mut self, what: String, why: &str) {
        self.missing.push(Missing { what, why: why.to_owned(), not_visible: false });
    }

    fn unread(&mut self, what: String, why: &Unread) {
        let not_visible = matches!(why, Unread::NotVisible(_));
        // Several SVMs may lie on one system.
        if !self.missing.iter().any(|missing| missing.what == what) {
            self.missing.push(Missing { what, why: why.why().to_owned(), not_visible });
        }
    }

    fn volume(&mut self, svm: &str, broker: BrokerId, volume: &Volume) {
        let space = &volume.space;
        let said = volume.efficiency.as_ref().and_then(|efficiency| efficiency.ratio);
        let saving = Saving::of(space.logical_space.used_bytes, space.physical_used_bytes, said);
        let (svm, volume) = (svm.to_owned(), volume.name.clone());
        self.volumes.push(OfVolume { svm, broker, volume, saving });
    }

    fn aggregate(&mut self, ontap: &str, aggregate: &Aggregate) {
        if self.aggregates.iter().any(|known| known.ontap == ontap && known.aggregate == aggregate.name) {
            return;
        }
        let saving = |of: &Efficiency| Saving::of(of.logical_used_bytes, of.physical_used_bytes(), of.ratio);
        let space = &aggregate.space;
        self.aggregates.push(OfAggregate {
            ontap: ontap.to_owned(),
            aggregate: aggregate.name.clone(),
            total: space.efficiency.as_ref().map(saving).unwrap_or_default(),
            data: space.efficiency_without_snapshots_flexclones.as_ref().map(saving),
        });
    }
}

impl fmt::Display for Saving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), size);
        write!(f, "{} logical in {} physical", bytes(self.logical_bytes), bytes(self.physical_bytes))?;
        match self.ratio {
            Some(ratio) => write!(f, ", {ratio:.2}:1"),
            None if self.is_known() => Ok(()),
            None => f.write_str(" (ONTAP does not say all of it)"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for one in &self.aggregates {
            writeln!(f, "aggregate {} ({}): {}", one.aggregate, one.ontap, one.total)?;
            if let Some(data) = &one.data {
                writeln!(f, "  without snapshots and clones: {data}")?;
            }
        }
        for one in &self.volumes {
            writeln!(f, "volume {} ({}, broker {}): {}", one.volume, one.svm, one.broker, one.saving)?;
        }
        for Missing { what, why, not_visible } in &self.missing {
            writeln!(f, "{}: {what}: {why}", if *not_visible { "not visible" } else { "FAILED" })?;
        }
        if !self.aggregates.is_empty() {
            writeln!(f, "An aggregate counts all volumes on it, not the brokers' alone.")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::super::sites::Guarded;
    use super::*;

    fn of<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn site() -> Site {
        let broker = Guarded { id: BrokerId(1), volumes: vec!["kafka01".to_owned()], mounts: Vec::new() };
        Site { ontap: of(json!({ "url": "https://c" })), svm: "svm1".to_owned(), brokers: vec![broker] }
    }

    /// The numbers of TR-4947, in bytes.
    fn facts() -> Facts {
        let hidden = Unread::NotVisible("not asked".to_owned());
        let aggregate = |name: &str| {
            json!({ "uuid": name, "name": name, "space": {
                "efficiency": { "logical_used": 420_300_000_000_u64, "ratio": 1.492 },
            } })
        };
        Facts {
            volumes: Ok(vec![of(json!({
                "uuid": "v", "name": "kafka01", "aggregates": [{ "name": "aggr1" }],
                "space": { "physical_used": 50, "logical_space": { "used": 100 } },
            }))]),
            aggregates: Ok(vec![of(aggregate("aggr1")), of(aggregate("another"))]),
            ..Facts::unread(&hidden)
        }
    }

    #[test]
    fn bytes_and_ratio_of_the_aggregates_that_brokers_lie_on() {
        let mut report = Report::default();
        measure(&mut report, &site(), &facts());
        // A second SVM on the same aggregate does not count it again.
        measure(&mut report, &site(), &facts());
        let [aggregate] = &report.aggregates[..] else { panic!("{report:#?}") };
        let physical = aggregate.total.physical_bytes.unwrap();
        assert!(physical.abs_diff(281_700_000_000) < 100_000_000, "{physical}");
        assert_eq!(aggregate.total.ratio, Some(1.492));
        // Not told by ONTAP, so computed.
        assert_eq!(report.volumes[0].saving.ratio, Some(2.0));
        let text = report.to_string();
        assert!(text.contains("391.4 GiB logical in 262.4 GiB physical, 1.49:1"), "{text}");
    }

    #[test]
    fn what_is_not_there_is_not_made_up() {
        let mut facts = facts();
        facts.aggregates = Err(Unread::NotVisible("FSx shows none".to_owned()));
        facts.volumes = Ok(vec![of(json!({ "uuid": "v", "name": "kafka01" }))]);
        let mut report = Report::default();
        measure(&mut report, &site(), &facts);
        assert_eq!((report.volumes[0].saving, report.missing.len()), (Saving::default(), 1));
        let text = report.to_string();
        assert!(text.contains("? logical in ? physical (ONTAP does not say all of it)"), "{text}");
        assert!(text.contains("not visible: aggregates of https://c: FSx shows none"), "{text}");
        facts.volumes = Ok(Vec::new());
        let mut report = Report::default();
        measure(&mut report, &site(), &facts);
        assert!(report.missing.iter().any(|missing| !missing.not_visible), "{report:#?}");
    }
}
