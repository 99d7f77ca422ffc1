//! The ladder: a host's fences, tried in order until one is proven.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::model::{Epoch, HostName};
use crate::ports::{Fence, Note, Proof, StepError, chain};

/// A host's fences, in the order of the configuration.
#[derive(Clone)]
pub struct Ladder {
    rungs: Vec<Arc<dyn Fence>>,
}

impl Ladder {
    /// A ladder of `rungs`. Without any, nothing can be fenced or proven.
    #[must_use]
    pub fn new(rungs: Vec<Arc<dyn Fence>>) -> Self {
        Self { rungs }
    }

    /// The drivers' names, in order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.rungs.iter().map(|rung| rung.name().to_owned()).collect()
    }

    /// `fence_agent (1 of 2)`: the same driver may stand on several rungs.
    fn label(&self, index: usize) -> String {
        format!("{} ({} of {})", self.rungs[index].name(), index + 1, self.rungs.len())
    }

    fn refused(action: String, failures: &[String], remedy: &str) -> StepError {
        let why = match failures {
            [] => "no fence is configured for it; add a [[host.fence]]".to_owned(),
            _ => format!("{}. {remedy}", failures.join("; ")),
        };
        StepError::Refused { driver: "ladder", action, why }
    }

    /// Fences by one rung, and proves it.
    async fn climb(rung: &dyn Fence, host: &HostName, epoch: Epoch) -> Result<Note, String> {
        // A host that only reads as off while nobody has switched it off may be in the middle of a reboot.
        rung.fence(host, epoch).await.map_err(|error| chain(&error))?;
        rung.prove(host, epoch).await.map(|proof| proof.note).map_err(|error| chain(&error))
    }
}

#[async_trait]
impl Fence for Ladder {
    fn name(&self) -> &'static str {
        "ladder"
    }

    async fn fence(&self, host: &HostName, epoch: Epoch) -> Result<Note, StepError> {
        let mut failures = Vec::new();
        for (index, rung) in self.rungs.iter().enumerate() {
            match Self::climb(rung.as_ref(), host, epoch).await {
                Ok(mut note) => {
                    note.text = format!("{host} is fenced by {}: {}", self.label(index), note.text);
                    note.details.insert("rung".to_owned(), self.label(index));
                    if !failures.is_empty() {
                        note.details.insert("failed_before".to_owned(), failures.join("; "));
                    }
                    return Ok(note);
                }
                Err(why) => failures.push(format!("{}: {why}", self.label(index))),
            }
        }
        Err(Self::refused(format!("fence {host}"), &failures, "No rung is left: turn the host off by hand"))
    }

    /// Asks every rung side by side: any proof is enough, and a rung that is not the one which fenced would
    /// be waited for until its deadline.
    async fn prove(&self, host: &HostName, epoch: Epoch) -> Result<Proof, StepError> {
        let ask = |(index, rung): (usize, &Arc<dyn Fence>)| {
            let rung = rung.clone();
            async move { (index, rung.prove(host, epoch).await) }
        };
        let mut answers: FuturesUnordered<_> = self.rungs.iter().enumerate().map(ask).collect();
        let mut failures = Vec::new();
        while let Some((index, answer)) = answers.next().await {
            match answer {
                Ok(mut proof) => {
                    proof.by = self.label(index);
                    return Ok(proof);
                }
                Err(error) => failures.push((index, format!("{}: {}", self.label(index), chain(&error)))),
            }
        }
        failures.sort();
        let failures: Vec<String> = failures.into_iter().map(|(_, why)| why).collect();
        Err(Self::refused(format!("prove that {host} is fenced"), &failures, "One proof would be enough"))
    }

    /// Every rung may have been used, now or in an earlier takeover: all are lifted.
    async fn lift(&self, host: &HostName) -> Result<Note, StepError> {
        let mut said = Vec::new();
        for (index, rung) in self.rungs.iter().enumerate() {
            match rung.lift(host).await {
                Ok(note) => said.push(note.text),
                Err(error) => {
                    let failure = format!("{}: {}", self.label(index), chain(&error));
                    let remedy = "Lift it by hand, or repair the rung and try again";
                    return Err(Self::refused(format!("lift the fence of {host}"), &[failure], remedy));
                }
            }
        }
        Ok(Note::new(said.join("; ")))
    }

    fn leaves_running(&self) -> bool {
        self.rungs.iter().all(|rung| rung.leaves_running())
    }

    /// The rungs that stop the host itself, in order, until one is proven.
    async fn finish(&self, host: &HostName, epoch: Epoch) -> Result<Note, StepError> {
        let mut failures = Vec::new();
        let rungs = self.rungs.iter().enumerate().filter(|(_, rung)| !rung.leaves_running());
        for (index, rung) in rungs {
            match rung.finish(host, epoch).await {
                Ok(note) => {
                    return Ok(Note::new(format!("{host} is off by {}: {}", self.label(index), note.text)));
                }
                Err(error) => failures.push(format!("{}: {}", self.label(index), chain(&error))),
            }
        }
        let action = format!("stop {host} itself");
        if failures.is_empty() {
            let why = "no fence that stops it is configured for it: add a [[host.fence]] such as a power switch after \
                       the one of its storage"
                .to_owned();
            return Err(StepError::Refused { driver: "ladder", action, why });
        }
        Err(Self::refused(action, &failures, "No rung is left: turn the host off by hand"))
    }

    /// Side by side: what one rung says is not lost because another is broken.
    async fn checks(&self, host: &HostName) -> Vec<(String, Result<Note, StepError>)> {
        let checks = self
            .rungs
            .iter()
            .enumerate()
            .map(|(index, rung)| async move { (self.label(index), rung.check(host).await) });
        match futures_util::future::join_all(checks).await {
            none if none.is_empty() => vec![(self.name().to_owned(), self.check(host).await)],
            all => all,
        }
    }

    async fn check(&self, host: &HostName) -> Result<Note, StepError> {
        let checks = self.rungs.iter().map(|rung| rung.check(host));
        let results = futures_util::future::join_all(checks).await;
        let mut said = Vec::new();
        let mut failures = Vec::new();
        for (index, result) in results.into_iter().enumerate() {
            match result {
                Ok(note) => said.push(note.text),
                Err(error) => failures.push(format!("{}: {}", self.label(index), chain(&error))),
            }
        }
        // One working rung would do in a takeover. Whoever configured two counts on both.
        if failures.is_empty() && !said.is_empty() {
            return Ok(Note::new(said.join("; ")));
        }
        Err(Self::refused(format!("be sure of fencing {host}"), &failures, "Repair every rung"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::ExecConfig;
    use super::*;

    const EPOCH: Epoch = Epoch(1);

    /// A rung that answers `off` and `status` with these scripts.
    fn rung(off: &str, status: &str) -> Arc<dyn Fence> {
        rung_within(Duration::from_secs(1), off, status)
    }

    fn rung_within(timeout: Duration, off: &str, status: &str) -> Arc<dyn Fence> {
        let script = format!("if grep -q ^action=off; then {off}; else {status}; fi");
        let command = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
        let config = ExecConfig { command, timeout, options: Default::default() };
        Arc::new(config.build().unwrap())
    }

    fn works() -> Arc<dyn Fence> {
        rung("exit 0", "exit 2")
    }

    fn host() -> HostName {
        HostName::from("kafka-1")
    }

    #[tokio::test]
    async fn the_first_proven_rung_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        let touched = dir.path().join("touched");
        let unused = rung(&format!("touch {}", touched.display()), "exit 2");
        let ladder = Ladder::new(vec![rung("echo broken; exit 1", "exit 1"), works(), unused]);
        let note = ladder.fence(&host(), EPOCH).await.unwrap();
        assert!(note.text.starts_with("kafka-1 is fenced by exec (2 of 3)"), "{}", note.text);
        assert!(note.details["failed_before"].contains("exec (1 of 3): exec could not turn kafka-1 off"));
        assert!(note.details["failed_before"].contains("broken"));
        assert!(!touched.exists(), "a rung beyond the proven one was used");
    }

    #[tokio::test]
    async fn a_rung_that_says_done_and_is_still_on_is_passed_over() {
        let ladder = Ladder::new(vec![rung("exit 0", "exit 0"), works()]);
        let note = ladder.fence(&host(), EPOCH).await.unwrap();
        assert!(note.details["failed_before"].contains("still on"), "{note:?}");
    }

    #[tokio::test]
    async fn a_host_that_only_reads_as_off_may_be_in_the_middle_of_a_reboot() {
        let ladder = Ladder::new(vec![rung("exit 1", "exit 2")]);
        let error = ladder.fence(&host(), EPOCH).await.unwrap_err();
        assert!(error.to_string().contains("could not turn kafka-1 off"), "{error}");
    }

    #[tokio::test]
    async fn when_no_rung_is_proven_all_of_them_are_named() {
        let ladder = Ladder::new(vec![rung("exit 7", "exit 1"), rung("exit 0", "exit 3")]);
        let text = ladder.fence(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(text.contains("exec (1 of 2)") && text.contains("exit code 7"), "{text}");
        assert!(text.contains("exec (2 of 2)") && text.contains("Missing: a status of off"), "{text}");
        let text = ladder.prove(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(text.contains("exec (1 of 2)") && text.contains("exec (2 of 2)"), "{text}");
        let text = Ladder::new(vec![]).prove(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(text.contains("no fence is configured"), "{text}");
    }

    #[tokio::test]
    async fn a_hung_rung_does_not_hold_up_the_proof_of_another() {
        let begun = Instant::now();
        let hung = rung_within(Duration::from_secs(60), "exit 1", "sleep 1000");
        let proof = Ladder::new(vec![hung, works()]).prove(&host(), EPOCH).await.unwrap();
        assert_eq!(proof.by, "exec (2 of 2)");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[tokio::test]
    async fn lifting_wants_every_rung_and_reads_it_back() {
        let lifted = || rung("exit 1", "exit 0");
        let note = Ladder::new(vec![lifted(), lifted()]).lift(&host()).await.unwrap();
        assert_eq!(note.text.matches("reads that kafka-1 is on").count(), 2, "{note:?}");
        let error = Ladder::new(vec![lifted(), works()]).lift(&host()).await.unwrap_err().to_string();
        assert!(error.contains("exec (2 of 2)") && error.contains("turn kafka-1 on"), "{error}");
    }

    /// A rung that denies the storage, and is proven.
    struct StorageOnly;

    #[async_trait]
    impl Fence for StorageOnly {
        fn name(&self) -> &'static str {
            "storage"
        }
        fn leaves_running(&self) -> bool {
            true
        }
        async fn fence(&self, _: &HostName, _: Epoch) -> Result<Note, StepError> {
            Ok(Note::new("denied"))
        }
        async fn prove(&self, host: &HostName, _: Epoch) -> Result<Proof, StepError> {
            Ok(Proof { host: host.clone(), by: "storage".to_owned(), note: Note::new("denied") })
        }
        async fn lift(&self, _: &HostName) -> Result<Note, StepError> {
            Ok(Note::new("let in"))
        }
        async fn check(&self, _: &HostName) -> Result<Note, StepError> {
            Ok(Note::new("answers"))
        }
    }

    #[tokio::test]
    async fn a_proven_storage_fence_is_finished_by_the_next_rung_that_stops_the_host() {
        let storage = || Arc::new(StorageOnly) as Arc<dyn Fence>;
        let dir = tempfile::tempdir().unwrap();
        let off = dir.path().join("off");
        // On until it is switched off.
        let (switch, look) =
            (format!("touch {}", off.display()), format!("[ -e {} ] && exit 2", off.display()));
        let ladder = Ladder::new(vec![storage(), rung(&switch, &look)]);
        assert!(ladder.fence(&host(), EPOCH).await.unwrap().text.contains("storage (1 of 2)"));
        assert!(!off.exists(), "the first proof is enough for a start");
        let note = ladder.finish(&host(), EPOCH).await.unwrap();
        assert!(note.text.starts_with("kafka-1 is off by exec (2 of 2)"), "{}", note.text);
        assert!(off.exists() && !ladder.leaves_running());

        let error = Ladder::new(vec![storage()]).finish(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(error.contains("no fence that stops it is configured"), "{error}");
        assert!(Ladder::new(vec![storage()]).leaves_running());
        let broken = Ladder::new(vec![storage(), rung("exit 7", "exit 1")]);
        let error = broken.finish(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(error.contains("exec (2 of 2)") && error.contains("turn the host off by hand"), "{error}");
    }

    #[tokio::test]
    async fn check_wants_every_rung() {
        assert!(Ladder::new(vec![works(), works()]).check(&host()).await.is_ok());
        let error = Ladder::new(vec![works(), rung("exit 0", "exit 1")]).check(&host()).await.unwrap_err();
        assert!(error.to_string().contains("exec (2 of 2)"), "{error}");
    }

    #[tokio::test]
    async fn each_rung_is_checked_and_told_by_itself() {
        let broken = rung("exit 0", "exit 1");
        let found = Ladder::new(vec![works(), broken, works()]).checks(&host()).await;
        let found: Vec<(&str, bool)> =
            found.iter().map(|(rung, found)| (rung.as_str(), found.is_ok())).collect();
        assert_eq!(found, [("exec (1 of 3)", true), ("exec (2 of 3)", false), ("exec (3 of 3)", true)]);
        let none = Ladder::new(Vec::new()).checks(&host()).await;
        assert!(matches!(&none[..], [(_, Err(_))]), "{none:?}");
    }
}
