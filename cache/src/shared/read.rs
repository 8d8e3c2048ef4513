//! One read: waits for its turn, sends the request, receives the bytes and opens the entry.
//!
//! Input: a flight. Output: its outcome, which it reports to the [`Tier`].
//!
//! Invariants:
//! - SREAD-1: memory is allocated for received bytes, not for announced ones: at most twice as
//!   much.
//! - SREAD-2: no more bytes are received than the header of the entry announces, and none after a
//!   header that is not that of the requested entry.
//! - SREAD-3: a read ends within its time limit.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};

use super::breaker::Admission;
use super::flight::Flight;
use super::report::add;
use super::tier::{Ended, Tier};
use super::trouble::{SharedDamage, Trouble, TroubleKind, explain, is_absent};
use crate::name::Name;
use crate::sealed::{Damage, HEADER, announced};

/// A read that always ends: if it is dropped, panics or loses its thread, it is given up.
pub(super) struct Read {
    tier: Arc<Tier>,
    flight: Arc<Flight>,
    admission: Admission,
    settled: bool,
}

impl Read {
    pub(super) fn new(tier: Arc<Tier>, flight: Arc<Flight>, admission: Admission) -> Read {
        Read { tier, flight, admission, settled: false }
    }

    pub(super) async fn run(mut self) {
        let ended = self.read().await;
        self.settled = true;
        self.tier.settle(&self.flight, self.admission, ended);
    }

    async fn read(&self) -> Ended {
        let start = Instant::now();
        let turn = {
            let turn = pin!(self.tier.turns.acquire());
            match select(turn, pin!(self.abandoned())).await {
                Either::Left((turn, _)) => turn,
                Either::Right(_) => return Ended::Abandoned { answered: false },
            }
        };
        if self.tier.is_offline_for(self.admission) {
            return Ended::Offline;
        }
        let limit = self.tier.config.timeout;
        let ended = match tokio::time::timeout(limit, self.send_request()).await {
            Ok(ended) => ended,
            Err(_) => Ended::Failed(Trouble {
                kind: TroubleKind::TimedOut,
                said: format!("no answer within {limit:?}").into(),
            }),
        };
        drop(turn);
        if let Ended::Entry(_) | Ended::Absent | Ended::Bad(_) = ended {
            self.tier.counters.reads.add(start.elapsed());
        }
        ended
    }

    /// Once a request is sent, the beginning of its answer is awaited even if the read is
    /// abandoned. Only this way a store that does not answer is noticed.
    async fn send_request(&self) -> Ended {
        let tier = &*self.tier;
        // The server answers, but incorrectly: with redirect loops, or with truncated bodies.
        let failed = |error: &object_store::Error, bad: TroubleKind| {
            let trouble = explain(error, &tier.place.scrub);
            if trouble.kind == bad {
                Ended::Bad(SharedDamage::Answer(trouble))
            } else {
                Ended::Failed(trouble)
            }
        };
        let path = tier.path(&self.flight.name);
        if let Some(why) = tier.place.refuses(&path) {
            let trouble = Trouble { kind: TroubleKind::Other, said: why.into() };
            return Ended::Bad(SharedDamage::Answer(trouble));
        }
        let object = match tier.place.store.get_opts(&path, Default::default()).await {
            Ok(object) => object,
            Err(error) if is_absent(&error) => return Ended::Absent,
            Err(error) => return failed(&error, TroubleKind::Redirects),
        };
        if object.meta.size > tier.config.max_entry {
            return Ended::Bad(SharedDamage::TooLong);
        }
        let mut intake = Intake::new(self.flight.name, tier.config.max_entry);
        let mut pieces = object.into_stream();
        let mut abandoned = pin!(self.abandoned());
        loop {
            let piece = match select(pieces.next(), abandoned.as_mut()).await {
                Either::Left((piece, _)) => piece,
                Either::Right(_) => return Ended::Abandoned { answered: true },
            };
            match piece {
                Some(Ok(bytes)) => {
                    add(&tier.counters.bytes_down, bytes.len() as u64);
                    if let Err(damage) = intake.take(&bytes) {
                        return Ended::Bad(damage);
                    }
                }
                Some(Err(error)) => return failed(&error, TroubleKind::CutOff),
                None => break,
            }
        }
        let record = match tier.sealer.open(&self.flight.name, intake.bytes) {
            Ok(record) => record,
            Err(damage) => return Ended::Bad(SharedDamage::Entry(damage)),
        };
        if record.request() != self.flight.request() {
            return Ended::Bad(SharedDamage::Entry(Damage::Request));
        }
        Ended::Entry(record)
    }

    /// Completes when no handles are left.
    async fn abandoned(&self) {
        while !self.flight.is_abandoned() {
            self.flight.wake.notified().await;
        }
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        if !self.settled {
            self.tier.settle(&self.flight, self.admission, Ended::Abandoned { answered: false });
        }
    }
}

/// Receives the bytes of an entry.
struct Intake {
    name: Name,
    bytes: Vec<u8>,
    most: u64,
    has_header: bool,
}

impl Intake {
    fn new(name: Name, most: u64) -> Intake {
        Intake { name, bytes: Vec::new(), most, has_header: false }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), SharedDamage> {
        if self.bytes.len() as u64 + bytes.len() as u64 > self.most {
            return Err(SharedDamage::TooLong);
        }
        self.bytes.extend_from_slice(bytes);
        let header = self.bytes.first_chunk::<HEADER>().filter(|_| !self.has_header);
        if let Some(header) = header {
            let len = announced(&self.name, header).map_err(SharedDamage::Entry)?;
            self.has_header = true;
            if len > self.most || self.bytes.len() as u64 > len {
                return Err(SharedDamage::TooLong);
            }
            self.most = len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sealed::{MAX_ENTRY, Record, SealedKind, Sealer, Secret};
    use crate::{Fingerprint, Key};
    use std::time::Duration;

    fn entry(len: usize) -> (Name, Vec<u8>) {
        let record = Record {
            kind: SealedKind::Artifact,
            environment: Fingerprint::of(b"here"),
            region: Key::new([7; 32]),
            made_in: Duration::from_millis(30),
            loaded_in: None,
            request: b"what is asked".to_vec(),
            artifact: vec![1; len],
        };
        (record.name(), Sealer::new(&Secret::new([3; 32])).seal(&record))
    }

    /// SREAD-1.
    #[test]
    fn memory_is_taken_for_what_comes() {
        let (name, mut bytes) = entry(0);
        bytes[136..144].copy_from_slice(&(MAX_ENTRY - 1000).to_le_bytes());
        let mut intake = Intake::new(name, MAX_ENTRY);
        for byte in &bytes {
            intake.take(std::slice::from_ref(byte)).expect("so far it may be true");
        }
        assert!(intake.bytes.capacity() <= 2 * bytes.len(), "{}", intake.bytes.capacity());
    }

    /// SREAD-2.
    #[test]
    fn not_a_byte_more_than_announced() {
        let (name, bytes) = entry(100);
        for piece in [1, 7, 176, 177, 1000] {
            let mut intake = Intake::new(name, MAX_ENTRY);
            assert!(bytes.chunks(piece).all(|piece| intake.take(piece).is_ok()), "{piece}");
            assert_eq!(intake.take(b"x"), Err(SharedDamage::TooLong), "{piece}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(Intake::new(name, MAX_ENTRY).take(&longer), Err(SharedDamage::TooLong));
        assert_eq!(Intake::new(name, 200).take(&bytes), Err(SharedDamage::TooLong));
        assert_eq!(
            Intake::new(name, 200).take(&bytes[..180]),
            Err(SharedDamage::TooLong),
            "it says it is longer"
        );
    }

    /// SREAD-2.
    #[test]
    fn a_header_of_something_else_ends_it() {
        let (name, bytes) = entry(100);
        let other = Name::new([9; 32]);
        let damage = |name, bytes: &[u8]| Intake::new(name, MAX_ENTRY).take(bytes);
        assert_eq!(damage(other, &bytes[..HEADER]), Err(SharedDamage::Entry(Damage::Name)));
        assert_eq!(damage(name, &[b'<'; HEADER]), Err(SharedDamage::Entry(Damage::Magic)));
        let mut endless = bytes.clone();
        endless[128..136].copy_from_slice(&MAX_ENTRY.to_le_bytes());
        assert_eq!(damage(name, &endless[..HEADER]), Err(SharedDamage::Entry(Damage::Length)));
        endless[128..144].fill(0xff);
        assert_eq!(damage(name, &endless[..HEADER]), Err(SharedDamage::Entry(Damage::Length)));
    }
}
