//! Who may do what in a secured cluster, and what brokers read anew: requests of an administrator.

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::{CreateAclsRequest, IncrementalAlterConfigsRequest};
use kafka_protocol::protocol::StrBytes;

use super::Cluster;
use super::secured::AGENT;
use super::wire::{PATIENCE, Wire};

/// Kafka's numbers for what a right is about.
const TOPIC: i8 = 2;
const GROUP: i8 = 3;
const CLUSTER: i8 = 4;
/// The only cluster there is, to rights.
const THIS_CLUSTER: &str = "kafka-cluster";
const ALL: &str = "*";
/// Kafka's numbers for what may be done.
const READ: i8 = 3;
const WRITE: i8 = 4;
const ALTER: i8 = 7;
const DESCRIBE: i8 = 8;
const DESCRIBE_CONFIGS: i8 = 10;
const ALTER_CONFIGS: i8 = 11;
/// The name of the resource is all of its name.
const LITERAL: i8 = 3;
const ALLOW: i8 = 3;
/// What is configured for one broker.
const BROKER_CONFIG: i8 = 4;
const SET: i8 = 0;
const CREATE_ACLS_VERSION: i16 = 3;
const ALTER_CONFIGS_VERSION: i16 = 1;

/// What it is about, its name, and what may be done.
type Right = (i8, &'static str, i8);

/// Of those who produce and consume.
const OF_APP: &[Right] = &[(TOPIC, ALL, READ), (TOPIC, ALL, WRITE), (GROUP, ALL, READ)];

/// Of the agent: what its documentation asks for.
const OF_AGENT: &[Right] = &[
    (CLUSTER, THIS_CLUSTER, DESCRIBE),
    (CLUSTER, THIS_CLUSTER, ALTER),
    (CLUSTER, THIS_CLUSTER, DESCRIBE_CONFIGS),
    (CLUSTER, THIS_CLUSTER, ALTER_CONFIGS),
    (TOPIC, ALL, DESCRIBE),
];

impl Cluster {
    /// Lets producers and consumers do what they do.
    pub(super) fn allow_app(&self) -> Result<()> {
        self.wire(0)?.allow("app", OF_APP)
    }

    /// Lets the agent do what its documentation asks for.
    ///
    /// # Errors
    /// When the cluster refuses.
    pub fn allow_agent(&self) -> Result<()> {
        self.wire(0)?.allow(AGENT, OF_AGENT)
    }

    /// Lets the agent do with a topic what it does with its ledger.
    ///
    /// # Errors
    /// When the cluster refuses.
    pub fn allow_ledger(&self, topic: &'static str) -> Result<()> {
        let rights = [READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS].map(|operation| (TOPIC, topic, operation));
        self.wire(0)?.allow(AGENT, &rights)
    }

    /// Has every broker read the stores of its clients' listener anew, as an administrator does after a change: it
    /// is told where they are.
    ///
    /// # Errors
    /// When one refuses.
    pub fn read_stores_anew(&self) -> Result<()> {
        let secured = self.secured()?;
        for node in self.brokers() {
            let keystore = secured.of_node(node.id()).into_iter().map(|(_, path)| path).next();
            let keystore = keystore.context("a node without a keystore")?;
            let truststore = secured.dir().join("clients.pem").display().to_string();
            let stores = [("keystore.location", keystore), ("truststore.location", truststore)];
            let stores = stores.map(|(key, path)| (format!("listener.name.clients.ssl.{key}"), path));
            Wire::connect(&node.door(), PATIENCE)?.configure(node.id(), &stores)?;
        }
        Ok(())
    }
}

impl Wire {
    fn allow(&mut self, user: &str, rights: &[Right]) -> Result<()> {
        let principal = StrBytes::from_string(format!("User:{user}"));
        let creation = |(kind, name, operation): &Right| {
            AclCreation::default()
                .with_resource_type(*kind)
                .with_resource_name(StrBytes::from_static_str(name))
                .with_resource_pattern_type(LITERAL)
                .with_principal(principal.clone())
                .with_host(StrBytes::from_static_str(ALL))
                .with_operation(*operation)
                .with_permission_type(ALLOW)
        };
        let request = CreateAclsRequest::default().with_creations(rights.iter().map(creation).collect());
        let said = self.ask(&request, CREATE_ACLS_VERSION)?;
        let refused = said.results.iter().find(|result| result.error_code != 0);
        ensure!(refused.is_none(), "rights of {user}: {refused:?}");
        Ok(())
    }

    fn configure(&mut self, broker: i32, settings: &[(String, String)]) -> Result<()> {
        let set = |(key, value): &(String, String)| {
            AlterableConfig::default()
                .with_name(StrBytes::from_string(key.clone()))
                .with_config_operation(SET)
                .with_value(Some(StrBytes::from_string(value.clone())))
        };
        let resource = AlterConfigsResource::default()
            .with_resource_type(BROKER_CONFIG)
            .with_resource_name(StrBytes::from_string(broker.to_string()))
            .with_configs(settings.iter().map(set).collect());
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let said = self.ask(&request, ALTER_CONFIGS_VERSION)?;
        let refused = said.responses.iter().find(|response| response.error_code != 0);
        ensure!(refused.is_none(), "broker {broker}: {refused:?}");
        Ok(())
    }
}
