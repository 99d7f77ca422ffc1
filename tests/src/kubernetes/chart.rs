//! The chart, and the real helm.

use anyhow::Result;

use super::{Kubernetes, Programs};
use crate::lab::Lab;
use crate::shell;

/// Where the chart is.
pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/helm/understudy");

/// Runs helm, as an administrator of `kubernetes` where there is one, and returns what it prints. What it keeps is the
/// story's own.
///
/// # Errors
/// When it fails: what it said of that.
pub fn helm(lab: &Lab, kubernetes: Option<&Kubernetes>, arguments: &[&str]) -> Result<String> {
    let program = Programs::find()?.path("helm");
    let home = lab.kept("helm")?.display().to_string();
    let config = kubernetes.map(|cluster| cluster.files.join("admin.kubeconfig").display().to_string());
    let variables = [
        format!("HELM_CACHE_HOME={home}/cache"),
        format!("HELM_CONFIG_HOME={home}/config"),
        format!("HELM_DATA_HOME={home}/data"),
        format!("KUBECONFIG={}", config.unwrap_or_else(|| "/dev/null".to_owned())),
    ];
    let words = variables.iter().map(String::as_str).chain([program.as_str()]);
    shell::run("env", words.chain(arguments.iter().copied()))
}
