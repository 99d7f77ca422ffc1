//! The ladder: a host's fences, tried in order until one is proven.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::answers::answers;
use super::device::POWER;
use recovery::model::{Epoch, HostName};
use recovery::ports::{Fence, Note, Proof, StepError, chain};

/// A host's fences, in the order of the configuration.
#[derive(Clone)]
pub struct Ladder {
    rungs: Vec<Arc<dyn Fence>>,
    /// An address of the host itself, which no broker takes along.
    own: Option<IpAddr>,
    /// The rungs that read off while the host lived, each with how that was seen.
    disbelieved: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Ladder {
    /// A ladder of `rungs`. Without any, nothing can be fenced or proven.
    #[must_use]
    pub fn new(rungs: Vec<Arc<dyn Fence>>) -> Self {
        Self { rungs, own: None, disbelieved: Arc::default() }
    }

    /// The same for a host that has this address for itself: while it answers there, nothing proves that it is off.
    #[must_use]
    pub fn of_the_host_at(self, own: Option<IpAddr>) -> Self {
        Self { own, ..self }
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
    async fn climb(&self, index: usize, host: &HostName, epoch: Epoch) -> Result<Note, String> {
        // Its order would go to another machine.
        self.believed(index)?;
        let rung = &self.rungs[index];
        // A host that only reads as off while nobody has switched it off may be in the middle of a reboot.
        let order = rung.fence(host, epoch).await.map_err(|error| chain(&error))?;
        let proof = rung.prove(host, epoch).await.map_err(|error| chain(&error))?;
        Ok(Note { text: format!("{}; {}", order.text, proof.note.text), ..proof.note })
    }

    fn disbelieved(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, String>> {
        self.disbelieved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `Err`: why no word of this rung counts.
    fn believed(&self, index: usize) -> Result<(), String> {
        self.disbelieved().get(&self.label(index)).map_or(Ok(()), |why| Err(why.clone()))
    }

    /// What was read of a rung is compared with what is seen of the host itself.
    async fn believable(
        &self,
        index: usize,
        host: &HostName,
        found: Result<Note, StepError>,
    ) -> Result<Note, StepError> {
        let note = found?;
        match note.details.get(POWER).map(String::as_str) {
            Some("on") => {
                self.disbelieved().remove(&self.label(index));
            }
            Some(_) => {
                if let Some(why) = self.still_answers(index, host).await {
                    self.disbelieve(&self.label(index), &why);
                    return Err(Self::refused(
                        format!("believe that {host} is off"),
                        &[why],
                        "Correct the plug or the \
                        address of the device, or the host's own `address`",
                    ));
                }
            }
            None => {}
        }
        Ok(note)
    }

    /// The other power fences that read, now, that the host has power: it has two supplies, or one of them looks at
    /// another machine.
    async fn contradicting(&self, proven: usize, host: &HostName) -> Vec<usize> {
        if self.rungs[proven].leaves_running() {
            return Vec::new();
        }
        let read =
            self.rungs.iter().enumerate().filter(|(index, _)| *index != proven).map(
                |(index, rung)| async move { (rung.has_power(host).await == Some(true)).then_some(index) },
            );
        futures_util::future::join_all(read).await.into_iter().flatten().collect()
    }

    /// Why a proof that the host is off, by the fence `proven`, is none after all.
    async fn contradiction(&self, proven: usize, host: &HostName) -> Option<String> {
        if let Err(why) = self.believed(proven) {
            return Some(why);
        }
        let label = self.label(proven);
        if let Some(other) = self.contradicting(proven, host).await.first() {
            return Some(format!(
                "{label} reads off, and {} reads on: one of them looks at another machine, or the host has two power \
                 supplies",
                self.label(*other)
            ));
        }
        self.still_answers(proven, host).await
    }

    /// Why the word of the fence `proven` that the host is off cannot be true: the host itself answers.
    async fn still_answers(&self, proven: usize, host: &HostName) -> Option<String> {
        let own = self.own.filter(|_| !self.rungs[proven].leaves_running())?;
        let (label, answer) = (self.label(proven), answers(own).await?);
        Some(format!("{label} reads that {host} is off, and {answer}: one of the two lies. Find out which"))
    }

    /// Switches off by the other power fences too, where they read that the host has power: then no reading
    /// contradicts the proof any more.
    async fn agree(&self, proven: usize, host: &HostName, epoch: Epoch) -> Result<Vec<String>, String> {
        let mut said = Vec::new();
        for index in self.contradicting(proven, host).await {
            match self.climb(index, host, epoch).await {
                Ok(note) => said.push(format!("{}, which read on: {}", self.label(index), note)),
                Err(why) => return Err(format!("{} reads that {host} is on: {why}", self.label(index))),
            }
        }
        Ok(said)
    }
}

#[async_trait]
impl Fence for Ladder {
    fn name(&self) -> &'static str {
        "ladder"
    }

    async fn fence(&self, host: &HostName, epoch: Epoch) -> Result<Note, StepError> {
        let mut failures = Vec::new();
        for index in 0..self.rungs.len() {
            match self.climb(index, host, epoch).await {
                Ok(mut note) => {
                    note.text = format!("{host} is fenced by {}: {}", self.label(index), note.text);
                    match self.agree(index, host, epoch).await {
                        Ok(said) if said.is_empty() => {}
                        Ok(said) => note.text = format!("{}; and by {}", note.text, said.join("; ")),
                        Err(why) => {
                            failures.push(format!("{} reads off, and {why}", self.label(index)));
                            continue;
                        }
                    }
                    if let Some(why) = self.still_answers(index, host).await {
                        failures.push(why);
                        continue;
                    }
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
                    let Some(why) = self.contradiction(index, host).await else { return Ok(proof) };
                    failures.push((index, why));
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
        // The last first: what feeds a host's service processor comes after that one.
        for (index, rung) in self.rungs.iter().enumerate().rev() {
            match rung.lift(host).await {
                Ok(note) => said.push(note.to_string()),
                Err(error) => {
                    let failure = format!("{}: {}", self.label(index), chain(&error));
                    let remedy = "Lift it by hand, or repair the rung and try again";
                    return Err(Self::refused(format!("lift the fence of {host}"), &[failure], remedy));
                }
            }
        }
        Ok(Note::new(said.join("; ")))
    }

    fn disbelieve(&self, rung: &str, why: &str) {
        self.disbelieved()
            .insert(rung.to_owned(), format!("{why}. No word of it counts before it has read on"));
    }

    async fn has_power(&self, host: &HostName) -> Option<bool> {
        let read = futures_util::future::join_all(self.rungs.iter().map(|rung| rung.has_power(host))).await;
        read.contains(&Some(true)).then_some(true).or_else(|| read.contains(&Some(false)).then_some(false))
    }

    fn leaves_running(&self) -> bool {
        self.rungs.iter().all(|rung| rung.leaves_running())
    }

    /// The rungs that stop the host itself, in order, until one is proven.
    async fn finish(&self, host: &HostName, epoch: Epoch) -> Result<Note, StepError> {
        let mut failures = Vec::new();
        let rungs = self.rungs.iter().enumerate().filter(|(_, rung)| !rung.leaves_running());
        for (index, rung) in rungs {
            if let Err(why) = self.believed(index) {
                failures.push(format!("{}: {why}", self.label(index)));
                continue;
            }
            match rung.finish(host, epoch).await {
                Ok(note) => {
                    let text = format!("{host} is off by {}: {}", self.label(index), note.text);
                    return Ok(Note::new(text).warn(note.warnings));
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
        let checks = self.rungs.iter().enumerate().map(|(index, rung)| async move {
            (self.label(index), self.believable(index, host, rung.check(host).await).await)
        });
        match futures_util::future::join_all(checks).await {
            none if none.is_empty() => vec![(self.name().to_owned(), self.check(host).await)],
            all => all,
        }
    }

    async fn check(&self, host: &HostName) -> Result<Note, StepError> {
        let checks = self.rungs.iter().map(|rung| rung.check(host));
        let results = futures_util::future::join_all(checks).await;
        let mut said: Option<Note> = None;
        let mut failures = Vec::new();
        for (index, result) in results.into_iter().enumerate() {
            match result {
                Ok(Note { text, warnings, .. }) => {
                    said = Some(said.unwrap_or_default().and(Note::new(text).warn(warnings)));
                }
                Err(error) => failures.push(format!("{}: {}", self.label(index), chain(&error))),
            }
        }
        // One working rung would do in a takeover. Whoever configured two counts on both.
        if let Some(note) = said.filter(|_| failures.is_empty()) {
            return Ok(note);
        }
        Err(Self::refused(format!("be sure of fencing {host}"), &failures, "Repair every rung"))
    }
}

#[cfg(test)]
mod tests;
