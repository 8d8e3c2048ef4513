//! Compiles what a manifest lists for devices that need not be present.
//!
//! Input: the plugin's name for such devices. Output: entries of the disk cache that a run on these
//! devices finds, with the same plugin file, client options and flags. [`super::export`] takes them
//! there.
//!
//! Invariant:
//! - No executable is loaded or run here. It is stored under the request of a run on the target, as
//!   far as the plugin reports the same of its topology and of its client (D1 in
//!   `runtime/src/device/compiler.rs`). Where it does not, that run misses and compiles.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use fuseline_cache::SealedKind;
use fuseline_cache::disk::{JoinOutcome, Stage as Attempt};
use fuseline_fusion::Site;
use fuseline_fusion::canon::EnvFingerprint;
use fuseline_runtime::internals::{
    Ahead, Compiler, Events, Machine, QueueItem, Recipe, Store, check_module_size, compile_pool, fingerprint,
    guarded,
};
use fuseline_runtime::{Error, Result};

use super::warm::{check, gather, in_order};
use super::{Environment, Manifest, Warmed};
use crate::client::first_device;
use crate::config::EngineConfig;
use crate::engine::open_plugin;
use crate::pjrt::{Topology, Value};

/// How long to wait for another process that compiles the same.
const PATIENCE: Duration = Duration::from_secs(60);

/// Devices that need not be present, as a plugin names them.
///
/// ```no_run
/// use fuseline::EngineConfig;
/// use fuseline::aot::{Manifest, Target};
///
/// let manifest = Manifest::read("run.jsonl")?;
/// let config = EngineConfig::new().plugin("/opt/libtpu.so").numerics(manifest.numerics());
/// config.warm_cache_for(&Target::new("v5e:2x2"), &manifest, |_, _| ())?;
/// # Ok::<(), fuseline::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    name: String,
    options: Vec<(String, Value)>,
}

impl Target {
    /// Creates a target from a name in the plugin's terms (`PJRT_TopologyDescription_Create`). Some
    /// plugins have one without a name, described by options.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Target {
        Target { name: name.into(), options: Vec::new() }
    }

    /// Sets an option of the plugin for its topology. The last value of a name counts.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: impl Into<Value>) -> Target {
        let name = name.into();
        self.options.retain(|row| row.0 != name);
        self.options.push((name, value.into()));
        self
    }
}

/// What compiling for a target needs.
struct Elsewhere {
    topology: Topology,
    compiler: Compiler,
    environment: EnvFingerprint,
    store: Arc<Store>,
}

impl EngineConfig {
    /// Compiles what a manifest lists and the disk cache does not have for devices that need not be
    /// present, in parallel, and waits for it. Returns the outcome of each region, in the
    /// manifest's order. `each` is called as they end, with their positions. A failed compile fails
    /// nothing else.
    ///
    /// The rest of the configuration is that of the runs on the target: plugin, client options,
    /// compiler flags, numeric contract, replicas, first device. Their folder has to be the one
    /// that is configured here, or it gets the entries as a bundle ([`super::export`]).
    ///
    /// # Errors
    /// When the plugin compiles only for devices that are present (XLA's for CPUs does), or knows
    /// none of that name; when there are fewer of them than replicas; when there is no disk cache,
    /// or it is read-only; when the manifest is for another numeric contract or number of replicas.
    pub fn warm_cache_for(
        &self,
        target: &Target,
        manifest: &Manifest,
        each: impl FnMut(usize, &Warmed),
    ) -> Result<Vec<Warmed>> {
        let elsewhere = Arc::new(self.elsewhere(target, manifest)?);
        let threads =
            |error: std::io::Error| Error::setup(format!("cannot start the compile threads: {error}"));
        let workers = compile_pool(self.settings()).map_err(threads)?;
        let (send, receive) = mpsc::channel();
        for place in in_order(manifest) {
            let (elsewhere, send) = (elsewhere.clone(), send.clone());
            let recipe = manifest.regions()[place].recipe.optimized();
            let work = move || {
                let made = guarded(|| Ok(elsewhere.make(&recipe)));
                // The receiver goes on as soon as all outcomes have arrived.
                drop(elsewhere);
                drop(send.send((place, made.unwrap_or_else(|error| Err(error.message)))));
            };
            workers.push(QueueItem::new(work.into()));
        }
        drop(send);
        let warmed = gather(manifest, &receive, each);
        // Another thread uploads what is offered to a shared cache.
        elsewhere.store.wait();
        Ok(warmed)
    }

    /// The environment of the executables that [`EngineConfig::warm_cache_for`] makes.
    ///
    /// # Errors
    /// As for [`EngineConfig::warm_cache_for`].
    pub fn cache_environment_for(&self, target: &Target) -> Result<Environment> {
        let (_, compiler) = self.compiler_for(target)?;
        let store = self.store_for(&compiler)?;
        let environment = store.environment().cloned().map(Environment::new);
        environment.ok_or_else(|| Error::setup("the compile environment cannot be determined"))
    }

    fn elsewhere(&self, target: &Target, manifest: &Manifest) -> Result<Elsewhere> {
        check(manifest, self.settings(), (self.settings().numerics, self.settings().replicas))?;
        let (topology, compiler) = self.compiler_for(target)?;
        let store = self.store_for(&compiler)?;
        let environment = fingerprint(&compiler.describe());
        Ok(Elsewhere { topology, compiler, environment, store })
    }

    fn compiler_for(&self, target: &Target) -> Result<(Topology, Compiler)> {
        Error::unless_forked(&Site::Unknown)?;
        let plugin = open_plugin(self)?;
        let topology = plugin.topology(&target.name, &target.options).map_err(|error| {
            let path = plugin.path().display();
            let name = &target.name;
            Error::setup(format!(
                "the plugin {path} cannot compile for \"{name}\" without such a device on this machine: {error}"
            ))
        })?;
        let (first, replicas) = (first_device(&plugin, self.settings()), self.settings().replicas);
        let machine = Machine::of(&topology, first, replicas).ok_or_else(|| {
            let (name, count) = (topology.name(), topology.devices().len());
            Error::setup(format!(
                "the configuration needs {replicas} devices from number {first} on, but \"{name}\" has {count}"
            ))
        })?;
        let asked = |module: &str, options: &_| topology.compile(module, options).map(drop);
        let compiler = Compiler::new(machine, &self.settings().flags, self.settings().numerics, asked)?;
        Ok((topology, compiler))
    }

    /// The disk cache, for the environment of a compiler.
    fn store_for(&self, compiler: &Compiler) -> Result<Arc<Store>> {
        let (store, why) = Store::open(&self.settings().store(), &Events::to(self.settings().sink.clone()));
        let Some(store) = store.filter(|store| store.has_disk()) else {
            let why = why.as_deref().unwrap_or("it is not configured");
            return Err(Error::setup(format!("the disk cache is off: {why}")));
        };
        store.settle(compiler, &self.settings().client_options);
        if store.environment().is_none() {
            let why = store.why_unknown().unwrap_or("the compile environment cannot be determined");
            return Err(Error::setup(format!("the disk cache is off: {why}")));
        }
        Ok(store)
    }
}

impl Elsewhere {
    fn make(&self, recipe: &Recipe) -> std::result::Result<Ahead, String> {
        let Recipe { canon, spec } = recipe;
        let mut handler = None;
        let _found = canon.graph().any_op(&mut |signature| {
            handler = signature.handler().map(|target| target.name().to_owned());
            handler.is_some()
        });
        if let Some(name) = handler {
            return Err(format!(
                "it calls {name}, a function that exists only in the process that registered it"
            ));
        }
        let (outputs, aliases) = spec.aliases(canon);
        let asked = self.store.ask(canon.key(&self.environment), canon, spec);
        let asked = asked.ok_or("the compile environment cannot be determined")?;
        let suspect = asked.suspect(canon);
        if let Some(quarantine) = self.store.quarantine(suspect) {
            return Err(quarantine.to_string());
        }
        match self.store.load(&asked).map(|record| record.kind) {
            Some(SealedKind::Artifact) => return Ok(Ahead::Present),
            // Whoever asks ahead of time wants no note that the entry is not worth loading.
            Some(_) => self.store.forget(&asked),
            None => {}
        }
        let flight = match self.store.join(&asked, PATIENCE) {
            JoinOutcome::Leader(flight) => Some(flight),
            JoinOutcome::NoLock => None,
            JoinOutcome::Ready(_) => return Ok(Ahead::Present),
        };
        let since = Instant::now();
        check_module_size(canon).map_err(|error| error.message)?;
        let module = self
            .compiler
            .module(canon, &outputs, &aliases, &spec.constants)
            .map_err(|error| error.message)?;
        let options = self.compiler.options(canon, spec.tier);
        let mark = self.store.mark(Attempt::Make, suspect, asked.name());
        let artifact = self.topology.compile(module.text(), &options).map_err(|error| error.to_string())?;
        drop(mark);
        let took = since.elapsed();
        let stored = self.store.keep(&asked, artifact, took);
        drop(flight);
        self.store.sweep(false);
        match stored {
            true => Ok(Ahead::Compiled(took)),
            // Another process may have been faster.
            false if self.store.may_have(&asked) => Ok(Ahead::Present),
            false => Err("it was compiled but cannot be stored: the cache folder is not writable, \
                          or FUSELINE_CACHE=read-only is set"
                .to_owned()),
        }
    }
}
