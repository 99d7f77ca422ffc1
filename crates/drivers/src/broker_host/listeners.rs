//! The listeners of a broker's `server.properties`: what is bound here, and what clients are told.
//!
//! The template is this host's own. A listener that serves everybody moves to the broker's address. One that
//! the template keeps for fewer, at loopback or at an address of its own, stays where it is: a takeover
//! opens nothing that was shut.

mod loopback;

use std::net::IpAddr;

use crate::broker_host::BrokerIdentity;
use kafka::properties::Properties;
use recovery::model::Endpoint;

pub(super) use loopback::is_loopback;

const BOUND: &str = "listeners";
pub(super) const ADVERTISED: &str = "advertised.listeners";

/// `NAME://host:port`, as Kafka writes listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listener {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) port: u16,
}

impl Listener {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (name, place) = text.split_once("://")?;
        let (host, port) = place.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        Some(Self { name: name.to_owned(), host: bare.to_owned(), port: port.parse().ok()? })
    }

    pub(super) fn print(&self) -> String {
        let brackets = self.host.contains(':');
        let (open, close) = if brackets { ("[", "]") } else { ("", "") };
        format!("{}://{open}{}{close}:{}", self.name, self.host, self.port)
    }

    /// Its address, where it is one.
    pub(super) fn address(&self) -> Option<IpAddr> {
        loopback::address(&self.host)
    }

    pub(super) fn binds_everywhere(&self) -> bool {
        self.host.is_empty() || self.address().is_some_and(|address| address.is_unspecified())
    }

    pub(super) fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }

    fn is_named(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// Whether two Kafkas of one host cannot both bind it.
    pub(super) fn clashes(&self, other: &Self) -> bool {
        let everywhere = self.binds_everywhere() || other.binds_everywhere();
        self.port == other.port && (everywhere || self.host.eq_ignore_ascii_case(&other.host))
    }
}

/// The two lists of a template with the broker's overrides; Kafka starts with them.
struct Both {
    bound: Vec<Listener>,
    advertised: Vec<Listener>,
    /// The names of the controllers' listeners.
    controllers: Vec<String>,
}

impl Both {
    fn read(file: &Properties) -> Result<Self, String> {
        let bound = listeners(file, BOUND)?.ok_or(
            "it has no `listeners`: add, for example, listeners=PLAINTEXT://:9092; names and protocols are \
             taken from it",
        )?;
        let controllers = controllers(file);
        let is_controller = |l: &Listener| controllers.iter().any(|name| l.is_named(name));
        if let Some(stray) = bound.iter().find(|l| is_controller(l) && !is_combined(file)) {
            return Err(format!(
                "`listeners` has {}, and with process.roles=broker Kafka refuses a listener of controller.listener.names \
                 there: leave it out",
                stray.print()
            ));
        }
        let advertised = match listeners(file, ADVERTISED)? {
            Some(advertised) => advertised,
            None => bound.iter().filter(|l| !is_controller(l)).cloned().collect(),
        };
        if let Some(stray) = advertised.iter().find(|a| !bound.iter().any(|b| b.is_named(&a.name))) {
            return Err(format!("advertised.listeners names `{}` and listeners does not", stray.name));
        }
        Ok(Self { bound, advertised, controllers })
    }

    fn is_controller(&self, listener: &Listener) -> bool {
        self.controllers.iter().any(|name| listener.is_named(name))
    }
}

/// Where the listeners of a template go with a broker.
struct Layout<'a> {
    both: Both,
    broker: &'a BrokerIdentity,
    /// The one that the broker's section speaks of, as it is bound.
    client: Listener,
}

impl<'a> Layout<'a> {
    fn of(both: Both, broker: &'a BrokerIdentity) -> Result<Self, String> {
        let candidates = both.bound.iter().filter(|l| !both.is_controller(l)).collect::<Vec<_>>();
        let client = client_listener(&candidates, &both.advertised, &broker.listener)?.clone();
        Ok(Self { both, broker, client })
    }

    fn is_client(&self, listener: &Listener) -> bool {
        listener.is_named(&self.client.name)
    }

    /// Whether it goes where the broker goes. One bound to an address of its own belongs to another network.
    fn moves(&self, listener: &Listener) -> bool {
        let Some(bound) = self.both.bound.iter().find(|l| l.is_named(&listener.name)) else { return false };
        if bound.is_loopback() {
            return self.is_client(bound);
        }
        let with_clients = bound.binds_everywhere() || bound.host.eq_ignore_ascii_case(&self.client.host);
        self.is_client(bound) || self.both.is_controller(bound) || with_clients
    }

    /// Where it is reached after a takeover.
    fn moved(&self, listener: &Listener) -> Listener {
        if !self.moves(listener) {
            return listener.clone();
        }
        let Endpoint { host, port } = &self.broker.listener;
        let port = if self.is_client(listener) { *port } else { listener.port };
        Listener { name: listener.name.clone(), host: host.clone(), port }
    }

    /// What to bind for it after a takeover.
    fn rebound(&self, bound: &Listener) -> Listener {
        if !self.moves(bound) {
            return bound.clone();
        }
        let mut moved = self.moved(bound);
        // A name may stand for an address that is not on this host, such as that of a load balancer. An
        // address is bound, so that two brokers with the same port can run here side by side.
        if moved.address().is_none() && bound.binds_everywhere() {
            moved.host.clone_from(&bound.host);
        }
        // Ports that differ in the template are mapped on the way, and that stays so.
        if self.both.advertised.iter().any(|l| l.is_named(&bound.name) && l.port != bound.port) {
            moved.port = bound.port;
        }
        moved
    }
}

/// Gives the listeners that move the broker's own address; the client's gets the port of the broker's section
/// as well. A key that the broker's overrides name is theirs.
pub(super) fn set_listeners(file: &mut Properties, broker: &BrokerIdentity) -> Result<(), String> {
    let given = |key: &str| broker.properties.contains_key(key);
    let both = Both::read(file)?;
    if given(BOUND) && given(ADVERTISED) {
        return Ok(());
    }
    let layout = Layout::of(both, broker)?;
    if !given(ADVERTISED) {
        file.set(ADVERTISED, &print(layout.both.advertised.iter().map(|l| layout.moved(l))));
    }
    if !given(BOUND) {
        file.set(BOUND, &print(layout.both.bound.iter().map(|l| layout.rebound(l))));
    }
    Ok(())
}

/// The listeners for which the template advertises a host of their own, other than the clients', each with
/// what a takeover makes of it.
pub(super) fn renamed(file: &Properties, broker: &BrokerIdentity) -> Vec<(Listener, Listener)> {
    let told = listeners(file, ADVERTISED).is_ok_and(|told| told.is_some());
    let Ok(layout) = Both::read(file).and_then(|both| Layout::of(both, broker)) else { return Vec::new() };
    if !told || broker.properties.contains_key(ADVERTISED) {
        return Vec::new();
    }
    let of_clients = layout.both.advertised.iter().find(|l| layout.is_client(l)).unwrap_or(&layout.client);
    let own = |l: &&Listener| {
        layout.moves(l) && !layout.both.is_controller(l) && !l.host.eq_ignore_ascii_case(&of_clients.host)
    };
    layout.both.advertised.iter().filter(own).map(|l| (l.clone(), layout.moved(l))).collect()
}

/// The listener that the broker's section speaks of. One at loopback is nobody's but this host's.
fn client_listener<'l>(
    candidates: &[&'l Listener],
    advertised: &[Listener],
    endpoint: &Endpoint,
) -> Result<&'l Listener, String> {
    if candidates.is_empty() {
        return Err("`listeners` names no listener but the controller's: add one for clients".into());
    }
    let all = print(candidates.iter().copied().cloned());
    let open = |l: &&&Listener| !l.is_loopback() || is_loopback(&endpoint.host);
    let candidates: Vec<&Listener> = candidates.iter().filter(open).copied().collect();
    let reached_at = |l: &Listener| advertised.iter().find(|a| a.is_named(&l.name)).unwrap_or(l).port;
    let same_port: Vec<_> = candidates.iter().copied().filter(|l| reached_at(l) == endpoint.port).collect();
    match (&candidates[..], &same_port[..]) {
        ([], _) => Err(format!(
            "it has the listeners {all}, which are bound to loopback (a name, by this host's /etc/hosts), and clients come to \
             {endpoint}: bind one for them, such as SASL_SSL://:{}",
            endpoint.port
        )),
        ([only], _) | (_, [only]) => Ok(*only),
        _ => Err(format!(
            "it has the listeners {all}, and {} of them are reached at port {}, the port of the broker's \
             `listener`: give exactly one of them that port, or name `listeners` and `advertised.listeners` in \
             [broker.properties]",
            same_port.len(),
            endpoint.port
        )),
    }
}

fn listeners(file: &Properties, key: &str) -> Result<Option<Vec<Listener>>, String> {
    let Some(value) = file.get(key).filter(|value| !value.trim().is_empty()) else { return Ok(None) };
    let parse = |text: &str| {
        Listener::parse(text).ok_or_else(|| format!("`{text}` in {key}={value} is not NAME://host:port"))
    };
    list(value).map(parse).collect::<Result<_, _>>().map(Some)
}

/// What a rendered file has bound.
pub(super) fn bound(file: &Properties) -> Vec<Listener> {
    listeners(file, BOUND).ok().flatten().unwrap_or_default()
}

/// What a rendered file tells clients, without the controllers'.
pub(super) fn advertised(file: &Properties) -> Result<Vec<Listener>, String> {
    let controllers = controllers(file);
    let mut told = listeners(file, ADVERTISED)?.unwrap_or_default();
    told.retain(|listener| !controllers.iter().any(|name| listener.is_named(name)));
    Ok(told)
}

/// Where the controllers' listener is bound in the file of a broker that is a controller too.
pub(super) fn controller(file: &Properties) -> Option<Listener> {
    let controllers = controllers(file);
    bound(file).into_iter().find(|l| controllers.iter().any(|name| l.is_named(name)))
}

/// The names of the controllers' listeners.
pub(super) fn controllers(file: &Properties) -> Vec<String> {
    list(file.get("controller.listener.names").unwrap_or_default()).map(str::to_owned).collect()
}

/// Whether the broker is a controller as well.
pub(super) fn is_combined(file: &Properties) -> bool {
    list(file.get("process.roles").unwrap_or_default()).any(|role| role == "controller")
}

pub(super) fn print(listeners: impl Iterator<Item = Listener>) -> String {
    listeners.map(|listener| listener.print()).collect::<Vec<_>>().join(",")
}

/// The items of a list, as Kafka writes one.
pub(super) fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests;
