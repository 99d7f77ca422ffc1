//! A controller as it is configured.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use recovery::model::{BrokerId, Endpoint};

/// A KRaft controller: its node id and its own listener, written `101@host:port` as in Kafka's
/// `controller.quorum.voters`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Controller {
    /// Its node id.
    pub id: BrokerId,
    /// Its own listener.
    pub listener: Endpoint,
}

/// Text that is not `node-id@host:port`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not node-id@host:port, such as 101@controller-1.example.com:9093")]
pub struct ControllerError(String);

impl FromStr for Controller {
    type Err = ControllerError;

    fn from_str(text: &str) -> Result<Self, ControllerError> {
        let error = || ControllerError(text.to_owned());
        let (id, listener) = text.split_once('@').ok_or_else(error)?;
        let id: i32 = id.parse().map_err(|_| error())?;
        if id < 0 {
            return Err(error());
        }
        Ok(Self { id: BrokerId(id), listener: listener.parse().map_err(|_| error())? })
    }
}

impl TryFrom<String> for Controller {
    type Error = ControllerError;
    fn try_from(text: String) -> Result<Self, ControllerError> {
        text.parse()
    }
}

impl From<Controller> for String {
    fn from(controller: Controller) -> Self {
        controller.to_string()
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.id, self.listener)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in ["101@10.20.0.21:9093", "0@[fd00::1]:9093", "7@controller.example.com:9093"] {
            assert_eq!(text.parse::<Controller>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_what_is_not_a_controller() {
        for text in
            ["10.20.0.21:9093", "@10.20.0.21:9093", "-1@host:9093", "x@host:9093", "1@host", "1@:9093"]
        {
            assert!(text.parse::<Controller>().is_err(), "{text}");
        }
    }

    #[test]
    fn refuses_brackets_that_would_not_come_back() {
        for text in ["1@[[fd00::1]]:9093", "1@[[]]:9093", "1@[fd00::1:9093", "1@host]:9093"] {
            assert!(text.parse::<Controller>().is_err(), "{text}");
        }
    }
}
