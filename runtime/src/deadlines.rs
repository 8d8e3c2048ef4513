//! Limits on waiting for a plugin that may not answer.

use std::time::Duration;

/// How long an engine waits for its plugin, which may hang in a compile, an execution or a
/// transfer. See `EngineConfig::deadlines`.
///
/// A plugin call cannot be stopped from outside. A thread that does not return is abandoned with
/// everything it holds, and another replaces it ([`Event::Stuck`](crate::event::Event::Stuck)). Dropping
/// an engine never waits for such a thread.
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
    /// The defaults: calls wait without limit, but recording waits a minute behind an unfilled
    /// promise, and a thread is abandoned after 10 minutes. The largest regions compile in seconds.
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

    /// No limits: nothing is ever abandoned.
    #[must_use]
    pub const fn none() -> Deadlines {
        Deadlines { compile: None, call: None, promise: None, ..Deadlines::new() }
    }

    /// Limits each call that needs an answer of the device: reads, waits, `synchronize`, uploads,
    /// ops in Debug mode. After that time it returns an error
    /// ([`Error::is_timeout`](crate::error::Error::is_timeout)) that says what it was waiting for, and may
    /// be repeated. Calls with their own timeout
    /// (`Tensor::to_literal_for`) keep it. Default: no limit.
    ///
    /// A call with a deadline makes plugin calls that may hang on other threads, which costs some
    /// tens of microseconds. Recording only waits for room in a full log, and no longer than this.
    /// After that the op is not recorded, and its call returns the error. (If another thread
    /// records on the same stream meanwhile, the result of its op may have the error instead.)
    /// Dropping the last handle on a stream or an engine waits no longer than this for what is
    /// destroyed with it.
    #[must_use]
    pub const fn wait(mut self, most: Duration) -> Deadlines {
        self.wait = Some(most);
        self
    }

    /// Limits each compile. After that time the region runs op by op. The results of a single op
    /// fail. It is not compiled again while its key is in the cache. Default: 10 minutes.
    #[must_use]
    pub const fn compile(mut self, most: Duration) -> Deadlines {
        self.compile = Some(most);
        self
    }

    /// Limits how long a thread of the engine works on one stream without returning, for executions
    /// and transfers. After that time another thread works on the other streams. The values of this
    /// stream stay unresolved until the plugin answers. Dropping the engine waits no longer for the
    /// plugin either, unless [`Deadlines::wait`] is set. Default: 10 minutes.
    #[must_use]
    pub const fn call(mut self, most: Duration) -> Deadlines {
        self.call = Some(most);
        self
    }

    /// Limits how long one promised value that is not supplied
    /// (`Stream::promised`, a placeholder of `embed`)
    /// may hold up a stream while a call that records an op finds the log full. That call may come
    /// from the thread that has to supply the value. After that time the op is not recorded, and
    /// its call returns an error ([`Error::is_timeout`](crate::error::Error::is_timeout)) that names the
    /// promise. So does each further call until there is room. With [`Deadlines::wait`] recording
    /// waits that long instead. Default: a minute.
    #[must_use]
    pub const fn promise(mut self, most: Duration) -> Deadlines {
        self.promise = Some(most);
        self
    }

    /// Sets the number of stuck compile threads at which no more compiles start
    /// ([`Event::CompilesStopped`](crate::event::Event::CompilesStopped)). Until a thread returns, regions
    /// run op by op with existing executables, and the results of others fail at once. The same
    /// number of stuck threads of each other kind is replaced. At least 1. Default: 4.
    #[must_use]
    pub const fn most_stuck_threads(mut self, most: usize) -> Deadlines {
        self.most_stuck = if most == 0 { 1 } else { most };
        self
    }
}
