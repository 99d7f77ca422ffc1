//! What a plan does: plain data, and carrying it out. Each act reads before it changes, and reads back.

use std::net::IpAddr;

use ontap_client::{Client, Error, ExportRule, NewExportRule, NewVolume, Volume, VolumeChange, VolumeStyle};
use recovery::ports::{BoxError, chain};

use super::volumes::ROUNDING_PERCENT;

/// One change. Doing it again, when it is done, is left to a new plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    /// A policy with its one rule.
    CreatePolicy {
        policy: String,
        clients: Vec<IpAddr>,
    },
    /// The one rule of a policy that has none.
    CreateRule {
        policy: String,
        clients: Vec<IpAddr>,
    },
    /// More addresses of the same owner, in the rule as it was read.
    ExtendRule {
        policy: String,
        rule: ExportRule,
        clients: Vec<IpAddr>,
    },
    /// A volume that is mounted nowhere yet. `constituents_per_aggregate`: of a FlexGroup.
    CreateVolume {
        name: String,
        policy: String,
        aggregates: Vec<String>,
        size_bytes: u64,
        constituents_per_aggregate: Option<u32>,
    },
    /// One value of a volume.
    Set {
        volume: String,
        to: Setting,
    },
    PreserveUnlink {
        volume: String,
    },
    Mount {
        volume: String,
        junction: String,
    },
}

/// A volume's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Setting {
    /// Bytes; more than it has.
    Size(u64),
    Policy(String),
    NoSnapshots,
}

fn texts(addresses: &[IpAddr]) -> Vec<String> {
    addresses.iter().map(ToString::to_string).collect()
}

impl Act {
    /// Does it, and reads it back.
    ///
    /// # Errors
    /// What ONTAP refused, did not confirm, or did otherwise; nothing further was done.
    pub(super) async fn carry_out(&self, client: &Client, svm: &str) -> Result<(), BoxError> {
        match self {
            Self::CreatePolicy { policy, clients } => create_policy(client, svm, policy, clients).await,
            Self::CreateRule { policy, clients } => create_rule(client, svm, policy, clients).await,
            Self::ExtendRule { policy, rule, clients } => {
                extend_rule(client, svm, policy, (rule, clients)).await
            }
            Self::CreateVolume { .. } => self.create_volume(client, svm).await,
            Self::Set { volume, to } => set(client, svm, volume, to).await,
            Self::PreserveUnlink { volume } => Ok(client.set_preserve_unlink(svm, volume, true).await?),
            Self::Mount { volume, junction } => {
                let change = VolumeChange { junction: Some(junction), ..VolumeChange::default() };
                let uuid = find(client, svm, volume).await?.uuid;
                // Reads back the junction itself.
                client.update_volume(&uuid, &change).await?;
                Ok(())
            }
        }
    }

    async fn create_volume(&self, client: &Client, svm: &str) -> Result<(), BoxError> {
        let Self::CreateVolume { name, policy, aggregates, size_bytes, constituents_per_aggregate } = self
        else {
            return Ok(());
        };
        let style = match constituents_per_aggregate {
            Some(_) => VolumeStyle::FlexGroup,
            None => VolumeStyle::FlexVol,
        };
        let new = NewVolume {
            aggregates: aggregates.clone(),
            size_bytes: Some(*size_bytes),
            style: Some(style.clone()),
            constituents_per_aggregate: *constituents_per_aggregate,
            export_policy: Some(policy.clone()),
            security_style: Some("unix".to_owned()),
            snapshot_policy: Some("none".to_owned()),
            // Without snapshots there is nothing to keep room for.
            snapshot_reserve_percent: Some(0),
            ..NewVolume::new(svm, name, "")
        };
        let volume = client.create_volume(&new).await?;
        if volume.style.as_ref().is_some_and(|is| *is != style) {
            return Err(reads_back(format!("{name} is no {style}")));
        }
        verify(&volume, &Setting::Size(*size_bytes))?;
        verify(&volume, &Setting::Policy(policy.clone()))?;
        verify(&volume, &Setting::NoSnapshots)
    }
}

fn reads_back(what: String) -> BoxError {
    format!("ONTAP said that it was done, but {what}").into()
}

async fn find(client: &Client, svm: &str, name: &str) -> Result<Volume, BoxError> {
    let found = client.volume(svm, name).await?;
    found.ok_or_else(|| format!("there is no volume {name} in {svm}").into())
}

/// The id of a policy that must be there.
async fn policy_id(client: &Client, svm: &str, policy: &str) -> Result<u64, BoxError> {
    let found = client.export_policy(svm, policy).await?;
    found.map(|found| found.id).ok_or_else(|| format!("there is no export policy {policy} in {svm}").into())
}

/// The policy must have exactly one rule, for these clients.
async fn one_rule(client: &Client, id: u64, policy: &str, clients: &[&str]) -> Result<(), BoxError> {
    match &client.export_rules(id).await?[..] {
        [one] if one.is_for(clients) => Ok(()),
        rules => {
            let what =
                format!("export policy {policy} has {} rules, or one for others: look at it", rules.len());
            Err(reads_back(what))
        }
    }
}

async fn create_policy(client: &Client, svm: &str, policy: &str, clients: &[IpAddr]) -> Result<(), BoxError> {
    let texts = texts(clients);
    let clients: Vec<&str> = texts.iter().map(String::as_str).collect();
    let made = client.create_export_policy(svm, policy, &[NewExportRule::nfs4(&clients)]).await?;
    one_rule(client, made.id, policy, &clients).await
}

async fn create_rule(client: &Client, svm: &str, policy: &str, clients: &[IpAddr]) -> Result<(), BoxError> {
    let id = policy_id(client, svm, policy).await?;
    // The policy's own view of its rules may leave them out; the rules themselves are asked before one is
    // added.
    if !client.export_rules(id).await?.is_empty() {
        return Err(format!("export policy {policy} has a rule by now; run this again to see it").into());
    }
    let texts = texts(clients);
    let clients: Vec<&str> = texts.iter().map(String::as_str).collect();
    client.create_export_rule(id, &NewExportRule::nfs4(&clients)).await?;
    one_rule(client, id, policy, &clients).await
}

async fn extend_rule(
    client: &Client,
    svm: &str,
    policy: &str,
    (rule, more): (&ExportRule, &[IpAddr]),
) -> Result<(), BoxError> {
    let id = policy_id(client, svm, policy).await?;
    let more = texts(more);
    let has = rule.clients.iter().map(|client| client.pattern.as_str());
    let clients: Vec<&str> = has.chain(more.iter().map(String::as_str)).collect();
    // Refused unless the rule is still as it was read; reads back what has become of it.
    client.replace_clients(id, rule, &clients).await?;
    Ok(())
}

async fn set(client: &Client, svm: &str, name: &str, to: &Setting) -> Result<(), BoxError> {
    let is = find(client, svm, name).await?;
    let change = match to {
        // Never smaller, whatever has been done to it since the plan was made.
        Setting::Size(bytes) if is.size_bytes.is_none_or(|has| has >= *bytes) => return verify(&is, to),
        Setting::Size(bytes) => VolumeChange { size_bytes: Some(*bytes), ..VolumeChange::default() },
        Setting::Policy(policy) => VolumeChange { export_policy: Some(policy), ..VolumeChange::default() },
        Setting::NoSnapshots => VolumeChange { snapshot_policy: Some("none"), ..VolumeChange::default() },
    };
    let volume = client.update_volume(&is.uuid, &change).await?;
    verify(&volume, to)
}

/// Whether it reads back as it was set.
fn verify(volume: &Volume, to: &Setting) -> Result<(), BoxError> {
    let name = &volume.name;
    match to {
        Setting::Size(bytes) => match volume.size_bytes {
            Some(has) if has >= bytes - bytes / 100 * ROUNDING_PERCENT => Ok(()),
            has => Err(reads_back(format!("{name} has {has:?} bytes"))),
        },
        Setting::Policy(policy) if volume.nas.export_policy.is_named(policy) => Ok(()),
        Setting::Policy(_) => Err(reads_back(format!("{name} has another export policy"))),
        Setting::NoSnapshots if volume.snapshot_policy.is_named("none") => Ok(()),
        Setting::NoSnapshots => Err(reads_back(format!("{name} has another snapshot policy"))),
    }
}

/// The whole chain, and whether repeating helps.
pub(super) fn explain(error: &BoxError) -> String {
    let open = error.downcast_ref::<Error>().is_some_and(Error::is_unconfirmed);
    let hint =
        if open { "; it may be in force or not: repeating this command reads what there is" } else { "" };
    format!("{}{hint}", chain(error.as_ref()))
}
