//! Two second witnesses for the rules: ONTAP's own evaluation of them, where the account may ask for it, and
//! the list of each policy's rules by itself, beside the one within the list of policies. They can only speak
//! against a proof, and never make one.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use ontap_client::{Client, ExportRule};
use tokio::time::Instant;

use super::cache::AT_ONCE;
use super::survey::{Export, list};
use recovery::model::human;
use recovery::ports::chain;

/// How long one answer may take, and how long all of them: it is no condition of a proof.
const EACH: Duration = Duration::from_secs(2);
const ALL: Duration = Duration::from_secs(3);

/// What `vserver export-policy check-access` and the policies' own rules said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Second {
    /// Who is let in where, by `check-access`.
    against: Vec<String>,
    /// Why it said nothing of some volumes.
    silent: Option<String>,
    /// Policies whose rules read otherwise by themselves.
    differing: Vec<String>,
    /// Why the rules of some were not read a second time.
    unread: Option<String>,
}

/// Asks both, side by side.
pub(super) async fn second(client: &Client, svm: &str, exports: &[Export], addresses: &[IpAddr]) -> Second {
    let (access, rules) =
        tokio::join!(evaluated(client, svm, exports, addresses), read_again(client, exports));
    Second { differing: rules.differing, unread: rules.unread, ..access }
}

/// The answers that come in time, and why some did not.
async fn in_time<T>(asks: Vec<impl Future<Output = T>>) -> (Vec<T>, Option<String>) {
    let until = Instant::now() + ALL;
    let mut coming = stream::iter(asks).buffer_unordered(AT_ONCE);
    let mut answers = Vec::new();
    loop {
        match tokio::time::timeout_at(until, coming.next()).await {
            Ok(Some(answer)) => answers.push(answer),
            Ok(None) => return (answers, None),
            Err(_) => return (answers, Some(format!("it took longer than {}", human(ALL)))),
        }
    }
}

/// Reads the rules of each policy by itself.
async fn read_again(client: &Client, exports: &[Export]) -> Second {
    let client = &client.within(EACH);
    let asks = exports.iter().map(|export| async move { (export, client.export_rules(export.id).await) });
    let (answers, late) = in_time(asks.collect()).await;
    let mut second = Second::default();
    for (export, answer) in answers {
        match answer {
            Ok(rules) if is_same(export, &rules) => {}
            Ok(_) => second.differing.push(export.policy.clone()),
            Err(error) => second.unread = Some(format!("{}: {}", export.policy, chain(&error))),
        }
    }
    second.unread = late.or(second.unread);
    second
}

/// Whether the one rule of a policy is the same in both forms. What a form leaves out besides whom it is for
/// is no difference.
fn is_same(export: &Export, rules: &[ExportRule]) -> bool {
    let clients: Vec<&str> = export.rule.clients.iter().map(|client| client.pattern.as_str()).collect();
    matches!(rules, [one] if one.index == export.rule.index && one.is_for(&clients))
}

/// Asks `check-access` for each of our volumes and each address.
async fn evaluated(client: &Client, svm: &str, exports: &[Export], addresses: &[IpAddr]) -> Second {
    let pairs = exports.iter().flat_map(|export| {
        let volumes = export.volumes.iter().map(move |volume| (export, volume));
        volumes.flat_map(|place| addresses.iter().map(move |address| (place, address)))
    });
    let client = &client.within(EACH);
    let asks = pairs.map(|((export, volume), address)| async move {
        (export, volume, address, client.check_access(svm, volume, *address).await)
    });
    let (answers, late) = in_time(asks.collect()).await;
    let mut second = Second::default();
    for (export, volume, address, answer) in answers {
        let path = match answer {
            Ok(path) => path,
            Err(error) => {
                second.silent = Some(chain(&error));
                continue;
            }
        };
        let decides = |part: &&ontap_client::PathAccess| part.policy.as_deref() == Some(&export.policy);
        match path.iter().find(decides) {
            Some(part) if part.is_denied() => {}
            Some(part) if part.access.is_some() => second.against.push(format!("{address} to {volume}")),
            _ => second.silent = Some(format!("its answer does not mention {}", export.policy)),
        }
    }
    second.silent = late.or(second.silent);
    second
}

impl Second {
    pub(super) fn against(&self) -> Option<String> {
        let what = || format!("ONTAP's own check-access says that the rules let {} in", list(&self.against));
        (!self.against.is_empty()).then(what)
    }

    /// Policies of which nobody knows which of two answers is the right one.
    pub(super) fn differs(&self) -> Option<String> {
        let what = || {
            format!(
                "the rules of export policy {} read otherwise by themselves (`vserver export-policy rule show`) \
                 than in the \
                 list of policies",
                list(&self.differing)
            )
        };
        (!self.differing.is_empty()).then(what)
    }

    pub(super) fn lacking(&self) -> Vec<String> {
        let access = self.silent.as_ref().map(|why| format!("that ONTAP's own check-access agrees ({why})"));
        let rules =
            self.unread.as_ref().map(|why| format!("that the rules read the same by themselves ({why})"));
        access.into_iter().chain(rules).collect()
    }

    pub(super) fn words(&self) -> String {
        match (&self.against(), &self.silent) {
            (Some(against), _) => against.clone(),
            (None, Some(why)) => format!("not to be had: {why}"),
            (None, None) => "denied".to_owned(),
        }
    }
}
