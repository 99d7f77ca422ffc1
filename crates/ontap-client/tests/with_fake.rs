//! Our client against the fake: the work that the vendor's own clients do against it too, and each of its bad
//! days.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::net::IpAddr;
use std::time::Duration;

use fakes::ontap::{Fake, Fault, World};
use ontap_client::{
    Auth, Client, ConnectionQuery, Error, ExportRule, Fingerprint, FlushAnswer, InterfaceQuery, LockProtocol,
    LockQuery, NewExportRule, NewSnapshot, NewVolume, NfsClientQuery, Polarity, Result, Retry, Tls,
    VolumeChange,
};

const GIB: u64 = 1 << 30;
const RULES: &str = "/api/protocols/nfs/export-policies";

fn basic() -> Auth {
    Auth::Basic { user: "admin".to_owned(), password: "secret".to_owned().into() }
}

fn client(fake: &Fake, auth: Auth, tls: Tls) -> Client {
    let retry =
        Retry { attempts: 4, first_wait: Duration::from_millis(5), longest_wait: Duration::from_millis(20) };
    Client::builder(fake.url(), auth).tls(tls).retry(retry).deadline(Duration::from_secs(10)).build().unwrap()
}

async fn start() -> (Fake, Client) {
    let fake = Fake::start(World::small()).await.unwrap();
    let client = client(&fake, basic(), Tls::InsecurePlainHttp);
    (fake, client)
}

/// With the volume `kafka01`, whose one rule is for 10.0.0.101; that client has two locks in it.
async fn with_volume() -> (Fake, Client, u64, String) {
    let (fake, client) = start().await;
    let (policy, volume) = fake.world(|world| {
        let policy = world.policy("svm1", "broker-1", &[&["10.0.0.101"]]);
        (policy, world.volume("svm1", "kafka01", "broker-1"))
    });
    (fake, client, u64::try_from(policy).unwrap(), volume)
}

/// Has the volume's rule be for the new owner.
async fn hand_over(client: &Client, policy: u64) -> Result<Vec<ExportRule>> {
    let rule = client.export_rules(policy).await?.remove(0);
    client.replace_clients(policy, &rule, &["10.0.0.102"]).await
}

fn old() -> IpAddr {
    [10, 0, 0, 101].into()
}

#[tokio::test]
async fn the_cluster_is_seen_as_it_is() {
    let (_fake, client) = start().await;
    assert!(client.cluster().await.unwrap().version.is_at_least(9, 12, 1));
    assert_eq!(client.nodes().await.unwrap().visible().unwrap().len(), 2);
    let aggregates = client.aggregates().await.unwrap().visible().unwrap();
    assert_eq!(aggregates[0].node.name, aggregates[0].home_node.name);
    let service = client.nfs_service("svm1").await.unwrap().unwrap();
    assert_eq!(service.transport.tcp_max_transfer_bytes, Some(65_536));
    let lif =
        client.interfaces(&InterfaceQuery { svm: Some("svm1"), service: None }).await.unwrap().remove(0);
    assert_eq!(lif.ip.address.as_deref(), Some("10.0.0.50"));
}

#[tokio::test]
async fn a_volume_is_made_used_and_deleted() {
    let (fake, client) = start().await;
    let policy =
        client.create_export_policy("svm1", "p", &[NewExportRule::nfs4(&["10.0.0.101"])]).await.unwrap();
    let mut new = NewVolume::new("svm1", "kafka01", "aggr1");
    (new.size_bytes, new.junction) = (Some(GIB), Some("/kafka01".to_owned()));
    new.export_policy = Some("p".to_owned());
    let volume = client.create_volume(&new).await.unwrap();
    assert!(client.create_volume(&new).await.unwrap_err().is_duplicate());
    assert!(fake.allows(old(), "kafka01").may_write());
    let change =
        VolumeChange { size_bytes: Some(2 * GIB), comment: Some("epoch 7"), ..VolumeChange::default() };
    let changed = client.update_volume(&volume.uuid, &change).await.unwrap();
    assert_eq!(changed.comment.as_deref(), Some("epoch 7"));
    client.set_preserve_unlink("svm1", "kafka01", true).await.unwrap();
    assert_eq!(client.preserve_unlink("svm1", "kafka01").await.unwrap(), Some(true));
    let snapshot = client.create_snapshot(&volume.uuid, &NewSnapshot::named("before")).await.unwrap();
    assert!(snapshot.is_usable());
    client.delete_snapshot(&volume.uuid, &snapshot.uuid).await.unwrap();
    assert!(client.snapshots(&volume.uuid).await.unwrap().is_empty());
    assert!(client.delete_volume(&volume.uuid).await.is_err(), "it is mounted");
    let unmount = VolumeChange { junction: Some(""), ..VolumeChange::default() };
    client.update_volume(&volume.uuid, &unmount).await.unwrap();
    client.delete_volume(&volume.uuid).await.unwrap();
    client.delete_volume(&volume.uuid).await.unwrap();
    client.delete_export_policy(policy.id).await.unwrap();
    assert!(client.export_policy("svm1", "p").await.unwrap().is_none());
}

#[tokio::test]
async fn preserve_unlink_is_set_and_read_whatever_privilege_it_needs() {
    let (fake, client, _, _) = with_volume().await;
    fake.world(|world| world.needs_advanced("is_preserve_unlink_enabled"));
    client.set_preserve_unlink("svm1", "kafka01", true).await.unwrap();
    assert_eq!(client.preserve_unlink("svm1", "kafka01").await.unwrap(), Some(true));
    let all = client.preserve_unlinks("svm1").await.unwrap();
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [("kafka01".to_owned(), Some(true))]);
    let refused = fake.requests().into_iter().filter(|seen| seen.status == Some(400));
    assert!(refused.map(|seen| seen.method).eq(["PATCH", "GET", "GET", "GET"]));
}

#[tokio::test]
async fn an_owner_is_replaced_and_its_locks_are_broken() {
    let (fake, client, policy, _) = with_volume().await;
    let rule = client.export_rules(policy).await.unwrap().remove(0);
    assert!(rule.is_for(&["10.0.0.101"]));
    let rules = client.replace_clients(policy, &rule, &["10.0.0.102"]).await.unwrap();
    assert!(rules.len() == 1 && rules[0].is_for(&["10.0.0.102"]));
    assert!(!fake.allows(old(), "kafka01").may_write());
    let mut which = LockQuery::in_svm("svm1");
    (which.volumes, which.client_address) = (&["kafka01"], Some("10.0.0.101"));
    let locks = client.locks(&which).await.unwrap();
    assert!(locks.len() == 2 && locks.iter().all(|lock| lock.protocol == Some(LockProtocol::Nfsv41)));
    let first = [locks[0].uuid.as_str()];
    assert_eq!(client.break_these_locks("svm1", &first).await.unwrap(), 1);
    assert_eq!(client.break_these_locks("svm1", &first).await.unwrap(), 0);
    assert_eq!(client.break_locks(&which).await.unwrap(), 1);
    assert!(client.locks(&which).await.unwrap().is_empty());
    let seen = NfsClientQuery { svm: "svm1", volume: Some("kafka01"), client_ip: Some("10.0.0.101") };
    assert!(client.nfs_clients(&seen).await.unwrap()[0].idle.unwrap() < Duration::from_secs(60));
    let connections = ConnectionQuery { svm: "svm1", remote_ip: Some("10.0.0.101"), service: Some("nfs*") };
    assert_eq!(client.active_connections(&connections).await.unwrap().visible().unwrap().len(), 1);
}

#[tokio::test]
async fn what_passes_is_repeated() {
    for (fault, method, statuses) in [
        (
            Fault::busy(Duration::ZERO).on("PATCH", RULES).first(2),
            "PATCH",
            vec![Some(429), Some(429), Some(200)],
        ),
        (Fault::status(503).on("PATCH", RULES).first(2), "PATCH", vec![Some(503), Some(503), Some(200)]),
        // It is read back, and was in force.
        (Fault::dropped_reply().on("PATCH", RULES).first(1), "PATCH", vec![None]),
        (
            Fault::status(502).on("GET", "/api").first(2),
            "GET",
            vec![Some(502), Some(502), Some(200), Some(200), Some(200)],
        ),
    ] {
        let (fake, client, policy, _) = with_volume().await;
        fake.inject(fault.clone());
        let rules = hand_over(&client, policy).await;
        assert!(rules.is_ok(), "{fault:?}: {rules:?}");
        let seen = fake.requests().into_iter().filter(|seen| seen.method == method);
        assert_eq!(seen.map(|seen| seen.status).collect::<Vec<_>>(), statuses, "{fault:?}");
    }
}

#[tokio::test]
async fn a_lie_is_found_out() {
    let (fake, client, policy, volume) = with_volume().await;
    fake.inject(Fault::lying_success());
    let error = hand_over(&client, policy).await.unwrap_err();
    assert!(matches!(error, Error::NotApplied { .. }), "{error:?}");
    let unmount = VolumeChange { junction: Some(""), ..VolumeChange::default() };
    let error = client.update_volume(&volume, &unmount).await.unwrap_err();
    assert!(matches!(error, Error::NotApplied { .. }), "{error:?}");
    let error = client.set_preserve_unlink("svm1", "kafka01", true).await.unwrap_err();
    assert!(matches!(error, Error::NotApplied { .. }), "{error:?}");
}

#[tokio::test]
async fn lists_are_whole_or_an_error() {
    let (fake, client, _, _) = with_volume().await;
    let mut which = LockQuery::in_svm("svm1");
    which.client_address = Some("10.0.0.101");
    fake.world(|world| (0..5).for_each(|at| drop(world.lock("kafka01", old(), &format!("file{at}")))));
    fake.inject(Fault::short_pages(3));
    assert_eq!(client.locks(&which).await.unwrap().len(), 7);
    assert_eq!(client.break_locks(&which).await.unwrap(), 7);
    fake.heal();
    fake.world(|world| (0..5).for_each(|at| drop(world.lock("kafka01", old(), &format!("file{at}")))));
    fake.inject(Fault::partial(3));
    let error = client.locks(&which).await.unwrap_err();
    assert!(matches!(error, Error::Partial { .. }), "{error:?}");
}

#[tokio::test]
async fn jobs_are_followed_to_their_end() {
    let (fake, client, _, volume) = with_volume().await;
    fake.world(|world| world.jobs_take(Duration::from_millis(50)));
    let change = VolumeChange { comment: Some("mine"), ..VolumeChange::default() };
    assert_eq!(client.update_volume(&volume, &change).await.unwrap().comment.as_deref(), Some("mine"));
    fake.inject(Fault::job_fails(917_536, "volume is busy"));
    let error = client.update_volume(&volume, &change).await.unwrap_err();
    assert!(matches!(error, Error::JobFailed { .. }) && error.code() == Some(917_536), "{error:?}");
}

#[tokio::test]
async fn refusals_are_told_apart() {
    let (fake, client, policy, _) = with_volume().await;
    fake.inject(Fault::denied().on("PATCH", RULES));
    assert!(hand_over(&client, policy).await.unwrap_err().is_permission());
    fake.heal();
    fake.inject(Fault::login_expired());
    assert!(client.cluster().await.unwrap_err().is_unauthorized());
    fake.heal();
    fake.world(|world| {
        world.deny("admin", "/api/storage/aggregates");
        world.deny("admin", "/api/private/cli/vserver");
    });
    assert!(client.aggregates().await.unwrap().visible().is_none(), "as on FSx");
    assert!(client.flush_access_cache("svm1", "node-01", "broker-1").await.unwrap_err().is_not_visible());
}

#[tokio::test]
async fn a_change_that_bites_late_is_helped_by_a_flush() {
    let (fake, client, policy, _) = with_volume().await;
    assert!(fake.allows(old(), "kafka01").may_write());
    fake.inject(Fault::bites_late(Duration::from_secs(3600)));
    hand_over(&client, policy).await.unwrap();
    assert!(fake.allows(old(), "kafka01").may_write());
    client.flush_access_cache("svm1", "node-01", "broker-1").await.unwrap();
    assert!(!fake.allows(old(), "kafka01").may_write());
}

#[tokio::test]
async fn what_a_node_remembers_is_read_back() {
    let (fake, client, policy, _) = with_volume().await;
    let entry = async || client.access_cache_entry("svm1", "node-01", "broker-1", old()).await.unwrap();
    assert!(fake.allows(old(), "kafka01").may_write());
    // One client is forgotten, and no other; that there is nothing to forget is no refusal.
    let other: IpAddr = [10, 0, 0, 9].into();
    let forget = async |who| client.flush_access_cache_entry("svm1", "node-01", "broker-1", who).await;
    assert_eq!(forget(other).await.unwrap(), FlushAnswer::Counted);
    assert!(entry().await.is_some());
    assert_eq!(forget(old()).await.unwrap(), FlushAnswer::Counted);
    assert_eq!(entry().await, None);
    let gone = serde_json::json!({ "error": { "code": "4", "message": "entry doesn't exist" } });
    fake.inject(Fault::says(404, gone).on("POST", "/api/private/cli").first(1));
    assert!(matches!(forget(old()).await.unwrap(), FlushAnswer::Unclear(_)));
    assert!(fake.allows(old(), "kafka01").may_write());
    assert_eq!(entry().await.unwrap().polarity, Some(Polarity::Positive));
    hand_over(&client, policy).await.unwrap();
    assert!(!fake.allows(old(), "kafka01").may_write());
    assert_eq!(entry().await.unwrap().polarity, Some(Polarity::Negative));
    let path = client.check_access("svm1", "kafka01", old()).await.unwrap();
    assert!(path.len() == 2 && !path[0].is_denied() && path[1].is_denied(), "{path:?}");
    assert_eq!((path[1].policy.as_deref(), path[1].rule_index), (Some("broker-1"), Some(0)));
    // A release that does not know the field still says whether there is an entry.
    fake.world(|world| world.does_not_know("polarity"));
    assert_eq!(entry().await.unwrap().polarity, None);
    assert_eq!(client.flush_access_cache("svm1", "node-01", "broker-1").await.unwrap(), FlushAnswer::Counted);
    assert_eq!(entry().await, None);
    // That there is no such thing to be asked is not that there is no entry.
    fake.world(|world| world.deny("admin", "/api/private/cli/vserver"));
    let error = client.access_cache_entry("svm1", "node-01", "broker-1", old()).await.unwrap_err();
    assert!(error.is_not_visible(), "{error}");
}

#[tokio::test]
async fn an_empty_policy_is_empty_however_it_is_answered() {
    let (fake, client, _, _) = with_volume().await;
    let empty = fake.world(|world| world.policy("svm1", "empty", &[]));
    let empty = u64::try_from(empty).unwrap();
    assert_eq!(client.export_rules(empty).await.unwrap(), []);
    for status in [400, 404] {
        let body = serde_json::json!({ "error": { "code": "4", "message": "entry doesn't exist" } });
        fake.inject(Fault::says(status, body).on("GET", RULES).first(1));
        assert_eq!(client.export_rules(empty).await.unwrap(), []);
    }
    assert!(
        client.export_rules(7).await.unwrap_err().is_not_found(),
        "a policy that is not there is no empty one"
    );
}

#[tokio::test]
async fn qtrees_and_their_policies_are_seen() {
    let (fake, client, _, _) = with_volume().await;
    fake.world(|world| world.qtree("kafka01", "logs", "default"));
    let qtrees = client.qtrees("svm1", &["kafka01"]).await.unwrap().visible().unwrap();
    let of = |qtree: &ontap_client::Qtree| {
        (qtree.name.clone().unwrap_or_default(), qtree.export_policy.name.clone())
    };
    let expected =
        [(String::new(), Some("broker-1".to_owned())), ("logs".to_owned(), Some("default".to_owned()))];
    assert_eq!(qtrees.iter().map(of).collect::<Vec<_>>(), expected);
    assert!(qtrees[0].is_the_volume() && !qtrees[1].is_the_volume());
}

#[tokio::test]
async fn a_deadline_is_kept() {
    let (fake, client, _, volume) = with_volume().await;
    fake.inject(Fault::slow(Duration::from_secs(60)));
    let hasty = client.within(Duration::from_millis(100));
    let change = VolumeChange { comment: Some("mine"), ..VolumeChange::default() };
    assert!(hasty.update_volume(&volume, &change).await.unwrap_err().is_unconfirmed());
}

#[tokio::test]
async fn every_way_to_log_in_and_to_trust() {
    let fake = Fake::https(World::small()).await.unwrap();
    fake.world(|world| world.token("admin", "abc"));
    let own = fake.client_certificate("admin").unwrap();
    let ca = || Tls::PrivateCa { pem: fake.certificate_pem().unwrap().to_owned() };
    let pinned = || Tls::Pinned(Fingerprint::of(fake.certificate_der().unwrap()));
    let certificate =
        Auth::Certificate { chain_pem: own.certificate_pem.clone(), key_pem: own.key_pem.clone().into() };
    for (auth, tls) in [
        (basic(), ca()),
        (basic(), pinned()),
        (Auth::Bearer("abc".to_owned().into()), pinned()),
        (certificate, ca()),
        (basic(), Tls::InsecureAcceptAnything),
    ] {
        client(&fake, auth, tls).cluster().await.unwrap();
    }
    let other = Tls::Pinned(Fingerprint::of(b"another"));
    assert!(client(&fake, basic(), other).cluster().await.is_err());
    // A host without any trusted authority cannot even set such a client up.
    if let Ok(system) = Client::builder(fake.url(), basic()).tls(Tls::SystemRoots).build() {
        assert!(system.cluster().await.is_err());
    }
    let wrong = Auth::Bearer("abd".to_owned().into());
    assert!(client(&fake, wrong, ca()).cluster().await.unwrap_err().is_unauthorized());
}

#[tokio::test]
async fn who_reaches_which_volume_is_seen_in_two_requests() {
    let (fake, client, policy, _) = with_volume().await;
    fake.world(|world| world.policy("svm1", "two", &[&["10.0.0.8"], &["10.0.0.9"]]));
    fake.forget_requests();
    let volumes = client.volume_exports("svm1").await.unwrap();
    let policies = client.export_policy_rules("svm1").await.unwrap();
    assert_eq!(fake.requests().len(), 2);
    assert_eq!((volumes.len(), volumes[0].name.as_str()), (1, "kafka01"));
    assert!(volumes[0].nas.export_policy.is_named("broker-1"));
    assert_eq!(volumes[0].nas.junction.as_deref(), Some("/kafka01"));
    let of = |name: &str| policies.iter().find(|policy| policy.name == name).unwrap();
    let rules = |name: &str| of(name).rules.clone().unwrap();
    assert_eq!((of("broker-1").id, rules("broker-1").len(), rules("default").len()), (policy, 1, 0));
    assert!(rules("broker-1")[0].is_for(&["10.0.0.101"]));
    assert_eq!(rules("two").iter().map(|rule| rule.index).collect::<Vec<_>>(), [1, 2]);

    // ONTAP 9.18 says when it has left rules out.
    fake.world(|world| {
        let cut = serde_json::json!({ "are_rules_truncated": true });
        world.update(fakes::ontap::Table::Policies, &[("name", "two")], cut)
    });
    let policies = client.export_policy_rules("svm1").await.unwrap();
    let of = |name: &str| policies.iter().find(|policy| policy.name == name).unwrap().rules.clone();
    assert!(of("two").unwrap_err().contains("cut off") && of("broker-1").is_ok());
}
