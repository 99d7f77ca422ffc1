//! The assumption that all others are for: after the proof nothing can be written.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::{Instant, sleep};

use super::finding::{Assumption, Findings};
use super::here::Mounted;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// What became of every try to write after the proof.
#[derive(Debug, Default)]
pub(super) struct Tries {
    went_through: BTreeSet<String>,
    refused: BTreeSet<String>,
    unclear: BTreeSet<String>,
}

/// Whether the server refused. Every other error may come of a server that is slow, full or gone.
fn is_refusal(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::STALE))
}

impl Tries {
    /// Tries again and again, until something was written or the time is over: a node may learn of changed
    /// rules later than another one.
    pub(super) async fn on(here: &impl Mounted, patience: Duration) -> Self {
        let (begun, mut tries) = (Instant::now(), Self::default());
        for number in 0_u32.. {
            // Its lock was broken, so that it fails whatever the rules say: only its success says something.
            if here.write().await.is_ok() {
                tries.went_through.insert("to a file that was open and locked".to_owned());
            }
            tries.take(here.create(&format!("after-{number}")).await);
            if !tries.went_through.is_empty() || begun.elapsed() > patience {
                break;
            }
            sleep(PAUSE).await;
        }
        tries
    }

    /// A file that was made is something that was written, whatever became of its content.
    fn take(&mut self, made: io::Result<io::Result<()>>) {
        match made {
            Ok(_) => self.went_through.insert("a new file".to_owned()),
            Err(error) if is_refusal(&error) => self.refused.insert(format!("a new file: {error}")),
            Err(error) => self.unclear.insert(format!("a new file: {error}")),
        };
    }

    /// `control`: whether it could write once it was let in again, without which its failing says nothing.
    pub(super) fn judge(&self, control: Result<(), String>, findings: &mut Findings) {
        let of = Assumption::RuleBites;
        let words = |tries: &BTreeSet<String>| tries.iter().cloned().collect::<Vec<_>>().join(", ");
        if !self.went_through.is_empty() {
            return findings
                .differs(of, format!("this host WROTE after the proof: {}", words(&self.went_through)));
        }
        if !self.unclear.is_empty() {
            let why = words(&self.unclear);
            return findings.not_seen(of, format!("this host failed to write, but was not refused ({why})"));
        }
        let refused = words(&self.refused);
        match control {
            Ok(()) => findings.holds(of, format!("this host could not write: {refused}")),
            Err(why) => findings.not_seen(
                of,
                format!(
                    "this host was refused ({refused}), and could not write once it was let in again either \
                     ({why}): the rules need not be why"
                ),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn verdict<const N: usize>(
        made: [io::Result<io::Result<()>>; N],
        control: Result<(), String>,
    ) -> Verdict {
        let mut tries = Tries::default();
        for one in made {
            tries.take(one);
        }
        let mut findings = Findings::on("svm1");
        tries.judge(control, &mut findings);
        let [only] = &findings.all[..] else { panic!("{findings:?}") };
        assert_eq!(only.assumption, Assumption::RuleBites);
        only.verdict
    }

    /// A server that does not answer, is full or has lost the file is no server that refuses.
    #[test]
    fn only_a_refusal_holds_and_only_with_a_control() {
        let errno = |errno: Errno| Err(io::Error::from(errno));
        for refusal in [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::STALE] {
            assert_eq!(verdict([errno(refusal)], Ok(())), Verdict::Holds, "{refusal:?}");
            let uncontrolled = verdict([errno(refusal)], Err("it cannot write".to_owned()));
            assert_eq!(uncontrolled, Verdict::NotSeen, "{refusal:?}");
        }
        for other in [Errno::TIMEDOUT, Errno::IO, Errno::NOSPC, Errno::EXIST, Errno::NOENT, Errno::DQUOT] {
            assert_eq!(verdict([errno(other)], Ok(())), Verdict::NotSeen, "{other:?}");
            assert_eq!(verdict([errno(Errno::ACCESS), errno(other)], Ok(())), Verdict::NotSeen, "{other:?}");
        }
        // The limit of this end, which has no number.
        assert_eq!(verdict([Err(io::ErrorKind::TimedOut.into())], Ok(())), Verdict::NotSeen);
    }

    #[test]
    fn whatever_came_through_differs() {
        let refused = || Err(io::Error::from(Errno::ACCESS));
        assert_eq!(verdict([refused(), Ok(Ok(()))], Ok(())), Verdict::Differs);
        let half = || Ok(Err(io::ErrorKind::TimedOut.into()));
        assert_eq!(verdict([half()], Err("gone".to_owned())), Verdict::Differs, "the file is there");
    }
}
