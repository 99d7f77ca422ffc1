//! Which ONTAP and which SVM to provision: what the options say, else the only one that the configuration
//! names.

use std::path::{Path, PathBuf};

use crate::config::FenceConfig;
use ontap::OntapConfig;

use super::sites::sites;
use crate::UsageError;
use crate::cli::{Global, Provision};
use crate::config::Config;

/// Where to go, and as whom.
#[derive(Debug)]
pub(super) struct Login {
    pub(super) ontap: OntapConfig,
    pub(super) svm: String,
}

/// Reads the configuration only if something is left to it.
///
/// # Errors
/// [`UsageError`] if neither options nor configuration say it; the configuration's own problems.
pub(super) fn login(global: &Global, options: &Provision) -> anyhow::Result<Login> {
    if let (Some(url), Some(svm)) = (&options.url, &options.svm) {
        return Ok(Login { ontap: given(options, url)?, svm: svm.clone() });
    }
    if options.url.is_some() {
        let why = "--svm: is missing; with --url nothing is taken from the configuration";
        return Err(UsageError(why.to_owned()).into());
    }
    let config = Config::load(&global.config)?;
    let named = named(&config);
    let mut systems: Vec<&OntapConfig> = Vec::new();
    for (ontap, _) in &named {
        if !systems.contains(&ontap) {
            systems.push(ontap);
        }
    }
    let ontap = match systems[..] {
        [one] => one.clone(),
        [] => {
            let why = "--url: is missing, and the configuration names no ONTAP; give --url, --user, --password-file and --svm";
            return Err(UsageError(why.to_owned()).into());
        }
        ref several => {
            let why = format!(
                "--url: is missing, and the configuration names {} logins of ONTAP; give --url, --user, --password-file and \
                 --svm",
                several.len()
            );
            return Err(UsageError(why).into());
        }
    };
    let svm = match &options.svm {
        Some(svm) => svm.clone(),
        None => only_svm(&named)?,
    };
    Ok(Login { ontap, svm })
}

fn only_svm(named: &[(OntapConfig, String)]) -> Result<String, UsageError> {
    let mut svms: Vec<&str> = named.iter().map(|(_, svm)| svm.as_str()).collect();
    svms.sort_unstable();
    svms.dedup();
    match svms[..] {
        [one] => Ok(one.to_owned()),
        _ => Err(UsageError(format!(
            "--svm: is missing, and the configuration names several: {}",
            svms.join(", ")
        ))),
    }
}

/// Every ONTAP and SVM in the configuration: of grants, and of fences.
fn named(config: &Config) -> Vec<(OntapConfig, String)> {
    let granted = sites(config).0.into_iter().map(|site| (site.ontap, site.svm));
    let fences = config.fences.values().flatten().filter_map(|fence| match fence {
        FenceConfig::OntapExport(export) => Some((export.ontap.clone(), export.svm.clone())),
        _ => None,
    });
    granted.chain(fences).collect()
}

fn given(options: &Provision, url: &str) -> Result<OntapConfig, UsageError> {
    let absolute = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
    Ok(OntapConfig {
        url: Some(url.to_owned()),
        fsx: None,
        user: options.user.clone(),
        password_file: absolute(&options.password_file)?,
        certificate: None,
        key: None,
        ca: absolute(&options.ca)?,
        pin: options.pin.clone(),
    })
}

fn absolute(path: &Path) -> Result<PathBuf, UsageError> {
    std::path::absolute(path).map_err(|error| UsageError(format!("{}: {error}", path.display())))
}
