use std::path::Path;
use std::sync::Arc;

use fakes::World;
use fakes::ledger::contract::{append, claim, ended, started};
use recovery::known::{KnownLedger, Member, give_home, give_name, identity, init, leave_name};
use recovery::model::{Distrust, HostName};
use recovery::ports::{Clock, Ledger};

use super::*;

fn member(world: &World, dir: &Path, here: &str, homes: &[(i32, &str)]) -> KnownLedger {
    let who = who(dir, here, homes);
    KnownLedger::new(Arc::new(world.clone()), who, Arc::new(world.clone()))
}

fn who(dir: &Path, here: &str, homes: &[(i32, &str)]) -> Member {
    let homes = homes.iter().map(|(broker, home)| (BrokerId(*broker), HostName::from(*home))).collect();
    let machine = Arc::new(Local::new(dir.to_owned()));
    Member { here: here.into(), machine, homes, place: "/mnt/ledger".to_owned(), joins: true }
}

fn distrust(result: Result<impl std::fmt::Debug, LedgerError>) -> (Distrust, String) {
    match result {
        Err(LedgerError::Distrusted { distrust, why }) => (distrust, why),
        other => panic!("must be distrusted, is {other:?}"),
    }
}

fn random(by: &str) -> Identity {
    Identity::new(random_id().unwrap(), by.into(), Timestamp::now())
}

async fn initialised() -> World {
    let world = World::new();
    assert!(init(&world, &random("a")).await.unwrap().1);
    world
}

#[tokio::test]
async fn an_empty_place_is_no_ledger_before_and_after_the_first_one() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let (kind, why) = distrust(member(&world, dir.path(), "a", &[]).orders().await);
    assert_eq!(kind, Distrust::LedgerUnknown);
    assert!(why.contains("/mnt/ledger holds no ledger") && why.contains("understudy ledger init"), "{why}");
    let refused = member(&world, dir.path(), "a", &[]);
    assert_eq!(distrust(refused.claim(&claim(1, 1, "a")).await).0, Distrust::LedgerUnknown);
    assert_eq!(distrust(refused.latest(BrokerId(1)).await).0, Distrust::LedgerUnknown);
    assert!(world.truth().cells.is_empty(), "nothing was written");

    let (identity, _) = init(&world, &random("a")).await.unwrap();
    member(&world, dir.path(), "a", &[]).orders().await.unwrap();
    let (kind, why) = distrust(member(&World::new(), dir.path(), "a", &[]).sync().await);
    assert_eq!(kind, Distrust::LedgerUnknown);
    assert!(why.contains(&identity.id) && why.contains("is its storage mounted?"), "{why}");
}

#[tokio::test]
async fn another_ledger_is_foreign_and_stays_so() {
    let (ours, theirs, dir) = (initialised().await, initialised().await, tempfile::tempdir().unwrap());
    member(&ours, dir.path(), "a", &[]).orders().await.unwrap();
    for _ in 0..2 {
        let (kind, why) = distrust(member(&theirs, dir.path(), "a", &[]).orders().await);
        assert_eq!(kind, Distrust::LedgerForeign);
        for ledger in [&ours, &theirs] {
            assert!(why.contains(&identity(ledger).await.unwrap().unwrap().id), "{why}");
        }
    }
    assert_eq!(theirs.truth().cells.len(), 1, "nothing was written there");
    member(&ours, dir.path(), "a", &[]).orders().await.unwrap();
}

#[tokio::test]
async fn the_first_identity_stands() {
    let world = initialised().await;
    let stands = identity(&world).await.unwrap().unwrap();
    assert_eq!(init(&world, &random("b")).await.unwrap(), (stands, false));
}

#[tokio::test]
async fn a_second_machine_with_a_known_name_is_refused_and_both_are_told() {
    let world = initialised().await;
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let first = member(&world, one.path(), "a", &[]);
    first.orders().await.unwrap();
    let twin = member(&world, two.path(), "a", &[]);
    let (kind, why) = distrust(twin.claim(&claim(1, 1, "a")).await);
    assert_eq!(kind, Distrust::NameTaken);
    assert!(why.contains("another machine has the name a") && why.contains("ledger adopt"), "{why}");
    assert_eq!(world.latest(BrokerId(1)).await.unwrap(), None, "the twin claims nothing");
    let note = first.check().await.unwrap();
    assert!(note.to_string().contains("WARNING: another machine uses this host's name, a"), "{note:?}");
    // The first machine is gone, a person says; were it not, it would be the refused one now.
    let instance = Local::new(two.path().to_owned()).ensure_instance().unwrap();
    give_name(&world, &"a".into(), &instance, world.now().wall).await.unwrap();
    member(&world, two.path(), "a", &[]).orders().await.unwrap();
    let old = member(&world, one.path(), "a", &[]);
    assert_eq!(distrust(old.orders().await).0, Distrust::NameTaken);
}

#[tokio::test]
async fn a_name_that_was_given_up_goes_to_whoever_says_it_next_and_to_no_third() {
    let world = initialised().await;
    let [one, two, three] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let instance = |dir: &Path| Local::new(dir.to_owned()).ensure_instance().unwrap();
    let leave =
        async |dir: &Path| leave_name(&world, &"a".into(), &instance(dir), world.now().wall).await.unwrap();
    member(&world, one.path(), "a", &[]).orders().await.unwrap();
    assert!(!leave(two.path()).await, "it was never its name");
    assert_eq!(distrust(member(&world, two.path(), "a", &[]).orders().await).0, Distrust::NameTaken);
    assert!(leave(one.path()).await);
    member(&world, two.path(), "a", &[]).orders().await.unwrap();
    for refused in [&one, &three] {
        assert_eq!(distrust(member(&world, refused.path(), "a", &[]).orders().await).0, Distrust::NameTaken);
    }
    // The same one that comes back takes its name again, before it does anything by it.
    assert!(leave(two.path()).await);
    member(&world, two.path(), "a", &[]).orders().await.unwrap();
    assert_eq!(distrust(member(&world, three.path(), "a", &[]).orders().await).0, Distrust::NameTaken);
}

#[tokio::test]
async fn a_claim_of_another_machine_under_our_name_is_not_our_own() {
    let world = initialised().await;
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let first = member(&world, one.path(), "a", &[]);
    first.claim(&claim(1, 1, "a")).await.unwrap();
    append(&first, (1, 1, "a"), &[started(0)]).await.unwrap();
    assert_eq!(first.latest(BrokerId(1)).await.unwrap().unwrap().claim.by, "a".into());
    let instance = Local::new(two.path().to_owned()).ensure_instance().unwrap();
    give_name(&world, &"a".into(), &instance, world.now().wall).await.unwrap();
    let second = member(&world, two.path(), "a", &[]);
    let seen = second.latest(BrokerId(1)).await.unwrap().unwrap();
    assert!(seen.claim.by.0.starts_with("a (instance "), "{}", seen.claim.by);
    // An agent older than instances wrote none: its claims stay those of its name.
    world.claim(&claim(2, 1, "a")).await.unwrap();
    assert_eq!(second.latest(BrokerId(2)).await.unwrap().unwrap().claim.by, "a".into());
    append(&second, (2, 1, "a"), &[ended()]).await.unwrap();
}

#[tokio::test]
async fn one_host_is_the_home_of_a_broker() {
    let world = initialised().await;
    let [one, two, three] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    // A standby says where the home is; only the home itself registers it.
    member(&world, three.path(), "s", &[(1, "x")]).orders().await.unwrap();
    member(&world, one.path(), "a", &[(1, "a")]).orders().await.unwrap();
    let (kind, why) = distrust(member(&world, two.path(), "b", &[(1, "b")]).orders().await);
    assert_eq!(kind, Distrust::WrongHome);
    assert!(why.contains("home of broker 1 is b, and a is registered"), "{why}");
    let standby = member(&world, three.path(), "s", &[(1, "x")]);
    assert_eq!(distrust(standby.orders().await).0, Distrust::WrongHome);
    give_home(&world, BrokerId(1), &"b".into(), world.now().wall).await.unwrap();
    member(&world, two.path(), "b", &[(1, "b")]).orders().await.unwrap();
}

#[tokio::test]
async fn who_only_looks_writes_nothing() {
    let (world, dir) = (initialised().await, tempfile::tempdir().unwrap());
    let who = Member { joins: false, ..who(dir.path(), "a", &[(1, "a")]) };
    let looks = KnownLedger::new(Arc::new(world.clone()), who, Arc::new(world.clone()));
    looks.orders().await.unwrap();
    assert_eq!(world.truth().cells.len(), 1);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
