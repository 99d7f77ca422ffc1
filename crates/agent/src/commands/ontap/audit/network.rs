//! LIFs, and the connections that come in by them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use drivers::storage::MountConfig;
use ontap_client::{Interface, LinkState};

use super::super::facts::Facts;
use super::super::sites::{Guarded, Site};
use super::finding::{Check, Notes};
use super::volumes::server_of;

pub(super) fn lifs(notes: &mut Notes, site: &Site, facts: &Facts) {
    let svm = &site.svm;
    let lifs = match &facts.lifs {
        Ok(lifs) => lifs,
        Err(why) => {
            notes.unread(Check::LifHealth, why);
            return notes.unread(Check::LifHome, why);
        }
    };
    if lifs.is_empty() {
        let found = format!("{svm} has no LIF that serves NFS, or this account is not shown it");
        let remedy = format!(
            "network interface create -vserver {svm} -lif <name> -service-policy default-data-files -address <address> \
             -netmask <mask> -home-node <node> -home-port <port>"
        );
        return notes.fail(Check::LifHealth, found, remedy);
    }
    for lif in lifs {
        health(notes, svm, lif);
        home(notes, svm, lif);
    }
    unknown_servers(notes, site, lifs);
}

/// `lif1 (10.0.0.50)`.
fn called(lif: &Interface) -> String {
    format!("{} ({})", lif.name, lif.ip.address.as_deref().unwrap_or("address not shown"))
}

fn health(notes: &mut Notes, svm: &str, lif: &Interface) {
    let name = called(lif);
    match (lif.enabled, &lif.state) {
        (Some(false), _) => {
            let remedy =
                format!("network interface modify -vserver {svm} -lif {} -status-admin up", lif.name);
            notes.fail(Check::LifHealth, format!("{name} is switched off"), remedy);
        }
        (_, Some(LinkState::Up)) => notes.pass(Check::LifHealth, format!("{name} is up")),
        (_, Some(state)) => {
            let remedy = format!(
                "network interface show -vserver {svm} -lif {}; then look at its port: network port show",
                lif.name
            );
            notes.fail(Check::LifHealth, format!("{name} is {state}"), remedy);
        }
        (_, None) => notes.not_said(Check::LifHealth, &format!("whether {name} is up")),
    }
}

fn home(notes: &mut Notes, svm: &str, lif: &Interface) {
    let name = called(lif);
    let at = lif.location.node.name.as_deref().unwrap_or("another node");
    match lif.location.is_home {
        Some(true) => notes.pass(Check::LifHome, format!("{name} is at home on {at}")),
        Some(false) => {
            let home = lif.location.home_node.name.as_deref().unwrap_or("its home");
            let remedy = format!("network interface revert -vserver {svm} -lif {}", lif.name);
            notes.warn(Check::LifHome, format!("{name} is on {at}, and belongs on {home}"), remedy);
        }
        None => notes.not_said(Check::LifHome, &format!("whether {name} is at home")),
    }
}

/// Mount sources by an address that is none of the SVM's. Names are not resolved here.
fn unknown_servers(notes: &mut Notes, site: &Site, lifs: &[Interface]) {
    let known: Vec<IpAddr> =
        lifs.iter().filter_map(|lif| lif.ip.address.as_deref()?.parse::<IpAddr>().ok()).collect();
    let servers: BTreeSet<IpAddr> =
        site.brokers.iter().flat_map(|b| &b.mounts).filter_map(|m| server_of(m).parse().ok()).collect();
    for server in servers.into_iter().filter(|server| !known.contains(server)) {
        let found = format!("mounts go to {server}, which is the address of none of these LIFs");
        let remedy = format!(
            "correct `source` in [[broker.storage.mount]]; network interface show -vserver {}",
            site.svm
        );
        notes.fail(Check::LifHealth, found, remedy);
    }
}

/// What the mount options ask for. `None`: nothing.
fn nconnect(mount: &MountConfig) -> Option<usize> {
    mount.options.split(',').find_map(|option| option.trim().strip_prefix("nconnect=")?.parse().ok())
}

/// Whether those who are let in have as many connections as this configuration's mounts would make.
///
/// The owner mounts by a configuration of its own, so that fewer are a warning. A client shares its
/// connections between all its mounts of one server.
pub(super) fn connections(
    notes: &mut Notes,
    svm: &str,
    broker: &Guarded,
    owners: &BTreeSet<IpAddr>,
    facts: &Facts,
) {
    if broker.mounts.is_empty() || owners.is_empty() {
        return;
    }
    let all = match &facts.connections {
        Ok(all) => all,
        Err(why) => return notes.unread(Check::Connections, why),
    };
    let servers: BTreeSet<&str> = broker.mounts.iter().map(server_of).collect();
    let most = broker.mounts.iter().filter_map(nconnect).max();
    let expected = servers.len() * most.unwrap_or(1);
    let show = |client: &IpAddr| {
        format!("network connections active show -vserver {svm} -service nfs* -remote-ip {client}")
    };
    for client in owners {
        let is_from = |remote: &str| remote.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical() == *client);
        let count = all.iter().filter(|one| one.remote_ip.as_deref().is_some_and(is_from)).count();
        let found = format!("{client} has {count} connections");
        match (most, count) {
            (_, 0) => {
                let remedy = format!(
                    "{}; if its broker runs, correct the export rule and `addresses` to the address that it mounts by",
                    show(client)
                );
                notes.warn(Check::Connections, format!("{found}: it has not mounted the volumes"), remedy);
            }
            (None, _) => {
                let remedy = "add nconnect=16 to `options` in [[broker.storage.mount]], and on the owner";
                notes.warn(
                    Check::Connections,
                    format!("{found}; the mounts here do not set nconnect"),
                    remedy,
                );
            }
            (Some(_), count) if count >= expected => {
                notes.pass(Check::Connections, format!("{found}, {expected} or more expected"));
            }
            (Some(most), _) => {
                let remedy = format!(
                    "{}; on that host unmount everything of this server and mount anew with nconnect={most}: the first \
                     mount decides",
                    show(client)
                );
                notes.warn(
                    Check::Connections,
                    format!("{found}, {expected} expected (nconnect={most})"),
                    remedy,
                );
            }
        }
    }
}
