//! Storage whose volumes are on ONTAP: this host is let in, and a snapshot is taken before.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drivers::certificate::CertificateFile;
use recovery::model::BrokerId;
use recovery::ports::Storage;

use crate::clients::Watched;
use crate::granted::Granted;
use crate::snapshotted::Snapshotted;
use crate::{OntapConfig, OntapGrantConfig, SnapshotConfig};

/// How a broker's log dirs come to this host.
pub type StorageConfig = drivers::storage::StorageConfig<OntapGrantConfig, SnapshotConfig>;

/// The driver for a broker with these log dirs, ready to use. `program`: see
/// [`drivers::storage::StorageConfig::build`].
///
/// # Errors
/// Every bad value, as `key: what is wrong`.
pub fn build(
    config: StorageConfig,
    broker: BrokerId,
    log_dirs: Vec<PathBuf>,
    program: &Path,
) -> Result<Arc<dyn Storage>, Vec<String>> {
    let mut problems = Vec::new();
    let sources = config.sources();
    let (grant, snapshot) = (config.grant().cloned(), config.snapshot().cloned());
    let known = !sources.is_empty() && sources.iter().all(|source| source.contains(":/"));
    if grant.as_ref().is_some_and(|grant| grant.paths.is_empty()) && !known {
        // Else nobody would know whether the log dirs are in the volumes that change hands.
        problems.push(
            "source: write `server:/path` of what is mounted (or `paths` in the grant), to compare it with the \
             grant's volumes"
                .to_owned(),
        );
    }
    let storage = config.build(log_dirs, program).map_err(|said| problems.extend(said)).ok();
    let snapshots = snapshot.map(|snapshot| snapshot.build(broker, grant.as_ref())).transpose();
    let snapshots = within("snapshot", snapshots, &mut problems);
    let grant = within("grant", grant.map(|grant| grant.build(&sources)).transpose(), &mut problems);
    let Some(mut storage) = storage.filter(|_| problems.is_empty()) else { return Err(problems) };
    if let Some(grant) = grant {
        storage = Arc::new(Granted { grant, inner: storage });
    }
    if let Some(snapshots) = snapshots {
        // Outermost, so that it is taken while nobody is let in.
        storage = Arc::new(Snapshotted { snapshots, inner: storage });
    }
    Ok(storage)
}

/// What ONTAP is told before the log dirs are attached, in order, for people to read.
#[must_use]
pub fn admission(config: &StorageConfig) -> Vec<String> {
    let (grant, snapshot) = (config.grant(), config.snapshot());
    let volumes = snapshot.and_then(|own| own.volumes.as_ref()).or(grant.map(|grant| &grant.volumes));
    let taken = snapshot.map(|_| match volumes {
        Some(volumes) => format!("take a snapshot of {}", volumes.join(", ")),
        None => "take a snapshot of its volumes".to_owned(),
    });
    let admitted = grant.map(|grant| {
        let addresses: Vec<String> = grant.addresses.iter().map(ToString::to_string).collect();
        format!("let {} in to {} of {}", addresses.join(", "), grant.volumes.join(", "), grant.svm)
    });
    taken.into_iter().chain(admitted).collect()
}

/// Where the volumes of `broker` are, if its grant says so, or else its snapshots.
#[must_use]
pub fn watched(config: &StorageConfig, broker: BrokerId) -> Option<Watched> {
    let (ontap, svm, volumes) = match (config.grant(), config.snapshot()) {
        (Some(grant), _) => (grant.ontap.clone(), grant.svm.clone(), grant.volumes.clone()),
        (None, Some(own)) => (own.ontap.clone()?, own.svm.clone()?, own.volumes.clone()?),
        (None, None) => return None,
    };
    Some(Watched { broker, ontap, svm, volumes })
}

/// The files with certificates that the grant and the snapshots need.
#[must_use]
pub fn certificates(config: &StorageConfig) -> Vec<CertificateFile> {
    let snapshot = config.snapshot().and_then(|snapshot| snapshot.ontap.as_ref());
    let systems = config.grant().map(|grant| &grant.ontap).into_iter().chain(snapshot);
    systems.flat_map(OntapConfig::certificates).collect()
}

/// The addresses by which this host mounts the volumes, as its grant has them.
#[must_use]
pub fn addresses(config: &StorageConfig) -> Vec<IpAddr> {
    config.grant().map(|grant| grant.addresses.clone()).unwrap_or_default()
}

/// What a section inside this one makes, or its problems with the section's name before them.
fn within<T>(section: &str, built: Result<Option<T>, Vec<String>>, problems: &mut Vec<String>) -> Option<T> {
    let said = |said: Vec<String>| problems.extend(said.iter().map(|text| format!("{section}.{text}")));
    built.map_err(said).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYSTEM: &str =
        "ontap = { url = \"https://192.0.2.1\", user = \"kafka\", password_file = \"/etc/ontap\" }\n";

    fn told(sections: &str) -> Vec<String> {
        admission(&toml::from_str(&format!("driver = \"mounted\"\n{sections}")).unwrap())
    }

    #[test]
    fn a_plan_can_say_what_ontap_is_told_before_anything_is_mounted() {
        let grant = format!(
            "[grant]\n{SYSTEM}svm = \"svm1\"\nvolumes = [\"k1\", \"k2\"]\naddresses = [\"10.0.0.9\"]\n"
        );
        let admitted = "let 10.0.0.9 in to k1, k2 of svm1";
        assert_eq!(told(""), Vec::<String>::new());
        assert_eq!(told(&grant), [admitted]);
        assert_eq!(told(&format!("{grant}[snapshot]\n")), ["take a snapshot of k1, k2", admitted]);
        let own = format!("{SYSTEM}svm = \"svm1\"\nvolumes = [\"k3\"]\n");
        assert_eq!(told(&format!("[snapshot]\n{own}")), ["take a snapshot of k3"]);
    }
}
