//! The power switch of the rack: what a fence agent talks to.
//!
//! One request per connection, one line: `ACTION PLUG`. One line back: `ok`, `on`, `off`, `unknown`, or
//! `error TEXT`. The switch is part of the bed, not of any host, so it works while hosts die.
//!
//! A host has three outlets: `b1` is its power, `b1/storage` its access to the file server, and
//! `b1/isolation` that and its network link together. The last two leave its processes alive.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::host::Host;
use crate::nfs::Guest;

/// How the switch treats one plug.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// It obeys and tells the truth.
    #[default]
    Works,
    /// It obeys, but cannot tell the state of the plug: `status` says `unknown`.
    Unknown,
    /// It does not answer.
    Hang,
    /// It refuses every change.
    Refuse,
    /// It says that it obeyed, and did nothing; `status` tells the truth.
    Lie,
}

/// What of a host an outlet switches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Outlet {
    /// Its power.
    #[default]
    Power,
    /// Its access to the log dirs, which must be mounted with [`crate::Storage::Fuse`].
    Storage,
    /// That, and its link: for a host that lives, whose address would otherwise answer beside the new
    /// owner's.
    Isolation,
}

impl Outlet {
    /// The plug of `host` in this kind of outlet.
    #[must_use]
    pub fn plug(self, host: &str) -> String {
        match self {
            Self::Power => host.to_owned(),
            Self::Storage => format!("{host}/storage"),
            Self::Isolation => format!("{host}/isolation"),
        }
    }

    fn of(plug: &str) -> (&str, Self) {
        match plug.split_once('/') {
            Some((host, "storage")) => (host, Self::Storage),
            Some((host, "isolation")) => (host, Self::Isolation),
            _ => (plug, Self::Power),
        }
    }

    fn off(self, host: &Host) -> Result<()> {
        match self {
            Self::Power => host.power_off(),
            Self::Storage => host.deny_storage(),
            Self::Isolation if host.is_on() => host.cut().and_then(|()| host.deny_storage()),
            Self::Isolation => host.deny_storage(),
        }
    }

    fn on(self, host: &Host) -> Result<()> {
        match self {
            Self::Power => host.power_on(),
            Self::Storage => host.allow_storage(),
            Self::Isolation if host.is_on() => host.allow_storage().and_then(|()| host.heal()),
            Self::Isolation => host.allow_storage(),
        }
    }

    fn is_on(self, host: &Host) -> Result<bool> {
        match self {
            Self::Power => Ok(host.is_on()),
            Self::Storage => Ok(!host.has_lost_storage()?),
            Self::Isolation => Ok(!host.has_lost_storage()? || host.is_linked()),
        }
    }
}

/// The hosts of a story, by name: each is plugged into the outlets of that name.
pub(crate) type Hosts = Arc<Mutex<BTreeMap<String, Arc<Host>>>>;

/// A switch with an outlet for every host.
#[derive(Debug)]
pub struct PowerSwitch {
    address: SocketAddrV4,
    rack: Arc<Rack>,
}

#[derive(Debug)]
struct Rack {
    hosts: Hosts,
    /// Machines with kernels of their own, each plugged into the outlet of its name.
    guests: Mutex<BTreeMap<String, Arc<Guest>>>,
    modes: Mutex<BTreeMap<String, Mode>>,
    requests: Mutex<Vec<String>>,
}

impl PowerSwitch {
    /// Listens on `ip` for the rest of the story.
    pub(crate) fn start(ip: Ipv4Addr, hosts: Hosts) -> Result<Self> {
        let listener = TcpListener::bind((ip, 0))?;
        let port = listener.local_addr()?.port();
        let rack = Arc::new(Rack {
            hosts,
            guests: Mutex::default(),
            modes: Mutex::default(),
            requests: Mutex::default(),
        });
        let served = Arc::clone(&rack);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let rack = Arc::clone(&served);
                thread::spawn(move || {
                    if let Err(error) = rack.serve(connection) {
                        eprintln!("power switch: {error:#}");
                    }
                });
            }
        });
        Ok(Self { address: SocketAddrV4::new(ip, port), rack })
    }

    /// Where it listens: the fence agent's `ip` and `ipport`.
    #[must_use]
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// From now on, switches the power of this machine too.
    pub fn plug_in(&self, guest: &Arc<Guest>) {
        lock(&self.rack.guests).insert(guest.name().to_owned(), Arc::clone(guest));
    }

    /// From now on, treats `plug` so.
    pub fn set_mode(&self, plug: &str, mode: Mode) {
        lock(&self.rack.modes).insert(plug.to_owned(), mode);
    }

    /// Every request so far, `ACTION PLUG`, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        lock(&self.rack.requests).clone()
    }

    /// How often `action` was asked for `plug`.
    #[must_use]
    pub fn count(&self, action: &str, plug: &str) -> usize {
        let request = format!("{action} {plug}");
        lock(&self.rack.requests).iter().filter(|made| **made == request).count()
    }
}

impl Rack {
    fn serve(&self, mut connection: TcpStream) -> Result<()> {
        connection.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut request = String::new();
        BufReader::new(&connection).read_line(&mut request)?;
        let request = request.trim();
        lock(&self.requests).push(request.to_owned());
        let (action, plug) = request.split_once(' ').unwrap_or((request, ""));
        let mode = lock(&self.modes).get(plug).copied().unwrap_or_default();
        if mode == Mode::Hang {
            // The connection stays open, and silent, for longer than any deadline.
            thread::sleep(Duration::from_secs(600));
            return Ok(());
        }
        let answer = match self.act(action, plug, mode) {
            Ok(answer) => answer.to_owned(),
            Err(error) => format!("error {error:#}"),
        };
        writeln!(connection, "{answer}")?;
        Ok(())
    }

    fn act(&self, action: &str, plug: &str, mode: Mode) -> Result<&'static str> {
        let (name, outlet) = Outlet::of(plug);
        let (host, guest) = (lock(&self.hosts).get(name).cloned(), lock(&self.guests).get(plug).cloned());
        let machine: &dyn Plugged = match (&host, &guest) {
            (Some(host), _) => &Socket { outlet, host },
            (None, Some(guest)) => guest.as_ref(),
            (None, None) => anyhow::bail!("no plug {plug:?}"),
        };
        match (action, mode) {
            ("off" | "on", Mode::Refuse) => anyhow::bail!("outlet locked by administrator"),
            ("off" | "on", Mode::Lie) => Ok("ok"),
            ("off", _) => machine.off().map(|()| "ok"),
            ("on", _) => machine.on().map(|()| "ok"),
            ("status", Mode::Unknown) => Ok("unknown"),
            ("status", _) => Ok(if machine.is_on()? { "on" } else { "off" }),
            _ => anyhow::bail!("no action {action:?}"),
        }
    }
}

/// What an outlet can switch.
trait Plugged {
    fn off(&self) -> Result<()>;
    fn on(&self) -> Result<()>;
    fn is_on(&self) -> Result<bool>;
}

struct Socket<'h> {
    outlet: Outlet,
    host: &'h Host,
}

impl Plugged for Socket<'_> {
    fn off(&self) -> Result<()> {
        self.outlet.off(self.host)
    }

    fn on(&self) -> Result<()> {
        self.outlet.on(self.host)
    }

    fn is_on(&self) -> Result<bool> {
        self.outlet.is_on(self.host)
    }
}

impl Plugged for Guest {
    fn off(&self) -> Result<()> {
        self.crash()
    }

    fn on(&self) -> Result<()> {
        self.power_on()
    }

    fn is_on(&self) -> Result<bool> {
        Ok(Guest::is_on(self))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
