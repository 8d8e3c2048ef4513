//! Tests of the tier with an in-memory store that behaves as told.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "a test, on real threads"
)]

use std::sync::Mutex as StdMutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use tokio::sync::Semaphore;

use super::*;
use crate::{Fingerprint, Key, SealedKind, Sealer, Secret};

/// Longer than any operation that ends.
const LONG: Duration = Duration::from_secs(60);

/// How the store behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Good,
    Fails,
    Denies,
    Panics,
}

#[derive(Debug)]
struct Moody {
    inner: InMemory,
    mood: StdMutex<Mood>,
    /// Permits for reads and writes to begin.
    reads: Semaphore,
    writes: Semaphore,
    gets: AtomicUsize,
    heads: AtomicUsize,
    puts: AtomicUsize,
    /// Does not support conditional writes.
    plain: bool,
}

impl Moody {
    fn new() -> Moody {
        Moody {
            inner: InMemory::new(),
            mood: StdMutex::new(Mood::Good),
            reads: Semaphore::new(1 << 20),
            writes: Semaphore::new(1 << 20),
            gets: AtomicUsize::new(0),
            heads: AtomicUsize::new(0),
            puts: AtomicUsize::new(0),
            plain: false,
        }
    }

    fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn mood(&self) -> StoreResult<()> {
        let mood = *self.mood.lock().unwrap();
        let said = |text: &str| Box::from(text.to_owned());
        match mood {
            Mood::Good => Ok(()),
            Mood::Fails => Err(object_store::Error::Generic { store: "moody", source: said("not now") }),
            Mood::Denies => Err(object_store::Error::PermissionDenied {
                path: String::new(),
                source: said("status code: 403 Forbidden: <Error><Code>AccessDenied</Code></Error>"),
            }),
            Mood::Panics => panic!("the store panics, as the test wants"),
        }
    }
}

impl fmt::Display for Moody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Moody")
    }
}

#[async_trait]
impl ObjectStore for Moody {
    async fn put_opts(&self, at: &Path, payload: PutPayload, opts: PutOptions) -> StoreResult<PutResult> {
        if self.plain && opts.mode == PutMode::Create {
            let operation = "conditions".to_owned();
            return Err(object_store::Error::NotImplemented { operation, implementer: "Moody".to_owned() });
        }
        self.puts.fetch_add(1, SeqCst);
        self.writes.acquire().await.unwrap().forget();
        self.mood()?;
        self.inner.put_opts(at, payload, opts).await
    }

    async fn get_opts(&self, at: &Path, opts: GetOptions) -> StoreResult<GetResult> {
        if opts.head {
            self.heads.fetch_add(1, SeqCst);
        } else {
            self.gets.fetch_add(1, SeqCst);
            self.reads.acquire().await.unwrap().forget();
        }
        self.mood()?;
        self.inner.get_opts(at, opts).await
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        unreachable!("the tier writes in one piece")
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        unreachable!("the tier deletes nothing")
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        unreachable!("the tier lists nothing")
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> StoreResult<ListResult> {
        unreachable!("the tier lists nothing")
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> StoreResult<()> {
        unreachable!("the tier copies nothing")
    }
}

fn record(number: u32) -> Record {
    Record {
        kind: SealedKind::Artifact,
        environment: Fingerprint::of(b"here"),
        region: Key::new([7; 32]),
        made_in: Duration::from_millis(30),
        loaded_in: None,
        request: number.to_le_bytes().to_vec(),
        artifact: vec![number as u8; 1000],
    }
}

/// A cache, its store and its events.
struct Fixture {
    store: Arc<Moody>,
    cache: SharedCache,
    events: mpsc::Receiver<SharedEvent>,
}

fn config() -> SharedConfig {
    let mut config = SharedConfig::new("memory", Secret::new([1; 32]));
    config.timeout = LONG;
    config.backoff = Backoff { after: 3, first: Duration::from_millis(5), most: Duration::from_millis(5) };
    config
}

fn opened(config: SharedConfig, store: Moody) -> Fixture {
    let store = Arc::new(store);
    let place = StoreLocation {
        store: Arc::clone(&store) as Arc<dyn ObjectStore>,
        prefix: Path::from("a/b"),
        is_folder: false,
        scrub: Default::default(),
    };
    let (tell, events) = mpsc::channel();
    let sink = move |event: SharedEvent| {
        let panics = matches!(event, SharedEvent::Offline { .. });
        tell.send(event).unwrap();
        assert!(!panics, "the sink panics, as the tests want");
    };
    let cache = SharedCache::start(config, place, Box::new(sink)).unwrap();
    Fixture { store, cache, events }
}

impl Fixture {
    fn get(&self, record: &Record) -> Fetched {
        self.cache.fetch(&record.request()).within(LONG).expect("an answer")
    }

    fn await_event(&self, wanted: impl Fn(&SharedEvent) -> bool) {
        while !wanted(&self.events.recv_timeout(LONG).expect("the event")) {}
    }
}

/// Waits for an effect of another thread.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_one_offers_another_gets() {
    let it = opened(config(), Moody::new());
    assert_eq!(it.cache.offer(record(1)), Offered::Queued);
    assert!(it.cache.flush(LONG));
    assert_eq!(it.get(&record(1)), Fetched::Hit(Arc::new(record(1))));
    assert_eq!(it.cache.offer(record(1)), Offered::Known);
    let stats = it.cache.stats();
    assert_eq!((stats.hits, stats.written, stats.queued, stats.misses), (1, 1, 0, 0));
    assert_eq!(it.store.heads.load(SeqCst), 0, "the store itself sees to it that nothing is written twice");
    assert!(stats.bytes_down == stats.bytes_up && stats.bytes_up > 1000, "{stats:?}");
    assert!(stats.read_time >= stats.longest_read && stats.write_time >= stats.longest_write, "{stats:?}");
    let names: Vec<String> = futures_util::FutureExt::now_or_never(
        futures_util::StreamExt::collect::<Vec<_>>(it.store.inner.list(None)),
    )
    .unwrap()
    .into_iter()
    .map(|meta| meta.unwrap().location.to_string())
    .collect();
    assert_eq!(names, [format!("a/b/v1/{}", record(1).name())]);
}

#[test]
fn a_miss_is_remembered_until_the_entry_is_written_here() {
    let it = opened(config(), Moody::new());
    for _ in 0..5 {
        assert_eq!(it.get(&record(1)), Fetched::Miss);
    }
    assert_eq!(it.store.gets.load(SeqCst), 1);
    assert_eq!((it.cache.stats().misses, it.cache.stats().misses_remembered), (5, 4));
    assert_eq!(it.cache.offer(record(1)), Offered::Queued);
    assert!(it.cache.flush(LONG));
    assert!(it.get(&record(1)).hit().is_some());
}

#[test]
fn a_miss_is_forgotten_after_a_while() {
    let it = opened(SharedConfig { remember_misses: Duration::ZERO, ..config() }, Moody::new());
    assert_eq!(it.get(&record(1)), Fetched::Miss);
    assert_eq!(it.get(&record(1)), Fetched::Miss);
    assert_eq!(it.store.gets.load(SeqCst), 2);
}

/// F1 and F2.
#[test]
fn fetches_of_one_entry_share_a_read() {
    let it = opened(config(), Moody { reads: Semaphore::new(0), ..Moody::new() });
    assert_eq!(it.cache.offer(record(1)), Offered::Queued);
    assert!(it.cache.flush(LONG));
    let fetches: Vec<Fetch> = (0..5).map(|_| it.cache.fetch(&record(1).request())).collect();
    let (tell, told) = mpsc::channel();
    for (number, fetch) in fetches.iter().enumerate() {
        let tell = tell.clone();
        fetch.subscribe(move |answer| tell.send((number, answer.hit().is_some())).unwrap());
    }
    let mut fetches = fetches;
    drop(fetches.remove(2));
    it.store.reads.add_permits(1);
    for fetch in &fetches {
        assert!(fetch.within(LONG).unwrap().hit().is_some());
    }
    let mut numbers: Vec<(usize, bool)> = (0..4).map(|_| told.recv_timeout(LONG).unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [(0, true), (1, true), (3, true), (4, true)]);
    // A later subscriber is called at once.
    let later = tell.clone();
    fetches[0].subscribe(move |answer| later.send((9, answer.hit().is_some())).unwrap());
    assert_eq!(told.try_recv(), Ok((9, true)));
    drop(tell);
    assert_eq!(told.recv(), Err(mpsc::RecvError), "no callback is left");
    assert_eq!((it.store.gets.load(SeqCst), it.cache.stats().joined), (1, 4));
}

/// S2, and an abandoned read takes no turn.
#[test]
fn a_read_that_nobody_waits_for_is_given_up() {
    let store = Moody { reads: Semaphore::new(0), ..Moody::new() };
    let it = opened(SharedConfig { max_reads: 1, ..config() }, store);
    let first = it.cache.fetch(&record(1).request());
    until("the first is under way", || it.store.gets.load(SeqCst) == 1);
    let second = it.cache.fetch(&record(2).request());
    assert_eq!(second.poll(), None);
    assert_eq!(second.within(Duration::from_millis(5)), None);
    drop(second);
    until("it is given up", || it.cache.stats().cancelled == 1);
    it.store.reads.add_permits(1);
    assert_eq!(first.within(LONG), Some(Fetched::Miss));
    assert_eq!(it.store.gets.load(SeqCst), 1, "the second was not asked for");
}

/// S3.
#[test]
fn reads_are_bounded() {
    let store = Moody { reads: Semaphore::new(0), ..Moody::new() };
    let it = opened(SharedConfig { max_waiting: 3, ..config() }, store);
    let waiting: Vec<Fetch> = (0..3).map(|number| it.cache.fetch(&record(number).request())).collect();
    assert_eq!(it.cache.fetch(&record(9).request()).poll(), Some(Fetched::Busy));
    assert_eq!(it.cache.stats().busy_answers, 1);
    drop(waiting);
    assert_eq!(it.cache.fetch(&record(9).request()).poll(), None, "there is room again");
}

/// S3.
#[test]
fn the_queue_is_bounded_and_the_oldest_go() {
    let it = opened(
        SharedConfig { max_queued: 3, ..config() },
        Moody { writes: Semaphore::new(0), ..Moody::new() },
    );
    for number in 0..WRITERS as u32 {
        assert_eq!(it.cache.offer(record(number)), Offered::Queued);
        until("it is in hand", || it.store.puts.load(SeqCst) == number as usize + 1);
    }
    for number in 10..16 {
        assert_eq!(it.cache.offer(record(number)), Offered::Queued);
    }
    assert_eq!(it.cache.offer(record(15)), Offered::Known);
    let stats = it.cache.stats();
    assert_eq!((stats.dropped, stats.queued), (3, 3 + WRITERS as u64));
    assert_eq!(it.events.try_recv(), Ok(SharedEvent::QueueFull));
    assert!(it.events.try_recv().is_err(), "told once");
    it.store.writes.add_permits(100);
    assert!(it.cache.flush(LONG));
    let kept: Vec<u32> = (10..16).filter(|number| it.get(&record(*number)).hit().is_some()).collect();
    assert_eq!(kept, [13, 14, 15]);
}

/// S3.
#[test]
fn the_bytes_of_the_queue_are_bounded() {
    let most = 3 * 1200;
    let store = Moody { writes: Semaphore::new(0), ..Moody::new() };
    let it = opened(SharedConfig { max_queued_bytes: most, ..config() }, store);
    for number in 0..20 {
        assert_eq!(it.cache.offer(record(number)), Offered::Queued);
        assert!(it.cache.stats().queued_bytes <= most);
    }
    let large = Record { artifact: vec![0; 4000], ..record(30) };
    assert_eq!(it.cache.offer(large), Offered::TooLarge);
    assert!(it.cache.stats().dropped >= 20 - 3 - WRITERS as u64, "{:?}", it.cache.stats());
}

#[test]
fn what_panics_takes_nothing_else_along() {
    let it = opened(config(), Moody::new());
    let (tell, told) = mpsc::channel();
    for number in 0..4 {
        it.store.set(Mood::Panics);
        let fetch = it.cache.fetch(&record(number).request());
        assert_eq!(fetch.within(LONG), Some(Fetched::Offline));
        assert_eq!(it.cache.offer(record(number)), Offered::Queued);
        assert!(it.cache.flush(LONG), "the write is over");
        it.store.set(Mood::Good);
        let fetch = it.cache.fetch(&record(100 + number).request());
        let subscribe = || {
            let tell = tell.clone();
            fetch.subscribe(move |_| {
                tell.send(()).unwrap();
                panic!("the callback panics, as the test wants");
            });
        };
        subscribe();
        subscribe();
        assert_eq!(fetch.within(LONG), Some(Fetched::Miss));
        subscribe();
        for _ in 0..3 {
            told.recv_timeout(LONG).expect("called");
        }
    }
    assert_eq!(it.cache.offer(record(50)), Offered::Queued);
    assert!(it.cache.flush(LONG));
    assert_eq!(it.cache.stats().written, 1);
}

/// S4.
#[test]
fn a_store_that_fails_is_left_alone_and_found_again() {
    let it = opened(config(), Moody::new());
    it.store.set(Mood::Fails);
    for number in 0..3 {
        assert!(matches!(it.get(&record(number)), Fetched::Failed(_)), "{number}");
    }
    it.await_event(|event| matches!(event, SharedEvent::Offline { .. }));
    assert!(it.cache.stats().is_offline);
    // Each is answered at once, or is the probe.
    for number in 3..50 {
        let asked = it.store.gets.load(SeqCst);
        match it.get(&record(number)) {
            Fetched::Offline => assert_eq!(it.store.gets.load(SeqCst), asked),
            Fetched::Failed(_) => assert_eq!(it.store.gets.load(SeqCst), asked + 1),
            other => panic!("{other:?}"),
        }
    }
    it.store.set(Mood::Good);
    until("it is found again", || it.get(&record(99)) == Fetched::Miss);
    it.await_event(|event| matches!(event, SharedEvent::Online { .. }));
    let stats = it.cache.stats();
    assert_eq!((stats.is_offline, stats.went_offline), (false, 1));
    assert!(stats.offline_answers > 0 && stats.offline_for > Duration::ZERO, "{stats:?}");
}

/// S4: waiting reads are answered too.
#[test]
fn what_waits_is_told_that_the_store_is_gone() {
    let store = Moody { reads: Semaphore::new(0), ..Moody::new() };
    let hour = Duration::from_secs(3600);
    let backoff = Backoff { after: 1, first: hour, most: hour };
    let it = opened(SharedConfig { max_reads: 1, backoff, ..config() }, store);
    it.store.set(Mood::Fails);
    let fetches: Vec<Fetch> = (0..5).map(|number| it.cache.fetch(&record(number).request())).collect();
    it.store.reads.add_permits(5);
    let failed =
        fetches.iter().filter(|fetch| matches!(fetch.within(LONG), Some(Fetched::Failed(_)))).count();
    let offline = fetches.iter().filter(|fetch| fetch.poll() == Some(Fetched::Offline)).count();
    assert_eq!((failed, offline, it.store.gets.load(SeqCst)), (1, 4, 1));
    assert_eq!(it.cache.stats().offline_answers, 4);
}

/// S4: one probe, which is not cancelled when its caller has compiled meanwhile.
#[test]
fn one_request_finds_out_whether_the_store_is_back() {
    let it = opened(config(), Moody::new());
    it.store.set(Mood::Fails);
    for number in 0..3 {
        assert!(matches!(it.get(&record(number)), Fetched::Failed(_)));
    }
    it.store.set(Mood::Good);
    it.store.reads.forget_permits(1 << 20);
    let asked = it.store.gets.load(SeqCst);
    until("the probe goes out", || {
        drop(it.cache.fetch(&record(10).request()));
        it.store.gets.load(SeqCst) == asked + 1
    });
    std::thread::sleep(Duration::from_millis(20)); // longer than the pause
    for number in 20..30 {
        assert_eq!(it.cache.fetch(&record(number).request()).poll(), Some(Fetched::Offline));
    }
    assert_eq!(it.store.gets.load(SeqCst), asked + 1);
    it.store.reads.add_permits(1 << 20);
    it.await_event(|event| matches!(event, SharedEvent::Online { .. }));
    assert_eq!(it.get(&record(30)), Fetched::Miss);
}

/// S4: reads continue, and the queue is written once the store accepts writes again.
#[test]
fn a_store_that_takes_nothing_still_serves() {
    let it = opened(config(), Moody::new());
    assert_eq!(it.cache.offer(record(0)), Offered::Queued);
    assert!(it.cache.flush(LONG));
    it.store.set(Mood::Denies);
    for number in 1..6 {
        assert_eq!(it.cache.offer(record(number)), Offered::Queued);
    }
    it.await_event(
        |event| matches!(event, SharedEvent::WritesPaused { why, .. } if why.kind == TroubleKind::Refused),
    );
    assert!(!it.cache.flush(LONG), "it is not waited for");
    assert!(it.cache.stats().writes_paused && !it.cache.stats().is_offline);
    it.store.set(Mood::Good);
    it.await_event(|event| matches!(event, SharedEvent::WritesResumed { .. }));
    assert!(it.cache.flush(LONG));
    for number in 0..6 {
        assert!(it.get(&record(number)).hit().is_some(), "{number}");
    }
}

#[test]
fn an_entry_that_is_never_taken_is_given_up() {
    let it = opened(config(), Moody::new());
    it.store.set(Mood::Fails);
    assert_eq!(it.cache.offer(record(1)), Offered::Queued);
    it.await_event(
        |event| matches!(event, SharedEvent::NotWritten { name, .. } if *name == record(1).name()),
    );
    let stats = it.cache.stats();
    assert_eq!((stats.not_written, stats.write_errors, stats.queued), (1, u64::from(tier::ATTEMPTS), 0));
}

#[test]
fn a_refusal_is_a_miss_where_the_credentials_are_known_to_be_good() {
    let it = opened(config(), Moody::new());
    it.store.set(Mood::Denies);
    let Fetched::Failed(trouble) = it.get(&record(1)) else { panic!("nothing is known yet") };
    assert_eq!(trouble.kind, TroubleKind::Refused);
    assert!(trouble.to_string().contains("check that the credentials"), "{trouble}");
    it.store.set(Mood::Good);
    assert_eq!(it.cache.offer(record(2)), Offered::Queued);
    assert!(it.cache.flush(LONG));
    it.store.set(Mood::Denies);
    assert_eq!(it.get(&record(3)), Fetched::Miss);
}

#[test]
fn a_store_without_conditions_is_looked_at_first() {
    let it = opened(config(), Moody { plain: true, ..Moody::new() });
    for number in [1, 2] {
        assert_eq!(it.cache.offer(record(number)), Offered::Queued);
    }
    assert!(it.cache.flush(LONG));
    let other = opened(config(), Moody { plain: true, ..Moody::new() });
    // The other machine finds the entries.
    let bytes = Sealer::new(&Secret::new([1; 32])).seal(&record(1));
    let at = Path::from(format!("a/b/v1/{}", record(1).name()));
    let put = other.store.inner.put_opts(&at, PutPayload::from(bytes), PutOptions::default());
    futures_util::FutureExt::now_or_never(put).unwrap().unwrap();
    assert_eq!(other.cache.offer(record(1)), Offered::Queued);
    assert!(other.cache.flush(LONG));
    let (first, second) = (it.cache.stats(), other.cache.stats());
    assert_eq!((first.written, first.already_there), (2, 0));
    assert_eq!((second.written, second.already_there), (0, 1));
    assert_eq!((it.store.puts.load(SeqCst), other.store.puts.load(SeqCst)), (2, 0));
    assert_eq!((it.store.heads.load(SeqCst), other.store.heads.load(SeqCst)), (2, 1));
}

/// S2 and F1.
#[test]
fn shutting_down_waits_no_longer_than_told() {
    let store = Moody { reads: Semaphore::new(0), writes: Semaphore::new(0), ..Moody::new() };
    let it = opened(config(), store);
    let fetch = it.cache.fetch(&record(1).request());
    until("the read is under way", || it.store.gets.load(SeqCst) == 1);
    for number in 0..5 {
        assert_eq!(it.cache.offer(record(number)), Offered::Queued);
    }
    until("writes are under way", || it.store.puts.load(SeqCst) == WRITERS);
    let tier = Arc::clone(&it.cache.tier);
    assert!(!it.cache.shut_down(Duration::from_millis(20)));
    assert_eq!(fetch.within(LONG), Some(Fetched::Offline));
    assert_eq!(tier.offer(Arc::new(record(7))), Offered::Closed);
    assert_eq!(Fetch::of(&tier, &record(8).request()).0.poll(), Some(Fetched::Offline));
    assert_eq!(tier.stats().dropped, 5);
    drop(fetch);
    until("the thread is gone", || Arc::strong_count(&tier) == 1);
}

/// S2: the last reference may be dropped on the thread that would have to be waited for.
#[test]
fn it_may_be_dropped_on_its_own_thread() {
    let it = opened(config(), Moody { reads: Semaphore::new(0), ..Moody::new() });
    let Fixture { store, cache, .. } = it;
    let tier = Arc::clone(&cache.tier);
    let fetch = cache.fetch(&record(1).request());
    let (tell, told) = mpsc::channel();
    let shared = Arc::clone(&tier);
    fetch.subscribe(move |_| {
        drop(cache);
        // As a drop does, but with a limit long enough to be noticed.
        shared.await_stop(2 * LONG);
        drop(shared);
        tell.send(()).unwrap();
    });
    store.reads.add_permits(1);
    told.recv_timeout(LONG).expect("it does not wait for itself");
    drop(fetch);
    until("the thread is gone", || Arc::strong_count(&tier) == 1);
}

#[test]
fn a_worker_that_only_reads_writes_nothing() {
    let it = opened(SharedConfig { read_only: true, ..config() }, Moody::new());
    assert_eq!(it.cache.offer(record(1)), Offered::ReadOnly);
    assert!(it.cache.flush(LONG));
    assert_eq!(it.store.puts.load(SeqCst), 0);
}

#[test]
fn a_request_has_its_time_and_no_more() {
    let store = Moody { reads: Semaphore::new(0), writes: Semaphore::new(0), ..Moody::new() };
    let it = opened(SharedConfig { timeout: Duration::from_millis(10), ..config() }, store);
    let Fetched::Failed(trouble) = it.get(&record(1)) else { panic!("it was not answered") };
    assert_eq!(trouble.kind, TroubleKind::TimedOut);
    assert_eq!(it.cache.offer(record(2)), Offered::Queued);
    it.await_event(|event| matches!(event, SharedEvent::NotWritten { .. }));
}
