//! Items of the engine's queues, whose threads may enter the plugin.

use fuseline_pjrt::PluginScope;
use fuseline_sync::schedule::{Item, Refusal};

/// A queued item whose thread may enter the plugin. It counts as inside from the moment that it is
/// queued, so that the process does not end in between ([`PluginScope`]).
#[derive(Debug)]
pub struct Scoped<T> {
    item: T,
    inside: PluginScope,
}

impl<T> Scoped<T> {
    /// Enters the scope.
    pub fn new(item: T) -> Scoped<T> {
        Scoped { item, inside: PluginScope::enter() }
    }

    /// Calls a function on the item, and leaves the scope when what remains of it is dropped.
    pub(crate) fn run(self, run: impl FnOnce(T)) {
        let Scoped { item, inside } = self;
        run(item);
        drop(inside);
    }
}

impl<T: Item> Item for Scoped<T> {
    fn take_refusal(&mut self) -> Option<Refusal> {
        self.item.take_refusal()
    }

    fn is_refusable(&self) -> bool {
        self.item.is_refusable()
    }
}
