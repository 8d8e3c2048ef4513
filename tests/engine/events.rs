//! Events of the interface for frameworks: positions in streams that can be queried, waited for,
//! observed, and waited for by other streams.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fuseline::embed::{Call, EventHandle, Session, StreamHandle, ValueHandle};
use fuseline::fusion::op::{Effect, attrs};
use fuseline::handler::{Config, Handler, HandlerCall};
use fuseline::pjrt::bytes_of;
use fuseline::{DType, EngineConfig, OpCode, Result, TensorType};

use crate::support::{self, on_all_tiers};

/// Runs a test on a session on every engine, with two streams, and checks for leaks.
fn on_sessions(test: impl Fn(&Session, [StreamHandle; 2]) -> Result<()>) {
    on_all_tiers(support::config, |engine| {
        let session = Session::on(engine.clone());
        let streams = [session.open_stream()?, session.open_stream()?];
        test(&session, streams)?;
        assert_eq!(session.live_values(), 0, "ids have leaked");
        streams.into_iter().try_for_each(|stream| session.close_stream(stream))
    });
}

fn ty() -> TensorType {
    TensorType::of(DType::F32, &[2]).unwrap()
}

fn op(session: &Session, stream: StreamHandle, op: OpCode, operands: &[ValueHandle]) -> Result<ValueHandle> {
    Ok(session.record(stream, Call::new(op, operands))?.remove(0).id)
}

fn release(session: &Session, values: &[ValueHandle]) -> Result<()> {
    values.iter().try_for_each(|&value| session.release(value))
}

#[test]
fn an_event_is_reached_when_what_is_before_it_has_run() {
    on_sessions(|session, [stream, _]| {
        let empty = session.record_event(stream)?;
        session.wait_event(empty, None)?;
        // The ops before it wait for a placeholder.
        let hole = session.placeholder(stream, &ty())?;
        let y = op(session, stream, OpCode::Negate, &[hole])?;
        let event = session.record_event(stream)?;
        assert!(!session.is_reached(event)?);
        let error = session.wait_event(event, Some(Duration::from_millis(10))).unwrap_err();
        assert!(error.is_timeout() && error.to_string().contains("event 0x"), "{error}");
        let (tell, told) = mpsc::channel();
        session.on_event(event, move |event| tell.send(event).unwrap())?;
        assert!(told.try_recv().is_err());
        session.fill(hole, bytes_of(&[1.0f32, -2.0]))?;
        session.wait_event(event, None)?;
        assert!(session.is_reached(event)? && session.is_resolved(y)?);
        assert_eq!(told.recv_timeout(Duration::from_secs(60)).unwrap(), event);
        // An event that is already reached is reported at once.
        let (tell, told) = mpsc::channel();
        session.on_event(event, move |event| tell.send(event).unwrap())?;
        assert_eq!(told.try_recv().unwrap(), event);
        assert_eq!(session.read(y)?.to_vec::<f32>()?, [-1.0, 2.0]);
        session.close_event(empty)?;
        session.close_event(event)?;
        release(session, &[hole, y])
    });
}

#[test]
fn a_stream_that_exists_has_events_too() {
    on_sessions(|session, _| {
        let own = session.engine().stream();
        let kept = session.keep_stream(own)?;
        // The wait covers ops recorded on the stream itself.
        let hole = session.placeholder(kept, &ty())?;
        let y = op(session, kept, OpCode::Negate, &[hole])?;
        let event = session.record_event(kept)?;
        assert!(!session.is_reached(event)? && own.synchronize_for(Duration::from_millis(10)).is_err());
        session.fill(hole, bytes_of(&[1.0f32, -2.0]))?;
        session.wait_event(event, None)?;
        own.synchronize()?;
        session.close_event(event)?;
        session.close_stream(kept)?;
        release(session, &[hole, y])
    });
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    on_sessions(|session, [one, other]| {
        let x = session.upload(other, &ty(), bytes_of(&[3.0f32, 4.0]))?;
        let hole = session.placeholder(one, &ty())?;
        let late = op(session, one, OpCode::Negate, &[hole])?;
        let event = session.record_event(one)?;
        // An op recorded before the wait runs. One after it does not, even if it is independent of
        // the other stream's values.
        let before = op(session, other, OpCode::Negate, &[x])?;
        session.wait_on_stream(other, event)?;
        let after = op(session, other, OpCode::Abs, &[x])?;
        assert_eq!(session.read(before)?.to_vec::<f32>()?, [-3.0, -4.0]);
        let error = session.wait(after, Some(Duration::from_millis(30))).unwrap_err();
        assert!(error.is_timeout(), "{error}");
        session.fill(hole, bytes_of(&[1.0f32, 2.0]))?;
        assert_eq!(session.read(after)?.to_vec::<f32>()?, [3.0, 4.0]);
        assert!(session.is_reached(event)?);
        // A reached event blocks nothing, and can be waited for after its id was released.
        session.wait_on_stream(other, event)?;
        session.close_event(event)?;
        let more = op(session, other, OpCode::Negate, &[after])?;
        assert_eq!(session.read(more)?.to_vec::<f32>()?, [-3.0, -4.0]);
        release(session, &[x, hole, late, before, after, more])
    });
}

#[test]
fn the_event_of_a_stream_that_is_gone_holds_nobody_up() {
    on_sessions(|session, [_, other]| {
        let gone = session.open_stream()?;
        let hole = session.placeholder(gone, &ty())?;
        let y = op(session, gone, OpCode::Negate, &[hole])?;
        let event = session.record_event(gone)?;
        session.wait_on_stream(other, event)?;
        let x = session.upload(other, &ty(), bytes_of(&[3.0f32, 4.0]))?;
        let after = op(session, other, OpCode::Negate, &[x])?;
        // The placeholder is never filled: its dependents fail, and the event is still reached.
        session.close_stream(gone)?;
        release(session, &[hole, y])?;
        session.wait_event(event, None)?;
        assert_eq!(session.read(after)?.to_vec::<f32>()?, [-3.0, -4.0]);
        session.close_event(event)?;
        let _ = session.take_failures();
        release(session, &[x, after])
    });
}

/// A handler that logs calls of two streams in the order in which they happen.
struct Note(Arc<AtomicU64>);

impl Handler for Note {
    fn results(&self, _: &[TensorType], _: &Config) -> std::result::Result<Vec<TensorType>, String> {
        Ok(vec![TensorType::scalar(DType::F32)])
    }

    fn run(&self, call: HandlerCall<'_>) -> std::result::Result<(), String> {
        let digit = call.config.int("digit").unwrap_or_default() as u64;
        // Decimal digits, the latest last. The events order the calls; otherwise some would be
        // lost.
        let before = self.0.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(5));
        self.0.store(before * 10 + digit, Ordering::SeqCst);
        Ok(())
    }

    fn has_side_effect(&self) -> bool {
        true
    }
}

/// Effects of two streams happen in the order given by events, in each iteration of a loop.
#[test]
fn effects_of_two_streams_are_ordered_by_events() {
    let written = Arc::new(AtomicU64::new(0));
    fuseline::handler::register("events.note", Note(written.clone())).unwrap();
    on_sessions(|session, [one, other]| {
        let note = |stream: StreamHandle, digit: i64| -> Result<()> {
            let config = Config::of([("digit", fuseline::handler::ConfigValue::Int(digit))]);
            let call =
                Call::new(OpCode::CustomCall, &[]).with(attrs::custom_call("events.note", config, true));
            let made = session.record(stream, Call { effect: Effect::Ordered, ..call })?;
            session.release(made[0].id)
        };
        let then = |from: StreamHandle, to: StreamHandle| -> Result<()> {
            let event = session.record_event(from)?;
            session.wait_on_stream(to, event)?;
            session.close_event(event)
        };
        for _ in 0..10 {
            written.store(0, Ordering::SeqCst);
            note(one, 1)?;
            then(one, other)?;
            note(other, 2)?;
            note(other, 3)?;
            then(other, one)?;
            note(one, 4)?;
            then(one, other)?;
            note(other, 5)?;
            session.synchronize_all()?;
            assert_eq!(written.load(Ordering::SeqCst), 12_345);
        }
        Ok(())
    });
}

#[test]
fn what_is_no_event_and_no_stream_is_refused() {
    let session = Session::reference(EngineConfig::new()).unwrap();
    let stream = session.open_stream().unwrap();
    let event = session.record_event(stream).unwrap();
    session.close_event(event).unwrap();
    let trace = session.begin_trace().unwrap();
    let body = session.begin_body(OpCode::While, fuseline::Site::Unknown).unwrap();
    let refused = [
        session.is_reached(event).unwrap_err(),
        session.wait_event(EventHandle::from_raw(77), None).unwrap_err(),
        session.on_event(event, |_| ()).unwrap_err(),
        session.wait_on_stream(stream, event).unwrap_err(),
        session.close_event(event).unwrap_err(),
        session.record_event(trace).unwrap_err(),
        session.record_event(body).unwrap_err(),
        session.record_event(StreamHandle::from_raw(99)).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.origin(), fuseline::Origin::User, "{error}");
    }
    // Waiting is refused in a callback.
    let event = session.record_event(stream).unwrap();
    let (tell, told) = mpsc::channel();
    let inner = session.clone();
    session.wait_event(event, None).unwrap();
    let never = session.placeholder(stream, &ty()).unwrap();
    let late = op(&session, stream, OpCode::Negate, &[never]).unwrap();
    session.on_ready(late, move |_, _| tell.send(inner.wait_event(event, None).is_err()).unwrap()).unwrap();
    session.fill(never, bytes_of(&[1.0f32, 2.0])).unwrap();
    assert!(told.recv_timeout(Duration::from_secs(60)).unwrap(), "it waited");
}
