//! The shared tier, in builds that include it.
//!
//! Input: requests and records. Output: records that another machine with the fleet's key has made.
//! Without the feature `shared-cache` there is no such tier, and none of its code is compiled.

#[cfg(not(feature = "shared-cache"))]
pub(crate) use self::without::{Fetching, Shared};
#[cfg(feature = "shared-cache")]
pub(crate) use with::{Fetching, Shared};

#[cfg(feature = "shared-cache")]
mod with {
    use std::fmt;
    use std::sync::Arc;
    use std::time::Duration;

    use fuseline_cache::shared::{Fetch, Fetched, SharedCache};
    use fuseline_cache::{Record, Request};

    use super::super::StoreConfig;
    use crate::event::{Event, Events};

    pub(crate) struct Shared(SharedCache);

    /// A fetch in progress. Dropping it cancels it.
    pub(crate) struct Fetching(Fetch);

    impl Shared {
        pub(crate) fn open(config: &StoreConfig, events: &Events) -> Option<Shared> {
            let tell = |what: String, events: &Events| events.emit(|| Event::CacheTrouble { what });
            let config = match &config.shared {
                Ok(config) => config.clone()?,
                Err(why) => {
                    tell(format!("the shared cache is off: {why}"), events);
                    return None;
                }
            };
            let teller = events.clone();
            let opened = SharedCache::open(config, move |event| tell(event.to_string(), &teller));
            match opened {
                Ok(shared) => Some(Shared(shared)),
                Err(error) => {
                    events.emit(|| Event::CacheTrouble { what: format!("the shared cache is off: {error}") });
                    None
                }
            }
        }

        pub(crate) fn fetch(&self, request: &Request<'_>) -> Fetching {
            Fetching(self.0.fetch(request))
        }

        pub(crate) fn offer(&self, record: Record) {
            // The tier reports the outcome by itself.
            let _ = self.0.offer(record);
        }

        /// Waits until the offered records are written, at most this long.
        pub(crate) fn flush(&self, most: Duration) {
            let _ = self.0.flush(most);
        }
    }

    impl Fetching {
        /// Returns the entry, if one arrives within this time.
        pub(crate) fn within(&self, time: Duration) -> Option<Arc<Record>> {
            self.0.within(time)?.hit().cloned()
        }

        /// Cancels the fetch.
        pub(crate) fn take_back(self) {
            drop(self.0);
        }

        /// Calls a function with an entry that arrives later, unless this is dropped first.
        pub(crate) fn then(&self, f: impl FnOnce(Arc<Record>) + Send + 'static) {
            self.0.subscribe(move |fetched| {
                if let Fetched::Hit(record) = fetched {
                    f(record.clone());
                }
            });
        }
    }

    impl fmt::Debug for Shared {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "Shared({:?})", self.0.stats())
        }
    }
}

#[cfg(not(feature = "shared-cache"))]
mod without {
    use std::sync::Arc;
    use std::time::Duration;

    use fuseline_cache::{Record, Request};

    use super::super::StoreConfig;
    use crate::event::Events;

    /// Has no values in this build.
    #[derive(Debug)]
    pub(crate) enum Shared {}

    /// Has no values in this build.
    pub(crate) enum Fetching {}

    impl Shared {
        pub(crate) fn open(_: &StoreConfig, _: &Events) -> Option<Shared> {
            None
        }

        pub(crate) fn fetch(&self, _: &Request<'_>) -> Fetching {
            match *self {}
        }

        pub(crate) fn offer(&self, _: Record) {
            match *self {}
        }

        pub(crate) fn flush(&self, _: Duration) {
            match *self {}
        }
    }

    impl Fetching {
        pub(crate) fn within(&self, _: Duration) -> Option<Arc<Record>> {
            match *self {}
        }

        pub(crate) fn then(&self, _: impl FnOnce(Arc<Record>) + Send + 'static) {
            match *self {}
        }

        pub(crate) fn take_back(self) {
            match self {}
        }
    }
}
