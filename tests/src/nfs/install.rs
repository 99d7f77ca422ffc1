//! What `deploy/systemd/README.md` has operators install, as it is shipped. What differs from site to site is
//! in drop-ins called `site.conf`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::guest::Guest;
use super::kafka::{LEDGER_EXPORT, mount};
use super::plain;
use super::server::NfsServer;
use crate::kafka::{Kafka, LOG4J};
use crate::standby::initialise;

/// Where guests mount the export of the ledger.
const LEDGER_MOUNT: &str = "/mnt/understudy";
/// The ledger: below its mount point, so that it is missing while nothing is mounted.
pub(crate) const LEDGER_DIR: &str = "/mnt/understudy/ledger";
/// The user of Kafka's unit.
pub(crate) const USER: &str = "kafka";
/// Where `kafka@.service` has the properties of a broker at home.
pub(super) const PROPERTIES: &str = "/etc/kafka/server.properties";
/// The `server.properties` of a host that may take brokers over.
pub(crate) const TEMPLATE: &str = "/etc/understudy/server.properties";
/// The program, where the units have it.
pub(super) const BINARY: &str = "/usr/bin/understudy";

/// Where units are installed.
pub(super) const UNITS: &str = "/etc/systemd/system";
const START: &str = "/opt/kafka/bin/kafka-server-start.sh";
const JARS: &str = "opt-kafka-libs.mount";
const PROGRAM: &str = "usr-bin-understudy.mount";
const SYSUSERS: &str = include_str!("../../../deploy/systemd/sysusers.d/kafka.conf");
/// Every shipped file, and its place.
const SHIPPED: &[(&str, &str)] = &[
    ("/etc/sysusers.d/kafka.conf", SYSUSERS),
    ("/etc/systemd/system/understudy.service", include_str!("../../../deploy/systemd/understudy.service")),
    (
        "/etc/systemd/system/understudy.service.d/nfs.conf",
        include_str!("../../../deploy/systemd/understudy.service.d/nfs.conf"),
    ),
    (
        "/etc/systemd/system/understudy-warm.service",
        include_str!("../../../deploy/systemd/understudy-warm.service"),
    ),
    ("/etc/systemd/system/kafka@.service", include_str!("../../../deploy/systemd/kafka@.service")),
];

/// The number of Kafka's user, by which a server knows it.
pub(super) fn user_id() -> Result<u32> {
    let line = SYSUSERS.lines().find_map(|line| line.strip_prefix("u kafka "));
    let number = line.and_then(|rest| rest.split_whitespace().next()).context("no user in sysusers.d")?;
    Ok(number.parse()?)
}

/// The directory of the ledger, as the bed sees it.
pub(super) fn ledger_of(server: &NfsServer) -> PathBuf {
    server.directory(LEDGER_EXPORT).join("ledger")
}

/// Puts everything in its place that a host needs, whatever its part is: program, units, Kafka with its user,
/// the ledger; and `files`, of paths and texts. Then runs `then`, of which the shipped units are not enabled
/// yet. It may be repeated.
pub(super) fn install(
    guest: &Guest,
    server: &NfsServer,
    start_script: &str,
    files: &[(String, String)],
    then: &str,
) -> Result<()> {
    fs::create_dir_all(ledger_of(server))?;
    initialise(&ledger_of(server))?;
    let ledger = mount(server, LEDGER_EXPORT, LEDGER_MOUNT);
    // Neither a unit that protects home directories nor Kafka's user sees what they are made of where it is
    // outside.
    let jars = bound("Kafka's jars", plain(&Kafka::home()?.libs()?)?, "/opt/kafka/libs");
    let program = bound("The program", plain(&crate::agent::binary()?.canonicalize()?)?, BINARY);
    let own = [
        (START.to_owned(), start_script.to_owned()),
        ("/etc/kafka/log4j2.properties".to_owned(), LOG4J.to_owned()),
        (format!("{UNITS}/{}", ledger.0), ledger.1),
        (format!("{UNITS}/{JARS}"), jars),
        (format!("{UNITS}/{PROGRAM}"), program),
        (
            format!("{UNITS}/kafka@.service.d/site.conf"),
            format!("[Unit]\nRequiresMountsFor={LEDGER_MOUNT} /opt/kafka/libs\n"),
        ),
    ];
    let ours = own.iter().chain(files).map(|(path, text)| (path.as_str(), text.as_str()));
    guest.write_all(&SHIPPED.iter().copied().chain(ours).collect::<Vec<_>>())?;
    guest
        .sh(&format!(
            "systemd-sysusers && {{ [ -e {BINARY} ] || touch {BINARY}; }} && chmod 0755 {START} && systemctl daemon-reload && \
             systemctl enable --quiet --now {} {JARS} {PROGRAM} && {then} && sync",
            ledger.0
        ))
        .map(drop)
}

/// The mount of something that is outside, in the place where a package would have put it.
fn bound(what: &str, from: &str, to: &str) -> String {
    format!(
        "[Unit]\nDescription={what}\nRequires=bed-setup.service\nAfter=bed-setup.service\n\
         [Mount]\nWhat={from}\nWhere={to}\nType=none\nOptions=bind\n[Install]\nWantedBy=local-fs.target\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kafkas_number_is_the_shipped_one() {
        assert!(SYSUSERS.contains(&format!("\nu {USER} {} ", user_id().unwrap())));
    }
}
