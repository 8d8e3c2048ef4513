//! Runs programs of the program format op by op, as a framework would.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use fuseline_fusion::limits::MAX_CONSTANT_BYTES;
use fuseline_fusion::op::attrs;
use fuseline_fusion::program::{Mismatch, Program, ProgramId, Role};
use fuseline_fusion::{Literal, OpCode, Site, ValueId};
use fuseline_runtime::internals::{RecordCall, bug};
use fuseline_runtime::{Error, Result};

use crate::engine::Engine;
use crate::handle::{Tensor, handles, record};
use crate::stream::Stream;

/// A program with its inputs on the device, which can be run any number of times.
pub struct PreparedProgram {
    program: Arc<Program>,
    stream: Stream,
    inputs: HashMap<ProgramId, Tensor>,
    /// The values that die after each op, so that handles are dropped where a program would drop
    /// them.
    dying: Vec<Vec<ProgramId>>,
    /// Call sites that name the ops of the file.
    sites: Vec<Site>,
    /// Call sites that name the recorded constants, each with the position in the list of values.
    constants: Vec<(usize, Site)>,
    /// Call sites of the reads of the outputs.
    reads: Vec<Site>,
    /// The values that are computed at each call site.
    places: HashMap<Arc<str>, Vec<ProgramId>>,
}

impl Engine {
    /// Uploads the inputs of a program and prepares it to run on the engine's own stream. Small
    /// constants become literals of the compiled code; others are uploaded too.
    ///
    /// # Errors
    /// When the device rejects the data.
    pub fn prepare(&self, program: Arc<Program>) -> Result<PreparedProgram> {
        let stream = self.stream().clone();
        let mut inputs = HashMap::new();
        for value in &program.values {
            if value.role == Role::Input || value.data.ty().bytes().0 > MAX_CONSTANT_BYTES {
                inputs.insert(value.id, stream.from_literal(&value.data)?);
            }
        }
        let mut last_use: HashMap<ProgramId, usize> = HashMap::new();
        for (index, op) in program.ops.iter().enumerate() {
            for &id in op.operands.iter().chain(&op.results) {
                last_use.insert(id, index);
            }
        }
        let mut dying = vec![Vec::new(); program.ops.len()];
        for (id, index) in last_use {
            if !program.outputs.contains(&id) {
                dying[index].push(id);
            }
        }
        dying.iter_mut().for_each(|ids| ids.sort_unstable());
        let name = if program.name.is_empty() { "program" } else { &program.name };
        let mut places = HashMap::new();
        let mut sites = Vec::with_capacity(program.ops.len());
        for (index, op) in program.ops.iter().enumerate() {
            let place: Arc<str> = format!("{name}: ops[{index}]").into();
            places.insert(place.clone(), op.results.clone());
            sites.push(Site::Host(place));
        }
        let mut constants = Vec::new();
        for (index, value) in program.values.iter().enumerate() {
            if !inputs.contains_key(&value.id) {
                let place: Arc<str> = format!("{name}: value {}", value.id).into();
                places.insert(place.clone(), vec![value.id]);
                constants.push((index, Site::Host(place)));
            }
        }
        let read = |output| Site::Host(format!("{name}: outputs[{output}]").into());
        let reads = (0..program.outputs.len()).map(read).collect();
        Ok(PreparedProgram { program, stream, inputs, dying, sites, reads, constants, places })
    }
}

impl PreparedProgram {
    /// The program.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The values on the device: their ids in the program and in the engine.
    pub fn inputs(&self) -> impl Iterator<Item = (ProgramId, ValueId)> {
        self.inputs.iter().map(|(&id, tensor)| (id, tensor.id()))
    }

    /// The values that the op recorded at a call site computes: results of an op, or a constant.
    /// Empty for a site that is not of this program.
    #[must_use]
    pub fn results_at(&self, site: &Site) -> &[ProgramId] {
        match site {
            Site::Host(place) => self.places.get(place).map_or(&[], Vec::as_slice),
            Site::Static(place) => self.places.get(*place).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }

    /// Records every op in the current mode and returns handles on the outputs. Does not wait,
    /// except in Debug mode.
    ///
    /// # Errors
    /// When an op is rejected; in Debug mode, when one fails.
    pub fn run(&self) -> Result<Vec<Tensor>> {
        let mut values: HashMap<ProgramId, Tensor> = HashMap::new();
        for (index, site) in &self.constants {
            let value = &self.program.values[*index];
            let call = RecordCall {
                op: OpCode::Constant,
                attrs: &attrs::constant(value.data.clone()),
                bodies: &[],
                operands: &[],
                effect: fuseline_fusion::op::Effect::Pure,
                site,
            };
            let made = record(self.stream.shared(), call)?.pop();
            values.insert(value.id, made.ok_or_else(|| bug!("a constant has one result"))?);
        }
        for (index, op) in self.program.ops.iter().enumerate() {
            let operands: Vec<&Tensor> =
                op.operands.iter().map(|&id| self.value(&values, id)).collect::<Result<_>>()?;
            let call = RecordCall {
                op: op.signature.op(),
                attrs: op.signature.attrs(),
                bodies: op.signature.bodies(),
                operands: handles(&operands),
                effect: fuseline_fusion::op::Effect::Pure,
                site: &self.sites[index],
            };
            let results = record(self.stream.shared(), call)?;
            values.extend(op.results.iter().copied().zip(results));
            for id in &self.dying[index] {
                values.remove(id);
            }
        }
        self.program.outputs.iter().map(|&id| self.value(&values, id).cloned()).collect()
    }

    fn value<'a>(&'a self, values: &'a HashMap<ProgramId, Tensor>, id: ProgramId) -> Result<&'a Tensor> {
        values.get(&id).or_else(|| self.inputs.get(&id)).ok_or_else(|| {
            Error::misuse(format!("the program uses {id}, which it does not define"), Site::Unknown)
        })
    }

    /// Runs the program and reads its outputs.
    ///
    /// # Errors
    /// When an op is rejected or fails.
    pub fn results(&self) -> Result<Vec<Literal>> {
        let outputs = self.run()?;
        outputs
            .iter()
            .zip(&self.reads)
            .map(|(output, site)| output.handle().literal_at(site.clone()))
            .collect()
    }

    /// Compares results with the expected ones. `None` if the program expects nothing. Otherwise
    /// returns the mismatches, by output.
    #[must_use]
    pub fn compare(&self, results: &[Literal]) -> Option<Vec<(usize, Mismatch)>> {
        let program = &self.program;
        if program.expected.is_empty() {
            return None;
        }
        let pairs = results.iter().zip(&program.expected).zip(&program.checks);
        let mismatch = |(index, ((actual, expected), check)): (usize, ((&Literal, &Literal), _))| {
            let check: &fuseline_fusion::program::Check = check;
            check.compare(actual, expected).err().map(|mismatch| (index, mismatch))
        };
        Some(pairs.enumerate().filter_map(mismatch).collect())
    }
}

impl fmt::Debug for PreparedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreparedProgram({}, {} ops)", self.program.name, self.program.ops.len())
    }
}
