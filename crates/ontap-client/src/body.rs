//! The body of a change: only what is set.

use serde_json::{Map, Value};

/// A JSON object that grows by paths such as `nas.export_policy.name`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Body(Map<String, Value>);

impl Body {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Sets what is at `path`; `None` leaves it out.
    pub(crate) fn set(mut self, path: &str, value: Option<impl Into<Value>>) -> Self {
        if let Some(value) = value {
            put(&mut self.0, path, value.into());
        }
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn put(object: &mut Map<String, Value>, path: &str, value: Value) {
    let Some((first, rest)) = path.split_once('.') else {
        object.insert(path.to_owned(), value);
        return;
    };
    let inner = object.entry(first).or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(inner) = inner {
        put(inner, rest, value);
    }
}

impl From<Body> for Value {
    fn from(body: Body) -> Self {
        Self::Object(body.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_share_their_objects() {
        let body = Body::new().set("nas.path", Some("/a")).set("size", None::<u64>);
        let body = body.set("nas.export_policy.name", Some("p"));
        assert_eq!(Value::from(body), json!({ "nas": { "path": "/a", "export_policy": { "name": "p" } } }));
        assert!(Body::new().set("a.b", None::<u64>).is_empty());
    }
}
