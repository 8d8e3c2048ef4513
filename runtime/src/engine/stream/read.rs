//! Reading values on the host: blocking, with a deadline, as a future, by callback.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use fuseline_fusion::region::Boundary;
use fuseline_fusion::{Bytes, Element, Literal, Site, StreamId, TensorType};
use fuseline_sync::fork::is_forked;
use fuseline_sync::{Mutex, Rank};

use super::{TensorHandle, may_wait};
use crate::device::{Buffer, DeviceError};
use crate::engine::activity::CurrentActivity;
use crate::engine::completion::{Deferral, register_deferred};
use crate::engine::copy::copy_replicas;
use crate::engine::value::{Outcome, Producer, ValueCell};
use crate::engine::{EngineShared, HandOver};
use crate::error::{Error, Failure, Result, Stage};
use crate::event::{Asked, Event, Events, Telemetry, is_telling};

/// Adds op, call site and region of a value to a device error.
fn failure(error: DeviceError, maker: Option<&Producer>) -> Failure {
    let resource_exhausted = error.is_out_of_memory();
    let DeviceError { stage, mut message, plugin, .. } = error;
    let (op, site) = maker.map_or((None, Site::Unknown), Producer::address);
    let region = maker.map(|maker| maker.region.reference);
    if let Some(region) = region.filter(|region| stage == Stage::Execute && region.ops > 1) {
        let ops = region.ops;
        message.push_str(&format!(
            " (the plugin does not say which of the {ops} ops failed, or whether an input of theirs did)"
        ));
    }
    Failure { stage, op, site, region, message, resource_exhausted, plugin }
}

fn data<'a>(outcome: &'a Outcome, site: &Site) -> Result<(&'a Buffer, Option<&'a Producer>), Error> {
    match outcome {
        Outcome::Data { buffer, maker } => Ok((buffer, maker.as_ref())),
        Outcome::Traced(place) => Err(place.trace().no_data("a host read", site.clone())),
        Outcome::Failed(failure) => Err(Error::device(failure.clone())),
        Outcome::Abandoned => Err(Error::abandoned()),
        Outcome::Scalar(_) => Err(crate::error::bug!("a lifted scalar has no device data")),
    }
}

/// A read in progress that an event sink is told about ([`Event::HostRead`]).
struct Watched {
    events: Events,
    stream: StreamId,
    asked: Asked,
    site: Site,
    start: Instant,
    /// When the region that produces the value was handed to the device.
    launched: Option<Instant>,
}

impl Watched {
    fn start(value: &TensorHandle, asked: Asked, site: &Site) -> Option<Watched> {
        let (stream, events) = (value.stream().id(), value.stream().engine().events());
        // Reads by a sink emit no event, because such a sink would read forever.
        (events.is_observed() && !is_telling()).then(|| Watched {
            events: events.clone(),
            stream,
            asked,
            site: site.clone(),
            start: Instant::now(),
            launched: None,
        })
    }

    /// Notes that the outcome of the value is known.
    fn launched(watched: &mut Option<Watched>) {
        if let Some(watched) = watched {
            watched.launched = Some(Instant::now());
        }
    }

    /// Emits the event when the data has arrived.
    fn end(watched: Option<Watched>, maker: Option<&Producer>, bytes: usize) {
        let Some(Watched { events, stream, asked, site, start, launched }) = watched else { return };
        let end = Instant::now();
        let launched = launched.unwrap_or(end);
        events.emit(|| Event::HostRead {
            stream,
            site,
            asked,
            region: maker.map(|maker| maker.region.reference),
            bytes: Bytes(bytes as u64),
            launch: launched - start,
            data: end - launched,
        });
    }
}

/// A read in progress; a [`Future`].
///
/// The value is computed and copied whether or not it is polled. Dropping the future discards the
/// data.
#[derive(Debug)]
#[must_use = "the data arrives here"]
pub struct Read {
    slot: Arc<ReadSlot>,
}

#[derive(Debug, Default)]
struct SlotState {
    data: Option<Result<Literal>>,
    waker: Option<Waker>,
}

/// Receives the data of a read.
struct ReadSlot {
    state: Mutex<SlotState>,
    telemetry: Telemetry,
}

impl fmt::Debug for ReadSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl ReadSlot {
    fn put(&self, data: Result<Literal>) {
        let mut state = self.state.lock();
        state.data = Some(data);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            // A waker is code of the executor. Its panics must not unwind through the driver.
            self.telemetry.call_back("waker", || waker.wake());
        }
    }
}

impl Future for Read {
    type Output = Result<Literal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Literal>> {
        if is_forked() {
            return Poll::Ready(Err(Error::forked(Site::Unknown)));
        }
        // Wakers are code of the executor, also when they are cloned and dropped, so keep them out
        // of the lock.
        let mut waker = Some(context.waker().clone());
        let mut state = self.slot.state.lock();
        match state.data.take() {
            Some(data) => {
                drop(state);
                Poll::Ready(data)
            }
            None => {
                std::mem::swap(&mut state.waker, &mut waker);
                drop(state);
                Poll::Pending
            }
        }
    }
}

impl TensorHandle {
    /// Waits until the outcome of the value is known. Its data may still be in flight.
    fn settle(&self, deadline: Option<Instant>, site: &Site) -> Result<&Outcome> {
        Error::unless_forked(site)?;
        let outcome = self.cell().outcome();
        if let Some(outcome) = outcome.get() {
            // Whether the outcome is there depends on timing, and timing must not decide boundaries
            // (ARCH-1). So record the demand in any case.
            if self.cell().needs_boundary() {
                self.stream().need_for_host(self.cell(), site);
            }
            return Ok(outcome);
        }
        may_wait()?;
        let start = Instant::now();
        self.stream().need_now(self.cell(), deadline, site);
        if outcome.get().is_none() {
            // DEFER-1: another thread drives the stream now.
            register_deferred();
        }
        match outcome.wait(deadline) {
            Some(outcome) => Ok(outcome),
            None => {
                Err(Error::timeout(start.elapsed(), self.asked_at(site), self.stream().activity().look()))
            }
        }
    }

    /// The description of an awaited value, for errors.
    fn asked_at(&self, site: &Site) -> String {
        match site {
            Site::Unknown => format!("{:?}", self.cell()),
            site => format!("{:?}, requested at {site}", self.cell()),
        }
    }

    /// Runs a device call about a launched value on another thread, and waits for the result until
    /// the deadline.
    fn run_with_deadline<R: Send + 'static>(
        &self,
        deadline: Instant,
        maker: Option<&Producer>,
        site: &Site,
        ask: impl FnOnce(&Arc<EngineShared>, &Arc<ValueCell>, HandOver<R>) + Send + 'static,
    ) -> Result<R> {
        let (engine, start) = (self.stream().engine(), Instant::now());
        // Not a handle, because only the program may decide when handles are dropped.
        let (owner, value) = (engine.clone(), self.cell().clone());
        engine
            .threads()
            .run_with_deadline(deadline, move |hand_over| ask(&owner, &value, hand_over))
            .ok_or_else(|| {
                let since = start.elapsed();
                let stand = maker.map(|maker| CurrentActivity::copied(&maker.region, maker.address(), since));
                Error::timeout(since, self.asked_at(site), stand)
            })
    }

    /// The data, row-major, of the first replica. Waits until it has been computed.
    pub fn literal_at(&self, site: Site) -> Result<Literal> {
        self.literal_until(self.stream().engine().deadline(), site)
    }

    /// As [`TensorHandle::literal_at`], waiting until `deadline` at most.
    pub fn literal_until(&self, deadline: Option<Instant>, site: Site) -> Result<Literal> {
        let bytes = self.read_until(deadline, site, |bytes| bytes.into_owned())?;
        Ok(Literal::from_bytes(self.ty().clone(), bytes)?)
    }

    /// The elements of the first replica, row-major. Waits until they have been computed. The
    /// element type of the value must be `T`'s. If the device shares its memory, the elements are
    /// decoded there.
    pub fn elements_at<T: Element>(&self, site: Site) -> Result<Vec<T>> {
        self.read_until(self.stream().engine().deadline(), site, |bytes| T::read_all_le(&bytes))
    }

    /// Waits for the data of the first replica until `deadline` at most, and decodes it. If memory
    /// runs out, `decode` may be called twice.
    fn read_until<R>(
        &self,
        deadline: Option<Instant>,
        site: Site,
        decode: impl Fn(Cow<'_, [u8]>) -> R,
    ) -> Result<R> {
        let engine = self.stream().engine();
        engine.counters().host_reads.add(1);
        if let Some(scalar) = self.cell().as_scalar() {
            return Ok(decode(Cow::Borrowed(scalar.to_literal().bytes())));
        }
        let mut watched = Watched::start(self, Asked::Read, &site);
        let deferral = Deferral::begin();
        let (buffer, maker) = data(self.settle(deadline, &site)?, &site)?;
        may_wait()?;
        deferral.wait();
        Watched::launched(&mut watched);
        let asked = self.ty().bytes();
        let read = match deadline {
            None => engine.with_room(asked, || engine.device().read(buffer, &decode)),
            Some(deadline) => self
                .run_with_deadline(deadline, maker, &site, |engine, value, hand_over| {
                    engine.download_async(value, hand_over);
                })?
                .map(|bytes| decode(Cow::Owned(bytes))),
        };
        let read = read.map_err(|error| Error::device(Arc::new(failure(error, maker))))?;
        let bytes = asked.0 as usize;
        Watched::end(watched, maker, bytes);
        engine.counters().bytes_down.add(bytes as u64);
        self.stream().checks().before_data(maker, self.stream())?;
        Ok(read)
    }

    /// The data of each replica, in their order. Waits until all of them have computed it.
    pub fn read_replicas_at(&self, site: &Site) -> Result<Vec<Literal>> {
        let engine = self.stream().engine();
        let replicas = engine.device().replicas();
        engine.counters().host_reads.add(1);
        if let Some(scalar) = self.cell().as_scalar() {
            return Ok(vec![scalar.to_literal(); replicas]);
        }
        let mut watched = Watched::start(self, Asked::Read, site);
        let deadline = engine.deadline();
        let (buffer, maker) = data(self.settle(deadline, site)?, site)?;
        may_wait()?;
        Watched::launched(&mut watched);
        let copied = match deadline {
            None => copy_replicas(engine, buffer, replicas),
            Some(deadline) => self.copied_by(deadline, replicas, maker, site)?,
        };
        let copied = copied.map_err(|error| Error::device(Arc::new(failure(error, maker))))?;
        engine.counters().bytes_down.add(copied.iter().map(|bytes| bytes.len() as u64).sum());
        let literal = |bytes| Ok(Literal::from_bytes(self.ty().clone(), bytes)?);
        let all: Vec<Literal> = copied.into_iter().map(literal).collect::<Result<_>>()?;
        Watched::end(watched, maker, all.iter().map(|literal| literal.bytes().len()).sum());
        self.stream().checks().before_data(maker, self.stream())?;
        Ok(all)
    }

    /// [`copy_replicas`] on another thread.
    fn copied_by(
        &self,
        deadline: Instant,
        replicas: usize,
        maker: Option<&Producer>,
        site: &Site,
    ) -> Result<std::result::Result<Vec<Vec<u8>>, DeviceError>> {
        self.run_with_deadline(deadline, maker, site, move |engine, value, hand_over| {
            // The value had data before this call, and an outcome never changes.
            if let Some(Outcome::Data { buffer, .. }) = value.outcome().get() {
                hand_over(copy_replicas(engine, buffer, replicas));
            }
        })
    }

    /// Starts to read the value and does not wait.
    pub fn read_at(&self, site: Site) -> Read {
        self.read_as(Watched::start(self, Asked::Async, &site), site)
    }

    fn read_as(&self, watched: Option<Watched>, site: Site) -> Read {
        let slot = Arc::new(ReadSlot {
            state: Mutex::new(Rank::ReadSlot, SlotState::default()),
            telemetry: self.stream().engine().telemetry().clone(),
        });
        let read = Read { slot: slot.clone() };
        self.deliver_as(watched, site, move |data| slot.put(data));
        read
    }

    /// Starts to read the value; `put` gets its data, on any thread, possibly before this returns.
    pub fn deliver(&self, site: Site, put: impl FnOnce(Result<Literal>) + Send + 'static) {
        self.deliver_as(Watched::start(self, Asked::Async, &site), site, put);
    }

    fn deliver_as(
        &self,
        mut watched: Option<Watched>,
        site: Site,
        put: impl FnOnce(Result<Literal>) + Send + 'static,
    ) {
        if is_forked() {
            return put(Err(Error::forked(site)));
        }
        let engine = self.stream().engine().clone();
        engine.counters().host_reads.add(1);
        let telemetry = engine.telemetry().clone();
        let ty = self.ty().clone();
        self.stream().need_for_host(self.cell(), &site);
        let (value, checks) = (self.cell().clone(), self.stream().checks().clone());
        self.cell().outcome().subscribe(move || {
            let outcome = value.outcome().get().unwrap_or(&Outcome::Abandoned);
            if let Outcome::Scalar(scalar) = outcome {
                return put(Ok(scalar.to_literal()));
            }
            match data(outcome, &site) {
                Err(error) => put(Err(error)),
                Ok((_, maker)) => {
                    let verdict = checks.verdict(maker, &engine);
                    let maker = maker.cloned();
                    Watched::launched(&mut watched);
                    // This runs on a thread of the plugin, so it must not hold the engine.
                    engine.download_async(&value, move |bytes| {
                        let data = match bytes {
                            Ok(bytes) => {
                                Watched::end(watched, maker.as_ref(), bytes.len());
                                telemetry.note_down(bytes.len());
                                Literal::from_bytes(ty, bytes).map_err(Error::from)
                            }
                            Err(error) => Err(Error::device(Arc::new(failure(error, maker.as_ref())))),
                        };
                        match verdict {
                            None => put(data),
                            Some(verdict) => verdict.then(move |failed| put(failed.map_or(data, Err))),
                        }
                    });
                }
            }
        });
    }

    /// Demands the value and calls `callback` when its data has been computed or has failed.
    /// Otherwise as [`TensorHandle::on_ready`].
    pub fn on_computed(&self, callback: impl FnOnce(Result<()>) + Send + 'static) {
        if is_forked() {
            return callback(Err(Error::forked(Site::Unknown)));
        }
        self.stream().need(self.cell(), Boundary::HostRead);
        let value = self.cell().clone();
        let telemetry = self.stream().engine().telemetry().clone();
        let callback = move |outcome| telemetry.call_back("readiness", || callback(outcome));
        self.cell().outcome().subscribe(move || {
            let outcome = value.outcome().get().unwrap_or(&Outcome::Abandoned);
            if let Outcome::Scalar(_) = outcome {
                return callback(Ok(()));
            }
            match data(outcome, &Site::Unknown) {
                Err(error) => callback(Err(error)),
                Ok((buffer, maker)) => {
                    let maker = maker.cloned();
                    buffer.on_ready(move |ready| {
                        let failed = |error| Error::device(Arc::new(failure(error, maker.as_ref())));
                        callback(ready.map_err(failed));
                    });
                }
            }
        });
    }

    /// The PJRT buffer with the value's data. Waits until the op that produces it has been handed
    /// to the device.
    pub fn pjrt_buffer(&self) -> Result<&fuseline_pjrt::Buffer> {
        let none = |what| Error::misuse(format!("{what} has no PJRT buffer"), Site::Unknown);
        if self.cell().is_scalar() {
            return Err(none("a lifted scalar"));
        }
        let deadline = self.stream().engine().deadline();
        match data(self.settle(deadline, &Site::Unknown)?, &Site::Unknown)?.0.pjrt() {
            Some([buffer]) => Ok(buffer),
            Some(_) => Err(none("a value of several replicas has one buffer per replica; as a whole it")),
            None => Err(none("a value of the reference device")),
        }
    }

    /// Demands the value and calls `callback` when its outcome is known: the computation has been
    /// handed to the device, or has failed. `callback` runs on any thread, and at once if the
    /// outcome is known already. It must not wait for a stream. A panic in it is caught, counted
    /// and reported as [`Event::Panicked`].
    pub fn on_ready(&self, callback: impl FnOnce(Result<()>) + Send + 'static) {
        if is_forked() {
            return callback(Err(Error::forked(Site::Unknown)));
        }
        self.stream().need(self.cell(), Boundary::HostRead);
        let value = self.cell().clone();
        let telemetry = self.stream().engine().telemetry().clone();
        self.cell().outcome().subscribe(move || {
            let outcome = match value.outcome().get() {
                Some(Outcome::Failed(failure)) => Err(Error::device(failure.clone())),
                Some(Outcome::Data { .. } | Outcome::Scalar(_)) => Ok(()),
                Some(Outcome::Traced(place)) => Err(place.trace().no_data("on_ready", Site::Unknown)),
                Some(Outcome::Abandoned) | None => Err(Error::abandoned()),
            };
            telemetry.call_back("readiness", || callback(outcome));
        });
    }

    /// Waits until the value has been computed, at most until `deadline`, without copying it to the
    /// host.
    pub fn wait_until(&self, deadline: Option<Instant>, site: &Site) -> Result<()> {
        self.wait_as(deadline, site, |_| site.clone())
    }

    /// As [`TensorHandle::wait_until`]. `told` maps the op that produces the value to the call site
    /// that the event names.
    fn wait_as(
        &self,
        deadline: Option<Instant>,
        site: &Site,
        told: impl FnOnce(Option<&Producer>) -> Site,
    ) -> Result<()> {
        if self.cell().is_scalar() {
            return Ok(());
        }
        let deadline = deadline.or_else(|| self.stream().engine().deadline());
        let mut watched = Watched::start(self, Asked::Wait, site);
        let deferral = Deferral::begin();
        let (buffer, maker) = data(self.settle(deadline, site)?, site)?;
        may_wait()?;
        deferral.wait();
        Watched::launched(&mut watched);
        let ready = match deadline {
            None => buffer.wait(),
            Some(deadline) => self.run_with_deadline(deadline, maker, site, |_, value, hand_over| {
                if let Some(Outcome::Data { buffer, .. }) = value.outcome().get() {
                    buffer.on_ready(hand_over);
                }
            })?,
        };
        ready.map_err(|error| Error::device(Arc::new(failure(error, maker))))?;
        if let Some(watched) = &mut watched {
            watched.site = told(maker);
        }
        Watched::end(watched, maker, 0);
        self.stream().checks().before_data(maker, self.stream())
    }

    /// The check of Debug mode after each op: waits for the result and looks for non-finite
    /// elements.
    pub(crate) fn check(&self) -> Result<()> {
        // The call itself waits, so the event names its call site.
        self.wait_as(None, &Site::Unknown, |maker| maker.map_or(Site::Unknown, |maker| maker.address().1))?;
        let engine = self.stream().engine();
        if !engine.config().check_finite || !self.ty().dtype().is_float() {
            return Ok(());
        }
        let (buffer, maker) = data(self.settle(None, &Site::Unknown)?, &Site::Unknown)?;
        let replicas = engine.device().replicas();
        let copied = match engine.deadline() {
            None => copy_replicas(engine, buffer, replicas),
            Some(deadline) => self.copied_by(deadline, replicas, maker, &Site::Unknown)?,
        };
        let copied = copied.map_err(|error| Error::device(Arc::new(failure(error, maker))))?;
        let (mut nans, mut infinities) = (0, 0);
        for bytes in copied {
            let (more_nans, more_infinities) = non_finite(self.ty(), &bytes);
            (nans, infinities) = (nans + more_nans, infinities + more_infinities);
        }
        if nans + infinities == 0 {
            return Ok(());
        }
        let stage = Stage::Execute;
        let message =
            format!("the result is {}, and Debug mode checks that all elements are finite", self.ty());
        let found = DeviceError::new(stage, message);
        Err(Error::non_finite(failure(found, maker), nans, infinities))
    }
}

/// Number of NaN and of infinite elements, or parts of complex elements.
fn non_finite(ty: &TensorType, bytes: &[u8]) -> (usize, usize) {
    let (mut nans, mut infinities) = (0, 0);
    let part = ty.dtype().part();
    let Some(format) = part.float_format() else { return (nans, infinities) };
    for raw in bytes.chunks_exact(part.size()) {
        let mut wide = [0; 8];
        wide[..raw.len()].copy_from_slice(raw);
        let value = format.decode(u64::from_le_bytes(wide));
        nans += usize::from(value.is_nan());
        infinities += usize::from(value.is_infinite());
    }
    (nans, infinities)
}
