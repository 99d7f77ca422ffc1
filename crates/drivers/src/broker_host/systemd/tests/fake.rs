//! A stand-in for systemd on a bus of its own: one unit, whose main process is a real one.

mod unit;

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use zbus::object_server::SignalEmitter;
use zbus::{Connection, ObjectPath, OwnedObjectPath, conn, fdo};

use unit::{Service, Unit};

pub(super) const UNIT: &str = "kafka@1.service";
const NAME: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "/org/freedesktop/systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1/unit/kafka_401_2eservice";

/// How long a job takes here.
const JOB_TAKES: Duration = Duration::from_millis(60);

/// What comes of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnStart {
    /// It runs.
    Runs,
    /// It runs, and nobody is told.
    RunsUnheard,
    /// Its main process fails at once.
    Fails,
    /// Its condition says no.
    Skipped,
    /// A `Condition…=` of the unit does not hold: done, says systemd, and nothing was run.
    NotMet,
    /// Its condition never comes to an end.
    Hangs,
    /// The caller may not.
    Denied,
}

/// What comes of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnStop {
    /// It ends.
    Ends,
    /// It ends with an exit code of its own.
    EndsBadly,
    /// It goes on running, and systemd gives up.
    Ignored,
}

pub(super) struct Machine {
    run_dir: PathBuf,
    pub(super) active: &'static str,
    pub(super) sub: &'static str,
    pub(super) result: &'static str,
    pub(super) load: &'static str,
    pub(super) job: u32,
    jobs: u32,
    invocation: u8,
    pub(super) main: Option<Child>,
    pub(super) control_group: Vec<(String, u32, String)>,
    loaded: Vec<String>,
    /// What another drop-in, which sorts later, sets.
    pub(super) overridden: Option<&'static str>,
    /// What the unit has for `ExecStop=`.
    pub(super) exec_stop: Option<&'static str>,
    /// What the unit has for `ProtectSystem=`.
    pub(super) protect_system: &'static str,
    pub(super) on_start: OnStart,
    pub(super) on_stop: OnStop,
    pub(super) starts: u32,
    pub(super) kills: u32,
    pub(super) resets: u32,
    pub(super) reloads: u32,
}

impl Machine {
    fn drop_in(&self) -> PathBuf {
        super::drop_in::path(&self.run_dir, UNIT)
    }

    fn reload(&mut self) {
        self.reloads += 1;
        let text = fs::read_to_string(self.drop_in()).unwrap_or_default();
        let words = text.lines().filter_map(|line| line.strip_prefix("Environment=\"")?.strip_suffix('"'));
        self.loaded = words.map(str::to_owned).collect();
    }

    pub(super) fn run(&mut self) {
        let pairs = self.loaded.iter().filter_map(|pair| pair.split_once('='));
        let mut command = Command::new("sleep");
        command.arg("1000").env_clear().envs(pairs).env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
        self.main = Some(command.spawn().unwrap());
        (self.active, self.sub, self.result) = ("active", "running", "success");
    }

    /// Ends the main process, if there is one.
    pub(super) fn kill(&mut self) {
        if let Some(mut main) = self.main.take() {
            main.kill().unwrap();
            main.wait().unwrap();
        }
    }

    fn pid(&self) -> u32 {
        self.main.as_ref().map_or(0, Child::id)
    }

    /// What a job comes to; `None` if it never ends, or if nobody is told.
    fn end_start(&mut self) -> Option<&'static str> {
        match self.on_start {
            OnStart::Hangs | OnStart::Denied => return None,
            OnStart::Runs | OnStart::RunsUnheard => self.run(),
            OnStart::Fails => (self.active, self.sub, self.result) = ("failed", "failed", "exit-code"),
            OnStart::Skipped => (self.active, self.sub, self.result) = ("inactive", "dead", "exec-condition"),
            OnStart::NotMet => {
                (self.active, self.sub) = ("inactive", "dead");
                self.invocation -= 1;
            }
        }
        self.job = 0;
        match self.on_start {
            OnStart::Fails => Some("failed"),
            OnStart::Skipped => Some("skipped"),
            OnStart::RunsUnheard => None,
            _ => Some("done"),
        }
    }

    fn end_stop(&mut self) -> &'static str {
        self.job = 0;
        match self.on_stop {
            OnStop::Ignored => {
                (self.active, self.sub) = ("deactivating", "stop-sigterm");
                return "timeout";
            }
            OnStop::Ends => (self.active, self.sub) = ("inactive", "dead"),
            OnStop::EndsBadly => (self.active, self.sub, self.result) = ("failed", "failed", "exit-code"),
        }
        self.kill();
        "done"
    }
}

type Shared = Arc<Mutex<Machine>>;

fn locked(machine: &Shared) -> MutexGuard<'_, Machine> {
    machine.lock().unwrap()
}

/// systemd's own errors.
#[derive(Debug, zbus::DBusError)]
#[zbus(prefix = "org.freedesktop.systemd1")]
enum Refusal {
    #[zbus(error)]
    ZBus(zbus::Error),
    NoSuchUnit(String),
}

struct Manager(Shared);

fn job_path(id: u32) -> OwnedObjectPath {
    ObjectPath::try_from(format!("{MANAGER}/job/{id}")).unwrap().into()
}

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    fn subscribe(&self) {}

    fn load_unit(&self, name: &str) -> fdo::Result<OwnedObjectPath> {
        // Every instance of the template is the same.
        assert!(name.starts_with("kafka@") && name.ends_with(".service"), "{name}");
        Ok(ObjectPath::try_from(OBJECT).unwrap().into())
    }

    async fn start_unit(
        &self,
        name: &str,
        mode: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> fdo::Result<OwnedObjectPath> {
        assert_eq!((name, mode), (UNIT, "fail"));
        let id = {
            let mut machine = locked(&self.0);
            if machine.on_start == OnStart::Denied {
                return Err(fdo::Error::AccessDenied("Permission denied".into()));
            }
            // As systemd does: what is on its way already is not begun twice.
            if machine.job != 0 {
                return Ok(job_path(machine.job));
            }
            machine.jobs += 1;
            machine.starts += 1;
            machine.invocation += 1;
            machine.job = machine.jobs;
            (machine.active, machine.sub) = ("activating", "condition");
            machine.job
        };
        let (machine, emitter) = (self.0.clone(), emitter.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(JOB_TAKES).await;
            let end = locked(&machine).end_start();
            if let Some(result) = end {
                let job = job_path(id);
                Manager::job_removed(&emitter, id, job.into(), UNIT, result).await.unwrap();
            }
        });
        Ok(job_path(id))
    }

    async fn stop_unit(
        &self,
        name: &str,
        mode: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> fdo::Result<OwnedObjectPath> {
        assert_eq!((name, mode), (UNIT, "replace"));
        let id = {
            let mut machine = locked(&self.0);
            machine.jobs += 1;
            machine.job = machine.jobs;
            machine.job
        };
        let (machine, emitter) = (self.0.clone(), emitter.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(JOB_TAKES).await;
            let result = locked(&machine).end_stop();
            let job = job_path(id);
            Manager::job_removed(&emitter, id, job.into(), UNIT, result).await.unwrap();
        });
        Ok(job_path(id))
    }

    fn kill_unit(&self, name: &str, whom: &str, signal: i32) {
        assert_eq!((name, whom, signal), (UNIT, "all", 9));
        let mut machine = locked(&self.0);
        machine.kills += 1;
        assert_eq!(machine.active, "deactivating", "it would be started again");
        machine.kill();
        (machine.active, machine.sub, machine.result) = ("failed", "failed", "signal");
    }

    fn reset_failed_unit(&self, name: &str) {
        assert_eq!(name, UNIT);
        let mut machine = locked(&self.0);
        machine.resets += 1;
        if machine.active == "failed" {
            (machine.active, machine.sub, machine.result) = ("inactive", "dead", "success");
        }
    }

    fn reload(&self) {
        locked(&self.0).reload();
    }

    fn ref_unit(&self, name: &str) {
        assert_eq!(name, UNIT);
    }

    fn get_unit_processes(&self, name: &str) -> Result<Vec<(String, u32, String)>, Refusal> {
        let machine = locked(&self.0);
        // As systemd does with a unit that it has no reason to remember.
        if machine.active == "inactive" && machine.job == 0 && machine.control_group.is_empty() {
            return Err(Refusal::NoSuchUnit(format!("Unit {name} not loaded.")));
        }
        let main = machine.main.iter().map(|main| ("/k".to_owned(), main.id(), "sleep".to_owned()));
        Ok(main.chain(machine.control_group.clone()).collect())
    }

    #[zbus(signal)]
    async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: ObjectPath<'_>,
        unit: &str,
        result: &str,
    ) -> zbus::Result<()>;

    #[zbus(property)]
    fn version(&self) -> String {
        "252 (a stand-in)".into()
    }
}

/// A bus of its own, with systemd on it.
pub(super) struct Fake {
    dir: PathBuf,
    daemon: Child,
    pub(super) machine: Shared,
    systemd: Option<Connection>,
}

impl Fake {
    /// `dir` is where the bus and the drop-ins are.
    pub(super) async fn new(dir: &Path) -> Self {
        let machine = Machine {
            run_dir: dir.join("run"),
            active: "inactive",
            sub: "dead",
            result: "success",
            load: "loaded",
            job: 0,
            jobs: 0,
            invocation: 0,
            main: None,
            control_group: Vec::new(),
            loaded: Vec::new(),
            overridden: None,
            exec_stop: None,
            protect_system: "full",
            on_start: OnStart::Runs,
            on_stop: OnStop::Ends,
            starts: 0,
            kills: 0,
            resets: 0,
            reloads: 0,
        };
        let daemon = daemon(dir).await;
        let mut fake =
            Self { dir: dir.to_owned(), daemon, machine: Arc::new(Mutex::new(machine)), systemd: None };
        fake.come().await;
        fake
    }

    pub(super) fn address(&self) -> String {
        format!("unix:path={}", self.dir.join("bus").display())
    }

    pub(super) fn machine(&self) -> MutexGuard<'_, Machine> {
        locked(&self.machine)
    }

    /// systemd takes its place on the bus.
    pub(super) async fn come(&mut self) {
        let shared = &self.machine;
        let connection = conn::Builder::address(self.address().as_str())
            .serve_at(MANAGER, Manager(shared.clone()))
            .serve_at(OBJECT, Unit(shared.clone()))
            .serve_at(OBJECT, Service(shared.clone()))
            .name(NAME)
            .build()
            .await;
        self.systemd = Some(connection.unwrap());
    }

    /// systemd is gone from the bus, as it is while it executes itself anew.
    pub(super) async fn go(&mut self) {
        if let Some(connection) = self.systemd.take() {
            connection.release_name(NAME).await.unwrap();
            connection.close().await.unwrap();
        }
    }

    /// The bus itself ends and comes back, and systemd with it.
    pub(super) async fn restart_bus(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        fs::remove_file(self.dir.join("bus")).unwrap();
        self.daemon = daemon(&self.dir).await;
        self.come().await;
    }

    /// Has the bus stand still, or go on.
    pub(super) fn signal_bus(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.daemon.id()).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.signal_bus(rustix::process::Signal::CONT);
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        // A test that failed while it held the lock has told what went wrong already.
        if let Ok(mut machine) = self.machine.lock() {
            machine.kill();
        }
    }
}

async fn daemon(dir: &Path) -> Child {
    let (config, socket) = (dir.join("bus.conf"), dir.join("bus"));
    let text = format!(
        "<busconfig><listen>unix:path={}</listen><auth>EXTERNAL</auth><policy context=\"default\"><allow \
         send_destination=\"*\" eavesdrop=\"true\"/><allow eavesdrop=\"true\"/><allow own=\"*\"/></policy></busconfig>",
        socket.display()
    );
    fs::write(&config, text).unwrap();
    let mut command = Command::new("dbus-daemon");
    command.arg(format!("--config-file={}", config.display())).args(["--nofork", "--nopidfile"]);
    // It complains that it may not raise its limit of open files.
    let daemon = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let daemon = daemon.expect("dbus-daemon is needed for this test: apt-get install dbus-daemon");
    let begun = Instant::now();
    // The socket is there before anybody listens.
    while UnixStream::connect(&socket).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(20), "dbus-daemon did not come up");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    daemon
}
