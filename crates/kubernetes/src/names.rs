//! Names as Kubernetes has them.

use std::path::Path;

/// What is wrong with where a section says that objects and credentials are, as `key: what is wrong`.
pub(crate) fn place_problems(namespace: Option<&str>, kubeconfig: Option<&Path>) -> Vec<String> {
    let namespace = namespace.filter(|name| !is_label(name, 63));
    let kubeconfig = kubeconfig.filter(|path| !path.is_absolute());
    let namespace =
        namespace.map(|name| format!("namespace: `{name}` is not a namespace's name, such as kafka"));
    let kubeconfig = kubeconfig
        .map(|path| format!("kubeconfig: `{}` is not absolute; write the whole path", path.display()));
    namespace.into_iter().chain(kubeconfig).collect()
}

/// Whether it is a label of a DNS name, of `most` characters at most.
pub(crate) fn is_label(text: &str, most: usize) -> bool {
    let legal = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let dash = text.starts_with('-') || text.ends_with('-');
    !text.is_empty() && text.len() <= most && text.bytes().all(legal) && !dash
}

/// Whether it is the name of an object that has a DNS name, such as a node.
pub(crate) fn is_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|part| is_label(part, 253))
}

/// Whether it is the name of a label of objects, such as `statefulset.kubernetes.io/pod-name`.
pub(crate) fn is_label_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() <= 63
        && name.chars().all(legal)
        && ends(name.chars().next())
        && ends(name.chars().next_back())
        && prefix.is_none_or(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_what_is_none() {
        assert!(is_name("ip-10-0-0-1.eu-central-1.compute.internal") && is_name("node-a"));
        assert!(!is_name("Node_A") && !is_name("") && !is_name("a..b") && !is_name("-a"));
        assert!(is_label("kafka-1", 63) && !is_label("kafka.1", 63) && !is_label("kafka", 4));
        assert!(is_label_key("statefulset.kubernetes.io/pod-name") && is_label_key("Broker_1"));
        assert!(!is_label_key("/a") && !is_label_key("a/") && !is_label_key("a/b/c") && !is_label_key("a=b"));
    }
}
