//! The layout of an OCI image in one archive: blobs by their digests, and an index that names the image.

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::tree::Tree;

const SOURCE: &str = "Standby agent for Apache Kafka brokers on shared storage";

/// What is told of an image.
pub(super) struct About<'a> {
    /// What it is called where it is loaded.
    pub(super) name: &'a str,
    /// Its program, without a `/` in front.
    pub(super) program: &'a str,
    /// Who runs it.
    pub(super) user: u32,
    /// The time of everything in it.
    pub(super) made: Timestamp,
    /// The commit that it is made of.
    pub(super) revision: Option<String>,
}

/// An image.
pub(super) struct Image {
    /// The archive.
    pub(super) archive: Vec<u8>,
    /// By which a registry and a pod name it: that of the manifest.
    pub(super) digest: String,
}

/// Makes the image with the content of `tree`, which is the whole of its one layer.
///
/// # Errors
/// A path is too long, or the time is before 1970.
pub(super) fn write(tree: &Tree, about: &About<'_>) -> Result<Image> {
    let time = u64::try_from(about.made.as_second()).context("the commit is older than 1970")?;
    let mut files = Tree::default();
    let mut blob = |kind: &str, content: Vec<u8>| {
        let digest = sha256(&content);
        let size = content.len();
        files.file(&format!("blobs/sha256/{digest}"), 0o644, content);
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{digest}"), "size": size,
        })
    };
    let layer = blob("layer.v1.tar", tree.tar(time)?);
    let config = blob("config.v1+json", config(about, &layer["digest"]).to_string().into_bytes());
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": [layer],
    });
    let mut manifest = blob("manifest.v1+json", manifest.to_string().into_bytes());
    let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
    let tag = about.name.rsplit_once(':').map_or(about.name, |(_, tag)| tag);
    manifest["annotations"] = json!({
        "io.containerd.image.name": about.name, "org.opencontainers.image.ref.name": tag,
    });
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest],
    });
    files.file("index.json", 0o644, index.to_string().into_bytes());
    files.file("oci-layout", 0o644, json!({ "imageLayoutVersion": "1.0.0" }).to_string().into_bytes());
    Ok(Image { archive: files.tar(time)?, digest })
}

fn config(about: &About<'_>, layer: &Value) -> Value {
    let program = format!("/{}", about.program);
    let mut labels = json!({
        "org.opencontainers.image.title": "understudy",
        "org.opencontainers.image.description": SOURCE,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
        "org.opencontainers.image.created": about.made,
    });
    if let Some(revision) = &about.revision {
        labels["org.opencontainers.image.revision"] = json!(revision);
    }
    json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "created": about.made,
        "config": {
            "User": format!("{0}:{0}", about.user),
            "Entrypoint": [program], "Cmd": ["run"], "Env": ["PATH=/usr/bin"], "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [layer] },
        "history": [{ "created": about.made, "created_by": "cargo xtask image" }],
    })
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, text: &str, second: i64) -> Image {
        let mut tree = Tree::default();
        tree.file("usr/bin/understudy", 0o755, text.as_bytes().to_vec());
        let made = Timestamp::from_second(second).unwrap();
        let about =
            About { name, program: "usr/bin/understudy", user: 1000, made, revision: Some("abc".into()) };
        write(&tree, &about).unwrap()
    }

    #[test]
    fn a_digest_is_that_of_what_is_in_the_image() {
        let (one, two) = (image("a/b:1", "x", 5), image("a/b:1", "x", 5));
        assert!(one.digest == two.digest && one.archive == two.archive);
        assert_eq!(one.digest, image("c/d:2", "x", 5).digest, "its name is none of its content");
        assert_ne!(one.digest, image("a/b:1", "y", 5).digest);
        assert_ne!(one.digest, image("a/b:1", "x", 6).digest);
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn every_blob_is_found_by_what_names_it() {
        let root = tempfile::tempdir().unwrap();
        let archive = root.path().join("image.tar");
        let image = image("a/b:1", "x", 5);
        std::fs::write(&archive, &image.archive).unwrap();
        let mut tar = std::process::Command::new("tar");
        tar.arg("--extract").arg("--file").arg(&archive).current_dir(root.path());
        assert!(tar.status().unwrap().success());
        let read = |of: &Value| {
            let digest = of["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
            let bytes = std::fs::read(root.path().join("blobs/sha256").join(digest)).unwrap();
            assert_eq!((sha256(&bytes), json!(bytes.len())), (digest.to_owned(), of["size"].clone()));
            bytes
        };
        let index: Value =
            serde_json::from_slice(&std::fs::read(root.path().join("index.json")).unwrap()).unwrap();
        let named = &index["manifests"][0];
        assert_eq!(named["digest"], image.digest);
        assert_eq!(named["annotations"]["io.containerd.image.name"], "a/b:1");
        let manifest: Value = serde_json::from_slice(&read(named)).unwrap();
        let config: Value = serde_json::from_slice(&read(&manifest["config"])).unwrap();
        assert_eq!(config["config"]["User"], "1000:1000");
        assert_eq!(config["config"]["Entrypoint"], json!(["/usr/bin/understudy"]));
        assert_eq!(config["created"], "1970-01-01T00:00:05Z");
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        read(&manifest["layers"][0]);
    }
}
