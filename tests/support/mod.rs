//! What the integration tests share.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test uses a part")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_types,
    reason = "tests, on real threads"
)]

use std::sync::{Arc, Mutex};

use fuseline::{Engine, EngineConfig, Event, Result};

/// The events of an engine, as they come.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Event>>>);

impl Log {
    pub fn sink(&self) -> impl Fn(&Event) + Send + Sync + use<> {
        let log = self.0.clone();
        move |event: &Event| log.lock().unwrap().push(event.clone())
    }

    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Boundary reason and number of ops of each region sealed since the last look.
    pub fn regions(&self) -> Vec<(String, usize)> {
        let sealed = |event: Event| match event {
            Event::Sealed { region, boundary, .. } => Some((boundary.name().to_owned(), region.ops)),
            _ => None,
        };
        self.take().into_iter().filter_map(sealed).collect()
    }
}

/// A reference engine, and one on the plugin that is found; says so loudly where there is none.
pub fn engines(config: impl Fn() -> EngineConfig) -> Vec<Engine> {
    let mut engines = vec![config().build_reference().expect("the reference engine needs nothing")];
    match config().build() {
        Ok(engine) => engines.push(engine),
        Err(error) => println!("skipped: the plugin half of this test: {error}"),
    }
    engines
}

/// Runs a test on every engine there is.
pub fn on_engines(config: impl Fn() -> EngineConfig, test: impl Fn(&Engine) -> Result<()>) {
    for engine in engines(config) {
        if let Err(error) = test(&engine) {
            panic!("{engine:?}: {error}");
        }
    }
}

/// Elements that differ by more than rounding.
pub fn close(actual: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(actual.len(), expected.len());
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!((a - e).abs() <= tolerance * e.abs().max(1.0), "element {i} is {a}, expected {e}");
    }
}
