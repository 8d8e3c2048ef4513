//! Regions as text, for `run --dump regions` and `explain`.

use std::path::Path;

use fuseline::fusion::ir::Ref;
use fuseline_cache::disk::write_given;

use crate::failure::Failure;
use crate::region_history::{Names, Region, attributes, typed};
use crate::text::{count, note, say};

/// Writes a page or a picture, and says so.
pub(crate) fn write_page(path: &Path, text: String) -> Result<(), Failure> {
    write_given(path, text.as_bytes())
        .map_err(|error| Failure::Run(format!("{} cannot be written: {error}", path.display())))?;
    note(format_args!("fuseline: wrote {}", path.display()));
    Ok(())
}

/// Writes title, boundary, cache, compile, inputs and outputs.
pub(crate) fn head(region: &Region, names: &Names, out: &mut String) {
    let reference = region.reference();
    say!(
        out,
        "{} (key {}, {}, {} mode)",
        region.title(),
        reference.key.short(),
        count(reference.ops, "op"),
        region.mode.name()
    );
    say!(out, "  ends because {} ({})", region.end_words(), region.boundary.name());
    say!(out, "  executable  {}", region.source_words());
    if let Some(words) = region.compile_words() {
        say!(out, "  compile     {words}");
    }
    let contents = &region.contents;
    let graph = contents.canon().graph();
    let mut title = "inputs";
    for (param, (input, ty)) in (0u32..).zip(contents.inputs().iter().zip(graph.params())) {
        let fate = match (input.lifted, region.donated.contains(&param), input.dies) {
            (true, ..) => ", a lifted scalar: its value is not part of the key",
            (_, true, _) => ", dies here: its memory is donated to an output",
            (_, _, true) => ", dies here",
            _ => "",
        };
        say!(out, "  {title:<11} {}{fate}", typed(&names.get(input.value), ty));
        title = "";
    }
    let mut title = "outputs";
    for (index, output) in (0u32..).zip(contents.outputs()).filter(|(_, output)| output.live) {
        if let Some(ty) = graph.type_of(Ref::Result(index)) {
            say!(out, "  {title:<11} {}", typed(&names.get(output.value), ty));
            title = "";
        }
    }
    for words in &region.trouble {
        say!(out, "  trouble     {words}");
    }
}

/// Writes one line for each op. `why` may add why the op is in its kernel.
pub(crate) fn ops(region: &Region, names: &Names, why: impl Fn(usize) -> Option<String>, out: &mut String) {
    let contents = &region.contents;
    let graph = contents.canon().graph();
    let rows: Vec<[String; 3]> = graph
        .nodes()
        .iter()
        .map(|node| {
            let signature = node.signature();
            let list = |values: Vec<Ref>| {
                let named: Vec<String> =
                    values.into_iter().map(|value| names.in_region(contents, value)).collect();
                named.join(", ")
            };
            let types: Vec<String> = signature.results().iter().map(ToString::to_string).collect();
            let mut call = format!("{}({})", signature.op().name(), list(node.operands().to_vec()));
            let attrs = attributes(signature.def(), signature.attrs());
            if !attrs.is_empty() {
                call = format!("{call} {{{attrs}}}");
            }
            [list(node.results().collect()), types.join(", "), call]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    for (index, ([results, types, call], site)) in rows.iter().zip(contents.sites()).enumerate() {
        say!(out, "    {results:<first$} : {types:<second$} = {call}   at {site}");
        if let Some(why) = why(index) {
            say!(out, "    {:first$}   {:second$}   {why}", "", "");
        }
    }
}
