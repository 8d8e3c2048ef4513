//! Explains why the disk cache has no executable for a region: what it has instead, and how that
//! differs.
//!
//! Input: a request that was not found. Output: text for people. Entries are read from the latest
//! on, at most [`MAX_READ`] bytes of them, and each is verified before it is used. The caller has
//! nothing else to wait for.

use fuseline_cache::disk::DiskCache;
use fuseline_cache::{Record, SealedKind};
use fuseline_fusion::canon::{CanonRegion, diff};
use fuseline_fusion::{OpCode, Site};

use super::{Environment, Recipe, Store, StoreKey};
use crate::limits::MAX_TOLD_DIFFERENCES;
use crate::region::RegionInfo;

/// Maximum number of bytes of entries that are read for one explanation.
const MAX_READ: u64 = 256 << 20;

/// Maximum number of call sites that are named.
const MAX_SITES: usize = 4;

/// The most similar entry.
enum Near {
    /// The same, in an environment with these differences.
    Elsewhere(Vec<String>),
    /// The same ops, with other results, aliases or constants.
    Otherwise(String),
    /// The same sequence of ops with other types or attributes.
    Changed(Vec<String>),
    /// Another sequence, of which this many ops are alike, counted from both ends.
    Ops { alike: usize, words: String },
}

impl Near {
    /// A larger rank is more similar.
    fn rank(&self) -> (u8, usize) {
        match self {
            Near::Elsewhere(parts) => (3, usize::MAX - parts.len()),
            Near::Otherwise(_) => (2, 0),
            Near::Changed(differences) => (1, usize::MAX - differences.len()),
            Near::Ops { alike, .. } => (0, *alike),
        }
    }
}

impl Store {
    /// Explains why a request was not found, where its ops were recorded, and what to do.
    pub(crate) fn missing(&self, asked: &StoreKey, info: &RegionInfo) -> String {
        let Some(disk) = &self.disk else { return "there is no disk cache".to_owned() };
        let root = disk.root().display();
        let mut entries = disk.list().unwrap_or_default();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
        let (mut left, mut nearest, mut seen) = (MAX_READ, None::<Near>, 0);
        for entry in entries {
            let Some(after) = left.checked_sub(entry.size) else { break };
            left = after;
            let Ok(Some(record)) = disk.open_entry(&entry.name) else { continue };
            if record.kind == SealedKind::Note {
                continue;
            }
            seen += 1;
            let near = self.compare(disk, &record, asked, info);
            if let Some(near) = near
                && nearest.as_ref().is_none_or(|other| other.rank() < near.rank())
            {
                nearest = Some(near);
            }
        }
        let what = match nearest {
            None if seen == 0 => format!("{root} has no executables"),
            None => format!("none of {seen} executables in {root} is alike"),
            Some(Near::Elsewhere(parts)) => {
                format!("it was compiled in another environment: {}", parts.join("; "))
            }
            Some(Near::Otherwise(words)) => format!("the same ops were compiled otherwise: {words}"),
            Some(Near::Changed(differences)) => {
                format!("the nearest that was compiled differs: {}", differences.join("; "))
            }
            Some(Near::Ops { words, .. }) => format!("the nearest that was compiled differs: {words}"),
        };
        format!(
            "it is not in the disk cache, and nothing may be compiled (EngineConfig::cache_only): \
             {what}. {} recorded at {}. A run with \
             EngineConfig::manifest writes down what it needs, and `fuseline cache warm` compiles that",
            match info.reference.ops {
                1 => "Its op was".to_owned(),
                ops => format!("Its {ops} ops were"),
            },
            sites(&info.sites),
        )
    }

    fn compare(
        &self,
        disk: &DiskCache,
        record: &Record,
        asked: &StoreKey,
        info: &RegionInfo,
    ) -> Option<Near> {
        let is_here = record.environment == asked.environment;
        // The last byte says whether it is a baseline compile.
        let same = |bytes: &[u8]| bytes.split_last().map(|(_, rest)| rest.to_vec());
        if same(&record.request) == same(&asked.bytes) {
            if is_here {
                let made = record.made_in.as_millis();
                return (record.kind == SealedKind::NotWorthIt).then(|| {
                    Near::Otherwise(format!(
                        "to load it took longer than to compile it, {made} ms, so it was not kept"
                    ))
                });
            }
            return Some(Near::Elsewhere(self.environment_differs(disk, record)));
        }
        let recipe = Recipe::decode(&record.request).ok().filter(|_| is_here)?;
        if recipe.canon == info.canon {
            let wanted = Recipe::decode(&asked.bytes).ok()?;
            return Some(Near::Otherwise(differs(&recipe, &wanted)));
        }
        if recipe.canon.skeleton() == info.canon.skeleton() {
            let mut differences = diff(&recipe.canon, &info.canon);
            differences.truncate(MAX_TOLD_DIFFERENCES);
            return Some(Near::Changed(differences.iter().map(ToString::to_string).collect()));
        }
        alike(&recipe.canon, info)
    }

    /// How the environment of an entry differs from this one.
    fn environment_differs(&self, disk: &DiskCache, record: &Record) -> Vec<String> {
        let note = disk.open_entry(&Environment::request(record.environment).name()).ok().flatten();
        let there = note.and_then(|note| Environment::of_note(&note));
        let (Some(here), Some(there)) = (self.environment(), there) else {
            return vec!["nothing is known of that".to_owned()];
        };
        let words =
            |(part, here, there): (&str, &str, &str)| format!("{part} was {there} there and is {here} here");
        here.differences(&there).into_iter().map(words).collect()
    }
}

/// How two compiles of the same region differ.
fn differs(was: &Recipe, is: &Recipe) -> String {
    let list = |numbers: Vec<u32>| format!("{numbers:?}");
    let mut words = Vec::new();
    let rows = [
        ("returning results", was.spec.outputs.iter().collect(), is.spec.outputs.iter().collect()),
        ("reusing the memory of inputs", was.spec.donated.clone(), is.spec.donated.clone()),
        (
            "with constants for inputs",
            was.spec.constants.iter().map(|fixed| fixed.0).collect(),
            is.spec.constants.iter().map(|fixed| fixed.0).collect(),
        ),
    ];
    for (what, was, is) in rows {
        if was != is {
            words.push(format!("{what} {} instead of {}", list(was), list(is)));
        }
    }
    if words.is_empty() {
        words.push("with other values of its constants".to_owned());
    }
    words.join(", ")
}

/// How much of two sequences of ops is alike, if it is at least half.
fn alike(other: &CanonRegion, info: &RegionInfo) -> Option<Near> {
    let ops = |region: &CanonRegion| -> Vec<OpCode> {
        region.graph().nodes().iter().map(|node| node.signature().op()).collect()
    };
    let (own, theirs) = (ops(&info.canon), ops(other));
    let from_start = own.iter().zip(&theirs).take_while(|(own, theirs)| own == theirs).count();
    let ends = own.iter().rev().zip(theirs.iter().rev());
    let from_end = ends.take_while(|(own, theirs)| own == theirs).count();
    let alike = (from_start + from_end).min(own.len()).min(theirs.len());
    if 2 * alike < own.len().max(theirs.len()) {
        return None;
    }
    let name = |op: Option<&OpCode>| op.map_or("its end".to_owned(), |op| format!("`{}`", op.name()));
    let (now, then) = (name(own.get(from_start)), name(theirs.get(from_start)));
    let site = info.sites.get(from_start).map(|site| format!(", recorded at {site},")).unwrap_or_default();
    let of = theirs.len();
    let words = format!("of its {of} ops {alike} are alike; op {from_start} is {now}{site} and was {then}");
    Some(Near::Ops { alike, words })
}

/// The distinct call sites of ops.
fn sites(sites: &[Site]) -> String {
    let mut distinct: Vec<String> = Vec::new();
    for site in sites {
        let site = site.to_string();
        if distinct.last() != Some(&site) && !distinct.contains(&site) {
            distinct.push(site);
        }
    }
    let more = distinct.len().saturating_sub(MAX_SITES);
    distinct.truncate(MAX_SITES);
    let mut words = if distinct.is_empty() { Site::Unknown.to_string() } else { distinct.join(", ") };
    if more > 0 {
        words += &format!(" and {more} more places");
    }
    words
}
