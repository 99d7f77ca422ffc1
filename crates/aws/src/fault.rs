//! Why a call of EC2 did not do as asked: told by the code of the answer, never by its text.

use std::time::Duration;

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use recovery::ports::{BoxError, StepError, chain};

use crate::Ec2;

/// What a call came to, if to nothing good.
#[derive(Debug)]
pub(crate) enum Fault {
    /// EC2 said no.
    Said {
        /// The code of its answer.
        code: String,
        /// Its words.
        message: String,
    },
    /// EC2 was not asked, or did not answer, or not so that it can be understood: the call may have taken effect.
    Mute {
        /// The cause.
        source: BoxError,
    },
    /// The deadline came first: the call may have taken effect.
    Late {
        /// The deadline.
        limit: Duration,
    },
    /// Nobody says which region to ask.
    NoRegion,
}

/// `DryRun` answers so where the call would have been allowed.
pub(crate) const DRY_RUN: &str = "DryRunOperation";

/// Whose call it was.
pub(crate) struct Service {
    name: &'static str,
    /// What its actions begin with in a policy.
    action: &'static str,
    /// The section of the configuration that says where it is asked.
    section: &'static str,
}

pub(crate) const EC2: Service = Service { name: "EC2", action: "ec2", section: "ec2" };
pub(crate) const FSX: Service = Service { name: "FSx", action: "fsx", section: "ontap.fsx" };

/// EC2 is busy or ill: the same call may do later. (`code` as in EC2's list of error codes.)
const PASSING: [&str; 8] = [
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "InternalError",
    "InternalFailure",
    "ServiceUnavailable",
    "Unavailable",
    "RequestTimeout",
];

impl<E> From<SdkError<E>> for Fault
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    fn from(error: SdkError<E>) -> Self {
        match (error.code(), error.message()) {
            (Some(code), message) => {
                Self::Said { code: code.to_owned(), message: message.unwrap_or("no reason given").to_owned() }
            }
            (None, _) => Self::Mute { source: Box::new(error) },
        }
    }
}

impl Fault {
    /// The code of EC2's answer; empty where it gave none.
    pub(crate) fn code(&self) -> &str {
        if let Self::Said { code, .. } = self { code } else { "" }
    }

    /// Whether the same call may do later, or has done already.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Said { code, .. } => PASSING.contains(&code.as_str()),
            Self::Mute { .. } | Self::Late { .. } => true,
            Self::NoRegion => false,
        }
    }

    /// This one, unless an earlier one tells more: EC2's own answer does.
    pub(crate) fn or(self, earlier: Option<Self>) -> Self {
        match earlier {
            Some(said @ Self::Said { .. }) if self.code().is_empty() => said,
            _ => self,
        }
    }

    /// What is wrong, and what to do about it. `call`: the API's name of the call, such as `StopInstances`.
    pub(crate) fn words(&self, call: &str, ec2: &Ec2) -> String {
        self.told(call, &EC2, &ec2.place())
    }

    /// The same of another service's call. `place`: its region, and where that is asked.
    pub(crate) fn told(&self, call: &str, service: &Service, place: &str) -> String {
        let Service { name, section, .. } = service;
        match self {
            Self::Said { code, message } => match remedy(code, call, service) {
                Some(remedy) => format!("{name} in {place} refused {call} ({code}): {remedy}"),
                None => format!("{name} in {place} refused {call} ({code}): {message}"),
            },
            Self::Mute { source } => {
                let why = chain(source.as_ref());
                format!(
                    "{name} in {place} did not answer {call} ({why}): look whether this host reaches it, and has \
                     credentials (a role of the instance, or AWS_PROFILE)"
                )
            }
            Self::Late { limit } => format!(
                "{name} in {place} did not answer {call} within {:.1} s: look whether this host reaches its \
                 endpoint, and the metadata service for its credentials (in a container it takes a hop limit of 2)",
                limit.as_secs_f64()
            ),
            Self::NoRegion => {
                format!("nothing says which region to ask: set {section}.region (such as eu-central-1)")
            }
        }
    }

    /// The same as an error of a step.
    pub(crate) fn step(&self, driver: &'static str, action: &str, call: &str, ec2: &Ec2) -> StepError {
        let words = self.words(call, ec2);
        match self {
            Self::Said { .. } | Self::NoRegion => {
                StepError::Refused { driver, action: action.to_owned(), why: words }
            }
            Self::Mute { .. } | Self::Late { .. } => {
                StepError::Failed { driver, action: action.to_owned(), source: words.into() }
            }
        }
    }
}

/// What a code means, where EC2's own words do not say what to do.
fn remedy(code: &str, call: &str, service: &Service) -> Option<String> {
    let Service { action, section, .. } = service;
    Some(match code {
        "UnauthorizedOperation" | "AccessDenied" | "AccessDeniedException" => {
            format!("its credentials do not allow {action}:{call}; add it to the policy of this host's role")
        }
        "AuthFailure" | "InvalidClientTokenId" | "UnrecognizedClientException" => {
            "it does not accept the credentials: look at the region, at the role of this instance, and at the clock of \
             this host (`chronyc tracking`)"
                .to_owned()
        }
        "RequestExpired" | "SignatureDoesNotMatch" => {
            "it does not accept the signature: the clock of this host is off (`chronyc tracking`), or the secret key \
             is wrong"
                .to_owned()
        }
        "ExpiredToken" | "ExpiredTokenException" => {
            "the credentials have expired: renew them, or use a role of this instance".to_owned()
        }
        "OptInRequired" => format!("the account has no access to this region: correct {section}.region"),
        "InvalidInstanceID.NotFound" | "InvalidInstanceID.Malformed" => {
            "there is no such instance there: correct instance.id or ec2.region".to_owned()
        }
        "InvalidNetworkInterfaceID.NotFound" | "InvalidNetworkInterfaceId.Malformed" => {
            "there is no such interface there: correct `network_interface` or ec2.region".to_owned()
        }
        "StorageVirtualMachineNotFound" => {
            format!("there is no such SVM there: correct {section}.svm or {section}.region")
        }
        "FileSystemNotFound" => {
            format!("there is no such file system there: correct {section}.file_system or {section}.region")
        }
        "PrivateIpAddressLimitExceeded" => {
            "the interface has as many addresses as its instance type allows: remove one, or use a larger \
             type".to_owned()
        }
        "OperationNotPermitted" => {
            "the instance is protected against it: run `aws ec2 modify-instance-attribute \
             --no-disable-api-stop`".to_owned()
        }
        "UnsupportedOperation" => {
            "this instance cannot be stopped (its root device is an instance store, or it is a one-time Spot \
             instance): fence it by another driver"
                .to_owned()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ec2Config;

    fn said(code: &str) -> Fault {
        Fault::Said { code: code.to_owned(), message: "its own words".to_owned() }
    }

    #[test]
    fn a_code_is_told_with_its_remedy_and_an_unknown_one_with_its_words() {
        let ec2 = Ec2Config { region: Some("eu-west-1".to_owned()), endpoint: None }.build().unwrap();
        let words = |code| said(code).words("StopInstances", &ec2);
        assert!(
            words("UnauthorizedOperation").contains("do not allow ec2:StopInstances; add it to the policy")
        );
        assert!(words("RequestExpired").contains("the clock of this host is off"));
        assert!(words("SignatureDoesNotMatch").contains("the clock of this host is off"));
        assert!(words("AuthFailure").starts_with("EC2 in eu-west-1 refused StopInstances (AuthFailure)"));
        assert!(words("InvalidInstanceID.NotFound").contains("no such instance there"));
        assert_eq!(words("NewCode"), "EC2 in eu-west-1 refused StopInstances (NewCode): its own words");
        let endpoint = Some("https://vpce-1.example".to_owned());
        let ec2 = Ec2Config { region: Some("eu-west-1".to_owned()), endpoint }.build().unwrap();
        let told = said("NewCode").words("StopInstances", &ec2);
        assert!(told.starts_with("EC2 in eu-west-1 (at https://vpce-1.example) refused"), "{told}");
    }

    #[test]
    fn only_what_is_known_to_pass_is_tried_again() {
        for code in ["RequestLimitExceeded", "InternalError", "Unavailable"] {
            assert!(said(code).passes(), "{code}");
        }
        for code in ["UnauthorizedOperation", "InvalidParameterValue", "DryRunOperation", "NewCode", ""] {
            assert!(!said(code).passes(), "{code}");
        }
        assert!(Fault::Late { limit: Duration::from_secs(1) }.passes());
        assert!(!Fault::NoRegion.passes());
    }
}
