//! The SVMs that the configuration fences by, each with the accounts that a takeover uses there.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::config::FenceConfig;
use hyper::Uri;
use ontap::OntapConfig;

use crate::UsageError;
use crate::cli::Verify;
use crate::config::Config;
use crate::output::say;

/// One SVM that fences or grants name.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// How the fence logs in; the grant, where there is no fence.
    pub(super) fence: OntapConfig,
    /// How the grant logs in; the fence, where there is no grant.
    pub(super) grant: OntapConfig,
    pub(super) svm: String,
    /// Volumes of brokers.
    pub(super) volumes: BTreeSet<String>,
    /// Addresses by which hosts mount them.
    pub(super) addresses: BTreeSet<IpAddr>,
}

/// Who logs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Fence,
    Grant,
}

/// What one fence or grant names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) role: Role,
    pub(super) ontap: &'a OntapConfig,
    pub(super) svm: &'a str,
    pub(super) volumes: &'a [String],
    pub(super) addresses: &'a [IpAddr],
}

/// Everything that is named of one SVM.
struct Group<'a> {
    origin: String,
    svm: &'a str,
    named: Vec<Named<'a>>,
}

/// The SVMs that the configuration fences by; one of them where something is tried.
pub(super) fn chosen(config: &Config, options: &Verify) -> Result<Vec<Place>, UsageError> {
    let fences = config.fences.values().flatten().filter_map(|fence| match fence {
        FenceConfig::OntapExport(export) => Some(Named {
            role: Role::Fence,
            ontap: &export.ontap,
            svm: &export.svm,
            volumes: &export.volumes,
            addresses: &export.addresses,
        }),
        _ => None,
    });
    let grants =
        config.brokers.values().filter_map(|broker| broker.storage.as_ref()?.grant()).map(|grant| Named {
            role: Role::Grant,
            ontap: &grant.ontap,
            svm: &grant.svm,
            volumes: &grant.volumes,
            addresses: &grant.addresses,
        });
    places(fences.chain(grants), options)
}

/// Fences and grants of one SVM are one place, whatever accounts they use and however they spell its address.
pub(super) fn places<'a>(
    named: impl Iterator<Item = Named<'a>>,
    options: &Verify,
) -> Result<Vec<Place>, UsageError> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for one in named.filter(|one| options.svm.as_ref().is_none_or(|svm| svm == one.svm)) {
        let origin = origin(&one.ontap.place());
        match groups.iter_mut().find(|group| group.origin == origin && group.svm == one.svm) {
            Some(group) => group.named.push(one),
            None => groups.push(Group { origin, svm: one.svm, named: vec![one] }),
        }
    }
    match (&groups[..], &options.svm) {
        ([], Some(svm)) => {
            Err(UsageError(format!("--svm: no fence and no grant of the configuration names {svm}")))
        }
        ([], None) => Err(UsageError(
            "the configuration has no fence `ontap_export` and no [broker.storage.grant]".to_owned(),
        )),
        ([_, _, ..], _) if options.r#try => {
            let names: Vec<String> =
                groups.iter().map(|group| format!("{} at {}", group.svm, group.origin)).collect();
            Err(UsageError(format!("--svm: is missing; --try is for one of {}", names.join(", "))))
        }
        _ => Ok(groups.iter().filter_map(Group::place).collect()),
    }
}

impl Group<'_> {
    fn place(&self) -> Option<Place> {
        let first = |role| self.named.iter().find(|one| one.role == role).map(|one| one.ontap);
        let any = self.named.first()?.ontap;
        let fence = first(Role::Fence).or(first(Role::Grant)).unwrap_or(any);
        let grant = first(Role::Grant).unwrap_or(fence);
        let others =
            self.named.iter().filter(|one| one.ontap.user != fence.user && one.ontap.user != grant.user);
        let others: BTreeSet<&str> = others.filter_map(|one| one.ontap.user.as_deref()).collect();
        if !others.is_empty() {
            let others = others.into_iter().collect::<Vec<_>>().join(", ");
            say(format!("{}: not verified for {others}, which the configuration names too", self.svm));
        }
        Some(Place {
            fence: fence.clone(),
            grant: grant.clone(),
            svm: self.svm.to_owned(),
            volumes: self.named.iter().flat_map(|one| one.volumes).cloned().collect(),
            addresses: self.named.iter().flat_map(|one| one.addresses).map(IpAddr::to_canonical).collect(),
        })
    }
}

/// Host and port, however they are spelled.
fn origin(url: &str) -> String {
    let Ok(parsed) = url.trim().parse::<Uri>() else { return url.to_owned() };
    let host = parsed.host().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
    format!("{host}:{}", parsed.port_u16().unwrap_or(443))
}
