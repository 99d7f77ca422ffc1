//! Whether what the cluster advertises leads to the broker, from here and from the peers.

use axum::Router;
use axum::extract::Path;
use axum::response::Json;
use axum::routing::get;
use tokio::net::TcpListener;

use super::super::super::advertised::{self, ReachPage, is_own};
use super::*;
use crate::health_signal::peer::PeerConfig;
use kafka::Dialers;

/// Broker 2, in every ISR and answering at its own listener, with what the cluster says of where it is.
#[tokio::test]
async fn what_is_advertised_must_lead_to_that_very_broker() {
    let bed = Bed::new().await;
    bed.world().partitions = vec![(3, vec![3, 2], vec![3, 2])];
    let at = |n: usize| bed.brokers[n].at.clone();
    let nobody = bed.world().brokers[&1].0.clone().unwrap();
    // What is advertised, whether broker 2 may be asked who it is, and what is found wrong with it.
    for (advertised, may_not_describe, wrong) in [
        (at(0), false, None),
        (at(0), true, None),
        (at(1), false, Some("another broker than 2 answers there")),
        (at(1), true, Some("another broker than 2 answers there")),
        (nobody.clone(), false, Some("refuses connections")),
    ] {
        bed.world().may_not_describe = may_not_describe;
        bed.world().brokers.insert(2, (Some(advertised.clone()), false));
        let listeners = BTreeMap::from([(BrokerId(2), at(0))]);
        let cluster = KafkaCluster { listeners, ..bed.cluster_with(&[], None) };
        cluster.known().brokers = BTreeMap::from([(BrokerId(3), at(1))]);
        let standing = cluster.standing(BrokerId(2)).await.unwrap();
        assert!(standing.answers && standing.in_isr == standing.replicas, "{standing:?}");
        let found = standing.advertised.unwrap();
        assert_eq!(found.at, advertised);
        match (wrong, &found.fails) {
            (None, None) => {}
            (Some(wrong), Some(fails)) if fails.contains(wrong) => {}
            _ => panic!("{advertised}, {may_not_describe}: {found:?}, {wrong:?}"),
        }
    }
    // What is not back yet is not dialled.
    bed.world().partitions = vec![(3, vec![3, 2], vec![3])];
    let cluster =
        KafkaCluster { listeners: BTreeMap::from([(BrokerId(2), at(0))]), ..bed.cluster_with(&[], None) };
    assert_eq!(cluster.standing(BrokerId(2)).await.unwrap().advertised, None);
}

/// Broker 2 is in every ISR, answers, and is advertised where it is.
async fn back() -> (Bed, KafkaCluster) {
    let bed = Bed::new().await;
    bed.world().partitions = vec![(3, vec![3, 2], vec![3, 2])];
    let listeners = BTreeMap::from([(BrokerId(2), bed.brokers[0].at.clone())]);
    let cluster = KafkaCluster { listeners, ..bed.cluster_with(&[], None) };
    (bed, cluster)
}

/// An agent in the name of `host` that answers by `cluster`, and the peer that it is to another one.
async fn agent(host: &'static str, cluster: Option<KafkaCluster>) -> Arc<Peer> {
    let mut pages = Router::new();
    if let Some(cluster) = cluster.map(Arc::new) {
        let page = move |Path(broker): Path<i32>| async move {
            Json(ReachPage { host: host.into(), found: cluster.reach(BrokerId(broker)).await })
        };
        pages = pages.route(&format!("{}{{broker}}", advertised::PATH), get(page));
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, pages).await });
    Arc::new(PeerConfig { host: "s2".to_owned(), url }.build(None).unwrap())
}

#[tokio::test]
async fn a_broker_that_a_peer_does_not_reach_is_not_back() {
    let (bed, cluster) = back().await;
    // The other agent's cluster sends it elsewhere, as one does that is asked on another listener.
    let elsewhere = Bed::new().await;
    let nobody = elsewhere.world().brokers[&1].0.clone().unwrap();
    elsewhere.world().brokers.insert(2, (Some(nobody.clone()), false));
    let theirs = KafkaCluster::new(
        Dialers::plaintext(),
        ClusterConfig {
            bootstrap: vec![elsewhere.brokers[1].at.clone()],
            controllers: Vec::new(),
            zookeeper: None,
            zookeeper_security: None,
            id: None,
            security: None,
            controllers_security: None,
        },
        BTreeMap::new(),
    );
    let theirs = agent("s2", Some(theirs.unwrap())).await;
    let cluster = cluster.with_peers(vec![agent("s2", Some(bed.cluster())).await, theirs]);
    let found = cluster.standing(BrokerId(2)).await.unwrap().advertised.unwrap();
    let why = found.fails.unwrap();
    let says = format!("the agent on s2, which is sent to {nobody}, does not reach the broker there");
    assert!(why.contains(&says) && why.contains("refuses connections"), "{why}");
    // Once the way there is open from its host, the broker is back.
    elsewhere.world().brokers.insert(2, (Some(elsewhere.brokers[0].at.clone()), false));
    let found = cluster.standing(BrokerId(2)).await.unwrap().advertised.unwrap();
    assert_eq!((found.fails, found.reached_by), (None, BTreeSet::from(["s2".into()])));
}

/// An agent of an older build, one that sees nothing of the cluster, one in another name, and none at all.
#[tokio::test]
async fn a_peer_that_does_not_tell_keeps_no_broker_from_being_back() {
    let (bed, cluster) = back().await;
    let blind = ClusterConfig {
        bootstrap: vec![bed.world().brokers[&1].0.clone().unwrap()],
        controllers: Vec::new(),
        zookeeper: None,
        zookeeper_security: None,
        id: None,
        security: None,
        controllers_security: None,
    };
    let blind = KafkaCluster::new(Dialers::plaintext(), blind, BTreeMap::new()).unwrap();
    let nobody = format!("http://{}", bed.world().brokers[&1].0.clone().unwrap());
    let gone = Arc::new(PeerConfig { host: "s2".to_owned(), url: nobody }.build(None).unwrap());
    assert!(gone.is_there(), "it was not asked yet");
    let older = agent("s2", None).await;
    let peers = vec![
        older.clone(),
        agent("s2", Some(blind)).await,
        agent("s3", Some(bed.cluster())).await,
        gone.clone(),
    ];
    let cluster = cluster.with_peers(peers);
    let found = cluster.standing(BrokerId(2)).await.unwrap().advertised.unwrap();
    assert_eq!((found.fails, found.reached_by), (None, BTreeSet::new()));
    assert!(older.is_there() && !gone.is_there());
    // What does not lead there from here is not asked of others.
    bed.world().brokers.insert(2, (Some(bed.brokers[1].at.clone()), false));
    let found = cluster.standing(BrokerId(2)).await.unwrap().advertised.unwrap();
    assert!(found.fails.unwrap().contains("another broker than 2"));
}

#[tokio::test]
async fn a_peer_is_told_of_what_the_cluster_advertises_and_of_one_dial_at_a_time() {
    let (bed, cluster) = back().await;
    let at = bed.brokers[0].at.clone();
    assert_eq!(cluster.reach(BrokerId(2)).await, Reach::Reached { at });
    let untold = async |broker| match cluster.reach(BrokerId(broker)).await {
        Reach::Untold { why } => why,
        told => panic!("{told:?}"),
    };
    let why = untold(9).await;
    assert!(why.contains("the cluster does not list broker 9"), "{why}");
    // One that accepts and says nothing is dialled once, whoever asks meanwhile, and for a while.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at: Endpoint = silent.local_addr().unwrap().to_string().parse().unwrap();
    bed.world().brokers.insert(2, (Some(at.clone()), false));
    let (first, second) = tokio::join!(cluster.reach(BrokerId(2)), cluster.reach(BrokerId(2)));
    assert!(matches!(&first, Reach::Unreached { at: dialled, .. } if *dialled == at), "{first:?}");
    assert!(matches!(&second, Reach::Untold { why } if why.contains("is being dialled")), "{second:?}");
    // Who hangs up leaves nothing behind.
    assert!(timeout(Duration::from_millis(50), cluster.reach(BrokerId(2))).await.is_err());
    bed.world().brokers.insert(2, (Some(bed.brokers[0].at.clone()), false));
    assert!(matches!(cluster.reach(BrokerId(2)).await, Reach::Reached { .. }));
}

/// A host that has not given the address up yet would ask itself.
#[tokio::test]
async fn a_peer_that_has_the_address_itself_does_not_tell() {
    assert!(is_own("127.0.0.1".parse().unwrap()) && !is_own("192.0.2.11".parse().unwrap()));
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    let Some(own) = own.ok().filter(|own| !own.ip().is_loopback()) else {
        return eprintln!("SKIPPED: this host has no address but the loopback's");
    };
    let (bed, cluster) = back().await;
    bed.world().brokers.insert(2, (Some(own.to_string().parse().unwrap()), false));
    let told = cluster.reach(BrokerId(2)).await;
    assert!(matches!(&told, Reach::Untold { why } if why.contains("is an address of this host")), "{told:?}");
}
