//! Killing a unit whose Kafka serves without a registration: it would not end when it is asked to.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::super::end_fenced::end_fenced;
use super::super::problem::Problem;
use super::Systemd;
use super::unit::Sight;
use recovery::model::BrokerId;
use recovery::ports::Note;

/// How often the unit is looked at while its stop begins.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Systemd {
    /// Has the unit stopped, so that systemd does not start it again, and kills what would not stop.
    pub(super) async fn kill_unit(
        &self,
        broker: BrokerId,
        pid: i32,
        limit: Duration,
    ) -> Result<Note, Problem> {
        let unit = self.unit(broker)?;
        let seen = self.bus.look(&unit, self.timeout).await?;
        match seen.sight(true) {
            Sight::Running(runs) if runs == pid => {}
            Sight::Running(runs) => {
                let why = format!("pid {pid} was meant, and {unit} runs as pid {runs}");
                return Err(Problem::Refused(why));
            }
            _ => return Err(Problem::Refused(format!("pid {pid} was meant, and {}", seen.state()))),
        }
        let (killed, stopped) =
            tokio::join!(self.kill_what_stops(&unit, pid, limit), self.stop_unit(broker, limit));
        let note = stopped?;
        killed?;
        Ok(Note::new(format!("{}; it was killed", note.text)).with("pid", pid))
    }

    /// Kills the unit's Kafka, with its stop, so that systemd does not start it again; and whatever else runs
    /// this broker.
    pub(super) async fn end_unit(&self, broker: BrokerId, limit: Duration) -> Result<Note, Problem> {
        let unit = self.unit(broker)?;
        let seen = self.bus.look(&unit, self.timeout).await?;
        let ended = match seen.sight(true) {
            Sight::Running(pid) => Some(self.kill_unit(broker, pid, limit).await?.text),
            _ => None,
        };
        let what = "ending what else runs this broker";
        let others =
            self.files(what, limit + self.timeout, move |common| end_fenced(common, broker, limit)).await?;
        let said: Vec<String> = ended.into_iter().chain([others.text]).collect();
        Ok(Note::new(said.join("; ")))
    }

    /// Sends SIGKILL once the unit is being stopped: a unit that is killed before would be started again.
    async fn kill_what_stops(&self, unit: &str, pid: i32, limit: Duration) -> Result<(), Problem> {
        let begun = Instant::now();
        loop {
            let seen = self.bus.look(unit, self.timeout).await?;
            if seen.main_pid != Some(pid) {
                return Ok(());
            }
            if seen.active_state == "deactivating" {
                return self.bus.kill(unit, self.timeout).await;
            }
            if begun.elapsed() >= limit {
                let what = format!("{unit} was to be stopped, and {}", seen.state());
                return Err(Problem::Unconfirmed { what, limit });
            }
            sleep(LOOK_EVERY).await;
        }
    }
}
