//! Which volumes the commands are about: those of every broker's `[broker.storage.grant]`.

use drivers::storage::MountConfig;
use ontap::OntapConfig;
use ontap::storage::StorageConfig;
use recovery::model::BrokerId;

use crate::config::Config;

/// One SVM, with the brokers whose volumes it holds.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) ontap: OntapConfig,
    pub(super) svm: String,
    /// In the order of their ids.
    pub(super) brokers: Vec<Guarded>,
}

/// A broker on it.
#[derive(Debug, Clone)]
pub(super) struct Guarded {
    pub(super) id: BrokerId,
    /// All of its volumes, by name.
    pub(super) volumes: Vec<String>,
    /// How this host would mount them. Empty where somebody else does.
    pub(super) mounts: Vec<MountConfig>,
}

/// The SVMs of the configuration, and the brokers without a grant: nothing here knows their volumes.
pub(super) fn sites(config: &Config) -> (Vec<Site>, Vec<BrokerId>) {
    let (mut sites, mut uncovered): (Vec<Site>, _) = (Vec::new(), Vec::new());
    for (id, broker) in &config.brokers {
        let storage = broker.storage.as_ref();
        let Some(grant) = storage.and_then(StorageConfig::grant) else {
            uncovered.push(*id);
            continue;
        };
        let mounts = match storage {
            Some(StorageConfig::Nfs(nfs)) => nfs.mount.clone(),
            Some(StorageConfig::Mounted(_)) | None => Vec::new(),
        };
        let guarded = Guarded { id: *id, volumes: grant.volumes.clone(), mounts };
        // One SVM is read once, though several brokers name it.
        match sites.iter_mut().find(|site| site.ontap == grant.ontap && site.svm == grant.svm) {
            Some(site) => site.brokers.push(guarded),
            None => {
                let (ontap, svm) = (grant.ontap.clone(), grant.svm.clone());
                sites.push(Site { ontap, svm, brokers: vec![guarded] });
            }
        }
    }
    (sites, uncovered)
}
