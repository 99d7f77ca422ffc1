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

use futures_util::TryStreamExt;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{
    DeleteParams, GetParams, ListParams, ObjectList, PartialObjectMeta, Patch, PatchParams, PostParams,
    Preconditions, WatchEvent, WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::Request;
use kube::{Client, Config, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use crate::fault::{Asked, Fault, User};

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// After somebody else was faster: what tells old versions is not asked without end.
const AFTER_CONFLICT: Duration = Duration::from_millis(10);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);
/// What the API server notes as the writer of an object.
const WRITER: &str = "understudy";

/// How long a watch may say nothing before it is begun anew: an API server sends a bookmark a minute.
const WATCH_IDLE: Duration = Duration::from_secs(90);

/// A kind of object that is watched.
pub(crate) trait Known:
    Resource<DynamicType = ()> + DeserializeOwned + Clone + fmt::Debug + Send + Sync
{
}

impl<K> Known for K where K: Resource<DynamicType = ()> + DeserializeOwned + Clone + fmt::Debug + Send + Sync {}

/// A kind of object in a namespace that is read and written.
pub(crate) trait Ours: Known + Resource<Scope = NamespaceResourceScope> + Serialize {}

impl<K> Ours for K where K: Known + Resource<Scope = NamespaceResourceScope> + Serialize {}

/// Where an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the namespace that is configured.
    Own,
    /// In this one.
    Namespace(&'static str),
    /// In none: it is the cluster's.
    Cluster,
}

/// A namespace of a cluster.
pub(crate) struct Cluster {
    kubeconfig: Option<PathBuf>,
    namespace: Option<String>,
    /// How long one attempt may take.
    attempt: Duration,
    user: User,
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
    pub(crate) fn new(
        kubeconfig: Option<PathBuf>,
        namespace: Option<String>,
        attempt: Duration,
        user: User,
    ) -> Self {
        Self { kubeconfig, namespace, attempt, user, client: Mutex::default() }
    }

    /// For one operation.
    pub(crate) fn ask(&self) -> Asking<'_> {
        Asking { cluster: self, unsure: AtomicBool::new(false), trouble: Mutex::default() }
    }

    async fn connected(&self) -> Result<Connected, Fault> {
        if let Some(connected) = &*lock(&self.client) {
            return Ok(connected.clone());
        }
        let (kubeconfig, section) = (self.kubeconfig.clone(), self.user.section);
        // It reads files.
        let handle = tokio::runtime::Handle::current();
        let found = tokio::task::spawn_blocking(move || handle.block_on(find(kubeconfig, section))).await;
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

    /// One attempt of one request. `build` gets the namespace; `None` for what is the cluster's.
    async fn attempt<T: DeserializeOwned>(
        &self,
        (verb, resource, place): (&'static str, String, Place),
        build: impl FnOnce(Option<&str>) -> Result<Built, kube::core::request::Error>,
    ) -> Result<T, Fault> {
        let (connected, namespace) = self.connected_at(place).await?;
        let Connected { client, server, .. } = connected;
        let request = build(namespace.as_deref()).map_err(|error| Fault::Setup(error.to_string()))?;
        let asked = Asked { verb, resource, namespace, user: self.user };
        match timeout(self.attempt, client.request(request)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.failed(Fault::of(error, asked, &server))),
            Err(_) => Err(Fault::Late { server, limit: self.attempt }),
        }
    }

    async fn connected_at(&self, place: Place) -> Result<(Connected, Option<String>), Fault> {
        let connected = self.connected().await?;
        let namespace = match place {
            Place::Own => Some(connected.namespace.clone()),
            Place::Namespace(name) => Some(name.to_owned()),
            Place::Cluster => None,
        };
        Ok((connected, namespace))
    }

    fn failed(&self, fault: Fault) -> Fault {
        if fault.code() == 401 {
            // The kubeconfig may have others by now.
            *lock(&self.client) = None;
        }
        fault
    }

    /// The object `name`, or that there is none, and the version of that: asked once, of a quorum.
    pub(crate) async fn find<K: Known>(
        &self,
        place: Place,
        name: &str,
    ) -> Result<(Option<K>, String), Fault> {
        let one = ListParams::default().fields(&named(name));
        let build = |namespace: Option<&str>| Request::new(K::url_path(&(), namespace)).list(&one);
        let found: ObjectList<K> = self.attempt(("list", resource::<K>(), place), build).await?;
        let version = found.metadata.resource_version.unwrap_or_default();
        Ok((found.items.into_iter().next(), version))
    }

    /// Tells `heard` what becomes of the object `name` after `version`, until the API server ends that or falls silent;
    /// first of all `None`, once it is agreed.
    pub(crate) async fn watch<K: Known + 'static>(
        &self,
        place: Place,
        (name, version): (&str, &str),
        mut heard: impl FnMut(Option<WatchEvent<K>>),
    ) -> Result<(), Fault> {
        let (connected, namespace) = self.connected_at(place).await?;
        let Connected { client, server, .. } = connected;
        let params = WatchParams { bookmarks: true, ..WatchParams::default().fields(&named(name)) };
        let request = Request::new(K::url_path(&(), namespace.as_deref())).watch(&params, version);
        let request = request.map_err(|error| Fault::Setup(error.to_string()))?;
        let asked = Asked { verb: "watch", resource: resource::<K>(), namespace, user: self.user };
        let fault = |error| self.failed(Fault::of(error, asked.clone(), &server));
        let Ok(begun) = timeout(self.attempt, client.request_events::<K>(request)).await else {
            return Err(Fault::Late { server, limit: self.attempt });
        };
        let mut events = std::pin::pin!(begun.map_err(fault)?);
        heard(None);
        loop {
            match timeout(WATCH_IDLE, events.try_next()).await {
                Ok(Ok(Some(event))) => heard(Some(event)),
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(error)) => return Err(fault(error)),
                Err(_) => return Err(Fault::Late { server, limit: WATCH_IDLE }),
            }
        }
    }
}

fn named(name: &str) -> String {
    format!("metadata.name={name}")
}

/// What the client sends.
type Built = http::Request<Vec<u8>>;

async fn find(kubeconfig: Option<PathBuf>, section: &str) -> Result<Config, String> {
    let Some(path) = kubeconfig else {
        return Config::infer().await.map_err(|error| {
            format!("there is neither a kubeconfig nor a service account ({error}): set {section}.kubeconfig")
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
        let build = |namespace: Option<&str>| {
            Request::new(K::url_path(&(), namespace)).get(name, &GetParams::default())
        };
        match self.until_answered(("get", resource::<K>(), Place::Own), build).await {
            Ok(object) => Ok(Some(object)),
            Err(fault) if fault.is_absent(name) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Whether there is any object with the label.
    pub(crate) async fn any<K: Ours>(&self, label: &str) -> Result<bool, Fault> {
        let one = ListParams::default().labels(label).limit(1);
        let build = |namespace: Option<&str>| Request::new(K::url_path(&(), namespace)).list_metadata(&one);
        let found: ObjectList<PartialObjectMeta<K>> =
            self.until_answered(("list", resource::<K>(), Place::Own), build).await?;
        Ok(!found.items.is_empty())
    }

    /// Makes an object. `None`: there is one of that name, which may be this very one.
    pub(crate) async fn create<K: Ours>(&self, object: &K) -> Result<Option<K>, Fault> {
        let body = body(object)?;
        let build = |namespace: Option<&str>| {
            Request::new(K::url_path(&(), namespace)).create(&writer(), body.clone()).map(strict)
        };
        self.written("create", Place::Own, build).await
    }

    /// Replaces the version of an object that was read. `None`: there is another by now, which may be this very one.
    pub(crate) async fn replace<K: Ours>(&self, object: &K) -> Result<Option<K>, Fault> {
        let (name, body) = (object.name_any(), body(object)?);
        let build = |namespace: Option<&str>| {
            Request::new(K::url_path(&(), namespace)).replace(&name, &writer(), body.clone()).map(strict)
        };
        match self.written("update", Place::Own, build).await {
            // Who reads anew says that it is gone.
            Err(fault) if fault.is_absent(&name) => Ok(None),
            result => result,
        }
    }

    /// Every object with these labels.
    pub(crate) async fn list<K: Known>(&self, labels: &str) -> Result<Vec<K>, Fault> {
        let all = ListParams::default().labels(labels);
        let build = |namespace: Option<&str>| Request::new(K::url_path(&(), namespace)).list(&all);
        let found: ObjectList<K> = self.until_answered(("list", resource::<K>(), Place::Own), build).await?;
        Ok(found.items)
    }

    /// Merges `patch` into an object that is somebody else's, so that what is not named stays as it is. `patch` names the
    /// version that was read. `None`: there is another by now, which may be this very one. `dry`: it changes nothing.
    pub(crate) async fn patch<K: Known>(
        &self,
        place: Place,
        name: &str,
        patch: &serde_json::Value,
        dry: bool,
    ) -> Result<Option<K>, Fault> {
        let params = PatchParams { dry_run: dry, ..PatchParams::apply(WRITER) };
        let build = |namespace: Option<&str>| {
            Request::new(K::url_path(&(), namespace)).patch(name, &params, &Patch::Merge(patch))
        };
        match self.written("patch", place, build).await {
            // Who reads anew says that it is gone.
            Err(fault) if fault.is_absent(name) => Ok(None),
            result => result,
        }
    }

    /// Takes away, without waiting for its containers, the very object `uid` that has this name. `false`: there is another
    /// one of that name by now, or none. `dry`: it changes nothing.
    pub(crate) async fn delete_by_force<K: Known>(
        &self,
        (name, uid): (&str, &str),
        dry: bool,
    ) -> Result<bool, Fault> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
        let params = DeleteParams {
            dry_run: dry,
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        let build = |namespace: Option<&str>| Request::new(K::url_path(&(), namespace)).delete(name, &params);
        let what = ("delete", resource::<K>(), Place::Own);
        match self.until_answered::<serde::de::IgnoredAny>(what, build).await {
            Ok(_) => Ok(true),
            Err(fault) if fault.code() == 409 || fault.is_absent(name) => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Asks something about the cluster, by its path.
    pub(crate) async fn page<T: DeserializeOwned>(&self, path: &str) -> Result<T, Fault> {
        let build = |_: Option<&str>| {
            http::Request::get(path).body(Vec::new()).map_err(kube::core::request::Error::BuildRequest)
        };
        self.until_answered(("get", path.to_owned(), Place::Cluster), build).await
    }

    /// Posts an object of the cluster, which makes nothing there.
    pub(crate) async fn review<K>(&self, object: &K) -> Result<K, Fault>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
    {
        let body = serde_json::to_vec(object).map_err(|error| Fault::Setup(error.to_string()))?;
        let build = |_: Option<&str>| {
            Request::new(K::url_path(&(), None)).create(&PostParams::default(), body.clone())
        };
        let what = ("create", K::plural(&()).into_owned(), Place::Cluster);
        self.until_answered(what, build).await
    }

    async fn written<K: Known>(
        &self,
        verb: &'static str,
        place: Place,
        build: impl Fn(Option<&str>) -> Result<Built, kube::core::request::Error>,
    ) -> Result<Option<K>, Fault> {
        match self.until_answered((verb, resource::<K>(), place), build).await {
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
        what: (&'static str, String, Place),
        build: impl Fn(Option<&str>) -> Result<Built, kube::core::request::Error>,
    ) -> Result<T, Fault> {
        let writes = matches!(what.0, "create" | "update" | "patch" | "delete");
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
pub(crate) fn resource<K: Known>() -> String {
    let (plural, group) = (K::plural(&()), K::group(&()));
    if group.is_empty() { plural.into_owned() } else { format!("{plural}.{group}") }
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
