//! Writes a manifest during a run.
//!
//! Input: the requests for regions. Output: a line for each new request, in one write each, so that
//! a process that is killed leaves a manifest of all earlier requests. A file that is a manifest
//! with the same contract is continued. Any other file is left alone.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fuseline_cache::disk::Output;
use fuseline_fusion::lower::Numerics;
use fuseline_sync::{Mutex, Rank};

use super::manifest::{Digest, Manifest, head_line, region_line};
use crate::event::{Event, Events};
use crate::region::RegionInfo;

/// The manifest of a run.
pub(crate) struct ManifestWriter {
    path: PathBuf,
    events: Events,
    state: Mutex<WriterState>,
}

struct WriterState {
    /// `None` after a write failed.
    file: Option<Output>,
    written: HashSet<Digest>,
}

impl ManifestWriter {
    /// Starts a manifest, or continues one.
    pub(crate) fn open(
        path: &Path,
        numerics: Numerics,
        replicas: usize,
        events: Events,
    ) -> Result<ManifestWriter, String> {
        let failed = |doing: &str, error: std::io::Error| {
            format!("the manifest {} cannot be {doing}: {error}", path.display())
        };
        let mut file = Output::append(path).map_err(|error| failed("opened", error))?;
        let mut written = HashSet::new();
        if file.file().metadata().map_err(|error| failed("examined", error))?.len() == 0 {
            let head = head_line(numerics, replicas);
            file.write_all(head.as_bytes()).map_err(|error| failed("written", error))?;
        } else {
            let before =
                Manifest::read(path).map_err(|error| format!("the manifest cannot be continued: {error}"))?;
            if !before.is_for((numerics, replicas)) {
                let (theirs, count) = before.contract();
                return Err(format!(
                    "the manifest {} was written by a run with {theirs} numerics and {count} \
                     replicas, but this run has {numerics} numerics and {replicas} replicas: give \
                     it a file of its own",
                    path.display()
                ));
            }
            if before.is_cut_off() {
                file.file().set_len(before.whole_bytes()).map_err(|error| failed("repaired", error))?;
            }
            written = before.regions().iter().map(|region| Digest::of(&region.recipe.encode())).collect();
        }
        let state = Mutex::new(Rank::Manifest, WriterState { file: Some(file), written });
        Ok(ManifestWriter { path: path.to_owned(), events, state })
    }

    /// Writes a request, once.
    pub(crate) fn note(&self, info: &RegionInfo, request: &[u8], took: Option<Duration>) {
        let mut state = self.state.lock();
        if !state.written.insert(Digest::of(request)) {
            return;
        }
        let Some(file) = &mut state.file else { return };
        let (key, (_, site)) = (info.reference.key.to_string(), info.address(0));
        let line = region_line(&key, info.reference.ops, &site.to_string(), took, request);
        let Err(error) = file.write_all(line.as_bytes()) else { return };
        state.file = None;
        drop(state);
        let path = self.path.display();
        self.events.emit(|| Event::CacheTrouble {
            what: format!(
                "the manifest {path} cannot be written: {error}; regions from here on are missing in it"
            ),
        });
    }
}
