//! The scratch volume and its export policy. They have one name, so that what a broken run left is found by
//! the next.

use std::net::IpAddr;
use std::time::Duration;

use ontap_client::{Client, NewExportRule, NewVolume, VolumeChange};
use recovery::ports::chain;
use tokio::time::{Instant, sleep};

use super::finding::{Assumption, Findings};

/// Of the volume, of its policy, and of its junction.
pub(super) const NAME: &str = "understudy_verify";

/// Small, and above every platform's least.
const SIZE: u64 = 1 << 30;

/// How to take it away by hand, in this order: whole commands for ONTAP's command line.
fn by_hand(svm: &str) -> String {
    let volume = |verb: &str| format!("`volume {verb} -vserver {svm} -volume {NAME}`");
    let policy = format!("`vserver export-policy delete -vserver {svm} -policyname {NAME}`");
    [volume("unmount"), volume("offline"), volume("delete"), policy].join(", ")
}

/// Says whose a volume of this name is.
const COMMENT: &str = "made by `understudy ontap verify --try`, which deletes it";

/// Something that was made.
#[derive(Debug, Default)]
enum Made<K> {
    /// ONTAP was not told to.
    #[default]
    Not,
    /// By its key.
    Known(K),
    /// ONTAP was told to make it, and has not told what came of it.
    Unsure,
}

impl<K> Made<K> {
    fn of<T>(answer: &ontap_client::Result<T>, key: impl FnOnce(&T) -> K) -> Self {
        match answer {
            Ok(made) => Self::Known(key(made)),
            Err(error) if error.is_unconfirmed() => Self::Unsure,
            Err(_) => Self::Not,
        }
    }
}

/// What was made so far.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    policy: Made<u64>,
    volume: Made<String>,
}

impl Scratch {
    /// Whether nothing has that name: what there is is left alone.
    ///
    /// # Errors
    /// In words, with what to do.
    pub(super) async fn is_free(client: &Client, svm: &str) -> Result<(), String> {
        let volume = client.volume(svm, NAME).await.map_err(|error| chain(&error))?;
        let policy = client.export_policy(svm, NAME).await.map_err(|error| chain(&error))?;
        if volume.is_none() && policy.is_none() {
            return Ok(());
        }
        Err(format!(
            "there is something named {NAME} in {svm} already, which a run that broke off may have left. See that \
             nobody needs \
             it, and take it away: {}",
            by_hand(svm)
        ))
    }

    /// Makes both, the policy with one rule for `owner`. What was made before something failed is in `self`.
    ///
    /// # Errors
    /// In words.
    pub(super) async fn make(
        &mut self,
        client: &Client,
        (svm, aggregate): (&str, &str),
        owner: IpAddr,
        findings: &mut Findings,
    ) -> Result<(), String> {
        let said = |error: ontap_client::Error| chain(&error);
        let policy = client.create_export_policy(svm, NAME, &[]).await;
        self.policy = Made::of(&policy, |policy| policy.id);
        let id = policy.map_err(said)?.id;
        match client.export_rules(id).await {
            Ok(rules) if rules.is_empty() => {
                findings.holds(Assumption::EmptyPolicy, "is answered as one without rules");
            }
            Ok(rules) => {
                findings.differs(Assumption::EmptyPolicy, format!("a new policy has {} rules", rules.len()));
            }
            Err(error) => findings.differs(Assumption::EmptyPolicy, chain(&error)),
        }
        let owner = owner.to_string();
        client.create_export_rule(id, &NewExportRule::nfs4(&[&owner])).await.map_err(said)?;
        let new = NewVolume {
            size_bytes: Some(SIZE),
            junction: Some(format!("/{NAME}")),
            export_policy: Some(NAME.to_owned()),
            security_style: Some("unix".to_owned()),
            snapshot_policy: Some("none".to_owned()),
            comment: Some(COMMENT.to_owned()),
            ..NewVolume::new(svm, NAME, aggregate)
        };
        let volume = client.create_volume(&new).await;
        self.volume = Made::of(&volume, |volume| volume.uuid.clone());
        volume.map(drop).map_err(said)
    }

    /// Takes away what was made, and reads back that it is gone. A volume that ONTAP may be making still is
    /// waited for.
    pub(super) async fn clean(
        self,
        client: &Client,
        (svm, patience): (&str, Duration),
        findings: &mut Findings,
    ) {
        let (mut failed, mut unsure) = (Vec::new(), false);
        let uuid = match self.volume {
            Made::Not => None,
            Made::Known(uuid) => Some(uuid),
            Made::Unsure => {
                let late = late_volume(client, svm, patience).await;
                unsure |= late.is_none();
                late
            }
        };
        if let Some(uuid) = &uuid {
            let unmount = VolumeChange { junction: Some(""), ..VolumeChange::default() };
            failed.extend(client.update_volume(uuid, &unmount).await.err());
            failed.extend(client.delete_volume(uuid).await.err());
        }
        let policy = match self.policy {
            Made::Not => None,
            Made::Known(id) => Some(id),
            // It is made by the request itself, not by a job.
            Made::Unsure => client.export_policy(svm, NAME).await.ok().flatten().map(|policy| policy.id),
        };
        if let Some(id) = policy {
            failed.extend(client.delete_export_policy(id).await.err());
        }
        let left = match (client.volume(svm, NAME).await, client.export_policy(svm, NAME).await) {
            (Ok(None), Ok(None)) if unsure => format!(
                "ONTAP was told to make it, has not said what came of it, and within {} s shows none",
                patience.as_secs()
            ),
            (Ok(None), Ok(None)) => {
                return findings.holds(Assumption::CleanedUp, format!("{NAME} is gone again"));
            }
            (Err(error), _) | (_, Err(error)) => chain(&error),
            _ => failed.iter().map(|error| chain(error)).collect::<Vec<_>>().join("; "),
        };
        findings.differs(
            Assumption::CleanedUp,
            format!("{NAME} may be there still ({left}). Take it away: {}", by_hand(svm)),
        );
    }
}

/// The key of our volume, once it comes. There was none of that name before.
async fn late_volume(client: &Client, svm: &str, patience: Duration) -> Option<String> {
    let begun = Instant::now();
    while begun.elapsed() < patience {
        if let Ok(Some(volume)) = client.volume(svm, NAME).await {
            return (volume.comment.as_deref() == Some(COMMENT)).then_some(volume.uuid);
        }
        sleep(Duration::from_secs(1)).await;
    }
    None
}
