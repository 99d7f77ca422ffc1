//! What the operator adds to the configuration of every standby. Pure.

use std::fmt::Write;

use ontap::OntapConfig;
use ontap_client::{Aggregate, Interface, LinkState};

use super::super::facts::Facts;
use super::plan::aggregates_of;
use super::policy::list;
use super::wanted::{Wanted, WantedBroker};

/// Where the mounts of the snippet go to.
const TARGET: &str = "/mnt/kafka";

/// In place of an address that is not known here: no configuration passes with it.
const NO_LIF: &str = "<address of an NFS LIF>";

/// TOML with the storage of each broker. What only the operator knows is left so that it is refused until
/// filled in.
pub(super) fn snippet(wanted: &Wanted, ontap: &OntapConfig, facts: &Facts) -> String {
    let mut text = String::from(
        "# For every standby. The [[broker]] sections may be there already: then add what is new to them. The owner's fence\n\
         # (driver \"ontap_export\") names the same SVM and volumes, and the owner's addresses.\n",
    );
    let mut place = 0;
    for broker in &wanted.brokers {
        let sources = broker.volumes.iter().map(|name| {
            let server = server(wanted, place, facts);
            place += 1;
            format!("{server}:/{name}")
        });
        let sources: Vec<String> = sources.collect();
        // Writing to a string does not fail.
        let _ = write_broker(&mut text, wanted, broker, ontap, &sources);
    }
    text
}

/// Where the storage is managed, as a line of the configuration.
fn place(ontap: &OntapConfig) -> String {
    let Some(fsx) = &ontap.fsx else {
        return format!("url = {}", quoted(ontap.url.as_deref().unwrap_or_default()));
    };
    let keys = [
        ("svm", &fsx.svm),
        ("tag", &fsx.tag),
        ("file_system", &fsx.file_system),
        ("region", &fsx.region),
        ("endpoint", &fsx.endpoint),
    ];
    let set = keys.iter().filter_map(|(key, value)| Some(format!("{key} = {}", quoted(value.as_ref()?))));
    format!("fsx = {{ {} }}", set.collect::<Vec<_>>().join(", "))
}

fn write_broker(
    text: &mut String,
    wanted: &Wanted,
    broker: &WantedBroker,
    ontap: &OntapConfig,
    sources: &[String],
) -> std::fmt::Result {
    writeln!(text, "\n# Its owner now mounts by {}.", list(&broker.owners))?;
    writeln!(text, "[[broker]]\nid = {}", broker.id)?;
    let targets: Vec<String> =
        broker.volumes.iter().map(|name| quoted(&format!("{TARGET}/{name}"))).collect();
    writeln!(text, "log_dirs = [{}]", targets.join(", "))?;
    writeln!(text, "\n[broker.storage]\ndriver = \"nfs\"")?;
    for (source, target) in sources.iter().zip(&targets) {
        writeln!(text, "\n[[broker.storage.mount]]\nsource = {}\ntarget = {target}", quoted(source))?;
    }
    let volumes: Vec<String> = broker.volumes.iter().map(|name| quoted(name)).collect();
    writeln!(text, "\n[broker.storage.grant]\nsvm = {}", quoted(&wanted.svm))?;
    writeln!(text, "volumes = [{}]", volumes.join(", "))?;
    writeln!(text, "addresses = [] # fill in: every address by which THIS standby mounts them")?;
    writeln!(text, "\n[broker.storage.grant.ontap]\n{}", place(ontap))?;
    writeln!(
        text,
        "# This account has made the volumes; one for fencing needs fewer rights (docs/ontap.md)."
    )?;
    let path = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let keys = [
        ("user", ontap.user.clone()),
        ("password_file", path(&ontap.password_file)),
        ("certificate", path(&ontap.certificate)),
        ("key", path(&ontap.key)),
        ("ca", path(&ontap.ca)),
        ("pin", ontap.pin.clone()),
    ];
    for (key, value) in keys {
        if let Some(value) = value {
            writeln!(text, "{key} = {}", quoted(&value))?;
        }
    }
    Ok(())
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A LIF on the node of the volume's first aggregate, so that its traffic need not cross the cluster's
/// network; else any.
fn server(wanted: &Wanted, place: usize, facts: &Facts) -> String {
    let all = facts.lifs.as_deref().unwrap_or_default();
    let up: Vec<&Interface> =
        all.iter().filter(|lif| lif.state.as_ref().is_none_or(|s| *s == LinkState::Up)).collect();
    let aggregates = facts.aggregates.as_deref().unwrap_or_default();
    let first = aggregates_of(wanted, place).into_iter().next();
    let lies_on = |aggregate: &&Aggregate| first.as_deref() == Some(aggregate.name.as_str());
    let node = aggregates.iter().find(lies_on).and_then(|aggregate| aggregate.home_node.name.as_deref());
    let near = up.iter().find(|lif| node.is_some() && lif.location.home_node.name.as_deref() == node);
    let chosen = near.or_else(|| up.first()).and_then(|lif| lif.ip.address.as_deref());
    match chosen {
        Some(address) if address.contains(':') => format!("[{address}]"),
        Some(address) => address.to_owned(),
        None => NO_LIF.to_owned(),
    }
}
