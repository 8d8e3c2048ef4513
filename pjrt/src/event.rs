//! Completion of asynchronous work.
//!
//! Invariants:
//! - EVENT-1. The plugin's event object lives until the [`Event`] is dropped and every callback
//!   registered on it has run.
//! - EVENT-2. A callback runs exactly once, also when registering it fails, and also when the
//!   [`Event`] is dropped first.
//! - EVENT-3. The client lives as long as EVENT-1 asks, so callbacks may drop the last handle on
//!   anything.
//!
//! An event that is only waited for costs no heap allocation. The first callback costs two, or one
//! if it consumes the event.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use fuseline_sync::lock_rank::before;
use pjrt_sys::*;

use super::api::{Api, call};
use super::callback::shield;
use super::client::Client;
use super::error::{Error, count_destroy};

/// Asynchronous work, which succeeds or fails once.
///
/// `Send + Sync`: any thread may query, wait and register callbacks at any time, several at once.
pub struct Event {
    raw: NonNull<PJRT_Event>,
    client: Client,
    /// The owner of `raw`, once a callback shares it. Before that, this handle owns it.
    shared: OnceLock<Arc<Shared>>,
}

// SAFETY: holds because PJRT events may be used and destroyed on any thread, several threads at a
// time (see the thread-safety section of the module `pjrt`), and the rest of the struct is `Send +
// Sync` by itself.
unsafe impl Send for Event {}
// SAFETY: holds for the same reason.
unsafe impl Sync for Event {}

struct Shared {
    raw: NonNull<PJRT_Event>,
    client: Client,
}

// SAFETY: holds for the same reason as for `Event`.
unsafe impl Send for Shared {}
// SAFETY: holds for the same reason.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        destroy(self.client.api(), self.raw);
    }
}

fn destroy(api: &Api, raw: NonNull<PJRT_Event>) {
    // SAFETY: holds because each event has one owner, `Event` or `Shared`, which calls this once,
    // at its end.
    let outcome = unsafe { call!(api, PJRT_Event_Destroy_Args { event: raw.as_ptr() }) };
    count_destroy(outcome.map(drop));
}

impl Event {
    /// Takes over an event that a call returned. `None` if it returned none.
    ///
    /// # Safety
    /// `raw` is null or an event of `client`'s plugin that nobody else owns.
    pub(super) unsafe fn from_raw(raw: *mut PJRT_Event, client: &Client) -> Option<Event> {
        let raw = NonNull::new(raw)?;
        Some(Event { raw, client: client.clone(), shared: OnceLock::new() })
    }

    /// True when the work has succeeded or failed. Never blocks.
    ///
    /// # Errors
    /// When the plugin cannot determine it.
    pub fn is_ready(&self) -> Result<bool, Error> {
        // SAFETY: holds because `self` keeps the event alive (EVENT-1).
        let out = unsafe { call!(self.client.api(), PJRT_Event_IsReady_Args { event: self.raw.as_ptr() }) }?;
        Ok(out.is_ready)
    }

    /// Blocks until the work has finished and returns its outcome.
    ///
    /// For finished work this returns at once, with its error if it failed, every time.
    ///
    /// # Errors
    /// The error of the work, with the plugin's message.
    pub fn wait(&self) -> Result<(), Error> {
        before("waits for the plugin");
        let block = || {
            // SAFETY: holds because `self` keeps the event alive (EVENT-1).
            unsafe { call!(self.client.api(), PJRT_Event_Await_Args { event: self.raw.as_ptr() }) }.map(drop)
        };
        // If the plugin cannot tell whether the event is ready, only blocking helps.
        self.client.waits().wait(|| self.is_ready().unwrap_or(true), block)
    }

    /// Calls `callback` with the outcome once the work has finished.
    ///
    /// It runs on a thread of the plugin, or at once on this thread if the work has finished
    /// already. So it must not block, and must not need a lock that the caller holds. A panic in it
    /// is caught and counted ([`super::counters`]). Dropping the event does not cancel it. If the
    /// plugin rejects the registration, the callback runs now with that error.
    pub fn on_ready<F>(&self, callback: F)
    where
        F: FnOnce(Result<(), Error>) + Send + 'static,
    {
        if let Err((error, callback)) = self.register(callback, |callback, outcome| callback(outcome)) {
            callback(Err(error));
        }
    }

    /// As [`Event::on_ready`], consuming the event.
    pub fn into_on_ready<F>(self, callback: F)
    where
        F: FnOnce(Result<(), Error>) + Send + 'static,
    {
        if let Err((error, callback)) = register(self, callback, |callback, outcome| callback(outcome)) {
            callback(Err(error));
        }
    }

    /// Calls `run` with `state` once the work has finished. Returns `state` if it will not be
    /// called.
    pub(super) fn register<S: Send + 'static>(&self, state: S, run: Run<S>) -> Result<(), (Error, S)> {
        let shared =
            self.shared.get_or_init(|| Arc::new(Shared { raw: self.raw, client: self.client.clone() }));
        register(Arc::clone(shared), state, run)
    }
}

/// Keeps an event (EVENT-1) and its client (EVENT-3) alive.
trait Keeper: Send + 'static {
    fn raw(&self) -> NonNull<PJRT_Event>;
    fn client(&self) -> &Client;
}

impl Keeper for Arc<Shared> {
    fn raw(&self) -> NonNull<PJRT_Event> {
        self.raw
    }

    fn client(&self) -> &Client {
        &self.client
    }
}

impl Keeper for Event {
    fn raw(&self) -> NonNull<PJRT_Event> {
        self.raw
    }

    fn client(&self) -> &Client {
        &self.client
    }
}

/// Calls `run` with `state` once the work has finished. Returns `state` if it will not be called.
fn register<S: Send + 'static, K: Keeper>(keeper: K, state: S, run: Run<S>) -> Result<(), (Error, S)> {
    let (api, event) = (keeper.client().api(), keeper.raw());
    let pending = Box::into_raw(Box::new(Pending { state, run, keeper }));
    // SAFETY: holds because the event lives until the callback has run (EVENT-1: `pending` keeps
    // it) and `pending` is what `on_ready::<S, K>` expects; a plugin calls a registered callback
    // once.
    let outcome = unsafe {
        call!(
            api,
            PJRT_Event_OnReady_Args {
                event: event.as_ptr(),
                callback: Some(on_ready::<S, K>),
                user_arg: pending.cast::<c_void>(),
            }
        )
    };
    outcome.map(drop).map_err(|error| {
        // SAFETY: holds because a refused callback is never called, so the box is still ours.
        let pending = unsafe { Box::from_raw(pending) };
        (error, pending.state)
    })
}

/// The function that a callback calls with its state.
pub(super) type Run<S> = fn(S, Result<(), Error>);

struct Pending<S, K> {
    state: S,
    run: Run<S>,
    keeper: K,
}

/// The callback that the plugin calls.
unsafe extern "C" fn on_ready<S: Send, K: Keeper>(error: *mut PJRT_Error, user_arg: *mut c_void) {
    shield(|| {
        // SAFETY: holds because `register` made the box for this one call.
        let pending = unsafe { Box::from_raw(user_arg.cast::<Pending<S, K>>()) };
        let Pending { state, run, keeper } = *pending;
        let outcome = if error.is_null() {
            Ok(())
        } else {
            // SAFETY: holds because the callback owns the error it is given.
            Err(unsafe { keeper.client().api().take_error(error, "PJRT_Event_OnReady") })
        };
        run(state, outcome);
        // `keeper` goes last, in a panic as well: EVENT-1 and EVENT-3 hold while `run` does.
        drop(keeper);
    });
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.shared.get().is_none() {
            destroy(self.client.api(), self.raw);
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_ready() {
            Ok(true) => f.write_str("Event(ready)"),
            Ok(false) => f.write_str("Event(pending)"),
            Err(error) => write!(f, "Event({error})"),
        }
    }
}
