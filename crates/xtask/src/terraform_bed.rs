//! What judges `deploy/aws/terraform`, built once: `<cache>/terraform-<hash of its recipe and of the Go version>`.
//!
//! - `bin/tofu`: OpenTofu, of its Go module at the version in `terraform-bed/tofu/go.mod`;
//! - `mirror`: a provider `hashicorp/aws` that knows the real one's schema and does nothing (`terraform-bed/provider`).
//!   The schema is read out of CDK Terrain's bindings, a package of PyPI (`terraform-bed/schema.py`);
//! - `tofu.rc`: has OpenTofu take providers from there, and from nowhere else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cache::{self, Staging};
use crate::go::{self, Module};
use crate::kafka::fnv1a;
use crate::{conformance, shell};

/// By which tests find it.
pub(crate) const VARIABLE: &str = "UNDERSTUDY_TERRAFORM_BED";
/// What builds it, for a person who reads that it is not there.
pub(crate) const HINT: &str =
    "not in the cache: `cargo xtask setup --tier ec2` builds it (once; six minutes of two processors)";

const MODULES: [Module; 2] = [
    Module {
        name: "tofu",
        files: &[
            ("go.mod", include_str!("../terraform-bed/tofu/go.mod")),
            ("go.sum", include_str!("../terraform-bed/tofu/go.sum")),
        ],
        version: "-X github.com/opentofu/opentofu/version.dev=no",
        programs: &[("tofu", "github.com/opentofu/opentofu/cmd/tofu")],
    },
    Module {
        name: "provider",
        files: &[
            ("go.mod", include_str!("../terraform-bed/provider/go.mod")),
            ("go.sum", include_str!("../terraform-bed/provider/go.sum")),
            ("main.go", include_str!("../terraform-bed/provider/main.go")),
        ],
        version: "",
        programs: &[("terraform-provider-aws", ".")],
    },
];
/// The bindings that tell the schema of the provider 6.69.1.
const BINDINGS: &str = "cdktn-provider-aws==25.8.1";
const SCHEMA: &str = include_str!("../terraform-bed/schema.py");

/// Why it cannot be built here; `None` where it can, or is there already.
pub(crate) fn obstacle() -> Option<String> {
    go::version_for("OpenTofu", &MODULES).err().map(|error| format!("{error:#}"))
}

/// Its directory, if it was built with this recipe and this Go.
pub(crate) fn there() -> Option<PathBuf> {
    let home = cache::dir().ok()?.join(directory(&go::version_for("OpenTofu", &MODULES).ok()?));
    home.is_dir().then_some(home)
}

/// The directory of the bed; it is built if need be.
///
/// # Errors
/// Go is missing or too old, a module or package cannot be had, or the cache directory cannot be written.
pub(crate) fn ensure() -> Result<PathBuf> {
    if let Some(home) = there() {
        return Ok(home);
    }
    let cache = cache::dir()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let home = cache.join(directory(&go::version_for("OpenTofu", &MODULES)?));
    let staging = Staging::new(&cache, "terraform-staging-")?;
    eprintln!("building OpenTofu into {} (once; six minutes of two processors)", home.display());
    let built = build(staging.path(), &home)?;
    if let Err(error) = fs::rename(&built, &home) {
        // Another run may have been quicker; then its copy serves as well.
        if !home.is_dir() {
            return Err(error).with_context(|| format!("cannot put it into place at {}", home.display()));
        }
    }
    Ok(home)
}

fn directory(go: &str) -> String {
    let recipe = format!("{go}\n{MODULES:?}\n{BINDINGS}\n{SCHEMA}\n{}", include_str!("terraform_bed.rs"));
    format!("terraform-{:016x}", fnv1a(recipe.as_bytes()))
}

/// Builds it in `staging`, for a place at `home`; returns its directory there.
fn build(staging: &Path, home: &Path) -> Result<PathBuf> {
    let bed = staging.join("bed");
    fs::create_dir_all(bed.join("bin"))?;
    // What takes seconds fails first.
    let schema = schema(staging).with_context(|| {
        format!("cannot read the provider's schema out of {BINDINGS}: check the network, and pip's settings")
    })?;
    go::build(&MODULES, staging, &bed)?;
    let version = serde_json::from_str::<Value>(&schema)?["version"].as_str().unwrap_or_default().to_owned();
    let platform = shell::stdout_of(Command::new("go").args(["env", "GOOS", "GOARCH"]))?;
    let platform = platform.split_whitespace().collect::<Vec<_>>().join("_");
    let package = bed.join("mirror/registry.opentofu.org/hashicorp/aws").join(&version).join(platform);
    fs::create_dir_all(&package)?;
    fs::write(package.join("schema.json"), schema)?;
    let program = package.join(format!("terraform-provider-aws_v{version}"));
    fs::rename(bed.join("bin/terraform-provider-aws"), program)?;
    let mirror = home.join("mirror");
    let settings = format!(
        "disable_checkpoint = true\nprovider_installation {{\n  filesystem_mirror {{\n    path = {mirror:?}\n  }}\n}}\n"
    );
    fs::write(bed.join("tofu.rc"), settings)?;
    Ok(bed)
}

/// The provider's schema, as JSON.
fn schema(staging: &Path) -> Result<String> {
    let (venv, bindings, program) =
        (staging.join("venv"), staging.join("bindings"), staging.join("schema.py"));
    shell::run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let target = bindings.as_os_str();
    conformance::pip(&venv, ["--no-deps".as_ref(), "--target".as_ref(), target, BINDINGS.as_ref()])?;
    let mut packed = fs::read_dir(bindings.join("cdktn_provider_aws/_jsii"))?.flatten();
    let packed = packed.find(|file| file.path().extension().is_some_and(|ending| ending == "tgz"));
    let Some(packed) = packed else { bail!("there are no bindings in it") };
    fs::write(&program, SCHEMA)?;
    let mut read = Command::new(venv.join("bin/python"));
    shell::stdout_of(read.arg(&program).arg(packed.path()).stdin(Stdio::null()))
}
