//! Secrets that systemd hands to a unit: `LoadCredential=`.

use std::path::{Path, PathBuf};

/// Where systemd puts a unit's credentials, as it tells the unit.
const DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// Why there is no credential of a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoCredential {
    /// It cannot be one's name.
    #[error("`{0}` is no name of a credential: write one word without `/`, as in LoadCredential=")]
    Name(String),
    /// Nobody has handed one over.
    #[error(
        "{DIRECTORY} is not set, as systemd does it for a unit with credentials: add \
         `LoadCredential={0}:/path/of/the/secret` to [Service] of the agent's unit; by hand, as root, set \
         {DIRECTORY}=/run/credentials/understudy.service"
    )]
    NotSet(String),
    /// Others were handed over.
    #[error(
        "the agent's unit has no credential {0}: add `LoadCredential={0}:/path/of/the/secret` to its [Service] and \
         restart it"
    )]
    Missing(String),
}

/// The file with the credential `name`, which is there.
///
/// # Errors
/// When there is none, with the line that the unit lacks.
pub fn credential(name: &str) -> Result<PathBuf, NoCredential> {
    in_directory(std::env::var_os(DIRECTORY).map(PathBuf::from).as_deref(), name)
}

fn in_directory(directory: Option<&Path>, name: &str) -> Result<PathBuf, NoCredential> {
    if name.is_empty() || name.starts_with('.') || name.contains(|c: char| c == '/' || c.is_control()) {
        return Err(NoCredential::Name(name.to_owned()));
    }
    let directory = directory.ok_or_else(|| NoCredential::NotSet(name.to_owned()))?;
    let path = directory.join(name);
    if path.exists() { Ok(path) } else { Err(NoCredential::Missing(name.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_found_by_its_name_and_what_is_missing_is_told_with_the_line_to_add() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(in_directory(Some(here), "Cargo.toml"), Ok(here.join("Cargo.toml")));
        let line = "`LoadCredential=fence:/path/of/the/secret`";
        let missing = in_directory(Some(here), "fence").unwrap_err().to_string();
        assert!(missing.contains("no credential fence") && missing.contains(line), "{missing}");
        let unset = in_directory(None, "fence").unwrap_err().to_string();
        assert!(unset.contains("CREDENTIALS_DIRECTORY is not set") && unset.contains(line), "{unset}");
        for name in ["", "../Cargo.toml", ".", "a/b", "a\nb"] {
            assert_eq!(in_directory(Some(here), name), Err(NoCredential::Name(name.to_owned())));
        }
    }
}
