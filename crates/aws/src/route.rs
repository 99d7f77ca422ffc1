//! `ec2_route`: an address outside of the VPC's own networks is routed to an interface of this host, whatever zone it is in.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_ec2::types::{Filter, Route as Told, RouteState, RouteTable};
use recovery::model::{Endpoint, Epoch, PLACED};
use recovery::ports::{Address, Note, StepError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::sleep;

use crate::Ec2Config;
use crate::fault::{DRY_RUN, Fault};
use crate::interface::{Deadline, Interface, is_in};
use crate::own::{self, LAST_READ, Own, POLL_INTERVAL};
use crate::told::ROUND;

const DRIVER: &str = "ec2_route";

/// EC2 answers so to `ReplaceRoute` where the table has no route to the address yet.
const NO_ROUTE: [&str; 2] = ["InvalidParameterValue", "InvalidRoute.NotFound"];
/// EC2 answers so to `CreateRoute` where it has one by now: the next order replaces it.
const HAS_ROUTE: &str = "RouteAlreadyExists";

/// A route to the broker's address in route tables of the VPC, for hosts in several zones.
///
/// Every listed table is told first, and once EC2 has accepted that, the address is put on the link. Kafka starts while
/// packets follow: the tables are read back until each sends the address to this host's interface, and another broker's
/// host has to answer it. The address is in none of the VPC's own
/// networks, and EC2 must not check the destination of what comes to the interface.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// The broker's address, outside of the VPC's networks, with the prefix length 32, such as `10.99.0.11/32`.
    pub address: String,
    /// The link of this host that gets it, such as `ens5`.
    pub interface: String,
    /// The interface in EC2 that this link is, such as `eni-0a1b2c3d4e5f60718`. Without it the
    /// instance's metadata (IMDSv2) is asked for the link's. Its source/destination check is off.
    #[serde(default)]
    pub network_interface: Option<String>,
    /// Every route table whose subnets have brokers or clients, such as `rtb-0a1b2c3d4e5f60718`.
    pub route_tables: BTreeSet<String>,
    /// How long EC2 may take until what it tells shows the routes, and packets for the address come.
    #[serde(default = "own::default_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// Where EC2 is asked.
    #[serde(default)]
    pub ec2: Ec2Config,
}

impl RouteConfig {
    /// The driver, ready to use. `link` puts the address on the link once the routes are there; it must not ask the link
    /// who else has the address. `others`: the listeners of other brokers, one of which has to answer the address.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`, after those of `link`.
    pub fn build(
        self,
        link: Result<Arc<dyn Address>, Vec<String>>,
        others: Vec<Endpoint>,
    ) -> Result<Route, Vec<String>> {
        let own = Own::build(
            DRIVER,
            (self.interface, self.network_interface),
            (self.timeout, self.ec2),
            link,
            others,
        );
        let address = own::address(&self.address);
        let mut problems = Vec::new();
        if address.is_ok() && !self.address.ends_with("/32") {
            let given = &self.address;
            problems.push(format!("address: `{given}` is routed alone: write it with the prefix length 32"));
        }
        if self.route_tables.is_empty() {
            problems.push("route_tables: name every table whose subnets have brokers or clients".to_owned());
        }
        for table in self.route_tables.iter().filter(|table| !own::is_id(table, "rtb-")) {
            problems.push(format!(
                "route_tables: `{table}` is not the id of a route table, such as rtb-0a1b2c3d4e5f60718"
            ));
        }
        match (own, address) {
            (Ok(own), Ok(address)) if problems.is_empty() => {
                Ok(Route { address, tables: self.route_tables, own })
            }
            (own, address) => {
                let first = own.err().unwrap_or_default().into_iter().chain(address.err().flatten());
                Err(first.chain(problems).collect())
            }
        }
    }
}

/// The driver; see [`RouteConfig`].
pub struct Route {
    address: Ipv4Addr,
    tables: BTreeSet<String>,
    pub(crate) own: Own,
}

/// Where a table sends the address.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    Here,
    Elsewhere(String),
    Nowhere,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here => f.write_str("sends it here"),
            Self::Elsewhere(to) => write!(f, "sends it to {to}"),
            Self::Nowhere => f.write_str("has no route to it"),
        }
    }
}

/// What counts of a route table.
struct Table {
    id: String,
    way: Way,
    /// The VPC's own networks.
    local: Vec<String>,
}

impl Table {
    fn of(told: &RouteTable, address: Ipv4Addr, ours: &str) -> Self {
        let exact = format!("{address}/32");
        let to = |route: &Told| route.destination_cidr_block().unwrap_or_default().to_owned();
        let local = told.routes().iter().filter(|route| route.gateway_id() == Some("local")).map(to);
        let way = told.routes().iter().find(|route| to(route) == exact).map(|route| {
            let active = *route.state().unwrap_or(&RouteState::Active) == RouteState::Active;
            let interface = route.network_interface_id();
            match interface {
                Some(id) if id == ours && active => Way::Here,
                _ => {
                    let target = interface.or(route.instance_id()).or(route.gateway_id());
                    let target = target.unwrap_or("a target that is no interface");
                    Way::Elsewhere(format!("{target}{}", if active { "" } else { " (blackhole)" }))
                }
            }
        });
        let id = told.route_table_id().unwrap_or_default().to_owned();
        Self { id, way: way.unwrap_or(Way::Nowhere), local: local.collect() }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id, self.way)
    }
}

/// Tables, for people.
fn listed<'a>(tables: impl IntoIterator<Item = &'a Table>) -> String {
    tables.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Route {
    fn action(&self) -> String {
        format!("route {} to {}", self.address, self.own.name)
    }

    /// The tables, for people.
    fn listed(&self) -> String {
        self.tables.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    fn to(&self) -> String {
        format!("{}/32", self.address)
    }

    /// `own`, unless EC2 drops what comes to it for the address.
    fn open(&self, own: Interface, action: &str) -> Result<Interface, StepError> {
        if !own.checks_destination {
            return Ok(own);
        }
        let why = format!(
            "EC2 drops what comes to {own} for {}, which is not its own: run `aws ec2 modify-network-interface-attribute \
             --network-interface-id {} --no-source-dest-check`",
            self.address, own.id
        );
        Err(self.own.refused(action, why))
    }

    /// All route tables of the VPC, with what counts of them for the address.
    async fn read(&self, own: &Interface, deadline: Deadline) -> Result<Vec<Table>, Fault> {
        Ok(self.tables(&self.ask(own, deadline).await?, own))
    }

    fn tables(&self, told: &[RouteTable], own: &Interface) -> Vec<Table> {
        told.iter().map(|told| Table::of(told, self.address, &own.id)).collect()
    }

    async fn ask(&self, own: &Interface, deadline: Deadline) -> Result<Vec<RouteTable>, Fault> {
        let vpc = Filter::builder().name("vpc-id").values(&own.vpc).build();
        let request = self.own.ec2.call(deadline.call(), |client| {
            client.describe_route_tables().filters(vpc).into_paginator().items().send().collect()
        });
        request.await
    }

    /// The listed ones of them, and the others.
    fn split(
        &self,
        all: Vec<Table>,
        own: &Interface,
        action: &str,
    ) -> Result<(Vec<Table>, Vec<Table>), StepError> {
        let missing = self.tables.iter().find(|id| all.iter().all(|table| table.id != **id));
        if let Some(id) = missing {
            let why = format!("{} has no route table {id}: correct route_tables", own.vpc);
            return Err(self.own.refused(action, why));
        }
        let local =
            all.iter().flat_map(|table| &table.local).find(|net| is_in(net, self.address) == Some(true));
        if let Some(net) = local {
            let why = format!(
                "{} is in {net}, a network of {} itself, where no route sends it elsewhere: give the broker an address \
                 outside of it, or use ec2_secondary_ip",
                self.address, own.vpc
            );
            return Err(self.own.refused(action, why));
        }
        Ok(all.into_iter().partition(|table| self.tables.contains(&table.id)))
    }

    /// Tells one table. `dry`: EC2 says whether the role allows it, and changes nothing.
    async fn order(
        &self,
        own: &Interface,
        table: &str,
        deadline: Deadline,
        dry: bool,
    ) -> Result<(), (&'static str, Fault)> {
        let (to, dry) = (self.to(), dry.then_some(true));
        let replaced = self.own.ec2.call(deadline.call(), |client| {
            let order = client.replace_route().route_table_id(table).destination_cidr_block(&to);
            order.network_interface_id(&own.id).set_dry_run(dry).send()
        });
        match replaced.await {
            Ok(_) => return Ok(()),
            // The dry run of either says what it can: the other may be the one that is needed.
            Err(fault) if NO_ROUTE.contains(&fault.code()) || dry.is_some() && fault.code() == DRY_RUN => {}
            Err(fault) => return Err(("ReplaceRoute", fault)),
        }
        let created = self.own.ec2.call(deadline.call(), |client| {
            let order = client.create_route().route_table_id(table).destination_cidr_block(&to);
            order.network_interface_id(&own.id).set_dry_run(dry).send()
        });
        match created.await {
            Err(fault) if dry.is_some() && fault.code() == DRY_RUN => Ok(()),
            created => created.map(drop).map_err(|fault| ("CreateRoute", fault)),
        }
    }

    /// Has EC2 accept, of every listed table, that it sends the address here.
    ///
    /// The order is given even to a table that seems to do so: what EC2 tells may be old.
    async fn order_all(&self, own: &Interface, action: &str, deadline: Deadline) -> Result<(), StepError> {
        for table in &self.tables {
            while let Err((call, fault)) = self.order(own, table, deadline, false).await {
                let passes = fault.passes() || fault.code() == HAS_ROUTE;
                if !passes || deadline.left() <= POLL_INTERVAL {
                    return Err(self.own.fault(&format!("{action} in {table}"), call, &fault));
                }
                // A reply may be lost after the act.
                let read = self.read(own, deadline).await.unwrap_or_default();
                if read.iter().any(|one| one.id == *table && one.way == Way::Here) {
                    break;
                }
                sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    /// Waits until what EC2 tells shows that every listed table sends the address here.
    async fn followed(&self, own: &Interface, action: &str, deadline: Deadline) -> Result<(), StepError> {
        loop {
            let read = match self.read(own, deadline).await {
                Ok(all) => Ok(self.split(all, own, action)?.0),
                Err(fault) if fault.passes() => Err(fault),
                Err(fault) => return Err(self.own.fault(action, "DescribeRouteTables", &fault)),
            };
            if read.as_ref().is_ok_and(|tables| tables.iter().all(|table| table.way == Way::Here)) {
                return Ok(());
            }
            if deadline.left() <= POLL_INTERVAL {
                return Err(match read {
                    Err(fault) => self.own.fault(action, "DescribeRouteTables", &fault),
                    Ok(tables) => {
                        let action = format!("{action} (EC2 accepted it; read last: {})", listed(&tables));
                        StepError::Unconfirmed { driver: DRIVER, action, limit: deadline.limit }
                    }
                });
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The listed tables that do not send the address here, read once.
    async fn astray(
        &self,
        own: &Interface,
        action: &str,
        deadline: Deadline,
    ) -> Result<Vec<Table>, StepError> {
        let all = self.read(own, deadline).await;
        let all = all.map_err(|fault| self.own.fault(action, "DescribeRouteTables", &fault))?;
        let (listed, _) = self.split(all, own, action)?;
        Ok(listed.into_iter().filter(|table| table.way != Way::Here).collect())
    }
}

#[async_trait]
impl Address for Route {
    fn name(&self) -> &'static str {
        DRIVER
    }

    async fn acquire(&self, epoch: Epoch) -> Result<Note, StepError> {
        let (action, deadline) = (self.action(), Deadline::of(self.own.timeout));
        let own = self.open(self.own.find(&action, deadline).await?, &action)?;
        // No order is given for an address or a table that cannot be.
        let was_here = match self.read(&own, deadline).await {
            Ok(all) => self.split(all, &own, &action)?.0.iter().all(|table| table.way == Way::Here),
            Err(fault) if fault.passes() => false,
            Err(fault) => return Err(self.own.fault(&action, "DescribeRouteTables", &fault)),
        };
        self.order_all(&own, &action, deadline).await?;
        let link = self.own.link.acquire(epoch).await?;
        let said = if was_here { "sent" } else { "are to send" };
        let text = format!("by EC2's word {} {said} {} to {own}; {}", self.listed(), self.address, link.text);
        let note = Note { text, ..link }.with("network_interface", &own.id);
        Ok(if was_here { note } else { note.with(PLACED, true) })
    }

    async fn confirm(&self) -> Result<Note, StepError> {
        let (action, deadline) = (self.action(), Deadline::of(self.own.timeout));
        let own = self.own.find(&action, deadline).await?;
        self.followed(&own, &action, deadline).await?;
        let answered = self.own.answered(self.address, &action, deadline).await?;
        // Somebody else's script may have changed a table meanwhile.
        let left = Deadline::of(deadline.left().max(LAST_READ));
        let astray = self.astray(&own, &action, left).await?;
        if !astray.is_empty() {
            let why = format!(
                "it came here and then {}: find out who else changes the routes (a script, or an agent \
                 that the ledger does not know), and end that",
                listed(&astray)
            );
            return Err(self.own.refused(&action, why));
        }
        Ok(Note::new(format!("{} now send {} to {own}; {answered}", self.listed(), self.address)))
    }

    async fn reset_clients(&self) -> Result<Note, StepError> {
        self.own.link.reset_clients().await
    }

    /// Takes the address off the link. The routes stay until its next owner changes them: without one, packets for the
    /// address would leave by a wider route.
    async fn release(&self) -> Result<Note, StepError> {
        self.own.link.release().await
    }

    async fn here(&self) -> Result<bool, StepError> {
        self.own.link.here().await
    }

    /// Where a listed table sends the address, while it is on this host's link and that is elsewhere. Before that nobody
    /// counts: a host cannot keep a route.
    async fn holder(&self) -> Result<Option<String>, StepError> {
        if !self.own.link.here().await? {
            return Ok(None);
        }
        let (action, deadline) =
            (format!("ask EC2 where {} goes", self.address), Deadline::of(self.own.timeout));
        let own = self.own.once(&action, deadline).await?;
        let astray = self.astray(&own, &action, deadline).await?;
        let elsewhere = astray.iter().find_map(|table| match &table.way {
            Way::Elsewhere(to) => Some(format!("{to} (by {})", table.id)),
            Way::Here | Way::Nowhere => None,
        });
        match (elsewhere, astray.first()) {
            (Some(holder), _) => Ok(Some(holder)),
            (None, Some(table)) => Err(self
                .own
                .refused(&action, format!("it is on the link here, and {table}: acquire it anew"))),
            (None, None) => Ok(None),
        }
    }

    /// Nothing: routes are believed as EC2 has them. [`Self::holder`] and [`Self::check`] tell of one that goes elsewhere.
    async fn defend(&self) -> Result<(), StepError> {
        Ok(())
    }

    async fn check(&self) -> Result<Note, StepError> {
        let (action, deadline) = (self.action(), Deadline::of(self.own.timeout));
        let lately = &self.own.ec2.shared.told;
        let own = self.open(self.own.lately(&action, deadline).await?, &action)?;
        let told = lately.tables.or_ask(&own.vpc, ROUND, self.ask(&own, deadline)).await;
        let told = told.map_err(|fault| self.own.fault(&action, "DescribeRouteTables", &fault))?;
        let (ours, others) = self.split(self.tables(&told, &own), &own, &action)?;
        let astray: Vec<&Table> = ours.iter().filter(|table| table.way != Way::Here).collect();
        if self.own.link.here().await? && !astray.is_empty() {
            let why = format!(
                "{} is on the link here, and {}: not all that is for it comes here. Unless a takeover is under way, find out \
                 who changed the routes",
                self.address,
                listed(astray)
            );
            return Err(self.own.refused(&action, why));
        }
        for table in &self.tables {
            let tried = lately.allowed.or_ask(table, ROUND, self.order(&own, table, deadline, true)).await;
            tried.map_err(|(call, fault)| self.own.fault(&format!("{action} in {table}"), call, &fault))?;
        }
        let link = self.own.link.check().await?;
        let unlisted: Vec<&str> = others.iter().map(|table| table.id.as_str()).collect();
        let unlisted = match unlisted.is_empty() {
            true => String::new(),
            false => format!(
                "; {} of {} are not listed: nothing in their subnets reaches it",
                unlisted.join(", "),
                own.vpc
            ),
        };
        let text = format!(
            "{own} can have {} ({}), this host's role may change its routes, and its link can take it{unlisted}",
            self.address,
            listed(&ours)
        );
        Ok(Note::new(text).warn(link.warnings))
    }
}

#[cfg(test)]
mod tests;
