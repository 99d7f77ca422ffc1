//! What was asked for, checked: names, sizes and owners of every broker's volumes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::UsageError;
use crate::cli::{Provision, Style};

/// ONTAP's smallest FlexVol, in bytes (20 MB).
const SMALLEST_FLEXVOL: u64 = 20 << 20;

/// ONTAP's smallest constituent of a FlexGroup by REST, in bytes (200 MB).
const SMALLEST_CONSTITUENT: u64 = 200 << 20;

/// ONTAP's longest names of a FlexVol and of a FlexGroup, whose constituents' names have a suffix.
const LONGEST_FLEXVOL_NAME: usize = 203;
const LONGEST_FLEXGROUP_NAME: usize = 197;

/// Storage for brokers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) svm: String,
    pub(super) brokers: Vec<WantedBroker>,
    pub(super) aggregates: Vec<String>,
    /// Of each volume.
    pub(super) size_bytes: u64,
    pub(super) style: Style,
    pub(super) constituents_per_aggregate: u32,
}

/// One broker's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WantedBroker {
    pub(super) id: i32,
    /// Its export policy.
    pub(super) policy: String,
    /// By which its owner mounts.
    pub(super) owners: Vec<IpAddr>,
    /// Names of its volumes. Each is mounted in the SVM at `/` and its name.
    pub(super) volumes: Vec<String>,
}

impl Wanted {
    /// Checks the options.
    ///
    /// # Errors
    /// Everything that is wrong with them, at once.
    pub(super) fn of(options: &Provision, svm: &str) -> Result<Self, UsageError> {
        let brokers = options.brokers.iter().map(|owner| WantedBroker {
            id: owner.broker,
            policy: fill(&options.policy, owner.broker, None),
            owners: owner.addresses.clone(),
            volumes: (1..=options.volumes_per_broker)
                .map(|n| fill(&options.name, owner.broker, Some(n)))
                .collect(),
        });
        let wanted = Self {
            svm: svm.to_owned(),
            brokers: brokers.collect(),
            aggregates: options.aggregates.clone(),
            size_bytes: options.size,
            style: options.style,
            constituents_per_aggregate: options.constituents_per_aggregate,
        };
        let problems = wanted.problems();
        if problems.is_empty() { Ok(wanted) } else { Err(UsageError(problems.join("\n"))) }
    }

    /// How many constituents a FlexGroup gets.
    fn constituents(&self) -> u64 {
        self.aggregates.len() as u64 * u64::from(self.constituents_per_aggregate)
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(id) = twice(self.brokers.iter().map(|broker| broker.id)) {
            problems.push(format!(
                "--broker: {id} is named twice; list its addresses in one: {id}=ADDRESS,ADDRESS"
            ));
        }
        if let Some(name) = twice(self.aggregates.iter()) {
            problems.push(format!("--aggregate: {name} is named twice; name each once"));
        }
        if self.brokers.iter().any(|broker| broker.volumes.is_empty()) {
            problems.push("--volumes-per-broker: 0 volumes hold nothing; give 1 or more".to_owned());
        }
        let names = || self.brokers.iter().flat_map(|broker| &broker.volumes);
        if let Some(name) = twice(names()) {
            let remedy =
                "use {broker} where there are several brokers, and {n} where there are several volumes";
            problems.push(format!("--name: makes `{name}` twice; {remedy}"));
        }
        if let Some(name) = names().find(|name| !self.is_volume_name(name)) {
            problems.push(format!(
                "--name: `{name}` cannot be the name of a volume; ONTAP takes letters, digits and `_`, not beginning with \
                 a digit, and at most {} of them",
                self.longest_name()
            ));
        }
        if let Some(name) = twice(self.brokers.iter().map(|broker| &broker.policy)) {
            problems.push(format!(
                "--policy: makes `{name}` twice; use {{broker}}: each broker is fenced by its own"
            ));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let odd = |name: &&str| name.is_empty() || *name == "default" || !name.chars().all(plain);
        if let Some(name) = self.brokers.iter().map(|broker| broker.policy.as_str()).find(odd) {
            let remedy = "use letters, digits, `_`, `-` and `.`; `default` is that of every other volume";
            problems.push(format!("--policy: `{name}` cannot be a broker's export policy; {remedy}"));
        }
        problems.extend(self.size_problem());
        problems
    }

    fn longest_name(&self) -> usize {
        if self.style == Style::Flexgroup { LONGEST_FLEXGROUP_NAME } else { LONGEST_FLEXVOL_NAME }
    }

    fn is_volume_name(&self, name: &str) -> bool {
        let begins = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        begins
            && name.len() <= self.longest_name()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    fn size_problem(&self) -> Option<String> {
        let (least, what) = match self.style {
            Style::Flexvol => (SMALLEST_FLEXVOL, "a FlexVol".to_owned()),
            Style::Flexgroup if self.constituents_per_aggregate == 0 => {
                return Some("--constituents-per-aggregate: 0 hold nothing; give 1 or more".to_owned());
            }
            Style::Flexgroup => {
                let count = self.constituents();
                (count.saturating_mul(SMALLEST_CONSTITUENT), format!("a FlexGroup of {count} constituents"))
            }
        };
        (self.size_bytes < least).then(|| format!("--size: {what} has at least {}; give more", size(least)))
    }
}

/// The first that comes a second time.
fn twice<T: Ord + Clone>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let mut seen = BTreeSet::new();
    items.find(|item| !seen.insert(item.clone()))
}

fn fill(pattern: &str, broker: i32, n: Option<u16>) -> String {
    let filled = pattern.replace("{broker}", &broker.to_string());
    n.map_or(filled.clone(), |n| filled.replace("{n}", &n.to_string()))
}

/// `1.5 TiB`, `100 GiB`: for people.
pub(in super::super) fn size(bytes: u64) -> String {
    let units = [("PiB", 50_u32), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >= 1 << shift) {
        Some((unit, shift)) => {
            // Tenths, rounded to the nearest.
            let tenths = (u128::from(bytes) * 10 + (1 << (shift - 1))) >> shift;
            match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                rest => format!("{}.{rest} {unit}", tenths / 10),
            }
        }
        None => format!("{bytes} bytes"),
    }
}
