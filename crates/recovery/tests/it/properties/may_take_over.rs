//! All that must be so before a takeover is decided, written down apart from the code that decides.

use super::*;

/// Whether a takeover may be decided, or what speaks against it.
pub(super) fn may_take_over(seen: &Observation, policy: &Policy) -> Result<(), &'static str> {
    let ensure = |holds: bool, what| if holds { Ok(()) } else { Err(what) };
    let broker = seen.brokers.get(&BROKER).ok_or("the broker was never seen")?;
    let probe = broker.probe.as_ref().ok_or("no fresh probe")?;
    let shortest = policy.host_down_after.min(policy.hung_after).min(policy.process_down_after);
    ensure(probe.outcome != ProbeOutcome::Answered, "it answers")?;
    ensure(probe.not_answering.is_some_and(|d| d >= shortest), "not for long enough")?;
    let silent = broker.controller_silence.is_some_and(|s| s >= policy.controller_silent_for);
    let gone = broker.listed == Some(false) && broker.controller_silence.is_none();
    let standing = seen.ledger.as_ref().and_then(|ledger| ledger.brokers.get(&BROKER));
    let silence = probe.not_answering.unwrap_or_default();
    let is_off = |host| {
        let told: Option<&MachineSeen> = seen.machines.get(host);
        told.is_some_and(|told| matches!(told.state, MachineState::Off { .. }) && told.age <= silence)
    };
    let off = broker.controller_silence.is_none() && standing.is_some_and(|s| s.writers.iter().all(is_off));
    ensure(silent || gone || off, "no second witness")?;
    ensure(majority(seen, policy), "no majority in sight")?;
    let others: Vec<_> = seen.brokers.iter().filter(|(id, _)| **id != BROKER).collect();
    ensure(seen.metadata_fresh || others.is_empty(), "no broker list")?;
    let attempts =
        seen.ledger.iter().filter_map(|ledger| Some(&ledger.brokers.get(&BROKER)?.attempts)).flatten();
    let released = attempts.fold(false, |released, a| match a.ended.as_deref() {
        Some("recovered") => false,
        Some("withdrawn") => released,
        _ => released || a.cause == Cause::Planned,
    });
    let silent_claim = self::silent(seen, policy);
    let stopped = broker.left_first || broker.stop_told.is_some();
    let begun = |touched, cause| silent_claim && (touched || cause == Cause::Planned);
    let carried_on =
        matches!(state(seen), Some(EpochState::Open { touched, cause, .. }) if begun(touched, cause));
    ensure(!stopped || released || carried_on, "it may have been stopped cleanly")?;
    let with = others.iter().filter(|(_, other)| went_with(broker, other, policy));
    let (back, down): (Vec<_>, Vec<_>) = with.partition(|(_, other)| other.answers());
    ensure(down.len() < policy.max_brokers_down, "several brokers failed together")?;
    let late = |(_, other): &&(&BrokerId, &Seen)| {
        other.outage.and_then(|out| out.until).is_some_and(|until| NOW.since(until) < policy.boot_patience)
    };
    ensure(!back.iter().any(late), "it may be booting as others did")?;
    let heard_late = |(_, other): &(&BrokerId, &Seen)| {
        let until = heard_again(broker, other, policy);
        until.is_some_and(|until| NOW.since(until) < policy.boot_patience)
    };
    ensure(!others.iter().any(heard_late), "it may come back as one that only the controller hears did")?;
    let ledger = seen.ledger.as_ref().ok_or("the ledger was not read")?;
    let standing = ledger.brokers.get(&BROKER).ok_or("the ledger was not read")?;
    ensure(standing.writers.iter().all(can_fence), "a writer cannot be fenced")?;
    ensure(ledger.orders.0.is_empty(), "it is paused")?;
    ensure(broker.storage.as_ref().is_none_or(|s| s.here == Some(true)), "its storage stalls")?;
    ensure(!seen_elsewhere(seen), "another agent sees it")?;
    let automatic = standing.attempts.iter().filter(|a| a.cause == Cause::Automatic && !a.in_place);
    let recent = automatic.filter(|a| a.at > Timestamp::from_second(-3600).expect("in range")).count();
    ensure(recent < policy.takeovers_per_broker, "the budget is spent")?;
    let stuck = matches!(&standing.state, Some(EpochState::Ended { outcome: Outcome::Stuck { .. }, .. }));
    ensure(!stuck || standing.attempts.is_empty(), "the last takeover is stuck")
}

/// Whether another agent has an answer from it.
pub(super) fn seen_elsewhere(seen: &Observation) -> bool {
    let answers = |view: &PeerView| view.brokers.get(&BROKER).map(|saw| saw.outcome.clone());
    seen.peers.values().any(|view| answers(view) == Some(ProbeOutcome::Answered))
}

/// Whether another broker was down while this one is, and may have gone within the window of it, in one step.
fn went_with(broker: &Seen, other: &Seen, policy: &Policy) -> bool {
    let stopped = |seen: &Seen| seen.left_first || seen.stop_told.is_some();
    let (down, now) =
        (!other.answers(), Outage { from: NOW, to: NOW, heard: None, unheard: None, until: None });
    if down && (other.probe.is_none() || stopped(other)) || stopped(broker) {
        return false;
    }
    let ours = broker.outage.filter(|out| out.until.is_none()).unwrap_or(now);
    let Some(theirs) = other.outage.or(down.then_some(now)) else { return false };
    if down && (out_of_reach(broker, ours) || lives_on(other, theirs, broker, ours)) {
        return false;
    }
    // To the controller it had not gone then.
    let heard = |out: Outage| {
        out.heard.map_or(out, |at| Outage { from: out.from.max(at), to: out.to.max(at), ..out })
    };
    let (ours, theirs) = (heard(ours), heard(theirs));
    let apart = ours.from.since(theirs.to) + theirs.from.since(ours.to);
    theirs.until.is_none_or(|until| until >= ours.from) && apart <= policy.mass_failure_window
}

/// Whether the controller hears a broker that this host has found unreachable all the while.
fn out_of_reach(broker: &Seen, out: Outage) -> bool {
    let always = |probe: &ProbeSeen| probe.not_answering == Some(probe.lasting);
    let unreachable = |probe: &ProbeSeen| probe.outcome == ProbeOutcome::Unreachable && always(probe);
    let heard = broker.controller_silence.is_some_and(|silence| silence < Duration::from_secs(1));
    heard && out.heard.is_some() && broker.probe.as_ref().is_some_and(unreachable)
}

/// Whether it is out of reach, and was heard 2 s longer than the one that is gone, and 2 s after that was seen
/// to have gone.
fn lives_on(broker: &Seen, out: Outage, gone: &Seen, since: Outage) -> bool {
    let (silence, longer) = (|seen: &Seen| seen.controller_silence, Duration::from_secs(2));
    let longer_heard = silence(broker).zip(silence(gone)).is_some_and(|(a, b)| b >= a + longer);
    let after = out.heard.is_some_and(|heard| heard.since(since.from) >= longer);
    out_of_reach(broker, out) && longer_heard && after
}

/// When the controller heard a broker again that was away from everybody while this one was, and that only this host
/// cannot reach now.
fn heard_again(broker: &Seen, other: &Seen, policy: &Policy) -> Option<Moment> {
    let (ours, theirs) = (broker.outage.filter(|out| out.until.is_none())?, other.outage?);
    let stopped = |seen: &Seen| seen.left_first || seen.stop_told.is_some();
    if other.answers()
        || stopped(broker)
        || out_of_reach(broker, ours)
        || !lives_on(other, theirs, broker, ours)
    {
        return None;
    }
    let (from, until) =
        theirs.unheard.filter(|(from, until)| until.since(*from) >= policy.host_down_after)?;
    let (earliest, latest) =
        (ours.from.max(ours.heard.unwrap_or(ours.from)), ours.to.max(ours.heard.unwrap_or(ours.to)));
    let apart = from.since(latest) + earliest.since(from);
    (until >= ours.from && apart <= policy.mass_failure_window).then_some(until)
}

/// Whether most of the other brokers answer; or, while the active controller does, most of those that should.
pub(super) fn majority(seen: &Observation, policy: &Policy) -> bool {
    let others = || seen.brokers.iter().filter(|(id, _)| **id != BROKER).map(|(_, other)| other);
    let (up, all) = (others().filter(|other| other.answers()).count(), others().count());
    let gone = |o: &&Seen| o.probe.is_some() && !o.answers() && !went_with(&seen.brokers[&BROKER], o, policy);
    let gone = others().filter(gone).count();
    up * 2 > all || seen.quorum_fresh && (all == 0 || up > 0 && up * 2 > all - gone)
}
