//! The key and trust stores of the listeners that a takeover brings here: opened as Kafka would open them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use jiff::Timestamp;
use kafka::properties::Properties;
use kafka::security::of_broker::{
    StoreFault, shown_by_pem, shown_by_store, trusted_by_pem, trusted_by_store, validity,
};
use recovery::model::BrokerId;
use recovery::ports::Note;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

use super::common::Common;
use super::listeners::{Listener, advertised, bound, is_loopback, list};
use super::problem::Problem;
use super::providers::{Given, resolved};
use super::user::as_user;
use crate::certificate::RENEW_WITHIN;

/// What [`look`] is about: "could not …".
pub(super) const STORES: &str = "open the stores of the listeners that speak TLS";

type Certificate = CertificateDer<'static>;
type Chain = Vec<Certificate>;

/// Tries each as Kafka's user; `None` if no listener speaks TLS.
pub(super) fn look(common: &Common, broker: BrokerId, given: &Given<'_>) -> Option<Result<Note, Problem>> {
    let file = common.rendered(broker).ok()?;
    let secured = secured(&file);
    if secured.is_empty() {
        return None;
    }
    let told = as_user(common.user.as_ref(), || Judge::new(&file, given, Timestamp::now()).all(&secured));
    Some(told.and_then(|told| told.note(secured.len())))
}

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    /// What Kafka does not start with, or nobody can connect with.
    stops: Vec<String>,
    /// What may do harm, or could not be looked at.
    doubts: Vec<String>,
    /// How many certificates were looked at.
    certificates: usize,
}

impl Told {
    /// Listeners that share a store share what is wrong with it.
    fn stop(&mut self, why: String) {
        if !self.stops.contains(&why) {
            self.stops.push(why);
        }
    }

    fn doubt(&mut self, why: String) {
        if !self.doubts.contains(&why) {
            self.doubts.push(why);
        }
    }

    fn note(self, listeners: usize) -> Result<Note, Problem> {
        if !self.stops.is_empty() {
            return Err(Problem::Refused(self.stops.join("; ")));
        }
        let note = Note::new(format!(
            "listeners speak TLS ({listeners}), and Kafka's user can open their key stores ({})",
            self.certificates
        ));
        Ok(self.doubts.into_iter().fold(note, |note, doubt| note.warn([doubt])))
    }
}

/// The bound listeners that speak TLS by Kafka's own engine.
fn secured(file: &Properties) -> Vec<Listener> {
    let engine =
        |l: &Listener| Settings { file, listener: &l.name }.raw("ssl.engine.factory.class").is_some();
    bound(file).into_iter().filter(|l| protocol(file, &l.name).ends_with("SSL") && !engine(l)).collect()
}

/// What a listener speaks: by default what its name says.
fn protocol(file: &Properties, name: &str) -> String {
    let map = file.get("listener.security.protocol.map").unwrap_or_default();
    let mut pairs = list(map).filter_map(|pair| pair.split_once(':'));
    let found = pairs.find(|(of, _)| of.trim().eq_ignore_ascii_case(name));
    found.map_or(name, |(_, protocol)| protocol.trim()).to_ascii_uppercase()
}

/// The listener by which brokers reach each other: Kafka tries its stores against each other when it starts.
fn between_brokers(file: &Properties, listener: &str) -> bool {
    match file.get("inter.broker.listener.name") {
        Some(name) => name.trim().eq_ignore_ascii_case(listener),
        None => file
            .get("security.inter.broker.protocol")
            .is_some_and(|protocol| protocol.trim().eq_ignore_ascii_case(listener)),
    }
}

/// The keys of one listener.
#[derive(Clone, Copy)]
struct Settings<'a> {
    file: &'a Properties,
    listener: &'a str,
}

impl<'a> Settings<'a> {
    /// A value with the key that gives it: one with the listener's name counts more than the plain one.
    fn raw(self, key: &str) -> Option<(String, &'a str)> {
        let own = format!("listener.name.{}.{key}", self.listener.to_ascii_lowercase());
        let of = |key: String| Some((self.file.get(&key)?.trim(), key));
        let (value, key) = of(own).or_else(|| of(key.to_owned()))?;
        Some((key, value))
    }
}

/// What a key names, as Kafka would take it.
enum Setting<T = String> {
    Absent,
    /// It cannot be known here, as with a reference that only Kafka resolves; or is told elsewhere.
    Unknown,
    Known(T),
}

/// A store that is known to be named.
struct Store {
    /// With the key that names it.
    place: String,
    kind: String,
    bytes: Vec<u8>,
}

struct Judge<'a> {
    file: &'a Properties,
    given: &'a Given<'a>,
    now: Timestamp,
    told: Told,
}

impl<'a> Judge<'a> {
    fn new(file: &'a Properties, given: &'a Given<'a>, now: Timestamp) -> Self {
        Self { file, given, now, told: Told::default() }
    }

    fn all(mut self, secured: &[Listener]) -> Told {
        let moved = advertised(self.file).unwrap_or_default();
        let mut seen = BTreeSet::new();
        for listener in secured {
            let settings = Settings { file: self.file, listener: &listener.name };
            let trusted = self.trusted(settings);
            let Some((place, chain)) = self.shown(settings) else { continue };
            seen.insert(place.clone());
            self.dates(settings, &place, &chain);
            let reached = moved.iter().find(|l| l.name.eq_ignore_ascii_case(&listener.name));
            if let Some(reached) = reached.filter(|l| !is_loopback(&l.host)) {
                self.names(settings, &place, &chain, reached);
            }
            if let Some((by, trusted)) = trusted.filter(|_| between_brokers(self.file, &listener.name)) {
                self.chains(settings, &place, &chain, &by, &trusted);
            }
        }
        self.told.certificates = seen.len();
        self.told
    }

    fn setting(&self, settings: Settings<'_>, key: &str) -> Setting {
        match settings.raw(key) {
            None | Some((_, "")) => Setting::Absent,
            Some((_, raw)) => resolved(self.file, raw, self.given)
                .map_or(Setting::Unknown, |value| Setting::Known(value.trim().to_owned())),
        }
    }

    /// What Kafka would show at a listener, with its place.
    fn shown(&mut self, settings: Settings<'_>) -> Option<(String, Chain)> {
        if settings.raw("ssl.keystore.key").is_some() {
            return self.shown_in_line(settings);
        }
        if let Some((chain, _)) = settings.raw("ssl.keystore.certificate.chain") {
            self.told.stop(format!(
                "`{chain}` of listener {} has no `ssl.keystore.key` beside it: Kafka would not start. Add it to \
                 the template",
                settings.listener
            ));
            return None;
        }
        let store = match self.store(settings, "ssl.keystore") {
            Setting::Known(store) => store,
            Setting::Unknown => return None,
            Setting::Absent => return self.shows_nothing(settings),
        };
        let of_key = self.setting(settings, "ssl.key.password");
        let shown = if store.kind == "PEM" {
            shown_by_pem(&store.bytes, &store.bytes, !matches!(of_key, Setting::Absent))
        } else {
            let password = match self.setting(settings, "ssl.keystore.password") {
                Setting::Known(password) => password,
                Setting::Unknown => return None,
                Setting::Absent => return self.has_no_password(settings, &store),
            };
            let of_key = match &of_key {
                Setting::Unknown => return None,
                Setting::Known(password) => Some(password.as_str()),
                Setting::Absent => None,
            };
            shown_by_store(&store.bytes, &password, of_key)
        };
        let shown = shown.map_err(|fault| self.fault(settings, "ssl.keystore", &store, fault)).ok()?;
        Some((store.place, shown))
    }

    /// The same of a key that stands in `server.properties` itself.
    fn shown_in_line(&mut self, settings: Settings<'_>) -> Option<(String, Chain)> {
        let [key, chain] = ["ssl.keystore.key", "ssl.keystore.certificate.chain"];
        let store = self.in_line(settings, "ssl.keystore", key, chain)?;
        let Setting::Known(of_key) = self.setting(settings, key) else { return None };
        let has_password = !matches!(self.setting(settings, "ssl.key.password"), Setting::Absent);
        let shown = shown_by_pem(&store.bytes, of_key.as_bytes(), has_password);
        let shown = shown.map_err(|fault| self.fault(settings, "ssl.keystore", &store, fault)).ok()?;
        Some((store.place, shown))
    }

    /// The certificates that stand in `server.properties` as the value of `certificates`. `given` is the key that has
    /// Kafka look for them there, and in no file named by `of`.
    fn in_line(
        &mut self,
        settings: Settings<'_>,
        of: &str,
        given: &str,
        certificates: &str,
    ) -> Option<Store> {
        let named = |key: &str| settings.raw(key).map_or_else(|| key.to_owned(), |(key, _)| key);
        let (listener, given) = (settings.listener, named(given));
        let beside = ["location", "password"].map(|key| format!("{of}.{key}"));
        if let Some(key) = beside.iter().find(|key| settings.raw(key).is_some()) {
            self.told.stop(format!(
                "`{given}` of listener {listener} cannot stand beside `{}`: Kafka would not start. Take one of them \
                 out of the template",
                named(key)
            ));
            return None;
        }
        match (self.setting(settings, &format!("{of}.type")), self.setting(settings, certificates)) {
            (Setting::Unknown, _) | (_, Setting::Unknown) => None,
            (Setting::Known(kind), Setting::Known(pem)) if kind == "PEM" => {
                let place = format!("`{}`", named(certificates));
                Some(Store { place, kind: "PEM".to_owned(), bytes: pem.into_bytes() })
            }
            (Setting::Known(kind), Setting::Absent) if kind == "PEM" => {
                self.told.stop(format!(
                    "`{given}` of listener {listener} has no `{certificates}` beside it: Kafka would not start. Add \
                     it to the template"
                ));
                None
            }
            _ => {
                self.told.stop(format!(
                    "`{given}` of listener {listener} is for `{of}.type` = PEM alone: Kafka would not start. Set it in \
                     the template"
                ));
                None
            }
        }
    }

    fn shows_nothing<T>(&mut self, Settings { listener, .. }: Settings<'_>) -> Option<T> {
        // One may have been set in the cluster (`kafka-configs`), which nobody can see before Kafka runs.
        self.told.doubt(format!(
            "listener {listener} speaks TLS, and server.properties names no `ssl.keystore.location` for it: unless one \
             is set by `kafka-configs`, nobody could connect. Name its key store in the template"
        ));
        None
    }

    fn has_no_password<T>(&mut self, Settings { listener, .. }: Settings<'_>, store: &Store) -> Option<T> {
        self.told.stop(format!(
            "`ssl.keystore.password` is missing for {} of listener {listener}: Kafka would not start. Add it to the \
             template",
            store.place
        ));
        None
    }

    /// The certificates that a listener trusts, with their place.
    fn trusted(&mut self, settings: Settings<'_>) -> Option<(String, Chain)> {
        let in_line = "ssl.truststore.certificates";
        let store = match settings.raw(in_line) {
            Some(_) => self.in_line(settings, "ssl.truststore", in_line, in_line)?,
            None => match self.store(settings, "ssl.truststore") {
                Setting::Known(store) => store,
                Setting::Absent | Setting::Unknown => return None,
            },
        };
        let trusted = if store.kind == "PEM" {
            trusted_by_pem(&store.bytes)
        } else {
            match self.setting(settings, "ssl.truststore.password") {
                Setting::Unknown => return None,
                Setting::Absent => trusted_by_store(&store.bytes, None),
                Setting::Known(password) => trusted_by_store(&store.bytes, Some(&password)),
            }
        };
        let trusted = trusted.map_err(|fault| self.fault(settings, "ssl.truststore", &store, fault)).ok()?;
        Some((store.place, trusted))
    }

    /// The file that `of`, a key store or a trust store, names.
    fn store(&mut self, settings: Settings<'_>, of: &str) -> Setting<Store> {
        let location = format!("{of}.location");
        let path = match self.setting(settings, &location) {
            Setting::Absent => return Setting::Absent,
            Setting::Unknown => return Setting::Unknown,
            Setting::Known(path) => path,
        };
        let kind = match self.setting(settings, &format!("{of}.type")) {
            Setting::Absent => "JKS".to_owned(),
            Setting::Unknown => return Setting::Unknown,
            Setting::Known(kind) => kind.to_ascii_uppercase(),
        };
        let (key, raw) = settings.raw(&location).unwrap_or((location, ""));
        let place = format!("{path} (`{key}`)");
        if !["JKS", "PKCS12", "PEM"].contains(&kind.as_str()) {
            self.told.doubt(format!(
                "{place} is of type {kind}, which is not looked into: only Kafka can say whether it opens"
            ));
            return Setting::Unknown;
        }
        match std::fs::read(&path) {
            Ok(bytes) => return Setting::Known(Store { place, kind, bytes }),
            Err(error) if raw.contains("${") => self.told.stop(format!(
                "{place} of listener {} cannot be read by Kafka's user here ({error}): Kafka would not start. Put it \
                 there, or correct what the reference resolves to",
                settings.listener
            )),
            // One that is named as it is is told where the files are looked at.
            Err(_) => {}
        }
        Setting::Unknown
    }

    fn fault(&mut self, settings: Settings<'_>, of: &str, store: &Store, fault: StoreFault) {
        let Settings { listener, .. } = settings;
        let place = format!("{} of listener {listener}", store.place);
        let key = |key: &str| settings.raw(key).map_or_else(|| key.to_owned(), |(key, _)| key);
        let (kind, password) = (key(&format!("{of}.type")), key(&format!("{of}.password")));
        let why = match fault {
            StoreFault::Password => format!(
                "does not open with `{password}`: Kafka would not start. Give the one in the template that \
                 `keytool -list` takes"
            ),
            StoreFault::KeyPassword => format!(
                "has a key that does not open with `{}`: Kafka would not start. Give the key's own password in the \
                 template; in PKCS12 it is the store's",
                key("ssl.key.password")
            ),
            StoreFault::Foreign => format!(
                "is neither PKCS12 nor JKS: Kafka would not start. If it is PEM, set `{kind}` = PEM in the template"
            ),
            StoreFault::NoKey => {
                "has no key with a certificate: nobody could connect. Put both in; `keytool -list`, \
                                  or `openssl`, shows what it has"
                    .to_owned()
            }
            StoreFault::NotTogether => {
                "has a key that belongs to another certificate: nobody could connect. Put the \
                                        two together"
                    .to_owned()
            }
            StoreFault::NobodyTrusted => {
                "has no certificate that is trusted: Kafka would not start. Import the \
                                          authority's (`keytool -importcert`)"
                    .to_owned()
            }
            StoreFault::Damaged | StoreFault::Method => {
                return self.told.doubt(format!(
                    "{place} cannot be looked into here: it is damaged, or protected in a way that is not known. Try \
                     it with `keytool -list` as Kafka's user"
                ));
            }
        };
        self.told.stop(format!("{place} {why}"));
    }

    fn dates(&mut self, settings: Settings<'_>, place: &str, chain: &[Certificate]) {
        let known: Vec<_> = chain.iter().filter_map(validity).collect();
        let (Some(from), Some(until)) =
            (known.iter().map(|(from, _)| *from).max(), known.iter().map(|(_, until)| *until).min())
        else {
            return;
        };
        let (now, listener) = (self.now, settings.listener);
        let soon = now.checked_add(RENEW_WITHIN).unwrap_or(Timestamp::MAX);
        if now > until {
            self.told.stop(format!(
                "the certificate in {place}, which listener {listener} shows, expired at {until}, and this host's \
                 clock reads {now:.0}: nobody could connect. Renew it, or set the clock"
            ));
        } else if now < from {
            self.told.stop(format!(
                "the certificate in {place}, which listener {listener} shows, is not valid before {from}, and this \
                 host's clock reads {now:.0}: nobody could connect. Set the clock of this host, or of whoever made it"
            ));
        } else if soon > until {
            self.told.doubt(format!(
                "the certificate in {place}, which listener {listener} shows, expires at {until}: renew it before"
            ));
        }
    }

    /// Clients know the listener by what is advertised.
    fn names(&mut self, settings: Settings<'_>, place: &str, chain: &[Certificate], reached: &Listener) {
        let Some(leaf) = chain.first().and_then(|leaf| ParsedCertificate::try_from(leaf).ok()) else {
            return;
        };
        let host = reached.host.as_str();
        let Ok(name) = host.parse::<IpAddr>().map(ServerName::from).or_else(|_| ServerName::try_from(host))
        else {
            return;
        };
        let Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. })) =
            verify_server_name(&leaf, &name)
        else {
            return;
        };
        let told = |is: &str| {
            format!(
                "the certificate in {place} {is}, and after a takeover listener {} is reached at {host}:{}: clients \
                 that verify the name would refuse it. Have one issued whose SAN has {host} as well",
                settings.listener, reached.port
            )
        };
        if presented.is_empty() {
            return self.told.doubt(told("has no SAN"));
        }
        let told = told(&format!("is for {}", presented.join(", ")));
        let verified =
            settings.raw("ssl.endpoint.identification.algorithm").is_none_or(|(_, by)| !by.is_empty());
        if verified { self.told.stop(told) } else { self.told.doubt(told) }
    }

    fn chains(
        &mut self,
        settings: Settings<'_>,
        place: &str,
        chain: &[Certificate],
        by: &str,
        trusted: &[Certificate],
    ) {
        let [leaf, between @ ..] = chain else { return };
        let Ok(parsed) = ParsedCertificate::try_from(leaf) else { return };
        let mut roots = RootCertStore::empty();
        let all_known = trusted.iter().all(|certificate| roots.add(certificate.clone()).is_ok());
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            u64::try_from(self.now.as_second()).unwrap_or_default(),
        ));
        let algorithms = ring::default_provider().signature_verification_algorithms.all;
        let verified = verify_server_cert_signed_by_trust_anchor(&parsed, &roots, between, now, algorithms);
        let unknown = matches!(verified, Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)));
        if unknown && all_known && !trusted.contains(leaf) {
            self.told.stop(format!(
                "the certificate in {place} comes from no authority in {by}, and brokers reach each other by listener \
                 {}: Kafka would not start. Put the authority there, or what lies between into the key store",
                settings.listener
            ));
        }
    }
}

#[cfg(test)]
mod tests;
