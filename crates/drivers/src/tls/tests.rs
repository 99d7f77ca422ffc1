//! Both sides, with certificates of an authority that a test makes.

use std::path::Path;

use fakes::tls::Authority;
use tokio::net::TcpListener;

use super::*;

/// A directory with the files of an agent at 127.0.0.1.
fn files(authority: &Authority) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), authority);
    dir
}

fn write(dir: &Path, authority: &Authority) {
    let own = authority.issue(&["127.0.0.1"]);
    for (name, text) in [("agent.crt", &own.pem), ("agent.key", &own.key), ("ca.crt", &authority.pem)] {
        fs::write(dir.join(name), text).unwrap();
    }
}

fn tls(dir: &Path, more: &str) -> Tls {
    let path = |name: &str| dir.join(name).display().to_string();
    let text = format!(
        "certificate = {:?}\nkey = {:?}\nca = {:?}\n{more}",
        path("agent.crt"),
        path("agent.key"),
        path("ca.crt")
    );
    let config: TlsConfig = toml::from_str(&text).unwrap();
    assert_eq!(config.problems(), Vec::<String>::new());
    Tls::new(config)
}

/// What each side says of the other: the server, by which DNS names it knows the client; and what the client says.
async fn meet(
    server: &Tls,
    client: &Tls,
    host: &str,
) -> (Result<Option<Vec<String>>, String>, Result<(), String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let accept = async { server.accept(listener.accept().await.unwrap().0).await.map(|(_, names)| names) };
    let connect = async { client.connect(TcpStream::connect(at).await.unwrap(), host).await.map(drop) };
    tokio::join!(accept, connect)
}

#[tokio::test]
async fn agents_of_one_authority_know_each_other_by_the_address_of_the_url() {
    let authority = Authority::new("agents");
    let (one, other) = (files(&authority), files(&authority));
    let (one, other) = (tls(one.path(), ""), tls(other.path(), ""));
    assert_eq!(meet(&one, &other, "127.0.0.1").await, (Ok(Some(vec![])), Ok(())));
    let (_, client) = meet(&one, &other, "10.0.0.7").await;
    assert!(client.unwrap_err().contains("not valid for"), "another host's certificate");
    assert!(
        meet(&one, &other, "no name").await.1.unwrap_err().contains("no name that a certificate can have")
    );
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_trusted_by_neither() {
    let (own, foreign) = (Authority::new("agents"), Authority::new("others"));
    let (one, other) = (files(&own), files(&foreign));
    let (server, client) = meet(&tls(one.path(), ""), &tls(other.path(), ""), "127.0.0.1").await;
    assert!(server.is_err() && client.unwrap_err().contains("UnknownIssuer"));
}

#[tokio::test]
async fn files_are_read_anew_and_bad_ones_leave_what_there_was() {
    let authority = Authority::new("agents");
    let dir = files(&authority);
    let (one, other) = (tls(dir.path(), ""), files(&authority));
    let other = tls(other.path(), "");
    assert_eq!(meet(&one, &other, "127.0.0.1").await.0, Ok(Some(vec![])));
    let age = |tls: &Tls| tls.last().as_mut().unwrap().0 -= 2 * EVERY;
    fs::write(dir.path().join("agent.crt"), "no certificate").unwrap();
    age(&one);
    assert_eq!(meet(&one, &other, "127.0.0.1").await.0, Ok(Some(vec![])), "by what it held before");
    assert!(one.look().await.unwrap_err().contains("agent.crt has no certificate as PEM"));
    // Another authority altogether.
    write(dir.path(), &Authority::new("new"));
    age(&one);
    assert!(meet(&one, &other, "127.0.0.1").await.1.is_err());
}

#[tokio::test]
async fn what_is_wrong_with_the_files_is_told_with_their_names() {
    let authority = Authority::new("agents");
    let dir = files(&authority);
    let other = authority.issue(&["127.0.0.1"]);
    for (file, text, said) in [
        ("agent.key", other.key.as_str(), "agent.key do not go together"),
        (
            "agent.key",
            "-----BEGIN ENCRYPTED PRIVATE KEY-----",
            "agent.key has no key as PEM that can be used",
        ),
        ("ca.crt", "", "ca.crt has no certificate as PEM"),
    ] {
        write(dir.path(), &authority);
        fs::write(dir.path().join(file), text).unwrap();
        let why = tls(dir.path(), "").look().await.unwrap_err();
        assert!(why.starts_with("agent.tls: ") && why.contains(said), "{why}");
    }
    fs::remove_file(dir.path().join("agent.crt")).unwrap();
    assert!(tls(dir.path(), "").look().await.unwrap_err().contains("agent.crt cannot be read"));
}

#[tokio::test]
async fn who_shows_a_certificate_is_told_by_all_dns_names_in_it() {
    let authority = Authority::new("agents");
    let (one, other) = (files(&authority), files(&authority));
    let own = authority.issue(&["ada.example.com", "10.0.0.9", "*.example.com"]);
    fs::write(other.path().join("agent.crt"), &own.pem).unwrap();
    fs::write(other.path().join("agent.key"), &own.key).unwrap();
    let names = vec!["ada.example.com".to_owned(), "*.example.com".to_owned()];
    assert_eq!(
        meet(&tls(one.path(), ""), &tls(other.path(), ""), "127.0.0.1").await,
        (Ok(Some(names)), Ok(()))
    );
}

#[test]
fn paths_are_absolute() {
    let relative: TlsConfig = toml::from_str("certificate = \"a\"\nkey = \"/k\"\nca = \"/c\"").unwrap();
    assert_eq!(relative.problems(), ["certificate: `a` must be an absolute path"]);
}

#[tokio::test]
async fn a_session_does_not_outlive_the_certificate_that_began_it() {
    let authority = Authority::new("agents");
    let (one, other) = (files(&authority), files(&authority));
    let (mut server, client) = (tls(one.path(), ""), tls(other.path(), ""));
    assert_eq!(meet(&server, &client, "127.0.0.1").await.0, Ok(Some(vec![])));
    // TLS itself still goes by this machine's clock, as it goes by no clock where a session goes on.
    server.now = || UnixTime::since_unix_epoch(Duration::from_secs(132 * 365 * 86_400));
    let refused = meet(&server, &client, "127.0.0.1").await.0.unwrap_err();
    assert!(refused.contains("expired"), "{refused}");
}
