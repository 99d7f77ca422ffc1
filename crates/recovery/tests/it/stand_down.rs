//! A host that is fenced lets go of a broker that another one has, and of nothing that may still be its own.

use std::time::Duration;

use fakes::ledger::contract::{claim, done, started};
use fakes::{BROKER, World};
use recovery::event::What;
use recovery::journal::{Claim, Entry};
use recovery::model::{Epoch, HostName, Instruction, Order, Outcome};
use recovery::plan::{Phase, Stage, Step};
use recovery::ports::{Clock, Ledger};
use recovery::stand_down::stand_down;

/// Places in the plan below.
const FENCE: usize = 0;
const PROVE: usize = 1;
const START: usize = 3;

/// `standby-2` takes the broker over from this host, which is its home, and has come so far.
async fn taken_over(entries: &[Entry]) -> World {
    let world = World::new();
    let (host, ladder) = (HostName::from("standby-1"), vec!["ontap_export".to_owned()]);
    let mut claim: Claim = claim(BROKER.0, 1, "standby-2");
    claim.plan.from = host.clone();
    let steps = vec![
        Step::Fence { host: host.clone(), ladder: ladder.clone(), on: None },
        Step::Prove { host, ladder },
    ];
    claim.plan.stages.insert(0, Stage { phase: Phase::Fence, steps });
    world.claim(&claim).await.expect("the ledger is up");
    world.append(BROKER, Epoch(1), claim.at, &claim.by, entries).await.expect("the ledger is up");
    let now = world.now().mono;
    let mut truth = world.truth();
    (truth.address_here, truth.started_at) = (true, Some(now));
    truth.fenced.insert("standby-1".into());
    drop(truth);
    world
}

async fn stands_down(world: &World) -> bool {
    let here = HostName::from("standby-1");
    stand_down(&world.ports(), (&here, &here), BROKER, Epoch(1)).await.expect("it can be done");
    let truth = world.truth();
    assert!(truth.violations.is_empty(), "{:?}", truth.violations);
    assert_eq!(truth.address_here, truth.started_at.is_some(), "both or none");
    !truth.address_here
}

#[tokio::test(start_paused = true)]
async fn what_another_host_has_by_a_proof_is_let_go_of_and_that_is_kept() {
    let proven = [started(FENCE), started(PROVE), done(FENCE, 1), done(PROVE, 1)];
    let world = taken_over(&proven).await;
    assert!(stands_down(&world).await, "the takeover is under way");
    let kept = world.remembered(BROKER).await.expect("the ledger is up");
    assert!(kept.iter().any(|event| matches!(event.what, What::StoodDown { .. })), "{kept:?}");

    let recovered = Outcome::Recovered { time_to_isr: Duration::from_secs(7), remarks: Vec::new() };
    let all = [&proven[..], &[started(2), done(2, 1), started(START), done(START, 1)]].concat();
    let all = [&all[..], &[Entry::Ended { outcome: recovered }]].concat();
    assert!(stands_down(&taken_over(&all).await).await, "another host owns it");
}

#[tokio::test(start_paused = true)]
async fn what_may_still_be_its_own_is_kept() {
    let fenced = [started(FENCE), started(PROVE), done(FENCE, 1)];
    assert!(!stands_down(&taken_over(&fenced).await).await, "nothing is proven yet");

    let abandoned =
        Outcome::Abandoned { at: "verify_log_dirs".to_owned(), why: "w".to_owned(), kept: Vec::new() };
    let ended = [&fenced[..], &[done(PROVE, 1), Entry::Ended { outcome: abandoned }]].concat();
    assert!(!stands_down(&taken_over(&ended).await).await, "it owns the broker, and nobody is at it");

    let proven = [&fenced[..], &[done(PROVE, 1)]].concat();
    let world = taken_over(&proven).await;
    let at = claim(BROKER.0, 1, "standby-2").at + Duration::from_secs(1);
    let rejoined = Order { at, host: "standby-1".into(), who: "ada".to_owned(), what: Instruction::Rejoined };
    world.order(&rejoined).await.expect("the ledger is up");
    assert!(!stands_down(&world).await, "somebody has lifted the fence");
}

#[tokio::test(start_paused = true)]
async fn without_the_ledger_nothing_is_let_go_of() {
    let world = taken_over(&[started(FENCE), started(PROVE), done(FENCE, 1), done(PROVE, 1)]).await;
    world.truth().ledger_down = true;
    let here = HostName::from("standby-1");
    stand_down(&world.ports(), (&here, &here), BROKER, Epoch(1)).await.expect_err("nobody can say");
    let truth = world.truth();
    assert!(truth.address_here && truth.started_at.is_some());
}
