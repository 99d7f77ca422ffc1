//! Starting, finding and stopping the Kafka unit of a broker.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::super::class_data::{AtStart, VARIABLE, with_archive};
use super::super::common::{Common, PATIENCE, processors, told};
use super::super::problem::Problem;
use super::super::proc;
use super::super::telling::telling;
use super::bus::{JobEnd, Verb};
use super::unit::{Sight, Unit};
use super::{DRIVER, Systemd, drop_in};
use crate::command;
use recovery::model::{BrokerId, Epoch};
use recovery::ports::{Note, ProcessState, Proof};

/// How often a unit is looked at that is expected to change.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long the journal is waited for, which only explains what is known already.
const JOURNAL_WITHIN: Duration = Duration::from_secs(2);

/// Lines of the journal that are looked at for what goes into a message.
const JOURNAL_LINES: &str = "400";

/// What may not be on this host beside the unit.
#[derive(Debug, Default)]
struct Others {
    /// In words, each a process.
    found: Vec<String>,
}

impl Others {
    /// Every process that works on the broker's log dirs or is about to, or was started as this broker by any
    /// driver.
    fn of(common: &Common, broker: BrokerId) -> Result<Self, Problem> {
        let mut found: Vec<String> = common.users(broker)?.into_iter().map(|holder| holder.text).collect();
        for marked in common.marker(broker).find()? {
            found.push(format!("{} (started for epoch {})", marked.id.pid, marked.epoch));
        }
        let site = common.site(broker);
        if site.is_held()? {
            found.push(format!("whoever holds {}", site.alive_path().display()));
        }
        Ok(Self { found })
    }

    fn refuse(&self, broker: BrokerId) -> Result<(), Problem> {
        if self.found.is_empty() {
            return Ok(());
        }
        Err(Problem::Refused(format!(
            "a process on this host, which is not the broker's unit, works as broker {broker} or on its log dirs: {}; \
             stop it as it was started",
            self.found.join("; ")
        )))
    }
}

/// Whose a main process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Started for this epoch.
    Of(Epoch),
    /// Started by no takeover.
    Nobodys,
    /// It ended meanwhile.
    Gone,
}

impl Systemd {
    pub(super) async fn start_unit(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        proofs: &[Proof],
    ) -> Result<Note, Problem> {
        let unit = self.unit(broker)?;
        let _lock = self.may_start(broker, epoch, proofs).await?;
        let mut until = Instant::now() + self.start_timeout;
        let mut asked: Option<Unit> = None;
        let mut class_data = "not known: it was started before".to_owned();
        loop {
            let seen = self.settled(&unit, until).await?;
            if let Sight::Running(pid) = seen.sight(true) {
                if !self.refuse_unless_of(broker, epoch, &seen, pid).await? {
                    sleep(LOOK_EVERY).await;
                    continue;
                }
                let how = if asked.is_some() { "started" } else { "adopted what runs already:" };
                let note = Note::new(format!("{how} {unit}, pid {pid}"))
                    .with("pid", pid)
                    .with("unit", &unit)
                    .with("invocation", &seen.invocation)
                    .with("class_data", class_data);
                return Ok(note.with("epoch", epoch).with("proof", told(proofs)));
            }
            match &asked {
                // It was begun, and is over already.
                Some(before) if before.invocation != seen.invocation => {
                    return Err(self.at_once(broker, &seen).await);
                }
                Some(_) => {}
                None => {
                    class_data = self.make_ready(broker, epoch, &unit, &seen).await?;
                    // What it took to get there has limits of its own.
                    until = Instant::now() + self.start_timeout;
                }
            }
            let before = self.bus.look(&unit, self.timeout).await?;
            asked = Some(before.clone());
            let left = until.saturating_duration_since(Instant::now());
            match self.bus.job(Verb::Start, &unit, left).await? {
                JobEnd::Told(result) if result != "done" => {
                    let seen = self.bus.look(&unit, self.timeout).await?;
                    let why = self.why_it_ended(broker, &seen).await;
                    return Err(Problem::Refused(format!("systemd ended the start with `{result}`: {why}")));
                }
                JobEnd::Told(_) => {
                    let seen = self.settled(&unit, until).await?;
                    if seen.invocation == before.invocation && !matches!(seen.sight(true), Sight::Running(_))
                    {
                        let why = if seen.result == "success" {
                            "its ExecCondition= (`understudy guard`), or one of its Condition…= lines, said no".to_owned()
                        } else {
                            self.why_it_ended(broker, &seen).await
                        };
                        return Err(Problem::Refused(format!(
                            "systemd calls the start done, and {}: {why}; see `systemctl status {unit}`",
                            seen.state()
                        )));
                    }
                }
                // Looked at anew; it is asked for again only if it was never begun.
                JobEnd::Unheard => {}
            }
        }
    }

    /// The proofs and the rendered file, and the lock that keeps two agents from starting at the same time.
    async fn may_start(&self, broker: BrokerId, epoch: Epoch, proofs: &[Proof]) -> Result<File, Problem> {
        let proofs = proofs.to_vec();
        let what = format!("reading what was rendered for broker {broker}");
        let ready = move |common: &Common| {
            let site = common.site(broker);
            common.check_proofs(&proofs)?;
            common.check_rendered(broker, epoch, &site)?;
            site.lock_start(PATIENCE)
        };
        self.files(&what, self.timeout, ready).await
    }

    /// Keeps other agents on this host from touching the broker's unit.
    async fn lock(&self, broker: BrokerId) -> Result<File, Problem> {
        let what = format!("taking the lock of broker {broker}");
        let lock = move |common: &Common| {
            let site = common.site(broker);
            site.create()?;
            site.lock_start(PATIENCE)
        };
        self.files(&what, self.timeout, lock).await
    }

    /// Renders, and lets the unit have this epoch's environment already. Reading its files anew takes systemd
    /// its time, and here others are waited for as well. The start looks at all of it again, and does what
    /// was not done.
    pub(super) async fn render_for_unit(&self, broker: BrokerId, epoch: Epoch) -> Result<Note, Problem> {
        let what = format!("rendering server.properties of broker {broker}");
        let note = self.files(&what, self.timeout, move |common| common.render(broker, epoch)).await?;
        let unit = self.unit(broker)?;
        let prepared = async {
            let _lock = self.lock(broker).await?;
            let seen = self.bus.look(&unit, self.timeout).await?;
            self.hand_over(broker, epoch, &unit, &seen).await
        };
        Ok(match prepared.await {
            Ok(_) => note.with("unit", format!("{unit} has the environment of epoch {epoch}")),
            Err(problem) => {
                note.with("unit", format!("{unit} gets its environment when it is started: {problem}"))
            }
        })
    }

    /// Everything before the start: nobody else is at it, and the unit has this epoch's environment, read
    /// back. Returns what came of the class-data archive.
    async fn make_ready(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        unit: &str,
        seen: &Unit,
    ) -> Result<String, Problem> {
        if seen.load_state != "loaded" {
            return Err(Problem::Refused(super::check::not_loaded(seen)));
        }
        super::check::contradicts(seen).map_err(Problem::Refused)?;
        // Since the log dirs were verified, somebody else may have started it.
        let what = format!("looking for whoever works as broker {broker}");
        self.files(&what, self.timeout, move |common| Others::of(common, broker)?.refuse(broker)).await?;
        let (environment, class_data) = self.hand_over(broker, epoch, unit, seen).await?;
        if seen.active_state == "failed" {
            // What failed before must not count against this start.
            self.bus.reset_failed(unit, self.timeout).await?;
        }
        let now = self.bus.look(unit, self.timeout).await?;
        let differs = environment.iter().find(|(name, value)| now.environment.get(*name) != Some(value));
        differs.map_or(Ok(class_data), |(name, _)| {
            Err(Problem::Refused(format!(
                "{unit} does not have {name} from {}: which other drop-in sets it? See `systemctl cat {unit}`",
                drop_in::path(&self.run_dir, unit).display()
            )))
        })
    }

    /// Writes this epoch's drop-in and has systemd read it, unless both are so by what was `seen`. Returns
    /// what the unit's environment must have, and what came of the class-data archive: Kafka starts without
    /// one as well, so that another drop-in says otherwise is no error.
    async fn hand_over(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        unit: &str,
        seen: &Unit,
    ) -> Result<(BTreeMap<String, String>, String), Problem> {
        let (path, configured) = (drop_in::path(&self.run_dir, unit), self.common.environment(broker));
        let known = !seen.needs_reload && seen.drop_ins.iter().any(|known| Path::new(known) == path);
        let loaded = known.then(|| seen.environment.clone());
        let AtStart { archive, says } = self.shelf.at_start().await;
        let given = configured.get(VARIABLE).or_else(|| seen.environment.get(VARIABLE));
        let options = archive.map(|archive| with_archive(given.map(String::as_str), &archive, processors()));
        let what = format!("making {unit} ready for broker {broker}");
        let write = move |common: &Common| {
            let mut environment = drop_in::environment(common, broker, epoch, configured);
            environment.extend(options.clone().map(|options| (VARIABLE.to_owned(), options)));
            let text = drop_in::text(broker, epoch, &environment);
            if options.is_some() {
                environment.remove(VARIABLE);
            }
            let has = |loaded: &BTreeMap<String, String>| {
                environment.iter().all(|(name, value)| loaded.get(name) == Some(value))
            };
            let is_read = loaded.is_some_and(|loaded| has(&loaded)) && drop_in::is(&path, &text);
            if !is_read {
                drop_in::write(&path, &text)?;
            }
            Ok((environment, is_read))
        };
        let (environment, is_read) = self.files(&what, self.timeout, write).await?;
        if !is_read {
            self.bus.reload(self.timeout).await?;
        }
        Ok((environment, says))
    }

    /// Waits until the unit is neither on its way up nor down.
    async fn settled(&self, unit: &str, until: Instant) -> Result<Unit, Problem> {
        loop {
            let seen = self.bus.look(unit, self.timeout).await?;
            if seen.sight(true) != Sight::Between {
                return Ok(seen);
            }
            if Instant::now() >= until {
                let what = format!("{}; see `systemctl status {unit}`", seen.state());
                return Err(Problem::Unconfirmed { what, limit: self.start_timeout });
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// What runs must be what this epoch started, by the environment of the process itself. False: it ended
    /// meanwhile.
    async fn refuse_unless_of(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        seen: &Unit,
        pid: i32,
    ) -> Result<bool, Problem> {
        let unit = &seen.name;
        match self.epoch_of(broker, pid).await? {
            Whose::Of(theirs) if theirs == epoch && seen.active_state == "deactivating" => Err(
                Problem::Refused(format!("somebody stops {unit} at this moment: see `systemctl list-jobs`")),
            ),
            Whose::Of(theirs) if theirs == epoch => Ok(true),
            Whose::Of(theirs) if theirs > epoch => Err(Problem::Superseded { ours: epoch, theirs }),
            // Another host may have owned the broker in between: what this one has in memory is stale.
            Whose::Of(theirs) => Err(Problem::Refused(format!(
                "{unit} still runs since epoch {theirs}, pid {pid}: stop it with `systemctl stop {unit}`, wait until \
                 it is gone, and try again"
            ))),
            Whose::Gone => Ok(false),
            Whose::Nobodys => Err(Problem::Refused(format!(
                "{unit} runs, pid {pid}, and no takeover started it: stop it with `systemctl stop {unit}`, and try again"
            ))),
        }
    }

    /// The epoch in the environment of a process that had time to get it.
    async fn epoch_of(&self, broker: BrokerId, pid: i32) -> Result<Whose, Problem> {
        let begun = Instant::now();
        loop {
            let what = format!("reading the environment of process {pid}");
            let read = move |common: &Common| {
                let epoch = common.marker(broker).epoch_of_process(pid)?;
                Ok((epoch, proc::stat(pid)?.is_none()))
            };
            let (epoch, gone) = self.files(&what, self.timeout, read).await?;
            // Between fork and exec it still has the environment of systemd itself.
            match epoch {
                Some(epoch) => return Ok(Whose::Of(epoch)),
                None if gone => return Ok(Whose::Gone),
                None if begun.elapsed() >= self.timeout => return Ok(Whose::Nobodys),
                None => {}
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn at_once(&self, broker: BrokerId, seen: &Unit) -> Problem {
        Problem::Refused(format!("Kafka ended at once: {}", self.why_it_ended(broker, seen).await))
    }

    pub(super) async fn state_of_unit(&self, broker: BrokerId) -> Result<ProcessState, Problem> {
        let unit = self.unit(broker)?;
        let seen = self.bus.look(&unit, self.timeout).await?;
        let ours = drop_in::path(&self.run_dir, &unit);
        let ours = seen.drop_ins.iter().any(|path| Path::new(path) == ours);
        Ok(match seen.sight(ours) {
            Sight::Running(pid) => ProcessState::Running { pid },
            Sight::Down => ProcessState::Absent,
            Sight::Ended => ProcessState::Exited { why: self.why_it_ended(broker, &seen).await },
            Sight::Between => {
                return Err(Problem::Refused(format!(
                    "{}: it neither runs nor has it ended; look again",
                    seen.state()
                )));
            }
        })
    }

    /// How the last run ended, with the end of its journal if that is to be had at once.
    async fn why_it_ended(&self, broker: BrokerId, seen: &Unit) -> String {
        let ending = seen.ending();
        let key = format!("{} {ending}", seen.invocation);
        {
            let known = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, text)) = known.get(&broker).filter(|(known, _)| *known == key) {
                return text.clone();
            }
        }
        let invocation = format!("_SYSTEMD_INVOCATION_ID={}", seen.invocation);
        let arguments = ["--no-pager", "--quiet", "--output=cat", "--lines", JOURNAL_LINES, &invocation];
        let journal = command::run(Path::new("journalctl"), &arguments, b"", JOURNAL_WITHIN).await;
        let lines = journal.ok().filter(|ended| ended.status.success()).map(|ended| ended.stdout);
        // Words that cannot be told from secrets are left in the journal.
        let secrets = self.files("reading the template", self.timeout, move |all| all.secrets(broker)).await;
        let lines = secrets.map(|secrets| secrets.redact(&telling(&lines.unwrap_or_default())));
        let lines = lines.unwrap_or_default();
        let text = match lines.trim_end() {
            "" => format!("{ending}; see `journalctl -u {}`", seen.name),
            lines => format!("{ending}; the end of its journal:\n{lines}"),
        };
        self.last_words.lock().unwrap_or_else(PoisonError::into_inner).insert(broker, (key, text.clone()));
        text
    }

    pub(super) async fn stop_unit(&self, broker: BrokerId, limit: Duration) -> Result<Note, Problem> {
        let unit = self.unit(broker)?;
        let until = Instant::now() + limit;
        let _lock = self.lock(broker).await?;
        let before = self.bus.look(&unit, self.timeout).await?;
        let quiet = before.is_quiet();
        let mut told = String::new();
        loop {
            let seen = self.bus.look(&unit, self.timeout).await?;
            if !seen.is_quiet() {
                let left = until.saturating_duration_since(Instant::now());
                match self.bus.job(Verb::Stop, &unit, left).await? {
                    JobEnd::Told(result) => told = format!(", its stop ended with `{result}`"),
                    JobEnd::Unheard => {}
                }
            }
            let left = self.left_behind(broker, &unit).await?;
            if left.is_empty() {
                break;
            }
            // What runs beside a unit that was down already is nobody's that would end by waiting.
            if quiet {
                Others { found: left }.refuse(broker)?;
                continue;
            }
            if Instant::now() >= until {
                let what = format!("this still runs{told}, and is not killed: {}", left.join("; "));
                return Err(Problem::Unconfirmed { what, limit });
            }
            sleep(LOOK_EVERY).await;
        }
        let seen = self.bus.look(&unit, self.timeout).await?;
        if seen.active_state == "failed" {
            // It was asked to end: that it did so with an exit code of its own is no failure.
            self.bus.reset_failed(&unit, self.timeout).await?;
        }
        let forgot = self.forget(&unit).await;
        let text = match before.main_pid {
            Some(pid) => format!("{unit} is {} since it was asked to stop, pid {pid}", seen.active_state),
            None if quiet => format!("no Kafka of the broker ran here: {}", before.state()),
            None => format!("{unit} is {} since it was asked to stop", seen.active_state),
        };
        Ok(match forgot {
            Ok(()) => Note::new(text),
            Err(problem) => Note::new(text).with("drop-in", problem),
        })
    }

    /// What is left of the broker on this host: of its unit, or of anybody's.
    async fn left_behind(&self, broker: BrokerId, unit: &str) -> Result<Vec<String>, Problem> {
        let seen = self.bus.look(unit, self.timeout).await?;
        let mut left = self.bus.processes(unit, self.timeout).await?;
        if !seen.is_quiet() && left.is_empty() {
            left.push(seen.state());
        }
        let what = format!("looking for processes of broker {broker}");
        left.extend(self.files(&what, self.timeout, move |common| Others::of(common, broker)).await?.found);
        Ok(left)
    }

    /// Takes the environment of the takeover away from a unit that was stopped on request.
    async fn forget(&self, unit: &str) -> Result<(), Problem> {
        let path = drop_in::path(&self.run_dir, unit);
        let what = format!("removing {}", path.display());
        if self.files(&what, self.timeout, move |_| drop_in::remove(&path)).await? {
            self.bus.reload(self.timeout).await?;
        }
        Ok(())
    }

    pub(super) async fn prove_unit_stopped(&self, broker: BrokerId, ours: Epoch) -> Result<Proof, Problem> {
        let unit = self.unit(broker)?;
        // No agent is in the middle of a start while we look.
        let _lock = self.lock(broker).await?;
        let boot = self.files("reading the boot id", self.timeout, |_| proc::boot_id()).await?;
        let proof = |note: Note| Proof {
            host: self.common.here.clone(),
            by: DRIVER.to_owned(),
            note: note.with("unit", &unit).with("boot", &boot),
        };
        let before = self.bus.look(&unit, self.timeout).await?;
        if let Sight::Running(pid) = before.sight(true) {
            // An agent that died right after it had started Kafka carries on: that Kafka is the one it means.
            if self.epoch_of(broker, pid).await? == Whose::Of(ours) {
                let text = format!("the only process of broker {broker} here is the one of this takeover");
                return Ok(proof(Note::new(text).with("pid", pid).with("invocation", &before.invocation)));
            }
            return Err(Problem::Refused(format!(
                "{}: let it recover, or stop it with `systemctl stop {unit}`",
                before.state()
            )));
        }
        if !before.is_quiet() {
            return Err(Problem::Refused(format!(
                "{}, so it may run at any moment: stop it with `systemctl stop {unit}`",
                before.state()
            )));
        }
        let processes = self.bus.processes(&unit, self.timeout).await?;
        if !processes.is_empty() {
            return Err(Problem::Refused(format!(
                "{unit} is {}, and processes of it live on: {}; end them",
                before.active_state,
                processes.join("; ")
            )));
        }
        let what = format!("looking for processes of broker {broker}");
        let others = self.files(&what, self.timeout, move |common| Others::of(common, broker)).await?;
        others.refuse(broker)?;
        // It was looked at before the processes were: nothing may have begun in between.
        let after = self.bus.look(&unit, self.timeout).await?;
        if !after.is_quiet() || after.invocation != before.invocation {
            return Err(Problem::Refused(format!(
                "{unit} was started while it was looked at: {}",
                after.state()
            )));
        }
        let text = format!(
            "{}: no main process, no job queued, nothing in its control group, and no process on this host works as \
             broker {broker} or on its log dirs",
            after.state()
        );
        Ok(proof(Note::new(text).with("result", &after.result)))
    }
}
