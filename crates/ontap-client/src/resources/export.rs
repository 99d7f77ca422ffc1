//! Export policies and their rules: who may reach a volume at all.
//!
//! A policy without rules lets nobody in. The first rule that matches a client decides. Rules are asked at
//! every operation, but through a cache on each node, so that a change may bite late: see
//! [`Client::access_cache_entry`], and verify from the client's side.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::created;
use crate::client::{Call, Client};
use crate::error::{Error, Result};
use crate::job::after_change;
use crate::query::Query;
use crate::send::{Ask, Repeat};
use crate::value::{self, Reference};

/// Whom a rule is for: a host name, an address, a subnet, `@netgroup` or `.domain`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClientMatch {
    /// As ONTAP writes it.
    #[serde(rename = "match")]
    pub pattern: String,
}

/// A rule of an export policy.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ExportRule {
    /// Its place among the policy's rules, from 1 on. It changes when rules are put before it.
    #[serde(deserialize_with = "value::key_number")]
    pub index: u64,
    /// Whom it is for.
    #[serde(default, deserialize_with = "value::list")]
    pub clients: Vec<ClientMatch>,
    /// `any`, `nfs`, `nfs3`, `nfs4`, `cifs`, `flexcache`.
    #[serde(default, deserialize_with = "value::list")]
    pub protocols: Vec<String>,
    /// Who may read: `any`, `none`, `never`, `sys`, `krb5`, `krb5i`, `krb5p`, `ntlm`.
    #[serde(default, deserialize_with = "value::list")]
    pub ro_rule: Vec<String>,
    /// Who may write; words as in `ro_rule`.
    #[serde(default, deserialize_with = "value::list")]
    pub rw_rule: Vec<String>,
    /// Who may be root; words as in `ro_rule`.
    #[serde(default, deserialize_with = "value::list")]
    pub superuser: Vec<String>,
    /// What an unknown user is taken for.
    #[serde(default, deserialize_with = "value::text")]
    pub anonymous_user: Option<String>,
}

impl ExportRule {
    /// Whether the rule is for these clients and no other. Addresses are compared as such, names without
    /// case.
    #[must_use]
    pub fn is_for(&self, clients: &[&str]) -> bool {
        let have: BTreeSet<_> = self.clients.iter().map(|client| canonical(&client.pattern)).collect();
        have == clients.iter().copied().map(canonical).collect()
    }

    fn patterns(&self) -> Vec<&str> {
        self.clients.iter().map(|client| client.pattern.as_str()).collect()
    }
}

/// ONTAP may write an address in another way than it was given.
fn canonical(pattern: &str) -> String {
    let pattern = pattern.trim().to_ascii_lowercase();
    pattern.parse::<IpAddr>().map_or(pattern, |address| address.to_string())
}

/// An export policy.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ExportPolicy {
    /// Its key: a number, not a UUID.
    #[serde(deserialize_with = "value::key_number")]
    pub id: u64,
    /// Its name, one of a kind in its SVM.
    #[serde(deserialize_with = "value::key")]
    pub name: String,
    /// Its SVM.
    #[serde(default, deserialize_with = "value::part")]
    pub svm: Reference,
}

/// A rule to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewExportRule {
    /// Whom it is for.
    pub clients: Vec<ClientMatch>,
    /// For which protocols; empty: any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub protocols: Vec<String>,
    /// Who may read.
    pub ro_rule: Vec<String>,
    /// Who may write.
    pub rw_rule: Vec<String>,
    /// Who may be root; empty: ONTAP's default, any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub superuser: Vec<String>,
    /// Its place; `None`: the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
}

impl NewExportRule {
    /// A rule that lets these clients read and write over NFSv4 with Unix credentials, root included.
    #[must_use]
    pub fn nfs4(clients: &[&str]) -> Self {
        let sys = || vec!["sys".to_owned()];
        let clients = matches(clients);
        let (ro_rule, rw_rule, superuser) = (sys(), sys(), sys());
        Self { clients, protocols: vec!["nfs4".to_owned()], ro_rule, rw_rule, superuser, index: None }
    }
}

fn matches(clients: &[&str]) -> Vec<ClientMatch> {
    clients.iter().map(|client| ClientMatch { pattern: (*client).to_owned() }).collect()
}

const POLICIES: &[&str] = &["protocols", "nfs", "export-policies"];
const POLICY: &[&str] = &["id", "name", "svm"];
const RULE: &[&str] = &["index", "clients", "protocols", "ro_rule", "rw_rule", "superuser", "anonymous_user"];

impl Client {
    /// The export policy of this name. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`].
    pub async fn export_policy(&self, svm: &str, name: &str) -> Result<Option<ExportPolicy>> {
        self.call().export_policy(svm, name).await
    }

    /// Makes an export policy with these rules, in their order, and returns it as read back. Without rules it
    /// lets nobody in. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::is_duplicate`] if there is one of this name.
    pub async fn create_export_policy(
        &self,
        svm: &str,
        name: &str,
        rules: &[NewExportRule],
    ) -> Result<ExportPolicy> {
        let call = self.call();
        let mut body = json!({ "svm": { "name": svm }, "name": name });
        if !rules.is_empty() {
            body["rules"] = json!(rules);
        }
        let ask = Ask::post(self.url(POLICIES, &Query::new())?, body);
        let request = ask.request();
        call.change(ask).await?;
        let found = call.export_policy(svm, name).await.map_err(after_change(request.clone()))?;
        created(request, found)
    }

    /// Deletes an export policy; `Ok` also if there is none. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`]; refused while a volume uses it.
    pub async fn delete_export_policy(&self, id: u64) -> Result<()> {
        let id = id.to_string();
        self.call().remove(&[POLICIES, &[&id]].concat()).await
    }

    /// The rules of a policy in the order in which they are asked. Read from the rules themselves, since the
    /// policy's own view is cut off at 500 of them. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`].
    pub async fn export_rules(&self, policy: u64) -> Result<Vec<ExportRule>> {
        self.call().export_rules(policy).await
    }

    /// Makes a rule, and returns its index where ONTAP tells it. With the index of another rule it is put
    /// before that one. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::is_duplicate`] if the policy has the same rule already.
    pub async fn create_export_rule(&self, policy: u64, rule: &NewExportRule) -> Result<Option<u64>> {
        let id = policy.to_string();
        let query = Query::new().raw("return_records", "true");
        let url = self.url(&[POLICIES, &[&id, "rules"]].concat(), &query)?;
        let answer = self.call().change(Ask::post(url, json!(rule))).await?;
        let index = answer.body.pointer("/records/0/index").or_else(|| answer.body.get("index"));
        Ok(index.and_then(whole_number))
    }

    /// Makes a rule be for these clients and no other, in one step: there is no moment at which neither the
    /// old nor the new list holds. Returns all rules of the policy, as read back in one answer. ONTAP 9.6.
    ///
    /// `rule` is the rule as the caller has read it, here or in the policy's own view, which may leave fields
    /// out. An index alone is no key, since a rule that is put before it moves it: so the rules are read
    /// before each attempt, and nothing is sent unless this one is still for the same clients. Between that
    /// and the change there is a moment that ONTAP offers no lock for; what happened in it shows when the
    /// rules are read back.
    ///
    /// An attempt that hung may be taken up after the one that was confirmed, and set the same clients again
    /// over a later change: so read the rules once more when the attempt limit has passed since.
    ///
    /// To take a broker over, do not put the new owner in the place of the old one: leave nobody whom the old
    /// owner could be, see to it that this bites and break the locks, and only then let the new owner in.
    /// Reading back shows what is configured, and each node may still go by its access cache: see
    /// [`access_cache_entry`](Self::access_cache_entry).
    ///
    /// # Errors
    /// As every call, see [`Error`]. [`Error::NotApplied`] if afterwards the rule is another one, is not for
    /// these clients, or if another rule names a client that was to lose its access here; a rule for a subnet
    /// or netgroup that the client is in is not found out. [`Error::Usage`] without clients, since ONTAP
    /// would not know what is meant, and if the rule is no longer as it was read.
    pub async fn replace_clients(
        &self,
        policy: u64,
        rule: &ExportRule,
        clients: &[&str],
    ) -> Result<Vec<ExportRule>> {
        if clients.is_empty() {
            return Err(Error::usage("an export rule must have a client; to let nobody in, delete the rule"));
        }
        let (id, at) = (policy.to_string(), rule.index.to_string());
        let url = self.url(&[POLICIES, &[&id, "rules", &at]].concat(), &Query::new())?;
        let body = json!({ "clients": matches(clients) });
        let ask = Ask { only_once: true, ..Ask::patch(url, body, Repeat::Safe) };
        let (call, request) = (self.call(), ask.request());
        let (mut attempts, mut is_open) = (0, false);
        let mut was = rule.clone();
        loop {
            let in_doubt = |error| if is_open { after_change(request.clone())(error) } else { error };
            let rules = call.export_rules(policy).await.map_err(in_doubt)?;
            if is_open && replaced(&rules, &was, clients).is_ok() {
                return Ok(rules);
            }
            let Some(same) = rules.iter().find(|now| now.index == rule.index && now.is_for(&rule.patterns()))
            else {
                let what =
                    format!("rule {at} of export policy {id} is no longer as it was read; read it again");
                return Err(in_doubt(Error::usage(what)));
            };
            was.clone_from(same);
            attempts += 1;
            match call.change(ask.clone()).await {
                Ok(_) => break,
                Err(error) if error.is_passing() => {
                    let error = in_doubt(error);
                    is_open |= error.is_unconfirmed();
                    call.pause(attempts, error).await?;
                }
                Err(error) => return Err(in_doubt(error)),
            }
        }
        let rules = call.export_rules(policy).await.map_err(after_change(request.clone()))?;
        match replaced(&rules, &was, clients) {
            Ok(()) => Ok(rules),
            Err(what) => Err(Error::NotApplied { request, what }),
        }
    }
}

impl Call<'_> {
    async fn export_policy(&self, svm: &str, name: &str) -> Result<Option<ExportPolicy>> {
        let query = Query::new().equal("svm.name", svm)?.equal("name", name)?.fields(POLICY);
        self.find(POLICIES, query).await
    }

    async fn export_rules(&self, policy: u64) -> Result<Vec<ExportRule>> {
        let id = policy.to_string();
        let rules = self.list(&[POLICIES, &[&id, "rules"]].concat(), Query::new().fields(RULE)).await;
        let mut rules: Vec<ExportRule> = match rules {
            // "entry doesn't exist", which some releases answer where there is no rule. A policy that there
            // is not has a code of its own.
            Err(error) if error.is_no_entry() => Vec::new(),
            rules => rules?,
        };
        rules.sort_by_key(|rule| rule.index);
        Ok(rules)
    }
}

/// Whether `was` is now for `clients`, and nobody who was to lose access has it by another rule; if not, why.
fn replaced(rules: &[ExportRule], was: &ExportRule, clients: &[&str]) -> Result<(), String> {
    let index = was.index;
    let Some(is) = rules.iter().find(|rule| rule.index == index) else {
        return Err(format!("there is no rule {index} any more"));
    };
    if !is.is_for(clients) {
        return Err(format!("rule {index} is for {}", is.patterns().join(", ")));
    }
    if (ExportRule { clients: was.clients.clone(), ..is.clone() }) != *was {
        return Err(format!("rule {index} is another rule now, or was changed meanwhile"));
    }
    let kept: BTreeSet<_> = clients.iter().copied().map(canonical).collect();
    let lost: BTreeSet<_> =
        was.patterns().into_iter().map(canonical).filter(|one| !kept.contains(one)).collect();
    for rule in rules.iter().filter(|rule| rule.index != index) {
        if let Some(still) = rule.patterns().into_iter().find(|one| lost.contains(&canonical(one))) {
            return Err(format!("rule {} is for {still}", rule.index));
        }
    }
    Ok(())
}

fn whole_number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}
