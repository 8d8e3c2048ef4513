//! How long is waited for a plugin that may not answer.

use std::time::Duration;

/// How long an engine waits for its plugin, which may hang: in a compile, in an execution, in a
/// transfer. See [`EngineConfig::deadlines`](crate::EngineConfig::deadlines).
///
/// A call of a plugin cannot be stopped from outside. A thread that does not come back is left in
/// there, with what it holds, and another takes its place ([`Event::Stuck`](crate::Event::Stuck)).
/// Dropping an engine never waits for such a thread.
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// use std::time::Duration;
///
/// use fuseline::{Deadlines, EngineConfig};
///
/// // A service that would rather fail than wait.
/// let deadlines = Deadlines::new().wait(Duration::from_secs(10)).compile(Duration::from_secs(60));
/// let engine = EngineConfig::new().deadlines(deadlines).build_reference()?;
/// let x = engine.tensor(&[1.0f32, 4.0], &[2])?;
/// assert_eq!(x.sqrt()?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    pub(crate) wait: Option<Duration>,
    pub(crate) compile: Option<Duration>,
    pub(crate) call: Option<Duration>,
    pub(crate) promise: Option<Duration>,
    pub(crate) most_stuck: usize,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines::new()
    }
}

impl Deadlines {
    /// Calls wait for as long as it takes, but recording behind an unkept promise for a minute; a
    /// thread is given up after 10 minutes. What the largest regions take to compile is seconds.
    #[must_use]
    pub const fn new() -> Deadlines {
        let most = Some(Duration::from_secs(600));
        Deadlines {
            wait: None,
            compile: most,
            call: most,
            promise: Some(Duration::from_secs(60)),
            most_stuck: 4,
        }
    }

    /// Nothing is ever given up.
    #[must_use]
    pub const fn none() -> Deadlines {
        Deadlines { compile: None, call: None, promise: None, ..Deadlines::new() }
    }

    /// Most that a call that needs an answer of the device waits: reads, waits, `synchronize`,
    /// uploads, ops in Debug mode. After that it returns an error
    /// ([`Error::is_timeout`](crate::Error::is_timeout)) that says what it was waiting for, and may
    /// be made again. Calls with a time-out of their own
    /// ([`Tensor::to_literal_for`](crate::Tensor::to_literal_for)) keep it. Default: none.
    ///
    /// A call with a deadline leaves all that may hang to other threads, which costs it some tens
    /// of microseconds. Recording waits for nothing but room in a full log, and no longer than
    /// this: then the op is not recorded, and its call returns the error. (Of an op that another
    /// thread of the program records meanwhile on the same stream, the result may say so instead.)
    /// Dropping the last handle on a stream or an engine waits no longer for what is destroyed with
    /// it.
    #[must_use]
    pub const fn wait(mut self, most: Duration) -> Deadlines {
        self.wait = Some(most);
        self
    }

    /// Most that one compile takes. After that its region runs op by op, or, if it is one op, its
    /// results fail; it is not compiled again while its key is in the cache. Default: 10 minutes.
    #[must_use]
    pub const fn compile(mut self, most: Duration) -> Deadlines {
        self.compile = Some(most);
        self
    }

    /// Most that a thread of the engine's works on one stream without coming back: for its
    /// executions and transfers. After that another thread works on the other streams. The values
    /// of this stream stay undecided until the plugin answers. The end of an engine waits no longer
    /// for the plugin either, unless [`Deadlines::wait`] says how long. Default: 10 minutes.
    #[must_use]
    pub const fn call(mut self, most: Duration) -> Deadlines {
        self.call = Some(most);
        self
    }

    /// Most that a stream is held up by one value that was promised and is not brought
    /// ([`Stream::promised`](crate::Stream::promised), a placeholder of [`embed`](crate::embed))
    /// while a call that records an op finds no room in the log: it may be made by the thread that
    /// is to bring the value. After that the op is not recorded, and its call returns an error
    /// ([`Error::is_timeout`](crate::Error::is_timeout)) that names the promise; so does each
    /// further one until there is room. With [`Deadlines::wait`] that is what recording waits
    /// instead. Default: a minute.
    #[must_use]
    pub const fn promise(mut self, most: Duration) -> Deadlines {
        self.promise = Some(most);
        self
    }

    /// With so many compile threads stuck no more compiles are started
    /// ([`Event::CompilesStopped`](crate::Event::CompilesStopped)): regions run op by op by what is
    /// compiled, and the results of others fail at once, until a thread comes back. As many stuck
    /// threads of each other kind are replaced. At least 1. Default: 4.
    #[must_use]
    pub const fn most_stuck_threads(mut self, most: usize) -> Deadlines {
        self.most_stuck = if most == 0 { 1 } else { most };
        self
    }
}
