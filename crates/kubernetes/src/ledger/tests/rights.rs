//! Roles, definitions, namespaces: whatever is missing is one sentence.

use std::collections::BTreeMap;

use fakes::kubernetes::STRANGER;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_is_missing_in_the_cluster_is_one_sentence() {
    let Some(site) = Site::start() else { return };
    let note = check_until(&site.ledger("all"), Ok("written and read back")).await;
    assert!(note.contains("namespace kafka"), "{note}");
    a_stranger_is_told_what_is_missing(&site).await;
    without_each_verb_it_is_refused(&site).await;
    no_namespace_and_no_login(&site).await;
    definitions_that_are_older_are_named_by_what_they_lack(&site).await;
    let crds = ["delete", "crd", "ledgercells.understudy.dev", "ledgerindexes.understudy.dev"];
    site.plane.kubectl(&[&crds[..], &["ledgerjournals.understudy.dev"]].concat(), "").unwrap();
    let none = check_until(&site.ledger("all"), Err("has no definitions of understudy.dev/v1")).await;
    assert!(none.contains("`understudy kubernetes crd | kubectl apply -f -`"), "{none}");
    let error = chain(&site.ledger("all").claim(&claim(1, 1, "a")).await.unwrap_err());
    assert!(error.contains("does not know ledger") && error.contains("kubectl apply"), "{error}");
    site.plane.kill_api();
    let error = chain(&site.ledger("all").check().await.unwrap_err());
    assert!(error.contains("did not answer") && error.contains("can be reached from here"), "{error}");
}

/// What a check says once it says what is expected: roles and definitions reach the API server's parts one by one.
async fn check_until(ledger: &KubernetesLedger, expected: Result<&str, &str>) -> String {
    let begun = tokio::time::Instant::now();
    loop {
        let said = ledger.check().await.map(|note| note.text).map_err(|error| chain(&error));
        match (&said, expected) {
            (Ok(text), Ok(part)) | (Err(text), Err(part)) if text.contains(part) => return text.clone(),
            _ => assert!(begun.elapsed() < Duration::from_secs(60), "{expected:?} is expected: {said:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn a_stranger_is_told_what_is_missing(site: &Site) {
    let kubeconfig = Some(site.plane.kubeconfig(STRANGER, None));
    let ledger = KubernetesLedger::new(&KubernetesLedgerConfig { kubeconfig, ..site.config("all", None) });
    let error = chain(&ledger.unwrap().check().await.unwrap_err());
    for verb in ["get", "create", "update", "list"] {
        assert!(error.contains(&format!("{verb} ledgerjournals.understudy.dev")), "{error}");
    }
    assert!(
        error.contains("in namespace kafka: bind the role of deploy/kubernetes/ledger-rbac.yaml"),
        "{error}"
    );
}

/// The role of the manifest, of which nothing can be left out.
async fn without_each_verb_it_is_refused(site: &Site) {
    let mut rules: BTreeMap<&str, Vec<&str>> =
        [("ledgerindexes", VERBS.to_vec()), ("ledgercells", VERBS.to_vec())].into();
    rules.insert("ledgerjournals", [&VERBS[..], &["list"]].concat());
    for (kind, verbs) in rules.clone() {
        for verb in verbs {
            let without = rules.iter().map(|(of, all)| {
                let left = all.iter().filter(|one| *of != kind || **one != verb).collect::<Vec<_>>();
                json!({ "apiGroups": ["understudy.dev"], "resources": [of], "verbs": left })
            });
            let role = json!({ "rules": without.collect::<Vec<_>>() }).to_string();
            let name = format!("without-{verb}-{kind}");
            prepare(site, &name).await;
            let patch = ["-n", NAMESPACE, "patch", "role", "understudy-ledger", "--type=merge", "-p", &role];
            site.plane.kubectl(&patch, "").unwrap();
            check_until(&site.ledger("all"), Err(&format!("may not {verb} {kind}.understudy.dev"))).await;
            let error = chain(&use_it(&site.ledger(&name), verb, kind).await.unwrap_err());
            let denied = format!("may not {verb} {kind}.understudy.dev in namespace kafka");
            assert!(error.contains(&denied), "{error}");
            assert!(error.contains("ledger-rbac.yaml"), "{error}");
        }
    }
    site.plane.kubectl(&["apply", "-f", "-"], RBAC).unwrap();
    check_until(&site.ledger("all"), Ok("written and read back")).await;
}

/// What an update needs to be there.
async fn prepare(site: &Site, name: &str) {
    check_until_whole(site).await;
    if name.starts_with("without-update") {
        let ledger = site.ledger(name);
        ledger.claim(&claim(1, 1, "a")).await.unwrap();
        ledger.set_cell("c", &Cell { version: 1, text: "one".to_owned() }).await.unwrap();
    }
}

async fn check_until_whole(site: &Site) {
    site.plane.kubectl(&["apply", "-f", "-"], RBAC).unwrap();
    check_until(&site.ledger("all"), Ok("written and read back")).await;
}

/// Does what needs that right first.
async fn use_it(ledger: &KubernetesLedger, verb: &str, kind: &str) -> Result<(), LedgerError> {
    let cell = |version| Cell { version, text: "one".to_owned() };
    match (verb, kind) {
        ("get", "ledgercells") => ledger.cell("c").await.map(drop),
        ("create", "ledgercells") => ledger.set_cell("c", &cell(1)).await.map(drop),
        ("update", "ledgercells") => ledger.set_cell("c", &cell(2)).await.map(drop),
        ("get", "ledgerindexes") => ledger.sync().await,
        ("get", "ledgerjournals") => ledger.orders().await.map(drop),
        ("list", "ledgerjournals") => ledger.sync().await,
        ("update", "ledgerindexes") => ledger.claim(&claim(2, 1, "a")).await.map(drop),
        ("update", "ledgerjournals") => append(ledger, (1, 1, "a"), &[started(0)]).await.map(drop),
        _ => ledger.claim(&claim(1, 1, "a")).await.map(drop),
    }
}

async fn no_namespace_and_no_login(site: &Site) {
    let with = |namespace: &str, token: &str| {
        let kubeconfig = Some(site.plane.kubeconfig(token, None));
        let namespace = Some(namespace.to_owned());
        let config = KubernetesLedgerConfig { kubeconfig, namespace, ..site.config("all", None) };
        KubernetesLedger::new(&config).unwrap()
    };
    let error = chain(&with("nowhere", ADMIN).claim(&claim(1, 1, "a")).await.unwrap_err());
    assert!(error.contains("no namespace nowhere") && error.contains("kubectl create namespace"), "{error}");
    let error = chain(&with(NAMESPACE, "nobody").check().await.unwrap_err());
    assert!(error.contains("does not accept the credentials"), "{error}");
}

/// The cluster has the definitions of another version of this program.
async fn definitions_that_are_older_are_named_by_what_they_lack(site: &Site) {
    let ledger = site.ledger("skew");
    let ours = crate::definitions_yaml().unwrap();
    let journals = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut crd = serde_json::to_value(&crate::crd::definitions()[0]).unwrap();
        change(&mut crd);
        // `--server-side --force-conflicts`: what a file does not name goes.
        site.plane.kubectl(&["replace", "-f", "-"], &with_version(site, crd)).unwrap();
    };
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    journals(&|crd| {
        let rules = crd.pointer_mut(&format!("{spec}/x-kubernetes-validations")).unwrap();
        rules
            .as_array_mut()
            .unwrap()
            .retain(|rule| rule["message"] != "entries of a journal are never removed or changed");
    });
    let said = check_until(&ledger, Err("lack the rule of spec that entries of a journal are never")).await;
    assert!(
        said.contains("of ledgerjournals.understudy.dev") && said.contains("kubectl apply -f -"),
        "{said}"
    );

    journals(&|crd| {
        let schema = crd.pointer_mut(spec).unwrap();
        schema["properties"].as_object_mut().unwrap().remove("closed");
        schema.as_object_mut().unwrap().remove("x-kubernetes-validations");
    });
    let said = check_until(&ledger, Err("lack the field spec.closed")).await;
    assert!(said.contains("bring them up to date by"), "{said}");
    // Nothing is dropped without a word either.
    ledger.claim(&claim(1, 1, "a")).await.unwrap();
    let error = chain(&append(&ledger, (1, 1, "a"), &[ended()]).await.unwrap_err());
    assert!(error.contains("older than this understudy") && error.contains("spec.closed"), "{error}");
    assert!(ledger.latest(BrokerId(1)).await.unwrap().unwrap().outcome().is_none());

    site.plane.kubectl(&["apply", "-f", "-"], &ours).unwrap();
    check_until(&ledger, Ok("written and read back")).await;
    append(&ledger, (1, 1, "a"), &[ended()]).await.unwrap();
}

/// With the version of what is there, as a replacement needs it.
fn with_version(site: &Site, mut crd: serde_json::Value) -> String {
    let name = "ledgerjournals.understudy.dev";
    let there = site.plane.kubectl(&["get", "crd", name, "-o", "json"], "").unwrap();
    let there: serde_json::Value = serde_json::from_str(&there).unwrap();
    crd["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"].clone();
    crd.to_string()
}

const VERBS: [&str; 3] = ["get", "create", "update"];
