//! Shared by the tests of the shared tier.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fuseline_cache::shared::{Backoff, Fetched, SharedCache, SharedConfig, SharedEvent};
use fuseline_cache::{Fingerprint, Key, Record, SealedKind, Secret};

/// Longer than anything that ends takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) const FLEET: Secret = Secret::new([5; 32]);

/// A record with a number.
pub(crate) fn record(number: u32) -> Record {
    record_of(number, 10_000)
}

pub(crate) fn record_of(number: u32, len: usize) -> Record {
    Record {
        kind: SealedKind::Artifact,
        environment: Fingerprint::of(b"a fleet of equal machines"),
        region: Key::new([7; 32]),
        made_in: Duration::from_millis(30),
        loaded_in: None,
        request: number.to_le_bytes().to_vec(),
        artifact: (0..len).map(|at| (at as u32 * 7 + number) as u8).collect(),
    }
}

/// Quick to give up and to come back.
pub(crate) fn config(url: &str) -> SharedConfig {
    let mut config = SharedConfig::new(url, FLEET);
    config.backoff = Backoff { after: 3, first: Duration::from_millis(20), most: Duration::from_millis(40) };
    config
}

/// A cache and its events.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) cache: SharedCache,
    events: mpsc::Receiver<SharedEvent>,
}

impl Machine {
    pub(crate) fn new(config: SharedConfig) -> Machine {
        let (tell, events) = mpsc::channel();
        let cache = SharedCache::open(config, move |event| {
            println!("event: {event}");
            let _ = tell.send(event);
        });
        Machine { cache: cache.expect("settings that are right"), events }
    }

    pub(crate) fn get(&self, record: &Record) -> Fetched {
        self.cache.fetch(&record.request()).within(LONG).expect("an answer")
    }

    pub(crate) fn has(&self, record: &Record) -> bool {
        self.get(record).hit().is_some_and(|hit| **hit == *record)
    }

    pub(crate) fn put(&self, record: Record) {
        let _ = self.cache.offer(record);
        assert!(self.cache.flush(LONG), "{:?}", self.cache.stats());
    }

    pub(crate) fn await_event(&self, wanted: impl Fn(&SharedEvent) -> bool) -> SharedEvent {
        loop {
            let event = self.events.recv_timeout(LONG).expect("the event");
            if wanted(&event) {
                return event;
            }
        }
    }

    /// Repeats an action until an event arrives.
    pub(crate) fn await_event_while(
        &self,
        mut act: impl FnMut(),
        wanted: impl Fn(&SharedEvent) -> bool,
    ) -> SharedEvent {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LONG, "the event");
            act();
            if let Some(event) = self.events.try_iter().find(&wanted) {
                return event;
            }
        }
    }

    /// The events since the previous call.
    pub(crate) fn told(&self) -> Vec<SharedEvent> {
        self.events.try_iter().collect()
    }
}

/// Waits for other threads.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A temporary folder, removed on drop.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fuseline-shared-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
