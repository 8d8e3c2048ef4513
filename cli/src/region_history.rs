//! Turns the engine's events into a history of each region.

use std::collections::HashMap;
use std::time::Duration;

use fuseline::fusion::attr::{AttrDef, AttrKind};
use fuseline::fusion::ir::Ref;
use fuseline::fusion::lower::Module;
use fuseline::fusion::program::ProgramId;
use fuseline::fusion::region::Mode;
use fuseline::fusion::{AttrValue, Attrs, Bytes, OpDef, TensorType, ValueId};
use fuseline::pjrt::Executable;
use fuseline::{Boundary, Event, Miss, PreparedProgram, RegionRef, SealedRegion, Site};
use serde_json::{Value, json};

use crate::text::{milliseconds, time};

/// How a region got its executable.
pub(crate) enum Source {
    /// It was in the cache.
    Hit { surplus: usize },
    /// It had to be compiled.
    Miss(Miss),
    /// It never needed one.
    None,
}

/// One compile.
pub(crate) struct Compile {
    pub(crate) took: Duration,
    /// The original compile time, if the executable was loaded.
    pub(crate) loaded: Option<Duration>,
    pub(crate) size: Bytes,
    pub(crate) executable: Option<Executable>,
}

/// The history of one region.
pub(crate) struct Region {
    pub(crate) contents: SealedRegion,
    pub(crate) boundary: Boundary,
    /// The call site that requested its end, if any.
    pub(crate) asked: Option<Site>,
    pub(crate) mode: Mode,
    pub(crate) skipped: bool,
    pub(crate) source: Source,
    pub(crate) module: Option<Module>,
    pub(crate) compile: Option<Compile>,
    /// Parameters that were donated to results.
    pub(crate) donated: Vec<u32>,
    /// What went wrong, in words.
    pub(crate) trouble: Vec<String>,
}

impl Region {
    pub(crate) fn reference(&self) -> RegionRef {
        self.contents.region()
    }

    /// `region s0.r3`, as messages call it.
    pub(crate) fn title(&self) -> String {
        let reference = self.reference();
        format!("region {}.{}", reference.stream, reference.seq)
    }

    /// The reason of its boundary, in words.
    pub(crate) fn end_words(&self) -> String {
        match &self.asked {
            None => self.boundary.to_string(),
            Some(site) => format!("{} at {site}", self.boundary),
        }
    }

    /// How it got its executable, in words.
    pub(crate) fn source_words(&self) -> String {
        match &self.source {
            _ if self.skipped => "skipped: its results are not used".to_owned(),
            Source::Hit { surplus: 0 } => "in the cache".to_owned(),
            Source::Hit { surplus } => format!("in the cache, with {surplus} more outputs than needed"),
            Source::Miss(miss) => format!("not in the cache: {miss}"),
            Source::None => "not looked up".to_owned(),
        }
    }

    pub(crate) fn compile_words(&self) -> Option<String> {
        let compile = self.compile.as_ref()?;
        Some(match compile.loaded {
            None => format!("{} ({})", time(compile.took), compile.size),
            Some(then) => {
                let (took, then) = (time(compile.took), time(then));
                format!("loaded in {took}, instead of compiled in {then} ({})", compile.size)
            }
        })
    }
}

/// The history of one run of a program.
#[derive(Default)]
pub(crate) struct Story {
    pub(crate) regions: Vec<Region>,
}

impl Story {
    /// Groups events by region.
    pub(crate) fn of(events: &[Event]) -> Story {
        let mut story = Story::default();
        let mut places = HashMap::new();
        for event in events {
            let Some(reference) = event.region() else { continue };
            let id = (reference.stream, reference.seq);
            if let Event::Sealed { boundary, mode, asked, contents, .. } = event {
                places.insert(id, story.regions.len());
                story.regions.push(Region {
                    contents: contents.clone(),
                    boundary: *boundary,
                    asked: asked.clone(),
                    mode: *mode,
                    skipped: false,
                    source: Source::None,
                    module: None,
                    compile: None,
                    donated: Vec::new(),
                    trouble: Vec::new(),
                });
                continue;
            }
            let Some(region) = places.get(&id).map(|&place: &usize| &mut story.regions[place]) else {
                continue;
            };
            match event {
                Event::Skipped { .. } => region.skipped = true,
                Event::Hit { surplus, .. } => {
                    // A region that waited for another region's compile of the same key ends as a
                    // hit.
                    region.source = Source::Hit { surplus: *surplus };
                }
                Event::Miss { why, .. } => region.source = Source::Miss(why.clone()),
                Event::Lowered { module, .. } => region.module = Some(module.clone()),
                Event::CompileFinished { took, size, executable, .. } => {
                    let (size, executable) = (*size, executable.clone());
                    region.compile = Some(Compile { took: *took, loaded: None, size, executable });
                }
                Event::Loaded { took, compile, size, executable, .. } => {
                    let (size, executable) = (*size, executable.clone());
                    region.compile = Some(Compile { took: *took, loaded: Some(*compile), size, executable });
                }
                Event::Launched { donated, .. } => region.donated.clone_from(donated),
                Event::CompileFailed { .. }
                | Event::Fallback { .. }
                | Event::OutOfMemory { .. }
                | Event::Oversized { .. }
                | Event::InParts { .. }
                | Event::RanUnmerged { .. }
                | Event::Quarantined { .. }
                | Event::CheckRunning { .. }
                | Event::Compared { difference: Some(_), .. }
                | Event::Poisoned { .. } => region.trouble.push(event.to_string()),
                _ => {}
            }
        }
        story
    }

    /// The earlier region with the same module, if this region has no module of its own.
    pub(crate) fn module_of(&self, index: usize) -> Option<(usize, &Module)> {
        let key = self.regions[index].reference().key;
        let same = |&place: &usize| self.regions[place].reference().key == key;
        (0..=index).rev().filter(same).find_map(|place| Some((place, self.regions[place].module.as_ref()?)))
    }
}

/// The names of values in the program file.
#[derive(Default)]
pub(crate) struct Names {
    values: HashMap<ValueId, ProgramId>,
}

impl Names {
    /// Names the inputs and the values that the regions make.
    pub(crate) fn of(prepared: &PreparedProgram, story: &Story) -> Names {
        let mut values: HashMap<ValueId, ProgramId> =
            prepared.inputs().map(|(id, value)| (value, id)).collect();
        for region in &story.regions {
            let graph = region.contents.canon().graph();
            for (node, site) in graph.nodes().iter().zip(region.contents.sites()) {
                for (result, &id) in node.results().zip(prepared.results_at(site)) {
                    if let Ref::Result(index) = result {
                        values.insert(region.contents.outputs()[index as usize].value, id);
                    }
                }
            }
        }
        Names { values }
    }

    /// `%7`, or the engine's own name for a value without a name in the file.
    pub(crate) fn get(&self, value: ValueId) -> String {
        match self.values.get(&value) {
            Some(id) => id.to_string(),
            None => value.to_string(),
        }
    }

    /// The name of a value of a region.
    pub(crate) fn in_region(&self, contents: &SealedRegion, value: Ref) -> String {
        match value {
            Ref::Param(index) => self.get(contents.inputs()[index as usize].value),
            Ref::Result(index) => self.get(contents.outputs()[index as usize].value),
        }
    }
}

/// The attributes of an op in words: `dimensions = [0], ...`; large data is left out.
pub(crate) fn attributes(op: &OpDef, attrs: &Attrs) -> String {
    named(op.attrs.iter().zip(attrs.values()))
}

/// Attributes with their names; absent ones and empty lists are left out.
fn named<'a>(attrs: impl Iterator<Item = (&'a AttrDef, &'a AttrValue)>) -> String {
    const MOST: usize = 160;
    let shown = attrs.filter_map(|(def, value)| {
        let shown = attribute(def.kind, value)?;
        Some(match shown.char_indices().nth(MOST) {
            Some((cut, _)) => format!("{} = {}…", def.name, &shown[..cut]),
            None => format!("{} = {shown}", def.name),
        })
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn attribute(kind: AttrKind, value: &AttrValue) -> Option<String> {
    Some(match (value, kind) {
        (AttrValue::Absent, _) => return None,
        (AttrValue::Ints(values), _) if values.is_empty() => return None,
        (AttrValue::Config(config), _) if config.entries().is_empty() => return None,
        (AttrValue::Struct(values), AttrKind::Struct(def)) => {
            format!("({})", named(def.fields.iter().zip(values)))
        }
        (value, kind) => kind.text(value).to_string(),
    })
}

/// A value in a list of inputs or outputs: name and type.
pub(crate) fn typed(name: &str, ty: &TensorType) -> String {
    format!("{name}: {ty}")
}

/// A region as JSON.
pub(crate) fn region_json(region: &Region, names: &Names) -> Value {
    let contents = &region.contents;
    let graph = contents.canon().graph();
    let inputs = (0u32..).zip(contents.inputs()).zip(graph.params()).map(|((param, input), ty)| {
        json!({
            "value": names.get(input.value),
            "type": ty.to_string(),
            "scalar": input.lifted,
            "dies": input.dies,
            "donated": region.donated.contains(&param),
        })
    });
    let outputs =
        (0u32..).zip(contents.outputs()).filter(|(_, output)| output.live).map(|(index, output)| {
            let ty = graph.type_of(Ref::Result(index)).map(ToString::to_string);
            json!({"value": names.get(output.value), "type": ty})
        });
    let ops = graph.nodes().iter().zip(contents.sites()).map(|(node, site)| {
        let signature = node.signature();
        json!({
            "op": signature.op().name(),
            "attributes": attributes(signature.def(), signature.attrs()),
            "operands": node.operands().iter().map(|&value| names.in_region(contents, value)).collect::<Vec<_>>(),
            "results": node.results().map(|value| names.in_region(contents, value)).collect::<Vec<_>>(),
            "types": signature.results().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "site": site.to_string(),
        })
    });
    json!({
        "region": region.title().trim_start_matches("region "),
        "key": region.reference().key.to_string(),
        "mode": region.mode.name(),
        "boundary": region.boundary.name(),
        "boundary_reason": region.boundary.to_string(),
        "read_at": region.asked.as_ref().map(ToString::to_string),
        "cache": match &region.source {
            _ if region.skipped => "skipped",
            Source::Hit { .. } => "hit",
            Source::Miss(_) => "miss",
            Source::None => "none",
        },
        "cache_reason": region.source_words(),
        "compile_ms": region.compile.as_ref().map(|compile| milliseconds(compile.took)),
        "code_bytes": region.compile.as_ref().map(|compile| compile.size.0),
        "inputs": inputs.collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
        "ops": ops.collect::<Vec<_>>(),
        "trouble": region.trouble,
    })
}
