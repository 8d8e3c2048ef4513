//! Items of the engine's queues. The thread that takes one may enter the plugin.

use fuseline_pjrt::PluginScope;
use fuseline_sync::schedule::{Item, Refusal};

/// An item of a queue. It holds a [`PluginScope`] from before it is queued, so an exit in between
/// runs no destructors of the plugin.
#[derive(Debug)]
pub struct QueueItem<T> {
    item: T,
    inside: PluginScope,
}

impl<T> QueueItem<T> {
    /// Enters the scope.
    pub fn new(item: T) -> QueueItem<T> {
        QueueItem { item, inside: PluginScope::enter() }
    }

    /// Calls a function on the item, and then leaves the scope.
    pub(crate) fn run(self, run: impl FnOnce(T)) {
        let QueueItem { item, inside } = self;
        run(item);
        drop(inside);
    }
}

impl<T: Item> Item for QueueItem<T> {
    fn take_refusal(&mut self) -> Option<Refusal> {
        self.item.take_refusal()
    }

    fn is_refusable(&self) -> bool {
        self.item.is_refusable()
    }
}
