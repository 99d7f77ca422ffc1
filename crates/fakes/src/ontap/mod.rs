//! A stateful ONTAP in this process, over HTTP or HTTPS: for tests, and for pointing a vendor's own tools at.
//!
//! It keeps records as ONTAP shows them, answers the query language over them (`fields`, filters, pages,
//! order), follows the rules of each resource that it knows, and ends changes of volumes in jobs. [`Fault`]s
//! make it behave as storage does on a bad day. [`Fake::allows`] says whether a client would be let in, as
//! the export policies and the access cache have it at this moment.
//!
//! ```
//! # async fn example() -> std::io::Result<()> {
//! use fakes::ontap::{Fake, World};
//!
//! let mut world = World::small();
//! world.policy("svm1", "broker-1", &[&["10.0.0.101"]]);
//! world.volume("svm1", "kafka01", "broker-1");
//! let fake = Fake::start(world).await?;
//! assert!(fake.allows([10, 0, 0, 101].into(), "kafka01").may_write());
//! // … point a client at fake.url(), user `admin`, password `secret`.
//! # Ok(())
//! # }
//! ```
//!
//! What it is not: no real system stood behind it. Where nobody could establish what ONTAP does, it does the
//! plain thing. It serves a few hundred records, clears nothing away, checks no types of what it does not
//! use, and takes every field that it is asked for as known ([`World::does_not_know`] names those that are
//! not). Where a volume is meant by its name alone, that name has to be one of a kind in all SVMs.

mod access;
mod access_cli;
mod answer;
mod change;
mod cli;
mod clients;
mod create;
mod faults;
mod fields;
mod ops;
mod query;
mod read;
mod refusal;
mod server;
mod shapes;
mod state;
mod world;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use access::Access;
pub use clients::LockFace;
pub use faults::Fault;
pub use server::ClientCertificate;
pub use shapes::Table;
pub use state::Request;
pub use world::World;

use state::{Follower, State};

/// How a [`Fake`] is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTPS with a self-signed certificate for `localhost` and the address.
    Https,
}

/// A running fake. Dropping it ends it with all its connections.
#[derive(Debug)]
pub struct Fake {
    state: Arc<State>,
    address: SocketAddr,
    scheme: Scheme,
    certificate: Option<(String, Vec<u8>)>,
    server: JoinHandle<()>,
}

impl Fake {
    /// Serves `world` by HTTP on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// No port could be bound.
    pub async fn start(world: World) -> io::Result<Self> {
        Self::listen(world, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), Scheme::Http).await
    }

    /// As [`Fake::start`], by HTTPS.
    ///
    /// # Errors
    /// No port could be bound, or no certificate made.
    pub async fn https(world: World) -> io::Result<Self> {
        Self::listen(world, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), Scheme::Https).await
    }

    /// Serves `world` at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// The address could not be bound, or no certificate made.
    pub async fn listen(world: World, address: SocketAddr, scheme: Scheme) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let identity = match scheme {
            Scheme::Http => None,
            Scheme::Https => Some(server::identity(address)?),
        };
        let state = State::new(world);
        let acceptor = identity.as_ref().map(|identity| identity.acceptor.clone());
        let server = tokio::spawn(server::serve(listener, acceptor, Arc::clone(&state)));
        let certificate = identity.map(|identity| (identity.pem, identity.der));
        Ok(Self { state, address, scheme, certificate, server })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT`, without `/api`.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.scheme == Scheme::Https { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The self-signed certificate as PEM: a private CA for who trusts it. `None` without HTTPS.
    #[must_use]
    pub fn certificate_pem(&self) -> Option<&str> {
        self.certificate.as_ref().map(|(pem, _)| pem.as_str())
    }

    /// The self-signed certificate as DER, to pin it. `None` without HTTPS.
    #[must_use]
    pub fn certificate_der(&self) -> Option<&[u8]> {
        self.certificate.as_ref().map(|(_, der)| der.as_slice())
    }

    /// Makes a client certificate by which the account `name` can log in, by HTTPS.
    ///
    /// # Errors
    /// No certificate could be made.
    pub fn client_certificate(&self, name: &str) -> io::Result<ClientCertificate> {
        let made = server::client_certificate(name)?;
        self.world(|world| world.certificate(name, &made.der));
        Ok(made)
    }

    /// Reads or changes the world; who watches [`Fake::changes`] is told.
    pub fn world<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        let result = act(&mut self.state.lock().world);
        self.state.changed();
        result
    }

    /// Ends all jobs now, as if their time had come: [`World::jobs_take`] an hour, and a test need not race
    /// with them.
    pub fn end_jobs(&self) {
        self.state.end_jobs();
    }

    /// Every request so far, in the order of their ends.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().log.clone()
    }

    /// Forgets the requests so far.
    pub fn forget_requests(&self) {
        self.state.lock().log.clear();
    }

    /// Switches a fault on. Several can be for the same request.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Switches all faults off. A lag that has begun goes on.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// What happens when `client` touches `volume` now. The access cache remembers the verdict, as it does
    /// for every client that touches a volume: only a client that it knows is subject to
    /// [`Fault::bites_late`].
    #[must_use]
    pub fn allows(&self, client: IpAddr, volume: &str) -> Access {
        access::knock(&mut self.state.lock().world, client, volume)
    }

    /// Has `act` called after every change by request, before it is answered: for a test bed that gates real
    /// access by [`Fake::allows`], so that who reads an answer finds it to be so. What comes later
    /// ([`Fault::bites_late`], a job) is told by [`Fake::changes`].
    pub fn follow(&self, act: impl Fn() + Send + Sync + 'static) {
        self.state.follow(Follower(Arc::new(act)));
    }

    /// Wakes up whenever [`Fake::allows`] may have come to answer otherwise: after every change, when a job
    /// ends, and when a lag is over.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.state.changes()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.abort();
    }
}
