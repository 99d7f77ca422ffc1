//! What the agent must be allowed in the cluster, and whether it is. Brokers and controllers tell it themselves;
//! nothing is tried that would change anything.

use std::collections::BTreeSet;
use std::time::Duration;

use super::kafka::ClusterConfig;
use kafka::Dialers;
use kafka::security::SecurityConfig;
use kafka::wire::{Connection, Controller, Operation, Rights, Topics, WireError};
use recovery::model::Endpoint;
use recovery::ports::chain;

/// How long a connection, or an answer, may take.
const LIMIT: Duration = Duration::from_secs(3);
/// Topics that are named where the agent does not see them.
const SHOWN: usize = 3;

/// What brokers do for the agent that takes a right on the cluster.
const OF_BROKERS: [(Operation, &str); 3] = [
    (Operation::Describe, "the quorum, and what lies in log dirs"),
    (Operation::Alter, "giving a broker that is back its leaders"),
    (Operation::DescribeConfigs, "asking whoever answers at a broker's address whether it is that broker"),
];
/// The same of controllers.
const OF_CONTROLLERS: [(Operation, &str); 3] = [
    (Operation::Describe, "the quorum: a witness of every takeover"),
    (
        Operation::Alter,
        "removing a dead broker's registration: without it a takeover waits for its session to end",
    ),
    (
        Operation::AlterConfigs,
        "asking whether a broker has a registration, by a change that is empty and only checked",
    ),
];

/// Something that the agent must be allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Right {
    /// What it is, as `Describe on the cluster`.
    pub name: String,
    /// What it is for.
    pub purpose: String,
    /// Whether the agent has it.
    pub state: State,
    /// Whether no takeover is possible without: elsewhere it is slower, or less is known.
    pub needed: bool,
    /// The command that gives it.
    pub command: String,
}

/// Whether the agent has a right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It has.
    Granted,
    /// It has not.
    Missing,
    /// It is not told.
    Untold {
        /// Why.
        why: String,
    },
}

/// Asks for the agent's rights.
#[derive(Debug)]
pub struct KafkaRights {
    dialers: Dialers,
    config: ClusterConfig,
}

impl KafkaRights {
    /// In the cluster of `config`.
    #[must_use]
    pub fn new(config: &ClusterConfig) -> Self {
        Self { dialers: config.dialers(), config: config.clone() }
    }

    /// What brokers let the agent do, by the first that answers.
    ///
    /// # Errors
    /// Why none answers.
    pub async fn at_brokers(&self) -> Result<Vec<Right>, String> {
        let mut failures = Vec::new();
        for endpoint in &self.config.bootstrap {
            match self.ask_broker(endpoint).await {
                Ok(rights) => return Ok(rights),
                Err(error) => failures.push(chain(&error)),
            }
        }
        Err(failures.join("; "))
    }

    async fn ask_broker(&self, endpoint: &Endpoint) -> Result<Vec<Right>, WireError> {
        let mut connection = self.dialers.brokers.open(endpoint, LIMIT).await?;
        let told = connection.rights(LIMIT).await?;
        let principal = principal(self.config.security.as_ref());
        let mut rights = on_cluster(&told, &OF_BROKERS, |flags| self.command(&principal, flags));
        let (state, more) = topics(&mut connection).await?;
        rights.push(Right {
            name: "Describe on every topic".to_owned(),
            purpose: format!("in-sync replicas and leaders{more}"),
            state,
            needed: true,
            command: self.command(&principal, "--topic '*' --operation Describe"),
        });
        Ok(rights)
    }

    /// What a controller lets the agent do; it may be somebody else to it than to brokers.
    ///
    /// # Errors
    /// Why it does not answer.
    pub async fn at_controller(&self, controller: &Controller) -> Result<Vec<Right>, String> {
        let ask = async {
            let mut connection = self.dialers.controllers.open(&controller.listener, LIMIT).await?;
            connection.rights_at_controller(LIMIT).await
        };
        let told = ask.await.map_err(|error: WireError| chain(&error))?;
        let security = self.config.controllers_security.as_ref().or(self.config.security.as_ref());
        let principal = principal(security);
        Ok(on_cluster(&told, &OF_CONTROLLERS, |flags| self.command(&principal, flags)))
    }

    fn command(&self, principal: &str, flags: &str) -> String {
        let broker = self.config.bootstrap.first().map(ToString::to_string).unwrap_or_default();
        format!("kafka-acls --bootstrap-server {broker} --add --allow-principal {principal} {flags}")
    }
}

/// The agent to Kafka. One that shows a certificate is what the listener's `ssl.principal.mapping.rules` make of
/// that; one that shows a token is who that says, in the claim that the listener's `sasl.oauthbearer.sub.claim.name`
/// names.
fn principal(security: Option<&SecurityConfig>) -> String {
    match security {
        Some(SecurityConfig { sasl: Some(sasl), .. }) => match sasl.user.as_ref() {
            Some(user) => format!("User:{user}"),
            None => "'User:SUB OF ITS TOKEN'".to_owned(),
        },
        Some(SecurityConfig { certificate: Some(_), .. } | SecurityConfig { keystore: Some(_), .. }) => {
            "'User:NAME OF ITS CERTIFICATE'".to_owned()
        }
        _ => "User:ANONYMOUS".to_owned(),
    }
}

fn on_cluster(told: &Rights, wanted: &[(Operation, &str)], command: impl Fn(&str) -> String) -> Vec<Right> {
    let state = |operation: Operation| match told {
        Rights::Told(operations) if operations.contains(&operation) => State::Granted,
        Rights::Told(_) => State::Missing,
        Rights::Lacks(lacking) if *lacking == operation => State::Missing,
        Rights::Lacks(lacking) => State::Untold { why: format!("it is told to who has {lacking}") },
        Rights::Untold => State::Untold { why: "this version of Kafka does not tell".to_owned() },
    };
    let right = |(operation, purpose): &(Operation, &str)| Right {
        name: format!("{operation} on the cluster"),
        purpose: (*purpose).to_owned(),
        state: state(*operation),
        needed: *operation == Operation::Describe,
        command: command(&format!("--cluster --operation {operation}")),
    };
    wanted.iter().map(right).collect()
}

/// Whether the agent sees every topic, and which it does not. A broker tells what lies in its log dirs by another
/// right than who replicates it.
async fn topics(connection: &mut Connection) -> Result<(State, String), WireError> {
    let replicas = match connection.replicas(LIMIT).await {
        Ok(replicas) => replicas,
        Err(error @ WireError::Code { .. }) => {
            return Ok((State::Untold { why: chain(&error) }, String::new()));
        }
        Err(error) => return Err(error),
    };
    let there: BTreeSet<String> = replicas.into_iter().map(|replica| replica.topic).collect();
    let seen = connection.metadata(Topics::All, LIMIT).await?.partitions;
    let seen: BTreeSet<&str> = seen.partitions.iter().map(|partition| partition.topic.as_str()).collect();
    let unseen: Vec<&str> = there.iter().map(String::as_str).filter(|topic| !seen.contains(topic)).collect();
    if unseen.is_empty() {
        return Ok((State::Granted, String::new()));
    }
    let shown = unseen.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    let more =
        if unseen.len() > SHOWN { format!(" and {} more", unseen.len() - SHOWN) } else { String::new() };
    Ok((State::Missing, format!("; it does not see {shown}{more}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(told: &Rights) -> Vec<(String, State)> {
        let rights = on_cluster(told, &OF_CONTROLLERS, |flags| format!("kafka-acls {flags}"));
        rights.into_iter().map(|right| (right.command, right.state)).collect()
    }

    #[test]
    fn what_is_missing_is_told_with_the_command_that_gives_it() {
        let told = Rights::Told([Operation::Describe, Operation::AlterConfigs].into());
        let command = |operation: &str| format!("kafka-acls --cluster --operation {operation}");
        let expected = [
            (command("Describe"), State::Granted),
            (command("Alter"), State::Missing),
            (command("AlterConfigs"), State::Granted),
        ];
        assert_eq!(states(&told), expected);
    }

    #[test]
    fn what_is_not_told_is_neither() {
        let told = states(&Rights::Lacks(Operation::Alter));
        assert_eq!(told[1].1, State::Missing);
        let State::Untold { why } = &told[0].1 else { panic!("{told:?}") };
        assert_eq!(why, "it is told to who has Alter");
        assert!(states(&Rights::Untold).iter().all(|(_, state)| matches!(state, State::Untold { .. })));
    }
}
