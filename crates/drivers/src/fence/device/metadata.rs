//! What a fence agent says of itself: XML on standard output, for the action `metadata`.

/// Whether `metadata` has `<action name="off" …>`.
pub(crate) fn lists_off(metadata: &str) -> bool {
    tags(metadata, "action").any(|tag| attribute(tag, "name") == Some("off"))
}

/// Whether the agent cuts a host off its storage or its network, and leaves it running: fabric fencing, as by
/// `fence_scsi`, `fence_mpath` or a switch's port. Such an agent has its hosts let in again at their start, and says so
/// by `automatic="1"` of the action `on`.
pub(crate) fn is_fabric(metadata: &str) -> bool {
    let mut on = tags(metadata, "action").filter(|tag| attribute(tag, "name") == Some("on"));
    on.any(|tag| attribute(tag, "automatic").is_some_and(is_yes))
}

/// The default of a parameter, by its name with underscores.
pub(crate) fn default_of<'m>(metadata: &'m str, parameter: &str) -> Option<&'m str> {
    let (_, rest) = metadata.split("<parameter ").skip(1).find_map(|rest| {
        let (tag, _) = rest.split_once('>')?;
        let name = attribute(tag, "name")?;
        (name.replace('-', "_") == parameter).then_some((name, rest))
    })?;
    let (body, _) = rest.split_once("</parameter>")?;
    tags(body, "content").find_map(|tag| attribute(tag, "default"))
}

/// As the agents themselves read a switch.
pub(crate) fn is_yes(value: &str) -> bool {
    matches!(value.trim().to_ascii_lowercase().as_str(), "1" | "yes" | "on" | "true")
}

/// The inside of each `<NAME …>`.
fn tags<'m>(text: &'m str, name: &'m str) -> impl Iterator<Item = &'m str> {
    let inside = text.split('<').filter_map(move |tag| tag.strip_prefix(name)?.split_once('>'));
    inside.map(|(tag, _)| tag.trim_end_matches('/')).filter(|tag| tag.starts_with(char::is_whitespace))
}

fn attribute<'m>(tag: &'m str, name: &str) -> Option<&'m str> {
    tag.match_indices(name).find_map(|(at, _)| {
        let before = tag[..at].chars().next_back();
        let value = tag[at + name.len()..].trim_start().strip_prefix('=')?.trim_start();
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (value, _) = value[1..].split_once(quote)?;
        before.is_none_or(char::is_whitespace).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the published library writes it.
    const FABRIC: &str = "<?xml version=\"1.0\" ?>\n<resource-agent name=\"fence_scsi\" >\n<actions>\n\
                          \t<action name=\"on\" on_target=\"1\" automatic=\"1\"/>\n\t<action name=\"off\" />\n\
                          \t<action name=\"status\" />\n</actions>\n</resource-agent>\n";
    const POWER: &str = "<actions><action name='on' automatic='0'/><action name='off'/></actions>";

    #[test]
    fn the_action_off_and_fabric_fencing_are_found() {
        assert!(lists_off(FABRIC) && is_fabric(FABRIC));
        assert!(lists_off(POWER) && !is_fabric(POWER));
        for text in ["", "<action name=\"status\"/>", "<action name=\"off", "off", "<actions name=\"off\">"] {
            assert!(!lists_off(text) && !is_fabric(text), "{text}");
        }
    }

    #[test]
    fn a_default_is_that_of_its_own_parameter() {
        let text = "<parameters><parameter name=\"power_timeout\" required=\"0\"><content type=\"second\" \
                    default=\"40\" /></parameter><parameter name=\"missing-as-off\"><content type=\"boolean\" \
                    default=\"1\"/></parameter><parameter name=\"plug\"><content type=\"string\"/></parameter>";
        assert_eq!(default_of(text, "power_timeout"), Some("40"));
        assert_eq!(default_of(text, "missing_as_off"), Some("1"));
        assert_eq!(default_of(text, "plug"), None);
        assert_eq!(default_of(text, "login_timeout"), None);
    }
}
