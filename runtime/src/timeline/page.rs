//! The page of a timeline: a picture that can be zoomed, and tables. It loads nothing from a
//! network.
//!
//! The tables are plain markup and contain everything in the summary, also without scripts.
//! `page.js` draws the picture from data in the page: for each lane its spans, with times in
//! microseconds, a kind, a title, and the number of a text that many spans share.

use std::fmt::Write as _;
use std::time::Duration;

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::Nanos;
use super::spans::{Cause, Range, Spans};
use super::summary::{Step, Summary};
use crate::error::Took;
use crate::event::Asked;
use crate::region::RegionRef;

/// Maximum number of rows of a table. The page says how many are left out.
const ROWS: usize = 100;

/// Maximum number of steps that are listed.
const STEPS: usize = 20;

/// Minimum length of a span of the program between two waits.
const SHORTEST: Nanos = 100;

/// A whole page.
pub(super) fn page(spans: &Spans, title: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{title}</title>\
         <style>{}</style></head>\n<body><h1>{title}</h1>\n{}</body></html>\n",
        include_str!("page.css"),
        section(spans),
    )
}

/// Picture and tables.
pub(super) fn section(spans: &Spans) -> String {
    let whole = spans.summary(None);
    let mut out = format!("<div class=\"timeline\"><style>{}</style>\n", include_str!("section.css"));
    share_bar(&mut out, &whole);
    picture(&mut out, spans);
    warnings(&mut out, &whole);
    steps(&mut out, &spans.steps());
    reads(&mut out, &whole);
    regions(&mut out, &whole);
    if whole.left_out > 0 {
        let _ = writeln!(
            out,
            "<p class=\"soft\">{} earlier events are left out: there is room only for the latest ones.</p>",
            whole.left_out
        );
    }
    out.push_str("</div>\n");
    out
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Sites are escaped already; the title comes from the caller.
            letter if letter.is_control() && letter != '\n' => out.extend(letter.escape_default()),
            letter => out.push(letter),
        }
    }
    out
}

// ----- tables -----

/// How the time was spent, as a bar and a legend, with advice.
fn share_bar(out: &mut String, summary: &Summary) {
    let _ = write!(
        out,
        "<p>{}: {}; devices were busy for {}.</p>\n<div class=\"bar\">",
        Took(summary.took),
        summary.done(),
        Took(summary.device_busy),
    );
    for (cause, _, share) in summary.shares() {
        let _ = write!(out, "<span class=\"{}\" style=\"width:{:.3}%\"></span>", cause.name(), share * 100.0);
    }
    out.push_str("</div>\n<ul class=\"legend\">");
    for (cause, time, share) in summary.shares() {
        let _ = write!(
            out,
            "<li><span class=\"chip {}\"></span>{:.1} % {} <span class=\"soft\">{}</span></li>",
            cause.name(),
            share * 100.0,
            cause.words(),
            Took(time)
        );
    }
    out.push_str("</ul>\n");
    if let Some(advice) = summary.advice() {
        let _ = writeln!(out, "<p class=\"advice\">{}.</p>", escape(&sentence(&advice)));
    }
}

fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}", letters.as_str())
}

fn warnings(out: &mut String, summary: &Summary) {
    if summary.warnings.is_empty() {
        return;
    }
    out.push_str("<h2>Warnings</h2>\n<ul>");
    for words in summary.warnings.iter().take(ROWS) {
        let _ = write!(out, "<li class=\"alarm\">{}</li>", escape(&sentence(words)));
    }
    out.push_str("</ul>\n");
    more(out, summary.warnings.len());
}

/// A table of heads and rows. The first column is text.
fn table(out: &mut String, heads: &[&str], rows: impl ExactSizeIterator<Item = Vec<String>>) {
    let count = rows.len();
    out.push_str("<table><tr>");
    for head in heads {
        let _ = write!(out, "<th>{head}</th>");
    }
    out.push_str("</tr>");
    for row in rows.take(ROWS) {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{}</td>", escape(&cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
    more(out, count);
}

fn more(out: &mut String, count: usize) {
    if count > ROWS {
        let _ = writeln!(out, "<p class=\"soft\">and {} more</p>", count - ROWS);
    }
}

fn time(time: Duration) -> String {
    if time.is_zero() { String::new() } else { Took(time).to_string() }
}

fn number(number: u64) -> String {
    if number == 0 { String::new() } else { number.to_string() }
}

fn steps(out: &mut String, steps: &[Step]) {
    if steps.len() < 2 {
        return;
    }
    let mut slowest: Vec<&Step> = steps.iter().collect();
    slowest.sort_by_key(|step| std::cmp::Reverse(step.summary.took));
    let middle = slowest[slowest.len() / 2];
    let (count, name) = (steps.len(), escape(&middle.name));
    let took = Took(middle.summary.took);
    let _ = writeln!(
        out,
        "<h2>Steps</h2>\n<p>{count} steps, half of which took {took} or less. The one in the middle is {name}:</p>"
    );
    share_bar(out, &middle.summary);
    out.push_str("<h2>The slowest steps</h2>\n");
    slowest.truncate(STEPS);
    let heads = [
        "step",
        "took",
        "program",
        "compiles",
        "interpreter",
        "device",
        "transfer",
        "engine",
        "other waits",
        "ops",
        "regions",
        "compiled",
    ];
    let row = |step: &&Step| {
        let (summary, spent) = (&step.summary, &step.summary.spent);
        vec![
            step.name.clone(),
            time(summary.took),
            time(spent.program),
            time(spent.compile),
            time(spent.interpreter),
            time(spent.device),
            time(spent.transfer),
            time(spent.engine),
            time(spent.input + spent.in_flight),
            number(summary.ops),
            number(summary.regions),
            number(summary.compiles),
        ]
    };
    table(out, &heads, slowest.iter().map(row));
}

fn reads(out: &mut String, summary: &Summary) {
    let heads =
        ["host reads at", "times", "without waiting", "waited", "bytes", "regions ended", "ops per region"];
    let rows = summary.reads.iter().map(|reads| {
        vec![
            reads.site.to_string(),
            number(reads.count),
            number(reads.unwaited),
            time(reads.waited),
            if reads.bytes.0 > 0 { reads.bytes.to_string() } else { String::new() },
            number(reads.ended),
            reads.ops.checked_div(reads.ended).map_or_else(String::new, number),
        ]
    });
    out.push_str("<h2>Host reads by call site</h2>\n");
    table(out, &heads, rows);
}

fn regions(out: &mut String, summary: &Summary) {
    let heads = [
        "regions of",
        "key",
        "runs",
        "device",
        "device, each",
        "interpreted",
        "compiling",
        "waited for",
        "last op recorded at",
    ];
    let rows = summary.times.iter().map(|times| {
        let each = times.device.as_nanos().checked_div(u128::from(times.runs)).unwrap_or(0);
        vec![
            times.ops.clone(),
            times.key.short().to_string(),
            number(times.runs),
            time(times.device),
            time(Duration::from_nanos(u64::try_from(each).unwrap_or(u64::MAX))),
            time(times.interpreted),
            time(times.compile),
            time(times.waited),
            times.site.to_string(),
        ]
    });
    out.push_str("<h2>Regions by time</h2>\n");
    table(out, &heads, rows);
}

// ----- the picture -----

/// Spans of a lane: start and end in microseconds, style class, title, and the number of a text.
#[derive(Default)]
struct Lane {
    spans: Vec<Value>,
}

/// Texts without duplicates.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    known: FxHashMap<String, usize>,
}

impl Texts {
    fn number(&mut self, text: String) -> usize {
        *self.known.entry(text).or_insert_with_key(|text| {
            self.all.push(text.clone());
            self.all.len() - 1
        })
    }
}

struct Picture<'a> {
    spans: &'a Spans,
    texts: Texts,
    lanes: Vec<(String, Lane)>,
}

impl Picture<'_> {
    fn lane(&mut self, name: String) -> &mut Lane {
        let known = self.lanes.iter().position(|(known, _)| *known == name);
        let index = known.unwrap_or_else(|| {
            self.lanes.push((name, Lane::default()));
            self.lanes.len() - 1
        });
        &mut self.lanes[index].1
    }

    fn put(&mut self, lane: String, range: Range, kind: &str, title: String, text: String) {
        let micros = |at: Nanos| at.saturating_sub(self.spans.all.from) as f64 / 1e3;
        let number = self.texts.number(text);
        let span = json!([micros(range.from), micros(range.to), kind, title, number]);
        self.lane(lane).spans.push(span);
    }

    /// What regions of a key have in common, in lines: their ops and call sites.
    fn described(&self, region: &RegionRef) -> String {
        let mut text = format!("{} ops", region.ops);
        if let Some(described) = self.spans.described.get(&region.key) {
            let _ = write!(text, ": {}\nrecorded at {}", described.ops, described.first);
            if described.last != described.first {
                let _ = write!(text, " to {}", described.last);
            }
        }
        text
    }

    /// Draws what the threads of the program do.
    fn program(&mut self) {
        let spans = self.spans;
        for &thread in spans.of_thread.keys() {
            let name = format!("{} (program)", self.spans.threads[thread as usize]);
            let mut from = self.spans.all.from;
            let ends = spans.pauses_of(thread).map(Some).chain([None]);
            for pause in ends {
                let to = pause.map_or(self.spans.all.to, |pause| pause.range.from);
                if to.saturating_sub(from) > SHORTEST {
                    let kind = Cause::Program;
                    let (title, words) = (kind.name().to_owned(), kind.words().to_owned());
                    self.put(name.clone(), Range { from, to }, kind.name(), title, words);
                }
                let Some(pause) = pause else { continue };
                let mut text = format!("asked at {}", pause.site);
                let title = match &pause.read {
                    None => format!("waits for the whole stream {}", pause.stream),
                    Some((asked, region, bytes)) => {
                        let what = if *asked == Asked::Wait { "waits for a value" } else { "reads a value" };
                        let _ = write!(text, "\n{bytes}");
                        match region {
                            None => what.to_owned(),
                            Some(region) => {
                                let _ = write!(text, " of {}", self.described(region));
                                format!("{what} of {}", name_of(region))
                            }
                        }
                    }
                };
                for &(range, cause) in &pause.parts {
                    let text = format!("{}\n{text}", cause.words());
                    self.put(name.clone(), range, cause.name(), title.clone(), text);
                }
                from = from.max(pause.range.to);
            }
        }
    }

    /// Draws the regions: where they end, what they wait for, compiles, executions.
    fn engine(&mut self) {
        for end in &self.spans.ends {
            let mut text = format!("ends because {}", end.why);
            if let Some(site) = &end.asked {
                let _ = write!(text, " at {site}");
            }
            if let Some(source) = &end.source {
                let _ = write!(text, "\n{source}");
            }
            let text = format!("{text}\n{}", self.described(&end.region));
            let range = Range { from: end.at, to: end.at };
            self.put(format!("driver of {}", end.region.stream), range, "end", name_of(&end.region), text);
        }
        for (region, wait, range) in &self.spans.waits {
            let text = format!("waits for {wait}\n{}", self.described(region));
            let kind = Cause::of(*wait).name();
            self.put(format!("driver of {}", region.stream), *range, kind, name_of(region), text);
        }
        for work in &self.spans.compiles {
            let mut text = self.described(&work.region);
            if let Some(why) = self.spans.misses.get(&work.region.key) {
                let _ = write!(text, "\nwhy: {why}");
            }
            let lane = self.spans.threads[work.thread as usize].to_string();
            let title = format!("compile of {}", name_of(&work.region));
            self.put(lane, work.range, Cause::Compile.name(), title, text);
        }
        for work in &self.spans.work {
            let (lane, kind) = match work.interpreted {
                true => ("interpreter".to_owned(), Cause::Interpreter),
                false => (format!("device, {}", work.region.stream), Cause::Device),
            };
            let text = self.described(&work.region);
            self.put(lane, work.range, kind.name(), name_of(&work.region), text);
        }
    }
}

/// `region s0.r3`, as in messages.
fn name_of(region: &RegionRef) -> String {
    format!("region {}.{}", region.stream, region.seq)
}

fn picture(out: &mut String, spans: &Spans) {
    let mut picture = Picture { spans, texts: Texts::default(), lanes: Vec::new() };
    picture.program();
    picture.engine();
    let micros = |at: Nanos| at.saturating_sub(spans.all.from) as f64 / 1e3;
    let marks = |list: &[(Nanos, std::sync::Arc<str>)]| -> Vec<Value> {
        list.iter().map(|(at, words)| json!([micros(*at), &**words])).collect()
    };
    let lanes = picture.lanes.iter().map(|(name, lane)| json!({"name": name, "spans": lane.spans}));
    let data = json!({
        "length": micros(spans.all.to),
        "lanes": lanes.collect::<Vec<_>>(),
        "texts": picture.texts.all,
        "marks": marks(&spans.marks),
        "warnings": marks(&spans.warnings),
    });
    // The data must not end the script.
    let data = data.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    let _ = writeln!(
        out,
        "<p class=\"soft\">Scroll to zoom, drag to move, double-click to see everything. Hover \
         over a span for details.</p>\n<div class=\"picture\"><canvas></canvas><div \
         class=\"tip\"></div></div>\n<script>\nconst TIMELINE = {data};\n{}</script>",
        include_str!("page.js")
    );
}
