//! Asks every peer who is connected there, once a second, for as long as it lives.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{MissedTickBehavior, interval};

use super::KnownClients;
use crate::health_signal::peer::Peer;
use recovery::ports::chain;

const PERIOD: Duration = Duration::from_secs(1);

/// Keeps `known` up to date. Does not end.
pub async fn follow(peers: Vec<Peer>, known: &KnownClients) {
    join_all(peers.iter().map(|peer| follow_one(peer, known))).await;
}

async fn follow_one(peer: &Peer, known: &KnownClients) {
    // Whether the last answer told it; unknown at first.
    let (mut every, mut told) = (interval(PERIOD), None);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        match peer.clients().await {
            Ok(page) => {
                if told.replace(true) != Some(true) {
                    tracing::info!(peer = peer.host(), "a peer tells who is connected there");
                }
                known.remember(page);
            }
            // What was known stays known: that it no longer answers is what the list is for.
            Err(error) if error.is_unreachable() => {}
            Err(error) => {
                if told.replace(false) != Some(false) {
                    let said = chain(&error);
                    tracing::warn!(
                        peer = peer.host(),
                        error = said,
                        "a peer does not tell who is connected there"
                    );
                }
            }
        }
    }
}
