//! DIGEST-MD5 (RFC 2831), the client's side: the one mechanism with a password that ZooKeeper's server has.
//!
//! MD5 is what the protocol asks for; who listens can guess a weak password from it. It belongs within TLS, as every
//! login here.

use md5::{Digest, Md5};

/// What ZooKeeper's server calls itself: `service/host`, the same on every server.
const URI: &str = "zookeeper/zk-sasl-md5";
/// This is the first message under the server's nonce.
const COUNT: &str = "00000001";

/// What is sent, and what the server must answer.
pub(super) struct Proof {
    pub(super) message: String,
    signed: String,
}

/// Proves the password, on the server's challenge, with a nonce that was never used before.
///
/// # Errors
/// Why that challenge is none.
pub(super) fn prove(challenge: &[u8], user: &str, password: &str, own: &str) -> Result<Proof, String> {
    prove_for(URI, challenge, (user, password), own)
}

fn prove_for(uri: &str, challenge: &[u8], login: (&str, &str), own: &str) -> Result<Proof, String> {
    let challenge = std::str::from_utf8(challenge).map_err(|_| "its challenge is not text")?;
    let directives = directives(challenge).ok_or("its challenge is cut short")?;
    let find = |name: &str| directives.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let nonce = find("nonce").filter(|nonce| !nonce.is_empty()).ok_or("its challenge has no nonce")?;
    if find("algorithm") != Some("md5-sess") {
        return Err("its challenge is not of DIGEST-MD5".to_owned());
    }
    // Without any, `auth` is meant.
    if find("qop").is_some_and(|offered| offered.split(',').all(|one| one.trim() != "auth")) {
        return Err("it takes no login that protects the login alone (`qop=auth`)".to_owned());
    }
    let (user, password) = login;
    let realm = find("realm").unwrap_or_default();
    let secret = [encoded(user), encoded(realm), encoded(password)].join(&b':');
    let session = [Md5::digest(secret).as_slice(), format!(":{nonce}:{own}").as_bytes()].concat();
    let signed = |second: String| {
        let (first, second) = (hex(&session), hex(second.as_bytes()));
        hex(format!("{first}:{nonce}:{COUNT}:{own}:auth:{second}").as_bytes())
    };
    let response = signed(format!("AUTHENTICATE:{uri}"));
    let charset = if find("charset").is_some() { "charset=utf-8," } else { "" };
    let (user, realm, shown) = (quoted(user), quoted(realm), quoted(nonce));
    let message = format!(
        "{charset}username={user},realm={realm},nonce={shown},nc={COUNT},cnonce={},digest-uri={},maxbuf=65536,\
         response={response},qop=auth",
        quoted(own),
        quoted(uri)
    );
    Ok(Proof { message, signed: signed(format!(":{uri}")) })
}

impl Proof {
    /// Whether the server knows the password as well.
    ///
    /// # Errors
    /// It does not show that.
    pub(super) fn check(&self, answer: &[u8]) -> Result<(), String> {
        let answer = std::str::from_utf8(answer).ok().and_then(directives).unwrap_or_default();
        let proven = answer.iter().any(|(key, value)| key == "rspauth" && *value == self.signed);
        if proven { Ok(()) } else { Err("it does not show that it knows the password itself".to_owned()) }
    }
}

/// What is hashed of a name or password: ISO 8859-1 where that has all of it, by the RFC.
fn encoded(text: &str) -> Vec<u8> {
    let latin: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    latin.unwrap_or_else(|| text.as_bytes().to_vec())
}

fn hex(bytes: &[u8]) -> String {
    Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// `name=value` or `name="value"`, with commas between them; `None` where a quote has no end.
pub(crate) fn directives(text: &str) -> Option<Vec<(String, String)>> {
    let mut all = Vec::new();
    let mut rest = text.trim_start_matches([',', ' ']);
    while !rest.is_empty() {
        let (name, value) = rest.split_once('=')?;
        let (value, after) = match value.trim_start().strip_prefix('"') {
            Some(inner) => unquoted(inner)?,
            None => {
                let (value, after) = value.split_once(',').unwrap_or((value, ""));
                (value.trim().to_owned(), after)
            }
        };
        all.push((name.trim().to_ascii_lowercase(), value));
        rest = after.trim_start_matches([',', ' ']);
    }
    Some(all)
}

/// What is within the quotes, and what comes after them.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHALLENGE: &str = "realm=\"elwood.innosoft.com\",nonce=\"OA6MG9tEQGm2hh\",qop=\"auth\",algorithm=md5-sess,\
                             charset=utf-8";

    /// The example of RFC 2831, section 4.
    #[test]
    fn the_example_of_the_standard_is_met() {
        let proof = prove_for(
            "imap/elwood.innosoft.com",
            CHALLENGE.as_bytes(),
            ("chris", "secret"),
            "OA6MHXh6VqTrRk",
        )
        .unwrap();
        assert!(proof.message.contains("response=d388dad90d4bbd760a152321f2143af7,"), "{}", proof.message);
        assert!(proof.message.starts_with("charset=utf-8,username=\"chris\",realm=\"elwood.innosoft.com\","));
        proof.check(b"rspauth=ea40f60335c427b5527b84dbabcdfffd").unwrap();
        assert!(
            proof.check(b"rspauth=ea40f60335c427b5527b84dbabcdfffe").unwrap_err().contains("does not show")
        );
        assert!(proof.check(b"").is_err());
    }

    #[test]
    fn a_name_with_quotes_is_sent_in_quotes_and_hashed_without() {
        assert_eq!(quoted(r#"a"b\c"#), r#""a\"b\\c""#);
        let read = directives(r#"username="a\"b\\c",nc=1 , x="y""#).unwrap();
        let pairs: Vec<_> = read.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("username", r#"a"b\c"#), ("nc", "1"), ("x", "y")]);
        assert_eq!(encoded("é"), [0xe9]);
        assert_eq!(encoded("é€"), "é€".as_bytes());
    }

    #[test]
    fn a_challenge_that_is_none_is_refused() {
        for (challenge, why) in [
            ("realm=\"r\",algorithm=md5-sess", "no nonce"),
            ("nonce=\"n\"", "not of DIGEST-MD5"),
            ("nonce=\"n\",algorithm=md5-sess,qop=\"auth-conf,auth-int\"", "qop=auth"),
            ("nonce=\"n", "cut short"),
            ("", "no nonce"),
        ] {
            let said = prove(challenge.as_bytes(), "kafka", "secret", "own").err().unwrap_or_default();
            assert!(said.contains(why), "{challenge}: {said}");
        }
    }
}
