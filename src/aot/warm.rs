//! Compiles what a manifest lists and the disk cache does not have.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use fuseline_fusion::lower::Numerics;
use fuseline_runtime::internals::{Ahead, Settings, compile_ahead};
use fuseline_runtime::{Error, Result};

use super::{Environment, Manifest};
use crate::engine::Engine;

/// The outcome of a region of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warmed {
    /// It was compiled, in this time, and stored.
    Compiled(Duration),
    /// The cache had it.
    Present,
    /// Why the cache does not have it.
    Failed(String),
}

impl Engine {
    /// The environment of this engine's executables. `None` without a disk cache.
    #[must_use]
    pub fn cache_environment(&self) -> Option<Environment> {
        let store = self.shared().settled_store()?;
        store.environment().cloned().map(Environment::new)
    }

    /// Why this engine stores no executables on the disk although it is configured to: a folder
    /// that others may access, a full disk, an invalid environment variable, a plugin whose file
    /// cannot be determined. `None` if it does, and if the disk cache is off.
    /// [`Event::CacheTrouble`](crate::Event::CacheTrouble) reports the same.
    #[must_use]
    pub fn why_no_disk_cache(&self) -> Option<&str> {
        self.shared().stores().no_disk()
    }

    /// Compiles what a manifest lists and the disk cache does not have, on the engine's compile
    /// threads, and waits for it. Returns the outcome of each region, in the manifest's order.
    /// `each` is called as they end, with their positions. A failed compile fails nothing else.
    ///
    /// It is meant for a run like the one that wrote the manifest: with the same compiler flags and
    /// client options, which the manifest does not contain, with the same plugin and on a similar
    /// machine.
    ///
    /// # Errors
    /// When there is no disk cache, when it is read-only, or when the manifest is for another
    /// numeric contract or number of replicas.
    pub fn warm_cache(&self, manifest: &Manifest, each: impl FnMut(usize, &Warmed)) -> Result<Vec<Warmed>> {
        let shared = self.shared();
        shared.needed_store()?;
        check(manifest, shared.config(), (shared.device().numerics(), shared.device().replicas()))?;
        let stream = self.new_stream();
        let (send, receive) = mpsc::channel();
        for place in in_order(manifest) {
            let recipe = manifest.regions()[place].recipe.optimized();
            let send = send.clone();
            // The receiver waits for all of them, or was already told of this one.
            compile_ahead(recipe, stream.shared(), move |made| drop(send.send((place, made))));
        }
        drop(send);
        Ok(gather(manifest, &receive, each))
    }
}

/// Checks that a manifest can be compiled with this configuration, numeric contract and number of
/// replicas.
pub(super) fn check(manifest: &Manifest, config: &Settings, here: (Numerics, usize)) -> Result<()> {
    if config.cache_only {
        return Err(Error::setup("this engine does not compile (EngineConfig::cache_only)"));
    }
    if !manifest.is_for(here) {
        let (numerics, replicas) = manifest.contract();
        return Err(Error::setup(format!(
            "the manifest was written by a run with {numerics} numerics and {replicas} replicas, \
             but this engine has {} numerics and {} replicas",
            here.0, here.1
        )));
    }
    Ok(())
}

/// The positions of a manifest's regions, longest first, so that no long compile is started last.
pub(super) fn in_order(manifest: &Manifest) -> Vec<usize> {
    let mut order: Vec<usize> = (0..manifest.regions().len()).collect();
    order.sort_by_key(|&place| std::cmp::Reverse(manifest.regions()[place].ops()));
    order
}

/// Collects the outcome of each region as it arrives.
pub(super) fn gather(
    manifest: &Manifest,
    receive: &Receiver<(usize, std::result::Result<Ahead, String>)>,
    mut each: impl FnMut(usize, &Warmed),
) -> Vec<Warmed> {
    let mut all: Vec<Option<Warmed>> = vec![None; manifest.regions().len()];
    let mut left = all.len();
    while left > 0
        && let Ok((place, made)) = receive.recv()
    {
        if all[place].is_some() {
            // It was abandoned before.
            continue;
        }
        let warmed = match made {
            Ok(Ahead::Compiled(took)) => Warmed::Compiled(took),
            Ok(Ahead::Present) => Warmed::Present,
            Err(why) => Warmed::Failed(why),
        };
        each(place, &warmed);
        all[place] = Some(warmed);
        left -= 1;
    }
    let lost = || Warmed::Failed("its compile thread ended unexpectedly".to_owned());
    all.into_iter().map(|warmed| warmed.unwrap_or_else(lost)).collect()
}
