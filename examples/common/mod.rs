//! Code that the examples share.
#![allow(dead_code, reason = "each example uses a part")]

pub(crate) mod checkpoint;
pub(crate) mod random;
pub(crate) mod tape;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use clap::ValueEnum;
use fuseline::pjrt::Value;
use fuseline::{Engine, EngineConfig};

/// The device of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// The first PJRT plugin that is found.
    Auto,
    /// The reference interpreter: plain Rust, slow.
    Reference,
}

impl Device {
    /// An engine on this device.
    pub(crate) fn build(self, config: EngineConfig) -> fuseline::Result<Engine> {
        match self {
            Device::Auto => config.build(),
            Device::Reference => config.build_reference(),
        }
    }
}

/// Parses an option for the plugin's client: `preallocate=false`.
pub(crate) fn client_option(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let value = match (value.parse(), value.parse(), value.parse()) {
        (Ok(truth), _, _) => Value::Bool(truth),
        (_, Ok(number), _) => Value::Int(number),
        (_, _, Ok(number)) => Value::Float(number),
        _ => Value::String(value.to_owned()),
    };
    Ok((name.to_owned(), value))
}

/// Waits for a future on this thread: a minimal executor.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => {
                #[allow(clippy::disallowed_methods, reason = "an example, on real threads")]
                std::thread::park();
            }
        }
    }
}
