//! What tests see and steer: the plan of faults, the counts of calls, and who hangs.
//!
//! One for the process, as the library is. Its lock is held for a look-up only, never while
//! something is delayed or hangs.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;

use crate::plan::{Action, Failure, Plan};
use crate::registry::die;

/// Names the plan that holds until another one is set.
const PLAN_VARIABLE: &str = "FUSELINE_FAKE_PLAN";

struct World {
    /// The plan of [`PLAN_VARIABLE`] until the first call reads it.
    plan: Option<Plan>,
    calls: BTreeMap<&'static str, u64>,
    fired: BTreeMap<&'static str, u64>,
    hanging: u64,
    /// Who hangs goes on when this has changed.
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

/// What is left to do of the fault that is planned for a call.
pub(crate) enum Fault {
    None,
    Fail(Failure),
    WrongStructSize,
    Null,
    Event(Failure),
}

/// Counts a call, of a size where calls have one, and has it wait, hang, or end the process, if
/// that is planned.
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
            // SAFETY: `_exit` is in every C library here and takes any status.
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

/// Lets everybody go on who hangs.
pub(crate) fn release() {
    WORLD.lock().releases += 1;
    RELEASED.notify_all();
}

pub(crate) fn hanging() -> u64 {
    WORLD.lock().hanging
}

/// Sets a plan; calls are counted from its first one again.
pub(crate) fn set_plan(text: &str) -> Result<(), String> {
    let plan = Plan::parse(text)?;
    WORLD.lock().plan = Some(plan);
    Ok(())
}

/// No plan, nobody hangs, nothing was called.
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
