//! The contract of the memory tier, from outside.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "a test, on real threads"
)]

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use fuseline_cache::{Artifact, Budget, Claim, Key, Lookup, MemoryCache, OutputSet};

/// An artifact with a given weight and a number.
#[derive(Debug)]
struct Exe {
    number: u64,
    bytes: u64,
}

impl Artifact for Exe {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn mappings(&self) -> u64 {
        7
    }
}

type Cache = MemoryCache<Exe, String>;

fn key(number: u64) -> Key {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    Key::new(hash)
}

fn set(outputs: &[u32]) -> OutputSet {
    outputs.iter().copied().collect()
}

fn canonical(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn look(cache: &Cache, number: u64, outputs: &[u32]) -> Lookup<Exe, String> {
    cache.lookup(&key(number), &canonical(number), &set(outputs))
}

fn claim(cache: &Cache, number: u64, outputs: &[u32]) -> Claim<Exe, String> {
    match look(cache, number, outputs) {
        Lookup::Claimed(claim) => claim,
        other => panic!("expected a claim, found {other:?}"),
    }
}

fn hit(cache: &Cache, number: u64, outputs: &[u32]) -> Option<u64> {
    match look(cache, number, outputs) {
        Lookup::Hit(hit) => Some(hit.artifact.number),
        _ => None,
    }
}

fn fill(cache: &Cache, number: u64, outputs: &[u32], exe: u64) {
    let _ = claim(cache, number, outputs).fulfil(Exe { number: exe, bytes: 100 });
}

#[test]
fn a_superset_serves_and_the_smallest_one_is_taken() {
    let cache = Cache::new(Budget::default());
    fill(&cache, 1, &[0, 1, 2, 3], 10);
    assert_eq!(hit(&cache, 1, &[1, 3]), Some(10));
    // A variant that does not suffice: a compile for exactly the requested outputs.
    let more = claim(&cache, 1, &[1, 4]);
    assert_eq!(*more.outputs(), set(&[1, 4]));
    let _ = more.fulfil(Exe { number: 11, bytes: 100 });
    assert_eq!(hit(&cache, 1, &[1]), Some(11));
    assert_eq!(hit(&cache, 1, &[0]), Some(10));
}

#[test]
fn flapping_outputs_converge_to_their_union() {
    let cache = Cache::new(Budget::default());
    for output in 0..4 {
        fill(&cache, 1, &[output], output.into());
    }
    let union = claim(&cache, 1, &[4]);
    assert_eq!(*union.outputs(), set(&[0, 1, 2, 3, 4]));
    let _ = union.fulfil(Exe { number: 9, bytes: 100 });
    for output in 0..5 {
        assert!(hit(&cache, 1, &[output, (output + 1) % 5]).is_some());
    }
    assert_eq!(cache.stats().bytes, 8 + 4 * 100, "the union replaced one of the four");
}

#[test]
fn a_collision_is_never_served() {
    let cache = Cache::new(Budget::default());
    fill(&cache, 1, &[0], 10);
    let other = cache.lookup(&key(1), &canonical(2), &set(&[0]));
    assert!(matches!(other, Lookup::Collision));
    assert_eq!(hit(&cache, 1, &[0]), Some(10));
}

/// A verdict on an artifact concerns the region that it was made of, not another one with the same
/// key.
#[test]
fn who_collides_discards_nothing() {
    let cache = Cache::new(Budget::default());
    let why = Arc::new("it does not run".to_owned());
    fill(&cache, 1, &[0], 10);
    let Lookup::Hit(found) = look(&cache, 1, &[0]) else { panic!("it is there") };
    assert_eq!(cache.discard(&key(1), &canonical(2), &found.artifact, why), None);
    assert_eq!(hit(&cache, 1, &[0]), Some(10));
}

#[test]
fn who_collides_proves_nothing() {
    let cache = Cache::new(Budget::default());
    let why = Arc::new("it does not run".to_owned());
    fill(&cache, 1, &[0], 10);
    let Lookup::Hit(found) = look(&cache, 1, &[0]) else { panic!("it is there") };
    // One attempt fails, and the next artifact is unproven until it has run itself.
    assert!(cache.discard(&key(1), &canonical(1), &found.artifact, why).is_some());
    let claim = (0..1000).find_map(|_| match look(&cache, 1, &[0]) {
        Lookup::Claimed(claim) => Some(claim),
        _ => None,
    });
    let _ = claim.expect("it is tried again").fulfil(Exe { number: 11, bytes: 100 });
    let is_unproven = || match look(&cache, 1, &[0]) {
        Lookup::Hit(hit) => hit.is_unproven,
        other => panic!("expected a hit, found {other:?}"),
    };
    cache.confirm(&key(1), &canonical(2));
    assert!(is_unproven(), "proven by another region");
    cache.confirm(&key(1), &canonical(1));
    assert!(!is_unproven());
}

#[test]
fn a_failure_answers_for_a_while_and_then_for_ever() {
    let cache = Cache::new(Budget::default());
    let mut compiles = 0;
    for _ in 0..100_000 {
        match look(&cache, 1, &[0]) {
            Lookup::Claimed(claim) => {
                compiles += 1;
                let _ = claim.fail(Arc::new(format!("attempt {compiles}")));
            }
            Lookup::Failed(error) => assert_eq!(*error, format!("attempt {compiles}")),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(compiles, 3, "a key is not retried for ever");
}

#[test]
fn a_later_success_forgets_the_failure() {
    let cache = Cache::new(Budget::default());
    let _ = claim(&cache, 1, &[0]).fail(Arc::new("no memory".to_owned()));
    while let Lookup::Failed(_) = look(&cache, 1, &[0]) {}
    // The loop ended with a claim and dropped it: the claim was released.
    fill(&cache, 1, &[0], 5);
    assert_eq!(hit(&cache, 1, &[0]), Some(5));
}

/// A region whose artifact is discarded each time is given up like one that does not compile. One
/// that was useful starts anew.
#[test]
fn a_discarded_artifact_is_a_failed_attempt() {
    let why = Arc::new("no memory".to_owned());
    let tries = |is_proven: bool| {
        let cache = Cache::new(Budget::default());
        let mut compiles = 0;
        for _ in 0..100_000 {
            match look(&cache, 1, &[0]) {
                Lookup::Claimed(claim) => {
                    let (hit, _) = claim.fulfil(Exe { number: compiles, bytes: 100 });
                    assert_eq!(hit.is_unproven, compiles > 0);
                    compiles += 1;
                    if is_proven {
                        cache.confirm(&key(1), &canonical(1));
                        let Lookup::Hit(hit) = look(&cache, 1, &[0]) else { panic!("it is there") };
                        assert!(!hit.is_unproven);
                    }
                    cache.discard(&key(1), &canonical(1), &hit.artifact, why.clone());
                }
                Lookup::Failed(error) => assert_eq!(error, why),
                other => panic!("{other:?}"),
            }
        }
        compiles
    };
    assert_eq!(tries(false), 3);
    // Each is the first failure, which answers the next 64 look-ups.
    assert_eq!(tries(true), 100_000u64.div_ceil(65));
}

#[test]
fn a_dropped_claim_wakes_the_waiters_and_passes_on() {
    let cache = Cache::new(Budget::default());
    let first = claim(&cache, 1, &[0]);
    let Lookup::InFlight(flight) = look(&cache, 1, &[0]) else { panic!("expected a flight") };
    let (send, receive) = mpsc::channel();
    flight.subscribe(move || send.send(()).unwrap());
    assert!(receive.try_recv().is_err(), "woken before the flight ended");
    drop(first);
    receive.recv().unwrap();
    let second = claim(&cache, 1, &[0]);
    let Lookup::InFlight(late) = look(&cache, 1, &[0]) else { panic!("expected a flight") };
    let _ = second.fulfil(Exe { number: 1, bytes: 1 });
    let (send, receive) = mpsc::channel();
    late.subscribe(move || send.send(()).unwrap());
    receive.try_recv().expect("a flight that has ended wakes at once");
}

#[test]
fn budgets_hold_and_what_is_used_stays() {
    let cache = Cache::new(Budget { entries: 10, bytes: u64::MAX });
    for number in 0..1_000 {
        fill(&cache, number, &[0], number);
        assert!(cache.stats().entries <= 10);
        assert!(number == 0 || hit(&cache, 0, &[0]).is_some(), "entry 0 is used all the time");
    }
    let cache = Cache::new(Budget { entries: u64::MAX, bytes: 1_080 });
    for number in 0..1_000 {
        fill(&cache, number, &[0], number);
        assert!(cache.stats().bytes <= 1_080);
    }
    assert_eq!(cache.stats().entries, 10);
}

/// Mappings are counted wherever artifacts enter and leave, and are freed on demand. Recently used
/// artifacts go last, and those being made stay.
#[test]
fn mappings_are_given_back_on_demand() {
    let cache = Cache::new(Budget::default());
    assert_eq!(cache.free_mappings(1_000), []);
    for number in 0..10 {
        fill(&cache, number, &[0], number);
    }
    let held = claim(&cache, 10, &[0]);
    assert!(hit(&cache, 0, &[0]).is_some());
    assert_eq!((cache.stats().mappings, cache.free_mappings(0).len()), (70, 0));
    // 21 would suffice if they were not freed one artifact at a time.
    let evicted: Vec<Key> = cache.free_mappings(15).into_iter().map(|entry| entry.key).collect();
    assert_eq!(evicted, [key(1), key(2), key(3)]);
    assert_eq!((cache.stats().mappings, cache.stats().evictions), (49, 3));
    assert!(hit(&cache, 0, &[0]).is_some(), "it was used");
    let first = match look(&cache, 0, &[0]) {
        Lookup::Hit(hit) => hit.artifact,
        other => panic!("{other:?}"),
    };
    let _ = cache.replace(&key(0), &first, Exe { number: 100, bytes: 1 });
    fill(&cache, 4, &[1], 40);
    assert_eq!(cache.stats().mappings, 56);
    let second = match look(&cache, 4, &[1]) {
        Lookup::Hit(hit) => hit.artifact,
        other => panic!("{other:?}"),
    };
    let _ = cache.discard(&key(4), &canonical(4), &second, Arc::new("no use".to_owned()));
    assert_eq!(cache.stats().mappings, 49);
    drop((first, second));
    assert_eq!(cache.drop_unused().len(), 7);
    assert_eq!((cache.stats().mappings, cache.free_mappings(u64::MAX).len()), (0, 0));
    let _ = held.fulfil(Exe { number: 10, bytes: 1 });
    assert_eq!(cache.stats().mappings, 7);
    cache.clear();
    assert_eq!(cache.stats().mappings, 0);
}

#[test]
fn an_entry_in_compilation_is_not_evicted() {
    let cache = Cache::new(Budget { entries: 1, bytes: u64::MAX });
    let held = claim(&cache, 0, &[0]);
    for number in 1..100 {
        fill(&cache, number, &[0], number);
    }
    let Lookup::InFlight(_) = look(&cache, 0, &[0]) else { panic!("the flight was lost") };
    let _ = held.fulfil(Exe { number: 7, bytes: 1 });
    cache.clear();
    assert_eq!((cache.stats().entries, cache.stats().bytes), (0, 0));
}

#[test]
fn an_evicted_artifact_lives_until_its_last_user() {
    let cache = Cache::new(Budget::default());
    let (kept, _) = claim(&cache, 1, &[0]).fulfil(Exe { number: 3, bytes: 1 });
    cache.clear();
    assert_eq!(kept.artifact.number, 3);
    assert_eq!(Arc::strong_count(&kept.artifact), 1);
    assert_eq!(hit(&cache, 1, &[0]), None);
}

/// 64 threads request the same new key: exactly one compiles, and all get its artifact.
#[test]
fn one_compile_per_key_however_many_threads_ask() {
    for round in 0..50 {
        let cache = Cache::new(Budget::default());
        let barrier = Arc::new(std::sync::Barrier::new(64));
        let threads: Vec<_> = (0..64)
            .map(|_| {
                let (cache, barrier) = (cache.clone(), barrier.clone());
                std::thread::spawn(move || {
                    barrier.wait();
                    let mut compiles = 0;
                    loop {
                        match look(&cache, round, &[0]) {
                            Lookup::Hit(hit) => return (compiles, hit.artifact.number),
                            Lookup::Claimed(claim) => {
                                compiles += 1;
                                std::thread::yield_now();
                                let _ = claim.fulfil(Exe { number: 42, bytes: 1 });
                            }
                            Lookup::InFlight(flight) => {
                                let (send, receive) = mpsc::channel();
                                flight.subscribe(move || send.send(()).unwrap());
                                receive.recv().unwrap();
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                })
            })
            .collect();
        let results: Vec<(u32, u64)> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(results.iter().map(|(compiles, _)| compiles).sum::<u32>(), 1);
        assert!(results.iter().all(|&(_, number)| number == 42));
    }
}

/// Threads look up, compile, fail and evict the same few keys at once; the counters are consistent
/// at the end.
#[test]
fn counters_survive_contention() {
    let cache = Cache::new(Budget { entries: 8, bytes: 2_000 });
    let threads: Vec<_> = (0..8u64)
        .map(|seed| {
            let cache = cache.clone();
            std::thread::spawn(move || {
                let mut state = seed + 1;
                for _ in 0..5_000 {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let number = (state >> 33) % 24;
                    match look(&cache, number, &[(state >> 60) as u32]) {
                        Lookup::Claimed(claim) if state >> 62 == 0 => {
                            drop(claim.fail(Arc::new(String::new())))
                        }
                        Lookup::Claimed(claim) => drop(claim.fulfil(Exe { number, bytes: 50 })),
                        Lookup::Hit(hit) => assert_eq!(hit.artifact.number, number),
                        _ => {}
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(cache.stats().entries <= 8 && cache.stats().bytes <= 2_000, "{:?}", cache.stats());
    cache.clear();
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.bytes), (0, 0), "{stats:?}");
}

#[test]
fn an_artifact_takes_the_place_of_another_if_that_is_still_there() {
    let cache = Cache::new(Budget::default());
    fill(&cache, 1, &[0, 1], 10);
    let Lookup::Hit(old) = look(&cache, 1, &[0]) else { panic!("it is there") };
    assert!(cache.replace(&key(2), &old.artifact, Exe { number: 9, bytes: 1 }).is_none());
    let evicted = cache.replace(&key(1), &old.artifact, Exe { number: 11, bytes: 300 });
    assert!(evicted.is_some_and(|evicted| evicted.is_empty()));
    assert_eq!((hit(&cache, 1, &[1]), cache.stats().bytes), (Some(11), 8 + 300));
    assert!(cache.replace(&key(1), &old.artifact, Exe { number: 12, bytes: 300 }).is_none());
    cache.clear();
    assert_eq!((cache.stats().bytes, cache.stats().entries), (0, 0));
}

#[test]
fn what_nobody_uses_is_dropped_when_memory_is_short() {
    let cache = Cache::new(Budget::default());
    (0..3).for_each(|number| fill(&cache, number, &[0], number));
    fill(&cache, 1, &[1], 10);
    let Lookup::Hit(used) = look(&cache, 1, &[0]) else { panic!("it is there") };
    let pending = claim(&cache, 3, &[0]);
    let failed = claim(&cache, 4, &[0]);
    let _ = failed.fail(Arc::new("too large".to_owned()));
    let mut dropped: Vec<_> = cache.drop_unused().iter().map(|entry| (entry.key, entry.bytes)).collect();
    dropped.sort_by_key(|(_, bytes)| *bytes);
    // The unused variant of the entry in use; the others with their canonical bytes.
    assert_eq!(dropped[0], (key(1), 100));
    assert!(dropped.len() == 3 && dropped[1..].iter().all(|&(_, bytes)| bytes == 108), "{dropped:?}");
    assert_eq!((cache.stats().entries, cache.stats().bytes), (3, 3 * 8 + 100));
    assert_eq!((hit(&cache, 1, &[0]), hit(&cache, 1, &[1])), (Some(1), None));
    assert!(matches!(look(&cache, 4, &[0]), Lookup::Failed(_)), "what is known of failures stays");
    let _ = pending.fulfil(Exe { number: 3, bytes: 100 });
    assert_eq!(hit(&cache, 3, &[0]), Some(3));
    drop(used);
    assert_eq!(cache.drop_unused().len(), 2);
}

#[test]
fn what_was_discarded_is_tried_again_later_and_what_was_refused_is_not() {
    let cache = Cache::new(Budget::default());
    fill(&cache, 1, &[0], 10);
    let Lookup::Hit(found) = look(&cache, 1, &[0]) else { panic!("it is there") };
    let why = Arc::new("too large".to_owned());
    let discard = || cache.discard(&key(1), &canonical(1), &found.artifact, why.clone());
    assert_eq!((discard(), discard()), (Some(100), None));
    assert_eq!(cache.stats().bytes, 8);
    let lookups = (0..).take_while(|_| matches!(look(&cache, 1, &[0]), Lookup::Failed(_))).count();
    assert_eq!(lookups, 64);
    let _ = claim(&cache, 2, &[0]).refuse(why.clone());
    assert!((0..10_000).all(|_| matches!(look(&cache, 2, &[0]), Lookup::Failed(_))));
}

fn narrow(cache: &Cache, number: u64, outputs: &[u32]) -> Option<Claim<Exe, String>> {
    cache.claim_narrower(&key(number), &canonical(number), set(outputs))
}

#[test]
fn a_narrower_variant_is_made_beside_the_one_that_serves() {
    let cache = Cache::new(Budget::default());
    assert!(narrow(&cache, 1, &[0]).is_none(), "there is nothing to narrow");
    fill(&cache, 1, &[0, 1, 2], 7);
    assert!(cache.claim_narrower(&key(1), &canonical(2), set(&[0])).is_none(), "other bytes");
    assert!(narrow(&cache, 1, &[0, 1, 2]).is_none(), "it is there");
    let claim = narrow(&cache, 1, &[0]).unwrap();
    assert!(narrow(&cache, 1, &[0]).is_none(), "it is being made");
    assert_eq!(hit(&cache, 1, &[0]), Some(7), "nobody waits for it");
    let _ = claim.fulfil(Exe { number: 8, bytes: 100 });
    assert_eq!((hit(&cache, 1, &[0]), hit(&cache, 1, &[1])), (Some(8), Some(7)));
    // One that is returned counts.
    drop(narrow(&cache, 1, &[1]));
    drop(narrow(&cache, 1, &[1]));
    assert!(narrow(&cache, 1, &[1]).is_none() && narrow(&cache, 1, &[2]).is_none(), "there is a limit");
}

/// Eviction prefers a variant whose outputs another variant covers, however little that one was
/// used.
#[test]
fn the_variant_that_serves_all_stays() {
    let cache = Cache::new(Budget::default());
    for output in 0..3 {
        fill(&cache, 1, &[output], output.into());
        (0..5).for_each(|_| assert_eq!(hit(&cache, 1, &[output]), Some(output.into())));
    }
    fill(&cache, 1, &[0, 1, 2, 3], 4);
    let _ = narrow(&cache, 1, &[0, 1]).unwrap().fulfil(Exe { number: 5, bytes: 100 });
    assert_eq!((hit(&cache, 1, &[0, 1, 2, 3]), hit(&cache, 1, &[0, 1])), (Some(4), Some(5)));
    assert_eq!(hit(&cache, 1, &[0]), Some(5), "the first of those that were used least");
    assert_eq!(cache.stats().bytes, 400 + 8);
}

/// An artifact that accesses its cache when it is dropped.
#[derive(Debug)]
struct Nosy(Mutex<Option<MemoryCache<Nosy, String>>>);

impl Artifact for Nosy {
    fn bytes(&self) -> u64 {
        100
    }
}

impl Drop for Nosy {
    fn drop(&mut self) {
        if let Some(cache) = self.0.get_mut().unwrap().take() {
            assert!(!matches!(cache.lookup(&key(1), &canonical(1), &set(&[9])), Lookup::Failed(_)));
        }
    }
}

/// No lock is held when an artifact is dropped: a plugin takes its time to destroy an executable.
#[test]
fn nothing_is_locked_when_an_artifact_goes() {
    let cache = MemoryCache::<Nosy, String>::new(Budget::default());
    let fill = |outputs: &[u32]| match cache.lookup(&key(1), &canonical(1), &set(outputs)) {
        Lookup::Claimed(claim) => claim.fulfil(Nosy(Mutex::new(Some(cache.clone())))).0,
        other => panic!("{other:?}"),
    };
    // Four variants and the union of all, which replaces one; then the rest.
    for output in 0..5 {
        drop(fill(&[output]));
    }
    let Lookup::Hit(hit) = cache.lookup(&key(1), &canonical(1), &set(&[0, 1, 2, 3, 4])) else {
        panic!("no union")
    };
    assert!(cache.replace(&key(1), &hit.artifact, Nosy(Mutex::new(Some(cache.clone())))).is_some());
    drop(hit);
    assert_eq!(cache.drop_unused().len(), 1);
    drop(fill(&[0]));
    cache.clear();
}
