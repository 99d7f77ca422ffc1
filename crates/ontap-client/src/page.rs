//! Lists: every page is read, and a list that is not whole is not handed out.

use std::collections::BTreeSet;

use reqwest::Url;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::sleep;

use crate::client::{Call, Client};
use crate::error::{Error, Request, Result};
use crate::job::after_change;
use crate::query::Query;
use crate::send::{Answer, Ask, Repeat, failure_in, fault_in};
use crate::value;

/// More pages than any list has. What goes on beyond it goes in circles.
const MOST_PAGES: usize = 10_000;

#[derive(Debug, Deserialize)]
struct Page {
    #[serde(default)]
    records: Option<Vec<Value>>,
    #[serde(default)]
    num_records: Value,
    #[serde(default, rename = "_links", deserialize_with = "value::part")]
    links: Links,
}

impl Page {
    /// How many records ONTAP says that there are, if it says so; or what it says in the place of a number.
    fn said(&self) -> Result<Option<usize>, String> {
        match value::number(&self.num_records) {
            Ok(None) if !self.num_records.is_null() => Err(self.num_records.to_string()),
            read => read.map_err(|_| self.num_records.to_string()),
        }
    }
}

/// Where the command line, and REST beside a list, say that something went wrong.
const COMPLAINTS: [&str; 5] = ["cli_output", "warning", "warnings", "message", "messages"];

/// As much of a complaint as is told.
const COMPLAINT_CHARS: usize = 200;

/// What an answer says beside its list, that a list which is whole has no reason to say.
fn complaint_in(body: &Value) -> Option<String> {
    let is_said = |value: &&Value| match value {
        Value::Null => false,
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    let said = |key: &str| body.get(key).filter(is_said).map(|value| format!("`{key}`: {value}"));
    let complaint = COMPLAINTS.into_iter().find_map(said)?;
    Some(complaint.chars().take(COMPLAINT_CHARS).collect())
}

#[derive(Debug, Default, Deserialize)]
struct Links {
    #[serde(default)]
    next: Option<Link>,
}

#[derive(Debug, Deserialize)]
struct Link {
    href: String,
}

/// Where an answer goes on.
fn next_of(body: &Value) -> Option<&str> {
    body.get("_links")?.get("next")?.get("href")?.as_str()
}

impl Client {
    /// Where the next page is. Only ever on the server that was asked: another one would be sent the
    /// password.
    fn follow(&self, answer: &Answer, href: &str) -> Result<Url> {
        let stray =
            || answer.not_understood(format!("the next page is not below /api of this server: {href}"));
        let url = self.shared.origin.join(href).map_err(|_| stray())?;
        let ours = url.origin() == self.shared.origin.origin()
            && url.username().is_empty()
            && url.path().starts_with("/api/");
        if ours { Ok(url) } else { Err(stray()) }
    }
}

/// The pages that were read, so that a link back is noticed.
struct Trail(BTreeSet<String>);

impl Trail {
    fn of(url: &Url) -> Self {
        Self(BTreeSet::from([url.to_string()]))
    }

    fn step(&mut self, answer: &Answer, url: &Url) -> Result<()> {
        if self.0.len() >= MOST_PAGES || !self.0.insert(url.to_string()) {
            return Err(answer.not_understood("the pages go in circles"));
        }
        Ok(())
    }
}

impl Call<'_> {
    /// All records of a list.
    ///
    /// `ignore_unknown_fields` is set, so that a field of a newer release is no error on an older one.
    pub(crate) async fn list<T: DeserializeOwned>(&self, path: &[&str], query: Query) -> Result<Vec<T>> {
        self.list_plain(path, query.raw("ignore_unknown_fields", "true")).await
    }

    /// All records of a list of the command line, which has no parameters of its own but `fields`.
    pub(crate) async fn list_plain<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: Query,
    ) -> Result<Vec<T>> {
        let query = match self.client.shared.page_size {
            Some(size) => query.raw("max_records", size.to_string()),
            None => query,
        };
        let mut url = self.client.url(path, &query)?;
        let mut trail = Trail::of(&url);
        let mut records = Vec::new();
        loop {
            let answer = self.send(Ask::get(url)).await?;
            let page: Page = Page::deserialize(&answer.body).map_err(|e| answer.not_understood(e))?;
            let next = self.take(&answer, page, &mut records)?;
            let Some(href) = next else { return Ok(records) };
            url = self.client.follow(&answer, &href)?;
            trail.step(&answer, &url)?;
        }
    }

    /// Takes the records of a page, and says where the next one is.
    fn take<T: DeserializeOwned>(
        &self,
        answer: &Answer,
        page: Page,
        records: &mut Vec<T>,
    ) -> Result<Option<String>> {
        let request = answer.request.clone();
        let reason = fault_in(&answer.body).or_else(|| failure_in(&answer.body));
        let said = page.said();
        let Some(came) = page.records else {
            if records.is_empty() {
                // Not a list that was cut short, but a refusal.
                answer.check()?;
            }
            return match reason {
                Some(fault) => Err(Error::Partial { request, got: records.len(), why: fault.to_string() }),
                None => Err(answer.not_understood("no `records` in it")),
            };
        };
        let got = records.len() + came.len();
        if let Some(fault) = reason {
            return Err(Error::Partial { request, got, why: fault.to_string() });
        }
        let miscounted = match said {
            Ok(said) => said.filter(|said| *said != came.len()).map(|said| said.to_string()),
            Err(odd) => Some(odd),
        };
        if let Some(said) = miscounted {
            let why = format!("a page of {said} records holds {}", came.len());
            return Err(Error::Partial { request, got, why });
        }
        // "None" beside a complaint is no list; and the command line complains of what it could not ask.
        if (came.is_empty() || request.is_the_command_lines())
            && let Some(why) = complaint_in(&answer.body)
        {
            return Err(Error::Partial { request, got, why });
        }
        for (n, record) in came.into_iter().enumerate() {
            let read =
                T::deserialize(&record).map_err(|e| answer.not_understood(format!("record {n}: {e}")))?;
            records.push(read);
        }
        Ok(page.links.next.map(|link| link.href))
    }

    /// The one record that the query matches, if any.
    pub(crate) async fn find<T: DeserializeOwned>(&self, path: &[&str], query: Query) -> Result<Option<T>> {
        let mut all = self.list(path, query).await?;
        if all.len() > 1 {
            let what = format!(
                "/{}: {} records match where one was expected; name its SVM",
                path.join("/"),
                all.len()
            );
            return Err(Error::usage(what));
        }
        Ok(all.pop())
    }

    /// One object by its key.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &[&str], query: Query) -> Result<T> {
        let url = self.client.url(path, &query.raw("ignore_unknown_fields", "true"))?;
        self.send(Ask::get(url)).await?.whole()?.read()
    }

    /// Deletes all records that match, and says how many ONTAP counted. ONTAP reads them and goes through
    /// them one by one for 15 s, and then hands out a link to go on with.
    ///
    /// A record that goes by itself meanwhile may end its round with "not found" while others are still
    /// there. So the list is read then, and it is done only if nothing is left.
    pub(crate) async fn delete_matching(&self, path: &[&str], query: Query) -> Result<u64> {
        let first = self.client.url(path, &query)?;
        let (mut url, mut trail) = (first.clone(), Trail::of(&first));
        let (mut deleted, mut rounds, mut touched) = (0, 0, false);
        loop {
            let ask = Ask::delete(url, Repeat::Safe);
            let request = ask.request();
            let answer = match self.send(ask).await {
                Ok(answer) => answer,
                Err(error) if error.is_of_what_is_gone() => {
                    let left: Result<Vec<Value>> = self.list(path, query.clone()).await;
                    if left.map_err(after_change(request.clone()))?.is_empty() {
                        return Ok(deleted);
                    }
                    rounds += 1;
                    self.next_round(rounds, &request, error).await?;
                    (url, trail, touched) = (first.clone(), Trail::of(&first), true);
                    continue;
                }
                Err(error) if touched || may_be_of_a_later_record(&error) => {
                    return Err(after_change(request)(error));
                }
                Err(error) => return Err(error),
            };
            touched = true;
            if !answer.body.is_null() {
                let page = Page::deserialize(&answer.body).map_err(|e| answer.not_understood(e))?;
                deleted += page.said().ok().flatten().unwrap_or_default() as u64;
            }
            if let Some(fault) = fault_in(&answer.body).or_else(|| failure_in(&answer.body)) {
                let got = usize::try_from(deleted).unwrap_or(usize::MAX);
                return Err(Error::Partial { request: answer.request, got, why: fault.to_string() });
            }
            self.finish(&answer).await?;
            let Some(href) = next_of(&answer.body) else { return Ok(deleted) };
            url = self.client.follow(&answer, href)?;
            trail.step(&answer, &url)?;
        }
    }

    /// Waits before the next round, if there is time for one.
    async fn next_round(&self, rounds: u32, request: &Request, last: Error) -> Result<()> {
        let wait = self.client.shared.retry.wait(rounds);
        if wait >= self.until.left() {
            let so_far = format!("{rounds} rounds, and records are left");
            return Err(after_change(request.clone())(self.late(request, Some(so_far), Some(last))));
        }
        sleep(wait).await;
        Ok(())
    }
}

/// Whether a refusal of a deletion of many may be about one that came after others, which are gone then. It
/// is not if it is about the login, the load or the request itself, which ONTAP looks at before it begins.
fn may_be_of_a_later_record(error: &Error) -> bool {
    let about_the_request = |code| code == 2 || (262_177..=262_255).contains(&code);
    error.refusal().is_some_and(|refusal| match refusal.status {
        401 | 429 => false,
        400 => !refusal.code.is_some_and(about_the_request),
        _ => true,
    })
}
