//! systemd over D-Bus: one connection, made anew whenever it breaks; nothing is waited for without a
//! deadline.
//!
//! What a broken connection, a bus that is gone or a manager that executes itself anew leaves unknown is
//! asked again. It never counts as an answer, and least of all as "stopped".

use std::collections::HashMap;
use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use rustix::process::Signal;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use zbus::fdo::PropertiesProxy;
use zbus::names::InterfaceName;
use zbus::proxy::CacheProperties;
use zbus::{Connection, ObjectPath, OwnedObjectPath, OwnedVariant, conn};

use super::super::problem::Problem;
use super::unit::Unit;

/// Between two attempts to reach a manager that does not answer.
const PAUSE: Duration = Duration::from_millis(200);

/// How often a job is looked for while its end is waited for: the signal of its end may have been missed.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How often a unit is read again that changed while it was read.
const READS: usize = 5;

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Manager {
    /// Has signals sent to us.
    async fn subscribe(&self) -> zbus::Result<()>;
    /// Reads the unit's files if need be.
    async fn load_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
    /// Keeps the unit in memory for as long as we are connected, so that what became of it can be read.
    async fn ref_unit(&self, name: &str) -> zbus::Result<()>;
    /// Queues a start; the answer is the job.
    async fn start_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    /// Queues a stop; the answer is the job.
    async fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    /// Forgets that the unit failed, and how often it was started.
    async fn reset_failed_unit(&self, name: &str) -> zbus::Result<()>;
    /// Sends a signal to processes of the unit.
    async fn kill_unit(&self, name: &str, whom: &str, signal: i32) -> zbus::Result<()>;
    /// `daemon-reload`; answers once it is done.
    async fn reload(&self) -> zbus::Result<()>;
    /// Every process in the unit's control group: where, number, command line.
    async fn get_unit_processes(&self, name: &str) -> zbus::Result<Vec<(String, u32, String)>>;
    /// A job is over, one way or the other.
    #[zbus(signal)]
    async fn job_removed(&self, id: u32, job: ObjectPath<'_>, unit: &str, result: &str) -> zbus::Result<()>;
    /// The version of systemd.
    #[zbus(property)]
    fn version(&self) -> zbus::Result<String>;
}

const UNIT: &str = "org.freedesktop.systemd1.Unit";
const SERVICE: &str = "org.freedesktop.systemd1.Service";

/// What a unit can be asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Never against a stop that is queued: that was somebody's wish.
    Start,
    /// Against a start that is queued.
    Stop,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobEnd {
    /// systemd's own word: `done`, `failed`, `skipped`, `timeout`, `dependency`, `canceled` …
    Told(String),
    /// It is over, or was never begun, and nobody heard how: the unit has to be looked at.
    Unheard,
}

/// The way to the manager.
pub(super) struct Bus {
    /// Another bus than the system's.
    address: Option<String>,
    connection: Mutex<Option<Connection>>,
}

impl Bus {
    pub(super) fn new(address: Option<String>) -> Self {
        Self { address, connection: Mutex::default() }
    }

    async fn connection(&self) -> zbus::Result<Connection> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let builder = match &self.address {
            Some(address) => conn::Builder::address(address.as_str()),
            None => conn::Builder::system(),
        };
        let fresh = builder.build().await?;
        *kept = Some(fresh.clone());
        Ok(fresh)
    }

    async fn manager(&self) -> zbus::Result<ManagerProxy<'static>> {
        let connection = self.connection().await?;
        ManagerProxy::builder(&connection).cache_properties(CacheProperties::No).build().await
    }

    /// The next call makes a new connection.
    async fn hang_up(&self) {
        self.connection.lock().await.take();
    }

    /// Asks what may be asked twice, until there is an answer or `limit` is over. `what`: "systemd was asked
    /// to …".
    async fn ask<T, F: Future<Output = zbus::Result<T>>>(
        &self,
        what: &str,
        limit: Duration,
        call: impl Fn(ManagerProxy<'static>) -> F,
    ) -> Result<T, Problem> {
        let begun = Instant::now();
        loop {
            let attempt = async { call(self.manager().await?).await };
            let error = match timeout(limit.saturating_sub(begun.elapsed()), attempt).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) => {
                    self.hang_up().await;
                    return Err(Problem::Unconfirmed { what: format!("systemd was asked to {what}"), limit });
                }
            };
            if !may_pass(&error) {
                return Err(refused(what, &error));
            }
            self.hang_up().await;
            if begun.elapsed() + PAUSE >= limit {
                return Err(unreachable(what, error));
            }
            sleep(PAUSE).await;
        }
    }

    /// systemd's version: it can be reached.
    pub(super) async fn version(&self, limit: Duration) -> Result<String, Problem> {
        self.ask("tell its version", limit, |manager| async move { manager.version().await }).await
    }

    /// `daemon-reload`, done when this returns.
    pub(super) async fn reload(&self, limit: Duration) -> Result<(), Problem> {
        self.ask("reload its units", limit, |manager| async move { manager.reload().await }).await
    }

    /// Lets a unit that failed be started again, however often that was tried.
    pub(super) async fn reset_failed(&self, unit: &str, limit: Duration) -> Result<(), Problem> {
        let name = unit.to_owned();
        let reset = move |manager: ManagerProxy<'static>| {
            let name = name.clone();
            async move { manager.reset_failed_unit(&name).await }
        };
        self.ask(&format!("forget that {unit} failed"), limit, reset).await
    }

    /// Sends SIGKILL to everything in the unit's control group. That it ended has to be looked at.
    pub(super) async fn kill(&self, unit: &str, limit: Duration) -> Result<(), Problem> {
        let name = unit.to_owned();
        let kill = move |manager: ManagerProxy<'static>| {
            let name = name.clone();
            async move { manager.kill_unit(&name, "all", Signal::KILL.as_raw()).await }
        };
        self.ask(&format!("kill {unit}"), limit, kill).await
    }

    /// The processes in the unit's control group, in words.
    pub(super) async fn processes(&self, unit: &str, limit: Duration) -> Result<Vec<String>, Problem> {
        let name = unit.to_owned();
        let list = move |manager: ManagerProxy<'static>| {
            let name = name.clone();
            async move {
                match manager.get_unit_processes(&name).await {
                    // It forgets units from which nothing can come: no state, no job, no process.
                    Err(error) if name_of(&error).is_some_and(|name| name.ends_with(".NoSuchUnit")) => {
                        Ok(Vec::new())
                    }
                    found => found,
                }
            }
        };
        let found = self.ask(&format!("list the processes of {unit}"), limit, list).await?;
        Ok(found.into_iter().map(|(_, pid, command)| format!("{pid} ({command})")).collect())
    }

    /// What systemd says of the unit now.
    pub(super) async fn look(&self, unit: &str, limit: Duration) -> Result<Unit, Problem> {
        let name = unit.to_owned();
        let look = move |manager: ManagerProxy<'static>| {
            let name = name.clone();
            async move { read(&manager, &name).await }
        };
        let (of_unit, of_service) = self.ask(&format!("tell of {unit}"), limit, look).await?;
        Unit::of(unit, &of_unit, &of_service).map_err(Problem::Refused)
    }

    /// Queues a job and waits for its end, for `limit` at most.
    pub(super) async fn job(&self, verb: Verb, unit: &str, limit: Duration) -> Result<JobEnd, Problem> {
        let what = match verb {
            Verb::Start => format!("start {unit}"),
            Verb::Stop => format!("stop {unit}"),
        };
        let error = match timeout(limit, self.follow(verb, unit)).await {
            Ok(Ok(end)) => return Ok(end),
            Ok(Err(error)) => error,
            Err(_) => {
                return Err(Problem::Unconfirmed {
                    what: format!("the job to {what} has not ended; `systemctl list-jobs` shows it"),
                    limit,
                });
            }
        };
        if !may_pass(&error) {
            return Err(refused(&what, &error));
        }
        tracing::debug!(unit, %error, "lost sight of a job of systemd");
        self.hang_up().await;
        sleep(PAUSE).await;
        Ok(JobEnd::Unheard)
    }

    async fn follow(&self, verb: Verb, unit: &str) -> zbus::Result<JobEnd> {
        let manager = self.manager().await?;
        // Listening begins before the job does: a short one may end before its number is known here.
        let mut removed = manager.receive_job_removed().await?;
        match manager.subscribe().await {
            Err(error) if !name_of(&error).is_some_and(|name| name.ends_with(".AlreadySubscribed")) => {
                return Err(error);
            }
            _ => {}
        }
        let job = match verb {
            Verb::Start => {
                if let Err(error) = manager.ref_unit(unit).await {
                    tracing::debug!(unit, %error, "systemd may forget why a start failed");
                }
                manager.start_unit(unit, "fail").await?
            }
            Verb::Stop => manager.stop_unit(unit, "replace").await?,
        };
        let mut gone = false;
        loop {
            tokio::select! {
                signal = removed.next() => {
                    let Some(signal) = signal else { return Ok(JobEnd::Unheard) };
                    let end = signal.args()?;
                    if *end.job() == *job {
                        return Ok(JobEnd::Told(end.result().to_string()));
                    }
                }
                () = sleep(LOOK_EVERY) => {
                    // Its signal has had time to arrive since it was found to be gone.
                    if gone {
                        return Ok(JobEnd::Unheard);
                    }
                    let (of_unit, of_service) = read(&manager, unit).await?;
                    let now = Unit::of(unit, &of_unit, &of_service);
                    gone = now.is_ok_and(|now| now.job.is_none_or(|id| !job.as_str().ends_with(&format!("/{id}"))));
                }
            }
        }
    }
}

type Properties = HashMap<String, OwnedVariant>;

/// Both interfaces of a unit, as of one moment: read again while something changes.
async fn read(manager: &ManagerProxy<'static>, unit: &str) -> zbus::Result<(Properties, Properties)> {
    let path = manager.load_unit(unit).await?;
    let connection = manager.inner().connection();
    let properties = PropertiesProxy::builder(connection)
        .destination("org.freedesktop.systemd1")
        .path(path)
        .cache_properties(CacheProperties::No)
        .build()
        .await?;
    let all = async |interface: &'static str| {
        let name = InterfaceName::from_static_str(interface)?;
        properties.get_all(name).await.map_err(zbus::Error::from)
    };
    let mut before = all(UNIT).await?;
    let mut reads = 0;
    loop {
        let of_service = all(SERVICE).await?;
        let after = all(UNIT).await?;
        reads += 1;
        let same = ["ActiveState", "SubState", "Job", "InvocationID"]
            .iter()
            .all(|key| before.get(*key) == after.get(*key));
        if same || reads == READS {
            return Ok((after, of_service));
        }
        before = after;
    }
}

/// The D-Bus name of an error that the other side sent.
fn name_of(error: &zbus::Error) -> Option<String> {
    match error {
        zbus::Error::MethodError(name, ..) => Some(name.to_string()),
        zbus::Error::FDO(error) => match error.as_ref() {
            zbus::fdo::Error::ZBus(error) => name_of(error),
            error => Some(zbus::DBusError::name(error).to_string()),
        },
        _ => None,
    }
}

/// Whether the same may succeed later: the bus or the manager was not there, or left in the middle of it.
fn may_pass(error: &zbus::Error) -> bool {
    const PASSING: [&str; 8] = [
        "NoReply",
        "ServiceUnknown",
        "NameHasNoOwner",
        "NoServer",
        "Disconnected",
        "TimedOut",
        "Timeout",
        "NoMemory",
    ];
    let Some(name) = name_of(error) else {
        // Not the other side's answer: the connection.
        return true;
    };
    name.strip_prefix("org.freedesktop.DBus.Error.")
        .is_some_and(|name| PASSING.contains(&name) || name.starts_with("Spawn."))
}

fn refused(what: &str, error: &zbus::Error) -> Problem {
    let denied = ["AccessDenied", "InteractiveAuthorizationRequired", "AuthFailed"];
    let name = name_of(error).unwrap_or_default();
    let remedy = if denied.iter().any(|denied| name.ends_with(denied)) {
        ": run the agent as root, or let it manage units by a polkit rule for org.freedesktop.systemd1.manage-units"
    } else if name.ends_with(".TransactionIsDestructive") {
        ": somebody is stopping it at this moment; see `systemctl list-jobs`"
    } else {
        ""
    };
    Problem::Refused(format!("systemd does not {what}: {error}{remedy}"))
}

fn unreachable(what: &str, error: zbus::Error) -> Problem {
    Problem::Io {
        what: format!("asking systemd over D-Bus to {what}: are dbus.service and systemd well?"),
        source: std::io::Error::other(error),
    }
}
