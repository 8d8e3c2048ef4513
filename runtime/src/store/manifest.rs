//! Manifests list the regions that a run has requested, as JSON Lines.
//!
//! ```text
//! {"fuseline_manifest":1,"numerics":"fast","replicas":1}
//! {"key":"5f…","ops":12,"site":"src/main.rs:40","compile_ms":31.5,"request":"AXo…"}
//! ```
//!
//! `request` is what a compile depends on, except for the environment, in base64. The rest is for
//! people. `key` and `compile_ms` are those of the run. `compile_ms` is `null` for a region that
//! was interpreted or padded when it first came.
//!
//! Input: a file, which is not trusted. Output: recipes, or what is wrong in which line.
//!
//! Invariants:
//! - Manifests are read line by line. The length and the number of lines are bounded. A request is
//!   decoded by the rules of the op table.
//! - A file that a killed process leaves can be read: the last line counts only if it is complete.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fuseline_cache::disk::open_given;
use fuseline_fusion::lower::Numerics;
use serde_json::{Value, json};

use super::Recipe;
use crate::error::{Error, Result};

/// The version of the format.
const VERSION: u64 = 1;

/// Maximum length of a line in bytes. The largest region of the benchmark takes half a million.
const MAX_LINE: u64 = 64 << 20;

/// Maximum length of the first line in bytes.
const MAX_HEAD: u64 = 4096;

/// Maximum size of a manifest in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// Maximum number of lines.
const MAX_LINES: usize = 100_000;

/// A region that a run has requested.
#[derive(Clone, Debug)]
pub struct ManifestRegion {
    /// How to compile it.
    #[doc(hidden)]
    pub recipe: Recipe,
    key: String,
    site: String,
    compiled_in: Option<Duration>,
}

impl ManifestRegion {
    /// Its key in that run, shortened for people. In another environment the key differs.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Number of its ops.
    #[must_use]
    pub fn ops(&self) -> usize {
        self.recipe.canon.graph().nodes().len()
    }

    /// Call site of its first op.
    #[must_use]
    pub fn site(&self) -> &str {
        &self.site
    }

    /// How long its compile took, if it was compiled.
    #[must_use]
    pub fn compile_time(&self) -> Option<Duration> {
        self.compiled_in
    }
}

/// What a run has requested. See `EngineConfig::manifest`.
#[derive(Clone, Debug)]
pub struct Manifest {
    numerics: Numerics,
    replicas: usize,
    regions: Vec<ManifestRegion>,
    /// Bytes up to the end of the last complete line.
    whole: u64,
    is_cut_off: bool,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// When it cannot be read or is no manifest, with the line.
    pub fn read(path: impl AsRef<Path>) -> Result<Manifest> {
        let path = path.as_ref();
        let wrong = |line: Option<usize>, why: String| {
            let line = line.map(|line| format!(":{line}")).unwrap_or_default();
            Error::setup(format!("{}{line}: {why}", path.display()))
        };
        let (file, len) =
            open_given(path).map_err(|error| wrong(None, format!("it cannot be opened: {error}")))?;
        if len > MAX_BYTES {
            return Err(wrong(None, format!("a manifest has at most {MAX_BYTES} bytes")));
        }
        let mut input = BufReader::new(file);
        let mut manifest: Option<Manifest> = None;
        let (mut seen, mut whole) = (HashSet::new(), 0);
        for number in 1.. {
            let mut line = Vec::new();
            let most = if manifest.is_none() { MAX_HEAD } else { MAX_LINE };
            let read = input.by_ref().take(most + 1).read_until(b'\n', &mut line);
            let read = read.map_err(|error| wrong(Some(number), format!("it cannot be read: {error}")))?;
            if read == 0 {
                break;
            }
            if number > MAX_LINES {
                return Err(wrong(Some(number), format!("a manifest has at most {MAX_LINES} lines")));
            }
            if line.pop() != Some(b'\n') {
                if manifest.is_some() && read as u64 > MAX_LINE {
                    return Err(wrong(Some(number), format!("a line has at most {MAX_LINE} bytes")));
                }
                // A process was killed while it wrote this line.
                match &mut manifest {
                    Some(manifest) => manifest.is_cut_off = true,
                    None => {
                        return Err(wrong(Some(number), "it is not a manifest, or is truncated".to_owned()));
                    }
                }
                break;
            }
            whole += read as u64;
            if whole > MAX_BYTES {
                return Err(wrong(Some(number), format!("a manifest has at most {MAX_BYTES} bytes")));
            }
            match &mut manifest {
                None => manifest = Some(head(&line).map_err(|why| wrong(Some(number), why))?),
                // Two processes that start a manifest at once both write a head.
                Some(manifest) if head(&line).is_ok_and(|other| other.is_for(manifest.contract())) => {}
                Some(manifest) => {
                    let region = region(&line).map_err(|why| wrong(Some(number), why))?;
                    if seen.insert(Digest::of(&region.recipe.encode())) {
                        manifest.regions.push(region);
                    }
                }
            }
        }
        let mut manifest =
            manifest.ok_or_else(|| wrong(None, "it is empty and therefore not a manifest".to_owned()))?;
        manifest.whole = whole;
        Ok(manifest)
    }

    /// The regions, each once, in the order of their first request.
    #[must_use]
    pub fn regions(&self) -> &[ManifestRegion] {
        &self.regions
    }

    /// The numeric contract of the run.
    #[must_use]
    pub fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// The number of replicas of the run.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// Whether the last line is incomplete, as a killed process leaves it. That line does not
    /// count.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    /// Numeric contract and number of replicas of the run.
    #[doc(hidden)]
    pub fn contract(&self) -> (Numerics, usize) {
        (self.numerics, self.replicas)
    }

    /// Whether the manifest fits an engine with this contract.
    #[doc(hidden)]
    pub fn is_for(&self, contract: (Numerics, usize)) -> bool {
        self.contract() == contract
    }

    /// Length of the file without an incomplete line.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.whole
    }
}

/// Identifies a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Digest([u8; 32]);

impl Digest {
    pub(crate) fn of(request: &[u8]) -> Digest {
        Digest(*blake3::hash(request).as_bytes())
    }
}

/// The first line of a manifest.
pub(crate) fn head_line(numerics: Numerics, replicas: usize) -> String {
    let head = json!({"fuseline_manifest": VERSION, "numerics": numerics.to_string(), "replicas": replicas});
    format!("{head}\n")
}

/// The line of a region.
pub(crate) fn region_line(
    key: &str,
    ops: usize,
    site: &str,
    compiled_in: Option<Duration>,
    request: &[u8],
) -> String {
    let compile_ms = compiled_in.map(|took| (took.as_secs_f64() * 1e6).round() / 1e3);
    let request = STANDARD.encode(request);
    let line = json!({"key": key, "ops": ops, "site": site, "compile_ms": compile_ms, "request": request});
    format!("{line}\n")
}

fn document(line: &[u8]) -> std::result::Result<Value, String> {
    serde_json::from_slice(line).map_err(|error| format!("it is not a JSON document: {error}"))
}

fn head(line: &[u8]) -> std::result::Result<Manifest, String> {
    let document = document(line)?;
    let version = document
        .get("fuseline_manifest")
        .ok_or("it is not a manifest: its first line has no `fuseline_manifest`")?;
    if version.as_u64() != Some(VERSION) {
        return Err(format!("it is a manifest of version {version}, but this build reads version {VERSION}"));
    }
    let numerics = [Numerics::Fast, Numerics::Exact]
        .into_iter()
        .find(|numerics| document["numerics"] == numerics.to_string())
        .ok_or("`numerics` is neither `fast` nor `exact`")?;
    let replicas = document["replicas"].as_u64().and_then(|replicas| usize::try_from(replicas).ok());
    let replicas =
        replicas.filter(|&replicas| replicas > 0).ok_or("`replicas` must be a positive integer")?;
    Ok(Manifest { numerics, replicas, regions: Vec::new(), whole: 0, is_cut_off: false })
}

fn region(line: &[u8]) -> std::result::Result<ManifestRegion, String> {
    const MAX_WORDS: usize = 400;
    let document = document(line)?;
    let words = |name: &str| -> String {
        let words = document[name].as_str().unwrap_or_default();
        words.chars().filter(|char| !char.is_control()).take(MAX_WORDS).collect()
    };
    let request = document["request"].as_str().ok_or("`request` must be a base64 string")?;
    let request =
        STANDARD.decode(request).map_err(|error| format!("`request` is not valid base64: {error}"))?;
    let recipe = Recipe::decode(&request)?;
    let ops = recipe.canon.graph().nodes().len() as u64;
    if document["ops"].as_u64().is_some_and(|said| said != ops) {
        return Err(format!("`ops` is {}, but the region has {ops} ops", document["ops"]));
    }
    let compiled_in =
        document["compile_ms"].as_f64().and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok());
    Ok(ManifestRegion { recipe, key: words("key"), site: words("site"), compiled_in })
}
