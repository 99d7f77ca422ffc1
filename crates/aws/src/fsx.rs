//! Where the ONTAP of FSx is managed: a storage virtual machine or a file system is named, and FSx tells its endpoint.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_fsx::Client;
use aws_sdk_fsx::types::{StorageVirtualMachine, StorageVirtualMachineLifecycle};
use recovery::ports::BoxError;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::Ec2Config;
use crate::client::sdk_config;
use crate::fault::{FSX, Fault};
use crate::own::is_id;

/// What the endpoints were that this process has asked for: a name of FSx's stays for as long as what it names.
static FOUND: Mutex<BTreeMap<FsxConfig, Arc<OnceCell<String>>>> = Mutex::new(BTreeMap::new());

/// Which ONTAP of FSx: one of `svm`, `tag` and `file_system`. Credentials come as EC2's do, and FSx is asked once, at
/// the first use.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FsxConfig {
    /// The id of a storage virtual machine, such as `svm-0a1b2c3d4e5f60718`, for `vsadmin` or another account of it.
    pub svm: Option<String>,
    /// A tag that one storage virtual machine of the region has and no other, such as `Name=kafka`.
    pub tag: Option<String>,
    /// The id of a file system, such as `fs-0a1b2c3d4e5f60718`, for `fsxadmin` or another account of it.
    pub file_system: Option<String>,
    /// The region, such as `eu-central-1`. Without it: `AWS_REGION`, the profile, or the region of this instance.
    pub region: Option<String>,
    /// The URL of FSx's API, where it is not the region's public one, such as that of a VPC endpoint.
    pub endpoint: Option<String>,
}

/// What is asked for.
enum Which<'c> {
    Svm(&'c str),
    Tag(&'c str, &'c str),
    FileSystem(&'c str),
}

impl FsxConfig {
    /// Every bad value, as `key: what is wrong`.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let service = Ec2Config { region: self.region.clone(), endpoint: self.endpoint.clone() };
        let mut problems = service.problems("fsx");
        problems.extend(self.which().err());
        problems
    }

    fn which(&self) -> Result<Which<'_>, String> {
        match (&self.svm, &self.tag, &self.file_system) {
            (Some(svm), None, None) if is_id(svm, "svm-") => Ok(Which::Svm(svm)),
            (Some(svm), None, None) => Err(format!(
                "fsx.svm: `{svm}` is not the id of a storage virtual machine, such as svm-0a1b2c3d4e5f60718"
            )),
            (None, Some(tag), None) => {
                let tag = tag.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
                tag.map(|(key, value)| Which::Tag(key, value)).ok_or_else(|| {
                    let given = self.tag.as_deref().unwrap_or_default();
                    format!("fsx.tag: `{given}` is not key=value, such as Name=kafka")
                })
            }
            (None, None, Some(id)) if is_id(id, "fs-") => Ok(Which::FileSystem(id)),
            (None, None, Some(id)) => Err(format!(
                "fsx.file_system: `{id}` is not the id of a file system, such as fs-0a1b2c3d4e5f60718"
            )),
            _ => Err("fsx: give one of svm, tag and file_system".to_owned()),
        }
    }

    /// The name of its management endpoint, such as `svm-….fs-….fsx.eu-central-1.amazonaws.com`. `limit`: how long FSx
    /// may take.
    ///
    /// # Errors
    /// FSx is not reached, refuses, or tells of no such thing: in one sentence, with what to do.
    pub async fn management(&self, limit: Duration) -> Result<String, BoxError> {
        let cell = {
            let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(found.entry(self.clone()).or_default())
        };
        let name = cell.get_or_try_init(|| async {
            // The SDK's futures are deep: without a box every caller's layout would have all of them in it.
            let ask: Pin<Box<dyn Future<Output = Result<String, String>> + Send>> =
                Box::pin(async { self.ask(&self.client().await?).await });
            timeout(limit, ask).await.unwrap_or_else(|_| Err(self.words("its API", &Fault::Late { limit })))
        });
        Ok(name.await?.clone())
    }

    async fn client(&self) -> Result<Client, String> {
        let service = Ec2Config { region: self.region.clone(), endpoint: self.endpoint.clone() };
        let config = sdk_config(&service, None).await;
        config.map(|config| Client::new(&config)).map_err(|fault| self.words("its API", &fault))
    }

    async fn ask(&self, client: &Client) -> Result<String, String> {
        let management = match self.which()? {
            Which::FileSystem(id) => {
                let told = client.describe_file_systems().file_system_ids(id).send().await;
                let told = told.map_err(|error| self.words("DescribeFileSystems", &Fault::from(error)))?;
                let ontap = told.file_systems().iter().find_map(|one| one.ontap_configuration());
                let ontap = ontap.ok_or_else(|| {
                    format!("{id} is no file system of FSx for ONTAP: correct ontap.fsx.file_system")
                })?;
                let endpoint = ontap.endpoints().and_then(|endpoints| endpoints.management());
                endpoint.and_then(|endpoint| endpoint.dns_name()).map(str::to_owned)
            }
            Which::Svm(id) => {
                let told = client.describe_storage_virtual_machines().storage_virtual_machine_ids(id).send();
                let told = told
                    .await
                    .map_err(|error| self.words("DescribeStorageVirtualMachines", &Fault::from(error)))?;
                told.storage_virtual_machines().first().and_then(management)
            }
            Which::Tag(key, value) => {
                let all = client.describe_storage_virtual_machines().into_paginator().items().send();
                let all = all.collect::<Result<Vec<_>, _>>().await;
                let all =
                    all.map_err(|error| self.words("DescribeStorageVirtualMachines", &Fault::from(error)))?;
                management(self.tagged(&all, key, value)?)
            }
        };
        management.ok_or_else(|| {
            format!(
                "FSx tells no management endpoint of {self} yet: wait until it is created, or look at it in the console"
            )
        })
    }

    /// The only one that has the tag and is not on its way out.
    fn tagged<'s>(
        &self,
        all: &'s [StorageVirtualMachine],
        key: &str,
        value: &str,
    ) -> Result<&'s StorageVirtualMachine, String> {
        let has = |svm: &&StorageVirtualMachine| {
            svm.tags().iter().any(|tag| tag.key() == Some(key) && tag.value() == Some(value))
                && svm.lifecycle() != Some(&StorageVirtualMachineLifecycle::Deleting)
        };
        let found: Vec<_> = all.iter().filter(has).collect();
        match found[..] {
            [one] => Ok(one),
            [] => Err(format!(
                "no storage virtual machine in {} has the tag {key}={value}: correct ontap.fsx.tag or ontap.fsx.region",
                self.where_asked()
            )),
            _ => {
                let ids = found.iter().filter_map(|svm| svm.storage_virtual_machine_id());
                let ids = ids.collect::<Vec<_>>().join(", ");
                Err(format!("{ids} have the tag {key}={value}: set ontap.fsx.svm instead"))
            }
        }
    }

    fn where_asked(&self) -> String {
        let region = self.region.clone().unwrap_or_else(|| "its default region".to_owned());
        match &self.endpoint {
            Some(endpoint) => format!("{region} (at {endpoint})"),
            None => region,
        }
    }

    fn words(&self, call: &str, fault: &Fault) -> String {
        fault.told(call, &FSX, &self.where_asked())
    }
}

/// The name of its management endpoint, once it has one.
fn management(svm: &StorageVirtualMachine) -> Option<String> {
    Some(svm.endpoints()?.management()?.dns_name()?.to_owned())
}

impl fmt::Display for FsxConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.svm, &self.tag, &self.file_system) {
            (Some(id), ..) | (None, None, Some(id)) => f.write_str(id),
            (None, Some(tag), _) => write!(f, "the SVM with the tag {tag}"),
            (None, None, None) => f.write_str("an SVM of FSx"),
        }
    }
}

#[cfg(test)]
mod tests;
