//! The contract on a real API server, and what only Kubernetes has: its rules, its versions, a server that is killed,
//! frozen or asked through a bad wire, and roles.

mod faults;
mod rights;

use std::sync::Arc;

use fakes::kubernetes::{ADMIN, ControlPlane};
use fakes::ledger::contract::{append, claim, contract, decision, done, ended, started};
use recovery::model::Succession;
use recovery::ports::chain;
use serde_json::json;

use super::*;

const NAMESPACE: &str = "kafka";

/// A cluster with the definitions, and a service account that may do what its manifest says.
struct Site {
    plane: ControlPlane,
    token: String,
}

impl Site {
    /// `None`, told loudly, without the bed.
    fn start() -> Option<Self> {
        let plane = ControlPlane::start()?;
        let crd = crate::definitions_yaml().unwrap();
        plane.kubectl(&["apply", "-f", "-"], &crd).unwrap();
        plane.kubectl(&["create", "namespace", NAMESPACE], "").unwrap();
        plane.kubectl(&["apply", "-f", "-"], RBAC).unwrap();
        let wait = ["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"];
        plane.kubectl(&wait, "").unwrap();
        let token = plane.token("understudy", NAMESPACE).unwrap();
        Some(Self { plane, token })
    }

    /// A ledger `name`, as the service account, by `url` or the API server's own.
    fn config(&self, name: &str, url: Option<&str>) -> KubernetesLedgerConfig {
        KubernetesLedgerConfig {
            namespace: Some(NAMESPACE.to_owned()),
            kubeconfig: Some(self.plane.kubeconfig(&self.token, url)),
            name: name.to_owned(),
            timeout: Duration::from_secs(20),
        }
    }

    fn ledger(&self, name: &str) -> KubernetesLedger {
        KubernetesLedger::new(&self.config(name, None)).unwrap()
    }

    /// Patches an object as an administrator.
    fn patch(&self, kind: &str, name: &str, patch: &serde_json::Value) -> Result<String, String> {
        let patch = patch.to_string();
        self.plane.kubectl(&["-n", NAMESPACE, "patch", kind, name, "--type=merge", "-p", &patch], "")
    }

    fn object(&self, kind: &str, name: &str) -> serde_json::Value {
        let text = self.plane.kubectl(&["-n", NAMESPACE, "get", kind, name, "-o", "json"], "").unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

const RBAC: &str = include_str!("../../../../../deploy/kubernetes/ledger-rbac.yaml");

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keeps_the_contract() {
    let Some(site) = Site::start() else { return };
    // Nothing fails on purpose here, so that the deadline may be a long one: the machine may be busy.
    contract(|| Arc::new(site.ledger("contract"))).await;
    the_past_cannot_be_changed(&site).await;
    a_half_done_succession_goes_on(&site).await;
    two_successors_race(&site).await;
    long_journals_have_pages_and_too_long_a_line_is_refused(&site).await;
    what_is_missing_is_damage(&site).await;
    two_ledgers_in_one_namespace_are_two(&site).await;
}

/// Whoever asks, an administrator included.
async fn the_past_cannot_be_changed(site: &Site) {
    let ledger = site.ledger("past");
    ledger.claim(&claim(1, 1, "a")).await.unwrap();
    append(&ledger, (1, 1, "a"), &[started(0), done(0, 10)]).await.unwrap();
    append(&ledger, (1, 1, "a"), &[started(1)]).await.unwrap();
    let page = "past.broker-1.epoch-1.page-0";
    let log = site.object("ledgerjournal", page)["spec"]["log"].as_str().unwrap().to_owned();
    let lines: Vec<&str> = log.lines().collect();
    let removed = format!("{}\n{}\n", lines[0], lines[2]);
    let refused = |patch: serde_json::Value, why: &str| {
        let said = site.patch("ledgerjournal", page, &json!({ "spec": patch })).unwrap_err();
        assert!(said.contains(why), "{said}");
    };
    let never = "entries of a journal are never removed or changed";
    refused(json!({ "log": removed }), never);
    refused(json!({ "log": log.replacen("started", "stopped", 1) }), never);
    refused(json!({ "log": "" }), never);
    refused(json!({ "of": { "epoch": 2 } }), "never change");
    refused(json!({ "of": { "by": "b" } }), "never change");
    refused(json!({ "page": 1 }), "never change");

    append(&ledger, (1, 1, "a"), &[ended()]).await.unwrap();
    let log = site.object("ledgerjournal", page)["spec"]["log"].as_str().unwrap().to_owned();
    refused(json!({ "log": format!("{log}more\n") }), "a page that is closed never changes");
    refused(json!({ "closed": null }), "a page that is closed never changes");

    ledger.claim(&claim(1, 2, "b")).await.unwrap();
    let index = site.object("ledgerindex", "past.epochs");
    assert_eq!(index["spec"], json!({ "begun": { "1": 2 }, "claimed": { "1": 2 } }));
    for (what, to) in [("begun", json!(1)), ("claimed", json!(1)), ("claimed", json!(null))] {
        let patch = json!({ "spec": { what: { "1": to } } });
        let said = site.patch("ledgerindex", "past.epochs", &patch).unwrap_err();
        assert!(said.contains("an epoch never goes down"), "{said}");
    }
    ledger.set_cell("x", &Cell { version: 1, text: "one".to_owned() }).await.unwrap();
    for version in [1, 3] {
        let patch = json!({ "spec": { "version": version, "text": "two" } });
        let said = site.patch("ledgercell", "past.cell.x78", &patch).unwrap_err();
        assert!(said.contains("one version at a time"), "{said}");
    }
    // What a person may do: nothing of it is changed by that.
    let label = ["-n", NAMESPACE, "label", "ledgercell,ledgerindex,ledgerjournal", "--all", "seen=yes"];
    site.plane.kubectl(&label, "").unwrap();
    ledger.set_cell("x", &Cell { version: 2, text: "two".to_owned() }).await.unwrap();
    append(&ledger, (1, 2, "b"), &[started(0)]).await.unwrap();
}

/// The successor has closed the journal, and died before it claimed.
async fn a_half_done_succession_goes_on(site: &Site) {
    let (old, new) = (site.ledger("half"), site.ledger("half"));
    let succeeding = |by: &str, records| Claim {
        succeeds: Some(Succession { epoch: Epoch(1), records }),
        ..claim(1, 2, by)
    };
    old.claim(&claim(1, 1, "a")).await.unwrap();
    let asking = new.cluster.ask();
    let seen = new.newest(&asking, BrokerId(1)).await.unwrap();
    assert!(new.may_claim(&asking, &succeeding("b", 1), seen).await.unwrap());

    let stale = append(&old, (1, 1, "a"), &[started(0)]).await.unwrap_err();
    assert!(matches!(stale, LedgerError::Superseded { ours: Epoch(1), theirs: Epoch(2), .. }), "{stale:?}");
    assert_eq!(old.latest(BrokerId(1)).await.unwrap().unwrap().epoch, Epoch(1), "nobody has it yet");
    let told = new.newest_epochs(&[BrokerId(1)].into()).await.unwrap();
    assert_eq!(told[&BrokerId(1)], Epoch(1));
    // One that saw something else is refused still, and the next one goes on from there.
    assert!(matches!(new.claim(&succeeding("c", 2)).await, Err(LedgerError::Taken { .. })));
    new.claim(&succeeding("c", 1)).await.unwrap();
    append(&new, (1, 2, "c"), &[ended()]).await.unwrap();

    // And one that died after it had set out, before the epoch was made.
    index::raise(&asking, &new.names, BrokerId(1), (Epoch(3), Epoch(2))).await.unwrap();
    assert_eq!(old.latest(BrokerId(1)).await.unwrap().unwrap().epoch, Epoch(2));
    let told = old.newest_epochs(&[BrokerId(1)].into()).await.unwrap();
    assert_eq!(told.get(&BrokerId(1)), None, "it has to be read");
    old.claim(&claim(1, 3, "a")).await.unwrap();
    assert_eq!(old.all(BrokerId(1)).await.unwrap().len(), 3);
}

async fn two_successors_race(site: &Site) {
    for round in 0..20 {
        let name = "race";
        let ledger = site.ledger(name);
        ledger.claim(&claim(round, 1, "a")).await.unwrap();
        let succeeds = Some(Succession { epoch: Epoch(1), records: 1 });
        let rivals = ["b", "c"].map(|by| {
            let (ledger, claim) = (site.ledger(name), Claim { succeeds, ..claim(round, 2, by) });
            tokio::spawn(async move { ledger.claim(&claim).await.map(|_| claim.by) })
        });
        let wakes = {
            let ledger = site.ledger(name);
            tokio::spawn(async move { append(&ledger, (round, 1, "a"), &[started(0)]).await })
        };
        let mut won = Vec::new();
        for rival in rivals {
            match rival.await.unwrap() {
                Ok(by) => won.push(by),
                Err(LedgerError::Taken { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        let went_on = match wakes.await.unwrap() {
            Ok(_) => true,
            Err(LedgerError::Superseded { .. }) => false,
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(won.len(), usize::from(!went_on), "the claimant goes on, or one succeeds it: {won:?}");
        let all = ledger.all(BrokerId(round)).await.unwrap();
        assert_eq!(all.len(), 1 + won.len());
        assert_eq!(
            all[0].records.len(),
            if went_on { 2 } else { 1 },
            "an append that was confirmed is there"
        );
    }
}

async fn long_journals_have_pages_and_too_long_a_line_is_refused(site: &Site) {
    let (ledger, reader) = (site.ledger("long"), site.ledger("long"));
    ledger.claim(&claim(1, 1, "a")).await.unwrap();
    for _ in 0..30 {
        append(&ledger, (1, 1, "a"), &[done(0, 10_000)]).await.unwrap();
        let read = reader.latest(BrokerId(1)).await.unwrap().unwrap().records.len();
        assert_eq!(read, ledger.latest(BrokerId(1)).await.unwrap().unwrap().records.len());
    }
    assert_eq!(site.ledger("long").latest(BrokerId(1)).await.unwrap().unwrap().records.len(), 31);
    let pages = site.plane.kubectl(
        &["-n", NAMESPACE, "get", "ledgerjournals", "-l", "understudy.dev/ledger=long", "-o", "name"],
        "",
    );
    assert_eq!(pages.unwrap().lines().count(), 5);
    let first = site.object("ledgerjournal", "long.broker-1.epoch-1.page-0");
    assert!(first["spec"]["log"].as_str().unwrap().len() <= 64 << 10);
    assert_eq!(first["spec"]["closed"], "full");

    let too_long = append(&ledger, (1, 1, "a"), &[done(0, 256 << 10)]).await.unwrap_err();
    assert!(chain(&too_long).contains("one write may have 262144"), "{}", chain(&too_long));
    append(&ledger, (1, 1, "a"), &[done(0, (256 << 10) - 500)]).await.unwrap();
    // Silent on a full page: what succeeds it closes a page that has to be made first.
    let records = ledger.latest(BrokerId(1)).await.unwrap().unwrap().records.len() as u64;
    let succeeds = Some(Succession { epoch: Epoch(1), records });
    ledger.claim(&Claim { succeeds, ..claim(1, 2, "b") }).await.unwrap();
    assert!(matches!(append(&ledger, (1, 1, "a"), &[started(0)]).await, Err(LedgerError::Superseded { .. })));
    assert_eq!(ledger.all(BrokerId(1)).await.unwrap()[0].records.len() as u64, records);

    for second in 0..40 {
        ledger.remember(BrokerId(1), &decision("a", second, &"x".repeat(20_000))).await.unwrap();
    }
    let kept = ledger.remembered(BrokerId(1)).await.unwrap();
    assert!(kept.len() > 5 && kept.len() < 20, "{}", kept.len());
    assert_eq!(kept.last().unwrap().at.as_second(), 39);
}

/// Removed by somebody who may: nothing is guessed.
async fn what_is_missing_is_damage(site: &Site) {
    let ledger = site.ledger("gone");
    for (epoch, host) in [(1, "a"), (2, "b")] {
        ledger.claim(&claim(1, epoch, host)).await.unwrap();
        append(&ledger, (1, epoch, host), &[ended()]).await.unwrap();
    }
    let says = |error: LedgerError, why: &str| {
        assert!(matches!(error, LedgerError::Damaged { .. }), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
    };
    let delete = |kind: &str, name: &str| {
        site.plane.kubectl(&["-n", NAMESPACE, "delete", kind, name], "").unwrap();
    };
    delete("ledgerjournal", "gone.broker-1.epoch-1.page-0");
    assert_eq!(ledger.latest(BrokerId(1)).await.unwrap().unwrap().epoch, Epoch(2));
    says(ledger.all(BrokerId(1)).await.unwrap_err(), "epoch-1.page-0 is damaged: it is gone");
    delete("ledgerjournal", "gone.broker-1.epoch-2.page-0");
    says(ledger.latest(BrokerId(1)).await.unwrap_err(), "epoch-2.page-0 is damaged: it is gone");
    says(ledger.claim(&claim(1, 3, "c")).await.unwrap_err(), "it is gone");
    says(ledger.claim(&claim(1, 2, "c")).await.unwrap_err(), "it is gone");

    ledger.claim(&claim(2, 1, "a")).await.unwrap();
    delete("ledgerindex", "gone.epochs");
    says(ledger.latest(BrokerId(2)).await.unwrap_err(), "gone.epochs is damaged: it is gone");
    says(ledger.newest_epochs(&[BrokerId(2)].into()).await.unwrap_err(), "gone.epochs");
    says(ledger.claim(&claim(3, 1, "a")).await.unwrap_err(), "gone.epochs");
}

async fn two_ledgers_in_one_namespace_are_two(site: &Site) {
    let (one, two) = (site.ledger("one"), site.ledger("two"));
    one.claim(&claim(1, 1, "a")).await.unwrap();
    assert_eq!(two.latest(BrokerId(1)).await.unwrap(), None);
    two.claim(&claim(1, 1, "b")).await.unwrap();
    assert_eq!(one.latest(BrokerId(1)).await.unwrap().unwrap().claim.by, "a".into());
}

#[test]
fn every_bad_value_is_told() {
    let config = |text: &str| toml::from_str::<KubernetesLedgerConfig>(text);
    let good = config("").unwrap();
    assert_eq!((good.name.as_str(), good.timeout), ("understudy", Duration::from_secs(5)));
    assert!(KubernetesLedger::new(&good).is_ok());
    let bad = "namespace = \"Kafka_1\"\nkubeconfig = \"k\"\nname = \"a.b\"\ntimeout = \"10ms\"";
    let problems = KubernetesLedger::new(&config(bad).unwrap()).unwrap_err();
    let keys: Vec<&str> = problems.iter().map(|problem| problem.split(':').next().unwrap()).collect();
    assert_eq!(keys, ["namespace", "kubeconfig", "name", "timeout"]);
    assert!(config("namespaces = \"a\"").is_err());
}

#[test]
fn no_two_marks_are_the_same() {
    let marks: BTreeSet<String> = (0..1000).map(|_| mark()).collect();
    assert_eq!(marks.len(), 1000);
    assert!(marks.iter().all(|mark| !mark.contains(' ')));
}

#[tokio::test]
async fn a_cluster_that_is_not_there_is_unavailable_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let ledger = |timeout| {
        let kubeconfig = Some(path.clone());
        let config = KubernetesLedgerConfig { kubeconfig, timeout, ..toml::from_str("").unwrap() };
        KubernetesLedger::new(&config).unwrap()
    };
    let error = chain(&ledger(Duration::from_secs(2)).latest(BrokerId(1)).await.unwrap_err());
    assert!(error.contains("kubeconfig") && error.contains("No such file"), "{error}");
    // Nothing listens on port 1.
    let text = format!(
        "{}\nclusters: [{{name: x, cluster: {{server: \"http://127.0.0.1:1\"}}}}]\n\
         contexts: [{{name: x, context: {{cluster: x, user: x}}}}]\nusers: [{{name: x, user: {{token: {ADMIN}}}}}]\n",
        "apiVersion: v1\nkind: Config\ncurrent-context: x"
    );
    std::fs::write(&path, text).unwrap();
    let ledger = ledger(Duration::from_secs(1));
    let begun = tokio::time::Instant::now();
    let error = chain(&ledger.claim(&claim(1, 1, "a")).await.unwrap_err());
    assert!(error.contains("127.0.0.1:1/ did not answer"), "{error}");
    assert!(!error.contains("may have been written"), "nothing was sent: {error}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}
