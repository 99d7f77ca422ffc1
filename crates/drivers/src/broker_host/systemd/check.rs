//! What would keep the unit from starting here, or from being safe, found before it is needed.

use std::time::Duration;

use super::super::common::Common;
use super::super::problem::Problem;
use super::super::process::is_executable;
use super::super::providers::Given;
use super::super::user::as_user;
use super::super::{advertise, bind, check as shared, files, ports, providers, scripts, stores};
use super::class_data::given;
use super::unit::{Unit, asks_guard, becomes_kafka, kafkas_own};
use super::{BROKER, DRIVER, Systemd, SystemdConfig, drop_in, guard_reads, needs, sandbox};
use recovery::model::BrokerId;
use recovery::ports::{Note, StepError};

/// How long Kafka is given to stop when a broker is handed over; what systemd gives it must not be shorter.
const STOPS_WITHIN: Duration = Duration::from_secs(120);

/// A look at the unit fails while it waits for its next automatic restart. A takeover that waits for the
/// broker asks a person after five seconds of that.
const RESTARTS_WITHIN: Duration = Duration::from_secs(3);

/// What is wrong with what only this driver has in its section.
pub(super) fn config(config: &SystemdConfig, brokers: usize) -> Vec<String> {
    let mut problems = Vec::new();
    let unit = &config.unit;
    let plain = unit.replace(BROKER, "1");
    let stem = plain.strip_suffix(".service").unwrap_or_default();
    let fits = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    if stem.is_empty() || !stem.chars().all(fits) {
        problems.push(format!(
            "broker_host.unit: `{unit}` is no name of a service; write, for example, kafka@{BROKER}.service"
        ));
    } else if stem.ends_with('@') {
        problems.push(format!(
            "broker_host.unit: `{unit}` is a template; say which instance, as in kafka@{BROKER}.service"
        ));
    }
    if brokers > 1 && !unit.contains(BROKER) {
        problems.push(format!(
            "broker_host.unit: does not contain {BROKER}, so it would be the same unit for each of the {brokers} brokers"
        ));
    }
    for (name, value) in &config.environment {
        if let Some(why) =
            drop_in::unfit(name, value).filter(|_| !name.is_empty() && !name.contains(['=', '\0']))
        {
            problems.push(format!("broker_host.environment: `{name}` {why}"));
        }
    }
    if config.start_timeout.is_zero() {
        problems.push("broker_host.start_timeout: must be longer than 0s".to_owned());
    }
    problems
}

/// A file system look, as in every driver.
type Look = fn(&Common, BrokerId) -> Result<Note, Problem>;

impl Systemd {
    /// Everything a start would need, and what would make it unsafe.
    pub(super) async fn look_around(&self, broker: BrokerId) -> Vec<Result<Note, StepError>> {
        let mut results = Vec::new();
        let reach = "reach systemd over D-Bus".to_owned();
        let version = self.bus.version(self.timeout).await;
        results.push(
            version
                .map(|version| rights(&version))
                .and_then(|rights| rights)
                .map_err(|p| p.into_step(DRIVER, &reach)),
        );
        let unit = match self.unit(broker) {
            Ok(unit) => self.bus.look(&unit, self.timeout).await,
            Err(problem) => Err(problem),
        };
        match unit {
            Ok(unit) => {
                let user = self.common.user.as_ref().map_or("", |user| user.name.as_str());
                for (action, result) in findings(&unit, broker, user, self.common.at_once) {
                    let action = format!("{action} of broker {broker}");
                    results.push(result.map_err(|why| Problem::Refused(why).into_step(DRIVER, &action)));
                }
                results.extend(self.ports(&unit, broker).await.map(Ok));
                results.extend(self.needs(unit, broker).await);
            }
            Err(problem) => {
                results.push(Err(problem.into_step(DRIVER, &format!("look at the unit of broker {broker}"))));
            }
        }
        let looks: [(&str, Look); 7] = [
            (shared::TEMPLATE, shared::template),
            (shared::LOG_DIRS, shared::log_dirs),
            (shared::STATE_DIR, shared::state_dir),
            (bind::BIND, bind::look),
            (advertise::ADVERTISED, advertise::look),
            (files::FILES, files::look),
            (shared::RIGHT, shared::right),
        ];
        for (action, look) in looks {
            let action = format!("{action} of broker {broker}");
            let result = self.files(&action, self.timeout, move |common| look(common, broker)).await;
            results.push(result.map_err(|problem| problem.into_step(DRIVER, &action)));
        }
        results
    }
}

impl Systemd {
    /// Whether the broker's Kafka listens on a port of the next broker's. To ask for every unit of every broker
    /// would be too much, and what all of a template share shows by two.
    async fn ports(&self, unit: &Unit, broker: BrokerId) -> Option<Note> {
        let next = self.common.beside(broker).next()?;
        let other = self.bus.look(&self.unit(next).ok()?, self.timeout).await.ok()?;
        let of = |unit: &Unit, broker| {
            let words: Vec<String> = unit.exec_start.iter().flatten().cloned().collect();
            ports::named(&given(unit, self.common.environment(broker)), &words)
        };
        let told = ports::shared(&of(unit, broker), (next, &of(&other, next)));
        let remedy = "Let %i be part of it in Environment= of the unit, or {broker} in [broker_host.environment], as in \
                      JMX_PORT = \"999{broker}\"";
        Some(shared::ports(told, remedy))
    }
}

impl Systemd {
    /// What the unit names on this host, its Java and its Kafka: what is missing, and what was looked at.
    async fn needs(&self, unit: Unit, broker: BrokerId) -> Vec<Result<Note, StepError>> {
        let action = |what: &str| format!("{what} of broker {broker}");
        let guard_reads = self.guard_reads.clone();
        let look = move |common: &Common| {
            let log_dirs = &common.broker(broker)?.log_dirs;
            let mut found: Vec<(&'static str, Result<Note, Problem>)> = Vec::new();
            let refused = |why| Err(Problem::Refused(why));
            let missing = needs::missing(&unit, log_dirs, &|program, by| {
                let user = common.user.as_ref().filter(|_| by.0);
                as_user(user, || is_executable(program)).unwrap_or(true)
            });
            found.extend(missing.into_iter().map(|why| (needs::NEEDS, refused(why))));
            // The unit's own file system is not seen from here.
            if !unit.root.is_empty() {
                return Ok(found);
            }
            let environment = given(&unit, common.environment(broker));
            let words: Vec<String> = unit.exec_start.iter().flatten().cloned().collect();
            let own = unit.exec_start.first().map(|words| kafkas_own(words)).unwrap_or_default();
            let told = Given {
                environment: &environment,
                passed: &unit.passed,
                by_script: scripts::is_of_the_site(own),
            };
            found.extend(files::options(common, &environment, &words).map(|told| (files::OPTIONS, told)));
            found.extend(providers::look(common, broker, &told).map(|told| (providers::PROVIDERS, told)));
            found.extend(stores::look(common, broker, &told).map(|told| (stores::STORES, told)));
            let mut written = log_dirs.clone();
            if unit.exec_start.iter().any(|words| becomes_kafka(words)) {
                // For the broker's right.
                written.push(common.state_dir.clone());
            }
            let unwritable = unit.sandbox.refuses(&unit.name, &written, &unit.makes);
            found.extend(unwritable.into_iter().map(|why| (sandbox::WRITE, refused(why))));
            let differs = guard_reads.and_then(|reads| guard_reads::look(&unit, &environment, &reads));
            found.extend(differs.map(|why| (guard_reads::READS, refused(why))));
            Ok(found)
        };
        match self.files(&action(needs::NEEDS), self.timeout, look).await {
            Ok(found) => {
                let told = |(what, told): (&str, Result<Note, Problem>)| {
                    told.map_err(|p| p.into_step(DRIVER, &action(what)))
                };
                found.into_iter().map(told).collect()
            }
            Err(problem) => vec![Err(problem.into_step(DRIVER, &action(needs::NEEDS)))],
        }
    }
}

/// Drop-ins in `/run/systemd` can be written, and units managed, by root; another user needs both granted.
fn rights(version: &str) -> Result<Note, Problem> {
    if rustix::process::geteuid().is_root() {
        return Ok(Note::new(format!("systemd {version} answers, and root may start units")));
    }
    Err(Problem::Refused(format!(
        "systemd {version} answers, and this user may neither write drop-ins to /run/systemd/system nor start units: \
         run the agent as root"
    )))
}

/// Why a unit cannot be used at all.
pub(super) fn not_loaded(unit: &Unit) -> String {
    let name = &unit.name;
    match unit.load_state.as_str() {
        "masked" => format!("{name} is masked: `systemctl unmask {name}`"),
        "not-found" => format!(
            "there is no {name} on this host: install the unit that runs Kafka (deploy/systemd has one), or correct \
             broker_host.unit"
        ),
        state => format!(
            "{name} cannot be used, it is `{state}` ({}): see `systemctl status {name}`",
            unit.load_error
        ),
    }
}

type Finding = (&'static str, Result<Note, String>);

/// What the unit itself shows: each look with what it is about. Pure.
fn findings(unit: &Unit, broker: BrokerId, user: &str, at_once: usize) -> Vec<Finding> {
    if unit.load_state != "loaded" {
        return vec![("use the unit", Err(not_loaded(unit)))];
    }
    vec![
        ("use the unit", Ok(loaded(unit))),
        ("hand the configuration to the unit", configuration(unit)),
        ("stay with the Kafka", stays(unit)),
        ("keep the unit from starting unasked", guard(unit, broker)),
        ("stop the unit", Ok(stops(unit))),
        ("stop the one Kafka", stops_alone(unit, broker, at_once)),
        ("restart the unit", Ok(restarts(unit))),
        ("run Kafka as its user", same_user(unit, user)),
    ]
}

fn note(good: String, warnings: Vec<String>) -> Note {
    if warnings.is_empty() { Note::new(good) } else { Note::default().warn(warnings) }
}

fn loaded(unit: &Unit) -> Note {
    let Unit { name, kind, .. } = unit;
    let mut warnings = Vec::new();
    if unit.needs_reload {
        warnings.push(format!(
            "files of {name} changed since systemd read them, and the next takeover makes it read them: try them now, \
             with `systemctl daemon-reload`"
        ));
    }
    match kind.as_str() {
        "exec" | "notify" | "notify-reload" => {}
        "simple" => warnings.push(format!(
            "{name} is of Type=simple, so a Kafka that cannot be executed counts as started: Type=exec is better"
        )),
        kind => warnings.push(format!(
            "{name} is of Type={kind}, with which systemd may not know Kafka's main process: Type=exec is better"
        )),
    }
    note(format!("{name} is loaded, of Type={kind}"), warnings)
}

/// That Kafka gets what is rendered for it.
pub(super) fn contradicts(unit: &Unit) -> Result<(), String> {
    let told = unit.exec_start.iter().find_map(|words| scripts::contradicts(words));
    told.map_or(Ok(()), |does| Err(format!("ExecStart= of {} {does}", unit.name)))
}

fn configuration(unit: &Unit) -> Result<Note, String> {
    contradicts(unit)?;
    let braced = format!("${{{}}}", drop_in::PROPERTIES);
    let bare = format!("${}", drop_in::PROPERTIES);
    let uses = |word: &String| word.contains(&braced) || *word == bare;
    // Within more words systemd leaves it to the shell, and `$$` is how a unit writes one `$`.
    let by_shell = |words: &Vec<String>| {
        words
            .windows(2)
            .any(|pair| pair[0].starts_with('-') && pair[0].ends_with('c') && pair[1].contains(&bare))
    };
    if unit.exec_start.iter().flatten().any(uses) || unit.exec_start.iter().any(by_shell) {
        return Ok(Note::new(format!("ExecStart= of {} uses {braced}", unit.name)));
    }
    Err(format!(
        "ExecStart= of {} does not use {braced}, so Kafka would not get its rendered configuration, but whatever is \
         named there: write, for example, ExecStart=/opt/kafka/bin/kafka-server-start.sh {braced}",
        unit.name
    ))
}

/// With `Type=forking` what is left behind is what systemd waits for.
fn stays(unit: &Unit) -> Result<Note, String> {
    let Unit { name, kind, .. } = unit;
    let leaves = unit.exec_start.iter().find_map(|words| scripts::leaves_kafka(words));
    match leaves.filter(|_| kind != "forking") {
        None => Ok(Note::new(format!("ExecStart= of {name} is not seen to leave Kafka behind"))),
        Some(does) => Err(format!(
            "ExecStart= of {name} {does}: with Type={kind} the unit counts as ended then, and systemd kills the Kafka that is \
             left. Leave {} out: what a unit runs is in the background already",
            if does.contains("-daemon") { "`-daemon`" } else { "`&`" }
        )),
    }
}

fn guard(unit: &Unit, broker: BrokerId) -> Result<Note, String> {
    let Unit { name, unit_file_state: state, triggered_by, .. } = unit;
    let guards = |words: &Vec<String>| asks_guard(words, broker);
    if unit.exec_start.iter().any(|words| guards(words) && becomes_kafka(words)) {
        return Ok(Note::new(format!(
            "{name} asks `understudy guard` before every start, which becomes Kafka"
        )));
    }
    if unit.exec_condition.iter().any(guards) {
        let so = format!(
            "ExecStart=!/usr/bin/understudy guard --broker {broker} --wait 30s --exec --user {} -- {}",
            if unit.user.is_empty() { "kafka" } else { &unit.user },
            unit.exec_start.first().map(|words| words.join(" ")).unwrap_or_default()
        );
        let warning = format!(
            "ExecCondition= of {name} asks `understudy guard`, which ends before Kafka begins and does not hold the broker's \
             right on this host: write {so}"
        );
        return Ok(note(String::new(), vec![warning]));
    }
    let wanted =
        format!("what kafka@.service in deploy/systemd has, `understudy guard --broker {broker} --exec`");
    let itself = ["enabled", "enabled-runtime", "linked-runtime", "generated"].contains(&state.as_str());
    if itself || !triggered_by.is_empty() {
        let by = if itself { state.clone() } else { format!("triggered by {}", triggered_by.join(", ")) };
        return Err(format!(
            "{name} is {by} and does not ask `understudy guard`, so it would start Kafka although another host may own \
             the broker: add {wanted}, or `systemctl disable {name}`"
        ));
    }
    Ok(note(
        String::new(),
        vec![format!(
            "{name} does not ask `understudy guard`, so whoever starts it, by hand or by Restart=, starts Kafka although \
             another host may own the broker: add {wanted}"
        )],
    ))
}

fn stops(unit: &Unit) -> Note {
    let name = &unit.name;
    let mut warnings = Vec::new();
    let needed = STOPS_WITHIN.as_secs();
    if let Some(limit) = unit.stop_within.filter(|limit| *limit < STOPS_WITHIN) {
        let then = if unit.sends_sigkill { "systemd kills it with SIGKILL" } else { "systemd gives it up" };
        warnings.push(format!(
            "TimeoutStopSec= of {name} is {} s: a Kafka that takes longer to stop cleanly is not awaited, but {then}, and \
             its log dirs then need a recovery. Give it {needed} s at least",
            limit.as_secs()
        ));
    }
    if matches!(unit.kill_mode.as_str(), "process" | "none") {
        warnings.push(format!(
            "KillMode={} of {name} leaves processes behind: use KillMode=mixed",
            unit.kill_mode
        ));
    }
    let within =
        unit.stop_within.map_or("as long as it takes".to_owned(), |limit| format!("{} s", limit.as_secs()));
    note(format!("{name} has {within} to stop, with KillMode={}", unit.kill_mode), warnings)
}

/// The script that Kafka ships for `ExecStop=` looks for every Kafka of the host.
fn stops_alone(unit: &Unit, broker: BrokerId, at_once: usize) -> Result<Note, String> {
    let name = &unit.name;
    let found = unit.helpers.iter().find_map(|(key, words)| {
        scripts::ends_others(words, broker, at_once).map(|does| format!("{key}= of {name} {does}"))
    });
    let Some(found) = found else {
        return Ok(Note::new(format!("{name} runs no script that ends every Kafka of this host")));
    };
    let shell = unit.exec_start.iter().any(|words| scripts::stays_behind_shell(words));
    let told = format!(
        "{found}: leave the line out (in a drop-in, an empty one undoes it), for systemd itself sends Kafka SIGTERM, on which \
         it stops cleanly{}. {}",
        if shell {
            " (with `exec` before it in the shell of ExecStart=, which would get the signal alone)"
        } else {
            ""
        },
        shared::stop_by_id(broker)
    );
    shared::ends_others(&told, at_once)
}

fn restarts(unit: &Unit) -> Note {
    let Unit { name, restart, .. } = unit;
    let mut warnings = Vec::new();
    if restart == "always" || restart == "on-success" {
        warnings.push(format!(
            "Restart={restart} of {name} starts Kafka again although it was stopped cleanly from outside of systemd: use \
             Restart=on-failure"
        ));
    }
    if let Some(after) = unit.restart_after.filter(|after| restart != "no" && *after > RESTARTS_WITHIN) {
        warnings.push(format!(
            "RestartSec= of {name} is {} s: a takeover that waits for the broker asks a person before that is over; use {} \
             s or less",
            after.as_secs(),
            RESTARTS_WITHIN.as_secs()
        ));
    }
    note(format!("Restart={restart} of {name}"), warnings)
}

fn same_user(unit: &Unit, user: &str) -> Result<Note, String> {
    let Unit { name, user: theirs, .. } = unit;
    let shown = |user: &str| if user.is_empty() { "root".to_owned() } else { user.to_owned() };
    if shown(theirs) == shown(user) {
        return Ok(Note::new(format!("{name} and broker_host.user agree on {}", shown(user))));
    }
    Err(format!(
        "{name} runs Kafka as {}, and the log dirs are checked as {}: make User= and broker_host.user the same",
        shown(theirs),
        shown(user)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        vec![text.split(' ').map(str::to_owned).collect()]
    }

    fn good() -> Unit {
        Unit {
            name: "kafka@1.service".into(),
            load_state: "loaded".into(),
            kind: "exec".into(),
            unit_file_state: "enabled".into(),
            exec_start: words(
                "/usr/bin/understudy guard --broker 1 --exec --user kafka -- /opt/kafka/bin/kafka-server-start.sh \
                 ${UNDERSTUDY_PROPERTIES}",
            ),
            exec_condition: words("/usr/bin/understudy guard --broker 1 --wait 30s"),
            stop_within: Some(Duration::from_secs(180)),
            restart: "on-failure".into(),
            restart_after: Some(Duration::from_secs(2)),
            kill_mode: "mixed".into(),
            user: "kafka".into(),
            ..Unit::default()
        }
    }

    /// What is told of a unit that differs from the good one: (errors, warnings).
    fn told(change: impl FnOnce(&mut Unit)) -> (Vec<String>, Vec<String>) {
        told_among(2, change)
    }

    /// The same where `at_once` brokers may run.
    fn told_among(at_once: usize, change: impl FnOnce(&mut Unit)) -> (Vec<String>, Vec<String>) {
        let mut unit = good();
        change(&mut unit);
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        for (_, result) in findings(&unit, BrokerId(1), "kafka", at_once) {
            match result {
                Ok(note) if note.warnings.is_empty() => {}
                Ok(note) => warnings.push(note.to_string()),
                Err(why) => errors.push(why),
            }
        }
        (errors, warnings)
    }

    #[track_caller]
    fn is_error(change: impl FnOnce(&mut Unit), part: &str) {
        let (errors, warnings) = told(change);
        assert!(
            errors.len() == 1 && warnings.is_empty() && errors[0].contains(part),
            "{errors:?} {warnings:?}"
        );
    }

    #[track_caller]
    fn is_warning(change: impl FnOnce(&mut Unit), part: &str) {
        let (errors, warnings) = told(change);
        assert!(
            errors.is_empty() && warnings.len() == 1 && warnings[0].contains(part),
            "{errors:?} {warnings:?}"
        );
    }

    #[test]
    fn a_good_unit_passes() {
        assert_eq!(told(|_| ()), (Vec::new(), Vec::new()));
        assert_eq!(told(|unit| unit.stop_within = None), (Vec::new(), Vec::new()));
        assert_eq!(told(|unit| unit.exec_condition.clear()), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_shell_of_the_unit_may_put_the_configuration_in() {
        for script in
            ["exec /k/start.sh $$UNDERSTUDY_PROPERTIES", "exec /k/start.sh \"$UNDERSTUDY_PROPERTIES\""]
        {
            let by_shell = |unit: &mut Unit| {
                unit.exec_start[0].truncate(8);
                unit.exec_start[0].extend(["/bin/sh", "-c", script].map(str::to_owned));
            };
            assert_eq!(told(by_shell), (Vec::new(), Vec::new()), "{script}");
        }
    }

    #[test]
    fn what_makes_a_takeover_fail_or_unsafe_is_an_error() {
        is_error(|unit| unit.load_state = "masked".into(), "systemctl unmask kafka@1.service");
        is_error(|unit| unit.load_state = "not-found".into(), "there is no kafka@1.service");
        is_error(|unit| unit.load_state = "bad-setting".into(), "bad-setting");
        is_error(
            |unit| unit.exec_start = words("/u guard --broker 1 --exec -- /k /etc/kafka/server.properties"),
            "does not use ${UNDERSTUDY_PROPERTIES}",
        );
        let as_its_name = |unit: &mut Unit| {
            unit.exec_start = words("/u guard --broker 1 --exec -- /k.sh $$UNDERSTUDY_PROPERTIES");
        };
        is_error(as_its_name, "does not use ${UNDERSTUDY_PROPERTIES}");
        let unasked = |unit: &mut Unit| {
            unit.exec_condition.clear();
            unit.exec_start = words("/k/kafka-server-start.sh ${UNDERSTUDY_PROPERTIES}");
        };
        is_error(unasked, "is enabled and does not ask");
        // Another broker's word is none.
        let other = |unit: &mut Unit| {
            unasked(unit);
            unit.exec_condition = words("/usr/bin/understudy guard --broker 11");
        };
        is_error(other, "--broker 1");
        let triggered = |unit: &mut Unit| {
            unasked(unit);
            unit.unit_file_state = "static".into();
            unit.triggered_by = vec!["kafka.timer".into()];
        };
        is_error(triggered, "triggered by kafka.timer");
        is_error(
            |unit| unit.user = "root".into(),
            "runs Kafka as root, and the log dirs are checked as kafka",
        );
        is_error(|unit| unit.user = String::new(), "runs Kafka as root");
    }

    #[test]
    fn a_stop_that_ends_every_kafka_is_an_error_where_another_may_run() {
        let stop = |key, command: &str| {
            let helper = (key, command.split(' ').map(str::to_owned).collect());
            move |unit: &mut Unit| unit.helpers.push(helper)
        };
        let script = "/opt/kafka/bin/kafka-server-stop.sh";
        is_error(stop("ExecStop", script), "ExecStop= of kafka@1.service runs kafka-server-stop.sh");
        is_error(stop("ExecStop", script), "leave the line out");
        is_error(stop("ExecStop", script), "2 brokers may run here at once");
        is_error(stop("ExecStopPost", script), "ExecStopPost= of kafka@1.service");
        let (errors, warnings) = told_among(1, stop("ExecStop", script));
        assert!(errors.is_empty() && warnings[0].contains("leave the line out"), "{errors:?} {warnings:?}");
        let own = format!("{script} --node-id=1");
        assert_eq!(told(stop("ExecStop", &own)), (Vec::new(), Vec::new()));
        let behind_shell = |unit: &mut Unit| {
            unit.exec_start[0].truncate(8);
            unit.exec_start[0].extend(["/bin/sh", "-c"].map(str::to_owned));
            unit.exec_start[0]
                .push("/k/kafka-server-start.sh ${UNDERSTUDY_PROPERTIES} > /k/log 2>&1".to_owned());
            stop("ExecStop", script)(unit);
        };
        is_error(behind_shell, "with `exec` before it");
    }

    #[test]
    fn a_start_that_leaves_kafka_behind_is_an_error() {
        let daemon = |unit: &mut Unit| {
            let at = unit.exec_start[0].len() - 1;
            unit.exec_start[0].insert(at, "-daemon".to_owned());
        };
        is_error(daemon, "ExecStart= of kafka@1.service runs kafka-server-start.sh -daemon");
        is_error(daemon, "Leave `-daemon` out");
        let forking = |unit: &mut Unit| {
            daemon(unit);
            unit.kind = "forking".into();
        };
        is_warning(forking, "may not know Kafka's main process");
    }

    #[test]
    fn what_is_probably_not_meant_is_a_warning() {
        is_warning(|unit| unit.needs_reload = true, "systemctl daemon-reload");
        is_warning(|unit| unit.kind = "simple".into(), "Type=exec is better");
        is_warning(|unit| unit.kind = "forking".into(), "may not know Kafka's main process");
        let condition = |unit: &mut Unit| unit.exec_start = words("/k/start.sh ${UNDERSTUDY_PROPERTIES}");
        is_warning(condition, "--exec --user kafka -- /k/start.sh ${UNDERSTUDY_PROPERTIES}");
        let by_hand = |unit: &mut Unit| {
            condition(unit);
            unit.exec_condition.clear();
            unit.unit_file_state = "disabled".into();
        };
        is_warning(by_hand, "whoever starts it");
        let short = Some(Duration::from_secs(90));
        is_warning(|unit| (unit.stop_within, unit.sends_sigkill) = (short, true), "kills it with SIGKILL");
        is_warning(|unit| unit.stop_within = short, "gives it up");
        is_warning(|unit| unit.kill_mode = "process".into(), "leaves processes behind");
        is_warning(|unit| unit.restart = "always".into(), "Restart=on-failure");
        is_warning(
            |unit| unit.restart_after = Some(Duration::from_secs(5)),
            "RestartSec= of kafka@1.service is 5 s",
        );
        assert_eq!(
            told(|unit| (unit.restart, unit.restart_after) = ("no".into(), Some(Duration::from_secs(100)))),
            (Vec::new(), Vec::new())
        );
    }
}
