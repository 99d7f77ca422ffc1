//! The query language of ONTAP's URLs: `field=expression` against one record.

use std::cmp::Ordering;

use serde_json::Value;

/// Every value at `field` (dotted) in `row`, through arrays. Unset fields have none.
pub(super) fn leaves<'a>(row: &'a Value, field: &str) -> Vec<&'a Value> {
    let mut found = Vec::new();
    let segments: Vec<&str> = field.split('.').collect();
    descend(row, &segments, &mut found);
    found
}

fn descend<'a>(value: &'a Value, segments: &[&str], found: &mut Vec<&'a Value>) {
    match (value, segments) {
        (Value::Null, _) => {}
        (Value::Array(items), _) => items.iter().for_each(|item| descend(item, segments, found)),
        (Value::Object(object), [first, rest @ ..]) => {
            if let Some(value) = object.get(*first) {
                descend(value, rest, found);
            }
        }
        (leaf, []) => found.push(leaf),
        (_, [_, ..]) => {}
    }
}

/// Whether `row` is one that `field=expression` asks for.
pub(super) fn matches(row: &Value, field: &str, expression: &str) -> bool {
    let leaves = leaves(row, field);
    split_outside(expression, '|').iter().any(|alternative| one(&leaves, alternative.trim()))
}

/// Splits at `separator` where it is not inside quotes or braces.
pub(super) fn split_outside(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut from, mut depth, mut quoted) = (Vec::new(), 0, 0_u32, false);
    for (at, letter) in text.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            '{' if !quoted => depth += 1,
            '}' if !quoted => depth = depth.saturating_sub(1),
            _ if letter == separator && !quoted && depth == 0 => {
                parts.push(&text[from..at]);
                from = at + letter.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

fn one(leaves: &[&Value], expression: &str) -> bool {
    match expression.strip_prefix('!') {
        Some("null") => !leaves.is_empty(),
        // An unset field is not "something else": it does not match.
        Some(rest) => !leaves.is_empty() && !one(leaves, rest),
        None if expression == "null" => leaves.is_empty(),
        None => leaves.iter().any(|leaf| scalar(leaf, expression)),
    }
}

fn scalar(leaf: &Value, expression: &str) -> bool {
    if let Some(literal) = literal(expression) {
        return text(leaf) == literal;
    }
    for (sign, wanted) in [
        ("<=", [Ordering::Less, Ordering::Equal].as_slice()),
        (">=", &[Ordering::Greater, Ordering::Equal]),
        ("<", &[Ordering::Less]),
        (">", &[Ordering::Greater]),
    ] {
        if let Some(limit) = expression.strip_prefix(sign) {
            return compare(leaf, limit).is_some_and(|ordering| wanted.contains(&ordering));
        }
    }
    if let Some((low, high)) = expression.split_once("..")
        && let (Some(low), Some(high)) = (compare(leaf, low), compare(leaf, high))
    {
        return low != Ordering::Less && high != Ordering::Greater;
    }
    if leaf.is_number() && compare(leaf, expression) == Some(Ordering::Equal) {
        return true;
    }
    glob(&text(leaf), expression)
}

fn literal(expression: &str) -> Option<&str> {
    let inner = |open, close| expression.strip_prefix(open)?.strip_suffix(close);
    inner('"', '"').or_else(|| inner('{', '}'))
}

/// A value as it would stand in a URL.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn compare(leaf: &Value, limit: &str) -> Option<Ordering> {
    if let Some(number) = leaf.as_f64() {
        return number.partial_cmp(&number_of(limit)?);
    }
    let leaf = leaf.as_str()?;
    let duration = |text: &str| text.parse::<jiff::SignedDuration>().ok();
    match (duration(leaf), duration(limit)) {
        (Some(leaf), Some(limit)) => Some(leaf.cmp(&limit)),
        _ => Some(leaf.cmp(limit)),
    }
}

/// A number, or a size with its unit: ONTAP's units are powers of 1024.
pub(super) fn number_of(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Ok(number) = text.parse::<f64>() {
        return number.is_finite().then_some(number);
    }
    let units = ["KB", "MB", "GB", "TB", "PB"];
    let upper = text.to_ascii_uppercase();
    units.iter().zip(1_i32..).find_map(|(unit, power)| {
        let number: f64 = upper.strip_suffix(unit)?.trim().parse().ok()?;
        Some(number * 1024_f64.powi(power))
    })
}

/// `*` stands for any run of letters, also none.
fn glob(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let Some(last) = pattern.rsplit_once('*').map(|(_, last)| last) else { return rest.is_empty() };
    let mut rest = rest;
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    // The last part was found somewhere; it has to be at the end.
    text.ends_with(last)
}

/// How two records stand to each other in `order_by` of one field: unset comes first.
pub(super) fn order(left: &Value, right: &Value, field: &str) -> Ordering {
    let (left, right) = (leaves(left, field), leaves(right, field));
    match (left.first(), right.first()) {
        (Some(left), Some(right)) => match (left.as_f64(), right.as_f64()) {
            (Some(left), Some(right)) => left.total_cmp(&right),
            _ => text(left).cmp(&text(right)),
        },
        (left, right) => left.is_some().cmp(&right.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hit(expression: &str) -> bool {
        let row = json!({
            "name": "kafka01", "size": 20_971_520, "up": true, "idle": "PT15M", "odd": "a|b",
            "rules": [{"match": "10.0.0.1"}, {"match": "10.0.0.2"}],
        });
        let (field, expression) = expression.split_once('=').unwrap();
        matches(&row, field, expression)
    }

    #[test]
    fn what_matches() {
        for expression in [
            "name=kafka01",
            "name=kafka*",
            "name=*01",
            "name=k*f*1",
            "name=other|kafka01",
            "name=!other",
            "name=*",
            "size=20971520",
            "size=20MB",
            "size=>=20MB",
            "size=1MB..1GB",
            "size=!10..20",
            "up=true",
            "idle=>PT10M",
            "idle=PT900S..PT1H",
            "odd=\"a|b\"",
            "odd={a|b}",
            "absent=null",
            "name=!null",
            "rules.match=10.0.0.2",
            "rules.match=!10.0.0.9",
        ] {
            assert!(hit(expression), "{expression}");
        }
    }

    #[test]
    fn what_does_not_match() {
        for expression in [
            "name=kafka",
            "name=*02",
            "name=!kafka01",
            "name=\"kafka*\"",
            "name=k*x*1",
            "size=>20MB",
            "size=<1",
            "idle=<PT10M",
            "absent=!null",
            "absent=!x",
            "absent=*",
            "name=null",
            "rules.match=!10.0.0.2",
            "rules=10.0.0.1",
        ] {
            assert!(!hit(expression), "{expression}");
        }
    }

    #[test]
    fn order_knows_numbers_from_words() {
        let row = |value: Value| json!({ "a": value });
        assert_eq!(order(&row(json!(9)), &row(json!(10)), "a"), Ordering::Less);
        assert_eq!(order(&row(json!("9")), &row(json!("10")), "a"), Ordering::Greater);
        assert_eq!(order(&row(Value::Null), &row(json!(1)), "a"), Ordering::Less);
    }
}
