//! What ONTAP says of one SVM. Whatever could not be read is kept with its reason: one refusal hides nothing
//! else.

use std::collections::BTreeMap;
use std::time::Duration;

use ontap::OntapConfig;
use ontap_client::{
    ActiveConnection, Aggregate, Client, ConnectionQuery, Error, Interface, InterfaceQuery, NfsService,
    PolicyRules, Version, Visibility, Volume, VolumeQuery,
};
use recovery::ports::chain;

/// How long one call may take, with its repetitions and pages: ONTAP itself ends a read after 15 s.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(20);

/// Why a fact is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unread {
    /// The account's role, or the platform (FSx for ONTAP), does not show it. That is an answer, not an
    /// error.
    NotVisible(String),
    /// It should have been shown, and was not.
    Failed(String),
}

impl Unread {
    /// In words.
    pub(super) fn why(&self) -> &str {
        match self {
            Self::NotVisible(why) | Self::Failed(why) => why,
        }
    }
}

/// A fact, or why it is not known.
pub(super) type Read<T> = Result<T, Unread>;

/// One SVM, and the system around it.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) release: Read<Version>,
    /// `None`: the SVM has no NFS service.
    pub(super) service: Read<Option<NfsService>>,
    /// Every volume of the SVM, since strangers may share a policy.
    pub(super) volumes: Read<Vec<Volume>>,
    pub(super) policies: Read<Vec<PolicyRules>>,
    /// By volume; `None`: ONTAP does not say.
    pub(super) preserve_unlink: Read<BTreeMap<String, Option<bool>>>,
    /// Those that serve NFS.
    pub(super) lifs: Read<Vec<Interface>>,
    /// Those of NFS.
    pub(super) connections: Read<Vec<ActiveConnection>>,
    pub(super) aggregates: Read<Vec<Aggregate>>,
}

impl Facts {
    /// Reads them: eight requests, however many volumes there are. One goes ahead, since eight wrong
    /// passwords at once might lock the account; the others go side by side.
    pub(super) async fn of(ontap: &OntapConfig, svm: &str) -> Self {
        match ontap.connect(CALL_LIMIT).await {
            Ok(client) => Self::read(&client, svm).await,
            Err(error) => Self::unread(&Unread::Failed(chain(error.as_ref()))),
        }
    }

    /// As [`Facts::of`], by a client that is there already.
    pub(super) async fn read(client: &Client, svm: &str) -> Self {
        let cluster = client.cluster().await;
        if let Err(error) = &cluster
            && (error.is_unauthorized() || matches!(error, Error::Unreachable { .. } | Error::Tls { .. }))
        {
            return Self::unread(&Unread::Failed(chain(error)));
        }
        let which = VolumeQuery { svm: Some(svm), ..VolumeQuery::default() };
        let lifs = InterfaceQuery { svm: Some(svm), service: Some("data_nfs") };
        let nfs = ConnectionQuery { svm, remote_ip: None, service: Some("nfs*") };
        let (service, volumes, policies, preserve_unlink, lifs, connections, aggregates) = tokio::join!(
            client.nfs_service(svm),
            client.volumes(&which),
            client.export_policy_rules(svm),
            client.preserve_unlinks(svm),
            client.interfaces(&lifs),
            client.active_connections(&nfs),
            client.aggregates(),
        );
        Self {
            release: read(cluster).map(|cluster| cluster.version),
            service: read(service),
            volumes: read(volumes),
            policies: read(policies),
            preserve_unlink: read(preserve_unlink),
            lifs: read(lifs),
            connections: seen(connections),
            aggregates: seen(aggregates),
        }
    }

    /// Nothing could be read, for one reason.
    pub(super) fn unread(why: &Unread) -> Self {
        Self {
            release: Err(why.clone()),
            service: Err(why.clone()),
            volumes: Err(why.clone()),
            policies: Err(why.clone()),
            preserve_unlink: Err(why.clone()),
            lifs: Err(why.clone()),
            connections: Err(why.clone()),
            aggregates: Err(why.clone()),
        }
    }
}

/// A call's outcome as a fact.
pub(super) fn read<T>(outcome: ontap_client::Result<T>) -> Read<T> {
    outcome.map_err(|error| unread(&error))
}

/// As [`read`], for what the client itself tells apart.
pub(super) fn seen<T>(outcome: ontap_client::Result<Visibility<T>>) -> Read<T> {
    match read(outcome)? {
        Visibility::Visible(value) => Ok(value),
        Visibility::NotVisible { why } => Err(Unread::NotVisible(why)),
    }
}

fn unread(error: &Error) -> Unread {
    if error.is_not_visible() { Unread::NotVisible(chain(error)) } else { Unread::Failed(chain(error)) }
}
