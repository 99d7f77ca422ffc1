//! What EC2 told a check: one round of checks asks once for all brokers of this host. No act goes by it, and no proof.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_sdk_ec2::types::RouteTable;

use crate::interface::Interface;

/// How long a round of checks goes by what one of them was told.
pub(crate) const ROUND: Duration = Duration::from_secs(60);
/// For what does not change for as long as it exists.
pub(crate) const EVER: Duration = Duration::MAX;

/// What was told, by the thing that it is about.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// This host's interfaces, by id.
    pub(crate) interfaces: Kept<Interface>,
    /// The networks of subnets, by id.
    pub(crate) subnets: Kept<String>,
    /// The route tables of VPCs, by id.
    pub(crate) tables: Kept<Vec<RouteTable>>,
    /// The route tables that the role may change, by id.
    pub(crate) allowed: Kept<()>,
}

/// Answers, with when they were asked for. One that was not given is asked for again.
#[derive(Debug)]
pub(crate) struct Kept<T>(Mutex<BTreeMap<String, (Instant, T)>>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Kept<T> {
    /// The answer about `of`, if it is not older than `limit`; else that to `ask`.
    pub(crate) async fn or_ask<E>(
        &self,
        of: &str,
        limit: Duration,
        ask: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = kept().get(of).filter(|(at, _)| at.elapsed() < limit).map(|(_, told)| told.clone());
        if let Some(told) = told {
            return Ok(told);
        }
        let asked = Instant::now();
        let told = ask.await?;
        kept().insert(of.to_owned(), (asked, told.clone()));
        Ok(told)
    }
}

#[cfg(test)]
mod tests;
