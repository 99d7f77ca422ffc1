//! Starting, finding and stopping the Kafka process of a broker.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};

use super::super::common::PATIENCE;
use super::super::problem::Problem;
use super::super::proc::{self, ProcessId};
use super::super::site::{Record, Site};
use super::launch::{Start, UNRECORDED};
use super::{DRIVER, Inner};
use recovery::model::{BrokerId, Epoch};
use recovery::ports::{Note, ProcessState, Proof};

/// How often a process is looked at that is expected to end, or to show itself.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Of a process that somebody else has reaped.
pub(in super::super) const UNKNOWN_STATUS: &str = "an unknown status";

/// What runs of a broker on this host.
enum Found {
    /// Nothing.
    Nothing,
    /// A process that we started.
    Running(Running),
    /// Something holds the broker's `alive.lock` and does not show itself.
    Hidden,
}

/// By which a start is allowed.
pub(in super::super) struct Leave<'a> {
    /// The proofs, in words.
    pub(in super::super) proof: String,
    /// Asked last, with everything held that keeps others from starting: whether it is still meant.
    pub(in super::super) still: &'a dyn Fn() -> Result<(), Problem>,
}

/// A process that was started as a broker.
struct Running {
    id: ProcessId,
    epoch: Epoch,
}

impl Inner {
    pub(super) fn start(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        leave: &Leave<'_>,
        archive: Option<&Path>,
    ) -> Result<Note, Problem> {
        let site = self.common.site(broker);
        self.common.check_rendered(broker, epoch, &site)?;
        // Held until Kafka is recorded, so that two agents cannot both find nothing and both start one.
        let _lock = site.lock_start(PATIENCE)?;
        let record = site.record()?;
        if let Some(newer) = record.as_ref().filter(|record| record.epoch > epoch) {
            return Err(Problem::Superseded { ours: epoch, theirs: newer.epoch });
        }
        let note = match self.find_settled(broker, &site)? {
            Found::Running(running) => self.adopt(broker, epoch, leave, &site, &running)?,
            Found::Hidden => return Err(hidden(broker, &site)),
            Found::Nothing => self.spawn((broker, epoch), leave, &site, archive)?,
        };
        Ok(note.with("epoch", epoch).with("proof", &leave.proof))
    }

    fn adopt(
        &self,
        broker: BrokerId,
        epoch: Epoch,
        leave: &Leave<'_>,
        site: &Site,
        running: &Running,
    ) -> Result<Note, Problem> {
        let Running { id, epoch: theirs } = running;
        if *theirs > epoch {
            return Err(Problem::Superseded { ours: epoch, theirs: *theirs });
        }
        if *theirs < epoch {
            // Another host may have owned the broker in between: what this one has in memory is stale.
            return Err(Problem::Refused(format!(
                "a Kafka of broker {broker} from epoch {theirs} still runs on this host (pid {}): stop it with \
                 `kill {}`, wait until it is gone, and try again",
                id.pid, id.pid
            )));
        }
        let record = site.record()?;
        if record.as_ref().and_then(|record| record.process) != Some(*id) {
            let record = record.map_or_else(|| self.record(epoch, leave, site, 0), Ok)?;
            site.keep(&Record { process: Some(*id), ..record })?;
        }
        Ok(Note::new(format!("adopted the Kafka that runs already, pid {}", id.pid)).with("pid", id.pid))
    }

    fn spawn(
        &self,
        (broker, epoch): (BrokerId, Epoch),
        leave: &Leave<'_>,
        site: &Site,
        archive: Option<&Path>,
    ) -> Result<Note, Problem> {
        // The right first, and then the look: whoever else starts Kafka by it cannot begin in between.
        let Some(alive) = site.lock_alive(PATIENCE)? else { return Err(hidden(broker, site)) };
        // Since the proof was made, somebody else may have started it: a unit, or a person.
        self.common.refuse_if_in_use(broker)?;
        let (output, output_from) = match self.launch.inherits {
            true => (None, 0),
            false => open_output(site).map(|(file, end)| (Some(file), end))?,
        };
        let mut record = self.record(epoch, leave, site, output_from)?;
        site.keep(&record)?;
        let _unrecorded = UNRECORDED.lock().unwrap_or_else(PoisonError::into_inner);
        (leave.still)()?;
        let pid = self.launch.for_broker(broker).spawn(Start {
            properties: &site.properties(),
            marker: self.common.marker(broker).environment(epoch),
            output,
            alive,
            user: self.common.user.as_ref(),
            archive,
        });
        let program = record.command.first().cloned().unwrap_or_default();
        let pid = pid.map_err(Problem::io(format!("executing {program} (broker_host.command)")))?;
        // It is our child: even if it has ended already it stays in /proc until we have asked for its status.
        let stat = proc::stat(pid)?
            .ok_or_else(|| Problem::Refused(format!("process {pid}, just started, is not in /proc")))?;
        let id = ProcessId { pid, start_ticks: stat.start_ticks };
        record.process = Some(id);
        site.keep(&record)?;
        if !proc::is_alive(id)? {
            let why = self.why_it_ended(broker, site, &record, id)?;
            return Err(Problem::Refused(format!("Kafka ended at once: {why}")));
        }
        let command = record.command.join(" ");
        Ok(Note::new(format!("started Kafka, pid {pid}")).with("pid", pid).with("command", command))
    }

    fn record(
        &self,
        epoch: Epoch,
        leave: &Leave<'_>,
        site: &Site,
        output_from: u64,
    ) -> Result<Record, Problem> {
        Ok(Record {
            epoch,
            boot_id: proc::boot_id()?,
            process: None,
            command: self.launch.arguments(&site.properties()),
            proof: leave.proof.clone(),
            output_from,
        })
    }

    /// Looks for the broker's process: by the record, by the marker, and by the lock that it holds.
    fn find(&self, broker: BrokerId, site: &Site) -> Result<Found, Problem> {
        if let Some(Record { epoch, boot_id, process: Some(id), .. }) = site.record()?
            && boot_id == proc::boot_id()?
            && proc::is_alive(id)?
        {
            return Ok(Found::Running(Running { id, epoch }));
        }
        if let Some(first) = self.common.marker(broker).find()?.first() {
            return Ok(Found::Running(Running { id: first.id, epoch: first.epoch }));
        }
        // Asked after the processes were looked at: whoever started in between holds the lock by now.
        Ok(if site.is_held()? { Found::Hidden } else { Found::Nothing })
    }

    /// As [`Self::find`]. A process that is between fork and exec has the lock and not yet the marker: it
    /// gets the time to show itself.
    fn find_settled(&self, broker: BrokerId, site: &Site) -> Result<Found, Problem> {
        let begun = Instant::now();
        loop {
            let found = self.find(broker, site)?;
            if !matches!(found, Found::Hidden) || begun.elapsed() >= PATIENCE {
                return Ok(found);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    pub(super) fn state(&self, broker: BrokerId) -> Result<ProcessState, Problem> {
        let site = self.common.site(broker);
        if matches!(self.find(broker, &site)?, Found::Hidden)
            && let Some(id) = self.stranger(broker, &site)?
        {
            return Ok(ProcessState::Running { pid: id.pid });
        }
        match self.find_settled(broker, &site)? {
            Found::Running(running) => return Ok(ProcessState::Running { pid: running.id.pid }),
            Found::Hidden => return Err(hidden(broker, &site)),
            Found::Nothing => {}
        }
        // Without a process in the record none was ever started: the agent died right before it.
        let Some(record) = site.record()? else { return Ok(ProcessState::Absent) };
        let Some(id) = record.process else { return Ok(ProcessState::Absent) };
        let why = self.why_it_ended(broker, &site, &record, id)?;
        Ok(ProcessState::Exited { why })
    }

    fn why_it_ended(
        &self,
        broker: BrokerId,
        site: &Site,
        record: &Record,
        id: ProcessId,
    ) -> Result<String, Problem> {
        if record.boot_id != proc::boot_id()? {
            return Ok("this host was rebooted since Kafka was started".to_owned());
        }
        let status = self.reap(broker, id)?.unwrap_or_else(|| format!("ended with {UNKNOWN_STATUS}"));
        if self.launch.inherits {
            return Ok(format!("pid {} {status}", id.pid));
        }
        let path = site.output();
        // Words that cannot be told from secrets are left in the file.
        let Ok(secrets) = self.common.secrets(broker) else {
            return Ok(format!("pid {} {status}; see {}", id.pid, path.display()));
        };
        let lines = secrets.redact(&site.last_lines(record.output_from)?);
        Ok(if lines.is_empty() {
            format!("pid {} {status}, without any output", id.pid)
        } else {
            format!("pid {} {status}; the end of {}:\n{lines}", id.pid, path.display())
        })
    }

    /// Asks how a child has ended, if it was a broker's, and keeps that. Returns whose it was, and how it ended.
    pub(super) fn take_up(&self, id: ProcessId) -> Option<(BrokerId, String)> {
        let recorded = |broker: BrokerId| self.common.site(broker).record().ok()??.process;
        let broker = self.common.brokers.keys().copied().find(|broker| recorded(*broker) == Some(id))?;
        self.reap(broker, id).ok()?.map(|status| (broker, status))
    }

    /// The exit status of an ended process, if it is our child: of others the system does not tell it.
    fn reap(&self, broker: BrokerId, id: ProcessId) -> Result<Option<String>, Problem> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, status)) = ended.get(&broker).filter(|(known, _)| *known == id) {
            return Ok(Some(status.clone()));
        }
        // Its number may belong to another process by now, whose status is none of our business.
        if proc::stat(id.pid)?.is_none_or(|stat| stat.start_ticks != id.start_ticks) {
            return Ok(None);
        }
        let Some(pid) = Pid::from_raw(id.pid) else { return Ok(None) };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let Ok(Some(status)) = waitid(WaitId::Pid(pid), options) else { return Ok(None) };
        let status = status_text(&status);
        ended.insert(broker, (id, status.clone()));
        Ok(Some(status))
    }

    pub(super) fn stop(&self, broker: BrokerId, limit: Duration) -> Result<Note, Problem> {
        let site = self.common.site(broker);
        site.create()?;
        let _lock = site.lock_start(PATIENCE)?;
        let begun = Instant::now();
        let mut asked: Vec<ProcessId> = Vec::new();
        loop {
            let running = match self.find(broker, &site)? {
                Found::Nothing => break,
                Found::Running(running) => Some(running.id),
                // Somebody else started it, by the right as this agent does: it is for them to stop.
                Found::Hidden if asked.is_empty() && !self.others(broker)?.is_empty() => break,
                Found::Hidden => None,
            };
            // A wrapper may end before the Kafka it started, which is then found and asked in turn.
            if let Some(id) = running.filter(|id| !asked.contains(id)) {
                proc::terminate(id)?;
                asked.push(id);
            }
            if begun.elapsed() >= limit {
                return Err(Problem::Unconfirmed { what: still_there(running, &site), limit });
            }
            thread::sleep(LOOK_EVERY);
        }
        if let Some(id) = site.record()?.and_then(|record| record.process) {
            self.reap(broker, id)?;
        }
        site.forget()?;
        let pids: Vec<_> = asked.iter().map(|id| id.pid.to_string()).collect();
        Ok(match &pids[..] {
            [] => Note::new("no Kafka of the broker ran here"),
            _ => Note::new(format!("Kafka ended after SIGTERM, pid {}", pids.join(", "))),
        })
    }

    /// Kills the process `pid` of the broker, and what it started. Of any other process nothing is touched.
    pub(super) fn kill(&self, broker: BrokerId, pid: i32, limit: Duration) -> Result<Note, Problem> {
        let site = self.common.site(broker);
        site.create()?;
        // Nothing else is started as this broker while this is held.
        let _lock = site.lock_start(PATIENCE)?;
        let epoch = match self.find(broker, &site)? {
            Found::Running(Running { id, epoch }) if id.pid == pid => epoch,
            Found::Running(Running { id, .. }) => {
                let why = format!("pid {pid} was meant, and the broker runs as pid {}", id.pid);
                return Err(Problem::Refused(why));
            }
            Found::Hidden => return Err(hidden(broker, &site)),
            Found::Nothing => return Ok(Note::new(format!("pid {pid} has ended already"))),
        };
        let begun = Instant::now();
        loop {
            let running = match self.find(broker, &site)? {
                Found::Nothing => break,
                Found::Running(running) if running.epoch == epoch => Some(running.id),
                Found::Running(_) | Found::Hidden => None,
            };
            // A wrapper ends before the Kafka it started, which is then found in turn.
            running.map(proc::kill).transpose()?;
            if begun.elapsed() >= limit {
                let left = running.map_or_else(
                    || format!("a process still holds {}", site.alive_path().display()),
                    |id| format!("pid {} was sent SIGKILL and still runs: its storage may hang", id.pid),
                );
                return Err(Problem::Unconfirmed { what: left, limit });
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(Note::new(format!("Kafka was killed, pid {pid}")).with("pid", pid))
    }

    pub(super) fn prove_stopped(&self, broker: BrokerId, ours: Epoch) -> Result<Proof, Problem> {
        let site = self.common.site(broker);
        site.create()?;
        // No agent is in the middle of a start while we look.
        let _lock = site.lock_start(PATIENCE)?;
        match self.find_settled(broker, &site)? {
            Found::Nothing => {}
            Found::Hidden => return Err(hidden(broker, &site)),
            // An agent that died right after it had started Kafka carries on: that Kafka is the one it means.
            Found::Running(Running { id, epoch }) if epoch == ours => {
                let text = format!("the only process of broker {broker} here is the one of this takeover");
                let note = Note::new(text).with("pid", id.pid).with("boot", proc::boot_id()?);
                return Ok(Proof { host: self.common.here.clone(), by: DRIVER.to_owned(), note });
            }
            Found::Running(Running { id, epoch }) => {
                return Err(Problem::Refused(format!(
                    "Kafka of broker {broker} runs on this host, pid {}, started for epoch {epoch}: let it \
                     recover, or stop it with `kill {}`",
                    id.pid, id.pid
                )));
            }
        }
        // Somebody else may have started it: a unit of the system, or a person.
        self.common.refuse_if_in_use(broker)?;
        let note = Note::new(format!("no process of broker {broker} lives on this host"))
            .with("record", site.record()?.map_or("none", |_| "its process is gone"))
            .with("boot", proc::boot_id()?);
        Ok(Proof { host: self.common.here.clone(), by: DRIVER.to_owned(), note })
    }
}

fn still_there(running: Option<ProcessId>, site: &Site) -> String {
    match running {
        Some(id) => format!("pid {} was sent SIGTERM and still runs; it is not killed", id.pid),
        None => format!("a process still holds {}", site.alive_path().display()),
    }
}

fn hidden(broker: BrokerId, site: &Site) -> Problem {
    Problem::Refused(format!(
        "a process on this host has the right to run broker {broker} ({}), and this agent did not start it: {}; stop it \
         as it was started",
        site.alive_path().display(),
        site.holder_in_words()
    ))
}

/// Where Kafka's output goes, and where it begins there.
fn open_output(site: &Site) -> Result<(File, u64), Problem> {
    let path = site.output();
    let output = OpenOptions::new().create(true).append(true).mode(0o640).open(&path);
    let output = output.map_err(Problem::io(format!("opening {}", path.display())))?;
    let end = output.metadata().map_err(Problem::io(format!("reading {}", path.display())))?.len();
    Ok((output, end))
}

pub(in super::super) fn status_text(status: &WaitIdStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
