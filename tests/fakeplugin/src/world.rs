//! The state that tests observe and control: the fault plan, call counts, and hanging threads.
//!
//! There is one for the process, like the library. Its lock is held for a look-up only, never
//! during a delay or a hang.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;

use crate::plan::{Action, Failure, Plan};
use crate::registry::die;

/// The variable with the initial plan.
const PLAN_VARIABLE: &str = "FUSELINE_FAKE_PLAN";

struct World {
    /// `None` until the first call reads the plan of [`PLAN_VARIABLE`].
    plan: Option<Plan>,
    calls: BTreeMap<&'static str, u64>,
    fired: BTreeMap<&'static str, u64>,
    hanging: u64,
    /// Hanging threads continue when this changes.
    releases: u64,
}

static WORLD: Mutex<World> =
    Mutex::new(World { plan: None, calls: BTreeMap::new(), fired: BTreeMap::new(), hanging: 0, releases: 0 });
static RELEASED: Condvar = Condvar::new();

/// The plan of [`PLAN_VARIABLE`].
fn initial_plan() -> Plan {
    let plan = std::env::var(PLAN_VARIABLE).unwrap_or_default();
    Plan::parse(&plan).unwrap_or_else(|why| die(&format!("{PLAN_VARIABLE}: {why}")))
}

/// The part of a planned fault that the function itself handles.
pub(crate) enum Fault {
    None,
    Fail(Failure),
    WrongStructSize,
    Null,
    Event(Failure),
}

/// Counts a call, with its size if it has one. Delays it, hangs, or ends the process, if planned.
pub(crate) fn enter(point: &'static str, size: u64) -> Fault {
    let (delay, action) = {
        let mut world = WORLD.lock();
        *world.calls.entry(point).or_default() += 1;
        let (delay, action) = world.plan.get_or_insert_with(initial_plan).next(point, size);
        if !delay.is_zero() || action.is_some() {
            *world.fired.entry(point).or_default() += 1;
        }
        (delay, action)
    };
    if !delay.is_zero() {
        std::thread::sleep(delay);
    }
    match action {
        None => Fault::None,
        Some(Action::Fail(failure)) => Fault::Fail(failure),
        Some(Action::EventError(failure)) => Fault::Event(failure),
        Some(Action::WrongStructSize) => Fault::WrongStructSize,
        Some(Action::Null) => Fault::Null,
        Some(Action::Hang) => {
            hang();
            Fault::None
        }
        Some(Action::Abort) => die(&format!("{point} aborts, as planned")),
        Some(Action::Exit(status)) => {
            // SAFETY: `_exit` is in every supported C library and accepts any status.
            unsafe { _exit(status) }
        }
    }
}

unsafe extern "C" {
    fn _exit(status: i32) -> !;
}

fn hang() {
    let mut world = WORLD.lock();
    let releases = world.releases;
    world.hanging += 1;
    while world.releases == releases {
        RELEASED.wait(&mut world);
    }
    world.hanging -= 1;
}

/// Releases all hanging threads.
pub(crate) fn release() {
    WORLD.lock().releases += 1;
    RELEASED.notify_all();
}

pub(crate) fn hanging() -> u64 {
    WORLD.lock().hanging
}

/// Sets a plan, and resets the call counts.
pub(crate) fn set_plan(text: &str) -> Result<(), String> {
    let plan = Plan::parse(text)?;
    WORLD.lock().plan = Some(plan);
    Ok(())
}

/// Removes the plan, releases all threads, and resets the counts.
pub(crate) fn reset() {
    let mut world = WORLD.lock();
    world.plan = Some(Plan::none());
    world.calls.clear();
    world.fired.clear();
    drop(world);
    release();
}

pub(crate) fn calls(point: &str) -> u64 {
    WORLD.lock().calls.get(point).copied().unwrap_or(0)
}

pub(crate) fn fired(point: &str) -> u64 {
    WORLD.lock().fired.get(point).copied().unwrap_or(0)
}
