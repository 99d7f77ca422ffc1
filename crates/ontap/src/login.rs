//! The way to ONTAP: what is configured, and the client made of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws::FsxConfig;
use ontap_client::{Auth, Client, Fingerprint, Tls};
use schemars::JsonSchema;
use serde::Deserialize;

use drivers::certificate::CertificateFile;
use drivers::off_path::off_path;
use recovery::ports::BoxError;

/// How long FSx may take to tell where an SVM is managed; it is asked once.
const FIND_LIMIT: Duration = Duration::from_secs(10);

/// How long reading the files may take.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// An ONTAP cluster, and the account to use there.
///
/// By default its certificate must come from an authority that this host trusts. Secrets are read from their
/// files anew for every act.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OntapConfig {
    /// The address of its management LIF, such as `https://cluster1-mgmt`; ONTAP 9.12.1 or newer. It takes one of `url`
    /// and `fsx`.
    #[serde(default)]
    pub url: Option<String>,
    /// Which ONTAP of Amazon FSx it is, in place of an address: AWS's API tells that.
    #[serde(default)]
    pub fsx: Option<FsxConfig>,
    /// The account. It needs the application `http`, and a role as `docs/ontap.md` lists it for the fence.
    #[serde(default)]
    pub user: Option<String>,
    /// A file with its password. One newline at its end is not part of it.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// A file with a client certificate in PEM, in place of user and password; its common name is the
    /// account.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// A file with the certificate's key in PEM.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// A file with the authority that ONTAP's certificate must come from, in PEM.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// The SHA-256 of ONTAP's certificate, as `openssl x509 -fingerprint -sha256` prints it: no other one is
    /// trusted.
    #[serde(default)]
    pub pin: Option<String>,
}

impl OntapConfig {
    /// Where it is, for people to read, and to compare: as `url` has it, or what FSx knows it by.
    #[must_use]
    pub fn place(&self) -> String {
        match (&self.url, &self.fsx) {
            (Some(url), _) => url.trim_end_matches('/').to_owned(),
            (None, Some(fsx)) => format!("{fsx} of FSx"),
            (None, None) => String::new(),
        }
    }

    /// The files with certificates.
    pub fn certificates(&self) -> impl Iterator<Item = CertificateFile> + '_ {
        let authorities = self.ca.iter().map(|file| CertificateFile::authorities(file));
        authorities.chain(self.certificate.iter().map(|file| CertificateFile::chain(file)))
    }

    /// A client that uses this account, for commands that read or prepare the storage. Reads the files with
    /// the secrets; connects to nothing yet. `deadline`: how long each of its calls may take.
    ///
    /// # Errors
    /// Every bad value, as `ontap.key: what is wrong`; a file that cannot be read within 5 s; what the client
    /// does not take.
    pub async fn connect(&self, deadline: Duration) -> Result<Client, BoxError> {
        let login = Login::of(self).map_err(|problems| problems.join("; "))?;
        login.client(deadline).await
    }
}

/// Of each file with a secret its length and when it was last written; `None`: that cannot be read. Tells
/// whether somebody has changed one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stamp(Vec<Option<(u64, SystemTime)>>);

#[cfg(test)]
impl Stamp {
    pub(crate) fn of_size(bytes: u64) -> Self {
        Self(vec![Some((bytes, SystemTime::UNIX_EPOCH))])
    }
}

/// Who to be, and whom to trust. Paths only: secrets are read anew for every act.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    /// [`OntapConfig::place`].
    name: String,
    place: Place,
    trust: Trust,
    account: Account,
}

#[derive(Debug, Clone)]
enum Place {
    Url(String),
    Fsx(FsxConfig),
}

#[derive(Debug, Clone)]
enum Trust {
    System,
    Ca(PathBuf),
    Pin(Fingerprint),
}

#[derive(Debug, Clone)]
enum Account {
    Password { user: String, file: PathBuf },
    Certificate { chain: PathBuf, key: PathBuf },
}

impl Login {
    /// What is configured, or what is wrong with it, as `key: what is wrong`.
    pub(crate) fn of(config: &OntapConfig) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let place = place(config).map_err(|said| problems.extend(said));
        let files = [
            ("ca", &config.ca),
            ("password_file", &config.password_file),
            ("certificate", &config.certificate),
            ("key", &config.key),
        ];
        for (name, file) in files {
            if file.as_ref().is_some_and(|path| !path.is_absolute()) {
                // Not repeated: somebody may have written the secret itself.
                problems.push(format!("ontap.{name}: is not an absolute path"));
            }
        }
        let trust = trust(config).map_err(|why| problems.push(why));
        let account = account(config).map_err(|why| problems.push(why));
        match (place, trust, account, problems.is_empty()) {
            (Ok(place), Ok(trust), Ok(account), true) => {
                Ok(Self { name: config.place(), place, trust, account })
            }
            _ => Err(problems),
        }
    }

    /// Where ONTAP is, as configured.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Finds out where it is managed, the first time, reads the files and makes a client. Connects to no ONTAP yet.
    pub(crate) async fn client(&self, deadline: Duration) -> Result<Client, BoxError> {
        let url = match &self.place {
            Place::Url(url) => url.clone(),
            Place::Fsx(fsx) => format!("https://{}", fsx.management(FIND_LIMIT.min(deadline)).await?),
        };
        let login = self.clone();
        let what = format!("reading the login for {}", self.name);
        off_path(&what, READ_LIMIT, move || login.load(&url, deadline)).await?
    }

    /// What the files with the secrets are like now. One that hangs is as one that cannot be read.
    pub(crate) async fn stamp(&self) -> Stamp {
        let files = match &self.account {
            Account::Password { file, .. } => vec![file.clone()],
            Account::Certificate { chain, key } => vec![chain.clone(), key.clone()],
        };
        let count = files.len();
        let of = |file: &PathBuf| {
            let found = fs::metadata(file).ok()?;
            Some((found.len(), found.modified().ok()?))
        };
        let what = format!("looking at the secrets for {}", self.name);
        let stamps = off_path(&what, READ_LIMIT, move || files.iter().map(of).collect()).await;
        Stamp(stamps.unwrap_or_else(|_| vec![None; count]))
    }

    fn load(&self, url: &str, deadline: Duration) -> Result<Client, BoxError> {
        let tls = match &self.trust {
            Trust::System => Tls::SystemRoots,
            Trust::Ca(file) => Tls::PrivateCa { pem: read(file)? },
            Trust::Pin(pin) => Tls::Pinned(*pin),
        };
        let auth = match &self.account {
            Account::Password { user, file } => {
                let password = read(file)?;
                let password = password.strip_suffix('\n').unwrap_or(&password);
                let password = password.strip_suffix('\r').unwrap_or(password);
                Auth::Basic { user: user.clone(), password: password.to_owned().into() }
            }
            Account::Certificate { chain, key } => {
                Auth::Certificate { chain_pem: read(chain)?, key_pem: read(key)?.into() }
            }
        };
        let builder = Client::builder(url, auth).tls(tls).deadline(deadline).app("understudy");
        Ok(builder.build()?)
    }
}

fn place(config: &OntapConfig) -> Result<Place, Vec<String>> {
    match (&config.url, &config.fsx) {
        (Some(url), None) => {
            url_problem(url).map_or_else(|| Ok(Place::Url(url.clone())), |why| Err(vec![why]))
        }
        (None, Some(fsx)) => {
            let problems: Vec<_> = fsx.problems().into_iter().map(|why| format!("ontap.{why}")).collect();
            if problems.is_empty() { Ok(Place::Fsx(fsx.clone())) } else { Err(problems) }
        }
        (Some(_), Some(_)) => Err(vec!["ontap.fsx: there is a url as well; choose one of them".to_owned()]),
        (None, None) => Err(vec!["ontap.url: is missing; on FSx for ONTAP `fsx` will do".to_owned()]),
    }
}

fn url_problem(url: &str) -> Option<String> {
    let example = "write https:// and the management LIF, and nothing else";
    // What is not understood is not repeated: it may hold a password.
    let Ok(parsed) = reqwest::Url::parse(url) else {
        return Some(format!("ontap.url: not an address; {example}"));
    };
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Some("ontap.url: a login does not belong into it; use user and password_file".to_owned());
    }
    let bare = matches!(parsed.path(), "" | "/") && parsed.query().is_none() && parsed.fragment().is_none();
    (parsed.scheme() != "https" || !parsed.has_host() || !bare).then(|| format!("ontap.url: {example}"))
}

fn trust(config: &OntapConfig) -> Result<Trust, String> {
    match (&config.ca, &config.pin) {
        (None, None) => Ok(Trust::System),
        (Some(ca), None) => Ok(Trust::Ca(ca.clone())),
        (None, Some(pin)) => {
            Fingerprint::parse(pin).map(Trust::Pin).map_err(|error| format!("ontap.pin: {error}"))
        }
        (Some(_), Some(_)) => Err("ontap.pin: there is a ca as well; choose one of them".to_owned()),
    }
}

fn account(config: &OntapConfig) -> Result<Account, String> {
    match (&config.user, &config.password_file, &config.certificate, &config.key) {
        (Some(user), Some(file), None, None) => {
            Ok(Account::Password { user: user.clone(), file: file.clone() })
        }
        (None, None, Some(chain), Some(key)) => {
            Ok(Account::Certificate { chain: chain.clone(), key: key.clone() })
        }
        _ => Err("ontap.user: give user and password_file, or certificate and key".to_owned()),
    }
}

fn read(path: &Path) -> Result<String, BoxError> {
    fs::read_to_string(path).map_err(|error| format!("{} could not be read: {error}", path.display()).into())
}
