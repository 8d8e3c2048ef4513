//! The threads of an engine.

use std::sync::Arc;
use std::time::Instant;

use fuseline_sync::oneshot;
use fuseline_sync::schedule::{CompilePool, Pool, Priority, Stuck, Watchdog, Work};

use super::queue_item::QueueItem;
use super::stream::StreamShared;
use super::{HandOver, Task};
use crate::event::{Event, Telemetry};
use crate::limits::MAX_PLUGIN_CALLS;
use crate::settings::Settings;

/// The threads of an engine.
#[derive(Debug)]
pub struct Threads {
    drive: Arc<Pool<QueueItem<Arc<StreamShared>>>>,
    compile: Arc<CompilePool<QueueItem<Work>>>,
    /// The thread of the interpreter tier, of padding and of quarantined regions. Without the first
    /// two it is started on demand.
    interpret: Arc<Pool<QueueItem<Task>>>,
    uses_interpreter: bool,
    /// Threads for plugin calls that a thread awaits with a deadline.
    plugin_calls: Pool<QueueItem<Task>>,
    /// Abandons threads that do not return from the plugin, if deadlines are set.
    watch: Option<Watchdog>,
}

impl Threads {
    /// Starts the threads. `uses_interpreter` says whether a tier needs the interpreter thread.
    pub(crate) fn start(
        config: &Settings,
        telemetry: &Telemetry,
        uses_interpreter: bool,
    ) -> std::io::Result<Threads> {
        // The stream may hold the last reference to the engine, so it is dropped inside the scope.
        let drive = |stream: Arc<StreamShared>| stream.run_queued();
        let drive =
            Pool::start("drive", config.drive_threads, Priority::Normal, move |queued: QueueItem<_>| {
                queued.run(drive);
            });
        let run = |queued: QueueItem<Task>| queued.run(|task| task());
        let interpret = Pool::start("interpret", usize::from(uses_interpreter), Priority::Normal, run)?;
        let plugin_calls = Pool::start("plugin-call", 0, Priority::Normal, run)?;
        let (drive, interpret) = (Arc::new(drive?), Arc::new(interpret));
        let compile = Arc::new(compile_pool(config)?);
        let watch = watch(config, telemetry, &drive, &compile, &interpret)?;
        Ok(Threads { drive, compile, interpret, uses_interpreter, plugin_calls, watch })
    }

    /// The threads that drive streams.
    #[inline]
    pub(crate) fn drive(&self) -> &Arc<Pool<QueueItem<Arc<StreamShared>>>> {
        &self.drive
    }

    /// The compile threads.
    #[inline]
    pub fn compile(&self) -> &Arc<CompilePool<QueueItem<Work>>> {
        &self.compile
    }

    /// The thread of the interpreter tier and of padding, if either is on.
    pub(crate) fn interpret(&self) -> Option<&Pool<QueueItem<Task>>> {
        self.uses_interpreter.then_some(&*self.interpret)
    }

    /// The thread that interprets quarantined regions.
    pub(crate) fn quarantine(&self) -> &Pool<QueueItem<Task>> {
        &self.interpret
    }

    /// Runs a call of the plugin, which may not return, on another thread. Returns what `call`
    /// hands over, or `None` if the deadline passes first.
    pub fn run_with_deadline<R: Send + 'static>(
        &self,
        deadline: Instant,
        call: impl FnOnce(HandOver<R>) + Send + 'static,
    ) -> Option<R> {
        let (sender, result) = oneshot::channel();
        let hand_over: HandOver<R> = Box::new(move |value| sender.send(value));
        let task: Task = Box::new(move || call(hand_over));
        self.plugin_calls.push_elastic(QueueItem::new(task), MAX_PLUGIN_CALLS);
        result.recv(Some(deadline)).ok()
    }

    /// Finishes queued work and ends the threads.
    pub(crate) fn shut_down(&self) {
        if let Some(watch) = &self.watch {
            watch.shut_down();
        }
        self.plugin_calls.shut_down();
        self.compile.shut_down();
        self.interpret.shut_down();
        self.drive.shut_down();
    }
}

/// Threads for compiles.
///
/// # Errors
/// When a thread cannot be started.
#[inline]
pub fn compile_pool(config: &Settings) -> std::io::Result<CompilePool<QueueItem<Work>>> {
    let most_stuck = config.deadlines.most_stuck;
    CompilePool::start("compile", config.compile_threads, most_stuck, |queued: QueueItem<Work>| {
        queued.run(Work::run);
    })
}

/// The watchdog, if deadlines are set.
fn watch(
    config: &Settings,
    telemetry: &Telemetry,
    drive: &Arc<Pool<QueueItem<Arc<StreamShared>>>>,
    compile: &Arc<CompilePool<QueueItem<Work>>>,
    interpret: &Arc<Pool<QueueItem<Task>>>,
) -> std::io::Result<Option<Watchdog>> {
    let limits = config.deadlines;
    let period = limits.compile.into_iter().chain(limits.call).min();
    // Concurrency models have no clock.
    let Some(period) = period.filter(|_| cfg!(not(any(loom, shuttle)))) else { return Ok(None) };
    let (telemetry, drive, compile) = (telemetry.clone(), drive.clone(), compile.clone());
    let interpret = interpret.clone();
    let look = move |now| {
        let tell = |thread, Stuck { took, stuck, is_replaced }| {
            telemetry.counters().stuck.add(1);
            telemetry.events().emit(|| Event::Stuck { thread, took, stuck, is_replaced });
        };
        let report_closed = |stuck| telemetry.events().emit(|| Event::CompilesStopped { stuck });
        let mut next = [None; 3];
        if let Some(limit) = limits.compile {
            next[0] = compile.give_up(now, limit, tell, report_closed);
        }
        if let Some(limit) = limits.call {
            next[1] = drive.give_up(now, limit, limits.most_stuck, || (), |stuck| tell("drive", stuck));
            next[2] =
                interpret.give_up(now, limit, limits.most_stuck, || (), |stuck| tell("interpret", stuck));
        }
        next.into_iter().flatten().min()
    };
    Watchdog::start(period, look).map(Some)
}
