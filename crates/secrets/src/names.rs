//! Which settings are secret, by their names: what others repeat of them is hidden.

/// Whether a setting with this name may hold a secret: `ssl.keystore.password`, `api_token`, `passwd`.
#[must_use]
pub fn names_a_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words = ["pass", "secret", "token", "credential", "jaas", "community"];
    let leaf = name.rsplit(['.', '_', '-']).next();
    words.iter().any(|word| name.contains(word)) || leaf == Some("key")
}

/// The secrets in settings: whole values by their names, and what values hold, such as
/// `-Djavax.net.ssl.keyStorePassword=…` or the password of a JAAS login.
#[must_use]
pub fn in_settings<'s>(settings: impl IntoIterator<Item = (&'s str, &'s str)>) -> Vec<&'s str> {
    let of = |(name, value): (&str, &'s str)| {
        let whole = names_a_secret(name).then_some(value);
        let words = value.split(|c: char| c.is_whitespace() || matches!(c, ';' | ','));
        whole.into_iter().chain(in_words(words)).collect::<Vec<_>>()
    };
    settings.into_iter().flat_map(of).collect()
}

/// The secrets in the words of a command: `--password=…`, `-Dx.password=…`, `password:…`, `--password …`.
#[must_use]
pub fn in_words<'s>(words: impl IntoIterator<Item = &'s str>) -> Vec<&'s str> {
    let (mut found, mut follows) = (Vec::new(), false);
    for word in words {
        let pair = word.split_once(['=', ':']).filter(|(name, _)| names_a_secret(name));
        let value = pair.map(|(_, value)| value).or_else(|| follows.then_some(word));
        found.extend(value.map(|value| value.trim_matches(['"', '\''])).filter(|value| !value.is_empty()));
        follows = word.starts_with('-') && !word.contains('=') && names_a_secret(word);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_by_the_names_of_what_holds_them() {
        let settings = [
            ("ssl.keystore.password", "one"),
            ("ssl.keystore.location", "/etc/keystore"),
            ("ssl.keystore.key", "two"),
            ("sasl.jaas.config", "x.PlainLoginModule required username=\"u\" password=\"three\";"),
            ("KAFKA_OPTS", "-Xint -Djavax.net.ssl.keyStorePassword=four -Da=b"),
        ];
        let found = in_settings(settings);
        let jaas = settings[3].1;
        assert_eq!(found, ["one", "two", jaas, "three", "four"]);
        let words =
            ["/bin/stop", "--password", "one", "-v", "--api-token=two", "--passwords-from", "--user=u"];
        assert_eq!(in_words(words), ["one", "two", "--user=u"]);
    }
}
