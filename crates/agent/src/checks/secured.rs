//! What a cluster with TLS, logins and rights must be for a takeover: the certificates of its listeners last, and
//! the agent may do what it does.

use std::sync::Arc;

use drivers::certificate::chain_good_until;
use drivers::cluster::rights::{KafkaRights, Right, State};
use jiff::Timestamp;
use kafka::Dialer;
use kafka::wire::{Controller, WireError};
use recovery::model::{Check, Endpoint};
use recovery::ports::chain;

use super::looks::{NETWORK_LIMIT, valid};
use super::{Item, Look};
use crate::config::Config;

/// Nothing for a cluster that is not secured.
pub(super) fn looks(config: &Config) -> Vec<Look> {
    let cluster = &config.cluster;
    if cluster.security.is_none() && cluster.controllers_security.is_none() {
        return Vec::new();
    }
    let dialers = cluster.dialers();
    let brokers = config.topology.brokers.values().map(|broker| (broker.listener.clone(), &dialers.brokers));
    let controllers = cluster.controllers.iter().map(|it| (it.listener.clone(), &dialers.controllers));
    let mut all: Vec<Look> =
        brokers.chain(controllers).map(|(at, dialer)| certificate_of(at, dialer)).collect();
    let rights = Arc::new(KafkaRights::new(cluster));
    let of_brokers = rights.clone();
    all.push(Look::standing(Check::Rights(String::new()), move || at_brokers(of_brokers.clone())));
    all.extend(cluster.controllers.iter().cloned().map(|controller| {
        let rights = rights.clone();
        let check = Check::Rights(controller.to_string());
        Look::standing(check, move || at_controller(rights.clone(), controller.clone()))
    }));
    all
}

fn certificate_of(at: Endpoint, dialer: &Dialer) -> Look {
    let dialer = dialer.clone();
    let check = Check::ListenerCertificate(at.to_string());
    Look::standing(check, move || shown(dialer.clone(), at.clone()))
}

/// Whether the certificate that a listener shows is valid, and will be for a while.
async fn shown(dialer: Dialer, at: Endpoint) -> Vec<Item> {
    let check = Check::ListenerCertificate(at.to_string());
    let remedy =
        "renew it, and have the broker read its keystore anew: brokers and clients refuse each other then";
    match dialer.open(&at, NETWORK_LIMIT).await {
        Ok(connection) => match chain_good_until(connection.certificates()) {
            Ok(until) => {
                until.map(|until| valid(check, until, Timestamp::now(), remedy)).into_iter().collect()
            }
            Err(error) => {
                vec![Item::warn(
                    check,
                    format!("its end cannot be read: {error}"),
                    "look at it with openssl s_client",
                )]
            }
        },
        Err(error @ WireError::Untrusted { .. }) => {
            vec![Item::fail(check, chain(&error), "as it says; until then this listener is not looked at")]
        }
        // Who does not answer, or refuses a login, is told elsewhere.
        Err(_) => Vec::new(),
    }
}

async fn at_brokers(rights: Arc<KafkaRights>) -> Vec<Item> {
    told(&Check::Rights(String::new()), rights.at_brokers().await)
}

async fn at_controller(rights: Arc<KafkaRights>, controller: Controller) -> Vec<Item> {
    told(&Check::Rights(controller.to_string()), rights.at_controller(&controller).await)
}

fn told(check: &Check, found: Result<Vec<Right>, String>) -> Vec<Item> {
    match found {
        Ok(rights) => rights.into_iter().map(|right| item(check, right)).collect(),
        Err(why) => {
            vec![Item::warn(check, why, "see that it can be asked: what the agent may do there is not known")]
        }
    }
}

fn item(check: &Check, right: Right) -> Item {
    let name = format!("{check}: {}", right.name);
    match right.state {
        State::Granted => Item::ok(name, format!("granted, for {}", right.purpose)),
        State::Missing if right.needed => {
            Item::fail(name, format!("missing, for {}", right.purpose), &right.command)
        }
        State::Missing => Item::warn(name, format!("missing, for {}", right.purpose), &right.command),
        State::Untold { why } => Item::warn(name, format!("not known: {why}"), &right.command),
    }
}

#[cfg(test)]
mod tests {
    use recovery::model::Verdict;

    use super::*;

    fn right(state: State, needed: bool) -> Right {
        let (name, purpose) = ("Alter on the cluster".to_owned(), "leaders".to_owned());
        Right { name, purpose, state, needed, command: "kafka-acls --add".to_owned() }
    }

    #[test]
    fn a_missing_right_is_told_with_its_command_and_fails_where_nothing_goes_without() {
        let of = |state, needed| item(&Check::Rights(String::new()), right(state, needed));
        let granted = of(State::Granted, true);
        assert_eq!((granted.verdict, granted.remedy.as_str()), (Verdict::Ok, ""));
        let missing = of(State::Missing, true);
        assert_eq!((missing.verdict, missing.remedy.as_str()), (Verdict::Fail, "kafka-acls --add"));
        assert_eq!(missing.item, "rights: Alter on the cluster");
        assert_eq!(of(State::Missing, false).verdict, Verdict::Warn);
        assert_eq!(of(State::Untold { why: "x".to_owned() }, true).verdict, Verdict::Warn);
    }
}
