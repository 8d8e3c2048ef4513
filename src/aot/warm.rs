//! Compiling what a manifest says and the disk cache does not have.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use fuseline_fusion::lower::Numerics;

use super::{Environment, Manifest};
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::execute::{Ahead, compile_ahead};

/// What became of a region of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warmed {
    /// It was compiled, in so much time, and stored.
    Compiled(Duration),
    /// It was there.
    Present,
    /// Why it is not there.
    Failed(String),
}

impl Engine {
    /// Which environment this engine's executables belong to. `None` without a disk cache.
    #[must_use]
    pub fn cache_environment(&self) -> Option<Environment> {
        let store = self.shared().settled_store()?;
        store.environment().cloned().map(Environment::new)
    }

    /// Why this engine keeps no executables on the disk although it was to: a folder that others
    /// may use, a full disk, a variable of the environment that cannot be understood, a plugin of
    /// which it is not known what it was loaded from. `None` if it does, and if it was told not to.
    /// [`Event::CacheTrouble`](crate::Event::CacheTrouble) tells the same.
    #[must_use]
    pub fn why_no_disk_cache(&self) -> Option<&str> {
        self.shared().no_disk()
    }

    /// Compiles what a manifest has and the disk cache has not, on the engine's compile threads,
    /// and waits for it. Returns what became of each region, in the manifest's order; `each` is
    /// told as they end, with their places. What cannot be compiled fails nothing else.
    ///
    /// It is for a run like the one that wrote the manifest: with the same flags of the compiler
    /// and options of the client, which the manifest does not say, on the same plugin and a like
    /// machine.
    ///
    /// # Errors
    /// When there is no disk cache, when it may not be added to, or when the manifest is for
    /// another numeric contract or number of replicas.
    pub fn warm_cache(&self, manifest: &Manifest, each: impl FnMut(usize, &Warmed)) -> Result<Vec<Warmed>> {
        let shared = self.shared();
        shared.needed_store()?;
        check(manifest, shared.config(), (shared.device().numerics(), shared.device().replicas()))?;
        let stream = self.new_stream();
        let (send, receive) = mpsc::channel();
        for place in in_order(manifest) {
            let recipe = manifest.regions()[place].recipe.optimized();
            let send = send.clone();
            // Who asked waits for all of them, or has heard of this one.
            compile_ahead(recipe, stream.shared(), move |made| drop(send.send((place, made))));
        }
        drop(send);
        Ok(gather(manifest, &receive, each))
    }
}

/// Whether a manifest can be compiled for this contract and so many replicas, by who is configured
/// so.
pub(super) fn check(manifest: &Manifest, config: &EngineConfig, here: (Numerics, usize)) -> Result<()> {
    if config.is_cache_only() {
        return Err(Error::setup("this engine compiles nothing (EngineConfig::cache_only)"));
    }
    if !manifest.is_for(here) {
        let (numerics, replicas) = manifest.contract();
        return Err(Error::setup(format!(
            "the manifest is of a run with {numerics} numerics and {replicas} replicas, and this engine has {} and {}",
            here.0, here.1
        )));
    }
    Ok(())
}

/// The places of a manifest's regions, the longest first: or the last threads wait for them.
pub(super) fn in_order(manifest: &Manifest) -> Vec<usize> {
    let mut order: Vec<usize> = (0..manifest.regions().len()).collect();
    order.sort_by_key(|&place| std::cmp::Reverse(manifest.regions()[place].ops()));
    order
}

/// What becomes of each region, as it is told.
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
            // It was given up.
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
    let lost = || Warmed::Failed("the thread that compiled it ended".to_owned());
    all.into_iter().map(|warmed| warmed.unwrap_or_else(lost)).collect()
}
