//! A client of the API server that is made when it is first used, and what is asked of it.
//!
//! A write is conditional: it makes an object that is not there, or replaces exactly the version that was read. So it
//! may be sent again after an attempt without an answer; what the first attempt did, or does late, the second one
//! meets as a conflict, and whoever wrote reads anew. A read never names a version, so that it is answered by a quorum
//! of etcd and not from the API server's memory.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{GetParams, ListParams, ObjectList, PartialObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::Request;
use kube::{Client, Config, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use crate::fault::{Asked, Fault};

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// After somebody else was faster: what tells old versions is not asked without end.
const AFTER_CONFLICT: Duration = Duration::from_millis(10);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);
/// What the API server notes as the writer of an object.
const WRITER: &str = "understudy";

/// A kind of object of ours.
pub(crate) trait Ours:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + fmt::Debug
{
}

impl<K> Ours for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + fmt::Debug
{
}

/// A namespace of a cluster.
pub(crate) struct Cluster {
    kubeconfig: Option<PathBuf>,
    namespace: Option<String>,
    /// How long one attempt may take.
    attempt: Duration,
    client: Mutex<Option<Connected>>,
}

#[derive(Clone)]
struct Connected {
    client: Client,
    server: String,
    namespace: String,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("kubeconfig", &self.kubeconfig)
            .field("namespace", &self.namespace)
            .finish()
    }
}

impl Cluster {
    /// Opens nothing. Without a kubeconfig the environment says which cluster it is; without a namespace that does.
    pub(crate) fn new(kubeconfig: Option<PathBuf>, namespace: Option<String>, attempt: Duration) -> Self {
        Self { kubeconfig, namespace, attempt, client: Mutex::default() }
    }

    /// For one operation.
    pub(crate) fn ask(&self) -> Asking<'_> {
        Asking { cluster: self, unsure: AtomicBool::new(false), trouble: Mutex::default() }
    }

    async fn connected(&self) -> Result<Connected, Fault> {
        if let Some(connected) = &*lock(&self.client) {
            return Ok(connected.clone());
        }
        let kubeconfig = self.kubeconfig.clone();
        // It reads files.
        let handle = tokio::runtime::Handle::current();
        let found = tokio::task::spawn_blocking(move || handle.block_on(find(kubeconfig))).await;
        let mut config = found.map_err(|error| Fault::Setup(error.to_string()))?.map_err(Fault::Setup)?;
        // Every repetition is ours to decide.
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT);
        let server = config.cluster_url.to_string();
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| Fault::Setup(error.to_string()))?;
        let connected = Connected { client, server, namespace };
        *lock(&self.client) = Some(connected.clone());
        Ok(connected)
    }

    /// One attempt of one request. `build` gets the namespace.
    async fn attempt<T: DeserializeOwned>(
        &self,
        (verb, resource): (&'static str, String),
        build: impl FnOnce(&str) -> Result<Built, kube::core::request::Error>,
    ) -> Result<T, Fault> {
        let Connected { client, server, namespace } = self.connected().await?;
        let request = build(&namespace).map_err(|error| Fault::Setup(error.to_string()))?;
        let asked = Asked { verb, resource, namespace };
        let fault = match timeout(self.attempt, client.request(request)).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => Fault::of(error, asked, &server),
            Err(_) => Fault::Late { server, limit: self.attempt },
        };
        if fault.code() == 401 {
            // The kubeconfig may have others by now.
            *lock(&self.client) = None;
        }
        Err(fault)
    }
}

/// What the client sends.
type Built = http::Request<Vec<u8>>;

async fn find(kubeconfig: Option<PathBuf>) -> Result<Config, String> {
    let Some(path) = kubeconfig else {
        return Config::infer().await.map_err(|error| {
            format!("there is neither a kubeconfig nor a service account ({error}): set ledger.kubeconfig")
        });
    };
    let said = |error| match error {
        KubeconfigError::ReadConfig(error, _) => format!("cannot read {}: {error}", path.display()),
        error => format!("{}: {error}", path.display()),
    };
    let kubeconfig = Kubeconfig::read_from(&path).map_err(said)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(said)
}

/// One operation: its requests, and what went wrong with them so far. Each is repeated until it is answered; whoever
/// waits for the whole has a deadline.
pub(crate) struct Asking<'a> {
    cluster: &'a Cluster,
    unsure: AtomicBool,
    trouble: Mutex<Option<Fault>>,
}

impl Asking<'_> {
    /// Whether a write was sent and not confirmed.
    pub(crate) fn is_unsure(&self) -> bool {
        self.unsure.load(Ordering::SeqCst)
    }

    /// What went wrong last.
    pub(crate) fn trouble(&self) -> Option<Fault> {
        lock(&self.trouble).take()
    }

    /// The namespace, once something was asked.
    pub(crate) async fn namespace(&self) -> Result<String, Fault> {
        Ok(self.cluster.connected().await?.namespace)
    }

    /// Reads an object.
    pub(crate) async fn get<K: Ours>(&self, name: &str) -> Result<Option<K>, Fault> {
        let build = |namespace: &str| {
            Request::new(K::url_path(&(), Some(namespace))).get(name, &GetParams::default())
        };
        match self.until_answered(("get", resource::<K>()), build).await {
            Ok(object) => Ok(Some(object)),
            Err(fault) if fault.is_absent(name) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Whether there is any object with the label.
    pub(crate) async fn any<K: Ours>(&self, label: &str) -> Result<bool, Fault> {
        let one = ListParams::default().labels(label).limit(1);
        let build = |namespace: &str| Request::new(K::url_path(&(), Some(namespace))).list_metadata(&one);
        let found: ObjectList<PartialObjectMeta<K>> =
            self.until_answered(("list", resource::<K>()), build).await?;
        Ok(!found.items.is_empty())
    }

    /// Makes an object. `None`: there is one of that name, which may be this very one.
    pub(crate) async fn create<K: Ours>(&self, object: &K) -> Result<Option<K>, Fault> {
        let body = body(object)?;
        let build = |namespace: &str| {
            Request::new(K::url_path(&(), Some(namespace))).create(&writer(), body.clone()).map(strict)
        };
        self.written(("create", resource::<K>()), build).await
    }

    /// Replaces the version of an object that was read. `None`: there is another by now, which may be this very one.
    pub(crate) async fn replace<K: Ours>(&self, object: &K) -> Result<Option<K>, Fault> {
        let (name, body) = (object.name_any(), body(object)?);
        let build = |namespace: &str| {
            Request::new(K::url_path(&(), Some(namespace)))
                .replace(&name, &writer(), body.clone())
                .map(strict)
        };
        match self.written(("update", resource::<K>()), build).await {
            // Who reads anew says that it is gone.
            Err(fault) if fault.is_absent(&name) => Ok(None),
            result => result,
        }
    }

    /// Asks something about the cluster, by its path.
    pub(crate) async fn page<T: DeserializeOwned>(&self, path: &str) -> Result<T, Fault> {
        let build = |_: &str| {
            http::Request::get(path).body(Vec::new()).map_err(kube::core::request::Error::BuildRequest)
        };
        self.until_answered(("get", path.to_owned()), build).await
    }

    /// Posts an object of the cluster, which makes nothing there.
    pub(crate) async fn review<K>(&self, object: &K) -> Result<K, Fault>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
    {
        let body = serde_json::to_vec(object).map_err(|error| Fault::Setup(error.to_string()))?;
        let build =
            |_: &str| Request::new(K::url_path(&(), None)).create(&PostParams::default(), body.clone());
        self.until_answered(("create", K::plural(&()).into_owned()), build).await
    }

    async fn written<K: Ours>(
        &self,
        what: (&'static str, String),
        build: impl Fn(&str) -> Result<Built, kube::core::request::Error>,
    ) -> Result<Option<K>, Fault> {
        match self.until_answered(what, build).await {
            Ok(object) => Ok(Some(object)),
            // Another one is there, or none any more: who writes reads anew.
            Err(fault) if fault.code() == 409 => {
                sleep(AFTER_CONFLICT).await;
                Ok(None)
            }
            Err(fault) => Err(fault),
        }
    }

    async fn until_answered<T: DeserializeOwned>(
        &self,
        what: (&'static str, String),
        build: impl Fn(&str) -> Result<Built, kube::core::request::Error>,
    ) -> Result<T, Fault> {
        let writes = matches!(what.0, "create" | "update");
        let before = self.is_unsure();
        let mut open = before;
        loop {
            // Who waits may stop waiting in the middle of an attempt.
            self.unsure.store(open || writes, Ordering::SeqCst);
            let fault = match self.cluster.attempt(what.clone(), &build).await {
                Ok(answer) => {
                    self.unsure.store(before, Ordering::SeqCst);
                    return Ok(answer);
                }
                Err(fault) => fault,
            };
            open |= writes && fault.may_have_written();
            // Where something else is there by now, no earlier attempt can take effect any more.
            self.unsure.store(if fault.code() == 409 { before } else { open }, Ordering::SeqCst);
            if !fault.passes() {
                return Err(fault);
            }
            *lock(&self.trouble) = Some(fault);
            sleep(PAUSE).await;
        }
    }
}

/// The kind, as a role and `kubectl` name it.
pub(crate) fn resource<K: Ours>() -> String {
    format!("{}.{}", K::plural(&()), K::group(&()))
}

fn writer() -> PostParams {
    PostParams { dry_run: false, field_manager: Some(WRITER.to_owned()) }
}

/// A member that the cluster's definition lacks is refused, and not dropped without a word.
fn strict(mut request: Built) -> Built {
    let strict = format!("{}&fieldValidation=Strict", request.uri());
    if let Ok(uri) = strict.parse() {
        *request.uri_mut() = uri;
    }
    request
}

fn body<K: Ours>(object: &K) -> Result<Vec<u8>, Fault> {
    let mut object = object.clone();
    // The API server keeps them by itself.
    object.meta_mut().managed_fields = None;
    serde_json::to_vec(&object).map_err(|error| Fault::Setup(error.to_string()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
