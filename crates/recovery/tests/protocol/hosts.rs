//! The hosts, and sets of them.

use std::fmt;

/// A host on which the broker's Kafka may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Host {
    /// The owner at first. Alive, hung, dead or cut off: nobody really knows.
    Old,
    /// A standby with its agent.
    A,
    /// Another.
    B,
}

impl Host {
    pub(crate) const ALL: [Self; 3] = [Self::Old, Self::A, Self::B];
    pub(crate) const STANDBYS: [Self; 2] = [Self::A, Self::B];
}

/// A set of hosts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Hosts(u8);

impl Hosts {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn of(host: Host) -> Self {
        Self(1 << host as u8)
    }

    pub(crate) fn contains(self, host: Host) -> bool {
        self.0 & Self::of(host).0 != 0
    }

    pub(crate) fn includes(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn without(self, host: Host) -> Self {
        Self(self.0 & !Self::of(host).0)
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn add(&mut self, host: Host) {
        *self = self.union(Self::of(host));
    }

    pub(crate) fn remove(&mut self, host: Host) {
        *self = self.without(host);
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Host> {
        Host::ALL.into_iter().filter(move |host| self.contains(*host))
    }
}

impl FromIterator<Host> for Hosts {
    fn from_iter<I: IntoIterator<Item = Host>>(hosts: I) -> Self {
        hosts.into_iter().fold(Self::NONE, |all, host| all.union(Self::of(host)))
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
