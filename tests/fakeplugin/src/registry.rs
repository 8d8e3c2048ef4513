//! All objects that the caller holds, by handles that are never reused.
//!
//! A handle is a number that looks like a pointer, but nothing is stored there. A destroyed handle
//! is therefore recognized forever, and no mistake of the caller touches memory.
//!
//! Invariants, each of which ends the process with a message if the caller breaks it:
//! - REGISTRY-1. A handle is used only while its object lives, and only as its own kind of object.
//! - REGISTRY-2. An object is destroyed once, and not while a call on any thread uses it.
//! - REGISTRY-3. A client or topology is destroyed after everything that was made with it.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;

/// The kind of a handle's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Client = 1,
    Device,
    Memory,
    Executable,
    LoadedExecutable,
    Buffer,
    Event,
    Error,
    Serialized,
    Topology,
}

/// Kinds with the names that tests use. Devices and memories belong to their client or topology.
pub(crate) const KINDS: [(Kind, &str); 10] = [
    (Kind::Client, "client"),
    (Kind::Device, "device"),
    (Kind::Memory, "memory"),
    (Kind::Executable, "executable"),
    (Kind::LoadedExecutable, "loaded_executable"),
    (Kind::Buffer, "buffer"),
    (Kind::Event, "event"),
    (Kind::Error, "error"),
    (Kind::Serialized, "serialized"),
    (Kind::Topology, "topology"),
];

impl Kind {
    fn is_part(self) -> bool {
        matches!(self, Kind::Device | Kind::Memory)
    }

    fn place(self) -> usize {
        self as usize - 1
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KINDS[self.place()].1)
    }
}

/// A handle, as C sees it.
pub(crate) type Handle = usize;

struct Slot {
    object: Arc<dyn Any + Send + Sync>,
    /// The client or topology that it was made with; 0 for none.
    client: Handle,
    /// The number of calls that use it now.
    users: u32,
}

struct Registry {
    live: BTreeMap<Handle, Slot>,
    created: [u64; KINDS.len()],
    destroyed: [u64; KINDS.len()],
    next: usize,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    live: BTreeMap::new(),
    created: [0; KINDS.len()],
    destroyed: [0; KINDS.len()],
    next: 1,
});

/// The distance of handles, with the kind in between: aligned, and far below any real address.
const STRIDE: usize = 256;

fn kind_of(handle: Handle) -> Option<Kind> {
    let number = handle % STRIDE / 16;
    KINDS.iter().map(|row| row.0).find(|kind| *kind as usize == number && handle.is_multiple_of(16))
}

/// Ends the process: the caller has broken a rule, and nothing is safe any more.
pub(crate) fn die(message: &str) -> ! {
    eprintln!("fake plugin: {message}");
    std::process::abort()
}

/// Makes a handle for an object, owned by the caller. `client` is the client that it was made with,
/// or 0.
pub(crate) fn insert<T: Any + Send + Sync>(kind: Kind, object: Arc<T>, client: Handle) -> Handle {
    let mut registry = REGISTRY.lock();
    let handle = registry.next * STRIDE + kind as usize * 16;
    registry.next += 1;
    registry.created[kind.place()] += 1;
    registry.live.insert(handle, Slot { object, client, users: 0 });
    handle
}

/// Reports why a handle cannot be used, and ends the process.
fn refuse(registry: &Registry, function: &str, kind: Kind, handle: Handle) -> ! {
    let number = handle / STRIDE;
    let what = match kind_of(handle).filter(|_| number < registry.next && number > 0) {
        None if handle == 0 => format!("a null pointer for a {kind}"),
        None => format!("{handle:#x} for a {kind}, which is no handle"),
        Some(other) if other != kind => format!("{other} #{number} for a {kind}"),
        Some(_) => format!("{kind} #{number}, which was destroyed"),
    };
    die(&format!("{function} got {what}"))
}

/// An object in use by a call.
pub(crate) struct Held<T> {
    object: Arc<T>,
    pub(crate) handle: Handle,
}

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T> Held<T> {
    pub(crate) fn shared(&self) -> &Arc<T> {
        &self.object
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        if let Some(slot) = REGISTRY.lock().live.get_mut(&self.handle) {
            slot.users -= 1;
        }
    }
}

/// The object of a handle, marked as used until the call is done with it.
pub(crate) fn hold<T: Any + Send + Sync>(function: &str, kind: Kind, handle: Handle) -> Held<T> {
    let mut registry = REGISTRY.lock();
    if kind_of(handle) != Some(kind) || !registry.live.contains_key(&handle) {
        refuse(&registry, function, kind, handle);
    }
    let slot = registry.live.get_mut(&handle).expect("it was just seen");
    slot.users += 1;
    let object = Arc::clone(&slot.object).downcast().expect("the kind says the type");
    Held { object, handle }
}

/// Destroys a handle.
pub(crate) fn remove<T: Any + Send + Sync>(function: &str, kind: Kind, handle: Handle) -> Arc<T> {
    let mut registry = REGISTRY.lock();
    if kind_of(handle) != Some(kind) || !registry.live.contains_key(&handle) {
        refuse(&registry, function, kind, handle);
    }
    let number = handle / STRIDE;
    let users = registry.live[&handle].users;
    if users > 0 {
        die(&format!("{function} destroys {kind} #{number} while {users} other calls use it"));
    }
    let left = || registry.live.iter().filter(|(other, slot)| slot.client == handle && **other != handle);
    let made = left().filter_map(|(other, _)| kind_of(*other)).filter(|kind| !kind.is_part());
    let is_owner = matches!(kind, Kind::Client | Kind::Topology);
    if is_owner && let Some(first) = made.clone().next() {
        let count = made.count();
        die(&format!(
            "{function} destroys {kind} #{number} before {count} objects made with it, a {first} among them"
        ));
    }
    let parts: Vec<Handle> = left().map(|(other, _)| *other).collect();
    for part in parts.into_iter().filter(|_| is_owner) {
        registry.live.remove(&part);
        if let Some(kind) = kind_of(part) {
            registry.destroyed[kind.place()] += 1;
        }
    }
    registry.destroyed[kind.place()] += 1;
    let slot = registry.live.remove(&handle).expect("it was just seen");
    slot.object.downcast().expect("the kind says the type")
}

/// The numbers of objects made and destroyed; of all kinds if `kind` is `None`.
pub(crate) fn count(kind: Option<Kind>) -> (u64, u64) {
    let registry = REGISTRY.lock();
    match kind {
        Some(kind) => (registry.created[kind.place()], registry.destroyed[kind.place()]),
        None => (registry.created.iter().sum(), registry.destroyed.iter().sum()),
    }
}
