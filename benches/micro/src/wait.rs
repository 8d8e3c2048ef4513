//! The contention of several threads, and the wait of a read on the host. Times only: the
//! interaction of threads varies between runs.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use fuseline::{Engine, Stream, Tensor};
use indicatif::ProgressBar;

use crate::figures::Figures;
use crate::sampling::sample;

/// Numbers of threads that record at once.
pub(crate) const THREADS: [usize; 3] = [1, 2, 4];

/// What they record on.
pub(crate) const STREAMS: [&str; 2] = ["one stream", "a stream each"];

/// Values that are ready, with this many `f32`.
const READY: [(&str, usize); 3] = [("4 B", 1), ("4 KiB", 1 << 10), ("4 MiB", 1 << 20)];

/// A value that an op has yet to make.
const AFTER_ONE_OP: &str = "4 B, after one op";

/// The reads that are timed.
pub(crate) const READS: [&str; 4] = [READY[0].0, READY[1].0, READY[2].0, AFTER_ONE_OP];

/// Ops that a thread records between two uncounted waits: too few to fill the log of a stream that
/// four threads write to.
const BURST: usize = 900;

/// Recording by several threads, on one stream and on a stream each: the time of an op on the
/// recording thread, including handle and drop, while the engine's threads drive the streams.
pub(crate) fn threads(figures: &mut Figures, bar: &ProgressBar) {
    let engine = fuseline_micro::reference();
    for threads in THREADS {
        for (name, own) in STREAMS.into_iter().zip([false, true]) {
            bar.set_message(format!("{threads} threads, {name}"));
            let shared = engine.new_stream();
            let streams: Vec<(Stream, Tensor)> = (0..threads)
                .map(|_| if own { engine.new_stream() } else { shared.clone() })
                .map(|stream| {
                    let x = stream.tensor(&[1.0f32; 16], &[16]).expect("it fits");
                    (stream, x)
                })
                .collect();
            let time = sample(|| {
                let took = together(&streams);
                for (stream, _) in &streams {
                    stream.synchronize().expect("it runs");
                }
                took.as_nanos() as f64 / BURST as f64
            });
            figures.add_time(format!("threads/{name}/{threads}"), time);
            bar.inc(1);
        }
    }
}

/// The threads' mean time for a burst.
fn together(streams: &[(Stream, Tensor)]) -> Duration {
    let ready = Barrier::new(streams.len());
    let run = |x: &Tensor| {
        ready.wait();
        let start = Instant::now();
        for _ in 0..BURST {
            drop(x.add(x).expect("it fits"));
        }
        start.elapsed()
    };
    let all: Duration = std::thread::scope(|scope| {
        let threads: Vec<_> = streams.iter().map(|(_, x)| scope.spawn(|| run(x))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    all / u32::try_from(streams.len()).unwrap_or(1)
}

/// Reads values on the host: values that are ready, and one that an op has yet to make.
pub(crate) fn reads(engine: &Engine, figures: &mut Figures, bar: &ProgressBar) -> anyhow::Result<()> {
    for (name, elements) in READY {
        bar.set_message(format!("read of {name}"));
        let x = engine.tensor(&vec![1.0f32; elements], &[elements])?;
        x.wait()?;
        let time = sample(|| {
            let start = Instant::now();
            drop(x.to_vec::<f32>().expect("it is there"));
            start.elapsed().as_nanos() as f64
        });
        figures.add_time(format!("read/{name}"), time);
        bar.inc(1);
    }
    bar.set_message("read of a result");
    let x = engine.tensor(&[1.0f32], &[1])?;
    x.add(&x)?.wait()?;
    let time = sample(|| {
        let start = Instant::now();
        drop(x.add(&x).and_then(|sum| sum.to_vec::<f32>()).expect("it runs"));
        start.elapsed().as_nanos() as f64
    });
    figures.add_time(format!("read/{AFTER_ONE_OP}"), time);
    bar.inc(1);
    Ok(())
}
