//! How often a login that was refused is tried again: ONTAP may lock an account after a few that failed, and
//! the fence needs the same one.

use std::time::Duration;

use ontap_client::Client;

use crate::login::Stamp;
use recovery::model::{Moment, human};

/// From the first login that was refused to the next try.
const FIRST: Duration = Duration::from_secs(30);

/// The longest time from one try to the next.
const LONGEST: Duration = Duration::from_secs(10 * 60);

/// A client, and what its login is worth.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) client: Client,
    /// What its secrets were read from.
    pub(super) secrets: Stamp,
    /// ONTAP has answered it: the login is no wrong one.
    pub(super) proven: bool,
}

/// Why nothing was read.
pub(super) enum Miss {
    /// The login was refused, which was made of these files.
    Login(Stamp, String),
    Other(String),
}

/// A login that was refused.
#[derive(Debug, Clone)]
pub(super) struct Refused {
    /// What ONTAP said.
    why: String,
    /// The begin of the look that tried it.
    at: Moment,
    /// How long it is not tried again.
    wait: Duration,
    /// The files that it was made of.
    secrets: Stamp,
}

impl Refused {
    /// After `last`, with which the wait doubles as long as the files are the same.
    pub(super) fn after(last: Option<&Self>, why: String, at: Moment, secrets: Stamp) -> Self {
        let same = last.filter(|last| last.secrets == secrets);
        let wait = same.map_or(FIRST, |last| (last.wait * 2).min(LONGEST));
        Self { why, at, wait, secrets }
    }

    /// Why it is not tried now; `None`: it is due.
    pub(super) fn waits(&self, now: Moment) -> Option<String> {
        let left = self.wait.saturating_sub(now.since(self.at));
        (!left.is_zero()).then(|| {
            format!(
                "{}. Tried again in {}, or when its secret file changes: refused logins may lock the account",
                self.why,
                human(left)
            )
        })
    }

    /// Whether other files are there now than those that were refused.
    pub(super) fn is_of_others(&self, secrets: &Stamp) -> bool {
        self.secrets != *secrets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_ten_minutes_and_begins_anew_with_another_secret() {
        let at = Moment(Duration::ZERO);
        let (old, new) = (Stamp::default(), Stamp::of_size(7));
        let mut last = None;
        let mut waits = Vec::new();
        for _ in 0..7 {
            let refused = Refused::after(last.as_ref(), "no".to_owned(), at, old.clone());
            waits.push(refused.wait.as_secs());
            last = Some(refused);
        }
        assert_eq!(waits, [30, 60, 120, 240, 480, 600, 600]);
        let other = Refused::after(last.as_ref(), "no".to_owned(), at, new.clone());
        assert_eq!(other.wait, FIRST);
        assert!(other.is_of_others(&old) && !other.is_of_others(&new));
        assert!(other.waits(Moment(Duration::from_secs(29))).is_some());
        assert!(other.waits(Moment(Duration::from_secs(30))).is_none());
    }
}
