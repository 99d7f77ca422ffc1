//! Hosts in two zones: a broker's address is in neither subnet, and route tables say which host has it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use e2e::ec2::zones::{IDLE_TABLE, OTHER_ZONE, ZONE, open, outside};
use e2e::ec2::{Ec2, interface};
use e2e::kafka::ClusterSpec;
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Host, Lab, eventually, story};
use serde_json::json;

use super::{ec2, refuses};

/// The victim's.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 11);

/// Both zones send an address to these hosts.
fn tables(first: &str, other: &str) -> BTreeMap<String, String> {
    [(ZONE, first), (OTHER_ZONE, other)].map(|(zone, host)| (zone.table.to_owned(), host.to_owned())).into()
}

/// The table of each zone sends the address to this host.
fn send(cloud: &Ec2, first: &Host, other: &Host) -> Result<()> {
    let table = |host: &Host| json!({"routes": {format!("{ADDRESS}/32"): interface(host)}});
    cloud.change(&json!({"tables": {ZONE.table: table(first), OTHER_ZONE.table: table(other)}}))
}

/// Who of these two reaches the address.
fn reached(near: &Host, far: &Host, wanted: [bool; 2]) -> Result<()> {
    eventually(&format!("the address to be reached from the zones: {wanted:?}"), PATIENCE, || {
        let reached = [near.reaches(ADDRESS), far.reaches(ADDRESS)];
        ensure!(reached == wanted, "{reached:?}");
        Ok(())
    })
}

/// The bed itself: without it, nothing below shows anything.
#[test]
fn hosts_are_sent_to_as_route_tables_say() {
    story("hosts_are_sent_to_as_route_tables_say", |lab: &Lab| {
        open()?;
        let one = lab.host("one", "10.77.0.41")?;
        let near = lab.host("near", "10.77.0.43")?;
        let two = lab.host("two", "10.78.0.42")?;
        let far = lab.host("far", "10.78.0.44")?;
        one.add_address("10.99.0.11/32")?;
        let cloud = Ec2::start(lab)?;
        ensure!(
            near.reaches(two.address()) && far.reaches(one.address()),
            "the zones do not reach each other"
        );
        ensure!(cloud.sent(ADDRESS)? == tables("one", "one"), "{:?}", cloud.sent(ADDRESS)?);
        reached(&near, &far, [true, true])?;

        // Both have it on their links, and the tables alone count: each for its own zone.
        two.add_address("10.99.0.11/32")?;
        two.cut()?;
        reached(&near, &far, [true, true])?;
        send(&cloud, &two, &one)?;
        reached(&near, &far, [false, true])?;
        send(&cloud, &one, &two)?;
        reached(&near, &far, [true, false])?;
        two.heal()?;
        one.power_off()?;
        reached(&near, &far, [false, true])?;
        send(&cloud, &two, &two)?;
        reached(&near, &far, [true, true])?;

        // An interface that checks takes nothing that is not its own, whatever a table says.
        let checks =
            |checks: bool| cloud.change(&json!({"interfaces": {interface(&two): {"checks": checks}}}));
        checks(true)?;
        reached(&near, &far, [false, false])?;
        ensure!(near.reaches(two.address()), "its own address went too");
        checks(false)?;
        reached(&near, &far, [true, true])?;

        // Without a route it goes nowhere.
        cloud.change(&json!({"tables": {OTHER_ZONE.table: {"routes": {}}}}))?;
        reached(&near, &far, [true, false])?;
        cloud.ensure_followed()
    });
}

/// The standby is in the other zone. EC2 is busy between the two tables, tells what was, and takes a while until
/// packets follow.
#[test]
fn ec2_other_zone() {
    story("ec2_other_zone", |lab| {
        let setup = Setup::on_fsx();
        let cluster = ClusterSpec { zones: true, ..setup.cluster.clone() };
        let scenario = Scenario::begin(lab, &Setup { cluster, ..setup })?;
        let (cloud, standby) = (ec2(&scenario)?, &scenario.standby);
        ensure!(standby.address().octets()[..3] == [10, 78, 0], "the standby is in the brokers' zone");
        ensure!(cloud.sent(ADDRESS)? == tables("b1", "b1"), "{:?}", cloud.sent(ADDRESS)?);
        ensure_checked(&scenario)?;

        scenario.start_agents()?;
        let victim = scenario.victim()?.clone();
        let busy = refuses("ReplaceRoute", "RequestLimitExceeded", "503 Service Unavailable", 7);
        cloud.change(&json!({"effect": 3, "remap": 2, "faults": [busy]}))?;
        scenario.recovered_after(PATIENCE, || victim.power_off())?;
        scenario.decided("healthy", PATIENCE)?;
        ensure_sent_here(&scenario)?;
        scenario.ensure_runs_on("standby-1")?;
        let history = scenario.cli(&["history", "--broker", "1"], 0)?.stdout;
        for word in ["ontap_export", ZONE.table, OTHER_ZONE.table, ":9092 answers it", "recovered"] {
            ensure!(history.contains(word), "`history` does not mention {word}:\n{history}");
        }
        scenario.verdict()?;
        Ok(())
    });
}

/// `check` tells of an interface that could not take the address, and of a table that nobody is to change.
fn ensure_checked(scenario: &Scenario<'_>) -> Result<()> {
    let (cloud, own) = (ec2(scenario)?, interface(&scenario.standby));
    cloud.change(&json!({"interfaces": {&own: {"checks": true}}}))?;
    let refused = scenario.agent.cli(&["check"])?;
    for word in ["--no-source-dest-check", &own] {
        ensure!(refused.stdout.contains(word), "`check` does not say {word:?}:\n{}", refused.stdout);
    }
    cloud.change(&json!({"interfaces": {&own: {"checks": false}}}))?;
    let said = scenario.agent.cli(&["check"])?.stdout;
    for word in [&format!("can have {ADDRESS}"), &format!("{IDLE_TABLE} of vpc-1 are not listed")] {
        ensure!(said.contains(word), "`check` does not say {word:?}:\n{said}");
    }
    Ok(())
}

/// Both listed tables send the address to the standby, in both zones it is reached, and nothing else was changed.
fn ensure_sent_here(scenario: &Scenario<'_>) -> Result<()> {
    let (cloud, own) = (ec2(scenario)?, interface(&scenario.standby));
    ensure!(cloud.sent(ADDRESS)? == tables("standby-1", "standby-1"), "{:?}", cloud.sent(ADDRESS)?);
    for (broker, home) in [(2, "b2"), (3, "b3")] {
        let host = scenario.cluster.broker(broker)?.home()?;
        ensure!(host.reaches(ADDRESS), "{home} does not reach the address");
        let theirs = cloud.sent(outside(10 + u8::try_from(broker)?))?;
        ensure!(theirs == tables(home, home), "the address of broker {broker} was moved: {theirs:?}");
    }
    let mut replaced = Vec::new();
    for call in cloud.calls("ReplaceRoute")? {
        let params = &call["params"];
        if params["DryRun"] == "true" {
            continue;
        }
        let (to, id) = (&params["DestinationCidrBlock"], &params["NetworkInterfaceId"]);
        ensure!(*to == format!("{ADDRESS}/32") && *id == own, "another route was to be replaced: {call}");
        if call["answer"] == "200" {
            replaced.push(params["RouteTableId"].as_str().context("no table")?.to_owned());
        }
    }
    replaced.sort();
    replaced.dedup();
    ensure!(replaced == [ZONE.table, OTHER_ZONE.table], "{replaced:?} were replaced");
    for action in ["CreateRoute", "AssignPrivateIpAddresses"] {
        let more = cloud.calls(action)?.into_iter().find(|call| call["params"]["DryRun"] != "true");
        ensure!(more.is_none(), "{more:?}");
    }
    let storage = scenario.ontap.as_ref().context("no storage system")?;
    let owners = storage.owners(VICTIM);
    ensure!(owners == ["standby-1"], "{owners:?}");
    storage.ensure_one_owner_at_a_time()?;
    cloud.ensure_followed()?;
    let epochs = scenario.epochs()?;
    ensure!(epochs.len() == 1, "one fault, one takeover: {epochs:?}");
    Ok(())
}
