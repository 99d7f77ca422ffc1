//! What each node remembers of who may access which export policy, by the passthrough. A rule that was
//! changed is asked by a node only once it remembers nothing of the client: an entry lives 300 s at least (60
//! s if it denies), an hour by default, and is used once more while it is renewed.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::{Value, json};

use super::cli::{Privilege, path, wants_privilege};
use crate::client::{Call, Client};
use crate::error::{Error, Result};
use crate::query::Query;
use crate::send::Ask;
use crate::value::{self, open_enum};

open_enum! {
    /// What an entry leads to.
    Polarity {
        /// The client is let in.
        Positive = "positive",
        /// It is not.
        Negative = "negative",
    }
}

/// What a node remembers of a client.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Cached {
    /// The client.
    #[serde(default, deserialize_with = "value::text")]
    pub address: Option<String>,
    /// What it leads to. `None`: ONTAP does not say, so it may let the client in.
    #[serde(default)]
    pub polarity: Option<Polarity>,
    /// The node that remembers.
    #[serde(default, deserialize_with = "value::text")]
    pub node: Option<String>,
    /// The SVM.
    #[serde(default, deserialize_with = "value::text")]
    pub vserver: Option<String>,
    /// The export policy.
    #[serde(default, deserialize_with = "value::text")]
    pub policy: Option<String>,
}

impl Cached {
    /// What it says of itself that is not what was asked for.
    fn strays(&self, (svm, node, policy): (&str, &str, &str)) -> Option<String> {
        let of = [(&self.node, node), (&self.vserver, svm), (&self.policy, policy)];
        let other = |(is, asked): (&Option<String>, &str)| {
            let is = is.as_deref().filter(|is| !is.eq_ignore_ascii_case(asked))?;
            Some(format!("an entry of {is}, where {asked} was asked for"))
        };
        of.into_iter().find_map(other)
    }
}

/// What ONTAP answered to an order to flush, where it refused nothing. Neither is a proof: read the entry
/// back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlushAnswer {
    /// It counted one thing or more that it did, and complained of nothing: the only form of "done" that is
    /// documented of the passthrough.
    Counted,
    /// The same, of the wider order: the node was told to forget everything of the SVM.
    CountedForSvm,
    /// Something else, as far as it can be shown: `{}`, `num_records: 0` (which was recorded where nothing
    /// was done), an output that begins with `Error`.
    Unclear(String),
}

const COMMAND: &str = "vserver export-policy access-cache";

/// The answer to a command whose output nobody has recorded.
fn answer(body: &Value) -> FlushAnswer {
    let counted = body.get("num_records").and_then(|n| n.as_u64().or_else(|| n.as_str()?.parse().ok()));
    let output = body.get("cli_output").and_then(Value::as_str).unwrap_or_default();
    let complains = output.trim_start().to_ascii_lowercase().starts_with("error");
    if counted.is_some_and(|counted| counted > 0) && !complains {
        return FlushAnswer::Counted;
    }
    FlushAnswer::Unclear(body.to_string().chars().take(200).collect())
}

impl Client {
    /// Makes one node forget who may access what has this export policy, so that a changed rule is asked at
    /// once. Where ONTAP does not know that command for this account, the node forgets everything of the SVM
    /// instead (`vserver export-policy cache flush`, advanced privilege), unless this client is
    /// [sparing others](Self::sparing_others). It has to be told to each node by itself. ONTAP 9.6.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::is_not_visible`] if the account may not do it.
    pub async fn flush_access_cache(&self, svm: &str, node: &str, policy: &str) -> Result<FlushAnswer> {
        let call = self.call();
        let of_policy = json!({ "node": node, "vserver": svm, "policy": policy });
        let first = call.flush(&format!("{COMMAND} flush"), of_policy, Privilege::Admin).await;
        match first {
            Err(error) if wants_privilege(&error) && !error.is_unconfirmed() && !self.spares_others => {
                let of_svm = json!({ "node": node, "vserver": svm, "cache": "access" });
                let second =
                    call.flush("vserver export-policy cache flush", of_svm, Privilege::Advanced).await;
                // That the wider command is not to be had either says less than why the narrow one is not.
                let second = second.map_err(|other| if wants_privilege(&other) { error } else { other })?;
                Ok(if second == FlushAnswer::Counted { FlushAnswer::CountedForSvm } else { second })
            }
            first => first,
        }
    }

    /// Makes one node forget one client of an export policy, and nothing of anybody else. `Ok` also if it
    /// remembers nothing of it. ONTAP 9.6.
    ///
    /// # Errors
    /// As [`flush_access_cache`](Self::flush_access_cache).
    pub async fn flush_access_cache_entry(
        &self,
        svm: &str,
        node: &str,
        policy: &str,
        client: IpAddr,
    ) -> Result<FlushAnswer> {
        let of_client =
            json!({ "node": node, "vserver": svm, "policy": policy, "address": client.to_string() });
        match self.call().flush(&format!("{COMMAND} flush"), of_client, Privilege::Admin).await {
            Err(error) if error.is_no_entry() => Ok(FlushAnswer::Unclear(error.to_string())),
            answer => answer,
        }
    }

    /// What a node remembers of a client; `None`: nothing, so that the rules decide when it comes next. ONTAP
    /// 9.6 or older.
    ///
    /// # Errors
    /// As every call, see [`Error`]; [`Error::is_not_visible`] if the account may not see it;
    /// [`Error::Decode`] if what is shown is of another node, SVM or policy.
    pub async fn access_cache_entry(
        &self,
        svm: &str,
        node: &str,
        policy: &str,
        client: IpAddr,
    ) -> Result<Option<Cached>> {
        let query = Query::new().equal("node", node)?.equal("vserver", svm)?.equal("policy", policy)?;
        let query = query.maybe_address("address", Some(&client.to_string()))?;
        let (call, command) = (self.call(), path(COMMAND));
        let request = Ask::get(self.url(&command, &query)?).request();
        let mut rows = call.list_plain(&command, query.clone().fields(&["polarity"])).await;
        // A release that does not know the field shows the entry without it.
        if rows
            .as_ref()
            .is_err_and(|error| !error.is_no_entry() && !error.is_permission() && wants_privilege(error))
        {
            rows = call.list_plain(&command, query).await;
        }
        let rows: Vec<Cached> = match rows {
            Err(error) if error.is_no_entry() => Vec::new(),
            rows => rows?,
        };
        if let Some(what) = rows.iter().find_map(|row| row.strays((svm, node, policy))) {
            return Err(Error::Decode { request, what });
        }
        let is_his = |row: &Cached| row.address.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
        let mut his = rows.into_iter().filter(|row| is_his(row).is_none_or(|of| of.to_canonical() == client));
        let first = his.next();
        // Of several the one that lets it in counts.
        Ok(his.fold(first, |worst, row| match &worst {
            Some(Cached { polarity: Some(Polarity::Negative), .. }) | None => Some(row),
            Some(_) => worst,
        }))
    }
}

impl Call<'_> {
    async fn flush(&self, command: &str, body: Value, privilege: Privilege) -> Result<FlushAnswer> {
        let url = self.client.url(&path(command), &privilege.on(Query::new()))?;
        Ok(answer(&self.change(Ask::post(url, body)).await?.body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_counted_and_no_complaint_is_taken_for_done() {
        let counted =
            [json!({ "num_records": 1 }), json!({ "num_records": 2, "cli_output": "2 entries flushed" })];
        for body in counted {
            assert_eq!(answer(&body), FlushAnswer::Counted, "{body}");
        }
        for body in [
            json!({}),
            json!([]),
            Value::Null,
            json!({ "num_records": 0 }),
            json!({ "num_records": 0, "cli_output": "" }),
            json!({ "cli_output": "" }),
            json!({ "cli_output": "Error: command failed: not supported" }),
            json!({ "num_records": 1, "cli_output": " error: node is not reachable" }),
        ] {
            assert!(matches!(answer(&body), FlushAnswer::Unclear(_)), "{body}");
        }
    }
}
