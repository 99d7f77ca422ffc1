//! What systemd says of a unit, and what it means. Pure.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use zbus::{OwnedVariant, Variant};

use super::sandbox::Sandbox;
use recovery::model::BrokerId;

/// One unit at one moment. `*_after` and `*_within` are `None` for "never" and "without limit".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) name: String,
    pub(super) load_state: String,
    /// Why it is not loaded.
    pub(super) load_error: String,
    pub(super) active_state: String,
    pub(super) sub_state: String,
    pub(super) unit_file_state: String,
    pub(super) needs_reload: bool,
    /// The job that is queued or runs.
    pub(super) job: Option<u32>,
    /// This run of the unit, in hexadecimal; empty if it never ran.
    pub(super) invocation: String,
    pub(super) triggered_by: Vec<String>,
    pub(super) drop_ins: Vec<String>,
    pub(super) kind: String,
    /// What became of the last run.
    pub(super) result: String,
    pub(super) main_pid: Option<i32>,
    /// A helper of the unit that runs now, such as its `ExecCondition=`.
    pub(super) control_pid: Option<i32>,
    pub(super) exec_main_code: i32,
    pub(super) exec_main_status: i32,
    pub(super) restart: String,
    pub(super) restart_after: Option<Duration>,
    pub(super) stop_within: Option<Duration>,
    pub(super) kill_mode: String,
    pub(super) sends_sigkill: bool,
    pub(super) user: String,
    pub(super) environment: BTreeMap<String, String>,
    /// The files of `EnvironmentFile=`, and whether they may be missing.
    pub(super) environment_files: Vec<(String, bool)>,
    /// Names of variables that systemd sets itself, or hands through from its own environment.
    pub(super) passed: Vec<String>,
    /// As systemd tells it: with a `!` before it, it may be missing.
    pub(super) working_directory: String,
    /// The directories that systemd makes for it.
    pub(super) makes: Vec<String>,
    /// Where the unit's own file system begins, if it has one.
    pub(super) root: String,
    pub(super) sandbox: Sandbox,
    pub(super) exec_start: Vec<Vec<String>>,
    pub(super) exec_condition: Vec<Vec<String>>,
    /// What is run beside Kafka at its start, its stop and its end, with the setting that says so.
    pub(super) helpers: Vec<(&'static str, Vec<String>)>,
}

/// What a unit's state means for Kafka.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sight {
    /// Its main process lives.
    Running(i32),
    /// Nothing of it runs, and it was not a failure of its own.
    Down,
    /// It ended by itself.
    Ended,
    /// On its way from one to another, with no main process that could be named: neither running nor stopped.
    Between,
}

type Properties = HashMap<String, OwnedVariant>;

impl Unit {
    /// Reads what both of its interfaces say.
    ///
    /// # Errors
    /// What systemd did not say, in words.
    pub(super) fn of(name: &str, unit: &Properties, service: &Properties) -> Result<Self, String> {
        let text = |from: &Properties, key: &str| match from.get(key).map(|value| &**value) {
            Some(Variant::Str(text)) => Ok(text.to_string()),
            _ => Err(format!("systemd does not tell {key} of {name}: is this systemd 252 or later?")),
        };
        let any = word;
        let pid = |key: &str| match service.get(key).map(|value| &**value) {
            Some(Variant::U32(pid)) => Ok(i32::try_from(*pid).ok().filter(|pid| *pid != 0)),
            _ => Err(format!("systemd does not tell {key} of {name}: is this systemd 252 or later?")),
        };
        let words = environment(service.get("Environment"));
        Ok(Self {
            name: name.to_owned(),
            load_state: text(unit, "LoadState")?,
            load_error: load_error(unit.get("LoadError")),
            active_state: text(unit, "ActiveState")?,
            sub_state: text(unit, "SubState")?,
            unit_file_state: any(unit, "UnitFileState"),
            needs_reload: truth(unit.get("NeedDaemonReload")),
            job: job(unit.get("Job")),
            invocation: hexadecimal(unit.get("InvocationID")),
            triggered_by: texts(unit.get("TriggeredBy")),
            drop_ins: texts(unit.get("DropInPaths")),
            kind: any(service, "Type"),
            result: text(service, "Result")?,
            main_pid: pid("MainPID")?,
            control_pid: pid("ControlPID")?,
            exec_main_code: number(service.get("ExecMainCode")),
            exec_main_status: number(service.get("ExecMainStatus")),
            restart: any(service, "Restart"),
            restart_after: micros(service.get("RestartUSec")),
            stop_within: micros(service.get("TimeoutStopUSec")),
            kill_mode: any(service, "KillMode"),
            sends_sigkill: truth(service.get("SendSIGKILL")),
            user: any(service, "User"),
            environment: words,
            environment_files: files(service.get("EnvironmentFiles")),
            passed: passed(service),
            working_directory: any(service, "WorkingDirectory"),
            makes: made(service),
            root: any(service, "RootDirectory") + &any(service, "RootImage"),
            sandbox: Sandbox::of(service),
            exec_start: commands(service.get("ExecStart")),
            exec_condition: commands(service.get("ExecCondition")),
            helpers: helpers(service),
        })
    }

    /// What the state means.
    ///
    /// | `ActiveState` | main process | means |
    /// |---|---|---|
    /// | any | lives | running: while it starts, reloads or is being stopped, too |
    /// | any, with a job queued or a helper alive | none | between |
    /// | `inactive` | none | down; ended by itself if its last run did not succeed and was ours |
    /// | `failed` | none | ended by itself |
    /// | `activating` (its condition, its preparation, *before its next automatic restart*) | none | between: it may run at any moment |
    /// | `deactivating` | none | between: others of its processes may still live |
    /// | `active`, `reloading` | none | ended, where it is kept active after its end; else between |
    /// | `maintenance` and what is new | none | between |
    pub(super) fn sight(&self, ours: bool) -> Sight {
        if let Some(pid) = self.main_pid {
            return Sight::Running(pid);
        }
        if self.job.is_some() || self.control_pid.is_some() {
            return Sight::Between;
        }
        match self.active_state.as_str() {
            "inactive" if ours && self.result != "success" => Sight::Ended,
            "inactive" => Sight::Down,
            "failed" => Sight::Ended,
            "active" if self.sub_state == "exited" => Sight::Ended,
            _ => Sight::Between,
        }
    }

    /// Whether nothing runs, is queued, or will be started by systemd itself.
    pub(super) fn is_quiet(&self) -> bool {
        let ended = matches!(self.active_state.as_str(), "inactive" | "failed");
        ended && self.main_pid.is_none() && self.control_pid.is_none() && self.job.is_none()
    }

    /// `ActiveState (SubState)`, and whatever else keeps it from being quiet.
    pub(super) fn state(&self) -> String {
        let pid = |name: &str, pid: Option<i32>| pid.map(|pid| format!(", {name} {pid}")).unwrap_or_default();
        format!(
            "{} is {} ({}){}{}{}",
            self.name,
            self.active_state,
            self.sub_state,
            pid("main process", self.main_pid),
            pid("helper process", self.control_pid),
            self.job.map(|id| format!(", job {id} queued")).unwrap_or_default()
        )
    }

    /// What became of its last run.
    pub(super) fn ending(&self) -> String {
        let status = self.exec_main_status;
        // As in waitid(2).
        let main = match self.exec_main_code {
            1 => format!("; its main process exited with status {status}"),
            2 => format!("; its main process was killed by signal {status}"),
            3 => format!("; its main process dumped core on signal {status}"),
            _ => String::new(),
        };
        let why = match self.result.as_str() {
            "exec-condition" => " (its ExecCondition= said no)",
            "start-limit-hit" => " (it was started too often: StartLimitBurst=)",
            "timeout" => " (TimeoutStartSec= or TimeoutStopSec= ran out)",
            _ => "",
        };
        format!("{} ended with result `{}`{why}{main}", self.name, self.result)
    }
}

/// A text, or nothing where systemd does not tell it.
pub(super) fn word(from: &Properties, key: &str) -> String {
    match from.get(key).map(|value| &**value) {
        Some(Variant::Str(text)) => text.to_string(),
        _ => String::new(),
    }
}

fn truth(value: Option<&OwnedVariant>) -> bool {
    matches!(value.map(|value| &**value), Some(Variant::Bool(true)))
}

fn number(value: Option<&OwnedVariant>) -> i32 {
    match value.map(|value| &**value) {
        Some(Variant::I32(number)) => *number,
        _ => 0,
    }
}

/// The greatest number stands for "infinity".
fn micros(value: Option<&OwnedVariant>) -> Option<Duration> {
    match value.map(|value| &**value) {
        Some(Variant::U64(micros)) if *micros != u64::MAX => Some(Duration::from_micros(*micros)),
        _ => None,
    }
}

fn strings(value: &Variant<'_>) -> Vec<String> {
    let Variant::Array(array) = value else { return Vec::new() };
    let text = |item: &Variant<'_>| match item {
        Variant::Str(text) => Some(text.to_string()),
        _ => None,
    };
    array.inner().iter().filter_map(text).collect()
}

pub(super) fn texts(value: Option<&OwnedVariant>) -> Vec<String> {
    value.map(|value| strings(value)).unwrap_or_default()
}

fn environment(value: Option<&OwnedVariant>) -> BTreeMap<String, String> {
    let pairs = texts(value);
    let pair = |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    pairs.iter().filter_map(pair).collect()
}

/// `a(sb)`: paths, and whether they may be missing.
fn files(value: Option<&OwnedVariant>) -> Vec<(String, bool)> {
    let Some(Variant::Array(files)) = value.map(|value| &**value) else { return Vec::new() };
    let path = |item: &Variant<'_>| match item {
        Variant::Structure(file) => match file.fields() {
            [Variant::Str(path), Variant::Bool(may_be_missing)] => Some((path.to_string(), *may_be_missing)),
            _ => None,
        },
        _ => None,
    };
    files.inner().iter().filter_map(path).collect()
}

/// `(uo)`: the job's number, 0 for none, and its path.
fn job(value: Option<&OwnedVariant>) -> Option<u32> {
    match value.map(|value| &**value) {
        Some(Variant::Structure(job)) => match job.fields().first() {
            Some(Variant::U32(id)) => Some(*id).filter(|id| *id != 0),
            _ => None,
        },
        _ => None,
    }
}

/// `(ss)`: an error's name and its text.
fn load_error(value: Option<&OwnedVariant>) -> String {
    match value.map(|value| &**value) {
        Some(Variant::Structure(error)) => match error.fields().get(1) {
            Some(Variant::Str(text)) => text.to_string(),
            _ => String::new(),
        },
        _ => String::new(),
    }
}

fn hexadecimal(value: Option<&OwnedVariant>) -> String {
    let Some(Variant::Array(bytes)) = value.map(|value| &**value) else { return String::new() };
    let byte = |item: &Variant<'_>| match item {
        Variant::U8(byte) => Some(format!("{byte:02x}")),
        _ => None,
    };
    bytes.inner().iter().filter_map(byte).collect()
}

/// `a(sasbttttuii)`: of each command its program and arguments.
fn commands(value: Option<&OwnedVariant>) -> Vec<Vec<String>> {
    let Some(Variant::Array(commands)) = value.map(|value| &**value) else { return Vec::new() };
    let command = |item: &Variant<'_>| match item {
        Variant::Structure(command) => command.fields().get(1).map(strings),
        _ => None,
    };
    commands.inner().iter().filter_map(command).collect()
}

/// The directories of `StateDirectory=` and its like.
fn made(service: &Properties) -> Vec<String> {
    let below =
        [("StateDirectory", "/var/lib"), ("LogsDirectory", "/var/log"), ("CacheDirectory", "/var/cache")];
    let of = |(key, above): (&str, &str)| {
        let names = texts(service.get(key)).into_iter();
        names.map(|name| format!("{above}/{name}")).collect::<Vec<_>>()
    };
    below.into_iter().flat_map(of).collect()
}

/// Beside `PassEnvironment=` what systemd sets for every service with a user.
fn passed(service: &Properties) -> Vec<String> {
    let set = [
        "PATH",
        "LANG",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "SYSTEMD_EXEC_PID",
    ];
    set.map(str::to_owned).into_iter().chain(texts(service.get("PassEnvironment"))).collect()
}

fn helpers(service: &Properties) -> Vec<(&'static str, Vec<String>)> {
    let of = |key: &'static str| commands(service.get(key)).into_iter().map(move |words| (key, words));
    ["ExecStop", "ExecStopPost", "ExecStartPre", "ExecStartPost"].into_iter().flat_map(of).collect()
}

/// Whether a command line is `understudy guard` for this very broker.
pub(super) fn asks_guard(words: &[String], broker: BrokerId) -> bool {
    let id = broker.to_string();
    let own = before_kafka(words);
    let pairs = own.windows(2).any(|pair| pair[0] == "--broker" && pair[1] == id);
    is_guard(words) && (pairs || own.contains(&format!("--broker={id}")))
}

/// Whether a command line is `understudy guard --exec`, which takes the broker's right and becomes Kafka.
pub(super) fn becomes_kafka(words: &[String]) -> bool {
    is_guard(words) && before_kafka(words).iter().any(|word| word == "--exec")
}

/// Kafka's own command in an `ExecStart=`, without the guard that becomes it.
pub(super) fn kafkas_own(words: &[String]) -> &[String] {
    if becomes_kafka(words) { &words[(before_kafka(words).len() + 1).min(words.len())..] } else { words }
}

pub(super) fn is_guard(words: &[String]) -> bool {
    before_kafka(words).iter().skip(1).any(|word| word == "guard")
}

/// All before the `--` that ends guard's own arguments.
pub(super) fn before_kafka(words: &[String]) -> &[String] {
    words.split(|word| word == "--").next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(active: &str, sub: &str, main: Option<i32>) -> Unit {
        Unit {
            name: "kafka.service".into(),
            active_state: active.into(),
            sub_state: sub.into(),
            main_pid: main,
            result: "success".into(),
            ..Unit::default()
        }
    }

    #[test]
    fn every_state_of_systemd_is_mapped_on_purpose() {
        let none = None;
        for (active, sub, main, means) in [
            ("active", "running", Some(7), Sight::Running(7)),
            ("reloading", "reload", Some(7), Sight::Running(7)),
            ("activating", "start", Some(7), Sight::Running(7)),
            ("activating", "start-post", Some(7), Sight::Running(7)),
            ("deactivating", "stop-sigterm", Some(7), Sight::Running(7)),
            ("activating", "condition", none, Sight::Between),
            ("activating", "start-pre", none, Sight::Between),
            ("activating", "auto-restart", none, Sight::Between),
            ("activating", "auto-restart-queued", none, Sight::Between),
            ("deactivating", "stop-post", none, Sight::Between),
            ("deactivating", "final-sigterm", none, Sight::Between),
            ("active", "running", none, Sight::Between),
            ("active", "exited", none, Sight::Ended),
            ("maintenance", "cleaning", none, Sight::Between),
            ("something-new", "x", none, Sight::Between),
            ("failed", "failed", none, Sight::Ended),
            ("inactive", "dead", none, Sight::Down),
        ] {
            assert_eq!(unit(active, sub, main).sight(true), means, "{active} ({sub})");
        }
        let refused = Unit { result: "exec-condition".into(), ..unit("inactive", "dead", None) };
        assert_eq!((refused.sight(true), refused.sight(false)), (Sight::Ended, Sight::Down));
        let helper = Unit { control_pid: Some(8), ..unit("inactive", "dead", None) };
        assert_eq!(helper.sight(false), Sight::Between);
    }

    #[test]
    fn quiet_is_only_what_nothing_can_come_of() {
        assert!(unit("inactive", "dead", None).is_quiet());
        assert!(unit("failed", "failed", None).is_quiet());
        assert!(!unit("activating", "auto-restart", None).is_quiet());
        assert!(!Unit { job: Some(3), ..unit("inactive", "dead", None) }.is_quiet());
        assert!(!Unit { control_pid: Some(3), ..unit("failed", "failed", None) }.is_quiet());
        assert!(!unit("failed", "failed", Some(3)).is_quiet());
    }

    #[test]
    fn an_end_is_told_in_words() {
        let failed = Unit {
            result: "exit-code".into(),
            exec_main_code: 1,
            exec_main_status: 3,
            ..unit("failed", "failed", None)
        };
        assert_eq!(
            failed.ending(),
            "kafka.service ended with result `exit-code`; its main process exited with status 3"
        );
        let refused = Unit { result: "exec-condition".into(), ..unit("inactive", "dead", None) };
        assert!(refused.ending().contains("ExecCondition= said no"));
    }

    #[test]
    fn what_systemd_does_not_tell_is_an_error_and_not_a_state() {
        let error = Unit::of("kafka.service", &HashMap::new(), &HashMap::new()).unwrap_err();
        assert!(error.contains("LoadState of kafka.service"), "{error}");
    }

    #[test]
    fn guard_is_told_from_the_kafka_that_it_becomes() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let exec = words(
            "/usr/bin/understudy --config /c guard --broker 1 --exec --user kafka -- /k/start.sh --broker 2",
        );
        assert!(asks_guard(&exec, BrokerId(1)) && becomes_kafka(&exec));
        assert!(!asks_guard(&exec, BrokerId(2)), "what Kafka is given is not guard's");
        assert_eq!(kafkas_own(&exec), words("/k/start.sh --broker 2"));
        let condition = words("/usr/bin/understudy guard --broker=1 --wait 30s");
        assert!(asks_guard(&condition, BrokerId(1)) && !becomes_kafka(&condition));
        let plain = words("/k/start.sh guard -- --exec");
        assert_eq!(kafkas_own(&plain), plain);
        assert!(!asks_guard(&plain, BrokerId(1)));
    }
}
