//! Timelines: where the time of a program goes, by step, call site and region, and the page that
//! shows it.

use std::time::Duration;

use fuseline::{Engine, EngineConfig, Result, Timeline};

use crate::support::{self, Gate, on_engines, plugin, vector, wait_until};

/// Steps that read a sum; the first one compiles.
fn train(engine: &Engine, timeline: &Timeline, steps: usize) -> Result<String> {
    let mut x = vector(engine, &[1.0; 64]);
    let mut at = String::new();
    for step in 0..steps {
        timeline.mark(format!("step {step}"));
        for _ in 0..10 {
            x = ((&x * &x)? * 0.5)?.tanh()?;
        }
        let sum = x.sum(&[0])?;
        at = format!("{}:{}", file!(), line!() + 1);
        sum.item::<f32>()?;
    }
    Ok(at)
}

#[test]
fn a_summary_says_what_a_step_waited_for() {
    let timelines = std::cell::RefCell::new(Vec::new());
    let config = || {
        let timeline = Timeline::new();
        timelines.borrow_mut().push(timeline.clone());
        // The first step compiles.
        support::optimized_only().event_sink(timeline)
    };
    let next = std::cell::Cell::new(0);
    on_engines(config, |engine| {
        let timeline = timelines.borrow()[next.replace(next.get() + 1)].clone();
        let at = train(engine, &timeline, 4)?;
        engine.synchronize()?;
        let steps = timeline.steps();
        assert_eq!(
            steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>(),
            ["step 0", "step 1", "step 2", "step 3"]
        );
        for (number, step) in steps.iter().enumerate() {
            let (summary, spent) = (&step.summary, &step.summary.spent);
            assert_eq!((summary.regions, summary.threads), (1, 1), "{summary}");
            // The activities of a thread add up to its time, without overlap.
            assert_eq!(spent.total(), summary.took, "{summary}");
            assert_eq!(summary.compiles, u64::from(number == 0), "{summary}");
            assert!(number == 0 || spent.compile.is_zero(), "{summary}");
            let reads = summary.reads.iter().find(|reads| reads.site.to_string() == at).unwrap();
            assert_eq!((reads.count, reads.ended, reads.ops), (1, 1, summary.ops));
            assert!(reads.waited <= summary.took);
        }
        let whole = timeline.summary();
        assert_eq!((whole.regions, whole.left_out), (4, 0));
        assert!(whole.times.iter().any(|times| times.runs == 4 && !times.compile.is_zero()), "{whole:?}");
        let words = whole.to_string();
        for said in [&at, "4 times", "ended 4 regions of 42 ops", "tanh x10", "4 regions, 1 compile\n"] {
            assert!(words.contains(said), "{said:?} is not in\n{words}");
        }
        Ok(())
    });
}

#[test]
fn without_marks_a_step_ends_where_the_host_waits_most_often() -> Result<()> {
    let timeline = Timeline::new();
    let engine = support::config().event_sink(timeline.clone()).build_reference()?;
    let mut x = vector(&engine, &[1.0; 8]);
    for _ in 0..5 {
        x = (&x * 0.5)?;
        x.wait()?;
    }
    x.to_vec::<f32>()?;
    let steps = timeline.steps();
    assert_eq!(steps.len(), 5);
    assert_eq!((steps[4].name.as_str(), steps[4].summary.regions), ("5", 1));
    assert!(steps.windows(2).all(|pair| pair[0].start + pair[0].summary.took == pair[1].start));
    timeline.clear();
    assert!(timeline.steps().is_empty() && timeline.summary().reads.is_empty());
    Ok(())
}

#[test]
fn of_more_than_there_is_room_for_the_latest_is_kept() -> Result<()> {
    let timeline = Timeline::with_room(50);
    let engine = support::config().event_sink(timeline.clone()).build_reference()?;
    train(&engine, &timeline, 100)?;
    let summary = timeline.summary();
    assert!(summary.left_out > 300, "{}", summary.left_out);
    assert_eq!(timeline.steps().last().map(|step| step.name.clone()), Some("step 99".to_owned()));
    assert!(summary.to_string().contains("earlier events are left out"));
    assert!(timeline.page("x").contains("earlier events are left out"));
    Ok(())
}

#[test]
fn reads_without_waiting_are_no_waits() -> Result<()> {
    let timeline = Timeline::new();
    let engine = support::config().event_sink(timeline.clone()).build_reference()?;
    let x = vector(&engine, &[1.0; 8]);
    let read = (&x + &x)?.read();
    engine.stream().synchronize()?;
    drop(read);
    let summary = timeline.summary();
    let reads: Vec<_> = summary.reads.iter().filter(|reads| reads.unwaited > 0).collect();
    let [reads] = reads.as_slice() else { panic!("{summary}") };
    assert_eq!((reads.count, reads.unwaited, reads.waited, reads.ended), (1, 1, Duration::ZERO, 1));
    Ok(())
}

/// A read with a deadline belongs to the caller, whatever thread the data arrives on. One that
/// timed out is no read.
#[test]
fn a_read_with_a_deadline_is_of_the_thread_that_waits() {
    let timelines = std::cell::RefCell::new(Vec::new());
    let gate = Gate::new();
    let config = || {
        let timeline = Timeline::new();
        timelines.borrow_mut().push(timeline.clone());
        // A region waits for its compile.
        support::compiled_first().inject_faults(gate.at_compiles()).event_sink(timeline)
    };
    let next = std::cell::Cell::new(0);
    on_engines(config, |engine| {
        let timeline = timelines.borrow()[next.replace(next.get() + 1)].clone();
        let x = vector(engine, &vec![1.0; 1 << 20]);
        // On this thread.
        x.neg()?.wait()?;
        let y = (&x + &x)?;
        assert_eq!(y.to_literal_for(Duration::from_secs(100))?.to_vec::<f32>()?[0], 2.0);
        let summary = timeline.summary();
        let [reads] = summary.reads.iter().filter(|reads| reads.bytes.0 > 0).collect::<Vec<_>>()[..] else {
            panic!("{summary}")
        };
        assert_eq!((summary.threads, reads.count, reads.unwaited, reads.ended), (1, 1, 0, 1), "{summary}");
        assert!(Duration::ZERO < reads.waited && reads.waited <= summary.took);
        timeline.clear();
        let shut = gate.shut();
        let late = y.tanh()?;
        assert!(late.to_literal_for(Duration::from_millis(1)).unwrap_err().is_timeout());
        drop(shut);
        engine.synchronize()?;
        assert!(timeline.summary().reads.iter().all(|reads| reads.bytes.0 == 0), "{}", timeline.summary());
        Ok(())
    });
}

#[test]
fn a_page_is_whole_and_needs_nothing_from_outside() {
    let timeline = Timeline::new();
    let Some(engine) = plugin(EngineConfig::new().event_sink(timeline.clone())) else { return };
    train(&engine, &timeline, 40).unwrap();
    // The earlier ones may all have been interpreted; these are not.
    wait_until(&engine, |counters| counters.compiles > 0 && counters.pending_compiles == 0);
    train(&engine, &timeline, 2).unwrap();
    timeline.mark("</script><b>&\"bold");
    let x = vector(&engine, &[1.0; 8]);
    for _ in 0..100 {
        (&x + &x).unwrap().to_vec::<f32>().unwrap();
    }
    let page = timeline.page("a <page> & more");
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<title>a &lt;page&gt; &amp; more</title>"));
    for outside in ["src=", "href=", "url(", "@import", "http://", "https://", "<b>"] {
        assert!(!page.contains(outside), "{outside}: it should need nothing from outside");
    }
    for said in ["The slowest steps", "Host reads by call site", "Regions by time", "Warnings", "timeline.rs"]
    {
        assert!(page.contains(said), "{said}");
    }
    // The data is a single document, and only the script itself ends the script.
    assert_eq!((page.matches("<script>").count(), page.matches("</script>").count()), (1, 1));
    let data = page.split_once("const TIMELINE = ").unwrap().1.split_once(";\n").unwrap().0;
    assert!(!data.contains(['<', '>', '&']));
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    let lanes: Vec<&str> =
        data["lanes"].as_array().unwrap().iter().map(|lane| lane["name"].as_str().unwrap()).collect();
    for lane in ["(program)", "driver of s0", "fuseline-compile", "interpreter", "device, s0"] {
        assert!(lanes.iter().any(|name| name.contains(lane)), "{lane} is not among {lanes:?}");
    }
    let length = data["length"].as_f64().unwrap();
    for span in data["lanes"].as_array().unwrap().iter().flat_map(|lane| lane["spans"].as_array().unwrap()) {
        let (from, to) = (span[0].as_f64().unwrap(), span[1].as_f64().unwrap());
        assert!(0.0 <= from && from <= to && to <= length, "{span}");
        assert!(span[4].as_u64().unwrap() < data["texts"].as_array().unwrap().len() as u64);
    }
    if let Ok(path) = std::env::var("FUSELINE_PAGE") {
        std::fs::write(path, page).unwrap();
    }
}
